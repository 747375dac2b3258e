//! One error type; each is one line (or one line per problem) that a person can act on.

mod gone;

pub use gone::Gone;
pub use gone::list;

use crate::verdict::{STATUS_UNKNOWN, worst};
use core::fmt;
use serde::Serialize;
use std::borrow::Cow;
use std::path::Path;
use veriep_core::shape::Violation;

/// Most problem lines printed for one request; JSON carries all of them.
const LINES_MAX: usize = 20;
/// Longest line printed, in characters: a name read from a foreign file may be of any length.
const LINE_LEN_MAX: usize = 1000;

/// Exit status of a program that Ctrl-C has ended, as shells have it.
pub const STATUS_INTERRUPTED: u8 = 130;

/// What is wrong with one parameter of a configuration or one tensor of a case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Configuration key or tensor name.
    pub parameter: String,
    pub rule: String,
    /// Parameter, value seen, rule and the numbers after it.
    pub message: String,
    /// What to change to what; each alone is enough.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cures: Vec<Cure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Whether the limit is VeriEP's own: the operators accept the value.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub own_limit: bool,
    /// The numbers that the rule reads beside the parameter: configuration keys, or what follows from several of them.
    #[serde(skip)]
    pub reads: Vec<String>,
}

/// A change that a problem does not survive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cure {
    /// Configuration key (of one entry of a list with its index), or the tensor to leave out.
    pub parameter: String,
    /// Its new value; none for a tensor.
    pub value: Option<serde_json::Value>,
}

impl Problem {
    /// A problem of `parameter`: what was seen there and the rule it breaks.
    pub fn new(parameter: impl Into<String>, seen: &str, rule: impl Into<String>) -> Self {
        let (parameter, rule) = (parameter.into(), rule.into());
        let message = format!("{}{seen}: {rule}", shown(&parameter));
        Self { parameter, rule, message, cures: Vec::new(), hint: None, own_limit: false, reads: Vec::new() }
    }

    /// Says which numbers the rule reads beside the parameter.
    #[must_use]
    pub fn reading(self, keys: &[&str]) -> Self {
        Self { reads: keys.iter().map(|key| (*key).to_owned()).collect(), ..self }
    }

    /// Says that the limit is VeriEP's own.
    pub fn into_own_limit(self) -> Self {
        let message = format!("{} (a limit of VeriEP: the operators accept it)", self.message);
        Self { message, own_limit: true, ..self }
    }
}

impl From<&Violation> for Problem {
    fn from(violation: &Violation) -> Self {
        Self {
            parameter: violation.parameter.to_owned(),
            rule: violation.rule.to_string(),
            message: violation.to_string(),
            cures: Vec::new(),
            hint: None,
            own_limit: false,
            reads: violation
                .numbers
                .iter()
                .map(|(name, _)| *name)
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Why a request ends without its result. The variants are classes: each has one exit status.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A result differs from what it must be.
    #[error("{0}")]
    Wrong(String),
    /// A call that is refused before anything is sent.
    #[error("{line}")]
    Refused {
        /// Whose call, and why, in a few words.
        what: String,
        /// What its check says.
        line: String,
    },
    /// A schedule that can corrupt data.
    #[error("{0}")]
    Unsafe(String),
    /// The request itself: arguments that do not fit together, features that this version lacks.
    #[error("{0}")]
    Request(String),
    /// Ranks of a live group that call different operators.
    #[error("{0}")]
    Mismatch(String),
    /// A file that cannot be read, parsed or written; starts with its path.
    #[error("{0}")]
    File(String),
    /// A configuration or case that breaks rules, one line each.
    #[error("{place}: {} problems", .problems.len())]
    Invalid {
        /// The file, or what stands for it.
        place: String,
        /// All that is wrong, at least one.
        problems: Vec<Problem>,
    },
    /// No verdict within the bounds of the request.
    #[error("unknown: {0}")]
    Unknown(String),
    /// Several of the above: every file of a request.
    #[error("{} errors", .0.len())]
    Many(Vec<Self>),
    /// The caller has asked for the end: what there is has been reported.
    #[error("interrupted: {0}")]
    Interrupted(String),
    /// Nothing moved before the deadline.
    #[error("{line}")]
    NoProgress {
        /// Whom the group waits for.
        line: String,
        /// What every core misses that is stuck in the earliest operator.
        missing: Vec<Missing>,
    },
    /// A process of the group died.
    #[error("{line}")]
    Gone {
        /// Who, where and how, and who waits for it.
        line: String,
        gone: Vec<Gone>,
        /// What cores of the others miss of them.
        missing: Vec<Missing>,
    },
}

/// What a core of a stuck group waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Rank of the core.
    pub rank: u32,
    pub core: u32,
    pub round: usize,
    /// `dispatch` or `combine`; `join` of a group that never met.
    pub operator: &'static str,
    /// `own_writes`, `core_barrier`, `dispatch_flag`, `count_flag`, `relayed_count`, `token_flag`, `block_flag`,
    /// `counts`, `grant`, `token_flags`, `results`, `combine_flag`, `tp_flag`, `window_counts`, `window_rows`, `agent_nic`, `room`, `agent_idle`,
    /// `entered`, `rows_done` or `record`; of `join` `process`; of a rank that is far ahead of another `call`.
    pub what: &'static str,
    /// The rank that owes the flag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_rank: Option<u32>,
    /// The core of this rank that has not come to the core barrier, or of the TP peer that owes its flag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_core: Option<u32>,
    /// Local expert of the rank that the flag or count is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_expert: Option<u32>,
    /// Record of that rank for the expert that is not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<u32>,
    /// A block of it that is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<u32>,
    /// Token whose row is owed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u32>,
    /// Its k index, or `K + j` for shared expert `j`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k: Option<u32>,
}

impl Error {
    /// What is left when limits of VeriEP do not count; none if that is all there was.
    pub fn without_own_limits(self) -> Option<Self> {
        let Self::Invalid { place, mut problems } = self else { return Some(self) };
        problems.retain(|problem| !problem.own_limit);
        (!problems.is_empty()).then_some(Self::Invalid { place, problems })
    }

