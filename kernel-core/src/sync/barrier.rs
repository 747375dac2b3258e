//! The core barrier: each core publishes its own word and observes all others. It needs no read-modify-write and no reset.
//!
//! ```text
//! bit 63..62  epoch modulo 4      two cores are never more than one barrier apart
//! bit 61..31  rows of the share   } zero at a barrier that carries no sums
//! bit 30..0   of its last expert  }
//! ```
//!
//! A core uses its two words in turn: a core that has passed barrier `n` may arrive at `n + 1` while a slow one still reads
//! the sums of `n`. It cannot arrive at `n + 2` before the slow one has arrived at `n + 1`. At `n + 1` its word of `n` may still be
//! under way, so the two are in different lines: over a memory that writes back whole lines the second would undo the first.

use crate::fabric::{Fabric, Progress, ProtocolError, Result, Wait};
use crate::layout::state::core_word;
use crate::plan::counts::ShareSum;
use crate::units::{CoreId, RankId};

const SUM_BITS: u32 = 31;
const SUM_MASK: u64 = (1 << SUM_BITS) - 1;
const EPOCH_SHIFT: u32 = 62;
const EPOCHS: u32 = 4;

/// A core among the cores of its rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreRef {
    pub(crate) rank: RankId,
    pub(crate) core: CoreId,
    /// The number of cores of the rank.
    pub(crate) cores: u32,
}

/// The steps of a core at a barrier. If its effects need not have landed, it begins by arriving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Meeting {
    /// Wait until everything that this core sent has landed, including clears of the previous operator.
    Quiet,
    /// Arrive.
    Arrive,
    /// Await all cores.
    Barrier,
}

phase_names! { Meeting: Quiet Arrive Barrier }

impl Meeting {
    /// Advances by one step; returns [`Done`](Progress::Done) once all cores have arrived. `epoch` is the last barrier that
    /// was passed or arrived at.
    #[inline(always)]
    pub(crate) fn step<F: Fabric + ?Sized>(
        &mut self,
        CoreRef { rank, core, cores }: CoreRef,
        fabric: &mut F,
        epoch: &mut u32,
    ) -> Result<Progress> {
        *self = match self {
            Self::Quiet if !fabric.quiet()? => return Ok(Progress::Pending(Wait::QUIET)),
            Self::Quiet | Self::Arrive if cores == 1 => return Ok(Progress::Done),
            Self::Quiet => Self::Arrive,
            Self::Arrive => {
                arrive(fabric, rank, core, epoch, ShareSum::default())?;
                Self::Barrier
            }
            Self::Barrier => {
                let missing = missing(fabric, cores, core, *epoch)?;
                return Ok(missing.map_or(Progress::Done, |core| Progress::Pending(Wait::barrier(core))));
            }
        };
        Ok(Progress::Stepped)
    }
}

/// Returns the last barrier that a core has passed, modulo 4. It reads only its own words: they have landed once every core
/// of the rank has passed that barrier, which the join before an operator ensures.
///
/// # Errors
/// The words hold epochs that cannot follow each other, or the fabric refuses.
pub(crate) fn current_epoch<F: Fabric + ?Sized>(fabric: &F, core: CoreId) -> Result<u32> {
    let (even, odd) = (fabric.observe(core_word(core, 0))?, fabric.observe(core_word(core, 1))?);
    last_of(even, odd).map_err(|epoch| ProtocolError::CoreWord {
        core,
        seen: if epoch == 0 { even } else { odd },
        epoch,
    })
}

/// Returns the last barrier, modulo 4, at which a core with these two words has arrived.
///
/// # Errors
/// The words hold epochs that cannot follow each other. Returns the barrier, 0 or 1, whose word cannot be.
pub const fn last_of(even: u64, odd: u64) -> Result<u32, u32> {
    match (epoch_of(even), epoch_of(odd)) {
        // No barrier has been passed: both words are still zero.
        (0, 0) if even == 0 && odd == 0 => Ok(0),
        (epoch @ (0 | 2), at) if at == (epoch + 1) % EPOCHS => Ok(at),
        (epoch @ (0 | 2), at) if at == (epoch + 3) % EPOCHS => Ok(epoch),
        (0 | 2, _) => Err(1),
        _ => Err(0),
    }
}

/// Arrives with a sum at the barrier after `epoch`, which becomes that one. It has one publish.
///
/// # Errors
/// The fabric refuses.
pub fn arrive<F: Fabric + ?Sized>(
    fabric: &mut F,
    rank: RankId,
    core: CoreId,
    epoch: &mut u32,
    sum: ShareSum,
) -> Result<(), ProtocolError> {
    let next = (*epoch + 1) % EPOCHS;
    fabric.publish(rank, core_word(core, next), word(next, sum))?;
    *epoch = next;
    Ok(())
}

/// Returns the word of a core that has arrived.
#[inline]
#[must_use]
pub fn word(epoch: u32, sum: ShareSum) -> u64 {
    // The sizes of the areas keep the sums below 2^31; the mask ensures that no sum reaches the epoch.
    let sums = (u64::from(sum.rows) & SUM_MASK) << SUM_BITS | u64::from(sum.of_last_expert) & SUM_MASK;
    u64::from(epoch) << EPOCH_SHIFT | sums
}

/// Returns the first other core that has not arrived at barrier `epoch`, or `None` when all have.
///
/// # Errors
/// A core is in an impossible epoch, or the fabric refuses.
pub fn missing<F: Fabric + ?Sized>(
    fabric: &F,
    cores: u32,
    core: CoreId,
    epoch: u32,
) -> Result<Option<CoreId>, ProtocolError> {
    for other in (0..cores).map(CoreId).filter(|&other| other != core) {
        let seen = fabric.observe(core_word(other, epoch))?;
        let at = epoch_of(seen);
        if at == epoch {
            continue;
        }
        // The word's former epoch is two earlier; an odd word holds 0 until its first use.
        let former = at == (epoch + 2) % EPOCHS || (seen == 0 && epoch == 1);
        if !former {
            return Err(ProtocolError::CoreWord { core: other, seen, epoch });
        }
        return Ok(Some(other));
    }
    Ok(None)
}

/// Returns the sum with which another core arrived at `epoch`. It is valid after [`missing`] has returned `None`.
///
/// # Errors
/// The last expert has more rows than the whole share, or the fabric refuses.
pub fn sum_of<F: Fabric + ?Sized>(fabric: &F, core: CoreId, epoch: u32) -> Result<ShareSum, ProtocolError> {
    let seen = fabric.observe(core_word(core, epoch))?;
    let sum = sum_in(seen);
    if sum.of_last_expert > sum.rows {
        return Err(ProtocolError::CoreWord { core, seen, epoch });
    }
    Ok(sum)
}

/// Returns the sum in a word.
#[must_use]
pub const fn sum_in(word: u64) -> ShareSum {
    ShareSum { rows: (word >> SUM_BITS & SUM_MASK) as u32, of_last_expert: (word & SUM_MASK) as u32 }
}

const fn epoch_of(word: u64) -> u32 {
    (word >> EPOCH_SHIFT) as u32
}
