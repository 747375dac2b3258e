//! The diagnosis of the ranks as data.

use super::evidence::{Contradiction, Evidence, Lack, Missing, OtherCall, Seen, Suspicion};
use super::options::{CHECKED, EXPERTS, FLAGS, IN_FLIGHT, RECEIVE, SLOTS, STAGE, value};
use super::{Group, OperatorSource, Reading};
use serde::Serialize;
use std::collections::BTreeSet;
use veriep_case::dump;
use veriep_case::error::Error;
use veriep_case::verdict::{Judgement, Verdict};
use veriep_core::fabric::Detail;
use veriep_core::layout::state::Operator;
use veriep_core::units::RankId;

/// Options that can be open.
const NAMES: [&str; 7] = [RECEIVE, EXPERTS, FLAGS, STAGE, SLOTS, CHECKED, IN_FLIGHT];

#[derive(Serialize)]
pub struct Diagnosis {
    pub ok: bool,
    pub config: String,
    pub from: String,
    /// Ranks that surely hold the group up.
    pub culprits: Vec<u32>,
    /// Ranks that may hold it up.
    pub suspects: Vec<Suspect>,
    pub ranks: Vec<Rank>,
    pub missing: Vec<Word>,
    /// What memory does not tell.
    pub unknown: Vec<String>,
}

#[derive(Serialize)]
pub struct Suspect {
    pub rank: u32,
    pub reason: String,
}

/// How far a rank is. What the dump does not tell is null.
#[derive(Default, Serialize)]
pub struct Rank {
    pub rank: u32,
    pub operator: Option<&'static str>,
    pub number: Option<u64>,
    pub phase: Option<&'static str>,
    pub dispatches: Option<u64>,
    pub combines: Option<u64>,
    /// Cores that have begun fewer operators than others of the rank.
    pub cores_behind: Vec<u32>,
    /// Whether `waits_for` is sure: memory is the same if these words came and were cleared.
    pub sure: bool,
    pub waits_for: Vec<Wait>,
}

#[derive(Default, Serialize)]
pub struct Wait {
    pub core: u32,
    pub operator: &'static str,
    pub number: Option<u64>,
    pub what: &'static str,
    pub source: Option<u32>,
    pub expert: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_core: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_of: Option<u32>,
}

/// A word that a rank lacks.
#[derive(Serialize)]
pub struct Word {
    pub rank: u32,
    pub source: Option<u32>,
    pub what: String,
}

/// Returns what the dumps show by all readings; details are those of the first.
///
/// # Errors
/// There is no reading.
pub(super) fn judged(
    from: OperatorSource,
    group: &Group,
    readings: &[Reading],
) -> Result<(Judgement, Diagnosis), Error> {
    let Some(first) = readings.first() else {
        return Err(Error::Request(format!("{}: nothing could be read", group.name)));
    };
    let (evidence, options) = agreed(from, group, readings);
    let (ranks, evidence) = (&first.ranks[..], &evidence);
    let of = Of { group, ranks, evidence, in_flight: first.options.in_flight.into(), options: &options };
    let judgement = of.judgement(from);
    let all = || (0..).zip(ranks);
    let reason =
        |(member, why): (&u32, &Suspicion)| Suspect { rank: of.number(*member), reason: of.reason(why) };
    let diagnosis = Diagnosis {
        ok: judgement.verdict() == Verdict::Yes,
        config: group.name.clone(),
        from: from.name().to_owned(),
        culprits: of.numbers(evidence.culprits.iter().copied()),
        suspects: evidence.suspects.iter().map(reason).collect(),
        missing: all().flat_map(|(member, seen)| of.words(member, seen.as_ref())).collect(),
        unknown: of.unknown(),
        ranks: all().map(|(member, seen)| of.rank(member, seen.as_ref())).collect(),
    };
    Ok((judgement, diagnosis))
}

