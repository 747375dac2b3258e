//! Places of direct placement, computed by hand, and the words that belong to it.

use super::*;
use crate::layout::state::{Operator, Partition, core_sums, core_word, results_ready, selector};
use crate::layout::tests::{any_config, assert_disjoint, direct_parts};
use crate::shape::{BatchSizes, Config, Limits};
use crate::testing::domain::shape as shape_of;
use crate::testing::random;
use crate::units::CoreId;
use alloc::vec::Vec;
use proptest::prelude::*;

/// Returns the configuration, without quantised rows if results overwrite them.
const fn suited<'a>(config: &Config<'a>, overwritten: bool) -> Config<'a> {
    Config { quant_mode: if overwritten { 0 } else { config.quant_mode }, ..*config }
}

/// Returns areas by their numbers.
fn numbered(areas: u32, overwritten: bool) -> impl Iterator<Item = Area> {
    (0..areas).map(move |number| Area { number, overwritten })
}

/// Returns the shape, with a window just large enough for `areas` areas.
fn shape_for(config: &Config<'_>, areas: u32, overwritten: bool) -> Shape {
    let plain = shape_of(config);
    let mb = required_bytes(&plain, areas, overwritten).div_ceil(1 << 20).max(plain.window_bytes() >> 20);
    Shape::new(&Config { hccl_buffsize_mb: mb as i64, ..*config }, Limits::None).unwrap()
}

/// Returns the most rows that a rank can receive: a shared-expert rank, and any other.
fn rows_max(config: &Config<'_>) -> [u64; 2] {
    let BatchSizes::Uniform(bs) = config.bs else { panic!("{config:?}") };
    let moe_ranks = config.ep_world_size - config.shared_expert_rank_num;
    let replicas = (config.shared_expert_rank_num / config.shared_expert_num.max(1)).max(1);
    let sources = (config.ep_world_size as u64).div_ceil(replicas as u64);
    let pairs = config.ep_world_size * config.k.min(config.moe_expert_num / moe_ranks);
    [bs as u64 * sources, (bs * pairs) as u64]
}

/// A part of an area: the place of a row of it, and the row's bytes.
type Part = (fn(&Parts, u32) -> Place, u64);

/// Returns the consecutive parts of an area.
fn parts(config: &Config<'_>, overwritten: bool) -> impl Iterator<Item = Part> {
    let h = config.h as u64;
    let payload = if config.quant_mode == 2 { h } else { 2 * h };
    let parts: [Part; 3] = [(Parts::row, payload), (Parts::info, 4 + 12), (Parts::result, 2 * h)];
    parts.into_iter().take(if overwritten { 2 } else { 3 })
}

/// Returns the first shared-expert rank, the first other rank and the last rank.
fn ranks(config: &Config<'_>) -> impl Iterator<Item = RankId> {
    let all = [0, config.shared_expert_rank_num, config.ep_world_size - 1];
    all.map(|rank| RankId(rank as u32)).into_iter()
}

proptest! {
    #![proptest_config(random::config(256))]

    #[test]
    fn rows_infos_and_results_follow_each_other_aligned_in_the_window(
        config in any_config(), areas in 1u32..=3, overwritten: bool,
    ) {
        let config = suited(&config, overwritten);
        let shape = shape_for(&config, areas, overwritten);
        let mut most = 0;
        for rank in ranks(&config) {
            let rows = rows_max(&config)[usize::from(i64::from(rank.0) >= config.shared_expert_rank_num)];
            let mut end = 0u64;
            for area in numbered(areas, overwritten) {
                let its = Parts::of(&shape, rank, area);
                for (place, bytes) in parts(&config, overwritten) {
                    for n in 0..rows as u32 {
                        prop_assert_eq!(place(&its, n), Place::window(end), "row {} of {:?}", n, area);
                        end += bytes;
                    }
                    end = end.next_multiple_of(512);
                }
                for n in 0..if overwritten { rows as u32 } else { 0 } {
                    prop_assert_eq!(its.result(n), its.row(n), "row {} of {:?}", n, area);
                }
            }
            most = most.max(end);
        }
        prop_assert_eq!(required_bytes(&shape, areas, overwritten), most);
        prop_assert!(most <= shape.window_bytes());
    }

    #[test]
    fn areas_and_all_words_beside_them_are_apart(
        config in any_config(), areas in 1u32..=2, overwritten: bool,
    ) {
        let config = suited(&config, overwritten);
        let shape = shape_for(&config, areas, overwritten);
        for rank in ranks(&config) {
            let rows = rows_max(&config)[usize::from(i64::from(rank.0) >= config.shared_expert_rank_num)];
            let mut all = Vec::new();
            for area in numbered(areas, overwritten) {
                all.extend(parts(&config, overwritten).map(|(place, bytes)| (place(&Parts::of(&shape, rank, area), 0), rows * bytes)));
            }
            for partition in [Partition::P0, Partition::P1] {
                all.extend(direct_parts(&shape, partition));
                let sources = (0..shape.ep_world_size()).map(RankId);
                all.extend(sources.map(|source| (results_ready(partition, source), 8)));
            }
            for core in (0..shape.aiv_num()).map(CoreId) {
                all.extend([Operator::Dispatch, Operator::Combine].map(|kind| (selector(kind, core), 8)));
                all.extend([0, 1].map(|epoch| (core_word(core, epoch), 8)));
                if core.0 < shape.ep_world_size() {
                    all.push((core_sums(&shape, core), 4 * u64::from(shape.local_expert_num())));
                }
            }
            prop_assert!(all.iter().all(|(at, _)| at.offset.is_multiple_of(4)));
            assert_disjoint(all, &shape, rank);
        }
    }

    #[test]
    fn an_info_is_a_scale_and_a_triple_that_is_found_again(
        config in any_config(), bits: u32, (source, token, k) in any::<(u32, u32, u32)>(), n in 0u32..1000,
    ) {
        let (shape, scale) = (shape_of(&config), f32::from_bits(bits));
        let info = info_of(scale, Triple { source: RankId(source), token: crate::units::Token(token), k });
        let words = [bits, source, token, k].map(u32::to_le_bytes);
        prop_assert_eq!(&info[..], words.as_flattened());
        let parts = Parts::of(&shape, RankId(0), Area { number: 1, overwritten: false });
        let first = parts.info(0);
        let at = info_behind(first, n);
        prop_assert_eq!(at, parts.info(n));
        prop_assert_eq!(triple_of(at), Place::window(first.offset + 16 * u64::from(n) + 4));
    }

    #[test]
    fn an_unquantised_area_fits_into_the_plain_layouts_two_partitions(config in any_config()) {
        let shape = shape_of(&Config { quant_mode: 0, ..config });
        let partition = shape.combine_area() + shape.dispatch_area();
        let required = required_bytes(&shape, 1, false);
        prop_assert!(required <= 2 * partition, "{required} of 2 * {partition}");
    }
}
