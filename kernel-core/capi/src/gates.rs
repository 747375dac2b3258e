//! The gates of a rank: which operators and halves its own order lets it begin.

use crate::codes::{self, VERIEP_E_EARLY, VERIEP_E_REFUSED, VERIEP_OK, code};
use crate::given;
use crate::objects;
use crate::text::Text;
use crate::types::{veriep_choices, veriep_gates, veriep_shape, veriep_ticket};
use core::ffi::c_char;
use kernel_core::fabric::{Capabilities, Terms};
use kernel_core::protocol::{Gates, Ticket};
use kernel_core::shape::Shape;

/// Makes the gates of a rank in a new group, whose cores are made with these choices, or the default ones. They hold for a group whose
/// ranks all take their operators and halves in one order. `VERIEP_E_REFUSED` if no core can have these choices.
///
/// # Safety
/// Pointers that are not null lead to what they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_gates_new(
    out: *mut veriep_gates,
    shape: *const veriep_shape,
    choices: *const veriep_choices,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        given::write(out)?;
        let shape = objects::get::<Shape>(shape)?;
        let choices = codes::choices(choices)?;
        // Which calls the memory has, and its line, are for cores to say.
        choices.check(shape, Terms::new(Capabilities::all())).map_err(|_| VERIEP_E_REFUSED)?;
        objects::put(out, Gates::new(shape, &choices))
    })())
}

/// Asks before `veriep_core_begin` or `veriep_core_send` of the rank's first core whether the rank may begin the operator,
/// `VERIEP_DISPATCH` or `VERIEP_COMBINE`: `VERIEP_OK` and a ticket; or `VERIEP_E_EARLY`, and the text says what must end before. A
/// combine is of the older one of the last two dispatches that is not combined, which must have ended.
///
/// # Safety
/// Pointers that are not null lead to what they say, which no other call uses meanwhile; `text` has `text_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_gates_begin(
    gates: *mut veriep_gates,
    which: u32,
    ticket: *mut veriep_ticket,
    text: *mut c_char,
    text_len: usize,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let mut text = Text::new(text, text_len)?;
        given::write(ticket)?;
        let gates = objects::get_mut::<Gates>(gates)?;
        let begun = gates.begin(codes::operator(which)?, None).map_err(|error| {
            text.say(&error);
            VERIEP_E_EARLY
        })?;
        objects::put(ticket, begun)
    })())
}

/// Ends an operator that the gates have begun, once all cores of the rank have ended it, with its other half if it has two. The ticket
/// is none any more.
///
/// # Safety
/// As of `veriep_gates_begin`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_gates_end(gates: *mut veriep_gates, ticket: *mut veriep_ticket) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let gates = objects::get_mut::<Gates>(gates)?;
        gates.end(*objects::get::<Ticket>(ticket)?);
        objects::forget::<Ticket>(ticket)?;
        Ok(VERIEP_OK)
    })())
}
