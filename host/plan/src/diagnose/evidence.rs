//! The ranks that have not sent the words that others wait for. A rank waits for a word when it has begun the operator that the
//! word belongs to, and has neither the word nor passed the wait for it. The rank that must write the word owes it, unless that
//! rank cannot write it yet because it waits itself for an earlier word.

use std::collections::{BTreeMap, BTreeSet};
use veriep_core::fabric::Wait;
use veriep_core::layout::state::Operator;
use veriep_core::sync::call::Tag;

/// What a dump shows of a rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Dispatches and combines that any of its cores has begun.
    pub(super) begun: [u64; 2],
    /// Whether these are their numbers; else only how they stand to those of other ranks is known.
    pub(super) is_numbered: bool,
    /// The operator that it is in, or was in last.
    pub(super) last: Option<(Operator, u64)>,
    /// How far it is there, if it lacks nothing and that is known.
    pub(super) phase: Option<&'static str>,
    /// Cores that have begun fewer.
    pub(super) behind: Vec<u32>,
    /// What its cores lack.
    pub(super) waits: Vec<Lack>,
    /// Ranks of which it has rows of its last dispatch, where such rows tell more than words.
    pub(super) heard: BTreeSet<u32>,
    /// Ranks of which it has words of the dispatch that it is in.
    pub(super) told: BTreeSet<u32>,
    /// Whether it lacks some of its own flags; none unless it lacks some flags of a dispatch and has others.
    pub(super) lacks_own_flags: Option<bool>,
    /// Words of other calls than its own, which its cores refuse.
    pub(super) others: Vec<OtherCall>,
    /// Contents of its memory that contradict the configuration, the case or the other dumps.
    pub(super) contradictions: Vec<String>,
    /// Whether it may lack results that no dump tells of: those that memory shows are all there, or none is.
    pub(super) may_lack_results: bool,
    /// Words that came and were cleared, or never came. At least one of a core's is the latter if the core waits at all.
    pub(super) doubts: Vec<Lack>,
}

/// A word with the number of another call than its reader's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OtherCall {
    /// Which word, by the numbers of members.
    pub(super) wait: Wait,
    pub(super) seen: Tag,
    pub(super) expected: Tag,
}

/// A word, or several, that a core lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lack {
    pub(super) core: u32,
    /// The number of the operator among those of its kind, from 1.
    pub(super) number: u64,
    pub(super) what: Missing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// Flag and count of a source for a local expert.
    Flag {
        /// The rank that writes it.
        source: u32,
        expert: u32,
    },
    Result {
        token: u32,
        k: u32,
        /// The rank that returns it, where the batch is known.
        source: Option<u32>,
    },
    /// All results of so many tokens, of which memory does not say which.
    Tokens {
        /// How many.
        tokens: u32,
    },
    /// A word of our own layout.
    Word {
        /// Which, by the numbers of members.
        wait: Wait,
        operator: Operator,
        /// Its writer sends it once it lacks no word of that operator with a lower level.
        level: u32,
    },
}

impl Missing {
    pub(super) const fn operator(self) -> Operator {
        match self {
            Self::Flag { .. } => Operator::Dispatch,
            Self::Result { .. } | Self::Tokens { .. } => Operator::Combine,
            Self::Word { operator, .. } => operator,
        }
    }

    /// The rank that must write it, where that is known.
    pub(super) fn source(self) -> Option<u32> {
        match self {
            Self::Flag { source, .. } => Some(source),
            Self::Result { source, .. } => source,
            Self::Tokens { .. } => None,
            Self::Word { wait, .. } => wait.source().map(|rank| rank.0),
        }
    }

    const fn level(self) -> u32 {
        match self {
            Self::Flag { .. } => 0,
            // Peers of a TP domain exchange results first.
            Self::Result { .. } | Self::Tokens { .. } => 1,
            Self::Word { level, .. } => level,
        }
    }
}

impl Lack {
    /// The word comes after all that are less: by operator, and within one by level. So many batches are in flight.
    pub(super) fn order(self, in_flight: u64) -> (u64, u32) {
        (position(self.what.operator(), self.number, in_flight), self.what.level())
    }
}

/// The position of an operator, from 1, where all dispatches of the batches in flight come before their combines.
pub(super) const fn position(operator: Operator, number: u64, in_flight: u64) -> u64 {
    let before = number.saturating_sub(1);
    let (group, inside) = (before / in_flight, before % in_flight);
    2 * in_flight * group + inside + 1 + if matches!(operator, Operator::Combine) { in_flight } else { 0 }
}

