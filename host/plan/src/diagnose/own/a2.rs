//! The full mesh of A2: the doorbell has the number of the last operator whose windows a rank has handed to its agent. Flags of a
//! window are cleared once all windows have come, so a rank that still has those of its window to itself waits.

use super::super::evidence::Seen;
use super::super::memory::Memory;
use super::{Group, LastOperator, Refused, partition};
use core::ops::RangeInclusive;
use veriep_core::fabric::{Flag, Wait};
use veriep_core::layout::a2_message::doorbell;
use veriep_core::layout::a2_window::{FLAG1, buffer_chosen, tail_flag, window_in, window_out};
use veriep_core::layout::state::{Operator, Partition};
use veriep_core::place::{Place, Region};
use veriep_core::plan::split;
use veriep_core::sync::call::{Begun, Tag};
use veriep_core::sync::flag;
use veriep_core::units::{CoreId, RankId};

pub(super) fn read(group: &Group<'_>) -> Result<Vec<Option<Seen>>, Refused> {
    group.each(Region::Window, |member, memory| {
        let rung = memory.word(doorbell()).unwrap_or(0);
        let chosen = memory.word(buffer_chosen(group.shape)).unwrap_or(0) & u64::from(u32::MAX);
        let chosen = group.choices.untagged().selector(chosen);
        if chosen > 1 {
            return Err(format!("bufferChosen: {chosen:#x}: must be 0 or 1"));
        }
        let seen = Seen { is_numbered: true, ..Seen::at(rung, group.in_flight) };
        let Some(last) = LastOperator::of(group, member, seen.clone()) else { return Ok(seen) };
        Ok(Windows { last, memory, rung, half: partition(rung) }.look())
    })
}

/// The windows that one rank has received in its last operator.
struct Windows<'a> {
    last: LastOperator<'a>,
    memory: &'a Memory,
    rung: u64,
    half: Partition,
}

impl Windows<'_> {
    fn look(mut self) -> Seen {
        let (shape, operator) = (self.last.group.shape, self.last.operator);
        let own = RankId(self.last.member);
        let own_flag = match operator {
            Operator::Dispatch => self.flag(own, FLAG1),
            Operator::Combine => self.rows_of_combine(own).and_then(|rows| self.end(own, operator, rows)),
        };
        let Some(own_flag) = own_flag else {
            return Seen { phase: Some("has all rows"), ..self.last.seen };
        };
        // What it has written to itself has the number of its own call.
        let is_checked = self.last.group.choices.checked;
        self.last.call = is_checked.then(|| Begun::tagged(Tag::of(own_flag >> 32)));
        for core in 0..shape.aiv_num() {
            for source in split::ranks(shape, CoreId(core)).map(RankId) {
                let counts = Wait::new(Flag::WindowCounts, source, &[]);
                let rows = |first| Wait::new(Flag::WindowRows, source, &[first]);
                let missing = match operator {
                    Operator::Dispatch if !self.has(self.flag(source, FLAG1), counts) => Some(counts),
                    Operator::Dispatch => {
                        self.last.seen.told.insert(source.0);
                        let counted = self.counted(window_in(shape, self.half, source, 0));
                        let end = self.end(source, operator, counted..=counted);
                        (!self.has(end, rows(counted))).then(|| rows(counted))
                    }
                    Operator::Combine => self.rows_of_combine(source).and_then(|counted| {
                        let wait = rows(*counted.start());
                        let end = self.end(source, operator, counted);
                        (!self.has(end, wait)).then_some(wait)
                    }),
                };
                if let Some(wait) = missing {
                    self.last.note_wait(core, 0, wait);
                }
            }
        }
        self.last.seen
    }

    /// The flag in the window of `source`, if there is one.
    fn flag(&self, source: RankId, at: u64) -> Option<u64> {
        let word = self.memory.word(window_in(self.last.group.shape, self.half, source, at));
        word.filter(|word| flag::is_window_flag(*word))
    }

    /// The last flag of the window of `source`, after one of these numbers of rows.
    fn end(&self, source: RankId, operator: Operator, mut rows: RangeInclusive<u32>) -> Option<u64> {
        rows.find_map(|rows| self.flag(source, tail_flag(self.last.group.shape, operator, rows)))
    }

    /// Whether a flag has come, as its core judges it.
    fn has(&mut self, flag: Option<u64>, awaited: Wait) -> bool {
        let (Some(flag), Some(call)) = (flag, self.last.call) else { return flag.is_some() };
        self.last.judged(call.in_window(flag, awaited))
    }

    /// The sum of the counts at the head of a window.
    fn counted(&self, head: Place) -> u32 {
        let shape = self.last.group.shape;
        let mut bytes = [0; FLAG1 as usize];
        self.memory.read(head, &mut bytes);
        let counts = bytes.as_chunks().0.iter().take(shape.local_expert_num() as usize);
        let sum = counts.fold(0_u32, |sum, count| sum.saturating_add(u32::from_le_bytes(*count)));
        sum.min(shape.bs_max() * shape.local_expert_num().min(shape.k()))
    }

    /// The rows that come back from `source` in combine: as many as were sent there, by the other half, while its dispatch was
    /// the operator before. Else any number.
    fn rows_of_combine(&self, source: RankId) -> Option<RangeInclusive<u32>> {
        let LastOperator { group, member, .. } = self.last;
        let shape = group.shape;
        let half = partition(self.rung - 1);
        let head = if source.0 == member {
            window_in(shape, half, source, 0)
        } else {
            window_out(shape, half, source, 0)
        };
        if group.in_flight == 1 && self.memory.has(head.region) {
            let rows = self.counted(head);
            return Some(rows..=rows);
        }
        Some(0..=shape.rows_to_peer_max(RankId(member)))
    }
}
