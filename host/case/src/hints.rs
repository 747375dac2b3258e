//! Changes that make a rule hold again. Nothing is solved for: values near the one given are tried on the rules, so that every
//! change is known to work and no rule is written a second time. A change that breaks another rule is no cure.

use crate::config::{Config as UserConfig, UnknownWord, number_of};
use crate::error::{Cure, Error, Problem};
use core::fmt;
use core::mem::discriminant;
use serde_json::Value;
use veriep_core::shape::{
    Algorithm, BatchSizes, Config, Given, Limits, Op, RANKS_MAX, Release, Rule, Seen, Shape, Violation,
};

/// How far from a value its neighbours are tried; no parameter with gaps has a wider range.
const NEIGHBOURS: i64 = 1100;
/// Where halving begins: no parameter can be larger.
const LARGEST: i64 = u32::MAX as i64;

/// Words that decide which rules there are.
const OF_ALGORITHMS: [&str; 3] = ["release", "product", "comm_alg"];

/// Parameters that no hint sets: another machine or number format is no mending.
const UNMENDED: [&str; 4] = ["product", "dtype", "quant_mode", "comm_quant_mode"];

/// The shape of `config`, which `place` names in the error. With the product's limits the operators of the configuration's
/// release have to accept it, too.
///
/// # Errors
/// Every rule that it breaks, with cures.
pub fn shape(
    config: &UserConfig,
    given: Given,
    limits: Limits,
    place: impl fmt::Display,
) -> Result<Shape, Error> {
    let judged = judge(config, given, Door { idle_ranks: true, ..Door::of(config, limits) });
    let missing = config.origin.missing();
    if judged.is_ok() && !missing.is_empty() {
        let keys = missing.join(", ");
        return Err(Error::Request(format!(
            "{place}: the input does not say {keys}: --set KEY=VALUE for each"
        )));
    }
    judged.map_err(|problems| Error::Invalid { place: place.to_string(), problems })
}

/// The same of a configuration that the operators have to accept as it is: they know no rank without tokens, which our
/// machines run.
///
/// # Errors
/// As [`shape`].
pub fn accepted(
    config: &UserConfig,
    given: Given,
    limits: Limits,
    place: impl fmt::Display,
) -> Result<Shape, Error> {
    let judged = judge(config, given, Door::of(config, limits));
    judged.map_err(|problems| Error::Invalid { place: place.to_string(), problems })
}

fn judge(config: &UserConfig, given: Given, door: Door) -> Result<Shape, Vec<Problem>> {
    let core = config.as_core(given);
    let mut all = Vec::new();
    let shape = door.check(&core, &mut |broken| all.push(*broken));
    let (unknown, others) = (config.unknown_words(), config.page_problems());
    if let Some(shape) = shape.filter(|_| unknown.is_empty() && others.is_empty()) {
        return Ok(shape);
    }
    if unknown.iter().any(|word| OF_ALGORITHMS.contains(&word.parameter)) {
        all.clear();
    }
    let words = unknown.iter().map(|word| word_problem(config, given, door, word));
    let rules = all.iter().map(|broken| problem(&core, door, broken, &all));
    let mut problems: Vec<_> = words.chain(rules).chain(others).collect();
    problems.sort_by_key(|problem| config.origin.place(&problem.parameter));
    Err(problems)
}

/// A broken rule, and whose it is.
#[derive(Clone, Copy, Debug)]
struct Broken {
    violation: Violation,
    /// Our machines', while the operators accept the value.
    own_limit: bool,
}

/// Whose rules a configuration has to keep.
#[derive(Clone, Copy, Debug)]
struct Door {
    limits: Limits,
    /// The operators that have to accept it; none for the tiny shapes of tests and models.
    release: Option<Release>,
    algorithm: Algorithm,
    /// Whether a rank may have no tokens, which only our machines know: the operators are asked about a token there.
    idle_ranks: bool,
}

impl Door {
    fn of(config: &UserConfig, limits: Limits) -> Self {
        let release = (limits == Limits::Product).then(|| config.release());
        Self { limits, release, algorithm: config.algorithm(), idle_ranks: false }
    }

