//! The words that the shipped A3 operators leave in the state region of a rank (1 MiB; the communication library's
//! `windowsExp`), according to their public sources (ops-transformer, `mc2/moe_distribute_dispatch_v2` and `..._combine_v2`).
//!
//! Each core keeps a record for either operator: the partition that it uses next, how far it is, the parameters that it was
//! given, and how many operators of that kind it has begun. A dispatch slot is `local_expert * R + source`; a core clears its
//! slots after all of them have come. A combine slot is `token * (K + S) + k`; the slots of a token are cleared together.

use super::evidence::{Lack, Missing, Seen};
use veriep_case::case::Case;
use veriep_core::layout::state::{
    COMBINE_SELECTORS, CORE_RECORD, DISPATCH_SELECTORS, DISPATCH_STATUS, Operator, PARTITION, STATUS_SLOT,
    core_word,
};
use veriep_core::plan::route::home;
use veriep_core::plan::split::even;
use veriep_core::shape::{CORES_MAX, Shape};
use veriep_core::units::{CoreId, Pair, RankId, Token};

/// A release of the public sources, and where its operators keep their state.
pub(super) struct Release {
    /// As `--from` names it.
    name: &'static str,
    /// Bytes of a partition.
    partition: u64,
    /// Where the records of dispatch are, and those of combine.
    records: [u64; 2],
    /// Whether a core sums its tokens in their order.
    sums_in_order: bool,
}

/// More operators than any job runs; of more than this, positions do not fit their type.
const BEGUN_MAX: u64 = 1 << 48;

/// July 2026.
pub(super) const M: Release = Release {
    name: "cann-m",
    partition: PARTITION,
    records: [DISPATCH_SELECTORS, COMBINE_SELECTORS],
    sums_in_order: false,
};
/// November 2025.
pub(super) const H: Release =
    Release { name: "cann-h", partition: 500 * 1024, records: [950 * 1024, 975 * 1024], sums_in_order: true };

/// The position that a core records when it begins. Dispatch records the next one when its flags have come, combine after each
/// token that it has summed.
const BEGUN: u32 = 1;
/// A flag, as bits.
const FLAG: u32 = 1.0f32.to_bits();

/// A core's record of the operators of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    position: u32,
    begun: u64,
}

/// One rank's dump, with what it was made for.
struct Dump<'a> {
    bytes: &'a [u8],
    shape: &'a Shape,
    rank: RankId,
    release: &'static Release,
}

/// Reads the state region of `rank`. The batch of `case` tells which results a token waits for, and of whom.
///
/// # Errors
/// The region cannot be one of this configuration and release; the text says why.
pub(super) fn read(
    bytes: &[u8],
    (shape, rank): (&Shape, RankId),
    release: &'static Release,
    in_flight: u64,
    case: Option<&Case>,
) -> Result<Seen, String> {
    let dump = Dump { bytes, shape, rank, release };
    let has_begun = |records: &[Vec<Record>; 2]| records.iter().flatten().any(|record| record.begun > 0);
    let records = dump.records();
    // A record that holds at the other release's place leaves no doubt.
    let other = Dump { release: if release.name == M.name { &H } else { &M }, ..dump };
    if !records.as_ref().is_ok_and(has_begun) && other.records().as_ref().is_ok_and(has_begun) {
        let (own, other) = (release.name, other.release.name);
        return Err(format!(
            "has its records where {other} has them, not where {own} has; hint: --from {other}"
        ));
    }
    let records = records?;
    // The upper half of a word has its epoch.
    let met = [0, 1].map(|epoch| dump.word(core_word(CoreId(0), epoch).offset + 4));
    if !has_begun(&records) && met != [0, 0] {
        return Err("has words of our own core barrier, and no records; hint: --from veriep".to_owned());
    }
    dump.seen(&records, in_flight, case)
}