/// The operator at that position, and its number.
pub(super) const fn at_position(position: u64, in_flight: u64) -> (Operator, u64) {
    let before = position.saturating_sub(1);
    let (group, inside) = (before / (2 * in_flight), before % (2 * in_flight));
    let number = in_flight * group + inside % in_flight + 1;
    (if inside < in_flight { Operator::Dispatch } else { Operator::Combine }, number)
}

/// How many dispatches and combines have begun where the last operator is at that position.
const fn begun_at(position: u64, in_flight: u64) -> [u64; 2] {
    let (groups, rest) = (position / (2 * in_flight), position % (2 * in_flight));
    let dispatches = if rest < in_flight { rest } else { in_flight };
    [in_flight * groups + dispatches, in_flight * groups + rest - dispatches]
}

impl Seen {
    /// Returns what a rank has begun whose last operator is at `position`, which is 0 if there is none.
    pub(super) fn at(position: u64, in_flight: u64) -> Self {
        let last = (position > 0).then(|| at_position(position, in_flight));
        Self { begun: begun_at(position, in_flight), last, ..Self::default() }
    }

    /// Returns a rank of which memory does not show how far it is.
    pub(super) fn somewhere() -> Self {
        Self { phase: Some("unknown"), ..Self::default() }
    }

    /// The last operator that any of its cores has begun.
    pub(super) fn foremost(&self, in_flight: u64) -> Option<(Operator, u64)> {
        let [dispatches, combines] = self.begun;
        let both = [(Operator::Dispatch, dispatches), (Operator::Combine, combines)].into_iter();
        let begun = both.filter(|(_, number)| *number > 0);
        begun.max_by_key(|&(operator, number)| position(operator, number, in_flight))
    }

    pub(super) const fn has_begun(&self, operator: Operator, number: u64) -> bool {
        self.begun[operator as usize] >= number
    }

    /// Whether it can write the word, with what it has.
    fn may_write(&self, lack: Lack, in_flight: u64) -> bool {
        let order = lack.order(in_flight);
        self.waits.iter().chain(&self.doubts).all(|own| own.order(in_flight) >= order)
    }
}

/// What the dumps say about who holds the group up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    /// Ranks that owe words by what is surely lacking, or some of whose cores are absent.
    pub(super) culprits: BTreeSet<u32>,
    /// Ranks that may owe words, each with why it is not certain.
    pub(super) suspects: BTreeMap<u32, Suspicion>,
    /// Ranks of which it stays open whether they wait.
    pub(super) open: Vec<u32>,
    /// Ranks that are taken to have passed their wait, since several ranks would have to owe words to hold them up. Memory
    /// does not show it.
    pub(super) assumed: Vec<u32>,
    /// Ranks that lack words only if decided doubts are right.
    pub(super) doubted: BTreeSet<u32>,
    /// Of a rank, the cores that have not begun an operator that the rank has begun, unless all ranks lack them.
    pub(super) absent: BTreeMap<u32, Vec<u32>>,
    /// Cores that have not begun it on any rank.
    pub(super) absent_everywhere: Vec<u32>,
    /// Ranks that lack flags of dispatch, where each of several lacks some of its own.
    pub(super) lack_own_flags: Vec<u32>,
    /// Words of other calls, each with its reader: two ranks are in different calls.
    pub(super) others: Vec<(u32, OtherCall)>,
    /// What cannot be true together.
    pub(super) contradictions: Vec<Contradiction>,
}

/// Evidence of one rank that contradicts what else is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Contradiction {
    /// `ahead` has begun `last`, before which it needed flags of `rank` in this dispatch, which `rank` has not begun.
    Behind { rank: u32, ahead: u32, last: (Operator, u64), dispatch: u64 },
    /// `by` has words of `rank` in this dispatch, which `rank` has not begun.
    Unsent { rank: u32, by: u32, dispatch: u64 },
    /// In the memory of a rank.
    Memory { rank: u32, what: String },
}

/// Why a rank is suspected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Suspicion {
    /// These ranks wait for its words, unless the words came and were cleared.
    MayNotHaveSent(Vec<u32>),
    /// It lacks nothing for certain and holds these ranks up, unless it waits for words of `may_wait_for`.
    MayHaveStopped { holds_up: Vec<u32>, may_wait_for: Vec<u32> },
    /// It owes words if the number of cores is right.
    IfCoresAreRight,
    /// It owes words if the number of experts is right.
    IfExpertsAreRight,
    /// It owes words only if options that nothing states have some of their values.
    IfOptionsAreRight,
    /// It or one of these ranks is in another call than it should be.
    MayBeInAnotherCall(Vec<u32>),
}

