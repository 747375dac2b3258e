//! Configurations: the operators' parameters in snake case, from a file, a pasted call or `--set`. `config/table.rs` declares
//! the keys. Only the types of values are checked here; [`hints`](crate::hints) has the rules.

mod call;
mod entries;
pub mod keys;
mod origin;
mod page;
mod table;
mod words;

pub use call::pieces;
pub use entries::{Fault, Faults};
pub use origin::Origin;
pub use table::Config;
pub use table::number_of;

use crate::error::{Error, Problem};
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use veriep_core::shape::{
    Algorithm, BatchSizes, Buffer, Config as CoreConfig, Dtype, Given, Limits, Op, Product, Protocol,
    Release, Shape,
};

/// Name of the configuration inside a case.
pub const FILE_NAME: &str = "config.toml";
/// Largest configuration read, in bytes; a list of 768 batch sizes needs a few KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a foreign line or word that an error repeats.
const SHOWN_MAX: usize = 60;
/// Bytes of a word that means nothing that an error repeats.
const WORD_SHOWN_MAX: usize = 30;

/// `ids` of a case whose batches mark pairs that are not sent by -1.
pub const INACTIVE: &str = "-1-inactive";

/// `bs`: an integer, or a list with one entry per EP rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Bs {
    /// The same on every rank.
    Uniform(i64),
    /// One entry per EP rank.
    PerRank(Vec<i64>),
}

/// The text of a configuration file, and the file.
///
/// # Errors
/// The file is missing, too large or not UTF-8.
pub fn text(path: &Path) -> Result<(String, File), Error> {
    let about = std::fs::metadata(path).map_err(|e| Error::io(path, "open", &e))?;
    if about.is_dir() {
        return Err(Error::file(path, "a folder: must be a file"));
    }
    if !about.is_file() {
        // A FIFO would be waited for.
        return Err(Error::file(path, "not a regular file"));
    }
    let file = File::open(path).map_err(|e| Error::io(path, "open", &e))?;
    let mut bytes = Vec::new();
    (&file).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|e| Error::io(path, "read", &e))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::file(path, format_args!("larger than {FILE_BYTES_MAX} bytes: not a config")));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let line = line_of(e.as_bytes(), at);
        Error::file(path, format_args!("line {line}: byte {at} is not UTF-8 text"))
    })?;
    Ok((text, file))
}

impl Config {
    /// Gives the windows as much buffer as the operators ask for and our layout needs, if they have less.
    pub fn raise_buffer(&mut self) {
        let core = self.as_core(Given::empty());
        let asked = self.release().buffer(self.algorithm(), &core).required_mb;
        let required = Buffer::new(&core).required_mb.max(asked);
        self.hccl_buffsize_mb = self.hccl_buffsize_mb.max(i64::try_from(required).unwrap_or(i64::MAX));
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// The file is missing, too large, not UTF-8 or not a configuration: file, lines and what is wrong.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::read_changed(path, |_| Ok(()))
    }

    /// Reads a configuration file and changes it, before values that it has are judged.
    ///
    /// # Errors
    /// As [`read`](Self::read), and those of the change.
    pub fn read_changed(path: &Path, change: impl Fn(&mut Self) -> Result<(), Error>) -> Result<Self, Error> {
        let mut config = Self::parse(&text(path)?.0).map_err(|faults| faults.error(path, &change))?;
        change(&mut config)?;
        Ok(config)
    }

    /// The configuration that a file holds with this text.
    pub fn of_text(path: &Path, text: &str) -> Result<Self, Error> {
        Self::parse(text).map_err(|faults| faults.error(path, |_| Ok(())))
    }

