//! A wire through an MPI. What knows the MPI is a small library, the *shim*, which its own compiler makes of `shim.c`; it is loaded
//! when it is asked for, so one program runs with any MPI, and is built and tested without one.
#![allow(unsafe_code)]

mod bare;

pub use bare::{Agreement, ByProcess, Exchange};

use crate::launcher::Launched;
use bare::Rows;
use core::error::Error as _;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::time::Duration;
use libloading::Library;
use libloading::os::unix;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{env, thread};
use veriep_group::backend::far::Wire;

/// The source of the shim.
pub const SHIM: &str = include_str!("shim.c");
/// Names a file as the shim.
pub const SHIM_VARIABLE: &str = "VERIEP_MPI_SHIM";
/// In a shim's file, before the name of its MPI and a colon.
pub const MARK: &str = "veriep-mpi-shim:1:";

/// Bytes for what an MPI says of itself or of an error.
const TEXT: usize = 1024;
/// How long the last chunks may take to leave.
const LEAVES: Duration = Duration::from_secs(5);

/// The file name of the shim for an MPI.
#[must_use]
pub fn file_name(mpi: &str) -> String {
    format!("libveriep-mpi-{mpi}.so")
}

/// Where a user's shims lie.
#[must_use]
pub fn home() -> Option<PathBuf> {
    Some(env::home_dir()?.join(".local/share/veriep"))
}

/// The shim that fits the launcher of this process.
fn find(launched: &Launched) -> Result<PathBuf, String> {
    if let Some(path) = env::var_os(SHIM_VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let beside = env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned()));
    let folders: Vec<_> = [beside, home()].into_iter().flatten().collect();
    let names = match &launched.mpi {
        Some(mpi) => vec![file_name(mpi)],
        None => ["openmpi", "mpich", "other"].map(file_name).to_vec(),
    };
    let all = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    let found = all.into_iter().find(|path| path.exists());
    found.ok_or_else(|| {
        let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
        let compiler = launched.mpi.as_ref().map_or_else(String::new, |mpi| format!(" --mpicc mpicc.{mpi}"));
        format!(
            "no {} in {}, and {SHIM_VARIABLE} names none; hint: veriep mpi-shim{compiler}",
            names.join(" or "),
            folders.join(" or ")
        )
    })
}

/// The functions of a shim.
#[derive(Clone, Copy, Debug)]
struct Calls {
    begin: unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int, *mut c_char, c_int) -> c_int,
    send: unsafe extern "C" fn(c_int, *const c_void, c_int, *mut c_int) -> c_int,
    sent: unsafe extern "C" fn(c_int, *mut c_int) -> c_int,
    look: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    take: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    agree: unsafe extern "C" fn(*const u64, *mut u64, c_int, *mut c_int) -> c_int,
    all_to_all: unsafe extern "C" fn(*const i32, *mut i32, c_int) -> c_int,
    exchange: unsafe extern "C" fn(*const Rows, *const Rows, c_int, c_int) -> c_int,
    explain: unsafe extern "C" fn(c_int, *mut c_char, c_int) -> c_int,
    end: unsafe extern "C" fn() -> c_int,
    abort: unsafe extern "C" fn(c_int) -> c_int,
}

impl Calls {
    fn load(path: &Path) -> Result<Self, String> {
        let of = |why: libloading::Error| {
            let cause = why.source().map_or_else(|| why.to_string(), ToString::to_string);
            format!("{}: {cause}", path.display())
        };
        // SAFETY: loading runs what an MPI does when it is loaded; the user has named the file, or has had this program make it.
        // Its symbols are for all, since parts that an MPI loads later look for them.
        let library = unsafe { unix::Library::open(Some(path), unix::RTLD_NOW | unix::RTLD_GLOBAL) };
        let library = Library::from(library.map_err(of)?);
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: `shim.c` gives the function of this name the type of the field that it is for, and a file that has the
                // name is made of it.
                *unsafe { library.get(concat!("veriep_mpi_", $name, "\0")) }.map_err(of)?
            };
        }
        let calls = Self {
            begin: symbol!("begin"),
            send: symbol!("send"),
            sent: symbol!("sent"),
            look: symbol!("look"),
            take: symbol!("take"),
            agree: symbol!("agree"),
            all_to_all: symbol!("all_to_all"),
            exchange: symbol!("exchange"),
            explain: symbol!("explain"),
            end: symbol!("end"),
            abort: symbol!("abort"),
        };
        // An MPI may have threads and handlers of its own: it stays as long as the process, and so do the functions.
        core::mem::forget(library);
        Ok(calls)
    }

    /// An error with what the MPI has to say of it.
    fn check(&self, code: c_int, what: &str) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let mut text = [0_u8; TEXT];
        // SAFETY: there is room for `TEXT` bytes, of which the last one is set to 0.
        unsafe { (self.explain)(code, text.as_mut_ptr().cast(), TEXT as c_int) };
        Err(format!("{what}: MPI error {code}: {}", first_line(&text)))
    }
}

fn first_line(text: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(text).map(CStr::to_string_lossy).unwrap_or_default();
    text.lines().next().unwrap_or_default().replace('\t', " ")
}

/// This process's end of an MPI's network.
#[derive(Debug)]
pub struct MpiWire {
    calls: Calls,
    process: usize,
    processes: usize,
    /// Chunks that have not left: to whom, the MPI's ticket, and the bytes, which stay where they are until then.
    leaving: VecDeque<(usize, c_int, Vec<u8>)>,
    came: Vec<u8>,
    /// How many chunks have been sent, and their bytes.
    sent: [u64; 2],
    /// Other groups of these processes come after this one.
    is_one_of_many: bool,
    version: String,
}

