//! When a group that does not move has waited long enough.

use super::World;
#[cfg(target_os = "linux")]
use super::{Departed, Phase};
use crate::interrupt;
use core::time::Duration;
use std::time::Instant;

/// Longer than this between two looks, and it is unknown which did not move.
const ABSENT: Duration = Duration::from_secs(1);

/// Who has been asked for the end waits no longer for a group that does not move.
const ASKED: Duration = Duration::from_secs(1);

/// So many deadlines without progress are enough, also if some worker has not been heard of meanwhile.
const PATIENCE: u32 = 10;

/// The last progress that a watcher saw.
#[derive(Clone, Debug)]
pub struct Patience {
    deadline: Duration,
    progress: u64,
    /// Passes in vain of all workers then.
    in_vain: Vec<u64>,
    /// What each process has shown of running at all, and since when it has shown nothing new.
    #[cfg(target_os = "linux")]
    beats: Vec<(u64, Instant)>,
    /// Since when.
    since: Instant,
    /// The last look.
    last: Instant,
}

impl Patience {
    /// Begins now.
    #[must_use]
    pub fn new(deadline: Duration) -> Self {
        let now = Instant::now();
        Self {
            deadline,
            progress: u64::MAX,
            in_vain: Vec::new(),
            #[cfg(target_os = "linux")]
            beats: Vec::new(),
            since: now,
            last: now,
        }
    }

    /// Whether no core of the group has moved for the deadline, although all have tried: a worker that the system does
    /// not run, or whose experts take long, is not stuck.
    pub fn is_spent(&mut self, world: &World) -> bool {
        let idle = self.look(world);
        idle >= self.deadline()
            && (world.have_tried(&self.in_vain, &|_| true)
                || idle >= self.deadline * PATIENCE && !world.is_between_units())
    }

    /// How long the group may stand still: shorter once the caller has asked for the end.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        if interrupt::is_asked() { self.deadline.min(ASKED) } else { self.deadline }
    }

    /// For how long no core has moved.
    pub fn look(&mut self, world: &World) -> Duration {
        let (progress, now) = (world.progress(), Instant::now());
        // Who has not looked for long was not run itself: the process was stopped, or the machine is very busy.
        let absent = now - self.last > ABSENT.max(self.deadline / 4);
        if progress != self.progress || absent {
            (self.progress, self.since) = (progress, now);
            world.count_in_vain(&mut self.in_vain);
            #[cfg(target_os = "linux")]
            {
                self.beats.clear();
                self.beats.extend(world.beats().map(|beat| (beat, now)));
            }
        }
        self.last = now;
        now - self.since
    }

    /// The processes that have not run at all for so long, nor has anybody moved: to be asked after each look.
    #[cfg(target_os = "linux")]
    pub(super) fn silent(&mut self, world: &World, least: Duration) -> Vec<usize> {
        let mut silent = Vec::new();
        for (process, (beat, (known, since))) in world.beats().zip(&mut self.beats).enumerate() {
            // A process can run once more after the last move and then stop. Between two units, the others wait for it
            // without a deadline.
            if beat != *known {
                (*known, *since) = (beat, self.last);
            }
            let may_be = world.phase_of(process) != Phase::Ended && !world.is_deaf_to(process);
            silent.extend((may_be && self.last - *since >= least).then_some(process));
        }
        silent
    }

    /// Whether all have tried without progress since the last move, but for workers of the dead.
    #[cfg(target_os = "linux")]
    pub(super) fn all_others_have_tried(&self, world: &World, gone: &[Departed]) -> bool {
        let is_gone = |process| gone.iter().any(|departed| departed.process == process);
        world.have_tried(&self.in_vain, &|process| !is_gone(process))
    }
}
