//! A3: selectors say, modulo 2, how many operators of either kind each core has begun; the words of the core barrier, where
//! there are several cores, how far it is in dispatch. How ranks stand to each other follows: nobody ends a dispatch before all
//! have begun it.

use super::super::evidence::{Seen, at_position, position};
use super::super::memory::Memory;
use super::{Group, LastOperator, Refused, a3_words, batch, direct, results};
use std::collections::BTreeSet;
use veriep_core::layout::state::{Operator, core_word, selector};
use veriep_core::place::Region;
use veriep_core::sync::barrier;
use veriep_core::sync::call::Begun;
use veriep_core::units::CoreId;

/// Selectors repeat after so many operators, with one batch in flight or two.
const PERIOD: u64 = 4;

/// What a core's own words say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Core {
    /// Dispatches and combines begun, modulo 2.
    pub(super) begun: [u64; 2],
    /// The last core barrier, modulo 4.
    pub(super) epoch: u32,
    /// Whether it has never been at one.
    is_new: bool,
}

/// Why words are not those of operators in their order.
enum Unread {
    /// The dumps cannot be of this group.
    Refused(Refused),
    /// Each word can be of this group, and they contradict each other; those of one member, or of all.
    Contradiction { member: Option<u32>, what: String },
}

impl From<Refused> for Unread {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl Unread {
    fn contradiction(member: u32, what: impl Into<String>) -> Self {
        Self::Contradiction { member: Some(member), what: what.into() }
    }
}

/// How words come about that no operators in their order leave.
const READINGS: &str =
    "another configuration or release, a call that a rank left out, or operators in halves";

#[derive(Clone)]
struct Rank {
    cores: Vec<Core>,
    /// By core, the position of its last operator, modulo [`PERIOD`].
    at: Vec<u64>,
    /// The position of the foremost core, modulo [`PERIOD`]; none if no core has ever begun anything.
    foremost: Option<u64>,
}

pub(super) fn read(group: &Group<'_>) -> Result<Vec<Option<Seen>>, Refused> {
    if group.in_flight > 2 {
        let why = format!(
            "in_flight = {}: must be 1 or 2 on A3: its memory does not tell more apart",
            group.in_flight
        );
        return Err((None, why));
    }
    match in_order(group) {
        Ok(seen) => Ok(seen),
        Err(Unread::Refused(refused)) => Err(refused),
        Err(Unread::Contradiction { member, what }) => Ok(contradicted(group, member, &what)),
    }
}

/// The members of a group whose words contradict each other: how far they are is unknown.
fn contradicted(group: &Group<'_>, member: Option<u32>, what: &str) -> Vec<Option<Seen>> {
    let members = (0..).zip(&group.members);
    let seen = members.map(|(of, memory)| memory.as_ref().map(|_| (of, Seen::somewhere())));
    let mut seen: Vec<_> = seen.collect();
    let shows_it = |of: u32| member.is_none_or(|member| member == of);
    if let Some((_, first)) = seen.iter_mut().flatten().find(|(of, _)| shows_it(*of)) {
        first.contradictions.push(format!("{what}: {READINGS}"));
    }
    seen.into_iter().map(|seen| seen.map(|(_, seen)| seen)).collect()
}

/// The members of a group that takes whole operators in their order.
fn in_order(group: &Group<'_>) -> Result<Vec<Option<Seen>>, Unread> {
    let ranks = (0..).zip(&group.members).map(|(member, memory)| match memory {
        Some(memory) => rank(group, member, memory).map(Some),
        None => Ok(None),
    });
    let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
    let (ranks, first) = placed(group, ranks)?;
    let place = |rank: &Rank, at: u64| match rank.foremost {
        None => 0,
        Some(_) => first + (at + PERIOD - first % PERIOD) % PERIOD,
    };
    let mut seen: Vec<_> = ranks
        .iter()
        .map(|rank| {
            let rank = rank.as_ref()?;
            let at = place(rank, rank.foremost.unwrap_or(0));
            let behind = (0..).zip(&rank.at).filter(|(_, core)| place(rank, **core) != at);
            Some(Seen { behind: behind.map(|(core, _)| core).collect(), ..Seen::at(at, group.in_flight) })
        })
        .collect();
    if !group.choices.receive.is_direct() {
        batch::check(group, &mut seen)?;
    }
    for member in 0..seen.len() {
        let (Some(own), Some(rank)) = (seen[member].clone(), &ranks[member]) else { continue };
        let Some(mut last) = LastOperator::of(group, member as u32, own) else { continue };
        last.call = call(&last);
        let cores = |of: u32| ranks[of as usize].as_ref().map_or(&[][..], |rank| &rank.cores);
        let found = match (last.operator, group.choices.receive.is_direct()) {
            (Operator::Dispatch, true) => direct::dispatch(last),
            (Operator::Dispatch, false) => a3_words::dispatch(last, &rank.cores)
                .map_err(|why| Unread::contradiction(member as u32, why))?,
            (Operator::Combine, true) => direct::combine(last),
            (Operator::Combine, false) => results::combine(last, &seen, &cores),
        };
        seen[member] = Some(found);
    }
    Ok(seen)
}

/// The call of a member's last operator, by the selector of a core that has begun it.
pub(super) fn call(last: &LastOperator<'_>) -> Option<Begun> {
    let LastOperator { group, member, operator, seen, .. } = last;
    let core = (0..group.shape.aiv_num())
        .find(|core| !seen.behind.contains(core))
        .filter(|_| group.choices.checked)?;
    Begun::of_selector(group.memory(*member)?.word(selector(*operator, CoreId(core)))?)
}

/// The ranks, with the position of the hindmost one. Behind four operators the memory of a single core is as new.
fn placed(group: &Group<'_>, ranks: Vec<Option<Rank>>) -> Result<(Vec<Option<Rank>>, u64), Unread> {
    let has_left_dispatch = |rank: &Rank| rank.foremost.is_some_and(|at| at != 1);
    if group.shape.aiv_num() == 1 && ranks.iter().flatten().any(has_left_dispatch) {
        let ended = |rank: &Rank| Rank { foremost: rank.foremost.or(Some(0)), ..rank.clone() };
        let all: Vec<_> = ranks.iter().map(|rank| rank.as_ref().map(ended)).collect();
        if let Ok(first) = first_position(group, &all) {
            return Ok((all, first));
        }
    }
    let first = first_position(group, &ranks)?;
    Ok((ranks, first))
}

/// What the cores of a member say.
///
/// # Errors
/// They are not words of this group.
pub(super) fn cores(group: &Group<'_>, memory: &Memory) -> Result<Vec<Core>, String> {
    let cores = (0..group.shape.aiv_num()).map(|core| {
        let core = CoreId(core);
        let word = |at| memory.word(at).unwrap_or(0);
        let begun = [Operator::Dispatch, Operator::Combine]
            .map(|kind| group.choices.untagged().selector(word(selector(kind, core))));
        let [even, odd] = [0, 1].map(|epoch| word(core_word(core, epoch)));
        let epoch = barrier::last_of(even, odd).map_err(|_| {
            format!("core words of core {core}: {even:#x} and {odd:#x} cannot follow each other")
        })?;
        if let Some(seen) = begun.iter().find(|seen| **seen > 1) {
            return Err(format!("selector of core {core}: {seen:#x}: must be 0 or 1"));
        }
        Ok(Core { begun, epoch, is_new: begun == [0, 0] && even == 0 && odd == 0 })
    });
    cores.collect()
}

fn rank(group: &Group<'_>, member: u32, memory: &Memory) -> Result<Rank, Unread> {
    let refused = |why| Unread::Refused((Some((member, Region::State)), why));
    let cores = cores(group, memory).map_err(refused)?;
    let is_new = cores.iter().all(|core| core.is_new)
        && (cores.len() > 1 || memory.whole(Region::State).iter().all(|byte| *byte == 0));
    let at = cores.iter().map(|core| core_at(group, member, core)).collect::<Result<Vec<_>, _>>()?;
    let all: BTreeSet<_> = at.iter().copied().collect();
    let foremost = match *Vec::from_iter(&all) {
        [one] => *one,
        // One operator apart: some cores have begun the next one.
        [a, b] if (a + 1) % PERIOD == *b => *b,
        [a, b] if (b + 1) % PERIOD == *a => *a,
        _ => return Err(Unread::contradiction(member, "its cores are more than one operator apart")),
    };
    Ok(Rank { cores, at, foremost: (!is_new).then_some(foremost) })
}

/// The position of a core's last operator, modulo [`PERIOD`].
fn core_at(group: &Group<'_>, member: u32, core: &Core) -> Result<u64, Unread> {
    let at = |operator, number| position(operator, number, group.in_flight) % PERIOD;
    Ok(match (core.begun, group.in_flight) {
        ([1, 0], _) => at(Operator::Dispatch, 1),
        ([0, 1], 1) => at(Operator::Dispatch, 2),
        ([0, 1], _) => at(Operator::Combine, 1),
        ([0, 0], 1) => at(Operator::Combine, 2),
        ([0, 0], _) => {
            let waits = if group.choices.receive.is_direct() {
                let (operator, seen, call) = (Operator::Dispatch, Seen::default(), None);
                let mut last = LastOperator { group, member, operator, number: 2, call, seen };
                last.call = self::call(&last);
                !direct::dispatch(last).waits.is_empty()
            } else {
                core.epoch != 0
            };
            if waits { at(Operator::Dispatch, 2) } else { at(Operator::Combine, 2) }
        }
        (_, 1) => at(Operator::Combine, 1),
        _ => {
            let what = "its selectors are 1 and 1, where two dispatches and two combines take turns";
            return Err(Unread::contradiction(member, what));
        }
    })
}

/// The position of the hindmost rank that has begun anything, between 1 and [`PERIOD`].
fn first_position(group: &Group<'_>, ranks: &[Option<Rank>]) -> Result<u64, Unread> {
    let all: BTreeSet<_> = ranks.iter().flatten().filter_map(|rank| rank.foremost).collect();
    let ahead = |first: u64| all.iter().map(|at| (at + PERIOD - first) % PERIOD).max().unwrap_or(0);
    // The foremost rank has ended all dispatches before its last operator, so every rank has begun them.
    let may_be = |first: &u64| {
        let first = if *first == 0 { PERIOD } else { *first };
        (first + 1..first + ahead(first % PERIOD))
            .all(|at| at_position(at, group.in_flight).0 == Operator::Combine)
    };
    let candidates: Vec<_> = all.iter().copied().filter(may_be).collect();
    let least = candidates.iter().map(|first| ahead(*first)).min();
    let nearest = candidates.into_iter().filter(|first| Some(ahead(*first)) == least);
    // Two dispatches apart either may be the later one: whoever is behind already has flags of the later one.
    let early = |first: &u64| {
        let (Operator::Dispatch, number) =
            at_position(if *first == 0 { PERIOD } else { *first }, group.in_flight)
        else {
            return 0;
        };
        let at = (0..)
            .zip(ranks)
            .filter(|(_, rank)| rank.as_ref().is_some_and(|rank: &Rank| rank.foremost == Some(*first)));
        at.map(|(member, _)| a3_words::flags(group, member, number + 1)).sum::<usize>()
    };
    let first = nearest.max_by_key(|first| (early(first), core::cmp::Reverse(*first)));
    match first {
        Some(0) => Ok(PERIOD),
        Some(first) => Ok(first),
        None if all.is_empty() => Ok(PERIOD),
        None => Err(Unread::Contradiction {
            member: None,
            what: "with it, the ranks are further apart than they can be at one time".to_owned(),
        }),
    }
}
