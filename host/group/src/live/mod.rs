//! One rank of a live group, for who has tensors of its own and calls operators one by one: engines, and Python.
//!
//! Members of a group are processes that have joined, or threads of one process. Each calls the same operators in the same
//! order, which is checked: a call that differs from that of another rank ends the group with both named. A call returns when
//! the operator has ended on its rank, or a half of it.

mod ending;
mod halves;
mod loose;
mod plan;
mod results;
mod tokens;

pub use halves::Sent;
pub use plan::{Order, Plan, Terms};
pub use results::Results;
pub use tokens::Tokens;

use plan::{number_of, number_of_floats};

use crate::backend::Backend;
use crate::backend::shared::SharedMemory;
use crate::driver::keep_combine_inputs;
use crate::driver::rank::Cores;
use crate::expert;
use crate::world::{ANY_TENSORS, Announced, Calls, PeerWatch, Phase, World};
use core::sync::atomic::{AtomicU64, Ordering};
use ending::{Run, Still};
use halves::Open;
use results::Padded;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::process;
use std::sync::Arc;
use veriep_case::case::{OwnedMask, RankTensors};
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_core::fabric::ProtocolError;
use veriep_core::inputs::Inputs;
use veriep_core::layout::outputs::{capacity, ep_recv_counts_bytes};
use veriep_core::place::Tensor;
use veriep_core::protocol::{self, CombineInputs, Gates, Ticket};
use veriep_core::shape::Shape;
use veriep_core::sim::cluster::{Half, Returned};
use veriep_core::units::{CoreId, ExpertId, RankId};

/// Batches in flight that two partitions of each kind are proved to bear.
pub const IN_FLIGHT_MAX: usize = 2;

/// A member of a live group.
#[derive(Debug)]
pub struct Member {
    plan: Arc<Plan>,
    rank: RankId,
    /// Not like that of any other member in this process.
    number: u64,
    world: Arc<World>,
    calls: Calls,
    memory: Arc<SharedMemory>,
    /// Watches the other processes, unless all ranks are of this one.
    watch: Option<PeerWatch>,
    /// By layer.
    cores: Vec<Cores>,
    slots: [Slot; IN_FLIGHT_MAX],
    /// Slots dispatched and not combined, the oldest first.
    in_flight: VecDeque<usize>,
    /// What this rank's own order lets it begin.
    gates: Gates,
    /// The half that is being received: it has begun and not ended; and its call.
    receiving: Option<Sent>,
    announced: Option<Announced>,
    /// Since when polls of that half have been in vain.
    still: Option<Still>,
    batches: usize,
    /// Operators and halves that it has ended.
    operators: u64,
    /// Why it takes part no more.
    ended: Option<Error>,
    /// The process that it is of.
    pid: u32,
}

/// What is kept of a batch until its combine.
#[derive(Debug, Default)]
struct Slot {
    batch: usize,
    /// The number by which ranks compare it.
    called: usize,
    /// Rows that the rank has received.
    rows: usize,
    route: Arc<Route>,
    returned: Returned,
    /// Of its dispatch, for its combine.
    ticket: Option<Ticket>,
    /// The operator that has been sent, and not received.
    sent: Option<Open>,
}

/// Which tokens of a batch go where.
#[derive(Debug, Default)]
struct Route {
    layer: usize,
    /// Of the member's tokens, padded to `bs`.
    tensors: RankTensors,
    /// How many tokens the caller gave.
    tokens: usize,
    has_weights: bool,
}

/// A batch between its dispatch and its combine.
#[derive(Clone, Debug)]
pub struct Handle {
    /// The number of its dispatch.
    pub batch: usize,
    /// Rows that the rank has received.
    pub rows: usize,
    slot: usize,
    /// The number by which ranks compare it.
    called: usize,
    /// Whose it is.
    member: u64,
    route: Arc<Route>,
}

impl Route {
    /// The tensors of these tokens as machines read them.
    fn inputs<'t>(&'t self, tokens: &Tokens<'t>) -> Inputs<'t> {
        let x = if self.tensors.x.is_empty() { tokens.x } else { &self.tensors.x };
        Inputs { x, scales: tokens.scales, ..self.tensors.inputs() }
    }

