//! A3 dispatch of one core: send, quiet, core barrier, publish, await, clear, sums, copy out.
//!
//! ```text
//! Select -> Send* -> Quiet -> Arrive -> Barrier -> Publish* -> ExpandIdx* -> Await*
//!        -> ArriveWithSums -> Sums -> (Counts+ -> TokenNums?)* -> CopyOut* -> Done
//! ```

mod receive;
mod send;

use super::{Env, Ub, internal};
use crate::fabric::{Fabric, Progress, ProtocolError, Wait};
use crate::inputs::Inputs;
use crate::layout::state::Partition;
use crate::place::Place;
use crate::plan::counts::ShareSum;
use crate::plan::route;
use crate::plan::split::DispatchShare;
use crate::sync::barrier;
use crate::units::Token;
use crate::vector::Vector;

/// Entries that one write of `expand_idx` or `ep_recv_counts` carries at most.
pub(crate) const CHUNK: u32 = 64;

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
    /// Copy record `index` of `slot` to `row` of the outputs. Tokens rise within a slot: the record's is at least
    /// `token`.
    CopyOut { slot: u32, index: u32, row: u32, token: u32, part: Part },
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

/// Writes words, at most [`CHUNK`], into an output.
pub(crate) fn write_words<F: Fabric + ?Sized>(
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
