//! Dispatch of A3 with records: which flags a rank lacks.

use super::super::evidence::Seen;
use super::a3::Core;
use super::{Group, LastOperator, Taken, lacking, partition};
use core::ops::Range;
use std::collections::BTreeSet;
use veriep_case::global_rank::named;
use veriep_core::fabric::{Flag, Wait};
use veriep_core::layout::affine::Named;
use veriep_core::layout::field::FieldName;
use veriep_core::layout::state::{Operator, core_word, selector};
use veriep_core::layout::{block, data};
use veriep_core::place::Region;
use veriep_core::placement::Home;
use veriep_core::plan::split;
use veriep_core::protocol::Flags;
use veriep_core::shape::Protocol;
use veriep_core::sync::barrier;
use veriep_core::sync::call::{Begun, Tag};
use veriep_core::units::{CoreId, RankId};

/// Counts and flags of blocks are sent as soon as the operator has begun.
const FIRST: u32 = 0;
/// Token flags follow the exchange of counts.
const TOKENS: u32 = 1;
/// What a TP peer tells follows all records.
const TP: u32 = 2;

/// How many core barriers a core of dispatch passes.
const BARRIERS: u32 = 2;

/// One core of a rank in a dispatch.
struct Own<'l, 'a> {
    last: &'l mut LastOperator<'a>,
    core: u32,
    /// Core barriers of this dispatch at which it has arrived; none if there are no others to meet.
    barriers: Option<u32>,
}

/// The dispatch of a member, whose cores are these.
pub(super) fn dispatch(mut last: LastOperator<'_>, cores: &[Core]) -> Result<Seen, String> {
    for (core, words) in (0..).zip(cores) {
        let barriers = (cores.len() > 1).then(|| barriers(last.number, words));
        if barriers.is_some_and(|barriers| barriers > BARRIERS) {
            return Err(format!(
                "core words of core {core}: epoch {}: cannot be in this dispatch",
                words.epoch
            ));
        }
        Own { last: &mut last, core, barriers }.look();
    }
    let is_first = |flag| matches!(flag, Flag::Count | Flag::Dispatch);
    last.seen.lacks_own_flags = last.lacks_own(is_first);
    if last.seen.waits.is_empty() && last.seen.doubts.is_empty() {
        last.seen.phase = Some("has all flags");
    }
    Ok(last.seen)
}

/// The last dispatch of a member that takes operators in halves. A core that is at none of its barriers may have taken all of
/// its words, or be in an earlier dispatch.
pub(super) fn of_halves(mut last: LastOperator<'_>, cores: &[Core]) -> Seen {
    for (core, words) in (0..).zip(cores) {
        let has_begun = words.begun[0] == last.number % 2;
        let barriers = Some(barriers(last.number, words)).filter(|at| cores.len() > 1 && *at < BARRIERS);
        Own { last: &mut last, core, barriers: barriers.filter(|_| has_begun) }.look();
    }
    last.seen
}

/// Core barriers of dispatch `number` at which a core has arrived, modulo 4.
const fn barriers(number: u64, words: &Core) -> u32 {
    let before = (BARRIERS as u64 * (number - 1) % 4) as u32;
    (words.epoch + 4 - before) % 4
}

/// How many flags of dispatch `number`, which a member has not begun, it has. Where words have numbers of calls, those of
/// earlier dispatches may still be in their places.
pub(super) fn flags(group: &Group<'_>, member: u32, number: u64) -> usize {
    let ranks = group.shape.ep_world_size();
    let own = group.memory(member).and_then(|memory| memory.word(selector(Operator::Dispatch, CoreId(0))));
    let own = own.filter(|_| group.choices.checked).and_then(Begun::of_selector);
    let is_there = |word: &u64| *word != 0 && own.is_none_or(|own| Tag::of(*word).is_later(own.tag()));
    if group.choices.receive.is_direct() {
        let told = |source: u32| {
            let at = [partition(number).index(), source, 0, 0, 0];
            group.word(member, (Named::DirectRecords, Some(FieldName::CountsTold)), at)
        };
        return (0..ranks).filter_map(told).filter(is_there).count();
    }
    let slots = 0..group.shape.local_experts(group.ep(member)) * ranks;
    slots
        .filter_map(|slot| word(group, member, number, slot, Some(FieldName::Status)))
        .filter(is_there)
        .count()
}

/// That word of a slot.
fn word(group: &Group<'_>, member: u32, number: u64, slot: u32, field: Option<FieldName>) -> Option<u64> {
    let (expert, source) = (slot / group.shape.ep_world_size(), slot % group.shape.ep_world_size());
    let at = [partition(number).index(), expert, source, 0, 0];
    group.word(member, (Named::DispatchStatus, field), at)
}

