//! The slots of the model: the words and bytes of the protocols that are slots, and the ranks that expect values in them.
//!
//! A dispatch of A3 has several classes of slots. Slot `i` of a class is `expert * R + source` if nothing else is said.
//!
//! | layout | class | carries | quiet before it |
//! |---|---|---|---|
//! | joint flags | status word | records | yes |
//! | separate flags | TokenFlag | records | yes |
//! | | CountFlag | nothing | no |
//! | fullmesh_v2 | status word | nothing | yes |
//! | | flag of a block, by `i`, record and block | the block | no |
//! | direct | word of counts, by source | the table | no |
//! | | word of grants, by source | the table | no |
//! | | TokenFlag, by source | nothing | yes |
//!
//! A combine has one slot for each (token, column), which carries a row. If it pulls, it has one for each source: the word that
//! results lie ready. No flag of it is behind a quiet. Rows that are placed directly are in no slot, nor are results that
//! are pulled: their owners write, read and grant them in different operators.
//!
//! On A2 a window has two slots, and all are behind a quiet: FLAG1 with the counts, and the last flag with the rows. Both are
//! clear when no word of the window is a flag to anybody. What a rank writes into its window to itself lands as a whole, when
//! the rank is quiet: its cores look at it after the barrier only.

use super::model::Step;
use super::trace::Expected;
use core::ops::Range;
use veriep_core::layout::a2_window::FLAG1;
use veriep_core::layout::block;
use veriep_core::layout::state::{DISPATCH_STATUS, Direct, PARTITION, STATUS_SLOT};
use veriep_core::place::{Place, Region};
use veriep_core::protocol::{Choices, Flags, Operator};
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::RankId;

/// Bytes of a word.
const WORD: u64 = 8;
/// Bytes of the counts of a window of A2, with FLAG1.
const HEAD: usize = (FLAG1 + WORD) as usize;

/// Blocks of a record; `None` in the plain layout.
fn blocks(shape: &Shape) -> Option<u32> {
    (shape.protocol() == Protocol::FullmeshV2).then(|| block::count(shape))
}

/// Slots of a class that has one for each local expert and source.
fn pairs(shape: &Shape, rank: RankId) -> u32 {
    shape.local_experts(rank) * shape.ep_world_size()
}

/// The kind and number of the slot to which a place of `rank` belongs on A3, given by where it is in its partition; `None` for
/// other words.
pub fn a3(
    shape: &Shape,
    choices: Choices,
    rank: RankId,
    region: Region,
    within: u64,
) -> Option<(Operator, usize)> {
    let [ranks, pairs, bs] = [shape.ep_world_size(), pairs(shape, rank), shape.bs_max()].map(u64::from);
    let direct = choices.receive.is_direct();
    let (kind, slot) = match region {
        Region::State if within >= PARTITION => return None,
        Region::State if within >= DISPATCH_STATUS => {
            (Operator::Combine, (within - DISPATCH_STATUS) / STATUS_SLOT)
        }
        Region::State if direct => {
            let (source, inside) = (within / Direct::pitch(shape), within % Direct::pitch(shape));
            let words = Direct::ALL.len() as u64;
            let class = match inside.checked_sub(words * WORD) {
                None => inside / WORD,
                Some(table) => table / (4 * u64::from(shape.local_expert_num())),
            };
            if source >= ranks || class >= words {
                return None;
            }
            (Operator::Dispatch, class * ranks + source)
        }
        Region::State => {
            let is_count = choices.flags == Flags::Separate && within % STATUS_SLOT < WORD;
            (Operator::Dispatch, within / STATUS_SLOT + if is_count { pairs } else { 0 })
        }
        Region::Window if !direct => match within.checked_sub(shape.combine_area()) {
            None => (Operator::Combine, within / shape.combine_pitch()),
            Some(within) => {
                let (record, inside) = (within / shape.record_pitch(), within % shape.record_pitch());
                let experts = u64::from(shape.local_experts(rank));
                let (source, expert) = (record / bs / experts, record / bs % experts);
                let slot = expert * ranks + source;
                let of_block = |blocks: u32| {
                    let block = inside / block::block(Place::window(0), 1).offset;
                    pairs + (slot * bs + record % bs) * u64::from(blocks) + block
                };
                (Operator::Dispatch, blocks(shape).map_or(slot, of_block))
            }
        },
        _ => return None,
    };
    Some((kind, slot as usize))
}

/// What `rank` expects in a dispatch of A3, by slot. `rows` says how many a source sends to a local expert.
pub fn a3_dispatch(
    shape: &Shape,
    choices: Choices,
    rank: RankId,
    rows: impl Fn(u32, usize) -> u32,
) -> Vec<Option<Expected>> {
    let ranks = shape.ep_world_size() as usize;
    if choices.receive.is_direct() {
        let word = |word: Direct| {
            let last = word == Direct::TokenFlags;
            (0..ranks).map(move |source| {
                Some(Expected { source, carries: !last, quiets: last, ..Expected::default() })
            })
        };
        return Direct::ALL.into_iter().flat_map(word).collect();
    }
    let of = |i: u32| ((i as usize) % ranks, rows(i / ranks as u32, i as usize % ranks));
    let all = 0..pairs(shape, rank);
    let status = |covers: bool, quiets: bool| {
        all.clone().map(of).map(move |(source, rows)| {
            Some(Expected { source, carries: covers && rows > 0, quiets, ..Expected::default() })
        })
    };
    match (blocks(shape), choices.flags) {
        (Some(blocks), _) => {
            let record = |(source, rows): (usize, u32)| {
                (0..shape.bs_max() * blocks).map(move |i| {
                    (i / blocks < rows).then_some(Expected { source, carries: true, ..Expected::default() })
                })
            };
            status(false, true).chain(all.clone().map(of).flat_map(record)).collect()
        }
        (None, Flags::Joint) => status(true, true).collect(),
        (None, Flags::Separate) => status(true, true).chain(status(false, false)).collect(),
    }
}

/// What a rank expects in an operator of A2, by slot.
pub fn a2_window(kind: Operator, ranks: usize) -> Vec<Option<Expected>> {
    let expected =
        |slot: usize| Expected { source: slot / 2, carries: true, quiets: true, ..Expected::default() };
    (0..2 * ranks).map(|slot| (kind == Operator::Dispatch || slot % 2 == 1).then(|| expected(slot))).collect()
}

/// What it is to the slots of a window of A2, of `len` bytes from a source, that a piece of it arrives.
pub fn a2_arrival(kind: Operator, source: usize, len: usize, piece: &Range<usize>) -> Vec<(Step, usize)> {
    let head = if kind == Operator::Dispatch { HEAD } else { 0 };
    let mut all = Vec::new();
    for part in [0..head, head..len] {
        let slot = a2(kind, source, part.start);
        if piece.start.max(part.start) < piece.end.min(part.end) {
            all.push((Step::Write, slot));
            if piece.contains(&(part.end - 1)) {
                all.push((Step::Land, slot));
            }
        }
    }
    all
}

/// The slot of a byte of a window of A2.
pub fn a2(kind: Operator, source: usize, at: usize) -> usize {
    let is_head = kind == Operator::Dispatch && at < HEAD;
    2 * source + usize::from(!is_head)
}