    /// Parses the text of a configuration in any of its forms; on failure each line that is wrong, and what is wrong there.
    ///
    /// # Errors
    /// Neither TOML nor an object of JSON nor a call of `torch_npu`, unknown keys, one in two spellings, a wrong type, an
    /// integer outside i64.
    pub fn parse(text: &str) -> Result<Self, Faults> {
        let mut config = entries::config(entries::of_text(text)?)?;
        config.name_as_known();
        let counts_experts = config.origin.has("moe_expert_num");
        if let (false, Some(logical), Some(redundant)) =
            (counts_experts, config.logical_experts, config.redundant_experts)
        {
            config.moe_expert_num = logical.saturating_add(redundant);
        }
        Ok(config)
    }

    /// The key that an assignment of `--set` is of, if it is one.
    pub fn key_of(assignment: &str) -> Option<&'static str> {
        keys::key(assignment.split_once('=')?.0.trim()).ok()
    }

    /// Applies one `--set key=value`. The value is a TOML value; a bare word is a string.
    ///
    /// # Errors
    /// No `=`, an unknown key (the error names the one that was meant), a value of the wrong type.
    pub fn set(&mut self, assignment: &str) -> Result<(), Error> {
        let fail = |what: String| Error::Request(format!("--set {assignment}: {}", what.replace('\n', ", ")));
        let (key, value) =
            assignment.split_once('=').ok_or_else(|| fail("missing '=': must be key=value".to_owned()))?;
        self.assign(key, value).map(|_| ()).map_err(fail)
    }

    /// Gives a key, in any of its spellings, the value that this text of TOML is, and returns the key.
    pub fn assign(&mut self, key: &str, value: &str) -> Result<&'static str, String> {
        let word = key.trim();
        let key = keys::key(word).map_err(|not_key| not_key.what(word, true))?;
        // TOML reads 910_93 as a number, which has lost its underscore.
        let value = match value.trim() {
            soc if key == "product" && words::product(soc).is_some() => toml::Value::String(soc.to_owned()),
            value => parse_value(value).ok_or("not a TOML value")?,
        };
        let mut table = toml::Table::try_from(&*self).map_err(|e| e.to_string())?;
        table.insert(key.to_owned(), value);
        let set = Self::deserialize(table).map_err(|e| short(e.message()))?;
        let mut origin = core::mem::take(&mut self.origin);
        origin.add(key, usize::MAX);
        *self = Self { port_offset: self.port_offset, server_ranks: self.server_ranks, origin, ..set };
        self.name_as_known();
        Ok(key)
    }

    /// Returns the keys that the source of this configuration states, with their values, but for the release, which says
    /// nothing of places.
    pub fn stated(&self) -> Result<toml::Table, Error> {
        let mut table = self.table()?;
        table.retain(|key, _| key != "release" && self.origin.has(key));
        Ok(table)
    }

    /// Returns all keys with their values.
    pub fn table(&self) -> Result<toml::Table, Error> {
        toml::Table::try_from(self).map_err(|e| Error::Request(format!("{FILE_NAME}: {e}")))
    }

    /// The text of `config.toml`.
    pub fn to_toml(&self) -> Result<String, Error> {
        toml::to_string(self).map_err(|e| Error::Request(format!("{FILE_NAME}: {e}")))
    }

    /// `shared_expert_num` with its default.
    pub fn shared_experts(&self) -> i64 {
        self.shared_expert_num.unwrap_or(i64::from(self.shared_expert_rank_num > 0))
    }

    /// The release whose rules apply; the newest if its name means nothing.
    pub fn release(&self) -> Release {
        Release::named(&self.release).unwrap_or(Release::NEWEST)
    }

    /// The algorithm that is asked for; the first possible one if its name means nothing.
    pub fn algorithm(&self) -> Algorithm {
        let is_certain = named(&Product::WORDS, &self.product).is_some();
        let is_meant = |name: &str| !is_certain || name == self.comm_alg();
        let first = || self.words_of_algorithms().next();
        let meant = self.words_of_algorithms().find(|(_, name, _)| is_meant(name)).or_else(first);
        meant.map_or(Algorithm::WORDS[0].2, |(.., algorithm)| algorithm)
    }

    /// The names of algorithms that this release has on this product, or on both if its name means nothing.
    fn words_of_algorithms(&self) -> impl Iterator<Item = (Product, &'static str, Algorithm)> {
        let (product, release) = (named(&Product::WORDS, &self.product), self.release());
        let all = Algorithm::WORDS.into_iter();
        all.filter(move |(of, _, algorithm)| {
            product.is_none_or(|product| product == *of) && release.has(*algorithm)
        })
    }

    /// The words that mean nothing.
    pub fn unknown_words(&self) -> Vec<UnknownWord> {
        let mut algorithms = Vec::new();
        for (_, name, _) in self.words_of_algorithms() {
            if !algorithms.contains(&name) {
                algorithms.push(name);
            }
        }
        // What follows on this product the door knows.
        let core = CoreConfig { comm_alg: self.protocol(), ..CoreConfig::default() };
        let follows = |op| {
            let mut follows = true;
            Shape::check(&CoreConfig { op, ..core }, Limits::Product, &mut |found| {
                follows &= found.parameter != "op";
            });
            follows
        };
        let ops = Op::WORDS.iter().filter(|(_, op)| follows(*op)).map(|(name, _)| *name).collect();
        let is_unknown = |word: &UnknownWord| !word.legal.contains(&word.seen.as_str());
        let release = Release::named(&self.release);
        let release = release.map_or_else(|| self.release.clone(), |release| release.name().to_owned());
        let word = |parameter, seen: &String, legal| UnknownWord { parameter, seen: seen.clone(), legal };
        let words = [
            word("release", &release, Release::ALL.map(Release::name).to_vec()),
            word("product", &self.product, names(&Product::WORDS)),
            word("comm_alg", &self.comm_alg, algorithms),
            word("op", &self.op, ops),
            word("dtype", &self.dtype, names(&Dtype::WORDS)),
        ];
        words.into_iter().filter(is_unknown).collect()
    }

    /// Our protocol for the algorithm; another where we have none, which `hints::shape` refuses.
    fn protocol(&self) -> Protocol {
        self.algorithm().protocol().unwrap_or(Protocol::FullmeshV1)
    }

    /// The operator that its calls are after dispatch.
    pub fn operator(&self) -> Op {
        named(&Op::WORDS, &self.op).unwrap_or(Op::Combine)
    }

    /// The core's view of this configuration. For a word that means nothing stands the first that would mean
    /// something: `hints::shape` refuses those.
    pub fn as_core(&self, given: Given) -> CoreConfig<'_> {
        let mut core = CoreConfig {
            comm_alg: self.protocol(),
            op: self.operator(),
            dtype: named(&Dtype::WORDS, &self.dtype).unwrap_or(Dtype::Bf16),
            shared_expert_num: self.shared_experts(),
            bs: match &self.bs {
                Bs::Uniform(bs) => BatchSizes::Uniform(*bs),
                Bs::PerRank(list) => BatchSizes::PerRank(list),
            },
            // What is too large for the core's f32 is infinite there, which the door refuses.
            norm_eps: self.norm_eps as f32,
            given,
            ..CoreConfig::default()
        };
        self.copy_numbers(&mut core);
        core
    }
}