    /// What is left when nothing but some problems counts; none if there are none.
    pub fn only(self, problems: &[Problem]) -> Option<Self> {
        let Self::Invalid { place, .. } = self else { return Some(self) };
        (!problems.is_empty()).then(|| Self::Invalid { place, problems: problems.to_vec() })
    }

    /// An error of a file: its path, then what is wrong.
    pub fn file(path: &Path, what: impl fmt::Display) -> Self {
        Self::File(format!("{}: {what}", path.display()))
    }

    /// The system does not give a group its memory.
    pub fn of_memory(error: std::io::Error) -> Self {
        // The standard library has no kind for it.
        let decides = if error.to_string().contains("open files") {
            "ulimit -n decides how many may be open"
        } else {
            "hccl_buffsize_mb and ep_world_size decide its size"
        };
        Self::Request(format!("memory of the group: {error}: {decides}"))
    }

    /// An I/O error of a file; an absent file is `missing`.
    pub fn io(path: &Path, doing: &str, error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::NotFound => Self::file(path, "missing"),
            _ => Self::file(path, format_args!("cannot {doing}: {error}")),
        }
    }

    /// Exit status of the class; of several errors that of the worst.
    pub fn status(&self) -> u8 {
        match self {
            Self::Wrong(_) | Self::Refused { .. } | Self::Unsafe(_) => 1,
            Self::Request(_) | Self::Mismatch(_) | Self::File(_) | Self::Invalid { .. } => 2,
            Self::NoProgress { .. } | Self::Gone { .. } => 3,
            Self::Interrupted(_) => STATUS_INTERRUPTED,
            Self::Unknown(_) => STATUS_UNKNOWN,
            Self::Many(errors) if errors.is_empty() => 2,
            Self::Many(errors) => worst(errors.iter().map(Self::status)),
        }
    }

