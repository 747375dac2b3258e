//! A program that is started, heard and ended, each of them within a time.

use core::time::Duration;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Instant;

/// How long a program may take to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the last words of one that has ended may take to arrive.
const WORDS: Duration = Duration::from_millis(200);
/// Lines that may wait to be heard; a child that prints more waits, too.
const LINES_MAX: usize = 256;
/// Bytes of a line. One that has no end comes in pieces.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// A program that runs, with all that it starts in a process group of their own.
pub(crate) struct Started {
    child: Child,
    out: Receiver<String>,
    err: Receiver<String>,
    /// It has been waited for: its number may be another's.
    gone: bool,
    /// It has not done in time what it was to do: it will not end by itself either.
    stuck: bool,
}

impl Started {
    pub(crate) fn new(command: &mut Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let mut child = command.spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let closed = || sync_channel(0).1;
        // Whatever fails from here on, the child is ended.
        let mut started = Self { child, out: closed(), err: closed(), gone: false, stuck: false };
        started.out = lines(stdout)?;
        started.err = lines(stderr)?;
        Ok(started)
    }

    /// Says a line to it.
    pub(crate) fn tell(&mut self, line: &str) -> io::Result<()> {
        let stdin = self.child.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(stdin, "{line}").and_then(|()| stdin.flush())
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self, limit: Duration) -> Result<String, RecvTimeoutError> {
        let line = self.out.recv_timeout(limit);
        self.stuck |= line == Err(RecvTimeoutError::Timeout);
        line
    }

    /// How it has ended and what it said on stderr; nothing if it does not end in that time.
    pub(crate) fn ended(&mut self, limit: Duration) -> Option<(String, Vec<String>)> {
        if !self.ends_within(limit) {
            self.stuck = true;
            return None;
        }
        let status = self.reap().map_or_else(|e| e.to_string(), |status| status.to_string());
        let since = Instant::now();
        let next = || self.err.recv_timeout(WORDS.saturating_sub(since.elapsed())).ok();
        Some((status, core::iter::from_fn(next).collect()))
    }

    /// Whether it ends in that time.
    fn ends_within(&mut self, limit: Duration) -> bool {
        let since = Instant::now();
        while !self.gone && !group::has_ended(&mut self.child) {
            if since.elapsed() >= limit {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Ends the processes that are left of it and takes its status: one that holds its pipes open would be waited for.
    fn reap(&mut self) -> io::Result<std::process::ExitStatus> {
        if !self.gone {
            group::kill(&mut self.child);
        }
        self.gone = true;
        self.child.wait()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // At the end of its orders it ends. Who does not answer is asked: mpirun then ends its ranks and takes away their
        // files.
        drop(self.child.stdin.take());
        if self.stuck || !self.ends_within(PATIENCE) {
            group::ask_to_end(&self.child);
            self.ends_within(PATIENCE);
        }
        let _ = self.reap();
    }
}

/// Lines, read by a thread of its own: a wait for one must end at the deadline.
fn lines(pipe: Option<impl Read + Send + 'static>) -> io::Result<Receiver<String>> {
    let (tell, heard) = sync_channel(LINES_MAX);
    let read = move || {
        let Some(mut pipe) = pipe.map(BufReader::new) else { return };
        let mut next = || {
            let mut line = Vec::new();
            let read = pipe.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            read.is_ok_and(|bytes| bytes > 0).then_some(line)
        };
        while let Some(line) = next() {
            if tell.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().spawn(read)?;
    Ok(heard)
}

/// The child is not waited for yet where these are called, so the number of its group is still its own.
#[cfg(target_os = "linux")]
mod group {
    use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
    use std::process::Child;

    pub(crate) fn has_ended(child: &mut Child) -> bool {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(Pid::from_child(child)), how), Ok(None))
    }

    pub(crate) fn ask_to_end(child: &Child) {
        let _ = kill_process_group(Pid::from_child(child), Signal::TERM);
    }

    pub(crate) fn kill(child: &mut Child) {
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    }
}

#[cfg(not(target_os = "linux"))]
mod group {
    use std::process::Child;

    pub(crate) fn has_ended(child: &mut Child) -> bool {
        !matches!(child.try_wait(), Ok(None))
    }

    pub(crate) fn ask_to_end(_: &Child) {}

    pub(crate) fn kill(child: &mut Child) {
        let _ = child.kill();
    }
}
