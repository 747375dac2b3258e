//! Processes that a parent starts: copies of its own program, which join the group that it has founded.

use super::join::{
    Founded, GroupSpec, Identity, Invitation, JoinError, JoinRequest, Joined, MemberTable, Rendezvous,
};
use super::memory::GroupSize;
use super::peers::Peers;
use super::watch::Watched;
use super::{How, World};
use crate::backend::row_copy;
use core::time::Duration;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use veriep_core::fabric::raw::RowCopy;

/// The variable in which a child finds its [`Invited`].
const INVITED: &str = "VERIEP_INVITED";
/// How long a child waits until its parent has started all others.
const STARTS: Duration = Duration::from_secs(60);

/// What all children of a group are to do beside what their arguments say.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The number of their group among those that the parent founds.
    pub group: usize,
    /// How they copy rows, by its number in [`row_copy::ALL`].
    row_copy: usize,
}

impl Task {
    /// The task of a group that copies rows so.
    #[must_use]
    pub fn new(group: usize, row_copy: RowCopy) -> Self {
        Self { group, row_copy: row_copy::ALL.iter().position(|&one| one == row_copy).unwrap_or(0) }
    }

    /// How rows are copied.
    #[must_use]
    pub fn row_copy(self) -> RowCopy {
        row_copy::ALL[self.row_copy % row_copy::ALL.len()]
    }
}

/// A child's invitation to the group that its parent has founded.
#[derive(Debug, Serialize, Deserialize)]
pub struct Invited {
    /// The number of this process.
    pub process: usize,
    /// What the children of this group are to do.
    pub task: Task,
    /// The parent's invitation, for [`Rendezvous::Parent`](super::join::Rendezvous::Parent).
    invitation: Invitation,
}

/// Whether a parent has started this process for a group.
#[must_use]
pub fn is_child() -> bool {
    std::env::var_os(INVITED).is_some()
}

impl Invited {
    /// The invitation of this process, if a parent has started it for a group. From now on this process dies with its parent.
    ///
    /// # Errors
    /// The variable holds no invitation, or the parent is gone already.
    pub fn of_parent() -> io::Result<Option<Self>> {
        let Ok(text) = std::env::var(INVITED) else { return Ok(None) };
        let malformed = |why: String| io::Error::other(format!("{INVITED}={text}: no invitation: {why}"));
        let invited: Self = serde_json::from_str(&text).map_err(|e| malformed(e.to_string()))?;
        if invited.process >= invited.invitation.size.processes {
            return Err(malformed("there is no process of that number".to_owned()));
        }
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before that.
        let parent = getppid().map(|pid| u64::from(pid.as_raw_nonzero().get().unsigned_abs()));
        if parent != Some(invited.invitation.at.by.pid) {
            return Err(io::Error::other("the parent is gone"));
        }
        // What `ps` and `top` show. Advice only.
        if let Ok(name) = CString::new(format!("veriep-{}", invited.process)) {
            let _ = rustix::thread::set_name(&name);
        }
        Ok(Some(invited))
    }

    /// Joins the group, which must be this one.
    ///
    /// # Errors
    /// It is another one, the parent is gone, or the system refuses.
    pub fn join(&self, group: GroupSpec) -> Result<Joined, JoinError> {
        let request = JoinRequest { process: self.process, group, patience: STARTS };
        request.join(Rendezvous::Parent(&self.invitation), &mut || true)
    }

    /// The size of the group.
    #[must_use]
    pub const fn size(&self) -> GroupSize {
        self.invitation.size
    }
}

/// Lets a child ignore Ctrl-C and SIGTERM from its first instruction: they may come to the whole group before it can, and are the
/// parent's to answer.
#[allow(unsafe_code)]
fn ignore_interrupts(command: &mut Command) {
    let ignore = || {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            // SAFETY: between fork and exec a process may set what it does with a signal.
            if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure calls only what a process may between fork and exec, and allocates nothing.
    unsafe { command.pre_exec(ignore) };
}

/// A process that this one has started.
#[derive(Debug)]
struct Started {
    child: Child,
    /// Lines that it says, until it closes its output.
    said: Receiver<Vec<u8>>,
}

/// All processes of a group that this one has started; none of them outlives this value.
#[derive(Debug)]
pub struct Children {
    all: Vec<Started>,
    peers: Peers,
    world: Arc<World>,
    /// They open its memory when they join.
    founded: Arc<Founded>,
}

impl Children {
    /// Starts a copy of this program for every process of a group, with the same arguments. `world` is how this
    /// process sees it.
    ///
    /// # Errors
    /// The system does not start one.
    pub fn start(founded: Arc<Founded>, world: Arc<World>, task: Task) -> io::Result<Self> {
        let mut children = Self { all: Vec::new(), peers: Peers::default(), world, founded };
        let table = MemberTable(&children.world.board);
        let arguments: Vec<_> = std::env::args_os().collect();
        for process in 0..children.world.processes() {
            let invited = Invited { process, task, invitation: children.founded.invitation() };
            // The file that runs, also if another one has taken its name meanwhile.
            let mut command = Command::new("/proc/self/exe");
            command.args(arguments.iter().skip(1));
            if let Some(name) = arguments.first() {
                command.arg0(name);
            }
            command.env(INVITED, serde_json::to_string(&invited)?);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            ignore_interrupts(&mut command);
            let mut child = command.spawn()?;
            let (pid, output) = (child.id(), child.stdout.take());
            let (say, said) = channel();
            children.all.push(Started { child, said });
            // Its parent, who has not waited for it, cannot take another process for it.
            table.enter(process, Identity::of_pid(pid.into()));
            let listen = move || {
                // What has come until an error is what there is.
                let lines = output.into_iter().flat_map(|output| BufReader::new(output).split(b'\n'));
                lines.map_while(Result::ok).try_for_each(|line| say.send(line))
            };
            thread::Builder::new().spawn(listen)?;
        }
        children.peers = Peers::of(&children.world, table.members())?;
        Ok(children)
    }

    /// Says a line to all processes.
    ///
    /// # Errors
    /// One hears no more.
    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        self.all
            .iter_mut()
            .filter_map(|started| started.child.stdin.as_mut())
            .try_for_each(|stdin| writeln!(stdin, "{line}"))
    }

    /// The next line that a process says, or an empty one when it will say no more.
    pub fn said(&mut self, process: usize) -> Vec<u8> {
        self.all[process].said.recv().unwrap_or_default()
    }

    /// The same if it has come already.
    pub fn has_said(&mut self, process: usize) -> Option<Vec<u8>> {
        self.all[process].said.try_recv().ok()
    }

    /// Whether all have ended.
    #[must_use]
    pub fn have_ended(&self) -> bool {
        self.peers.have_ended()
    }
}

impl Watched for Children {
    fn reap(&mut self) {
        self.peers.look(|process, how| self.world.died(process, how));
    }

    fn left(&self, process: usize) -> Option<How> {
        self.world.how_died(process)
    }

    fn has_ended(&self, process: usize) -> bool {
        self.peers.has_ended(process)
    }

    fn kill(&mut self) {
        self.reap();
        self.all.iter_mut().for_each(|started| drop(started.child.kill()));
        self.all.iter_mut().for_each(|started| drop(started.child.wait()));
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.kill();
    }
}