    /// What its exit status means, in a few words.
    #[must_use]
    pub fn class(&self) -> Cow<'_, str> {
        let class = match self {
            Self::Refused { what, .. } => return what.into(),
            Self::Wrong(_) => "a result is wrong",
            Self::Unsafe(_) => "the schedule is unsafe",
            Self::Request(_) | Self::File(_) | Self::Invalid { .. } => "the request or the input is invalid",
            Self::Mismatch(_) => "ranks call different operators",
            Self::NoProgress { .. } => "the group makes no progress",
            Self::Gone { .. } => "a process of the group is gone",
            Self::Interrupted(_) => "it was interrupted",
            Self::Unknown(_) => "there is no verdict within the bounds",
            Self::Many(errors) => {
                let of_worst = errors.iter().find(|error| error.status() == self.status());
                return of_worst.map_or("the request is invalid".into(), Self::class);
            }
        };
        class.into()
    }

    /// All problems of configurations and cases, for the JSON report.
    pub fn problems(&self) -> Vec<Problem> {
        match self {
            Self::Invalid { problems, .. } => problems.clone(),
            Self::Many(errors) => errors.iter().flat_map(Self::problems).collect(),
            _ => Vec::new(),
        }
    }

    /// What the cores of a stuck group miss, for the JSON report.
    pub fn missing(&self) -> &[Missing] {
        match self {
            Self::NoProgress { missing, .. } | Self::Gone { missing, .. } => missing,
            _ => &[],
        }
    }

    /// The processes of a group that are gone, for the JSON report.
    pub fn gone(&self) -> &[Gone] {
        match self {
            Self::Gone { gone, .. } => gone,
            _ => &[],
        }
    }

    /// The same error, with `more` after the line of a group that failed.
    #[must_use]
    pub fn with(self, more: &str) -> Self {
        match self {
            Self::Wrong(line) => Self::Wrong(line + more),
            Self::Refused { what, line } => Self::Refused { what, line: line + more },
            Self::NoProgress { line, missing } => Self::NoProgress { line: line + more, missing },
            other => other,
        }
    }

    /// The lines to print: one per problem, nothing that steers a terminal, bounded in number and length.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Invalid { place, problems } => {
                let mut lines: Vec<_> = problems
                    .iter()
                    .take(LINES_MAX)
                    .map(|problem| one_line(&format!("{place}: {problem}")))
                    .collect();
                if problems.len() > LINES_MAX {
                    let more = problems.len() - LINES_MAX;
                    lines.push(one_line(&format!("{place}: {more} more lines; --format json has them all")));
                }
                lines
            }
            Self::Many(errors) => errors.iter().flat_map(Self::lines).collect(),
            other => vec![one_line(&other.to_string())],
        }
    }
}

/// A name that a file gives, so that it is seen to be empty.
pub const fn shown(name: &str) -> &str {
    if name.is_empty() { "\"\"" } else { name }
}

/// Whether a character steers the line rather than being seen in it: control characters, those that turn the direction of
/// what follows, and those without width.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{AD}' | '\u{61C}' | '\u{180E}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}')
        || matches!(c, '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E007F}')
}

/// `text` without characters that steer a line, and cut to a printable length. What is cut is its middle: a line begins with
/// where and ends with why, and what is long is a value in between.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(LINE_LEN_MAX));
    let len = text.chars().count();
    let (head, tail) =
        if len > LINE_LEN_MAX { (LINE_LEN_MAX / 2, len - LINE_LEN_MAX / 2) } else { (len, len) };
    for (i, c) in text.chars().enumerate() {
        if i == head {
            line.push_str("...");
        }
        if (head..tail).contains(&i) {
            continue;
        }
        match c {
            '\n' => line.push_str("; "),
            c if steers(c) => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line_whatever_a_file_contains() {
        assert_eq!(one_line("a\nb\r\u{1b}[0m"), "a; b\\r\\u{1b}[0m");
        assert_eq!(
            one_line("a\u{202e}b\u{2066}c\u{200b}d\u{feff}"),
            "a\\u{202e}b\\u{2066}c\\u{200b}d\\u{feff}"
        );
        assert_eq!(
            one_line("caf\u{e9} e\u{301} \u{5d0} \u{4e13}"),
            "caf\u{e9} e\u{301} \u{5d0} \u{4e13}",
            "seen as they are"
        );
        assert!(one_line(&"x".repeat(5000)).len() < 1010);
        assert_eq!(one_line(&"x".repeat(1000)).len(), 1000);
    }

    #[test]
    fn a_long_value_costs_a_line_neither_its_place_nor_its_reason() {
        let line = one_line(&format!("--set k={0}: string \"{0}\": must be an integer", "7".repeat(9000)));
        assert!(line.starts_with("--set k=77") && line.ends_with("77\": must be an integer"), "{line}");
    }

    #[test]
    fn many_problems_end_with_their_number() {
        let problems = vec![Problem::new("k", " = 17", "must be in [1, 16]"); 25];
        let lines = Error::Invalid { place: "c.toml".into(), problems }.lines();
        assert_eq!(lines[0], "c.toml: k = 17: must be in [1, 16]");
        assert_eq!(lines[20], "c.toml: 5 more lines; --format json has them all");
    }

    #[test]
    fn the_worst_class_of_many_errors_is_the_exit_status() {
        let hang = || Error::NoProgress { line: String::new(), missing: Vec::new() };
        let (wrong, refused) = (|| Error::Wrong(String::new()), || Error::Request(String::new()));
        let unknown = || Error::Unknown(String::new());
        for (errors, status) in [
            (vec![wrong(), refused()], 2),
            (vec![hang(), refused()], 2),
            (vec![wrong(), hang()], 3),
            (vec![unknown(), hang()], 3),
            (vec![unknown(), wrong()], 1),
            (vec![unknown()], 4),
        ] {
            assert_eq!(Error::Many(errors.clone()).status(), status, "{errors:?}");
        }
    }
}
