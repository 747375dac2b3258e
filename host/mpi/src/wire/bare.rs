//! MPI calls other than the transport of chunks: agreement on numbers, and an exchange of rows as a program does it that has
//! only the MPI.
#![allow(unsafe_code)]

use super::MpiWire;
use core::ffi::c_int;

/// Rows that go to every process, or come from it: how many of each, and from which on. As `shim.c` has it.
#[repr(C)]
pub(super) struct Rows {
    bytes: *mut u8,
    counts: *const c_int,
    offsets: *const c_int,
}

/// Rows for every process, or of it.
#[derive(Debug, Default)]
pub struct ByProcess {
    /// One behind the other.
    pub bytes: Vec<u8>,
    /// By process: how many, and from which on.
    pub counts: Vec<c_int>,
    /// See above.
    pub offsets: Vec<c_int>,
}

/// How rows are exchanged where that is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// By `MPI_Alltoallv`.
    Alltoallv = 0,
    /// By one message, without blocking, to and from each other process; what stays here is not touched.
    Messages = 1,
}

/// Numbers that processes are about to agree on.
#[derive(Debug)]
pub struct Agreement {
    own: Vec<u64>,
    largest: Vec<u64>,
    ticket: c_int,
    done: bool,
}

impl Drop for Agreement {
    fn drop(&mut self) {
        if !self.done {
            // The MPI reads and writes them until the process ends.
            core::mem::forget((core::mem::take(&mut self.own), core::mem::take(&mut self.largest)));
        }
    }
}

impl ByProcess {
    /// So many rows for each process, of so many bytes.
    #[must_use]
    pub fn new(counts: Vec<c_int>, row: usize) -> Self {
        let offsets = counts.iter().scan(0, |next, &count| Some(core::mem::replace(next, *next + count)));
        let offsets = offsets.collect();
        let rows = counts.iter().map(|&count| count as usize).sum::<usize>();
        Self { bytes: vec![0; rows * row], counts, offsets }
    }

    /// Whether an MPI may read and write what is said of so many processes.
    fn fits(&self, processes: usize, row: usize) -> bool {
        let of = |(&count, &offset): (&c_int, &c_int)| {
            Some(usize::try_from(count).ok()? + usize::try_from(offset).ok()?)
        };
        let ends = self.counts.iter().zip(&self.offsets).map(of);
        self.counts.len() == processes
            && self.offsets.len() == processes
            && ends.into_iter().all(|end| {
                end.and_then(|end| end.checked_mul(row)).is_some_and(|end| end <= self.bytes.len())
            })
    }

    fn rows(&mut self) -> Rows {
        Rows { bytes: self.bytes.as_mut_ptr(), counts: self.counts.as_ptr(), offsets: self.offsets.as_ptr() }
    }
}

impl MpiWire {
    /// Begins to agree with all other processes on the largest of each number. They are there when [`agreed`](Self::agreed)
    /// returns them.
    ///
    /// # Errors
    /// The MPI has failed.
    pub fn agree(&self, own: Vec<u64>) -> Result<Agreement, String> {
        let mut agreement = Agreement { largest: vec![0; own.len()], own, ticket: 0, done: false };
        let Agreement { own, largest, ticket, .. } = &mut agreement;
        let len = own.len() as c_int;
        // SAFETY: both lists have `len` numbers, on the heap, and stay as they are until the MPI says that it is done: `Agreement`
        // does not let go of them before.
        let code = unsafe { (self.calls.agree)(own.as_ptr(), largest.as_mut_ptr(), len, ticket) };
        self.calls.check(code, "agreeing").map(|()| agreement)
    }

    /// The numbers, once all processes have agreed.
    ///
    /// # Errors
    /// The MPI has failed.
    pub fn agreed(&self, agreement: &mut Agreement) -> Result<Option<Vec<u64>>, String> {
        let mut done = 0;
        // SAFETY: the ticket is one that the shim has given, and it is asked about until it is done.
        let code = unsafe { (self.calls.sent)(agreement.ticket, &raw mut done) };
        self.calls.check(code, "agreeing")?;
        agreement.done = done != 0;
        Ok(agreement.done.then(|| core::mem::take(&mut agreement.largest)))
    }

    /// Sends `each` numbers to every process, and returns those that have come.
    ///
    /// # Errors
    /// The MPI has failed.
    pub fn all_to_all(&self, out: &[i32]) -> Result<Vec<i32>, String> {
        let each = out.len() / self.processes;
        let mut come = vec![0; each * self.processes];
        // SAFETY: both have `each` numbers for every process.
        let code = unsafe { (self.calls.all_to_all)(out.as_ptr(), come.as_mut_ptr(), each as c_int) };
        self.calls.check(code, "MPI_Alltoall").map(|()| come)
    }

    /// Exchanges rows of so many bytes; blocks until all have come.
    ///
    /// # Errors
    /// The MPI has failed.
    pub fn exchange(
        &self,
        (out, come): (&mut ByProcess, &mut ByProcess),
        row: usize,
        by: Exchange,
    ) -> Result<(), String> {
        if !out.fits(self.processes, row) || !come.fits(self.processes, row) {
            return Err("rows to exchange: must be those of all processes".to_owned());
        }
        let (out, come) = (out.rows(), come.rows());
        // SAFETY: each has room for its rows, and is borrowed until all have gone and come.
        let code =
            unsafe { (self.calls.exchange)(&raw const out, &raw const come, row as c_int, by as c_int) };
        self.calls.check(code, "exchanging rows")
    }
}
