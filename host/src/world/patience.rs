//! When a group that does not move has waited long enough.

use super::World;
use core::time::Duration;
use std::time::Instant;

/// Longer than this between two looks, and nobody can tell who did not move.
const ABSENT: Duration = Duration::from_secs(1);

/// So many deadlines without progress are enough, also if some worker has not been heard of meanwhile.
const PATIENCE: u32 = 10;

/// What somebody saw who looks for progress now and then.
#[derive(Clone, Debug)]
pub struct Patience {
    deadline: Duration,
    progress: u64,
    /// Passes in vain of all workers then.
    in_vain: Vec<u64>,
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
        Self { deadline, progress: u64::MAX, in_vain: Vec::new(), since: now, last: now }
    }

    /// Whether nobody in the group has moved for the deadline, although everybody has tried: a worker that the system does
    /// not run, or whose experts take long, is not stuck.
    pub fn is_spent(&mut self, world: &World) -> bool {
        let idle = self.look(world);
        idle >= self.deadline
            && (world.all_have_tried(&self.in_vain)
                || idle >= self.deadline * PATIENCE && !world.is_between_units())
    }

    /// For how long nobody has moved.
    pub fn look(&mut self, world: &World) -> Duration {
        let (progress, now) = (world.progress(), Instant::now());
        // Who has not looked for long was not run itself: the process was stopped, or the machine is very busy.
        let absent = now - self.last > ABSENT.max(self.deadline / 4);
        if progress != self.progress || absent {
            (self.progress, self.since) = (progress, now);
            world.count_in_vain(&mut self.in_vain);
        }
        self.last = now;
        now - self.since
    }

    /// Whether everybody has tried in vain since the last move.
    #[must_use]
    pub fn all_have_tried(&self, world: &World) -> bool {
        world.all_have_tried(&self.in_vain)
    }
}
