//! The sends of a core of fullmesh_v2: expert by expert, rotated by the rank (910C guide, section 2.1), and after them its
//! shared pairs. Records of one expert leave in the order of their slots.

use super::route::{Send, Sends, moe_pair};
use crate::inputs::Inputs;
use crate::units::{ExpertId, Pair};
use core::ops::Range;

/// The sends of one core, in its order.
#[derive(Clone, Debug)]
pub struct ExpertSends<'a> {
    /// The core's share of the pairs, of which only the shared ones are sent from here.
    pub sends: Sends<'a>,
    /// Their slots, by [`walk`](super::route::walk).
    pub slots: &'a [u32],
    /// The MoE experts to which it sends every record.
    pub experts: &'a Range<u32>,
}

/// The position of a core in its sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Cursor {
    /// The number of the expert, or after the experts of the shared pair, in the order of sending.
    item: u32,
    /// The number of pairs examined for this expert.
    pair: u32,
    /// The number of pairs found for this expert.
    slot: u32,
}

impl ExpertSends<'_> {
    /// Returns the sends in order.
    pub fn iter<'i>(&'i self, inputs: &'i Inputs<'_>) -> impl Iterator<Item = Send> + 'i {
        let first = self.next(inputs, Cursor::default());
        core::iter::successors(first, |&(_, at)| self.next(inputs, at)).map(|(send, _)| send)
    }

    /// Returns the next send, and the position after it; `None` after the last.
    pub(crate) fn next(&self, inputs: &Inputs<'_>, mut at: Cursor) -> Option<(Send, Cursor)> {
        let experts = self.experts.end - self.experts.start;
        while at.item < experts {
            let e = self.sends.order.item(self.experts, self.sends.rank, at.item);
            if let Some((i, pair)) = self.next_pair(inputs, e, at.pair) {
                let send = Send { pair, home: self.sends.shape.moe_home(ExpertId(e)), slot: at.slot };
                return Some((send, Cursor { pair: i + 1, slot: at.slot + 1, ..at }));
            }
            at = Cursor { item: at.item + 1, ..Cursor::default() };
        }
        let shared = self.sends.moe_len();
        (at.item..experts + self.sends.len() - shared).find_map(|item| {
            let send = self.sends.get(inputs, self.slots, shared + item - experts)?;
            Some((send, Cursor { item: item + 1, ..Cursor::default() }))
        })
    }

    /// Returns the first active pair of the rank, from flat number `from` on, that goes to expert `e`.
    fn next_pair(&self, inputs: &Inputs<'_>, e: u32, from: u32) -> Option<(u32, Pair)> {
        let id = e.cast_signed();
        let ids = inputs.expert_ids.get(from as usize..)?;
        (from..).zip(ids).filter(|&(_, &seen)| seen == id).find_map(|(i, _)| {
            let pair = moe_pair(self.sends.shape, i);
            inputs.pair_is_active(self.sends.shape, pair.token, pair.k).then_some((i, pair))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::order::SendOrder;
    use crate::plan::{route, split};
    use crate::shape::{Config, Protocol};
    use crate::testing::domain::{Dice, Domain, OwnedMask, Tensors, shape as shape_of};
    use crate::testing::random;
    use crate::units::{CoreId, RankId};
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn sends_of(config: &Config<'_>, rank: RankId, tensors: &Tensors, core: u32) -> Vec<Send> {
        let shape = shape_of(config);
        let work = split::work(&shape, rank, CoreId(core));
        let mut slots = vec![0; route::share_len(&work.sends) as usize];
        let mut counts = vec![0; route::destinations(&shape) as usize];
        route::walk(&shape, rank, &tensors.inputs(), &work.sends, &mut counts, &mut slots);
        let order = SendOrder::Staggered;
        let sends = Sends::new(&shape, rank, order, &work.sends);
        ExpertSends { sends, slots: &slots, experts: &work.experts }.iter(&tensors.inputs()).collect()
    }

    proptest! {
        #![proptest_config(random::config(256))]

        #[test]
        fn the_cores_together_send_the_same_rows_as_the_plain_layout(
            (moe_ranks, local, s, k) in (1i64..4, 1i64..4, 0i64..=2, 1i64..=4),
            (bs, cores, zero_expert_num, seed) in (1i64..=6, 1i64..=20, 0i64..=2, any::<u64>()),
        ) {
            let e = moe_ranks * local;
            let domain = Domain { r: moe_ranks + s, e, s, rs: s, k: k.min(e), h: 1, bs, cores };
            let plain = shape_of(&Config { zero_expert_num, ..domain.config() });
            let rank = RankId(Dice(seed).below(plain.ep_world_size()));
            let tensors = Tensors::random(&plain, rank, &mut Dice(seed));
            let config = Config { comm_alg: Protocol::FullmeshV2, zero_expert_num, ..domain.config() };
            let mut all: Vec<_> =
                (0..cores as u32).flat_map(|core| sends_of(&config, rank, &tensors, core)).collect();
            let share = split::DispatchShare { moe: 0..(bs * domain.k) as u32, shared: 0..(bs * s) as u32 };
            let mut slots = vec![0; route::share_len(&share) as usize];
            let mut counts = vec![0; route::destinations(&plain) as usize];
            route::walk(&plain, rank, &tensors.inputs(), &share, &mut counts, &mut slots);
            let sends = Sends::new(&plain, rank, SendOrder::Plain, &share);
            let inputs = tensors.inputs();
            let mut expected: Vec<_> = sends.iter(&inputs, &slots).collect();
            let key = |send: &Send| (send.pair.token, send.pair.k);
            all.sort_by_key(key);
            expected.sort_by_key(key);
            prop_assert_eq!(all, expected);
        }
    }

    #[test]
    fn a_core_sends_by_expert_and_slot_from_an_expert_chosen_by_its_rank() {
        let domain = Domain { r: 3, e: 6, s: 0, rs: 0, k: 2, h: 1, bs: 4, cores: 1 };
        let config = Config { comm_alg: Protocol::FullmeshV2, ..domain.config() };
        let shape = shape_of(&config);
        let ids = vec![5, 0, 0, 3, 5, 3, 2, 0];
        let tensors = Tensors::new(&shape, RankId(2), ids, OwnedMask::None);
        let sent = sends_of(&config, RankId(2), &tensors, 0);
        let sent: Vec<_> =
            sent.iter().map(|s| (s.home.rank.0 * 2 + s.home.local_expert, s.slot, s.pair.token.0)).collect();
        assert_eq!(
            sent,
            [(2, 0, 3), (3, 0, 1), (3, 1, 2), (5, 0, 0), (5, 1, 2), (0, 0, 0), (0, 1, 1), (0, 2, 3)]
        );
    }
}
