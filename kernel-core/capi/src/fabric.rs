//! A table of C functions as a fabric and as a network interface.

use crate::codes::{self, Said, VERIEP_E_NULL};
use crate::types::{veriep_fabric, veriep_nic, veriep_place};
use core::cell::Cell;
use core::{ptr, slice};
use kernel_core::fabric::nic::{Nic, Post, Transfer};
use kernel_core::fabric::{Capabilities, Fabric, Fault, WORD};
use kernel_core::place::Place;
use kernel_core::units::RankId;

/// The table of a core of `own`. No function that every fabric has is null.
pub(crate) struct Table<'a> {
    table: &'a veriep_fabric,
    own: RankId,
}

pub(crate) fn place(at: Place) -> veriep_place {
    veriep_place { region: codes::region(at.region), reserved: 0, offset: at.offset }
}

/// What the optional functions of a table can do.
pub(crate) fn capabilities(table: &veriep_fabric) -> Capabilities {
    let mut all = Capabilities::empty();
    all.set(Capabilities::PEER_BYTES, table.peer_bytes.is_some());
    all.set(Capabilities::SEND, table.send.is_some());
    all.set(Capabilities::LEND, table.lend.is_some());
    all.set(Capabilities::PREFETCH, table.prefetch.is_some());
    all
}

/// Refuses a table without one of the functions that all have, or of those that are needed besides.
pub(crate) fn check(table: &veriep_fabric, needs: Capabilities) -> Said<()> {
    let acts =
        table.put.is_some() && table.publish.is_some() && table.store.is_some() && table.write.is_some();
    let reads = table.quiet.is_some() && table.observe.is_some() && table.bytes.is_some();
    let whole = acts && reads && table.deliver.is_some() && capabilities(table).contains(needs);
    if whole { Ok(()) } else { Err(VERIEP_E_NULL) }
}

impl<'a> Table<'a> {
    pub(crate) fn new(table: &'a veriep_fabric, needs: Capabilities, own: RankId) -> Said<Self> {
        check(table, needs).map(|()| Self { table, own })
    }
}

/// Calls a function of a table with its context, and makes its own code a fault. A function that is null is one, too.
macro_rules! call {
    ($table:expr, $function:ident($($argument:expr),*), $rank:expr, $at:expr, $len:expr) => {{
        let fault = Fault::new($rank, $at, $len);
        match $table.$function {
            None => Err(fault),
            // SAFETY: the function is the caller's, and is given what its declaration says.
            Some(function) => match unsafe { function($table.context, $($argument),*) } {
                0 => Ok(()),
                code => Err(fault.with_code(code)),
            },
        }
    }};
}

/// Bytes that a function of a table has told of.
///
/// # Safety
/// The caller's function says the truth: what is not null has `len` bytes, which stay as they are for as long as the contract
/// of [`Fabric::bytes`] says.
unsafe fn told<'a>(bytes: *const u8, fault: Fault) -> Result<&'a [u8], Fault> {
    match usize::try_from(fault.len) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's.
        Ok(len) if !bytes.is_null() => Ok(unsafe { slice::from_raw_parts(bytes, len) }),
        _ => Err(fault),
    }
}

impl Fabric for Table<'_> {
    fn capabilities(&self) -> Capabilities {
        capabilities(self.table)
    }

    fn line(&self) -> u64 {
        match self.table.line {
            0 => WORD,
            line => line,
        }
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let len = (row.len() as u64).saturating_add(tail.len() as u64);
        let (row_at, tail_at) = (row.as_ptr(), tail.as_ptr());
        call!(self.table, put(to.0, place(at), row_at, row.len(), tail_at, tail.len()), to, at, len)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        call!(self.table, publish(to.0, place(at), word), to, at, 8)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        let (data, len) = (message.as_ptr(), message.len());
        call!(self.table, send(to.0, place(at), data, len), to, at, len as u64)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let mut landed = 0;
        call!(self.table, quiet(&raw mut landed), self.own, Place::state(0), 0).map(|()| landed != 0)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let mut word = 0;
        call!(self.table, observe(place(at), &raw mut word), self.own, at, 8).map(|()| word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        call!(self.table, store(place(at), word), self.own, at, 8)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        let mut bytes = ptr::null();
        call!(self.table, bytes(place(at), len, &raw mut bytes), self.own, at, len)?;
        // SAFETY: the function's word.
        unsafe { told(bytes, Fault::new(self.own, at, len)) }
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        let (data, len) = (bytes.as_ptr(), bytes.len());
        call!(self.table, write(place(at), data, len), self.own, at, len as u64)
    }

    fn lend(&self, output: Place, len: u64) -> Option<&[Cell<u8>]> {
        // SAFETY: the function is the caller's, and is given what its declaration says.
        let lent = unsafe { self.table.lend?(self.table.context, place(output), len) };
        let len = usize::try_from(len).ok()?;
        // SAFETY: the function's word: these bytes are lent to this core alone, and cells hold any.
        (!lent.is_null()).then(|| unsafe { slice::from_raw_parts(lent.cast(), len) })
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        call!(self.table, deliver(place(output), place(from), len), self.own, output, len)
    }

    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        let mut bytes = ptr::null();
        call!(self.table, peer_bytes(rank.0, place(at), len, &raw mut bytes), rank, at, len)?;
        // SAFETY: the function's word.
        unsafe { told(bytes, Fault::new(rank, at, len)) }
    }

    fn prefetch(&self, bytes: &[u8]) {
        if let Some(prefetch) = self.table.prefetch {
            // SAFETY: the function is the caller's, and is given what its declaration says.
            unsafe { prefetch(self.table.context, bytes.as_ptr(), bytes.len()) };
        }
    }
}

/// The table of the agent of `own`.
pub(crate) struct NicTable<'a> {
    table: &'a veriep_nic,
    own: RankId,
}

impl<'a> NicTable<'a> {
    pub(crate) fn new(table: &'a veriep_nic, own: RankId) -> Said<Self> {
        let whole = table.observe.is_some() && table.post.is_some();
        if whole { Ok(Self { table, own }) } else { Err(VERIEP_E_NULL) }
    }
}

impl Nic for NicTable<'_> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let mut word = 0;
        call!(self.table, observe(place(at), &raw mut word), self.own, at, 8).map(|()| word)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        let mut posted = 0;
        call!(self.table, post(to.0, place(from), place(at), len, &raw mut posted), to, at, len)?;
        Ok(if posted == 0 { Post::Busy } else { Post::Posted })
    }
}