impl Dump<'_> {
    fn word(&self, at: u64) -> u32 {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let word = self.bytes.get(at..).and_then(|bytes| bytes.first_chunk());
        u32::from_le_bytes(word.copied().unwrap_or_default())
    }

    /// The records of dispatch, and of combine, of each core.
    fn records(&self) -> Result<[Vec<Record>; 2], String> {
        let [dispatch, combine] = [Operator::Dispatch, Operator::Combine].map(|operator| {
            (0..CORES_MAX as u32).map(|core| self.record(operator, core)).collect::<Result<Vec<_>, _>>()
        });
        Ok([dispatch?, combine?])
    }

    fn record(&self, operator: Operator, core: u32) -> Result<Record, String> {
        let at = self.release.records[operator as usize] + u64::from(core) * CORE_RECORD;
        let words: [u32; 8] = core::array::from_fn(|word| self.word(at + 4 * word as u64));
        let [partition, position, rank, experts, ranks, global_bs, low, high] = words;
        let begun = u64::from(low) | u64::from(high) << 32;
        let name = format!("{} record of core {core}", operator.name());
        if begun == 0 {
            let is_empty = words == [0; 8];
            return if is_empty {
                Ok(Record::default())
            } else {
                Err(format!("{name}: has begun 0 operators, but is not empty"))
            };
        }
        let shape = self.shape;
        let cores = shape.aiv_num();
        for (what, seen, expected) in [
            ("ep_rank_id", rank, self.rank.0),
            ("moe_expert_num", experts, shape.moe_expert_num()),
            ("ep_world_size", ranks, shape.ep_world_size()),
            ("global_bs", global_bs, shape.bs_max() * shape.ep_world_size()),
        ] {
            if seen != expected {
                return Err(format!("{name}: {what} = {seen}: the configuration has {expected}"));
            }
        }
        if core >= cores {
            return Err(format!(
                "{name}: has begun {begun} operators: the configuration has aiv_num = {cores}"
            ));
        }
        if u64::from(partition) != begun % 2 || position < BEGUN {
            return Err(format!(
                "{name}: partition {partition} and position {position} after {begun} operators: cannot be"
            ));
        }
        Ok(Record { position, begun })
    }

    fn seen(
        &self,
        [dispatches, combines]: &[Vec<Record>; 2],
        in_flight: u64,
        case: Option<&Case>,
    ) -> Result<Seen, String> {
        let most = |records: &[Record]| records.iter().map(|record| record.begun).max().unwrap_or(0);
        let begun = [most(dispatches), most(combines)];
        if let Some(many) = begun.into_iter().find(|begun| *begun > BEGUN_MAX) {
            return Err(format!("{many} operators begun: cannot be so many"));
        }
        if begun[1] > begun[0] || begun[0] - begun[1] > in_flight {
            return Err(format!(
                "{} dispatches and {} combines begun: with {in_flight} in flight that cannot be",
                begun[0], begun[1]
            ));
        }
        let mut seen = Seen { begun, is_numbered: true, ..Seen::default() };
        let cores = self.shape.aiv_num();
        for (core, (dispatch, combine)) in (0..cores).zip(dispatches.iter().zip(combines)) {
            if [dispatch.begun, combine.begun] != begun {
                seen.behind.push(core);
            }
            if dispatch.position == BEGUN && combine.begun < dispatch.begun {
                self.flags(core, dispatch.begun, &mut seen)?;
            }
            if combine.begun > 0 && dispatch.begun < combine.begun + in_flight {
                self.results(core, combine, case, &mut seen)?;
            }
        }
        seen.contradictions.extend(self.unexplained());
        // Between the first and the last batch in flight either kind may have begun last.
        let [dispatches, combines] = begun;
        seen.last = match seen.waits.last() {
            _ if dispatches == 0 => None,
            Some(lack) => Some((lack.what.operator(), lack.number)),
            None if dispatches == combines => Some((Operator::Combine, combines)),
            None if dispatches == combines + in_flight => Some((Operator::Dispatch, dispatches)),
            None => None,
        };
        seen.phase = seen.last.map(|(operator, _)| match operator {
            Operator::Dispatch => "has all flags",
            Operator::Combine => "has all results",
        });
        Ok(seen)
    }

    /// The first word after the slots that this configuration has, of dispatch or of combine.
    fn unexplained(&self) -> Option<String> {
        let shape = self.shape;
        let flags = u64::from(shape.local_experts(self.rank) * shape.ep_world_size()) * STATUS_SLOT;
        let results = u64::from(shape.bs_max() * shape.combine_columns()) * STATUS_SLOT;
        let behind = |partition: u64| {
            let base = partition * self.release.partition;
            let combine = base + DISPATCH_STATUS;
            [base + flags..combine, combine + results..base + PARTITION]
        };
        let words = [0, 1].into_iter().flat_map(behind).flat_map(|range| range.step_by(4));
        let at = words.into_iter().find(|at| self.word(*at) != 0)?;
        Some(format!("{:#x} at byte {at}, where this configuration has nothing", self.word(at)))
    }

    /// The flags that `core` lacks in its dispatch number `number`.
    fn flags(&self, core: u32, number: u64, seen: &mut Seen) -> Result<(), String> {
        let (shape, ranks) = (self.shape, self.shape.ep_world_size());
        let base = (number - 1) % 2 * self.release.partition;
        for slot in even(shape.local_experts(self.rank) * ranks, shape.aiv_num(), core) {
            match self.word(base + u64::from(slot) * STATUS_SLOT) {
                FLAG => {
                    seen.told.insert(slot % ranks);
                }
                0 => seen.waits.push(Lack {
                    core,
                    number,
                    what: Missing::Flag { source: slot % ranks, expert: slot / ranks },
                }),
                word => return Err(format!("dispatch slot {slot}: {word:#x}: must be 0 or {FLAG:#x}")),
            }
        }
        Ok(())
    }

    /// The results that `core` lacks in its last combine, of the tokens of its share.
    fn results(
        &self,
        core: u32,
        record: &Record,
        case: Option<&Case>,
        seen: &mut Seen,
    ) -> Result<(), String> {
        let (shape, rank, number) = (self.shape, self.rank, record.begun);
        let inputs = case.map(|case| case.inputs(rank));
        let is_active =
            |token: &Token| inputs.as_ref().is_none_or(|inputs| inputs.token_is_active(shape, *token));
        let active: Vec<_> = (0..shape.bs(rank)).map(Token).filter(is_active).collect();
        let own = even(active.len() as u32, shape.aiv_num(), core);
        let summed = record.position - BEGUN;
        if summed as usize > own.len() {
            return Err(format!("core {core}: has summed {summed} tokens: its share is {}", own.len()));
        }
        let mut empty = Vec::new();
        for index in own {
            let token = active[index as usize];
            let (mut lacks, mut there) = (Vec::new(), 0);
            for k in 0..shape.combine_columns() {
                let pair = Pair { token, k };
                let source =
                    inputs.as_ref().map(|inputs| home(shape, rank, inputs, pair).map(|home| home.rank.0));
                if self.result(number, pair)? {
                    there += 1;
                    if source == Some(None) {
                        let Pair { token, k } = pair;
                        let what = format!(
                            "has a result for token {}, k = {k}, which --case sends nowhere",
                            token.0
                        );
                        seen.contradictions.push(what);
                    }
                } else if source != Some(None) {
                    // A pair that no rank returns a result for is not awaited.
                    let what = Missing::Result { token: token.0, k, source: source.flatten() };
                    lacks.push(Lack { core, number, what });
                }
            }
            match (there, lacks.is_empty()) {
                (0, false) => empty.push(lacks),
                _ => seen.waits.append(&mut lacks),
            }
        }
        // Of tokens without a result some were summed. The operators of November 2025 sum them in order.
        match (empty.len() as u32).saturating_sub(summed) {
            0 => {}
            tokens if summed > 0 && !self.release.sums_in_order => {
                seen.waits.push(Lack { core, number, what: Missing::Tokens { tokens } });
            }
            _ => seen.waits.extend(empty.into_iter().skip(summed as usize).flatten()),
        }
        Ok(())
    }

    /// Whether the result of a pair is there.
    fn result(&self, number: u64, Pair { token, k }: Pair) -> Result<bool, String> {
        let slot = token.0 * self.shape.combine_columns() + k;
        let at = (number - 1) % 2 * self.release.partition + DISPATCH_STATUS + u64::from(slot) * STATUS_SLOT;
        let words: [u32; 8] = core::array::from_fn(|word| self.word(at + 4 * word as u64));
        match words {
            [FLAG, ..] if words == [FLAG; 8] => Ok(true),
            [0, ..] if words == [0; 8] => Ok(false),
            _ => Err(format!("combine slot {slot}: must have 8 words of 0 or of {FLAG:#x}")),
        }
    }
}
