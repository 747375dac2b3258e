//! Gates, in lockstep with those of Rust.

use super::{choices_of, shape_of};
use crate::codes::*;
use crate::gates::{veriep_gates_begin, veriep_gates_end, veriep_gates_new};
use crate::tests::model::Args;
use crate::tests::model::world::{Outcome, World, nothing, rust_choices};
use kernel_core::fabric::{Capabilities, Terms};
use kernel_core::protocol::{Gates, Operator};
use std::format;
use std::string::String;

pub(in crate::tests::model) fn gates_new(world: &mut World, args: &mut Args) -> Outcome {
    let (shape, of) = shape_of(world, args, "shape");
    let mut chosen = nothing();
    let choices = choices_of(world, args, &mut chosen);
    let out = args.pointer("out", &raw mut *world.gates);
    // SAFETY: as above.
    let said = unsafe { veriep_gates_new(out, shape, choices) };
    args.outcome(said, || {
        let choices = rust_choices(choices);
        if choices.check(&of, Terms::new(Capabilities::all())).is_err() {
            return (VERIEP_E_REFUSED, None);
        }
        world.of_gates = Some(Gates::new(&of, &choices));
        (VERIEP_OK, None)
    })
}

pub(in crate::tests::model) fn gates_begin(world: &mut World, args: &mut Args) -> Outcome {
    let text = args.text(world);
    let right = world.dice.below(2) as u32;
    let which = args.number("which", right, 2);
    let seat = &mut world.tickets[args.ticket];
    let ticket = args.pointer("ticket", &raw mut *seat.object);
    let gates = args.object("gates", &raw mut *world.gates, &raw const *world.blank);
    // SAFETY: as above.
    let said = unsafe { veriep_gates_begin(gates, which, ticket, text.0, text.1) };
    args.outcome(said, || {
        let operator = if which == VERIEP_DISPATCH { Operator::Dispatch } else { Operator::Combine };
        match world.of_gates.as_mut().unwrap().begin(operator, None) {
            Ok(begun) => {
                seat.twin = Some(begun);
                (VERIEP_OK, Some(String::new()))
            }
            Err(error) => (VERIEP_E_EARLY, Some(format!("{error}"))),
        }
    })
}

pub(in crate::tests::model) fn gates_end(world: &mut World, args: &mut Args) -> Outcome {
    let seat = &mut world.tickets[args.ticket];
    let ticket = args.object("ticket", &raw mut *seat.object, &raw const *world.blank);
    let gates = args.object("gates", &raw mut *world.gates, &raw const *world.blank);
    // SAFETY: as above.
    let said = unsafe { veriep_gates_end(gates, ticket) };
    args.outcome(said, || {
        world.of_gates.as_mut().unwrap().end(seat.twin.take().unwrap());
        (VERIEP_OK, None)
    })
}