impl Own<'_, '_> {
    fn look(&mut self) {
        let Group { shape, choices, .. } = self.last.group;
        let is_separate = choices.flags == Flags::Separate;
        let slots = split::slots(shape, self.last.group.ep(self.last.member), CoreId(self.core));
        // Joint flags are awaited after the first barrier, counts alone in front of it.
        let counts = match (self.barriers, is_separate) {
            (None, _) => Taken::Perhaps,
            (Some(0), true) | (Some(1), false) => Taken::Some,
            (Some(0), false) => Taken::None,
            _ => Taken::All,
        };
        let flag = if is_separate || shape.protocol() == Protocol::FullmeshV2 {
            Flag::Count
        } else {
            Flag::Dispatch
        };
        self.slots(&slots, Some(FieldName::Status), counts, (FIRST, flag));
        if is_separate {
            let tokens = match self.barriers {
                Some(0 | 1) => Taken::None,
                _ => Taken::Perhaps,
            };
            self.slots(&slots, Some(FieldName::TokenFlag), tokens, (TOKENS, Flag::Token));
        }
        if shape.protocol() == Protocol::FullmeshV2 {
            self.blocks(slots, counts == Taken::All);
        }
        self.last.tp(self.core, TP);
    }

    /// Words of slots, of that field.
    fn slots(
        &mut self,
        own: &Range<u32>,
        field: Option<FieldName>,
        taken: Taken,
        (level, flag): (u32, Flag),
    ) {
        let LastOperator { group, member, number, .. } = *self.last;
        let ranks = group.shape.ep_world_size();
        let wait = |slot: u32| Wait::new(flag, RankId(slot % ranks), &[slot / ranks]);
        let come: BTreeSet<_> = own
            .clone()
            .filter(|slot| self.last.has_come(word(group, member, number, *slot, field), wait(*slot)))
            .collect();
        let has = |slot: u32| come.contains(&slot);
        let tellers = own.clone().filter(|slot| has(*slot)).map(|slot| RankId(slot % ranks));
        let tellers = tellers.map(|rank| named(group.shape.tp_world_size(), RankId(member), rank, false).0);
        self.last.seen.told.extend(tellers);
        let (sure, doubt) = lacking(own.clone(), taken, has);
        sure.into_iter().for_each(|slot| self.lacks(level, wait(slot), true));
        doubt.into_iter().for_each(|slot| self.lacks(level, wait(slot), false));
    }

    fn lacks(&mut self, level: u32, wait: Wait, is_sure: bool) {
        self.last.note(self.core, level, wait, is_sure);
    }

    /// Flags of blocks are cleared record by record, in any order of slots; how many records there are is gone with the
    /// counts. A record of which some blocks have come lacks the others. If none has, it may have been taken.
    fn blocks(&mut self, slots: Range<u32>, has_counts: bool) {
        let LastOperator { group, member, number, .. } = *self.last;
        let Some(memory) = group.memory(member).filter(|memory| memory.has(Region::Window)) else {
            return;
        };
        let (shape, rank) = (group.shape, group.ep(member));
        let rows = self.barriers.filter(|_| has_counts).map(|_| {
            let at = core_word(CoreId(self.core), BARRIERS);
            barrier::sum_in(memory.word(at).unwrap_or(0)).rows
        });
        if rows == Some(0) {
            return;
        }
        for slot in slots {
            let (local_expert, source) = (slot / shape.ep_world_size(), RankId(slot % shape.ep_world_size()));
            let mut is_broken = false;
            for record in 0..shape.bs(source) {
                let home = Home { rank, local_expert };
                let at = data::dispatch_record(shape, partition(number), home, source, record);
                let mut has = |n: &u32| {
                    let wait = Wait::new(Flag::Block, source, &[local_expert, record, *n]);
                    self.last.has_come(memory.word(block::flag(at, *n)), wait)
                };
                let (there, missing): (Vec<_>, Vec<_>) = (0..block::count(shape)).partition(|n| has(n));
                let lost = missing.first().filter(|_| !there.is_empty());
                if let Some(&n) = lost {
                    is_broken = true;
                    self.lacks(FIRST, Wait::new(Flag::Block, source, &[local_expert, record, n]), true);
                }
            }
            if !is_broken && (has_counts || self.barriers.is_none()) {
                self.lacks(FIRST, Wait::new(Flag::Block, source, &[local_expert, 0, 0]), false);
            }
        }
    }
}
