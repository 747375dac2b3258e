//! The caller's context as what a step of the core takes.

use crate::codes::{Said, VERIEP_E_ARGUMENT, VERIEP_E_FABRIC, VERIEP_E_PROTOCOL, VERIEP_NONE, VERIEP_OK};
use crate::codes::{VERIEP_AWAITS_BYTES, VERIEP_AWAITS_QUIET, VERIEP_AWAITS_ROOM, VERIEP_AWAITS_WORD};
use crate::codes::{VERIEP_E_REFUSED, VERIEP_E_SHORT, VERIEP_PENDING, VERIEP_STEPPED};
use crate::fabric::place;
use crate::given::{self, read, slice_mut};
use crate::text::Text;
use crate::types::{veriep_awaited, veriep_context, veriep_status};
use kernel_core::fabric::{Awaited, ProtocolError};
use kernel_core::protocol::{Ran, Run};
use kernel_core::units::RankId;

/// Writes the status and the text, and returns the code.
///
/// # Safety
/// Pointers that are not null are the caller's to write.
pub(crate) unsafe fn report(
    cx: &veriep_context,
    status: *mut veriep_status,
    ran: Ran,
    tells_waits: bool,
) -> Said {
    // SAFETY: the caller's.
    let mut text = unsafe { Text::new(cx.text, cx.text_len) }?;
    let (mut rank, mut code) = (None, 0);
    let said = match ran.end {
        Ok(Run::Budget) => VERIEP_STEPPED,
        Ok(Run::Done) => VERIEP_OK,
        Ok(Run::Waiting(wait)) => {
            if tells_waits {
                text.say(&wait);
            }
            rank = wait.source();
            VERIEP_PENDING
        }
        Err(error) => {
            text.say(&error);
            rank = error.source();
            match error {
                ProtocolError::Fault(fault) => {
                    code = fault.code;
                    VERIEP_E_FABRIC
                }
                ProtocolError::OtherShape { .. } => VERIEP_E_REFUSED,
                _ => VERIEP_E_PROTOCOL,
            }
        }
    };
    if !status.is_null() {
        let rank = rank.map_or(VERIEP_NONE, |RankId(rank)| rank);
        // SAFETY: the caller's.
        unsafe { given::fill(status, veriep_status { steps: ran.steps, rank, code }) }?;
    }
    Ok(said)
}

/// A caller's list that is filled in, with the number of entries that there are. The number is written at the end alone, so that
/// a call which is refused before its first entry has changed nothing.
pub(crate) struct List<'a, T> {
    room: &'a mut [T],
    count: &'a mut core::mem::MaybeUninit<usize>,
    n: usize,
}

impl<T> List<'_, T> {
    /// An empty list of at most `room` entries.
    ///
    /// # Safety
    /// Pointers that are not null are the caller's to write, and entries may be any bits.
    pub(crate) unsafe fn new(data: *mut T, room: usize, count: *mut usize) -> Said<Self> {
        // SAFETY: the caller's.
        let (room, count) = unsafe { (slice_mut(data, room)?, given::write(count)?) };
        Ok(Self { room, count, n: 0 })
    }

    pub(crate) fn add(&mut self, entry: T) {
        if let Some(place) = self.room.get_mut(self.n) {
            *place = entry;
        }
        self.n += 1;
    }

    /// Writes how many entries there are, and answers whether all had room.
    pub(crate) fn end(self) -> Said {
        self.count.write(self.n);
        if self.n <= self.room.len() { Ok(VERIEP_OK) } else { Err(VERIEP_E_SHORT) }
    }

    /// Writes that there are no entries, whatever was added, and answers `said`.
    pub(crate) fn none(self, said: i32) -> Said {
        self.count.write(0);
        Ok(said)
    }
}

pub(crate) fn awaited(what: Awaited) -> veriep_awaited {
    let of = |kind, at, len| {
        let at = place(at);
        veriep_awaited { kind, region: at.region, offset: at.offset, len }
    };
    let nowhere = |kind| veriep_awaited { kind, region: VERIEP_NONE, offset: 0, len: 0 };
    match what {
        Awaited::Word(at) => of(VERIEP_AWAITS_WORD, at, 8),
        Awaited::Bytes(at, len) => of(VERIEP_AWAITS_BYTES, at, len),
        Awaited::Quiet => nowhere(VERIEP_AWAITS_QUIET),
        Awaited::Room => nowhere(VERIEP_AWAITS_ROOM),
    }
}

/// The context, of which exactly one of two memories is given. Its text and the status of an earlier call are cleared.
///
/// # Safety
/// As of [`report`].
pub(crate) unsafe fn context<'a>(
    cx: *const veriep_context,
    status: *mut veriep_status,
    is_table: impl Fn(&veriep_context) -> bool,
) -> Said<(&'a veriep_context, bool)> {
    // SAFETY: the caller's.
    let cx = unsafe {
        let cx = read(cx)?;
        Text::new(cx.text, cx.text_len)?;
        if !status.is_null() {
            given::fill(status, veriep_status { steps: 0, rank: VERIEP_NONE, code: 0 })?;
        }
        cx
    };
    let table = is_table(cx);
    if table && !cx.mapped.is_null() { Err(VERIEP_E_ARGUMENT) } else { Ok((cx, table)) }
}
