//! Operators in two halves: a call returns when everything is sent, and another one takes what has come. Other operators may run
//! between.
//!
//! What a half reads is kept with the batch: the caller's tensors are its own again after the first call.

use super::ending::Run;
use super::plan::Order;
use super::results::{Padded, Results};
use super::tokens::{self, Tokens};
use super::{GoesOn, Handle, IN_FLIGHT_MAX, Member, Slot};
use veriep_case::error::Error;
use veriep_core::inputs::Inputs;
use veriep_core::place::Tensor;
use veriep_core::protocol::{CombineInputs, Operator, Ticket};
use veriep_core::sim::cluster::Half;

/// An operator that has been sent, by which it is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The number of its batch.
    pub batch: usize,
    operator: Operator,
    slot: usize,
    member: u64,
}

/// An operator between its halves, and what it reads.
#[derive(Debug)]
pub(super) struct Open {
    operator: Operator,
    ticket: Ticket,
    /// A number of the tensors that all ranks give alike.
    common: u64,
    tensors: Tensors,
    /// What combine writes.
    x_out: Vec<u8>,
    /// Whether it has ended: it has only to be fetched.
    has_ended: bool,
}

/// Copies of tensors that are not kept with the batch's route.
#[derive(Debug, Default)]
struct Tensors {
    x: Vec<u8>,
    scales: Option<Vec<f32>>,
    y: Vec<u8>,
    padded: Padded,
    const_expert_alpha_1: Vec<u8>,
    const_expert_alpha_2: Vec<u8>,
    const_expert_v: Vec<u8>,
}

impl Tensors {
    fn of_combine(results: &Results<'_>, padded: Padded) -> Self {
        Self {
            y: results.y.to_vec(),
            padded,
            const_expert_alpha_1: results.const_expert_alpha_1.to_vec(),
            const_expert_alpha_2: results.const_expert_alpha_2.to_vec(),
            const_expert_v: results.const_expert_v.to_vec(),
            ..Self::default()
        }
    }

    fn results(&self) -> Results<'_> {
        Results {
            y: &self.y,
            expert_scales: None,
            shared_expert_x: None,
            const_expert_alpha_1: &self.const_expert_alpha_1,
            const_expert_alpha_2: &self.const_expert_alpha_2,
            const_expert_v: &self.const_expert_v,
        }
    }
}

impl Member {
    /// Sends tokens to their experts. What comes for those of this rank is taken by
    /// [`finish_dispatch`](Self::finish_dispatch).
    ///
    /// # Errors
    /// As of [`dispatch`](Self::dispatch); or the rank's own order does not let it begin: nothing has happened.
    pub fn send_dispatch(&mut self, tokens: &Tokens<'_>, goes_on: GoesOn<'_>) -> Result<Sent, Error> {
        let route = self.routed(tokens)?;
        self.has_halves()?;
        let (operator, slot, batch) = (Operator::Dispatch, self.free_slot()?, self.batches);
        let ticket = self.may_begin(operator, batch, None)?;
        let inputs = route.inputs(tokens);
        let tensors = Tensors {
            x: inputs.x.to_vec(),
            scales: inputs.scales.map(<[f32]>::to_vec),
            ..Tensors::default()
        };
        let common = route.common_of_dispatch(&inputs);
        let called = self.called(tokens);
        self.keep(slot, batch, called, &route);
        let open = Open { operator, ticket, common, tensors, x_out: Vec::new(), has_ended: false };
        self.run_half(slot, open, Half::Send, Some(goes_on))?;
        Ok(Sent { batch, operator, slot, member: self.number })
    }

    /// Takes the rows that a dispatch has brought.
    ///
    /// # Errors
    /// It is no dispatch of this member that has been sent and not received: nothing has happened. Or the group cannot go on,
    /// which is then so for good.
    pub fn finish_dispatch(&mut self, sent: Sent, goes_on: GoesOn<'_>) -> Result<Handle, Error> {
        self.may_be_finished(sent, Operator::Dispatch)?;
        self.poll_or_wait(sent, Some(goes_on))?;
        let Open { ticket, .. } = self.fetch(sent)?;
        self.has_taken(sent.slot, ticket)
    }

