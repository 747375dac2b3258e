//! A3 dispatch of one core: send, quiet, core barrier, publish, await, clear, sums, copy out.
//!
//! ```text
//! Select -> Send* -> Quiet -> Arrive -> Barrier -> Publish* -> ExpandIdx* -> Await*
//!        -> ArriveWithSums -> Sums -> (Counts+ -> TokenNums?)* -> CopyOut* -> Done
//! ```

use super::{Env, Ub, internal};
use crate::fabric::{Fabric, Progress, ProtocolError, Wait};
use crate::inputs::Inputs;
use crate::layout::data::dispatch_record;
use crate::layout::outputs;
use crate::layout::record::{Tail, Triple, scale_of, triple_of};
use crate::layout::state::{Kind, Partition, dispatch_slot, dispatch_status};
use crate::place::Place;
use crate::placement::Home;
use crate::plan::counts::{self, ShareSum, expert_of_slot};
use crate::plan::route::{self, Send, Sends};
use crate::plan::split::DispatchShare;
use crate::shape::{CORES_MAX, QuantMode, Shape, TokenNums};
use crate::sync::{barrier, flag, selector};
use crate::units::{CoreId, RankId, Token, div_rem};
use crate::vector::Vector;

/// Entries that one write of `expand_idx` or `ep_recv_counts` carries at most.
const CHUNK: u32 = 64;

/// The dispatch of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dispatch {
    partition: Partition,
    /// Barrier passed last.
    epoch: u32,
    sum: ShareSum,
    /// The token whose quantised row is in the scratch, and the bits of its scale.
    staged: Option<(Token, u32)>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Take the partition, plan the sends.
    Select,
    /// Put the record of the next pair of this core's share.
    Send { next: u32 },
    /// Everything that this core sent has landed, clears of the operator before included.
    Quiet,
    /// Tell the other cores so.
    Arrive,
    /// All cores are quiet.
    Barrier,
    /// Publish flag and count of the next destination of this core's share.
    Publish { destination: u32 },
    /// Write this core's share of `expand_idx`.
    ExpandIdx { pair: u32 },
    /// Await and clear the status word of the next slot of this core's share.
    Await { slot: u32 },
    /// Tell the other cores the sum of the share's counts.
    ArriveWithSums,
    /// All cores have told their sums.
    Sums,
    /// Write `ep_recv_counts` from `slot` on; `rows` of all experts, `of_expert` of this one come before it.
    Counts { slot: u32, rows: u32, of_expert: u32, first_row: u32 },
    /// Write the entry of the expert that ends before `slot`.
    TokenNums { slot: u32, rows: u32, of_expert: u32, first_row: u32 },
    /// Copy record `index` of `slot` to `row` of the outputs.
    CopyOut { slot: u32, index: u32, row: u32, part: Part },
    /// The operator has ended.
    Done,
}

/// The parts of a record, in the order of copying out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Triple,
    Data,
    Scale,
}