    /// Calls `found` with each broken rule: first those of the operators, then our own limits of other parameters.
    fn check(self, config: &Config<'_>, found: &mut dyn FnMut(&Broken)) -> Option<Shape> {
        let mut of_operators = Vec::new();
        if let Some(release) = self.release {
            let busy = match config.bs {
                BatchSizes::PerRank(list) if self.idle_ranks && list.contains(&0) => {
                    Some(list.iter().map(|&bs| if bs == 0 { 1 } else { bs }).collect::<Vec<_>>())
                }
                _ => None,
            };
            let bs = busy.as_deref().map_or(config.bs, BatchSizes::PerRank);
            release.check(self.algorithm, &Config { bs, ..*config }, &mut |violation| {
                of_operators.push(violation.parameter);
                found(&Broken { violation: *violation, own_limit: false });
            });
        }
        // Of a list with a 0 the operators were asked about another one.
        let has_idle = matches!(config.bs, BatchSizes::PerRank(list) if list.contains(&0));
        let mut own = |violation: &Violation| {
            if !of_operators.contains(&violation.parameter) {
                let were_asked = self.release.is_some() && !(violation.parameter == "bs" && has_idle);
                found(&Broken { violation: *violation, own_limit: were_asked });
            }
        };
        let Some(comm_alg) = self.algorithm.protocol() else {
            own(&NO_PROTOCOL);
            return None;
        };
        let shape = Shape::check(&Config { comm_alg, ..*config }, self.limits, &mut own)?;
        of_operators.is_empty().then_some(shape)
    }
}

/// What we say of an algorithm of the operators for which we have no machines.
const NO_PROTOCOL: Violation = Violation {
    parameter: "comm_alg",
    element: None,
    seen: Seen::Word("hierarchy"),
    rule: Rule::Words("has no protocol here: it is validated and sized, and nothing else"),
    numbers: [("", 0); 4],
};

fn is_same(a: &Violation, b: &Violation) -> bool {
    a.parameter == b.parameter
        && discriminant(&a.rule) == discriminant(&b.rule)
        && (!matches!(a.rule, Rule::Words(_)) || a.rule == b.rule)
}

/// The problem of a word that means nothing. Its cure is the word most like it with which all rules hold, or that is most
/// like it.
fn word_problem(config: &UserConfig, given: Given, door: Door, word: &UnknownWord) -> Problem {
    let UnknownWord { parameter, seen, legal } = word;
    let problem = Problem::from(word);
    if UNMENDED.contains(parameter) {
        return problem;
    }
    let alike =
        |word: &str| word.chars().zip(seen.chars()).take_while(|(a, b)| *a == b.to_ascii_lowercase()).count();
    let mut legal = legal.clone();
    legal.sort_by_key(|word| core::cmp::Reverse(alike(word)));
    let works = |word: &&&str| {
        let mut config = config.clone();
        *match *parameter {
            "release" => &mut config.release,
            "comm_alg" => &mut config.comm_alg,
            _ => &mut config.op,
        } = (**word).to_owned();
        let door = Door { idle_ranks: door.idle_ranks, ..Door::of(&config, door.limits) };
        config.unknown_words().is_empty() && door.check(&config.as_core(given), &mut |_| {}).is_some()
    };
    let best = legal.iter().find(works).or(legal.first());
    let cure = best.map(|&word| Cure { parameter: (*parameter).to_owned(), value: Some(word.into()) });
    cured(problem, cure.into_iter().collect())
}

/// The problem of a violation among `all` that `config` has, with its cures.
fn problem(config: &Config<'_>, door: Door, broken: &Broken, all: &[Broken]) -> Problem {
    let mut config = *config;
    if let BatchSizes::PerRank(list) = config.bs {
        // Longer ones break the same rule, and a foreign file may hold any number.
        config.bs = BatchSizes::PerRank(&list[..list.len().min(RANKS_MAX + 1)]);
    }
    let violation = &broken.violation;
    let problem = Problem::from(violation);
    let problem = if broken.own_limit { problem.into_own_limit() } else { problem };
    if UNMENDED.contains(&violation.parameter) {
        let message = problem.message.clone() + of_other_operators(violation);
        return Problem { message, ..problem };
    }
    let mut problem = cured(problem, HintSearch { config, door, violation, all }.cures());
    let is_idle_rank = violation.parameter == "bs" && violation.seen == Seen::Number(0);
    if let Some(hint) = problem.hint.as_mut().filter(|_| is_idle_rank && !broken.own_limit) {
        *hint += "; a rank without tokens has an x_active_mask that is false everywhere";
    }
    problem
}

