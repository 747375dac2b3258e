//! The batch of a dispatch, which its combine must have, too.

use super::{InputError, Inputs};
use crate::shape::{Shape, hash};
use crate::units::{RankId, Token};

/// A number of a rank's active pairs and their experts. The combine of a dispatch must have the same ones: with other ids or
/// another mask it awaits flags that no rank sends, or leaves one for a later round, whose sum is then wrong without an error.
///
/// A caller takes it once per rank, after the check of dispatch ([`Inputs::batch`]), keeps it with the batch, and gives it to
/// the check of combine ([`Inputs::dispatched`]). Several batches may be open. Others almost never have the same number,
/// though an adversary could construct such a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Batch(pub u64);

impl Inputs<'_> {
    /// Returns the batch that a rank brings to dispatch.
    #[must_use]
    pub fn batch(&self, shape: &Shape, rank: RankId) -> Batch {
        let tokens = (0..shape.bs(rank)).map(Token);
        let pairs = tokens.flat_map(|token| {
            self.active_ids(shape, token)
                .flat_map(move |(k, id)| [token.0.into(), k.into(), u64::from(id as u32)])
        });
        // 0 stands for no batch in C.
        Batch(hash(pairs).max(1))
    }

    /// Returns the error of a combine whose dispatch had other pairs.
    pub(super) fn is_dispatched(&self, shape: &Shape, rank: RankId) -> Result<(), InputError> {
        match self.dispatched {
            Some(batch) if batch != self.batch(shape, rank) => Err(InputError::OtherBatch),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::inputs::{InputError, Inputs, Mask};
    use crate::testing::domain::{Dice, Domain, PAIR};
    use crate::units::RankId;
    use core::ops::ControlFlow;

    #[test]
    fn combine_is_refused_with_other_pairs_than_its_dispatch_had() {
        let shape = Domain { e: 4, k: 2, h: 4, bs: 2, ..PAIR }.shape();
        let (rank, x) = (RankId(0), [0; 16]);
        let dispatched =
            Inputs { x: &x, expert_ids: &[0, 3, 2, 1], expert_scales: &[0.5; 4], ..Inputs::default() };
        let masked = Inputs { mask: Mask::Pairs(&[true, false, true, true]), ..dispatched };
        let refused = |of: Inputs<'_>, combined: Inputs<'_>| {
            let mut all = alloc::vec::Vec::new();
            let combined = Inputs { dispatched: Some(of.batch(&shape, rank)), ..combined };
            let _ = combined.check_combine(&shape, rank, &mut |error| {
                all.push(error);
                ControlFlow::Continue(())
            });
            all
        };
        assert_eq!(refused(dispatched, dispatched), []);
        assert_eq!(refused(masked, masked), []);
        // The id of a masked pair may be anything, also another one.
        assert_eq!(refused(masked, Inputs { expert_ids: &[0, 9, 2, 1], ..masked }), []);
        let swapped = Inputs { expert_ids: &[3, 0, 2, 1], ..dispatched };
        for (of, combined) in [
            (dispatched, masked),
            (masked, dispatched),
            (dispatched, swapped),
            (dispatched, Inputs::abstaining(None)),
            (Inputs::abstaining(None), dispatched),
        ] {
            assert_eq!(refused(of, combined), [InputError::OtherBatch]);
        }
    }

    #[test]
    fn any_change_of_the_active_pairs_is_refused_and_no_other() {
        let shape = Domain { e: 8, k: 2, h: 4, bs: 3, ..PAIR }.shape();
        let (rank, mut dice, x) = (RankId(0), Dice(3), [0; 24]);
        let (mut same, mut others) = (0, 0);
        for _ in 0..10_000 {
            let ids: [i32; 6] = core::array::from_fn(|_| dice.below(8) as i32);
            let mask: [bool; 6] = core::array::from_fn(|_| dice.below(4) > 0);
            let (mut other_ids, mut other_mask) = (ids, mask);
            let at = dice.below(6) as usize;
            match dice.below(3) {
                0 => other_ids[at] = dice.below(8) as i32,
                1 => other_mask[at] = !other_mask[at],
                _ => other_ids.swap(at, dice.below(6) as usize),
            }
            let of = |ids: &[i32; 6], mask: &[bool; 6]| {
                let given = Inputs { x: &x, expert_ids: ids, expert_scales: &[0.5; 6], ..Inputs::default() };
                Inputs { mask: Mask::Pairs(mask), ..given }.batch(&shape, rank)
            };
            let active = |ids: &[i32; 6], mask: &[bool; 6]| -> alloc::vec::Vec<_> {
                (0..6).filter(|&i| mask[i]).map(|i| (i, ids[i])).collect()
            };
            let is_same = active(&ids, &mask) == active(&other_ids, &other_mask);
            assert_eq!(of(&ids, &mask) == of(&other_ids, &other_mask), is_same, "{ids:?} {mask:?}");
            if is_same { same += 1 } else { others += 1 }
        }
        assert!(same > 500 && others > 5000, "{same} the same, {others} others");
    }
}
