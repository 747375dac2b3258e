//! Files that stand for processes of this machine, which need not be children of this one.
#![allow(unsafe_code)]

use core::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;

/// A process, by a file that is that process and no later one of the same number.
#[derive(Debug)]
pub(super) struct Pidfd(OwnedFd);

/// What Linux 6.15 and later tell of a process by its file (`struct pidfd_info`, first version).
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    numbers: [u32; 11],
    exit: i32,
}

const _: () = assert!(size_of::<Info>() == 64);
/// `PIDFD_GET_INFO`
const GET_INFO: u64 = 0xc040_ff0b;
/// `PIDFD_INFO_EXIT`
const EXIT: u64 = 1 << 3;

impl Pidfd {
    /// The process of that number, if there is one.
    pub(super) fn of(pid: u32) -> io::Result<Option<Self>> {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(file) => Ok(Some(Self(file))),
            Err(Errno::SRCH) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// How, as a parent is told, once the parent has been; and where the system tells others.
    pub(super) fn exit_code(&self) -> Option<i32> {
        let mut info = Info { mask: EXIT, ..Info::default() };
        // SAFETY: the file is open, the request reads and writes the 64 bytes that its number says, and `info` has them.
        let code = unsafe { libc::ioctl(self.0.as_raw_fd(), GET_INFO as _, &raw mut info) };
        let told = code == 0 && info.mask & EXIT != 0;
        told.then_some(info.exit)
    }
}

/// Waits until one of these processes ends, something comes to `stop`, or so long; takes those out that have ended. `false` if it
/// is to stop.
pub(super) fn next_end<T>(
    peers: &mut Vec<(T, Pidfd)>,
    stop: Option<&OwnedFd>,
    limit: Duration,
    mut told: impl FnMut(T, &Pidfd),
) -> bool {
    let limit = Timespec::try_from(limit).ok();
    let mut files: Vec<_> = peers.iter().map(|(_, pidfd)| PollFd::new(&pidfd.0, PollFlags::IN)).collect();
    files.extend(stop.map(|stop| PollFd::new(stop, PollFlags::IN)));
    if poll(&mut files, limit.as_ref()).is_err() {
        // Interrupted.
        return true;
    }
    let ended: Vec<_> = files.iter().map(|file| !file.revents().is_empty()).collect();
    if ended.get(peers.len()) == Some(&true) {
        return false;
    }
    for i in (0..peers.len()).rev().filter(|&i| ended[i]) {
        let (who, pidfd) = peers.swap_remove(i);
        told(who, &pidfd);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_seen_to_end() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = Pidfd::of(child.id()).unwrap().unwrap();
        assert!(pidfd.exit_code().is_none());
        let mut living = vec![(7, pidfd)];
        next_end(&mut living, None, Duration::ZERO, |_, _| panic!("it lives"));
        child.kill().unwrap();
        let mut told = None;
        while told.is_none() {
            next_end(&mut living, None, Duration::from_secs(1), |who, _| told = Some(who));
        }
        assert!(told == Some(7) && living.is_empty());
        let pidfd = Pidfd::of(child.id()).unwrap().unwrap();
        child.wait().unwrap();
        assert!(Pidfd::of(child.id()).unwrap().is_none() && Pidfd::of(0).unwrap().is_none());
        // An older system does not say.
        assert!(matches!(pidfd.exit_code(), None | Some(9)), "{:?}", pidfd.exit_code());
    }
}
