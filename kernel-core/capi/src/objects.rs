//! Objects in opaque words of the caller's memory.

use crate::codes::{Said, VERIEP_E_ORDER, VERIEP_OK};
use crate::given;
use crate::types::{veriep_core, veriep_expert_map, veriep_gates, veriep_shape, veriep_ticket};
use crate::vector::Unit;
use kernel_core::fabric::Capabilities;
use kernel_core::inputs::ExpertMap;
use kernel_core::protocol::{Env, Gates, Machine, Operator, Ticket};
use kernel_core::shape::Shape;

/// An object that follows a word which says that it was made: memory of a program that never made it does not hold that by chance.
#[repr(C)]
struct Marked<T> {
    mark: u64,
    object: T,
}

/// What is kept in words of the type `Words`.
pub(crate) trait Object: Sized {
    /// The opaque type.
    type Words;
    /// What tells that it was made.
    const MARK: u64;
    const FITS: () = {
        assert!(size_of::<Marked<Self>>() <= size_of::<Self::Words>());
        assert!(align_of::<Marked<Self>>() <= align_of::<Self::Words>());
        // It is overwritten and forgotten.
        assert!(!core::mem::needs_drop::<Self>());
    };
}

impl Object for Shape {
    type Words = veriep_shape;
    const MARK: u64 = 0x7653_6861_7065_0001;
}

impl Object for ExpertMap<'static> {
    type Words = veriep_expert_map;
    const MARK: u64 = 0x764D_6170_0000_0001;
}

/// A core of a rank: who it is, what stays the same, and the operator that it runs.
pub(crate) struct Core {
    pub(crate) env: Env<Unit>,
    pub(crate) rank: u32,
    pub(crate) tp_rank: u32,
    /// Without which the memory cannot serve what was chosen.
    pub(crate) needs: Capabilities,
    /// Whether it may send an operator, and run others before the rest.
    pub(crate) has_halves: bool,
    pub(crate) operator: Operator,
    pub(crate) phase: Phase,
    pub(crate) machine: Machine,
}

/// What may be done with a core.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing was begun, or what was begun has ended.
    Idle,
    /// The sending half was begun.
    Sends,
    /// The sending half has ended, and may be asked once more.
    Sent,
    /// The other half was begun, and has not looked yet where its core is.
    Resumed,
    /// Begun.
    Running,
    /// An operator has ended, and may be asked once more.
    Done,
    /// Nothing: it has failed.
    Dead,
}

impl Object for Core {
    type Words = veriep_core;
    const MARK: u64 = 0x7643_6F72_6500_0001;
}

impl Object for Gates {
    type Words = veriep_gates;
    const MARK: u64 = 0x7647_6174_6573_0001;
}

impl Object for Ticket {
    type Words = veriep_ticket;
    const MARK: u64 = 0x7654_6963_6B65_0001;
}

/// The agent of a rank.
#[cfg(feature = "a2")]
pub(crate) struct Agent {
    pub(crate) env: kernel_core::protocol::AgentEnv,
    pub(crate) rank: u32,
    pub(crate) is_dead: bool,
    pub(crate) agent: kernel_core::protocol::Agent,
}

#[cfg(feature = "a2")]
impl Object for Agent {
    type Words = crate::types::veriep_agent;
    const MARK: u64 = 0x7641_6765_6E74_0001;
}

/// Makes an object in the caller's words; what was there is forgotten.
///
/// # Safety
/// As of [`given::write`].
pub(crate) unsafe fn put<T: Object>(to: *mut T::Words, object: T) -> Said {
    () = T::FITS;
    // SAFETY: the caller's.
    let words = unsafe { given::write(to) }?;
    // SAFETY: the words are as large and as aligned as `FITS` says.
    unsafe { words.as_mut_ptr().cast::<Marked<T>>().write(Marked { mark: T::MARK, object }) };
    Ok(VERIEP_OK)
}

/// Marks the words as none of an object, if they are memory.
///
/// # Safety
/// As of [`given::write`].
pub(crate) unsafe fn forget<T: Object>(words: *mut T::Words) -> Said<()> {
    // SAFETY: the caller's; the first word is the mark.
    unsafe { given::write(words) }.map(|words| unsafe { words.as_mut_ptr().cast::<u64>().write(0) })
}

/// The object in the caller's words.
///
/// # Safety
/// As of [`given::read`]; words with the mark have not been changed since they were made.
pub(crate) unsafe fn get<'a, T: Object>(from: *const T::Words) -> Said<&'a T> {
    // SAFETY: the caller's; any bits are a word.
    let mark = *unsafe { given::read(from.cast::<u64>()) }?;
    // SAFETY: the mark is there, so `put` has written the object.
    if mark == T::MARK { Ok(unsafe { &(*from.cast::<Marked<T>>()).object }) } else { Err(VERIEP_E_ORDER) }
}

/// The same, to change it.
///
/// # Safety
/// As of [`get`], and no other code uses the words meanwhile.
pub(crate) unsafe fn get_mut<'a, T: Object>(from: *mut T::Words) -> Said<&'a mut T> {
    // SAFETY: the caller's.
    unsafe { get::<T>(from) }?;
    // SAFETY: as in `get`.
    Ok(unsafe { &mut (*from.cast::<Marked<T>>()).object })
}
