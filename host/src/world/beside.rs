//! Processes of the same machine that are not this one's children: whether they live, and how they ended.
#![allow(unsafe_code)]

use super::How;
use super::watch::how;
use core::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// A process, by a file that is that process and no later one of the same number.
#[derive(Debug)]
pub(super) struct Peer(OwnedFd);

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

impl Peer {
    /// The process of that number, if there is one.
    pub(super) fn new(pid: u32) -> io::Result<Option<Self>> {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(file) => Ok(Some(Self(file))),
            Err(Errno::SRCH) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        let mut file = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut file, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// How, once its parent has taken note, and where the system tells.
    pub(super) fn end(&self) -> Option<How> {
        let mut info = Info { mask: EXIT, ..Info::default() };
        // SAFETY: the file is open, the request reads and writes the 64 bytes that its number says, and `info` has them.
        let code = unsafe { libc::ioctl(self.0.as_raw_fd(), GET_INFO as _, &raw mut info) };
        let told = code == 0 && info.mask & EXIT != 0;
        told.then(|| how(ExitStatus::from_raw(info.exit)))
    }
}

/// Waits until one of these processes ends, something comes to `stop`, or so long; takes those out that have ended. `false` if it
/// is to stop.
pub(super) fn next_end<T>(
    peers: &mut Vec<(T, Peer)>,
    stop: &OwnedFd,
    limit: Duration,
    mut told: impl FnMut(T, &Peer),
) -> bool {
    let limit = Timespec::try_from(limit).ok();
    let mut files: Vec<_> = peers.iter().map(|(_, peer)| PollFd::new(&peer.0, PollFlags::IN)).collect();
    files.push(PollFd::new(stop, PollFlags::IN));
    if poll(&mut files, limit.as_ref()).is_err() {
        // Interrupted.
        return true;
    }
    let ended: Vec<_> = files.iter().map(|file| !file.revents().is_empty()).collect();
    if ended.get(peers.len()) == Some(&true) {
        return false;
    }
    for i in (0..peers.len()).rev().filter(|&i| ended[i]) {
        let (who, peer) = peers.swap_remove(i);
        told(who, &peer);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::thread::sleep;

    #[test]
    fn a_peer_is_seen_to_end() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let peer = Peer::new(child.id()).unwrap().unwrap();
        assert!(!peer.has_ended() && peer.end().is_none());
        child.kill().unwrap();
        while !peer.has_ended() {
            sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(Peer::new(child.id()).unwrap().is_none() && Peer::new(0).unwrap().is_none());
        // An older system does not say.
        assert!(matches!(peer.end(), None | Some(How::Signal(9))), "{:?}", peer.end());
    }
}
