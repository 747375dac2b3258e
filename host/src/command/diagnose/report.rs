//! What is said of the ranks.

use super::owes::{self, Lack, Missing, Seen};
use super::{From, Group};
use crate::error::Error;
use crate::report::{Report, columns, pairs};
use serde::Serialize;
use std::collections::BTreeSet;
use veriep_core::fabric::Detail;
use veriep_core::layout::state::Operator;
use veriep_core::units::RankId;

/// Waits of a rank that the table names; the JSON report has all.
const NAMED: usize = 3;

#[derive(Serialize)]
struct Diagnosis {
    ok: bool,
    config: String,
    from: String,
    ranks: Vec<Rank>,
    missing: Vec<Word>,
    culprits: Vec<u32>,
    /// What would tell who owes; empty if that is known, or if nothing is missing.
    add: Vec<String>,
    /// What memory does not tell.
    unknown: Vec<String>,
}

/// How far a rank is. What the dump does not tell is null.
#[derive(Default, Serialize)]
struct Rank {
    rank: u32,
    operator: Option<&'static str>,
    number: Option<u64>,
    phase: Option<&'static str>,
    dispatches: Option<u64>,
    combines: Option<u64>,
    /// Cores that have begun fewer operators than others of the rank.
    cores_behind: Vec<u32>,
    waits_for: Vec<Wait>,
}

#[derive(Default, Serialize)]
struct Wait {
    core: u32,
    operator: &'static str,
    number: Option<u64>,
    what: &'static str,
    source: Option<u32>,
    expert: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_core: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows_of: Option<u32>,
}

/// A word that a rank lacks.
#[derive(Serialize)]
struct Word {
    rank: u32,
    source: Option<u32>,
    what: String,
}

/// The ranks as they were seen, and those of which it is open whether they wait.
type Ranks<'a> = (&'a [Option<Seen>], &'a [u32]);

pub(super) fn emit(
    report: &mut Report,
    from: From,
    group: &Group,
    (ranks, open): Ranks<'_>,
) -> Result<(), Error> {
    let of = Of { group, ranks };
    let owe = owes::culprits(ranks, group.in_flight);
    let all = || (0..).zip(ranks);
    let add = if owe.is_empty() { of.add(from, open) } else { Vec::new() };
    let diagnosis = Diagnosis {
        ok: owe.is_empty() && add.is_empty(),
        config: group.name.clone(),
        from: crate::cli::name_of(from),
        missing: all().flat_map(|(member, seen)| of.words(member, seen.as_ref())).collect(),
        unknown: of.unknown(open),
        culprits: of.numbers(owe.iter().copied()),
        add,
        ranks: all().map(|(member, seen)| of.rank(member, seen.as_ref())).collect(),
    };
    let verdict = of.verdict(&owe);
    report.judge(&diagnosis, table, verdict)
}