/// What a way of quantisation is that these operators lack.
fn of_other_operators(violation: &Violation) -> &'static str {
    match (violation.parameter, violation.seen) {
        ("quant_mode", Seen::Number(1)) => ": 1 is static quantisation, which is not here",
        (_, Seen::Number(3 | 4)) => ": 3 and 4 are group and MX formats of A5, whose operators are not here",
        _ => "",
    }
}

/// A problem with its cures.
pub fn cured(problem: Problem, cures: Vec<Cure>) -> Problem {
    Problem { hint: (!cures.is_empty()).then(|| hint(&cures)), cures, ..problem }
}

/// The cures in words, values of one parameter together.
fn hint(cures: &[Cure]) -> String {
    let mut text = String::new();
    let mut last = "";
    for Cure { parameter, value } in cures {
        let separator = if text.is_empty() {
            ""
        } else if parameter == last {
            " or "
        } else {
            ", or "
        };
        text += separator;
        match value {
            Some(value) if parameter == last => text += &value.to_string(),
            Some(value) => text += &format!("{parameter} = {value}"),
            None => text += &format!("leave out {parameter}"),
        }
        last = parameter;
    }
    text
}

/// One violation and what is tried against it.
#[derive(Clone, Copy)]
struct HintSearch<'a> {
    config: Config<'a>,
    door: Door,
    violation: &'a Violation,
    all: &'a [Broken],
}