impl Dispatch {
    /// A core's next dispatch.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            partition: Partition::P0,
            epoch: 0,
            sum: ShareSum { rows: 0, of_last_expert: 0 },
            staged: None,
            phase: Phase::Select,
        }
    }

    /// Goes on with the operator: at most one effect that others can see.
    ///
    /// # Errors
    /// A value read from the fabric contradicts the shape, the fabric refuses, or a token cannot be quantised.
    pub fn step<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        ub: &mut Ub<'_>,
    ) -> Result<Progress, ProtocolError> {
        match self.phase {
            Phase::Select => self.select(env, fabric, inputs, ub),
            Phase::Send { next } => self.send(env, fabric, inputs, ub, next),
            Phase::Quiet => self.quiet(env, fabric),
            Phase::Arrive => self.arrive(env, fabric, ShareSum::default(), Phase::Barrier),
            Phase::Barrier => self.barrier(env, fabric),
            Phase::Publish { destination } => self.publish(env, fabric, ub, destination),
            Phase::ExpandIdx { pair } => self.expand_idx(env, fabric, ub, pair),
            Phase::Await { slot } => self.await_slot(env, fabric, ub, slot),
            Phase::ArriveWithSums => self.arrive(env, fabric, self.sum, Phase::Sums),
            Phase::Sums => self.sums(env, fabric),
            Phase::Counts { .. } => self.counts(env, fabric, ub),
            Phase::TokenNums { .. } => self.token_nums(env, fabric),
            Phase::CopyOut { .. } => self.copy_out(env, fabric, ub),
            Phase::Done => Ok(Progress::Done),
        }
    }

    fn go(&mut self, phase: Phase) -> Result<Progress, ProtocolError> {
        self.phase = phase;
        Ok(Progress::Stepped)
    }

    fn select<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        ub: &mut Ub<'_>,
    ) -> Result<Progress, ProtocolError> {
        self.epoch = barrier::current_epoch(fabric, env.core)?;
        let share = &env.work.sends;
        let (slots, table) = split_words(ub.words, share)?;
        let send_status = table
            .get_mut(..route::destinations(env.shape) as usize)
            .ok_or(internal("scratch is shorter than ub_words"))?;
        route::walk(env.shape, env.rank, inputs, share, send_status, slots);
        self.partition = selector::select(fabric, Kind::Dispatch, env.core)?;
        self.go(Phase::Send { next: 0 })
    }

    fn send<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        ub: &mut Ub<'_>,
        next: u32,
    ) -> Result<Progress, ProtocolError> {
        let share = &env.work.sends;
        let (slots, _) = split_words(ub.words, share)?;
        let sends = Sends { shape: env.shape, rank: env.rank, order: env.order, share, slots };
        let sent = (next..sends.len()).find_map(|item| Some((item, sends.get(inputs, item)?)));
        match sent {
            Some((item, send)) => {
                self.put(env, fabric, inputs, ub.row, send)?;
                self.go(Phase::Send { next: item + 1 })
            }
            None => self.go(Phase::Quiet),
        }
    }

    fn put<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        scratch: &mut [u8],
        Send { pair, home, slot }: Send,
    ) -> Result<(), ProtocolError> {
        let (shape, token) = (env.shape, pair.token);
        let x = inputs.row(shape, token);
        if x.is_empty() {
            return Err(internal("x is shorter than its rows"));
        }
        let triple = Triple { source: env.rank, token, k: pair.k };
        let at = dispatch_record(shape, self.partition, home, env.rank, slot);
        if shape.quant_mode() == QuantMode::None {
            fabric.put(home.rank, at, x, Tail::new(shape, 0.0, triple).as_bytes())?;
            return Ok(());
        }
        let row = scratch
            .get_mut(..shape.payload_bytes() as usize)
            .ok_or(internal("scratch is shorter than ub_bytes"))?;
        let smooth = inputs.smooth(shape, shape.expert_row(home));
        // Without smooth scales a token is the same for all its experts: quantise it once.
        let scale = match self.staged {
            Some((staged, bits)) if staged == token && smooth.is_none() => f32::from_bits(bits),
            _ => env
                .vector
                .quantise(shape.dtype(), x, smooth, row)
                .map_err(|_| ProtocolError::NotFinite { token: token.0 })?,
        };
        self.staged = Some((token, scale.to_bits()));
        fabric.put(home.rank, at, row, Tail::new(shape, scale, triple).as_bytes())?;
        Ok(())
    }

    fn quiet<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
    ) -> Result<Progress, ProtocolError> {
        if !fabric.quiet()? {
            return Ok(Progress::Pending(Wait::Quiet));
        }
        self.go(if env.shape.aiv_num() == 1 { self.first_publish(env) } else { Phase::Arrive })
    }

    fn arrive<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        sum: ShareSum,
        then: Phase,
    ) -> Result<Progress, ProtocolError> {
        self.epoch = barrier::next_epoch(self.epoch);
        barrier::arrive(fabric, env.rank, env.core, self.epoch, sum)?;
        self.go(then)
    }

    fn barrier<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
    ) -> Result<Progress, ProtocolError> {
        match barrier::missing(fabric, env.shape.aiv_num(), env.core, self.epoch)? {
            Some(core) => Ok(Progress::Pending(Wait::Core(core))),
            None => self.go(self.first_publish(env)),
        }
    }

    fn first_publish<V>(&self, env: &Env<'_, V>) -> Phase {
        Phase::Publish { destination: env.work.destinations.start }
    }

    fn publish<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        destination: u32,
    ) -> Result<Progress, ProtocolError> {
        let share = &env.work.sends;
        if destination >= env.work.destinations.end {
            return self.go(Phase::ExpandIdx { pair: share.moe.start });
        }
        let (_, send_status) = split_words(ub.words, share)?;
        let count = *send_status.get(destination as usize).ok_or(internal("no such destination"))?;
        let home = route::destination_home(env.shape, destination);
        let slot = dispatch_slot(env.shape, home.local_expert, env.rank);
        fabric.publish(home.rank, dispatch_status(self.partition, slot), flag::status(count))?;
        self.go(Phase::Publish { destination: destination + 1 })
    }

    fn expand_idx<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        pair: u32,
    ) -> Result<Progress, ProtocolError> {
        let share = &env.work.sends;
        if pair >= share.moe.end {
            return self.go(Phase::Await { slot: env.work.slots.start });
        }
        let end = share.moe.end.min(pair + CHUNK);
        let (slots, _) = split_words(ub.words, share)?;
        let own = (pair - share.moe.start) as usize..(end - share.moe.start) as usize;
        let slots = slots.get(own).ok_or(internal("own pair outside the share"))?;
        // NO_SLOT is the bit pattern of -1.
        write_words(fabric, outputs::expand_idx(pair), slots.iter().copied())?;
        self.go(Phase::ExpandIdx { pair: end })
    }

    fn await_slot<F: Fabric + ?Sized, V: Vector>(
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
        let max = shape.bs(source);
        if count > max {
            return Err(ProtocolError::Count { source, local_expert, seen: count, max });
        }
        *count_of(env, ub, slot)? = count;
        self.sum = self.sum.with(shape, slot, own.end, count);
        fabric.store(at, 0)?;
        self.go(Phase::Await { slot: slot + 1 })
    }

    fn sums<F: Fabric + ?Sized, V: Vector>(
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

    fn counts<F: Fabric + ?Sized, V: Vector>(
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
            return self.go(Phase::CopyOut { slot: own.start, index: 0, row: first_row, part });
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

    fn token_nums<F: Fabric + ?Sized, V: Vector>(
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

    fn copy_out<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
    ) -> Result<Progress, ProtocolError> {
        let Phase::CopyOut { slot, index, row, part } = self.phase else {
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
        match part {
            Part::Triple => {
                let bytes = copy_of::<{ Triple::BYTES as usize }, F>(fabric, triple_of(shape, record))?;
                check_triple(shape, home, RankId(source), row, &bytes)?;
                fabric.write(outputs::assist_info(row), &bytes)?;
                self.go(Phase::CopyOut { slot, index, row, part: Part::Data })
            }
            Part::Data => {
                fabric.deliver(outputs::expand_x(shape, row), record, shape.payload_bytes())?;
                self.go(match shape.quant_mode() {
                    QuantMode::None => {
                        Phase::CopyOut { slot, index: index + 1, row: row + 1, part: Part::Triple }
                    }
                    QuantMode::Dynamic => Phase::CopyOut { slot, index, row, part: Part::Scale },
                })
            }
            Part::Scale => {
                let bytes = copy_of::<4, F>(fabric, scale_of(shape, record))?;
                fabric.write(outputs::dynamic_scale(row), &bytes)?;
                self.go(Phase::CopyOut { slot, index: index + 1, row: row + 1, part: Part::Triple })
            }
        }
    }
}

impl Default for Dispatch {
    fn default() -> Self {
        Self::new()
    }
}

/// The scratch words: slots of the share, then the table of counts.
fn split_words<'u>(
    words: &'u mut [u32],
    share: &DispatchShare,
) -> Result<(&'u mut [u32], &'u mut [u32]), ProtocolError> {
    words
        .split_at_mut_checked(route::share_len(share) as usize)
        .ok_or(internal("scratch is shorter than ub_words"))
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

fn check_triple(
    shape: &Shape,
    home: Home,
    source: RankId,
    row: u32,
    bytes: &[u8],
) -> Result<(), ProtocolError> {
    let triple = Triple::from_bytes(shape, bytes).map_err(|seen| ProtocolError::Triple { row, seen })?;
    let k_fits = match shape.shared_expert_of(home.rank) {
        Some(j) => triple.k == shape.k() + j,
        None => triple.k < shape.k(),
    };
    if triple.source == source && k_fits {
        Ok(())
    } else {
        let seen = [triple.source.0 as i32, triple.token.0 as i32, triple.k as i32];
        Err(ProtocolError::Triple { row, seen })
    }
}

/// A copy of `N` bytes of the window, so that they can be checked and then written.
fn copy_of<const N: usize, F: Fabric + ?Sized>(fabric: &F, at: Place) -> Result<[u8; N], ProtocolError> {
    fabric.bytes(at, N as u64)?.try_into().map_err(|_| internal("fabric returned another length"))
}

fn write_words<F: Fabric + ?Sized>(
    fabric: &mut F,
    at: Place,
    words: impl Iterator<Item = u32>,
) -> Result<(), ProtocolError> {
    let mut bytes = [0; CHUNK as usize * 4];
    let mut len = 0;
    for (out, word) in bytes.chunks_exact_mut(4).zip(words) {
        out.copy_from_slice(&word.to_le_bytes());
        len += 4;
    }
    fabric.write(at, bytes.get(..len).unwrap_or(&[]))?;
    Ok(())
}

static_assertions::const_assert!(size_of::<Dispatch>() <= 512);