/// A word of a configuration that means nothing, and those that would mean something.
#[derive(Clone, Debug)]
pub struct UnknownWord {
    pub parameter: &'static str,
    pub seen: String,
    pub legal: Vec<&'static str>,
}

fn named<T: Copy>(words: &[(&str, T)], word: &str) -> Option<T> {
    words.iter().find(|(name, _)| *name == word).map(|(_, value)| *value)
}

fn names<T>(words: &[(&'static str, T)]) -> Vec<&'static str> {
    words.iter().map(|(name, _)| *name).collect()
}

impl From<&UnknownWord> for Problem {
    fn from(UnknownWord { parameter, seen, legal }: &UnknownWord) -> Self {
        let start = &seen[..seen.floor_char_boundary(WORD_SHOWN_MAX)];
        let dots = if start.len() < seen.len() { "..." } else { "" };
        let legal: Vec<_> = legal.iter().map(|word| format!("{word:?}")).collect();
        let rule = match legal.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("must be {} or {last}", rest.join(", ")),
            _ => format!("must be {}", legal.concat()),
        };
        let rule = rule + words::remark(parameter, seen);
        let message = format!("{parameter} = {start:?}{dots}: {rule}");
        Self {
            parameter: (*parameter).to_owned(),
            rule,
            message,
            cures: Vec::new(),
            hint: None,
            own_limit: false,
            reads: Vec::new(),
        }
    }
}

/// A TOML value, or a bare word as a string.
fn parse_value(text: &str) -> Option<toml::Value> {
    // A line break would let one assignment carry several keys.
    if text.contains(['\n', '\r']) {
        return None;
    }
    if let Ok(mut table) = toml::from_str::<toml::Table>(&format!("value = {text}")) {
        return table.remove("value");
    }
    let is_word = text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    is_word.then(|| toml::Value::String(text.to_owned()))
}

/// The start of a text that may be of any length.
fn cut(text: &str) -> String {
    let len = text.floor_char_boundary(SHOWN_MAX);
    let dots = if len < text.len() { "..." } else { "" };
    format!("`{}`{dots}", &text[..len])
}

/// The type of most keys, in words.
const INTEGER: &str = "an integer in [-2^63, 2^63)";

/// A message on one line. What it says before the last thing that was expected may come from the file: a key is of any
/// length.
fn short(message: &str) -> String {
    let message = message.replace('\n', ", ");
    let (seen, expected) = message.split_at(message.rfind(", expected").unwrap_or(message.len()));
    let of_type = ["invalid type: ", "invalid value: "].iter().find_map(|lead| seen.strip_prefix(lead));
    let expected = match (of_type, expected.trim_start_matches(", expected ")) {
        (None, _) => expected.to_owned(),
        (_, "i64" | "u64") => format!(": must be {INTEGER}"),
        (_, "f64" | "f32") => ": must be a number".to_owned(),
        (_, other) => format!(": must be {other}"),
    };
    let seen = of_type.unwrap_or(seen);
    let len = seen.floor_char_boundary(SHOWN_MAX);
    let dots = if len < seen.len() { "..." } else { "" };
    format!("{}{dots}{expected}", &seen[..len])
}

/// Number of the line that holds byte `at`, from 1.
fn line_of(text: &[u8], at: usize) -> usize {
    1 + text.iter().take(at).filter(|&&byte| byte == b'\n').count()
}

impl<'de> Deserialize<'de> for Bs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Bs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{INTEGER}, or a list of them")
            }

            fn visit_i64<E: de::Error>(self, bs: i64) -> Result<Bs, E> {
                Ok(Bs::Uniform(bs))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Bs, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(list)).map(Bs::PerRank)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_all_defaults() {
        let config = Config::parse("").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(config.as_core(Given::empty()), CoreConfig::default());
    }

    #[test]
    fn shared_expert_num_defaults_to_one_when_ranks_hold_shared_experts() {
        assert_eq!(Config::parse("shared_expert_rank_num = 2").unwrap().shared_experts(), 1);
        assert_eq!(Config::parse("shared_expert_rank_num = 0").unwrap().shared_experts(), 0);
        let given = Config::parse("shared_expert_num = 0\nshared_expert_rank_num = 2").unwrap();
        assert_eq!(given.shared_experts(), 0);
    }

    #[test]
    fn a_word_that_means_nothing_is_named_with_those_that_would() {
        let told = |text: &str| -> Vec<String> {
            let unknown = Config::parse(text).unwrap().unknown_words();
            unknown.iter().map(|word| Problem::from(word).message).collect()
        };
        assert_eq!(told("product = \"a2\"\ncomm_alg = \"hierarchy\""), [""; 0]);
        let a5 = [r#"product = "A5": must be "a3" or "a2": operators of A5 are not here"#];
        assert_eq!(told("product = \"A5\""), a5);
        let a3 = [r#"comm_alg = "hier\"": must be "", "fullmesh_v1", "fullmesh_v2" or "hierarchy""#];
        assert_eq!(told("comm_alg = 'hier\"'"), a3);
        let any = r#"comm_alg = "x": must be "", "fullmesh_v1", "fullmesh_v2", "hierarchy" or "fullmesh""#;
        assert_eq!(told("product = \"\"\ncomm_alg = \"x\"")[1], any);
        let a2 = "product = \"a2\"\nop = \"add\"\ndtype = \"f32\"";
        assert_eq!(
            told(a2),
            [r#"op = "add": must be "combine""#, r#"dtype = "f32": must be "bf16" or "f16""#]
        );
        let long = format!("dtype = \"{}\"...: must be \"bf16\" or \"f16\"", "é".repeat(15));
        assert_eq!(told(&format!("dtype = \"{}\"", "é".repeat(21))), [long]);
    }

    #[test]
    fn a_malformed_file_names_the_line() {
        for (text, line, word) in [
            ("k = 8\nkk = 9\n", 2, "kk"),
            ("\n\nk = \"8\"", 3, "must be an integer in [-2^63, 2^63)"),
            ("k = 8.0", 1, "must be an integer in [-2^63, 2^63)"),
            ("k = 9223372036854775808", 1, "must be an integer in [-2^63, 2^63)"),
            ("k = 99999999999999999999999999999999999999999999", 1, "integer"),
            ("h = 1\nbs = [1, \"2\"]", 2, "must be an integer in [-2^63, 2^63)"),
            ("bs = true", 1, "or a list of them"),
            ("k = 8\nk = 9", 2, "`k = 9`: duplicate key"),
            ("k = 8\nK = 9", 2, "`K = 9`: duplicate key: k in two spellings"),
            ("HCCL_BUFFSIZE = 9\n\nhccl_buffsize_mb = 9", 3, "hccl_buffsize_mb in two spellings"),
            ("[k]", 1, "must be an integer in [-2^63, 2^63)"),
            ("k =", 1, ""),
        ] {
            let faults = Config::parse(text).expect_err(text);
            let what = faults.to_string();
            assert_eq!((faults.all.len(), faults.all[0].line), (1, line), "{text:?}: {what}");
            assert!(what.contains(word), "{text:?}: {what}");
            assert!(!what.contains('\n'), "{what}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_in_the_order_of_the_file() {
        let faults =
            Config::parse("zeta = 1\nk = \"8\"\nalpha = 2\nh = 1\nx = 3\nH = 2\nbss = true\n").unwrap_err();
        let told: Vec<_> = faults.all.iter().map(|fault| (fault.line, fault.to_string())).collect();
        let starts = [
            (1, "`zeta = 1`: unknown key `zeta`: must be one of release, "),
            (2, "`k = \"8\"`: string \"8\": must be an integer"),
            (3, "`alpha = 2`: unknown key `alpha`"),
            (5, "`x = 3`: unknown key `x`: a tensor: belongs into inputs.safetensors"),
            (6, "`H = 2`: duplicate key: h in two spellings"),
            (7, "`bss = true`: unknown key `bss`"),
        ];
        assert_eq!(told.len(), starts.len(), "{told:?}");
        for ((line, told), (expected, start)) in told.iter().zip(starts) {
            assert!(*line == expected && told.starts_with(start), "{told}");
        }
    }

    #[test]
    fn an_unknown_key_hides_no_value_that_is_wrong_by_itself() {
        let lines = |text: &str| Config::of_text(Path::new("c.toml"), text).unwrap_err().lines();
        let told = lines("zeta = 1\nalpha = 2\nk = 99\n");
        assert_eq!(told.len(), 3);
        assert!(
            told[0].starts_with("c.toml: line 1: `zeta = 1`: unknown key `zeta`: must be one of"),
            "{told:?}"
        );
        assert_eq!(told[1], "c.toml: line 2: `alpha = 2`: unknown key `alpha`");
        assert_eq!(told[2], "c.toml: k = 99: must be in [1, 16]; hint: k = 16");
        assert_eq!(lines("k = 99\nzeta = 1")[0], told[2]);
        // Not what would be right with another value of the key that is misspelt.
        assert_eq!(lines("moe_expert_num = 30\nep_world_siz = 2").len(), 1);
    }

    #[test]
    fn a_line_of_any_length_is_cut() {
        let long = "é".repeat(50_000);
        // A key of many words that says what it is not, too.
        let words = "p, expected ".repeat(300);
        for text in [
            format!("{long} = 1"),
            format!("\"{long}\" = 1"),
            format!("k = \"{long}\""),
            format!("'{words}' = 1"),
            format!("k = '{words}'"),
        ] {
            let faults = Config::parse(&text).unwrap_err();
            let what = faults.to_string();
            assert!(faults.all[0].line == 1 && what.len() < 800, "{what}");
        }
        let what = Config::parse(&format!("{} = 1", "x".repeat(100))).unwrap_err().to_string();
        assert!(what.contains("xxx...") && what.contains("must be one of"), "{what}");
    }

    #[test]
    fn integers_that_only_a_rule_can_refuse_are_parsed() {
        let config = Config::parse("k = -9223372036854775808\nbs = [-1, 9223372036854775807]").unwrap();
        assert_eq!((config.k, config.bs), (i64::MIN, Bs::PerRank(vec![-1, i64::MAX])));
    }

    #[test]
    fn set_takes_toml_values_and_bare_words() {
        let mut config = Config { port_offset: 512, ..Config::default() };
        for assignment in ["k=4", "dtype=f16", "comm_alg=", "BS=[1, 2]", "norm_eps=1e-5", "product = \"a2\""]
        {
            config.set(assignment).unwrap();
        }
        assert_eq!((config.k, config.dtype.as_str(), config.comm_alg.as_str()), (4, "f16", ""));
        assert_eq!(config.port_offset, 512, "no key, so no assignment changes it");
        assert_eq!(
            (config.bs, config.norm_eps, config.product.as_str()),
            (Bs::PerRank(vec![1, 2]), 1e-5, "a2")
        );
    }

    #[test]
    fn a_soc_with_an_underscore_is_set_as_it_is_written() {
        for (soc, product) in [("910_93", "a3"), ("Ascend910_9392", "a3"), ("910b", "a2"), ("'910_93'", "a3")]
        {
            let mut config = Config { product: "none".to_owned(), ..Config::default() };
            config.set(&format!("product={soc}")).unwrap();
            assert_eq!(config.product, product, "{soc}");
        }
        let refused = Config::default().set("product=91093").unwrap_err().to_string();
        assert!(refused.contains("must be a string"), "{refused}");
    }

    #[test]
    fn set_refuses_what_is_not_one_known_key_with_a_value_of_its_type() {
        for (assignment, word) in [
            ("kk=4", "did you mean `k`?"),
            ("k", "missing '='"),
            ("k=many", "must be an integer in [-2^63, 2^63)"),
            ("k=[", "not a TOML value"),
            ("k=4\nh=1", "not a TOML value"),
            ("k=99999999999999999999", "must be an integer in [-2^63, 2^63)"),
            ("=4", "unknown key ``: must be one of"),
            ("port_offset=512", "unknown key `port_offset`"),
        ] {
            let lines = Config::default().set(assignment).expect_err(assignment).lines();
            assert!(lines.len() == 1 && lines[0].contains(word), "{assignment:?}: {lines:?}");
        }
    }

    #[test]
    fn the_text_of_a_config_parses_back_to_it() {
        let mut config = Config { shared_expert_rank_num: 2, ..Config::default() };
        config.bs = Bs::PerRank(vec![3; 16]);
        assert_eq!(Config::parse(&config.to_toml().unwrap()).unwrap(), config);
        config.shared_expert_num = Some(2);
        assert_eq!(Config::parse(&config.to_toml().unwrap()).unwrap(), config);
    }
}
