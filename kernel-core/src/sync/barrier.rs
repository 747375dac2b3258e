//! The core barrier: each core publishes its own word and observes all others. No read-modify-write, nothing
//! to reset.
//!
//! ```text
//! bit 63..62  epoch modulo 4      two cores are never more than one barrier apart
//! bit 61..31  rows of the share   } zero at a barrier that carries no sums
//! bit 30..0   of its last expert  }
//! ```
//!
//! A core has two words, used by turns: a core that has passed barrier `n` may arrive at `n + 1` while a slow
//! one still reads the sums of `n`. It cannot arrive at `n + 2` before that one has arrived at `n + 1`.

use crate::fabric::{Fabric, ProtocolError};
use crate::layout::state::core_word;
use crate::plan::counts::ShareSum;
use crate::units::{CoreId, RankId};

const SUM_BITS: u32 = 31;
const SUM_MASK: u64 = (1 << SUM_BITS) - 1;
const EPOCH_SHIFT: u32 = 62;
const EPOCHS: u32 = 4;

/// The barrier that a core has passed last, modulo 4. It reads its own words only: they have landed once every
/// core of the rank has passed that barrier, which the join before an operator makes sure of.
///
/// # Errors
/// The words hold epochs that cannot follow each other, or the fabric refuses.
pub(crate) fn current_epoch<F: Fabric + ?Sized>(fabric: &F, core: CoreId) -> Result<u32, ProtocolError> {
    let (even, odd) = (fabric.observe(core_word(core, 0))?, fabric.observe(core_word(core, 1))?);
    match (epoch_of(even), epoch_of(odd)) {
        // Nothing passed yet: both words as the group was created.
        (0, 0) if even == 0 && odd == 0 => Ok(0),
        (epoch @ (0 | 2), at) if at == (epoch + 1) % EPOCHS => Ok(at),
        (epoch @ (0 | 2), at) if at == (epoch + 3) % EPOCHS => Ok(epoch),
        (0 | 2, _) => Err(ProtocolError::CoreWord { core, seen: odd, epoch: 1 }),
        _ => Err(ProtocolError::CoreWord { core, seen: even, epoch: 0 }),
    }
}

/// The epoch after `epoch`.
#[must_use]
pub const fn next_epoch(epoch: u32) -> u32 {
    (epoch + 1) % EPOCHS
}

/// Arrives at barrier `epoch` with a sum. One publish.
///
/// # Errors
/// The fabric refuses.
pub fn arrive<F: Fabric + ?Sized>(
    fabric: &mut F,
    rank: RankId,
    core: CoreId,
    epoch: u32,
    sum: ShareSum,
) -> Result<(), ProtocolError> {
    fabric.publish(rank, core_word(core, epoch), word(epoch, sum))?;
    Ok(())
}

/// The word of a core that has arrived.
#[inline]
#[must_use]
pub fn word(epoch: u32, sum: ShareSum) -> u64 {
    // Below 2^31 by the sizes of the areas; a mask, so that no sum could ever reach the epoch.
    let sums = (u64::from(sum.rows) & SUM_MASK) << SUM_BITS | u64::from(sum.of_last_expert) & SUM_MASK;
    u64::from(epoch) << EPOCH_SHIFT | sums
}

/// The first other core that has not arrived at barrier `epoch`, or `None` when all have.
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
        // The word's former epoch is two before; an odd word holds 0 until its first use.
        let former = at == (epoch + 2) % EPOCHS || (seen == 0 && epoch == 1);
        if !former {
            return Err(ProtocolError::CoreWord { core: other, seen, epoch });
        }
        return Ok(Some(other));
    }
    Ok(None)
}

/// The sum with which another core arrived at `epoch`. Meaningful after [`missing`] has answered `None`.
///
/// # Errors
/// The last expert has more rows than the whole share, or the fabric refuses.
pub fn sum_of<F: Fabric + ?Sized>(fabric: &F, core: CoreId, epoch: u32) -> Result<ShareSum, ProtocolError> {
    let seen = fabric.observe(core_word(core, epoch))?;
    let (rows, of_last_expert) = ((seen >> SUM_BITS & SUM_MASK) as u32, (seen & SUM_MASK) as u32);
    if of_last_expert > rows {
        return Err(ProtocolError::CoreWord { core, seen, epoch });
    }
    Ok(ShareSum { rows, of_last_expert })
}

const fn epoch_of(word: u64) -> u32 {
    (word >> EPOCH_SHIFT) as u32
}