    /// A number of the tensors of dispatch that all ranks give alike.
    fn common_of_dispatch(&self, inputs: &Inputs<'_>) -> u64 {
        if self.tokens == 0 { ANY_TENSORS } else { inputs.scales.map_or(0, number_of_floats) }
    }

    /// The same of combine.
    fn common_of_combine(&self, inputs: &Inputs<'_>) -> u64 {
        let consts = [inputs.const_expert_alpha_1, inputs.const_expert_alpha_2, inputs.const_expert_v];
        match self.tokens {
            0 => ANY_TENSORS,
            _ => number_of(&(consts, inputs.shared_expert_x.is_some())),
        }
    }
}

impl Handle {
    /// The layer that it went through.
    #[must_use]
    pub fn layer(&self) -> usize {
        self.route.layer
    }
}

/// Asks a caller that waits, now and then, whether it still wants to.
pub type GoesOn<'a> = &'a mut dyn FnMut() -> bool;

/// What a member sees of the others.
struct View {
    world: Arc<World>,
    watch: Option<PeerWatch>,
    calls: Calls,
}

impl Member {
    fn new(plan: Arc<Plan>, rank: RankId, memory: Arc<SharedMemory>, view: View) -> Self {
        static MEMBERS: AtomicU64 = AtomicU64::new(0);
        let cores = plan.layers.iter().map(|layer| Cores::of(&layer.shape)).collect();
        let View { world, watch, calls } = view;
        let gates = Gates::new(plan.shape(), &plan.options.choices);
        Self {
            plan,
            rank,
            number: MEMBERS.fetch_add(1, Ordering::Relaxed),
            world,
            calls,
            memory,
            watch,
            cores,
            slots: Default::default(),
            in_flight: VecDeque::new(),
            gates,
            receiving: None,
            announced: None,
            still: None,
            batches: 0,
            operators: 0,
            ended: None,
            pid: process::id(),
        }
    }