impl Evidence {
    /// Of operators in halves memory does not show the order, so a word that is not there may be awaited, or not yet, or have
    /// been taken: it accuses no rank.
    pub(super) fn of_halves(ranks: &[Option<Seen>]) -> Self {
        Self { doubted: all(ranks).map(|(rank, _)| rank).collect(), ..Self::default() }
    }
}

/// Weighs what was seen of the ranks, and decides doubts by what other ranks lack.
///
/// A culprit follows from words that are surely lacking and from cores that are surely absent. What follows only from decided
/// doubts is a suspicion. So is a lone rank in doubt: either it waits, or it is at fault itself.
pub(super) fn weigh(ranks: &mut [Option<Seen>], in_flight: u64, has_several: bool) -> Evidence {
    settle(ranks);
    let others = others(ranks);
    if !others.is_empty() {
        // What is missing follows from that: cores that refuse a word send no more.
        let (culprits, suspects) = in_another_call(&others, ranks.len());
        return Evidence { culprits, suspects, others, ..Evidence::default() };
    }
    let contradictions = contradictions(ranks, in_flight);
    let lack_own_flags = lack_own_flags(ranks);
    let mut culprits = culprits(ranks, in_flight);
    let before = ranks.to_vec();
    let Undecided { open, mut assumed } = decide(ranks, in_flight, has_several);
    let untold = all(ranks).filter(|(rank, seen)| {
        seen.may_lack_results && seen.waits.is_empty() && !open.contains(rank) && !assumed.contains(rank)
    });
    let untold: Vec<_> = untold.map(|(rank, _)| rank).collect();
    assumed.extend(untold);
    assumed.sort_unstable();
    let mut suspected = self::culprits(ranks, in_flight);
    let in_doubt: Vec<_> = all(&before).filter(|(_, seen)| !seen.doubts.is_empty()).collect();
    if let ([(lone, _)], true) = (in_doubt.as_slice(), culprits.is_empty()) {
        let passed: Vec<_> = before.iter().map(|seen| seen.clone().map(Seen::without_doubts)).collect();
        suspected.extend(self::culprits(&passed, in_flight).get(lone));
    }
    let suspected = suspected.difference(&culprits);
    let mut suspects: BTreeMap<_, _> =
        suspected.map(|rank| (*rank, suspicion(*rank, (&before, ranks), in_flight))).collect();
    let doubted = (0..).zip(before.iter().zip(ranks.iter()));
    let doubted = doubted.filter_map(|(rank, both)| match both {
        (Some(before), Some(now)) => (before.waits.is_empty() && !now.waits.is_empty()).then_some(rank),
        _ => None,
    });
    let absent_everywhere = absent_everywhere(ranks);
    let absent = absent(ranks, &absent_everywhere);
    if absent_everywhere.is_empty() {
        culprits.extend(absent.keys());
        suspects.retain(|rank, _| !culprits.contains(rank));
    } else {
        // With another number of cores other words belong to each core.
        suspects.extend(culprits.iter().chain(absent.keys()).map(|rank| (*rank, Suspicion::IfCoresAreRight)));
        culprits.clear();
    }
    if !contradictions.is_empty() {
        // What wrong evidence says of a rank may as well be said of an innocent one.
        culprits.clear();
        suspects.clear();
    }
    if !lack_own_flags.is_empty() {
        let doubted = core::mem::take(&mut culprits).into_iter();
        suspects.extend(doubted.map(|rank| (rank, Suspicion::IfExpertsAreRight)));
    }
    Evidence {
        culprits,
        suspects,
        open,
        assumed,
        doubted: doubted.collect(),
        absent,
        absent_everywhere,
        lack_own_flags,
        others,
        contradictions,
    }
}

/// The words of other calls that ranks have, each pair of ranks once.
fn others(ranks: &[Option<Seen>]) -> Vec<(u32, OtherCall)> {
    let mut others: Vec<(u32, OtherCall)> = Vec::new();
    for (rank, seen) in all(ranks) {
        for other in &seen.others {
            let is_same =
                |(by, known): &(u32, OtherCall)| (*by, known.wait.source()) == (rank, other.wait.source());
            if !others.iter().any(is_same) {
                others.push((rank, *other));
            }
        }
    }
    others
}

