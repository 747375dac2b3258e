//! The receiving half: await and clear the flags, sum the counts, copy the records out.

use super::{CHUNK, Dispatch, Part, Phase, split_words, write_words};
use crate::a3::{Env, Ub, internal};
use crate::fabric::{Fabric, Progress, ProtocolError, Wait};
use crate::layout::data::dispatch_record;
use crate::layout::outputs;
use crate::layout::record::{Triple, scale_of, triple_of};
use crate::layout::state::dispatch_status;
use crate::place::Place;
use crate::placement::Home;
use crate::plan::counts::{self, ShareSum, expert_of_slot};
use crate::plan::split;
use crate::shape::{CORES_MAX, QuantMode, Shape, TokenNums};
use crate::sync::{barrier, flag};
use crate::units::{CoreId, RankId, Token, div_rem};
use crate::vector::Vector;

impl Dispatch {
    pub(super) fn await_slot<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        slot: u32,
    ) -> Result<Progress, ProtocolError> {
        let shape = env.shape;
        let own = &env.work.slots;
        if slot >= own.end {
            return self.go(if shape.aiv_num() == 1 { Phase::Sums } else { Phase::ArriveWithSums });
        }
        let (local_expert, source) = div_rem(slot, shape.ep_world_size());
        let source = RankId(source);
        let at = dispatch_status(self.partition, slot);
        let seen = fabric.observe(at)?;
        let count = match flag::dispatch(seen) {
            flag::Seen::Empty => {
                return Ok(Progress::Pending(Wait::DispatchFlag { source, local_expert }));
            }
            flag::Seen::Flag(count) => count,
            flag::Seen::Corrupt => return Err(ProtocolError::Status { source, local_expert, seen }),
        };
        let max = shape.rows_from(source, env.rank);
        if count > max {
            return Err(ProtocolError::Count { source, local_expert, seen: count, max });
        }
        *count_of(env, ub, slot)? = count;
        self.sum = self.sum.with(shape, slot, own.end, count);
        fabric.store(at, 0)?;
        self.go(Phase::Await { slot: slot + 1 })
    }

    pub(super) fn sums<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
    ) -> Result<Progress, ProtocolError> {
        let shape = env.shape;
        let cores = shape.aiv_num();
        if let Some(core) = barrier::missing(fabric, cores, env.core, self.epoch)? {
            return Ok(Progress::Pending(Wait::Core(core)));
        }
        let mut sums = [ShareSum::default(); CORES_MAX];
        for (sum, core) in sums.iter_mut().zip((0..cores).map(CoreId)) {
            // The own word may not have landed yet.
            *sum = if core == env.core { self.sum } else { barrier::sum_of(fabric, core, self.epoch)? };
            let share = split::slots(shape, env.rank, core);
            let (seen, max) =
                (sum.rows.into(), u64::from(share.end - share.start) * u64::from(shape.bs_max()));
            if seen > max {
                return Err(ProtocolError::Rows { seen, max });
            }
        }
        let sums = sums.iter().take(cores as usize).copied();
        let seen = sums.clone().map(|sum| u64::from(sum.rows)).sum();
        let max = shape.rows_max(env.rank);
        if seen > max {
            return Err(ProtocolError::Rows { seen, max });
        }
        let prefix = counts::prefix(shape, env.rank, env.core, sums);
        self.go(Phase::Counts {
            slot: env.work.slots.start,
            rows: prefix.rows_before,
            of_expert: prefix.expert_rows_before,
            first_row: prefix.rows_before,
        })
    }

    pub(super) fn counts<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
    ) -> Result<Progress, ProtocolError> {
        let Phase::Counts { slot, mut rows, mut of_expert, first_row } = self.phase else {
            return Err(internal("not writing counts"));
        };
        let own = &env.work.slots;
        if slot >= own.end {
            let part = Part::Triple;
            return self.go(Phase::CopyOut { slot: own.start, index: 0, row: first_row, token: 0, part });
        }
        let expert_end = (expert_of_slot(env.shape, slot) + 1) * env.shape.ep_world_size();
        let end = own.end.min(expert_end).min(slot + CHUNK);
        let mut sums = [0; CHUNK as usize];
        for (sum, slot) in sums.iter_mut().zip(slot..end) {
            let count = *count_of(env, ub, slot)?;
            // Cannot overflow: the sums of all cores are within the capacity.
            rows = rows.saturating_add(count);
            of_expert = of_expert.saturating_add(count);
            *sum = rows;
        }
        let sums = sums.iter().copied().take((end - slot) as usize);
        write_words(fabric, outputs::ep_recv_count(slot), sums)?;
        self.go(if end == expert_end {
            Phase::TokenNums { slot: end, rows, of_expert, first_row }
        } else {
            Phase::Counts { slot: end, rows, of_expert, first_row }
        })
    }

    pub(super) fn token_nums<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
    ) -> Result<Progress, ProtocolError> {
        let Phase::TokenNums { slot, rows, of_expert, first_row } = self.phase else {
            return Err(internal("not writing token nums"));
        };
        let local_expert = expert_of_slot(env.shape, slot - 1);
        let num = match env.shape.token_nums() {
            TokenNums::PrefixSums => rows,
            TokenNums::Counts => of_expert,
        };
        fabric.write(outputs::expert_token_num(local_expert), &i64::from(num).to_le_bytes())?;
        self.go(Phase::Counts { slot, rows, of_expert: 0, first_row })
    }

    pub(super) fn copy_out<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
    ) -> Result<Progress, ProtocolError> {
        let Phase::CopyOut { slot, index, row, token, part } = self.phase else {
            return Err(internal("not copying out"));
        };
        let shape = env.shape;
        let own = &env.work.slots;
        let (slot, index) = next_record(env, ub, slot, index)?;
        if slot >= own.end {
            return self.go(Phase::Done);
        }
        let (local_expert, source) = div_rem(slot, shape.ep_world_size());
        let home = Home { rank: env.rank, local_expert };
        let record = dispatch_record(shape, self.partition, home, RankId(source), index);
        let next = Phase::CopyOut { slot, index: index + 1, row: row + 1, token, part: Part::Triple };
        match part {
            Part::Triple => {
                let bytes = copy_of::<{ Triple::BYTES as usize }, F>(fabric, triple_of(shape, record))?;
                let first = if index == 0 { 0 } else { token };
                let token = check_triple(shape, home, RankId(source), first, row, &bytes)?.0 + 1;
                fabric.write(outputs::assist_info(row), &bytes)?;
                self.go(Phase::CopyOut { slot, index, row, token, part: Part::Data })
            }
            Part::Data => {
                fabric.deliver(outputs::expand_x(shape, row), record, shape.payload_bytes())?;
                self.go(match shape.quant_mode() {
                    QuantMode::None => next,
                    QuantMode::Dynamic => Phase::CopyOut { slot, index, row, token, part: Part::Scale },
                })
            }
            Part::Scale => {
                let bytes = copy_of::<4, F>(fabric, scale_of(shape, record))?;
                fabric.write(outputs::dynamic_scale(row), &bytes)?;
                self.go(next)
            }
        }
    }
}