/// What all readings agree on, and the options on which the rest depends, each with the values that fit the dumps.
fn agreed(
    from: OperatorSource,
    group: &Group,
    readings: &[Reading],
) -> (Evidence, Vec<(&'static str, Vec<String>)>) {
    let outcome = |Reading { options, ranks, evidence }: &Reading| {
        let of = Of { group, ranks, evidence, in_flight: options.in_flight.into(), options: &[] };
        (of.judgement(from).verdict(), evidence.culprits.clone())
    };
    let outcomes: Vec<_> = readings.iter().map(outcome).collect();
    let mut evidence = readings[0].evidence.clone();
    let others = readings.iter().zip(&outcomes).filter(|(_, outcome)| **outcome != outcomes[0]);
    let others: Vec<_> = others.map(|(reading, _)| reading).collect();
    let mut decide = Vec::new();
    for name in NAMES {
        let own = value(&readings[0].options, name);
        let mut values: Vec<_> = others.iter().map(|other| value(&other.options, name)).collect();
        values.retain(|value| *value != own);
        values.sort_unstable();
        values.dedup();
        if !values.is_empty() {
            values.insert(0, own);
            decide.push((name, values));
        }
    }
    let named: BTreeSet<_> = outcomes.iter().flat_map(|(_, culprits)| culprits.iter().copied()).collect();
    evidence.culprits = outcomes.iter().fold(named.clone(), |all, (_, culprits)| &all & culprits);
    let unsure = named.difference(&evidence.culprits).map(|rank| (*rank, Suspicion::IfOptionsAreRight));
    evidence.suspects.extend(unsure.collect::<Vec<_>>());
    (evidence, decide)
}

struct Of<'a> {
    group: &'a Group,
    ranks: &'a [Option<Seen>],
    evidence: &'a Evidence,
    in_flight: u64,
    /// Options that decide what all readings do not agree on, and their values.
    options: &'a [(&'static str, Vec<String>)],
}