/// The rank that is in another call than most of the `ranks`, if it is one of every pair; else all of a pair are suspected.
fn in_another_call(others: &[(u32, OtherCall)], ranks: usize) -> (BTreeSet<u32>, BTreeMap<u32, Suspicion>) {
    let pairs: BTreeSet<BTreeSet<u32>> = others
        .iter()
        .map(|(by, other)| other.wait.source().map(|rank| rank.0).into_iter().chain([*by]).collect())
        .collect();
    let common = pairs.iter().cloned().reduce(|all, pair| &all & &pair).unwrap_or_default();
    // A rank of no pair may be in the same call as that one.
    let differ_from_it = pairs.len();
    if common.len() == 1 && differ_from_it > ranks - differ_from_it {
        return (common, BTreeMap::new());
    }
    let beside = |rank: &u32| {
        let with: BTreeSet<_> = pairs.iter().filter(|pair| pair.contains(rank)).flatten().copied().collect();
        with.into_iter().filter(|other| other != rank).collect()
    };
    let all: BTreeSet<_> = pairs.iter().flatten().copied().collect();
    let suspects = all.into_iter().map(|rank| (rank, Suspicion::MayBeInAnotherCall(beside(&rank))));
    (BTreeSet::new(), suspects.collect())
}

/// What cannot be true together: a rank leaves a dispatch only with words of all ranks, which have begun it then.
fn contradictions(ranks: &[Option<Seen>], in_flight: u64) -> Vec<Contradiction> {
    let foremost = all(ranks).filter_map(|(rank, seen)| Some((rank, seen.foremost(in_flight)?)));
    let place = |(operator, number)| position(operator, number, in_flight);
    let ahead = foremost.max_by_key(|(_, last)| place(*last));
    // The last dispatch that the foremost rank has left.
    let left = ahead.map(|(ahead, last)| (ahead, last, begun_at(place(last) - 1, in_flight)[0]));
    let behind = left.into_iter().flat_map(|(ahead, last, dispatch)| {
        let behind = all(ranks).filter(move |(_, seen)| !seen.has_begun(Operator::Dispatch, dispatch));
        behind.map(move |(rank, _)| Contradiction::Behind { rank, ahead, last, dispatch })
    });
    let unsent = all(ranks).flat_map(|(by, seen)| {
        let dispatch = seen.last.filter(|(last, _)| *last == Operator::Dispatch).map_or(0, |last| last.1);
        let has_not_begun = move |rank: &u32| {
            let teller = ranks.get(*rank as usize).and_then(Option::as_ref);
            teller.is_some_and(|teller| !teller.has_begun(Operator::Dispatch, dispatch))
        };
        let unsent = seen.told.iter().copied().filter(has_not_begun);
        unsent.map(move |rank| Contradiction::Unsent { rank, by, dispatch })
    });
    let in_memory = all(ranks).flat_map(|(rank, seen)| {
        seen.contradictions.iter().map(move |what| Contradiction::Memory { rank, what: what.clone() })
    });
    behind.chain(unsent).chain(in_memory).collect()
}

/// The ranks that lack flags in a dispatch, if they are several and each lacks some of its own. Each writes all of its own in
/// one go, so the places are those of another configuration.
fn lack_own_flags(ranks: &[Option<Seen>]) -> Vec<u32> {
    let lacking: Vec<_> = all(ranks).filter_map(|(rank, seen)| Some((rank, seen.lacks_own_flags?))).collect();
    let is_each = lacking.len() > 1 && lacking.iter().all(|(_, own)| *own);
    lacking.into_iter().filter(|_| is_each).map(|(rank, _)| rank).collect()
}

/// Takes a doubt for a wait if the word was never sent: its writer has not begun the operator.
fn settle(ranks: &mut [Option<Seen>]) {
    let all = ranks.to_vec();
    let is_unsent = |lack: &Lack| {
        let writer = lack.what.source().and_then(|rank| all.get(rank as usize)?.as_ref());
        writer.is_some_and(|writer| !writer.has_begun(lack.what.operator(), lack.number))
    };
    for seen in ranks.iter_mut().flatten() {
        let (unsent, doubts) =
            core::mem::take(&mut seen.doubts).into_iter().partition::<Vec<_>, _>(is_unsent);
        seen.waits.extend(unsent);
        seen.doubts = doubts;
    }
}

