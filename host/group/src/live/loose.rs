//! A loose order, emulated: operators that the caller does not see make room for a batch, and bring one back.

use super::{GoesOn, Handle, Member, Results, Slot};
use crate::world::Phase;
use veriep_case::error::Error;
use veriep_core::inputs::Inputs;

impl Member {
    /// Emulates a loose order until a batch is the oldest in flight. Its slot.
    pub(super) fn make_oldest(&mut self, of: &Handle, goes_on: GoesOn<'_>) -> Result<usize, Error> {
        let is_it = |slot: &Slot| slot.batch == of.batch;
        let batch = match self.in_flight.iter().any(|&slot| is_it(&self.slots[slot])) {
            true => of.batch,
            false => self.send_again(of, goes_on)?,
        };
        loop {
            match self.in_flight.front() {
                Some(&slot) if self.slots[slot].batch == batch => return Ok(slot),
                Some(_) => self.give_back_oldest(goes_on)?,
                None => return Err(Error::Wrong("a batch in flight is missing".to_owned())),
            }
        }
    }

    /// Dispatches a batch once more, with zeros, for its rows to have a way back. The number of that dispatch.
    fn send_again(&mut self, of: &Handle, goes_on: GoesOn<'_>) -> Result<usize, Error> {
        while self.in_flight.len() >= self.plan.in_flight_max {
            self.give_back_oldest(goes_on)?;
        }
        let shape = self.plan.shape_of(of.layer());
        let x = vec![0; shape.bs(self.ep_rank()) as usize * shape.row_bytes() as usize];
        let inputs = Inputs { x: &x, ..of.route.tensors.inputs() };
        let again = self.send(&of.route, &inputs, of.called, goes_on)?;
        if again.rows == of.rows {
            return Ok(again.batch);
        }
        let (batch, rows, seen) = (of.batch, of.rows, again.rows);
        let line = format!(
            "batch {batch} combined again: {seen} rows, and {rows} before: other ranks combine another"
        );
        Err(self.fails(Error::Wrong(line), Phase::GivenUp))
    }

    /// Combines the oldest batch in flight with zeros: the caller does not want its results.
    pub(super) fn give_back_oldest(&mut self, goes_on: GoesOn<'_>) -> Result<(), Error> {
        let Some(&slot) = self.in_flight.front() else { return Ok(()) };
        let plan = self.plan.clone();
        let (route, rows) = (self.slots[slot].route.clone(), self.slots[slot].rows);
        let shape = plan.shape_of(route.layer);
        let y = vec![0; rows * shape.row_bytes() as usize];
        let (nothing, zeros) = (Results::default(), Results::zeros(shape, &route));
        let mut x_out = vec![0; self.x_out_bytes(route.layer)];
        self.give_back(slot, &zeros.inputs(&route.tensors, &nothing), &y, &mut x_out, goes_on)
    }
}