    /// The valid configuration of the first layer.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.plan.shape()
    }

    /// The valid configuration of a layer, if there is one of that number.
    #[must_use]
    pub fn shape_of(&self, layer: usize) -> Option<&Shape> {
        self.plan.layers.get(layer).map(|layer| &layer.shape)
    }

    /// The calls that it compares with those of the other ranks, for groups beside it.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.calls.clone()
    }

    /// The MoE experts that it holds; none where it holds a shared one.
    pub fn experts(&self) -> impl Iterator<Item = ExpertId> {
        let (shape, own) = (self.shape(), self.ep_rank());
        (0..shape.moe_expert_num()).map(ExpertId).filter(move |&expert| shape.moe_home(expert).rank == own)
    }

    /// Its rank.
    #[must_use]
    pub const fn rank(&self) -> RankId {
        self.rank
    }

    /// The EP rank that it is of.
    fn ep_rank(&self) -> RankId {
        global_rank::ep_rank(self.shape(), self.rank)
    }

    /// Bytes of what combine puts out in a layer.
    #[must_use]
    pub fn x_out_bytes(&self, layer: usize) -> usize {
        self.shape_of(layer).map_or(0, |shape| capacity(shape, self.ep_rank(), Tensor::XOut) as usize)
    }

    /// The address of an output of a batch and the bytes of it that hold something: from the batch's dispatch until its
    /// combine begins no other code writes them. In a loose order that lasts until the next call.
    #[must_use]
    pub fn output(&self, of: &Handle, tensor: Tensor) -> (*mut u8, usize) {
        let (shape, ep_rank) = (self.plan.shape_of(of.layer()), self.ep_rank());
        let all = capacity(shape, ep_rank, tensor);
        let rows_max = shape.rows_max(ep_rank) * u64::from(shape.tp_world_size());
        let len = match tensor {
            Tensor::EpRecvCounts => ep_recv_counts_bytes(shape, ep_rank),
            _ if tensor.is_of_received_rows() => all.checked_div(rows_max).unwrap_or(0) * of.rows as u64,
            _ => all,
        };
        let batch = outputs_of(of.layer(), of.slot);
        (self.memory.output(self.rank, batch, tensor).base(), len as usize)
    }

    /// Sends tokens to their experts, and takes the rows of those that are here.
    ///
    /// # Errors
    /// The tokens break a rule, or too many batches are in flight: nothing has happened. Or the group cannot go on, which is
    /// then so for good.
    pub fn dispatch(&mut self, tokens: &Tokens<'_>, goes_on: GoesOn<'_>) -> Result<Handle, Error> {
        let route = self.routed(tokens)?;
        while self.in_flight.len() >= self.plan.in_flight_max {
            self.give_back_oldest(goes_on)?;
        }
        let called = self.called(tokens);
        self.send(&route, &route.inputs(tokens), called, goes_on)
    }

    /// The route of tokens that may be dispatched now, and keep all rules.
    fn routed(&self, tokens: &Tokens<'_>) -> Result<Arc<Route>, Error> {
        self.is_open()?;
        self.is_between()?;
        let plan = &self.plan;
        let Some(layer) = plan.layers.get(tokens.layer) else {
            let (seen, rule) = (tokens.layer, plan.layers.len());
            return Err(Error::Request(format!("layer = {seen}: must be in [0, {rule})")));
        };
        let is_full = self.taken().count() >= plan.in_flight_max;
        if is_full && plan.order == Order::Strict {
            return Err(too_many(plan.in_flight_max));
        }
        self.has_received()?;
        self.has_summed()?;
        let route = Arc::new(Route {
            layer: tokens.layer,
            tokens: tokens.expert_ids.len() / layer.shape.k() as usize,
            has_weights: !tokens.expert_scales.is_empty(),
            tensors: tokens.padded(
                &layer.config,
                &layer.shape,
                self.ep_rank(),
                plan.limits,
                plan.expert_map.as_ref(),
            )?,
        });
        let inputs = route.inputs(tokens);
        tokens::check(&mut |found| inputs.check_dispatch(&layer.shape, self.ep_rank(), found))?;
        // They are kept for combine, which could refuse them only after all ranks have dispatched.
        tokens::check_weights(&route.tensors, layer.shape.k())?;
        Ok(route)
    }

    /// The number by which ranks compare a batch of these tokens.
    fn called(&self, tokens: &Tokens<'_>) -> usize {
        tokens.call.map_or(self.batches, |call| call as usize)
    }

    /// The slots that hold a batch.
    fn taken(&self) -> impl Iterator<Item = usize> {
        (0..IN_FLIGHT_MAX).filter(|slot| self.in_flight.contains(slot) || self.slots[*slot].sent.is_some())
    }

    fn free_slot(&self) -> Result<usize, Error> {
        let free = (0..IN_FLIGHT_MAX).find(|slot| self.taken().all(|taken| taken != *slot));
        free.ok_or_else(|| too_many(IN_FLIGHT_MAX))
    }

    /// Asks the gates for an operator.
    fn may_begin(
        &mut self,
        operator: protocol::Operator,
        batch: usize,
        of: Option<Ticket>,
    ) -> Result<Ticket, Error> {
        let refused =
            |error: ProtocolError| Error::Request(format!("{} of batch {batch}: {error}", operator.name()));
        self.gates.begin(operator, of).map_err(refused)
    }

    /// Runs the dispatch of a batch for which there is room. Others compare the number by which it is `called`: of a batch that
    /// is sent once more that of its first dispatch.
    fn send(
        &mut self,
        route: &Arc<Route>,
        inputs: &Inputs<'_>,
        called: usize,
        goes_on: GoesOn<'_>,
    ) -> Result<Handle, Error> {
        let slot = self.free_slot()?;
        let ticket = self.may_begin(protocol::Operator::Dispatch, self.batches, None)?;
        let batch = self.batches;
        let run = Run {
            operator: protocol::Operator::Dispatch,
            half: Half::Whole,
            layer: route.layer,
            slot,
            batch,
            called,
            common: route.common_of_dispatch(inputs),
            inputs: &Inputs { call: Some(called as u32), ..*inputs },
            combine_inputs: &CombineInputs::NONE,
        };
        self.run(&*self.memory.clone(), &run, goes_on)?;
        self.gates.end(ticket);
        self.keep(slot, batch, called, route);
        self.has_taken(slot, ticket)
    }

    /// A batch is in flight from now on.
    fn keep(&mut self, slot: usize, batch: usize, called: usize, route: &Arc<Route>) {
        let kept = &mut self.slots[slot];
        (kept.batch, kept.called, kept.rows, kept.route) = (batch, called, 0, route.clone());
        self.in_flight.push_back(slot);
        self.batches += 1;
    }

    /// The dispatch of a batch has ended: reads how many rows have come.
    fn has_taken(&mut self, slot: usize, ticket: Ticket) -> Result<Handle, Error> {
        let (plan, memory) = (self.plan.clone(), self.memory.clone());
        let Slot { batch, called, ref route, .. } = self.slots[slot];
        let (route, layer, ep_rank) = (route.clone(), route.layer, self.ep_rank());
        let shape = plan.shape_of(layer);
        let outputs = outputs_of(layer, slot);
        let fabric = memory.fabric(self.rank, CoreId(0), outputs);
        let read = expert::reading(&*memory, &fabric, self.rank, outputs);
        let rows = match expert::expert_ends(shape, ep_rank, &read) {
            Ok(ends) => ends.last().copied().unwrap_or(0),
            Err(error) => return Err(self.fails(Error::Wrong(error.to_string()), Phase::Ended)),
        };
        let kept = &mut self.slots[slot];
        keep_combine_inputs(shape, &*memory, (self.rank, outputs), rows as u64, &mut kept.returned);
        (kept.rows, kept.ticket) = (rows, Some(ticket));
        Ok(Handle { batch, rows, slot, called, member: self.number, route })
    }

    /// Returns what experts made of the rows of a batch and sums for every token of that batch what comes back into `x_out`,
    /// of [`x_out_bytes`](Self::x_out_bytes). In strict order the batch must be the oldest.
    ///
    /// # Errors
    /// It is not the oldest batch, or a tensor breaks a rule: nothing has happened. Or the group cannot go on, which is then so
    /// for good.
    pub fn combine(
        &mut self,
        of: &Handle,
        results: &Results<'_>,
        x_out: &mut [u8],
        goes_on: GoesOn<'_>,
    ) -> Result<(), Error> {
        let padded = self.padded(of, results)?;
        let shape = self.plan.shape_of(of.layer());
        let rule = self.x_out_bytes(of.layer());
        if x_out.len() != rule {
            return Err(Error::Request(format!("x_out: {} bytes: must be {rule}", x_out.len())));
        }
        let inputs = padded.inputs(&of.route.tensors, results);
        tokens::check(&mut |found| inputs.check_combine(shape, self.ep_rank(), found))?;
        if of.route.tensors.mask == OwnedMask::Abstains {
            x_out.fill(0);
        }
        let y = match self.plan.order {
            Order::Strict => Cow::Borrowed(results.y),
            // Operators that make it the oldest write where the rows of a batch lie.
            Order::Loose => Cow::Owned(results.y.to_vec()),
        };
        let slot = self.make_oldest(of, goes_on)?;
        self.give_back(slot, &inputs, &y, x_out, goes_on)
    }

    /// The tensors of a batch that may be combined now, with inactive tokens after those of the caller.
    fn padded(&self, of: &Handle, results: &Results<'_>) -> Result<Padded, Error> {
        self.is_open()?;
        self.is_between()?;
        self.may_be_combined(of)?;
        let shape = self.plan.shape_of(of.layer());
        let row = shape.row_bytes() as usize;
        let y = results.y;
        if y.len() != of.rows * row {
            let (seen, rest, rule) = (y.len() / row, y.len() % row, of.rows);
            let line = format!("y: {seen} rows and {rest} bytes: must be {rule} rows of {row} bytes");
            return Err(Error::Request(line));
        }
        results.padded(shape, self.ep_rank(), &of.route)
    }

    /// Whether a batch may be combined now: in strict order the oldest alone.
    fn may_be_combined(&self, of: &Handle) -> Result<(), Error> {
        let batch = of.batch;
        let refused = |why: String| Err(Error::Request(format!("handle of batch {batch}: {why}")));
        if of.member != self.number {
            return refused("is of another rank or group".to_owned());
        }
        if self.plan.order == Order::Loose {
            return Ok(());
        }
        match self.in_flight.front().map(|&oldest| self.slots[oldest].batch) {
            Some(oldest) if oldest == batch => Ok(()),
            Some(oldest) if batch > oldest && batch < self.batches => {
                refused(format!("must be of batch {oldest}: combines come in the order of dispatches"))
            }
            _ => refused("has been combined already".to_owned()),
        }
    }

    /// Runs the combine of the oldest batch in flight.
    fn give_back(
        &mut self,
        slot: usize,
        inputs: &Inputs<'_>,
        y: &[u8],
        x_out: &mut [u8],
        goes_on: GoesOn<'_>,
    ) -> Result<(), Error> {
        let Slot { batch, called, ref route, ticket, .. } = self.slots[slot];
        let (layer, common) = (route.layer, route.common_of_combine(inputs));
        let ticket = self.may_begin(protocol::Operator::Combine, batch, ticket)?;
        let mut returned = core::mem::take(&mut self.slots[slot].returned);
        let combine_inputs = CombineInputs { y, ..returned.combine_inputs() };
        let memory = self.memory.clone();
        let memory = memory.with_output(Tensor::XOut, x_out);
        let run = Run {
            operator: protocol::Operator::Combine,
            half: Half::Whole,
            layer,
            slot,
            batch,
            called,
            common,
            inputs: &Inputs { call: Some(called as u32), ..*inputs },
            combine_inputs: &combine_inputs,
        };
        let ran = self.run(&memory, &run, goes_on);
        // Kept for its room.
        returned.y.clear();
        self.slots[slot].returned = returned;
        self.in_flight.pop_front();
        self.gates.end(ticket);
        ran
    }

    fn is_open(&self) -> Result<(), Error> {
        if process::id() != self.pid {
            let pid = self.pid;
            return Err(Error::Request(format!(
                "this member is of process {pid}: a copy made by fork must join a group of its own"
            )));
        }
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Leaves the group. Others go on as far as they do not need it.
    pub fn close(&mut self) {
        if self.ended.is_none() && process::id() == self.pid {
            self.world.enter(Phase::Ended);
            self.world.notify();
            self.ended = Some(Error::Request("the group has been closed".to_owned()));
        }
        self.watch = None;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.close();
    }
}