/// The entry of the count table for a slot of the core's own share.
fn count_of<'u, V>(env: &Env<'_, V>, ub: &'u mut Ub<'_>, slot: u32) -> Result<&'u mut u32, ProtocolError> {
    let (_, table) = split_words(ub.words, &env.work.sends)?;
    table.get_mut((slot - env.work.slots.start) as usize).ok_or(internal("scratch is shorter than ub_words"))
}

/// The next record to copy out: `index` of `slot`, or the first one of a later slot that has any.
fn next_record<V>(
    env: &Env<'_, V>,
    ub: &mut Ub<'_>,
    mut slot: u32,
    mut index: u32,
) -> Result<(u32, u32), ProtocolError> {
    while slot < env.work.slots.end && index >= *count_of(env, ub, slot)? {
        slot += 1;
        index = 0;
    }
    Ok((slot, index))
}

/// The token of a received row, if such a row can be: from that source, for this rank, not before `first`.
fn check_triple(
    shape: &Shape,
    home: Home,
    source: RankId,
    first: u32,
    row: u32,
    bytes: &[u8],
) -> Result<Token, ProtocolError> {
    let triple = Triple::from_bytes(shape, bytes).map_err(|seen| ProtocolError::Triple { row, seen })?;
    if triple.source == source && triple.token.0 >= first && triple.may_be_on(shape, home.rank) {
        Ok(triple.token)
    } else {
        Err(ProtocolError::Triple { row, seen: triple.words() })
    }
}

/// A copy of `N` bytes of the window, so that they can be checked and then written.
fn copy_of<const N: usize, F: Fabric + ?Sized>(fabric: &F, at: Place) -> Result<[u8; N], ProtocolError> {
    fabric.bytes(at, N as u64)?.try_into().map_err(|_| internal("fabric returned another length"))
}