/// Why a rank is named once doubts are decided, and was not before.
fn suspicion(rank: u32, (before, decided): (&[Option<Seen>], &[Option<Seen>]), in_flight: u64) -> Suspicion {
    let of_it = |lack: &&Lack| lack.what.source() == Some(rank);
    let lack_it = |ranks: &[Option<Seen>]| -> Vec<u32> {
        let lacks = all(ranks).filter(|(_, seen)| seen.waits.iter().any(|lack| of_it(&lack)));
        lacks.map(|(rank, _)| rank).collect()
    };
    let (sure, now) = (lack_it(before), lack_it(decided));
    if sure.is_empty() && !now.is_empty() {
        return Suspicion::MayNotHaveSent(now);
    }
    let owed: Vec<_> = all(before).flat_map(|(_, seen)| seen.waits.iter().filter(of_it)).collect();
    let comes_first = |doubt: &&Lack| owed.iter().any(|owed| doubt.order(in_flight) < owed.order(in_flight));
    let doubts = before[rank as usize].iter().flat_map(|seen| seen.doubts.iter().filter(comes_first));
    let may_wait_for: BTreeSet<_> = doubts.filter_map(|lack| lack.what.source()).collect();
    Suspicion::MayHaveStopped { holds_up: sure, may_wait_for: may_wait_for.into_iter().collect() }
}

/// Cores that have not begun the last operator of their rank and do not wait in an earlier one.
fn absent_cores(seen: &Seen) -> impl Iterator<Item = u32> {
    let waits = |core: &u32| seen.waits.iter().chain(&seen.doubts).any(|lack| lack.core == *core);
    seen.behind.iter().copied().filter(move |core| !waits(core))
}

fn absent_everywhere(ranks: &[Option<Seen>]) -> Vec<u32> {
    let begun = all(ranks).filter(|(_, seen)| seen.begun != [0, 0]);
    let of_each = begun.map(|(_, seen)| absent_cores(seen).collect::<BTreeSet<_>>());
    of_each.reduce(|all, one| &all & &one).unwrap_or_default().into_iter().collect()
}

fn absent(ranks: &[Option<Seen>], everywhere: &[u32]) -> BTreeMap<u32, Vec<u32>> {
    let of_rank = all(ranks).map(|(rank, seen)| {
        let cores = absent_cores(seen).filter(|core| !everywhere.contains(core));
        (rank, cores.collect::<Vec<_>>())
    });
    of_rank.filter(|(_, cores)| !cores.is_empty()).collect()
}

/// The ranks that owe a word that another one, or they themselves, lack. Of a rank without a dump nothing is known.
fn culprits(ranks: &[Option<Seen>], in_flight: u64) -> BTreeSet<u32> {
    let mut owe = BTreeSet::new();
    for lack in all(ranks).flat_map(|(_, seen)| &seen.waits) {
        let may_owe = |rank: u32, seen: &Seen| match lack.what.source() {
            Some(source) => rank == source,
            // Whoever has begun the operator may have returned all that it had.
            None => !seen.has_begun(lack.what.operator(), lack.number),
        };
        let owing =
            all(ranks).filter(|&(rank, seen)| may_owe(rank, seen) && seen.may_write(*lack, in_flight));
        owe.extend(owing.map(|(rank, _)| rank));
    }
    owe
}

fn all(ranks: &[Option<Seen>]) -> impl Iterator<Item = (u32, &Seen)> {
    (0..).zip(ranks).filter_map(|(rank, seen)| Some((rank, seen.as_ref()?)))
}

/// The ranks whose doubts no word settles.
#[derive(Debug, Default, PartialEq, Eq)]
struct Undecided {
    /// They may wait or have passed.
    open: Vec<u32>,
    /// They are taken to have passed.
    assumed: Vec<u32>,
}

/// Decides doubts by what other ranks lack.
///
/// A rank that lacks words for certain needs no more to explain why it waits. A rank in doubt waits for one that owes words to
/// others, too. Otherwise, in dispatch, where all ranks in doubt may lack words of one and the same rank that is not in doubt
/// itself, they wait for it; a lone rank that may lack words of several has passed its wait: several ranks would have to owe to
/// hold up this one alone. In combine a rank of which no token has some of its results has passed, if tokens have several:
/// otherwise all of them come from ranks that owe. That it has passed is an assumption.
fn decide(ranks: &mut [Option<Seen>], in_flight: u64, has_several: bool) -> Undecided {
    let owe = culprits(ranks, in_flight);
    let mut explained = BTreeSet::new();
    for (rank, seen) in (0..).zip(ranks.iter_mut()) {
        let Some(seen) = seen else { continue };
        let owes = |source: u32| source != rank && owe.contains(&source);
        if !seen.waits.is_empty() {
            seen.doubts.clear();
        } else if seen.doubts_combine() {
            // Which of its tokens wait is not known, so they stay in doubt.
            let mut sources = seen.doubts.iter().filter_map(|lack| lack.what.source());
            explained.extend(sources.any(owes).then_some(rank));
        } else {
            seen.wait_for(owes);
        }
    }
    let common = common(ranks);
    let in_dispatch = |seen: &&Seen| !seen.doubts.is_empty() && !seen.doubts_combine();
    let in_doubt = ranks.iter().flatten().filter(in_dispatch).count();
    let mut undecided = Undecided::default();
    for (rank, seen) in (0..).zip(ranks.iter_mut()) {
        let Some(seen) = seen.as_mut().filter(|seen| !seen.doubts.is_empty()) else { continue };
        let has_passed = match (seen.doubts_combine(), common.len()) {
            (true, _) if explained.contains(&rank) => continue,
            (false, 1) => {
                seen.wait_for(|source| common.contains(&source));
                continue;
            }
            (is_combine, several) => {
                if is_combine {
                    has_several
                } else {
                    several > 1 && in_doubt == 1
                }
            }
        };
        if has_passed {
            seen.doubts.clear();
            undecided.assumed.push(rank);
        } else {
            undecided.open.push(rank);
        }
    }
    undecided
}