impl MpiWire {
    /// Loads the shim and joins the group that the launcher has started.
    ///
    /// # Errors
    /// There is no shim, or it is one of another MPI.
    pub fn start(launched: &Launched) -> Result<Self, String> {
        let path = find(launched)?;
        let calls = Calls::load(&path)?;
        let (mut process, mut processes, mut serialised) = (0, 0, 0);
        let mut version = [0_u8; TEXT];
        // SAFETY: all four point to room for what is written, the text to `TEXT` bytes. No other thread calls the shim.
        let code = unsafe {
            let text = version.as_mut_ptr().cast();
            (calls.begin)(&raw mut process, &raw mut processes, &raw mut serialised, text, TEXT as c_int)
        };
        calls.check(code, "MPI_Init_thread")?;
        let version = first_line(&version);
        if serialised == 0 {
            return Err(format!("{version}: must let one thread at a time call it"));
        }
        let number = |n: c_int| usize::try_from(n).map_err(|_| format!("{version}: {n} processes"));
        let (process, processes) = (number(process)?, number(processes)?);
        if let Some(started) = launched.processes.filter(|&started| started != processes) {
            let path = path.display();
            return Err(format!(
                "{path} is for {version}, which knows of {processes} process, not of the {started} that were started: \
                 must be the shim of the MPI whose mpirun starts them"
            ));
        }
        Ok(Self {
            calls,
            process,
            processes,
            leaving: VecDeque::new(),
            came: Vec::new(),
            sent: [0; 2],
            is_one_of_many: false,
            version,
        })
    }

    /// A wire between the same processes for a group of several, one after the other; the one that this is made of leaves the MPI.
    #[must_use]
    pub fn of_another_group(&self) -> Self {
        let (leaving, came) = (VecDeque::new(), Vec::new());
        Self { leaving, came, sent: [0; 2], is_one_of_many: true, version: self.version.clone(), ..*self }
    }

    /// What the MPI calls itself.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// How many chunks have been sent, and their bytes.
    #[must_use]
    pub const fn sent(&self) -> [u64; 2] {
        self.sent
    }

    /// The number of this process.
    #[must_use]
    pub const fn process(&self) -> usize {
        self.process
    }

    /// How many there are.
    #[must_use]
    pub const fn processes(&self) -> usize {
        self.processes
    }

    /// Lets go of chunks that have left. Whether all have.
    fn sweep(&mut self) -> Result<bool, String> {
        while let Some(&(to, ticket, _)) = self.leaving.front() {
            let mut done = 0;
            // SAFETY: the ticket is one that the shim has given, and it is asked about until it is done.
            let code = unsafe { (self.calls.sent)(ticket, &raw mut done) };
            self.calls.check(code, &format!("sending to process {to}"))?;
            if done == 0 {
                return Ok(false);
            }
            self.leaving.pop_front();
        }
        Ok(true)
    }
}

impl Wire for MpiWire {
    fn send(&mut self, to: usize, chunk: Vec<u8>) -> Result<(), String> {
        let mut ticket = 0;
        let (Ok(process), Ok(len)) = (c_int::try_from(to), c_int::try_from(chunk.len())) else {
            return Err(format!("{} bytes to process {to}: more than an MPI can count", chunk.len()));
        };
        // SAFETY: the chunk has `len` bytes, which neither move nor change until the shim has said that they have left: it is kept
        // in `leaving` until then, and `finish` leaves it there.
        let code = unsafe { (self.calls.send)(process, chunk.as_ptr().cast(), len, &raw mut ticket) };
        self.calls.check(code, &format!("sending to process {to}"))?;
        self.sent = [self.sent[0] + 1, self.sent[1] + chunk.len() as u64];
        self.leaving.push_back((to, ticket, chunk));
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<(usize, &[u8])>, String> {
        self.sweep()?;
        let (mut from, mut len) = (0, 0);
        // SAFETY: both point to room.
        let code = unsafe { (self.calls.look)(&raw mut from, &raw mut len) };
        self.calls.check(code, "receiving")?;
        let (Ok(from), Ok(bytes)) = (usize::try_from(from), usize::try_from(len)) else { return Ok(None) };
        self.came.resize(bytes, 0);
        // SAFETY: there is room for the `len` bytes of the message that was found.
        let code = unsafe { (self.calls.take)(self.came.as_mut_ptr().cast(), len) };
        self.calls.check(code, &format!("receiving from process {from}"))?;
        Ok(Some((from, &self.came)))
    }

    fn finish(&mut self) -> Result<(), String> {
        let since = Instant::now();
        while !self.sweep()? {
            if since.elapsed() > LEAVES {
                // The MPI reads them until the process ends.
                self.leaving.drain(..).for_each(|(_, _, chunk)| core::mem::forget(chunk));
                return Err("what was sent last has not left".to_owned());
            }
            thread::yield_now();
        }
        if self.is_one_of_many {
            return Ok(());
        }
        // SAFETY: nothing is on its way, and after this `self` sends and receives no more: `finish` is the last call.
        let code = unsafe { (self.calls.end)() };
        self.calls.check(code, "MPI_Finalize")
    }

    fn abort(&mut self, status: u8) {
        // SAFETY: the process ends here, and so do the others as far as the launcher reaches them.
        unsafe { (self.calls.abort)(status.into()) };
    }
}