impl Of<'_> {
    fn number(&self, member: u32) -> u32 {
        self.group.number(member)
    }

    fn numbers(&self, members: impl Iterator<Item = u32>) -> Vec<u32> {
        members.map(|member| self.number(member)).collect()
    }

    fn absent(&self) -> Vec<u32> {
        self.numbers((0..).zip(self.ranks).filter(|(_, seen)| seen.is_none()).map(|(member, _)| member))
    }

    /// An operator of a rank, with its number if that is known.
    fn operator(seen: &Seen, operator: Operator, number: u64) -> String {
        if seen.is_numbered { format!("{} {number}", operator.name()) } else { operator.name().to_owned() }
    }

    /// What every dump leaves open, and these ones.
    fn unknown(&self) -> Vec<String> {
        let mut unknown = vec!["when a rank stopped, and whether its cores are alive".to_owned()];
        let absent = self.absent();
        if !absent.is_empty() {
            unknown.push(format!("ranks without a dump: {absent:?}"));
        }
        let open = self.numbers(self.evidence.open.iter().copied());
        if !open.is_empty() {
            unknown.push(format!("whether ranks {open:?} wait or have passed their wait: no word shows it"));
        }
        if self.ranks.iter().flatten().any(|seen| !seen.is_numbered && seen.last.is_some()) {
            unknown.push("how many operators have begun: memory has that modulo 2".to_owned());
        }
        unknown.extend(self.other_calls().into_iter().skip(1));
        unknown.extend(self.evidence.contradictions.iter().skip(1).map(|what| self.contradiction(what)));
        let mut lacks = self.ranks.iter().flatten().flat_map(|seen| &seen.waits);
        if self.group.case.is_none() && lacks.any(|lack| lack.what.source().is_none()) {
            unknown
                .push("which rank returns a result, and which tokens are active: --case has them".to_owned());
        }
        unknown
    }

    /// What would tell who owes, where no rank is known to; empty if all ranks are known to lack nothing.
    fn decides(&self, from: OperatorSource) -> Vec<String> {
        let seen = || (0..).zip(self.ranks).filter_map(|(member, seen)| Some((member, seen.as_ref()?)));
        let mut add = Vec::new();
        if self.group.takes_halves {
            add.push(
                "in which half of which operator each core stopped: memory has no order of halves".to_owned(),
            );
        }
        let (absent, waiting) = (self.absent(), seen().filter(|(_, seen)| !seen.waits.is_empty()));
        let waiting = self.numbers(waiting.map(|(member, _)| member));
        if !self.evidence.contradictions.is_empty() {
            let case = if self.group.case.is_some() {
                ", and a --case of the batch that hangs, or none"
            } else {
                ""
            };
            add.push(format!("dumps of one group that stands still, with the parameters of its job{case}"));
        }
        add.extend(self.options.iter().map(|(name, values)| {
            let values = values.join(" or ");
            let stated = match *name == CHECKED {
                true => format!("{} with {name} = {values}", dump::OPTIONS_NAME),
                false => format!("--{} {values}", name.replace('_', "-")),
            };
            format!("{stated}: nothing states it, and the answer depends on it")
        }));
        let lack_own = self.numbers(self.evidence.lack_own_flags.iter().copied());
        if !lack_own.is_empty() {
            add.push(format!(
                "is moe_expert_num = {} right? ranks {lack_own:?} all lack some of their own flags, as if flags were elsewhere",
                self.group.shape.moe_expert_num()
            ));
        }
        let is_nameless = |lack: &Lack| lack.what.source().is_none();
        if self.group.case.is_none() && seen().any(|(_, seen)| seen.waits.iter().any(is_nameless)) {
            let windows = if from == OperatorSource::Veriep { ", or the windows of all ranks" } else { "" };
            add.push(format!("--case CASE{windows}: who returns a result"));
        }
        if !absent.is_empty() {
            add.push(format!("dumps of ranks {absent:?}"));
        }
        let absent_cores = &self.evidence.absent_everywhere;
        if !absent_cores.is_empty() {
            let (cores, aiv_num) = (listed(absent_cores), self.group.shape.aiv_num());
            add.push(format!(
                "is aiv_num = {aiv_num} right? {cores} of every rank have not begun the operator that it is in"
            ));
        }
        let open = self.numbers(self.evidence.open.iter().copied());
        if !open.is_empty() {
            add.push(format!(
                "what the cores of ranks {open:?} did last: memory is the same whether they wait or not"
            ));
        }
        let last = seen().map(|(_, seen)| seen.begun).max();
        let behind =
            self.numbers(seen().filter(|(_, seen)| Some(seen.begun) != last).map(|(member, _)| member));
        let suspects = self.numbers(self.evidence.suspects.keys().copied());
        if add.is_empty() && !suspects.is_empty() {
            add.push(format!(
                "what the cores of ranks {suspects:?} and of those that wait for them did last"
            ));
        } else if add.is_empty() && !waiting.is_empty() {
            add.push(format!(
                "what the cores of ranks {waiting:?} did last: memory does not say for whom they wait"
            ));
        } else if add.is_empty() && !behind.is_empty() {
            add.push(format!("why ranks {behind:?} are behind the others: they lack no word"));
        }
        let assumed = &self.evidence.assumed;
        if add.is_empty() && !assumed.is_empty() {
            let operators = assumed.iter().filter_map(|member| self.ranks[*member as usize].as_ref()?.last);
            let operators: BTreeSet<_> = operators.map(|(operator, _)| operator.name()).collect();
            add.push(format!(
                "has the last {} of ranks {:?} returned? memory is the same before its first word and after its last",
                operators.into_iter().collect::<Vec<_>>().join(" or "),
                self.numbers(assumed.iter().copied())
            ));
        }
        if add.is_empty() && last == Some([0, 0]) {
            add.push("dumps of a group that has begun an operator: these memories are as new".to_owned());
        }
        add
    }

    /// Why a rank is only suspected.
    fn reason(&self, why: &Suspicion) -> String {
        let named = |members: &[u32]| format!("ranks {:?}", self.numbers(members.iter().copied()));
        match why {
            Suspicion::MayNotHaveSent(waiting) => {
                format!(
                    "{} may wait for its words, which look the same if they came and were cleared",
                    named(waiting)
                )
            }
            Suspicion::MayHaveStopped { holds_up, may_wait_for } => {
                let waits = match holds_up.as_slice() {
                    [] => "it is behind".to_owned(),
                    waiting => format!("{} wait for its words", named(waiting)),
                };
                let excuse = match may_wait_for.as_slice() {
                    [] => String::new(),
                    sources => format!(", but it may wait for words of {}", named(sources)),
                };
                format!("{waits}{excuse}")
            }
            Suspicion::MayBeInAnotherCall(others) => {
                format!(
                    "it is in another call than {}: one of them has left out a call or given another number",
                    named(others)
                )
            }
            Suspicion::IfCoresAreRight => "it holds the group up if aiv_num is right".to_owned(),
            Suspicion::IfExpertsAreRight => "it holds the group up if moe_expert_num is right".to_owned(),
            Suspicion::IfOptionsAreRight => {
                let options: Vec<_> = self
                    .options
                    .iter()
                    .map(|(name, values)| format!("{name} is {}", values.join(" or ")))
                    .collect();
                format!("it depends on options whether it holds the group up: {}", options.join("; "))
            }
        }
    }

    /// What of one rank does not fit.
    fn contradiction(&self, what: &Contradiction) -> String {
        let operator = |rank: u32, operator: Operator, number: u64| {
            let seen = self.ranks[rank as usize].as_ref();
            seen.map_or_else(String::new, |seen| Self::operator(seen, operator, number))
        };
        let how_far = |rank: u32, dispatch: u64| {
            let is_new = self.ranks[rank as usize].as_ref().is_some_and(|seen| seen.begun == [0, 0]);
            let begun = if is_new {
                "begun nothing".to_owned()
            } else {
                format!("not begun {}", operator(rank, Operator::Dispatch, dispatch))
            };
            format!("rank {} has {begun}", self.number(rank))
        };
        match what {
            Contradiction::Behind { rank, ahead, last, dispatch } => format!(
                "{}, although rank {} is in {}, which it reached by flags of all ranks",
                how_far(*rank, *dispatch),
                self.number(*ahead),
                operator(*ahead, last.0, last.1)
            ),
            Contradiction::Unsent { rank, by, dispatch } => format!(
                "{}, although rank {} has words of it in {}",
                how_far(*rank, *dispatch),
                self.number(*by),
                operator(*by, Operator::Dispatch, *dispatch)
            ),
            Contradiction::Memory { rank, what } => format!("rank {}: {what}", self.number(*rank)),
        }
    }

    /// The words that a rank lacks, each once.
    fn words(&self, member: u32, seen: Option<&Seen>) -> Vec<Word> {
        let word = |seen: &Seen, lack: &Lack| Word {
            rank: self.number(member),
            source: lack.what.source().map(|source| self.number(source)),
            what: self.said(seen, *lack),
        };
        seen.into_iter().flat_map(|seen| seen.waits.iter().map(|lack| word(seen, lack))).collect()
    }

    fn said(&self, seen: &Seen, lack: Lack) -> String {
        let operator = Self::operator(seen, lack.what.operator(), lack.number);
        let what = match lack.what {
            Missing::Flag { source, expert } => {
                format!("flag of rank {} for local expert {expert}", self.number(source))
            }
            Missing::Result { token, k, source } => {
                let source =
                    source.map_or_else(String::new, |source| format!(" of rank {}", self.number(source)));
                format!("result{source} for token {token}, k = {k}")
            }
            Missing::Tokens { tokens } => format!("all results of {tokens} tokens"),
            Missing::Word { wait, .. } => {
                let line = wait.renamed(|member| RankId(self.number(member.0))).to_string();
                line.strip_prefix("missing: ").unwrap_or(&line).to_owned()
            }
        };
        format!("{operator}: {what}")
    }

    fn wait(&self, seen: &Seen, Lack { core, number, what }: Lack) -> Wait {
        let wait = Wait {
            core,
            operator: what.operator().name(),
            number: seen.is_numbered.then_some(number),
            source: what.source().map(|source| self.number(source)),
            ..Wait::default()
        };
        match what {
            Missing::Flag { expert, .. } => Wait { what: "flag", expert: Some(expert), ..wait },
            Missing::Result { token, k, .. } => {
                Wait { what: "result", token: Some(token), k: Some(k), ..wait }
            }
            Missing::Tokens { tokens } => Wait { what: "results", tokens: Some(tokens), ..wait },
            Missing::Word { wait: awaited, .. } => {
                let mut wait = Wait { what: awaited.flag.name(), ..wait };
                for (detail, value) in awaited.details() {
                    match detail {
                        Detail::LocalExpert => wait.expert = Some(value),
                        Detail::Core => wait.source_core = Some(value),
                        Detail::RowsOf => wait.rows_of = Some(self.number(value)),
                        _ => {}
                    }
                }
                wait
            }
        }
    }

    fn rank(&self, member: u32, seen: Option<&Seen>) -> Rank {
        let rank = self.number(member);
        let Some(seen) = seen else { return Rank { rank, ..Rank::default() } };
        let sure = !self.evidence.doubted.contains(&member);
        let [dispatches, combines] = seen.begun.map(|begun| seen.is_numbered.then_some(begun));
        Rank {
            rank,
            operator: seen.last.map(|(operator, _)| operator.name()),
            number: seen.last.filter(|_| seen.is_numbered).map(|(_, number)| number),
            phase: match seen.last {
                None => seen.phase.or((seen.begun == [0, 0]).then_some("has begun nothing")),
                Some((operator, _)) if !seen.waits.is_empty() => Some(match (operator, sure) {
                    (Operator::Dispatch, true) => "waits for flags",
                    (Operator::Combine, true) => "waits for results",
                    (Operator::Dispatch, false) => "may wait for flags",
                    (Operator::Combine, false) => "may wait for results",
                }),
                Some(_) => seen.phase,
            },
            dispatches,
            combines,
            cores_behind: seen.behind.clone(),
            sure,
            waits_for: seen.waits.iter().map(|lack| self.wait(seen, *lack)).collect(),
        }
    }

    /// Who holds the group up: yes if no rank does, as far as words of dispatch and combine show it.
    fn judgement(&self, from: OperatorSource) -> Judgement {
        let (there, all) = (self.ranks.iter().flatten().count(), self.ranks.len());
        let dumps = if there == all { format!("all {all} ranks") } else { format!("{there} of {all} ranks") };
        let culprits = &self.evidence.culprits;
        if !self.evidence.others.is_empty() {
            let (culprits, mut others) = (self.numbers(culprits.iter().copied()), self.other_calls());
            let more = others.len().saturating_sub(1);
            others.truncate(1);
            let who = match (culprits.as_slice(), more) {
                ([rank], _) => format!("; {more} more show rank {rank} in another call"),
                (_, 0) => String::new(),
                _ => format!("; and {more} more"),
            };
            let line = format!("{}{who}", others.concat());
            let error = Error::NoProgress { line: line.clone(), missing: Vec::new() };
            return Judgement::no(format!("{line}; by dumps of {dumps}"), error);
        }
        if !culprits.is_empty() {
            let line = culprits.iter().map(|member| self.accusation(*member)).collect::<Vec<_>>().join("; ");
            let error = Error::NoProgress { line: line.clone(), missing: Vec::new() };
            return Judgement::no(format!("{line}; by dumps of {dumps}"), error);
        }
        let words: usize = self.ranks.iter().flatten().map(|seen| seen.waits.len()).sum();
        let suspects = self.numbers(self.evidence.suspects.keys().copied());
        let decides = self.decides(from);
        if decides.is_empty() {
            return Judgement::yes(format!(
                "no rank lacks a word of dispatch or combine; by dumps of {dumps}"
            ));
        }
        if self.group.takes_halves {
            let line = format!(
                "operators were taken in halves; words that may be missing: {words}; by dumps of {dumps}"
            );
            return Judgement::unknown(line, decides);
        }
        if let Some(what) = self.evidence.contradictions.first() {
            let what = self.contradiction(what);
            return Judgement::unknown(
                format!("evidence contradicts itself: {what}; by dumps of {dumps}"),
                decides,
            );
        }
        if words == 0 && suspects.is_empty() {
            return Judgement::unknown(format!("no rank surely lacks a word; by dumps of {dumps}"), decides);
        }
        let who = match suspects.as_slice() {
            [] => "cannot tell which rank holds the others up".to_owned(),
            suspects => format!("no rank surely holds the others up, ranks {suspects:?} may"),
        };
        Judgement::unknown(format!("{who}; words that are missing: {words}; by dumps of {dumps}"), decides)
    }

    /// The words of other calls, each with how far the calls are apart.
    fn other_calls(&self) -> Vec<String> {
        let culprits = &self.evidence.culprits;
        let said = |(reader, OtherCall { wait, seen, expected }): &(u32, OtherCall)| {
            let source = wait.source().map_or(*reader, |rank| rank.0);
            let (rank, by, flag) = (self.number(source), self.number(*reader), wait.flag.name());
            // A reader that differs from all others is the subject, not those whose words it refuses.
            let is_of_reader = culprits.len() == 1 && culprits.contains(reader);
            if seen.operator() != expected.operator() {
                return match is_of_reader {
                    true => {
                        format!("rank {by} is in {expected}, where rank {rank} is in {seen} by its {flag}")
                    }
                    false => {
                        format!("rank {rank} is in {seen} by its {flag}, where rank {by} is in {expected}")
                    }
                };
            }
            let (ahead, behind) = (seen.ahead_of(*expected), expected.ahead_of(*seen));
            let is_ahead = ahead <= behind;
            let calls = match ahead.min(behind) {
                1 => "one call".to_owned(),
                calls => format!("{calls} calls"),
            };
            let where_ = if is_ahead == is_of_reader { "behind" } else { "ahead of" };
            let (subject, other, whose) = match is_of_reader {
                true => (by, rank, format!("the {flag} of rank {rank}")),
                false => (rank, by, format!("its {flag}")),
            };
            let (operator, number, awaited) = (seen.operator().name(), seen.call(), expected.call());
            format!(
                "rank {subject} is {calls} {where_} rank {other}: {whose} of {operator} has number {number} where {awaited} is expected"
            )
        };
        self.evidence.others.iter().map(said).collect()
    }

    /// What a culprit has not done.
    fn accusation(&self, member: u32) -> String {
        let rank = self.number(member);
        if let Some((cores, seen)) =
            self.evidence.absent.get(&member).zip(self.ranks[member as usize].as_ref())
        {
            let foremost = seen.foremost(self.in_flight);
            let operator = foremost.map_or_else(
                || "its operator".to_owned(),
                |(operator, number)| Self::operator(seen, operator, number),
            );
            let have = if cores.len() == 1 { "has" } else { "have" };
            return format!(
                "rank {rank}: {} {have} not begun {operator}; the rank has begun it",
                listed(cores)
            );
        }
        let lacks =
            || self.ranks.iter().flatten().flat_map(|seen| seen.waits.iter().map(move |lack| (seen, lack)));
        let own: Vec<_> = lacks().filter(|(_, lack)| lack.what.source() == Some(member)).collect();
        let first = own.first().copied().or_else(|| lacks().find(|(_, lack)| lack.what.source().is_none()));
        let unsent = match own.len() {
            0 => String::new(),
            1 => " has not sent 1 word".to_owned(),
            words => format!(" has not sent {words} words"),
        };
        let begun = first.zip(self.ranks[member as usize].as_ref()).map(|((waiting, lack), seen)| {
            let operator = lack.what.operator();
            let verb = match (own.is_empty(), seen.has_begun(operator, lack.number)) {
                (true, true) => " has begun",
                (true, false) => " has not begun",
                (false, true) => ", but has begun",
                (false, false) => " and has not begun",
            };
            format!("{verb} {}", Self::operator(waiting, operator, lack.number))
        });
        format!("rank {rank}{unsent}{}", begun.unwrap_or_default())
    }
}

/// Cores by their numbers.
fn listed(cores: &[u32]) -> String {
    let numbers: Vec<_> = cores.iter().map(u32::to_string).collect();
    let plural = if cores.len() == 1 { "" } else { "s" };
    format!("core{plural} {}", numbers.join(", "))
}