/// The ranks of which all those that are in doubt about a dispatch may lack words, and that are not in doubt themselves.
fn common(ranks: &[Option<Seen>]) -> BTreeSet<u32> {
    let doubts = |seen: &Seen| !seen.doubts.is_empty() && !seen.doubts_combine();
    // Rows of the one that they wait for have not come elsewhere either.
    let may_owe = |source: &u32| {
        ranks[*source as usize].as_ref().is_some_and(|seen| !doubts(seen))
            && all(ranks).all(|(rank, seen)| rank == *source || !seen.heard.contains(source))
    };
    let of_each = ranks.iter().flatten().filter(|seen| doubts(seen)).map(|seen| {
        let sources = seen.doubts.iter().filter_map(|lack| lack.what.source());
        sources.filter(may_owe).collect::<BTreeSet<_>>()
    });
    of_each.reduce(|all, one| &all & &one).unwrap_or_default()
}

impl Seen {
    /// Whether what it is in doubt about is a combine.
    fn doubts_combine(&self) -> bool {
        self.doubts.iter().any(|lack| lack.what.operator() == Operator::Combine)
    }

    /// The same rank if it has passed all waits that it is in doubt about.
    fn without_doubts(self) -> Self {
        Self { doubts: Vec::new(), ..self }
    }