struct Of<'a> {
    group: &'a Group,
    ranks: &'a [Option<Seen>],
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
    fn unknown(&self, open: &[u32]) -> Vec<String> {
        let mut unknown = vec!["when a rank stopped, and whether its cores are alive".to_owned()];
        let absent = self.absent();
        if !absent.is_empty() {
            unknown.push(format!("ranks without a dump: {absent:?}"));
        }
        if !open.is_empty() {
            let open = self.numbers(open.iter().copied());
            unknown.push(format!("whether ranks {open:?} wait or have passed their wait: no word shows it"));
        }
        if self.ranks.iter().flatten().any(|seen| !seen.is_numbered && seen.last.is_some()) {
            unknown.push("how many operators have begun: memory has that modulo 2".to_owned());
        }
        let mut lacks = self.ranks.iter().flatten().flat_map(|seen| &seen.waits);
        if self.group.case.is_none() && lacks.any(|lack| lack.what.source().is_none()) {
            unknown
                .push("which rank returns a result, and which tokens are active: --case has them".to_owned());
        }
        unknown
    }

    /// What would tell who owes, where nobody is known to.
    fn add(&self, from: From, open: &[u32]) -> Vec<String> {
        let seen = || (0..).zip(self.ranks).filter_map(|(member, seen)| Some((member, seen.as_ref()?)));
        let mut add = Vec::new();
        let (absent, waiting) = (self.absent(), seen().filter(|(_, seen)| !seen.waits.is_empty()));
        let waiting = self.numbers(waiting.map(|(member, _)| member));
        let is_nameless = |lack: &Lack| lack.what.source().is_none();
        if self.group.case.is_none() && seen().any(|(_, seen)| seen.waits.iter().any(is_nameless)) {
            let windows = if from == From::Veriep { ", or the windows of all ranks" } else { "" };
            add.push(format!("--case CASE{windows}: who returns a result"));
        }
        let is_at_rest = waiting.is_empty() && open.is_empty();
        if !absent.is_empty() && !is_at_rest {
            add.push(format!("dumps of ranks {absent:?}"));
        }
        if !open.is_empty() {
            let open = self.numbers(open.iter().copied());
            add.push(format!(
                "what the cores of ranks {open:?} did last: memory is the same whether they wait or not"
            ));
        }
        let last = seen().map(|(_, seen)| seen.begun).max();
        let behind =
            self.numbers(seen().filter(|(_, seen)| Some(seen.begun) != last).map(|(member, _)| member));
        if add.is_empty() && !waiting.is_empty() {
            add.push(format!(
                "what the cores of ranks {waiting:?} did last: memory does not say for whom they wait"
            ));
        } else if add.is_empty() && !behind.is_empty() {
            add.push(format!("why ranks {behind:?} are behind the others: they lack no word"));
        }
        add
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
        let [dispatches, combines] = seen.begun.map(|begun| seen.is_numbered.then_some(begun));
        Rank {
            rank,
            operator: seen.last.map(|(operator, _)| operator.name()),
            number: seen.last.filter(|_| seen.is_numbered).map(|(_, number)| number),
            phase: match seen.last {
                None => (seen.begun == [0, 0]).then_some("has begun nothing"),
                Some((Operator::Dispatch, _)) if !seen.waits.is_empty() => Some("waits for flags"),
                Some((Operator::Combine, _)) if !seen.waits.is_empty() => Some("waits for results"),
                Some(_) => seen.phase,
            },
            dispatches,
            combines,
            cores_behind: seen.behind.clone(),
            waits_for: seen.waits.iter().map(|lack| self.wait(seen, *lack)).collect(),
        }
    }

    /// Who owes something, as an error.
    fn verdict(&self, owe: &BTreeSet<u32>) -> Result<(), Error> {
        if owe.is_empty() {
            return Ok(());
        }
        let lacks =
            || self.ranks.iter().flatten().flat_map(|seen| seen.waits.iter().map(move |lack| (seen, lack)));
        let of = |member: &u32| {
            let rank = self.number(*member);
            let own: Vec<_> = lacks().filter(|(_, lack)| lack.what.source() == Some(*member)).collect();
            let first =
                own.first().copied().or_else(|| lacks().find(|(_, lack)| lack.what.source().is_none()));
            let begun = first.zip(self.ranks[*member as usize].as_ref());
            let begun = begun.map_or_else(String::new, |((waiting, lack), seen)| {
                let operator = lack.what.operator();
                let has = if seen.has_begun(operator, lack.number) { "has begun" } else { "has not begun" };
                format!(", {has} {}", Self::operator(waiting, operator, lack.number))
            });
            match own.len() {
                0 => format!("rank {rank}{begun}"),
                1 => format!("rank {rank} owes 1 word{begun}"),
                words => format!("rank {rank} owes {words} words{begun}"),
            }
        };
        let line = owe.iter().map(of).collect::<Vec<_>>().join("; ");
        Err(Error::NoProgress { line, missing: Vec::new() })
    }
}

fn table(diagnosis: &Diagnosis) -> String {
    let row = |rank: &Rank| {
        let words: Vec<_> = diagnosis.missing.iter().filter(|word| word.rank == rank.rank).collect();
        let mut waits: Vec<_> = words.iter().take(NAMED).map(|word| word.what.clone()).collect();
        if words.len() > NAMED {
            waits.push(format!("and {} more", words.len() - NAMED));
        }
        if !rank.cores_behind.is_empty() {
            waits.push(format!("cores that have not begun it: {:?}", rank.cores_behind));
        }
        let number = rank.number.map_or_else(String::new, |number| format!(" {number}"));
        vec![
            rank.rank.to_string(),
            rank.operator.map_or_else(|| "-".to_owned(), |operator| format!("{operator}{number}")),
            rank.phase.unwrap_or("-").to_owned(),
            waits.join("; "),
        ]
    };
    let rows: Vec<_> = diagnosis.ranks.iter().map(row).collect();
    let owe = match (diagnosis.culprits.as_slice(), diagnosis.add.as_slice()) {
        ([], []) => "no rank is known to".to_owned(),
        ([], _) => format!("cannot tell; words that are missing: {}", diagnosis.missing.len()),
        (culprits, _) => format!("{culprits:?}"),
    };
    let mut about = vec![("owe", owe)];
    if !diagnosis.add.is_empty() {
        about.push(("add", diagnosis.add.join("; ")));
    }
    about.extend([
        ("config", diagnosis.config.clone()),
        ("from", diagnosis.from.clone()),
        ("unknown", diagnosis.unknown.join("; ")),
    ]);
    let about = pairs(&about);
    format!("{about}\n\n{}", columns(&["rank", "operator", "phase", "missing"], &rows))
}