    /// Returns what experts made of the rows of a batch. What comes back is summed by
    /// [`finish_combine`](Self::finish_combine).
    ///
    /// # Errors
    /// As of [`combine`](Self::combine); or the rank's own order does not let it begin: nothing has happened.
    pub fn send_combine(
        &mut self,
        of: &Handle,
        results: &Results<'_>,
        goes_on: GoesOn<'_>,
    ) -> Result<Sent, Error> {
        let padded = self.padded(of, results)?;
        self.has_halves()?;
        let (operator, shape, slot) = (Operator::Combine, self.plan.shape_of(of.layer()), of.slot);
        let inputs = padded.inputs(&of.route.tensors, results);
        tokens::check(&mut |found| inputs.check_combine(shape, self.ep_rank(), found))?;
        let common = of.route.common_of_combine(&inputs);
        let ticket = self.may_begin(operator, of.batch, self.slots[slot].ticket)?;
        let tensors = Tensors::of_combine(results, padded);
        let x_out = vec![0; self.x_out_bytes(of.layer())];
        self.in_flight.pop_front();
        let open = Open { operator, ticket, common, tensors, x_out, has_ended: false };
        self.run_half(slot, open, Half::Send, Some(goes_on))?;
        Ok(Sent { batch: of.batch, operator, slot, member: self.number })
    }

    /// Sums for every token of a batch what has come back into `x_out`, of [`x_out_bytes`](Self::x_out_bytes).
    ///
    /// # Errors
    /// It is no combine of this member that has been sent and not summed, or `x_out` is of another size: nothing has happened.
    /// Or the group cannot go on, which is then so for good.
    pub fn finish_combine(&mut self, sent: Sent, x_out: &mut [u8], goes_on: GoesOn<'_>) -> Result<(), Error> {
        self.may_be_finished(sent, Operator::Combine)?;
        let rule = self.x_out_bytes(self.slots[sent.slot].route.layer);
        if x_out.len() != rule {
            return Err(Error::Request(format!("x_out: {} bytes: must be {rule}", x_out.len())));
        }
        self.poll_or_wait(sent, Some(goes_on))?;
        x_out.copy_from_slice(&self.fetch(sent)?.x_out);
        self.slots[sent.slot].returned.y.clear();
        Ok(())
    }

    /// Goes on with an operator that has been sent, without waiting. Whether it has ended, so that finishing it will not wait.
    /// With the first poll the receiving half begins: until it has ended, no other operator may. The deadline counts from the first poll
    /// in vain, and again from each that moves; finishing counts its own.
    ///
    /// # Errors
    /// It has been finished or is of another member: nothing has happened. Or the group cannot go on, which is then so for
    /// good.
    pub fn poll(&mut self, sent: Sent) -> Result<bool, Error> {
        self.may_be_finished(sent, sent.operator)?;
        self.poll_or_wait(sent, None)
    }

    /// Takes what is kept of an operator that has been sent.
    fn fetch(&mut self, sent: Sent) -> Result<Open, Error> {
        self.slots[sent.slot].sent.take().ok_or_else(|| Error::Wrong("a sent batch is missing".to_owned()))
    }

    /// Runs the receiving half, unless it has ended. Whether it has.
    fn poll_or_wait(&mut self, sent: Sent, goes_on: Option<GoesOn<'_>>) -> Result<bool, Error> {
        let mut open = self.fetch(sent)?;
        if !open.has_ended {
            let (ticket, slot) = (open.ticket, sent.slot);
            let has_ended = self.run_half(slot, open, Half::Receive, goes_on)?;
            // A poll that could not even be announced has begun nothing.
            self.receiving = (!has_ended && self.announced.is_some()).then_some(sent);
            if !has_ended {
                return Ok(false);
            }
            self.gates.end(ticket);
            open = self.fetch(sent)?;
            open.has_ended = true;
        }
        self.slots[sent.slot].sent = Some(open);
        Ok(true)
    }

