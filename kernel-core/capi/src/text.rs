//! Messages into a buffer of the caller's: cut where it ends, with a zero after them.

use crate::codes::Said;
use crate::given::slice_mut;
use core::ffi::c_char;
use core::fmt::{self, Display, Write};

pub(crate) struct Text<'a> {
    room: &'a mut [c_char],
    used: usize,
}

impl Text<'_> {
    /// An empty text; nothing can be said where `at` is null.
    ///
    /// # Safety
    /// What is not null has `len` bytes that no other code uses meanwhile.
    pub(crate) unsafe fn new(at: *mut c_char, len: usize) -> Said<Self> {
        // SAFETY: the caller's.
        let room = unsafe { slice_mut(at, if at.is_null() { 0 } else { len }) }?;
        let mut text = Self { room, used: 0 };
        text.put(&[]);
        Ok(text)
    }

    /// Adds what is said.
    pub(crate) fn say(&mut self, what: &dyn Display) {
        // What does not fit is lost; nothing else can fail.
        let _ = write!(self, "{what}");
    }

    /// Adds a line.
    pub(crate) fn line(&mut self, what: &dyn Display) {
        self.say(what);
        self.put(b"\n");
    }

    fn put(&mut self, bytes: &[u8]) {
        let room = self.room.get_mut(self.used..).unwrap_or_default();
        // The last byte is for the zero.
        let cut = bytes.len().min(room.len().saturating_sub(1));
        room.iter_mut().zip(bytes).take(cut).for_each(|(to, &byte)| *to = byte as c_char);
        if let Some(end) = room.get_mut(cut) {
            *end = 0;
        }
        self.used += cut;
    }
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}