impl HintSearch<'_> {
    fn cures(&self) -> Vec<Cure> {
        let parameter = self.violation.parameter;
        match self.violation.seen {
            Seen::Present => self.without(parameter).into_iter().collect(),
            Seen::Word(_) => self.word().into_iter().collect(),
            Seen::NotFinite(_) => self.real().into_iter().collect(),
            Seen::List(entries) => {
                let ranks = i64::try_from(entries).unwrap_or(i64::MAX);
                self.one_size().into_iter().chain(self.number("ep_world_size", ranks)).collect()
            }
            Seen::Number(_) if matches!(self.config.bs, BatchSizes::PerRank(_)) && parameter == "bs" => {
                self.entry().or_else(|| self.one_size()).into_iter().collect()
            }
            Seen::Number(seen) => self.near(parameter, seen),
        }
    }

    /// Returns the change of `parameter` to `value`, which made `config`, as a cure. Returns `None` if the violation remains or
    /// another one comes.
    fn tried(&self, parameter: &str, value: impl Into<Value>, config: &Config<'_>) -> Option<Cure> {
        let mut is_cured = true;
        self.door.check(config, &mut |Broken { violation: found, .. }| {
            let was_there = self.all.iter().any(|other| is_same(found, &other.violation));
            is_cured &= was_there && !is_same(found, self.violation);
        });
        is_cured.then(|| Cure { parameter: parameter.to_owned(), value: Some(value.into()) })
    }

    /// Returns the cure that sets `parameter` to `value`, if that is one.
    fn number(&self, parameter: &str, value: i64) -> Option<Cure> {
        let mut config = self.config;
        match number_of(&mut config, parameter) {
            Some(place) => *place = value,
            None => config.bs = BatchSizes::Uniform(value),
        }
        self.tried(parameter, value, &config)
    }

    /// The nearest value on either side, the upper one first.
    fn near(&self, parameter: &str, seen: i64) -> Vec<Cure> {
        let start = match self.violation.rule {
            Rule::Range { min, max } => seen.clamp(min, max),
            _ => seen.clamp(0, LARGEST),
        };
        let tried = |value: i64| if value == seen { None } else { self.number(parameter, value) };
        let beside = |up: bool| {
            let on_side = |value: &i64| (*value > seen) == up;
            let step = if up { 1 } else { -1 };
            let neighbours = (0..NEIGHBOURS).map(|distance| start.saturating_add(step * distance));
            if let Some(found) = neighbours.filter(|n| *n >= 0 && on_side(n)).find_map(tried) {
                return Some(found);
            }
            // The rule may name the very number; else halving finds where it begins to hold.
            let mut named: Vec<_> = self.violation.numbers.iter().map(|(_, number)| *number).collect();
            named.retain(on_side);
            named.sort_unstable_by_key(|value| value.abs_diff(seen));
            let halved = || {
                let found = self.halve(parameter, start, if up { LARGEST } else { 0 });
                found.filter(on_side).and_then(|value| self.number(parameter, value))
            };
            named.into_iter().find_map(tried).or_else(halved)
        };
        [beside(true), beside(false)].into_iter().flatten().collect()
    }

    /// The value nearest to `wrong`, which does not work, on the way to `right`, if that works.
    fn halve(&self, parameter: &str, mut wrong: i64, mut right: i64) -> Option<i64> {
        self.number(parameter, right)?;
        while wrong.abs_diff(right) > 1 {
            let middle = wrong.midpoint(right);
            if self.number(parameter, middle).is_some() {
                right = middle;
            } else {
                wrong = middle;
            }
        }
        Some(right)
    }

    /// One size for all ranks instead of a list: the largest that works.
    fn one_size(&self) -> Option<Cure> {
        let BatchSizes::PerRank(list) = self.config.bs else { return None };
        let largest = list.iter().copied().max().unwrap_or(1);
        (1..=largest.clamp(1, NEIGHBOURS)).rev().find_map(|bs| self.number("bs", bs))
    }

    /// The one wrong entry of a list, else as large as the others.
    fn entry(&self) -> Option<Cure> {
        let (BatchSizes::PerRank(list), Rule::Range { min, max }) = (self.config.bs, self.violation.rule)
        else {
            return None;
        };
        let legal = |bs: &i64| (min..=max).contains(bs);
        let rank = list.iter().position(|bs| !legal(bs))?;
        let others = list.iter().copied().filter(legal).max();
        let cure = |value: i64| {
            let mut entries = list.to_vec();
            entries[rank] = value;
            let config = Config { bs: BatchSizes::PerRank(&entries), ..self.config };
            let cure = self.tried("bs", value, &config)?;
            Some(Cure { parameter: format!("bs[{rank}]"), ..cure })
        };
        [Some(list[rank].clamp(min, max)), others].into_iter().flatten().find_map(cure)
    }

    /// The one word that the rule names.
    fn word(&self) -> Option<Cure> {
        let Rule::Word(word) = self.violation.rule else { return None };
        self.tried(self.violation.parameter, word, &Config { op: Op::Combine, ..self.config })
    }

    fn real(&self) -> Option<Cure> {
        let norm_eps = UserConfig::default().norm_eps;
        self.tried("norm_eps", norm_eps, &Config { norm_eps: norm_eps as f32, ..self.config })
    }

    fn without(&self, tensor: &str) -> Option<Cure> {
        let flags = match tensor {
            "scales" => Given::SCALES,
            "x_active_mask" => Given::MASK_1D | Given::MASK_2D,
            "elastic_info" => Given::ELASTIC_INFO,
            "shared_expert_x" => Given::SHARED_EXPERT_X,
            "expert_map" => Given::EXPERT_MAP,
            _ => Given::empty(),
        };
        let config = Config { given: self.config.given - flags, ..self.config };
        self.tried(tensor, Value::Null, &config).map(|cure| Cure { value: None, ..cure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Bs, Config};
    use crate::random;
    use proptest::prelude::*;

    /// Violations of a configuration in a user's form, as parameter and rule, with their cures.
    fn judged(config: &Config, given: Given) -> Vec<Problem> {
        judge(config, given, Door::of(config, Limits::Product)).err().unwrap_or_default()
    }

    /// Keys that a cure leaves out.
    const KEYS_LEFT_OUT: [&str; 3] = ["group_tp", "ep_rank_id", "out_dtype"];

    /// Does what a cure says, the way a user would.
    fn apply(cure: &Cure, config: &mut Config, given: &mut Given) {
        match (&cure.value, cure.parameter.split_once('[')) {
            (None, _) if KEYS_LEFT_OUT.contains(&cure.parameter.as_str()) => {
                let mut table = toml::Table::try_from(&*config).unwrap();
                table.remove(&cure.parameter).unwrap();
                *config = table.try_into().unwrap();
            }
            (None, _) => given.remove(match cure.parameter.as_str() {
                "scales" => Given::SCALES,
                "x_active_mask" => Given::MASK_1D | Given::MASK_2D,
                "elastic_info" => Given::ELASTIC_INFO,
                "shared_expert_x" => Given::SHARED_EXPERT_X,
                "expert_map" => Given::EXPERT_MAP,
                other => panic!("{other}"),
            }),
            (Some(value), Some((_, rank))) => {
                let rank: usize = rank.trim_end_matches(']').parse().unwrap();
                let Bs::PerRank(list) = &mut config.bs else { panic!("no list") };
                list[rank] = value.as_i64().unwrap();
            }
            (Some(value), None) => config.set(&format!("{}={value}", cure.parameter)).unwrap(),
        }
    }

    #[test]
    fn rules_are_judged_once_the_words_that_decide_them_are_known() {
        let mut config = UserConfig::default();
        for assignment in ["product=a5", "dtype=f32", "op=add", "k=17", "h=64"] {
            config.set(assignment).unwrap();
        }
        let lines = |config: &UserConfig| {
            let found = judge(config, Given::empty(), Door::of(config, Limits::Product)).unwrap_err();
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let words = [
            r#"product = "a5": must be "a3" or "a2": operators of A5 are not here"#,
            r#"dtype = "f32": must be "bf16" or "f16""#,
            r#"op = "add": must be "combine" or "combine_add_rms_norm"; hint: op = "combine""#,
        ];
        assert_eq!(lines(&config), words);
        config.set("product=a2").unwrap();
        // A2 takes rows of 64 elements.
        let of_a2 = [
            words[1],
            r#"op = "add": must be "combine"; hint: op = "combine""#,
            "k = 17: must be in [1, 16]; hint: k = 16",
        ];
        assert_eq!(lines(&config), of_a2);
    }

    #[test]
    fn no_hint_names_another_number_format() {
        for (assignment, told) in [
            ("quant_mode=1", "quant_mode = 1: must be 0 or 2: 1 is static quantisation, which is not here"),
            (
                "quant_mode=4",
                "quant_mode = 4: must be 0 or 2: 3 and 4 are group and MX formats of A5, whose operators are not here",
            ),
            (
                "comm_quant_mode=3",
                "comm_quant_mode = 3: must be 0 or 2: 3 and 4 are group and MX formats of A5, whose operators are not here",
            ),
            ("comm_quant_mode=1", "comm_quant_mode = 1: must be 0 or 2"),
            ("quant_mode=-7", "quant_mode = -7: must be 0 or 2"),
            ("dtype=fp8", "dtype = \"fp8\": must be \"bf16\" or \"f16\""),
        ] {
            let mut config = UserConfig::default();
            config.set(assignment).unwrap();
            let problems = judge(&config, Given::empty(), Door::of(&config, Limits::Product)).unwrap_err();
            let [problem] = &problems[..] else { panic!("{problems:?}") };
            assert_eq!((problem.to_string().as_str(), problem.cures.len()), (told, 0));
        }
        let plain = UserConfig::default();
        let door = Door::of(&plain, Limits::Product);
        let scales = &judge(&plain, Given::SCALES, door).unwrap_err()[0];
        assert_eq!(scales.hint.as_deref(), Some("leave out scales"));
    }

    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![
            6 => 0i64..20,
            3 => prop::sample::select(vec![-1, 24, 64, 100, 256, 400, 513, 768, 1024, 4096, 7168, 9000, 20_000]),
            1 => any::<i64>(),
        ]
    }

    fn any_config() -> impl Strategy<Value = (Config, Given)> {
        const KEYS: [&str; 16] = [
            "ep_world_size",
            "tp_world_size",
            "moe_expert_num",
            "shared_expert_num",
            "shared_expert_rank_num",
            "zero_expert_num",
            "copy_expert_num",
            "const_expert_num",
            "k",
            "h",
            "bs",
            "global_bs",
            "quant_mode",
            "comm_quant_mode",
            "hccl_buffsize_mb",
            "aiv_num",
        ];
        let layout = prop::sample::select(vec![
            "",
            "product=a2",
            "comm_alg=fullmesh_v2",
            "product=a2 comm_alg=hierarchy",
            "comm_alg=ring",
            "product=a5",
            "dtype=f32",
            "op=combine_add_rms_norm",
            "norm_eps=nan",
            "bs=[16,16,0]",
            "bs=[16,16,16,16,16,16,16,16,16,16,16,16,16,16,16,600]",
            "product=a2 op=combine_add_rms_norm",
            "product=a2 hccl_intra_pcie_enable=1 hccl_intra_roce_enable=0",
            "group_ep=a group_tp=a out_dtype=1 ep_rank_id=2000",
        ]);
        let changes = prop::collection::vec((prop::sample::select(KEYS.to_vec()), number()), 0..5);
        (layout, changes, prop_oneof![3 => Just(0u32), 1 => 0u32..64]).prop_map(|(layout, changes, given)| {
            let mut config = Config::default();
            layout.split_whitespace().for_each(|assignment| config.set(assignment).unwrap());
            for (key, value) in changes {
                config.set(&format!("{key}={value}")).unwrap();
            }
            (config, Given::from_bits_truncate(given))
        })
    }

    proptest! {
        #![proptest_config(random::config(300))]

        #[test]
        fn a_violation_does_not_survive_any_of_its_cures((config, given) in any_config()) {
            let found = judged(&config, given);
            for problem in &found {
                prop_assert_eq!(problem.hint.is_some(), !problem.cures.is_empty());
                let has_none = UNMENDED.contains(&problem.parameter.as_str());
                prop_assert!(!has_none || problem.cures.is_empty(), "{:?} {:?}", problem, config);
                let is_word = config.unknown_words().iter().any(|word| word.parameter == problem.parameter);
                let sets_one = problem.cures.iter().any(|cure| UNMENDED.contains(&cure.parameter.as_str()));
                prop_assert!(!sets_one, "{:?}", problem);
                let twice = |i: usize| problem.cures[..i].contains(&problem.cures[i]);
                prop_assert!(!(0..problem.cures.len()).any(twice), "{:?}", problem);
                for cure in &problem.cures {
                    let (mut config, mut given) = (config.clone(), given);
                    apply(cure, &mut config, &mut given);
                    let left = judged(&config, given);
                    let survives = left.iter().any(|other| {
                        (&other.parameter, &other.rule) == (&problem.parameter, &problem.rule)
                    });
                    prop_assert!(!survives, "{cure:?} of {problem:?} in {config:?}");
                    // What is wrong now was wrong before. Of a word nothing was known.
                    let rules = |problems: &[Problem]| {
                        let of = |problem: &Problem| problem.message.split(' ').next().unwrap().to_owned();
                        problems.iter().map(of).collect::<Vec<_>>()
                    };
                    let before = rules(&found);
                    prop_assert!(is_word || rules(&left).iter().all(|rule| before.contains(rule)), "{cure:?} {left:?}");
                }
            }
        }

        #[test]
        fn a_single_wrong_number_has_a_cure(
            key in prop::sample::select(vec!["k", "h", "bs", "aiv_num", "hccl_buffsize_mb"]),
            number in prop::sample::select(vec![-1, 0, 17, 513, 7, i64::MAX]),
        ) {
            let mut config = Config::default();
            config.set(&format!("{key}={number}")).unwrap();
            let found = judged(&config, Given::empty());
            if let [problem] = &found[..] {
                prop_assert!(!problem.cures.is_empty(), "{problem:?}");
            }
        }
    }
}