    /// Runs a half on what is kept of it, and keeps that. Whether it has ended.
    fn run_half(
        &mut self,
        slot: usize,
        mut open: Open,
        half: Half,
        goes_on: Option<GoesOn<'_>>,
    ) -> Result<bool, Error> {
        let memory = self.memory.clone();
        let Slot { batch, called, ref route, .. } = self.slots[slot];
        let route = route.clone();
        let returned = core::mem::take(&mut self.slots[slot].returned);
        let Open { operator, common, ref tensors, ref mut x_out, .. } = open;
        let combine_inputs = match operator {
            Operator::Dispatch => CombineInputs::NONE,
            Operator::Combine => CombineInputs { y: &tensors.y, ..returned.combine_inputs() },
        };
        let ran = {
            let results = tensors.results();
            let inputs = match operator {
                Operator::Dispatch => {
                    let scales = tensors.scales.as_deref();
                    Inputs { x: &tensors.x, scales, ..route.tensors.inputs() }
                }
                Operator::Combine => tensors.padded.inputs(&route.tensors, &results),
            };
            let run = Run {
                operator,
                half,
                layer: route.layer,
                slot,
                batch,
                called,
                common,
                inputs: &Inputs { call: Some(called as u32), ..inputs },
                combine_inputs: &combine_inputs,
            };
            match operator {
                Operator::Dispatch => self.try_run(&*memory, &run, goes_on),
                Operator::Combine => self.try_run(&memory.with_output(Tensor::XOut, x_out), &run, goes_on),
            }
        };
        self.slots[slot].returned = returned;
        self.slots[slot].sent = Some(open);
        ran
    }

    /// Refuses halves where there are none.
    fn has_halves(&self) -> Result<(), Error> {
        if self.plan.order == Order::Loose {
            return Err(Error::Request("order = loose: operators have no halves: must be strict".to_owned()));
        }
        if self.shape().tp_world_size() > 1 {
            let seen = self.shape().tp_world_size();
            return Err(Error::Request(format!(
                "tp_world_size = {seen}: operators of a TP domain have no halves: must be dispatch and combine"
            )));
        }
        Ok(())
    }

    /// Refuses a dispatch while the one before has been sent and not received. The gates refuse it, too, but cannot name that batch.
    pub(super) fn has_received(&self) -> Result<(), Error> {
        let is_unreceived = |open: &Open| open.operator == Operator::Dispatch && !open.has_ended;
        match self.slots.iter().find(|slot| slot.sent.as_ref().is_some_and(is_unreceived)) {
            Some(Slot { batch, .. }) => Err(Error::Request(format!(
                "dispatch of batch {}: batch {batch} has been sent and not received: must be finished before",
                self.batches
            ))),
            None => Ok(()),
        }
    }

    /// Refuses a dispatch while the combine of the batch before the last has been sent and not summed. The new batch's combine writes
    /// where the results of that one are, so a dispatch must begin between them: this one would be too early for that, and the new
    /// batch could not end without one more.
    pub(super) fn has_summed(&self) -> Result<(), Error> {
        let is_due = |slot: &&Slot| {
            let is_unsummed = |open: &Open| open.operator == Operator::Combine && !open.has_ended;
            slot.batch + IN_FLIGHT_MAX <= self.batches && slot.sent.as_ref().is_some_and(is_unsummed)
        };
        match self.slots.iter().find(is_due) {
            Some(Slot { batch, .. }) => Err(Error::Request(format!(
                "dispatch of batch {}: combine of batch {batch} has been sent and not summed: must be finished before",
                self.batches
            ))),
            None => Ok(()),
        }
    }

    /// Refuses any operator while a half is being received.
    pub(super) fn is_between(&self) -> Result<(), Error> {
        match self.receiving {
            Some(Sent { batch, operator, .. }) => Err(Error::Request(format!(
                "{} of batch {batch} has been polled: must be finished before another operator",
                operator.name()
            ))),
            None => Ok(()),
        }
    }

    fn may_be_finished(&self, sent: Sent, operator: Operator) -> Result<(), Error> {
        self.is_open()?;
        let name = operator.name();
        let refused = |why: &str| Err(Error::Request(format!("{name} of batch {}: {why}", sent.batch)));
        if sent.member != self.number {
            return refused("is of another rank or group");
        }
        if self.receiving != Some(sent) {
            self.is_between()?;
        }
        let slot = &self.slots[sent.slot];
        match &slot.sent {
            Some(open) if slot.batch == sent.batch && open.operator == operator => Ok(()),
            _ => refused("has been finished already"),
        }
    }
}