/// The number of a batch's outputs in memory.
const fn outputs_of(layer: usize, slot: usize) -> usize {
    layer * IN_FLIGHT_MAX + slot
}

fn too_many(in_flight_max: usize) -> Error {
    let (number, next) = if in_flight_max == 1 { ("1 batch", "second") } else { ("2 batches", "third") };
    let why = match in_flight_max {
        1 => "these layers differ in size: veriep check A.toml B.toml",
        _ => "veriep schedule DDDCCC",
    };
    Error::Request(format!(
        "{number} in flight: a {next} must not be dispatched before the oldest is combined, or a fast rank overwrites what a \
         slow one still reads: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use veriep_case::presets::preset;

    /// A copy of a process by fork has members of its parent, whose number differs from that of the copy.
    #[test]
    fn a_copy_of_a_process_does_not_close_the_members_of_its_parent() {
        let (config, _) = preset("tiny").unwrap();
        let mut members = Plan::new(config, Terms::default()).unwrap().local(&[]).unwrap();
        let world = members[1].world.clone();
        let phases = || [0, 1].map(|process| world.phase_of(process));
        members[0].pid += 1;
        members[0].close();
        members.remove(0);
        assert_eq!(phases()[0], Phase::Starts, "closed by a copy");
        members.remove(0);
        assert_eq!(phases(), [Phase::Starts, Phase::Ended]);
    }
}
