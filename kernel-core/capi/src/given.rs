//! Pointers of the caller as references: what can be checked of them is.

use crate::codes::{
    Said, VERIEP_CALL_COUNTED, VERIEP_E_ARGUMENT, VERIEP_E_NULL, VERIEP_MASK_ABSTAINS, VERIEP_MASK_NONE,
    VERIEP_MASK_PAIRS, VERIEP_MASK_TOKENS, VERIEP_OK,
};
use crate::types::{veriep_bytes, veriep_inputs, veriep_operands};
use core::mem::MaybeUninit;
use core::slice;
use kernel_core::inputs::{AddRmsNorm, Batch, Inputs, Mask};
use kernel_core::protocol::CombineInputs;

/// # Safety
/// What is not null is aligned memory of a `T` that no other code writes meanwhile, or not aligned.
pub(crate) unsafe fn read<'a, T>(from: *const T) -> Said<&'a T> {
    if !from.is_null() && !from.is_aligned() {
        return Err(VERIEP_E_ARGUMENT);
    }
    // SAFETY: aligned, and otherwise the caller's.
    unsafe { from.as_ref() }.ok_or(VERIEP_E_NULL)
}

/// # Safety
/// What is not null is memory for a `T` that no other code uses meanwhile, or not aligned.
pub(crate) unsafe fn write<'a, T>(to: *mut T) -> Said<&'a mut MaybeUninit<T>> {
    if !to.is_null() && !to.is_aligned() {
        return Err(VERIEP_E_ARGUMENT);
    }
    // SAFETY: aligned, and otherwise the caller's.
    unsafe { to.cast::<MaybeUninit<T>>().as_mut() }.ok_or(VERIEP_E_NULL)
}

/// Writes `with` to memory of the caller.
///
/// # Safety
/// As of [`write`].
pub(crate) unsafe fn fill<T>(to: *mut T, with: T) -> Said {
    // SAFETY: the caller's.
    unsafe { write(to) }?.write(with);
    Ok(VERIEP_OK)
}

fn check<T>(data: *const T, len: usize) -> Said<bool> {
    if len == 0 {
        return Ok(false);
    }
    if data.is_null() {
        return Err(VERIEP_E_NULL);
    }
    let fits = len.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if fits && data.is_aligned() { Ok(true) } else { Err(VERIEP_E_ARGUMENT) }
}

/// # Safety
/// What is neither null nor misaligned has `len` elements that no other code writes meanwhile.
pub(crate) unsafe fn slice<'a, T>(data: *const T, len: usize) -> Said<&'a [T]> {
    // SAFETY: checked, and otherwise the caller's.
    Ok(if check(data, len)? { unsafe { slice::from_raw_parts(data, len) } } else { &[] })
}

/// # Safety
/// What is neither null nor misaligned has `len` elements that no other code uses meanwhile.
pub(crate) unsafe fn slice_mut<'a, T>(data: *mut T, len: usize) -> Said<&'a mut [T]> {
    // SAFETY: checked, and otherwise the caller's.
    Ok(if check(data, len)? { unsafe { slice::from_raw_parts_mut(data, len) } } else { &mut [] })
}

/// A tensor of elements of `T`, any bits of which are one.
///
/// # Safety
/// As of [`slice`].
unsafe fn tensor<'a, T>(bytes: veriep_bytes) -> Said<&'a [T]> {
    if !bytes.len.is_multiple_of(size_of::<T>()) {
        return Err(VERIEP_E_ARGUMENT);
    }
    // SAFETY: the caller's.
    unsafe { slice(bytes.data.cast(), bytes.len / size_of::<T>()) }
}

/// The same of one that may be absent.
///
/// # Safety
/// As of [`slice`].
unsafe fn optional<'a, T>(bytes: veriep_bytes) -> Said<Option<&'a [T]>> {
    // SAFETY: the caller's.
    if bytes.data.is_null() && bytes.len == 0 { Ok(None) } else { unsafe { tensor(bytes) }.map(Some) }
}

/// # Safety
/// Tensors are as long as they say.
pub(crate) unsafe fn inputs<'a>(given: &veriep_inputs) -> Said<Inputs<'a>> {
    // SAFETY: the caller's, for all of them. Bytes of 0 and 1 are what a bool may be, and others are refused.
    unsafe {
        let mask = || -> Said<&'a [bool]> {
            let bytes = tensor::<u8>(given.x_active_mask)?;
            if bytes.iter().any(|&byte| byte > 1) {
                return Err(VERIEP_E_ARGUMENT);
            }
            slice(bytes.as_ptr().cast(), bytes.len())
        };
        Ok(Inputs {
            x: tensor(given.x)?,
            expert_ids: tensor(given.expert_ids)?,
            expert_scales: tensor(given.expert_scales)?,
            mask: match given.mask_kind {
                VERIEP_MASK_NONE if given.x_active_mask.len == 0 => Mask::None,
                VERIEP_MASK_TOKENS => Mask::Tokens(mask()?),
                VERIEP_MASK_PAIRS => Mask::Pairs(mask()?),
                VERIEP_MASK_ABSTAINS => Mask::Abstains,
                _ => return Err(VERIEP_E_ARGUMENT),
            },
            scales: optional(given.scales)?,
            shared_expert_x: optional(given.shared_expert_x)?,
            const_expert_alpha_1: tensor(given.const_expert_alpha_1)?,
            const_expert_alpha_2: tensor(given.const_expert_alpha_2)?,
            const_expert_v: tensor(given.const_expert_v)?,
            add_rms_norm: match (optional(given.residual_x)?, optional(given.gamma)?) {
                (None, None) => None,
                // The check of inputs tells which one is missing.
                (residual_x, gamma) => Some(AddRmsNorm {
                    residual_x: residual_x.unwrap_or_default(),
                    gamma: gamma.unwrap_or_default(),
                }),
            },
            call: (given.call != VERIEP_CALL_COUNTED).then_some(given.call),
            dispatched: (given.dispatched > 0).then_some(Batch(given.dispatched)),
        })
    }
}

/// # Safety
/// Tensors are as long as they say.
pub(crate) unsafe fn operands<'a>(given: &veriep_operands) -> Said<CombineInputs<'a>> {
    // SAFETY: the caller's, for all of them.
    unsafe {
        Ok(CombineInputs {
            y: tensor(given.y)?,
            assist_info: tensor(given.assist_info)?,
            expand_scales: tensor(given.expand_scales)?,
            ep_recv_counts: tensor(given.ep_recv_counts)?,
            expand_idx: tensor(given.expand_idx)?,
            sent_rows: tensor(given.sent_rows)?,
            row_table: tensor(given.row_table)?,
        })
    }
}
