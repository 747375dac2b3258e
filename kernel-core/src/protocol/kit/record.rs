//! Records to send: the payload of a token, and the tail after it.

use super::{Core, given, room};
use crate::fabric::{ProtocolError, Result};
use crate::inputs::Inputs;
use crate::layout::record::{Tail, Triple};
use crate::placement::Home;
use crate::plan::route::Send;
use crate::shape::{RowElement, Shape};
use crate::units::Token;
use crate::vector;

/// The converted row that is in the scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Staged {
    token: Token,
    /// The row of the smooth scales that it was multiplied by. Without smooth scales a token is the same for all experts.
    expert_row: Option<u32>,
    /// The bits of its scale.
    scale: u32,
}

/// Returns the row and the tail of a record.
// Inlined into the loop over the rows of a step: calls took twice the instructions.
#[inline(always)]
pub(crate) fn record<'r>(
    core: Core<'_>,
    inputs: &'r Inputs<'_>,
    scratch: &'r mut [u8],
    staged: &mut Option<Staged>,
    send: Send,
) -> Result<(&'r [u8], Tail)> {
    let (row, scale) = payload(core, inputs, scratch, staged, send)?;
    Ok((row, Tail::new(core.shape, scale, triple(core, send))))
}

/// Returns the triple of a record.
pub(crate) fn triple(core: Core<'_>, Send { pair, .. }: Send) -> Triple {
    Triple { source: core.rank, token: pair.token, k: pair.k }
}

/// Returns the payload of a record and its scale: straight from `x`, or converted in the scratch.
#[inline(always)]
pub(crate) fn payload<'r>(
    core: Core<'_>,
    inputs: &'r Inputs<'_>,
    scratch: &'r mut [u8],
    staged: &mut Option<Staged>,
    Send { pair, home, .. }: Send,
) -> Result<(&'r [u8], f32)> {
    if let Some(x) = unconverted(core.shape, inputs, pair.token) {
        return Ok((x, 0.0));
    }
    let row = room(scratch, core.shape.payload_bytes())?;
    let scale = write_payload(core, inputs, row, staged, pair.token, home)?;
    Ok((row, scale))
}

/// Returns the payload of a token that is sent as it is: the token itself.
#[inline(always)]
pub(crate) fn unconverted<'r>(shape: &Shape, inputs: &'r Inputs<'_>, token: Token) -> Option<&'r [u8]> {
    let x = inputs.row(shape, token);
    (shape.row_format().element == RowElement::Dtype && !x.is_empty()).then_some(x)
}

/// Writes the payload of a token for an expert into `row`, unless `row` holds it already. Returns its scale.
pub(crate) fn write_payload(
    core: Core<'_>,
    inputs: &Inputs<'_>,
    row: &mut [u8],
    staged: &mut Option<Staged>,
    token: Token,
    home: Home,
) -> Result<f32> {
    let shape = core.shape;
    let smooth = inputs.smooth(shape, shape.expert_row(home));
    let expert_row = smooth.map(|_| shape.expert_row(home));
    let scale = match *staged {
        Some(held) if held.token == token && held.expert_row == expert_row => f32::from_bits(held.scale),
        _ => {
            let x = inputs.row(shape, token);
            if x.is_empty() {
                return Err(given("x is shorter than its rows"));
            }
            vector::convert(core.vector, shape, x, smooth, row)
                .map_err(|_| ProtocolError::NotFinite { token: token.0 })?
        }
    };
    *staged = Some(Staged { token, expert_row, scale: scale.to_bits() });
    Ok(scale)
}