    /// Takes doubts about words of such sources for waits; those about others are settled then.
    fn wait_for(&mut self, is_source: impl Fn(u32) -> bool) {
        let is_one = |lack: &Lack| lack.what.source().is_some_and(&is_source);
        if self.doubts.iter().any(is_one) {
            let lacks = core::mem::take(&mut self.doubts);
            self.waits.extend(lacks.into_iter().filter(is_one));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(begun: [u64; 2], waits: &[(u64, Missing)]) -> Option<Seen> {
        let lack = |&(number, what)| Lack { core: 0, number, what };
        Some(Seen { begun, waits: waits.iter().map(lack).collect(), ..Seen::default() })
    }

    const fn flag(source: u32) -> Missing {
        Missing::Flag { source, expert: 0 }
    }

    const fn result(source: Option<u32>) -> Missing {
        Missing::Result { token: 0, k: 0, source }
    }

    fn owe(ranks: &[Option<Seen>]) -> Vec<u32> {
        culprits(ranks, 1).into_iter().collect()
    }

    #[test]
    fn a_rank_that_lacks_words_of_an_earlier_operator_owes_nothing_later() {
        // Rank 1 has not begun dispatch 2, because combine 1 lacks a result of rank 2, which has begun it.
        let ranks = [seen([2, 1], &[(2, flag(1))]), seen([1, 1], &[(1, result(Some(2)))]), seen([1, 1], &[])];
        assert_eq!(owe(&ranks), [2]);
        // Without a dump of rank 2 nobody is known to owe.
        assert_eq!(owe(&[ranks[0].clone(), ranks[1].clone(), None]), [0; 0]);
    }

    #[test]
    fn a_rank_that_has_begun_owes_although_it_waits() {
        let ranks = [seen([1, 0], &[(1, flag(1))]), seen([1, 0], &[(1, flag(0))])];
        assert_eq!(owe(&ranks), [0, 1]);
        assert_eq!(owe(&[seen([1, 0], &[(1, flag(0))]), seen([1, 0], &[])]), [0]);
    }

    #[test]
    fn what_follows_from_doubts_alone_is_a_suspicion() {
        let ahead = |rank| seen([1, 1], &[(1, result(Some(rank)))]);
        let weighed = |ranks: &[Option<Seen>]| {
            let evidence = weigh(&mut ranks.to_vec(), 1, true);
            (Vec::from_iter(evidence.culprits), evidence.suspects, Vec::from_iter(evidence.doubted))
        };
        // Two ranks may wait for rank 2 alone.
        let both = [in_doubt([1, 0], &[1, 2]), in_doubt([1, 0], &[2]), ahead(0)];
        let why = Suspicion::MayNotHaveSent(vec![0, 1]);
        assert_eq!(weighed(&both), (vec![], BTreeMap::from([(2, why)]), vec![0, 1]));
        // One rank waits, or has stopped.
        let stopped = |sources| Suspicion::MayHaveStopped { holds_up: vec![1], may_wait_for: sources };
        let why = BTreeMap::from([(0, stopped(vec![1])), (1, Suspicion::MayNotHaveSent(vec![0]))]);
        assert_eq!(weighed(&[in_doubt([1, 0], &[1]), ahead(0)]), (vec![], why, vec![0]));
        // What is surely lacking names rank 1, so what rank 1 may wait for is no more than a suspicion.
        let ranks = [seen([1, 0], &[(1, flag(1))]), in_doubt([1, 0], &[2]), seen([1, 0], &[(1, flag(1))])];
        let why = BTreeMap::from([(2, Suspicion::MayNotHaveSent(vec![1]))]);
        assert_eq!(weighed(&ranks), (vec![1], why, vec![1]));
    }

    #[test]
    fn evidence_that_contradicts_itself_names_no_culprit() {
        let behind = |rank, ahead, last, dispatch| Contradiction::Behind { rank, ahead, last, dispatch };
        let weighed = |ranks: &[Option<Seen>]| {
            let evidence = weigh(&mut ranks.to_vec(), 1, true);
            assert_eq!((evidence.culprits.len(), evidence.suspects.len()), (0, 0));
            evidence.contradictions
        };
        // Rank 0 is in combine 2, before which it had flags of rank 1.
        let ranks = [seen([2, 2], &[(2, result(Some(1)))]), seen([1, 1], &[])];
        assert_eq!(weighed(&ranks), [behind(1, 0, (Operator::Combine, 2), 2)]);
        // It has flags of rank 1 in dispatch 2, though not all.
        let told = seen([2, 1], &[(2, flag(1))]).map(|seen| Seen {
            told: BTreeSet::from([1]),
            last: Some((Operator::Dispatch, 2)),
            ..seen
        });
        let unsent = Contradiction::Unsent { rank: 1, by: 0, dispatch: 2 };
        assert_eq!(weighed(&[told, seen([1, 1], &[])]), [unsent]);
        // A combine needs flags of its own dispatch alone.
        let ranks = [seen([2, 1], &[(2, flag(1))]), seen([1, 1], &[])];
        assert_eq!(weigh(&mut ranks.to_vec(), 1, true).contradictions, []);
    }

    #[test]
    fn ranks_that_all_lack_flags_of_their_own_name_no_culprit() {
        let lacks = |own: u32, is_own| {
            let rank = seen([1, 0], &[(1, flag(1)), (1, flag(own))]);
            rank.map(|seen| Seen { lacks_own_flags: Some(is_own), ..seen })
        };
        let weighed = |ranks: &[Option<Seen>]| {
            let Evidence { culprits, lack_own_flags, .. } = weigh(&mut ranks.to_vec(), 1, true);
            (Vec::from_iter(culprits), lack_own_flags)
        };
        assert_eq!(weighed(&[lacks(0, true), lacks(1, true)]), (vec![], vec![0, 1]));
        // A rank that stopped between its flags lacks its own, and others do not.
        assert_eq!(weighed(&[lacks(1, false), lacks(1, true)]), (vec![1], vec![]));
        assert_eq!(weighed(&[seen([1, 1], &[]), lacks(1, true)]), (vec![1], vec![]));
    }

    #[test]
    fn cores_that_some_ranks_lack_are_culprits_and_those_that_all_lack_are_not() {
        let with = |behind: &[u32]| Some(Seen { begun: [5, 5], behind: behind.to_vec(), ..Seen::default() });
        let weighed = |ranks: &[Option<Seen>]| weigh(&mut ranks.to_vec(), 1, true);
        let some = weighed(&[with(&[]), with(&[6, 7]), with(&[])]);
        assert_eq!(some.culprits, BTreeSet::from([1]));
        assert_eq!(some.absent, BTreeMap::from([(1, vec![6, 7])]));
        let all = weighed(&[with(&[6, 7]), with(&[6, 7]), with(&[5, 6, 7])]);
        assert_eq!((all.culprits, all.absent_everywhere), (BTreeSet::new(), vec![6, 7]));
        assert_eq!(all.suspects, BTreeMap::from([(2, Suspicion::IfCoresAreRight)]));
        // A core that waits in an earlier operator is late, not absent.
        let lack = Lack { core: 6, number: 5, what: flag(0) };
        let waits = with(&[6]).map(|seen| Seen { waits: vec![lack], ..seen });
        assert_eq!(weighed(&[with(&[]), waits]).absent, BTreeMap::new());
    }

    /// In dispatch or combine 1 and in doubt about words of such ranks.
    fn in_doubt(begun: [u64; 2], sources: &[u32]) -> Option<Seen> {
        let what = |&source| if begun[1] > 0 { result(Some(source)) } else { flag(source) };
        let doubts = sources.iter().map(|source| Lack { core: 0, number: 1, what: what(source) }).collect();
        seen(begun, &[]).map(|seen| Seen { doubts, ..seen })
    }

    /// Who owes, and of which ranks it stays open whether they wait, or is assumed that they do not.
    fn decided(ranks: &[Option<Seen>], has_several: bool) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let mut ranks = ranks.to_vec();
        let Undecided { open, assumed } = decide(&mut ranks, 1, has_several);
        (owe(&ranks), open, assumed)
    }

    #[test]
    fn ranks_in_doubt_wait_for_the_one_that_is_ahead_of_them() {
        let ahead = |rank| seen([1, 1], &[(1, result(Some(rank)))]);
        assert_eq!(
            decided(&[in_doubt([1, 0], &[1, 2]), in_doubt([1, 0], &[2]), ahead(0)], true),
            (vec![2], vec![], vec![])
        );
        // A TP peer, or the only other rank.
        assert_eq!(decided(&[in_doubt([1, 0], &[1]), ahead(0)], true), (vec![1], vec![], vec![]));
        // One that could wait for either of two has passed, and has not begun what they wait for.
        assert_eq!(
            decided(&[in_doubt([1, 0], &[1, 2]), ahead(0), ahead(0)], true),
            (vec![0], vec![], vec![0])
        );
        // Two of them stay open, and are not named.
        let two = [in_doubt([1, 0], &[2, 3]), in_doubt([1, 0], &[2, 3]), ahead(0), ahead(1)];
        assert_eq!(decided(&two, true), (vec![], vec![0, 1], vec![]));
        // Whose rows have come to a rank that has passed is not the one.
        let heard = BTreeSet::from([2]);
        let knows = two[3].clone().map(|seen| Seen { heard, ..seen });
        assert_eq!(
            decided(&[two[0].clone(), two[1].clone(), two[2].clone(), knows], true),
            (vec![3], vec![], vec![])
        );
    }

    #[test]
    fn a_rank_whose_tokens_have_no_results_has_them_all() {
        // It may not have begun dispatch 2: then it owes.
        let waits = seen([2, 1], &[(2, flag(0))]);
        assert_eq!(decided(&[in_doubt([1, 1], &[1]), waits.clone()], true), (vec![0], vec![], vec![0]));
        // If every token has one result, nothing shows it.
        assert_eq!(decided(&[in_doubt([1, 1], &[1]), waits.clone()], false), (vec![], vec![0], vec![]));
        // If results of a rank are missing elsewhere, it may wait for others of it.
        let lacks = seen([1, 1], &[(1, result(Some(1)))]);
        let ranks = [in_doubt([1, 1], &[1]), seen([2, 1], &[(2, flag(0))]), lacks];
        assert_eq!(decided(&ranks, true), (vec![1], vec![], vec![]));
    }

    #[test]
    fn positions_and_numbers_are_each_others_inverse() {
        for in_flight in 1..4 {
            let mut begun = [0, 0];
            for place in 1..30 {
                let (operator, number) = at_position(place, in_flight);
                assert_eq!(position(operator, number, in_flight), place);
                begun[operator as usize] += 1;
                assert_eq!((begun_at(place, in_flight), begun[operator as usize]), (begun, number));
            }
        }
    }

    #[test]
    fn where_the_batch_is_unknown_the_ranks_that_are_behind_owe() {
        let lacks = seen([1, 1], &[(1, result(None))]);
        assert_eq!(owe(&[lacks.clone(), seen([1, 0], &[]), seen([1, 1], &[])]), [1]);
        assert_eq!(owe(&[lacks, seen([1, 0], &[(1, flag(2))]), seen([0, 0], &[])]), [2]);
    }

    #[test]
    fn nobody_owes_what_nobody_lacks() {
        assert_eq!(owe(&[seen([0, 0], &[]), seen([3, 2], &[]), None]), [0; 0]);
    }
}
