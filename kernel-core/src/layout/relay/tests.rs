use super::*;
use crate::layout::affine::Mode;
use crate::layout::map::{Area, areas};
use crate::layout::tests::assert_disjoint;
use crate::shape::{BatchSizes, Config, Protocol};
use crate::testing::domain::{Domain, shape as shape_of, try_shape};
use crate::testing::random;
use alloc::vec::Vec;
use proptest::prelude::*;

#[test]
fn areas_of_a_hierarchy_do_not_overlap_and_fit_the_required_window() {
    let sizes = [
        (16, 256, 8, 7168, 16, 8),
        (64, 256, 8, 7168, 16, 8),
        (64, 512, 16, 32, 256, 48),
        (16, 16, 1, 32, 1, 1),
    ];
    for (r, e, k, h, bs, cores) in sizes {
        for quant_mode in [0, 2] {
            let domain = Domain { r, e, s: 0, rs: 0, k, h, bs, cores };
            let config = Config { comm_alg: Protocol::Hierarchy, quant_mode, ..domain.config() };
            let shape = shape_of(&config);
            let mut end = 0;
            for area in areas(&shape, Mode::default(), RankId(0)) {
                assert!(area.start.offset >= end, "{area:?} begins inside another");
                assert!(area.slot <= area.stride && area.start.offset.is_multiple_of(8), "{area:?}");
                assert!(area.stride.is_multiple_of(8), "{area:?}: flags are words");
                end = area.start.offset + area.size();
            }
            assert!(end <= shape.window_bytes(), "{end} of {} {config:?}", shape.window_bytes());
            let pitch = record_pitch(&shape);
            assert!(token_bytes(&shape) <= pitch && partial_bytes(&shape) <= pitch);
            // The last combine slot is the last slot or precedes it.
            let last =
                combine_slot(&shape, shape.servers() - 1, Token(shape.bs_max() - 1), pairs_max(&shape) - 1);
            let slots = areas(&shape, Mode::default(), RankId(0)).last().unwrap();
            assert!(last.offset + slots.stride <= slots.start.offset + slots.size());
        }
    }
}

#[test]
fn marks_and_tails_come_back() {
    assert_eq!(unmark(mark(0xFFFF_FFFF_FFFF, 0xFFFF)), (0xFFFF_FFFF_FFFF, 0xFFFF));
    assert_eq!(unmark(mark(7, 3)), (7, 3));
    let domain = Domain { r: 4, e: 8, s: 0, rs: 0, k: 3, h: 8, bs: 5, cores: 1 };
    let config = Config { comm_alg: Protocol::Hierarchy, server_ranks: 2, ..domain.config() };
    let shape = shape_of(&config);
    let part = Part { pairs: 3, position: 2 };
    let tail = Tail { scale: 0.5, source: RankId(3), token: Token(4), part, weight: -2.0 };
    let bytes = tail.to_bytes();
    let bytes = bytes.as_flattened();
    let triple = &bytes[Tail::TRIPLE as usize..Tail::WEIGHT as usize];
    assert_eq!(read_triple(&shape, triple), Ok((RankId(3), Token(4), part)));
    assert_eq!(bytes[..4], 0.5f32.to_le_bytes());
    assert_eq!(bytes[Tail::WEIGHT as usize..], (-2.0f32).to_le_bytes());
    let words = |words: [i32; 3]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let wrong =
        [[4, 0, 1 << 16], [0, 5, 1 << 16], [-1, 0, 1 << 16], [0, 0, 0], [0, 0, 4 << 16], [0, 0, 2 << 16 | 2]];
    for wrong in wrong {
        assert_eq!(read_triple(&shape, &words(wrong)), Err(wrong));
    }
}

#[test]
fn a_returned_row_is_known_by_its_place() {
    let domain = Domain { r: 6, e: 12, s: 0, rs: 0, k: 3, h: 8, bs: 5, cores: 1 };
    let config = Config { comm_alg: Protocol::Hierarchy, server_ranks: 2, ..domain.config() };
    let shape = shape_of(&config);
    for server in 0..3 {
        for (token, position) in (0..5).flat_map(|token| (0..3).map(move |position| (token, position))) {
            let slot = combine_slot(&shape, server, Token(token), position);
            let seen = returned_at(&shape, behind(slot, ROW));
            assert_eq!(seen, Some((server, Token(token), position)));
            assert_eq!(returned_at(&shape, slot), None, "that is its flag");
        }
    }
    assert_eq!(returned_at(&shape, behind(combine_slot(&shape, 3, Token(0), 0), ROW)), None);
    assert_eq!(returned_at(&shape, Place::window(0)), None);
}

/// Any hierarchy, without the product's limits.
fn any_hierarchy() -> impl Strategy<Value = Config<'static>> {
    let sizes = (1i64..6, 1i64..=8, 1i64..5, 1i64..=16, 1i64..60, 1i64..30, 1i64..=48);
    (sizes, any::<[bool; 2]>()).prop_map(|((servers, near, local, k, h, bs, cores), quantised)| {
        let (r, e) = (servers * near, servers * near * local);
        let [quant_mode, comm_quant_mode] = quantised.map(|quantised| if quantised { 2 } else { 0 });
        let domain = Domain { r, e, s: 0, rs: 0, k: k.min(e), h: 8 * h, bs, cores };
        let product = Config { comm_alg: Protocol::Hierarchy, ..domain.config() };
        Config { server_ranks: near, quant_mode, comm_quant_mode, ..product }
    })
}

/// The sizes of a hierarchy, from its configuration alone.
struct Sizes {
    servers: u32,
    near: u32,
    ranks: u32,
    local: u32,
    k: u32,
    bs: u32,
    cores: u32,
    /// Bytes of a record in dispatch, and in combine.
    records: [u64; 2],
    /// Bytes of a near slot in dispatch, and in combine.
    slots: [u64; 2],
}

const KINDS: [Operator; 2] = [Operator::Dispatch, Operator::Combine];

impl Sizes {
    fn of(config: &Config<'_>) -> Self {
        let BatchSizes::Uniform(bs) = config.bs else { panic!("{config:?}") };
        let [r, near, e, k, bs, cores] =
            [config.ep_world_size, config.server_ranks, config.moe_expert_num, config.k, bs, config.aiv_num]
                .map(|n| n as u32);
        let h = config.h as u64;
        let payload = if config.quant_mode == 2 { h } else { 2 * h };
        // int8, and after it a scale of 2 B for each eight elements.
        let sum = if config.comm_quant_mode == 2 { h.next_multiple_of(32) + h / 4 } else { 2 * h };
        let list = 4 * u64::from(k).next_multiple_of(8);
        let records = [32 + payload.next_multiple_of(32) + 32 + 2 * list, 32 + sum.next_multiple_of(8)];
        // Scale, triple and weight follow the row, in combine only the weight.
        let slots = [32 + payload + 20, 32 + 2 * h + 4];
        Self { servers: r / near, near, ranks: r, local: e / r, k, bs, cores, records, slots }
    }

    /// Returns words of all kinds.
    fn words(&self, shape: &Shape) -> Vec<(Place, u64)> {
        let mut all: Vec<_> = (0..self.cores).map(|core| (epoch(CoreId(core)), 8)).collect();
        for near in 0..self.near {
            all.push((entered(near), 8));
            all.extend((0..self.cores).map(|core| (rows_done(near, CoreId(core)), 8)));
        }
        for partition in PARTITIONS {
            all.extend((0..self.servers).map(|server| (end_flag(partition, server), 8)));
            for local_expert in 0..self.local {
                let sources = (0..self.ranks).map(RankId);
                all.extend(sources.map(|source| (count(shape, partition, local_expert, source), 8)));
            }
        }
        all
    }

    /// Returns the near slots in either kind of operator.
    fn near_slots(&self, shape: &Shape, kind: Operator) -> Vec<(Place, u64)> {
        let bytes = self.slots[kind as usize];
        let mut all = Vec::new();
        match kind {
            Operator::Dispatch => {
                for (local_expert, source) in
                    (0..self.local).flat_map(|l| (0..self.ranks).map(move |r| (l, r)))
                {
                    let slot = |slot| (dispatch_slot(shape, local_expert, RankId(source), slot), bytes);
                    all.extend((0..self.bs).map(slot));
                }
            }
            Operator::Combine => {
                let pairs = self.k.min(self.near * self.local);
                for (server, token) in (0..self.servers).flat_map(|s| (0..self.bs).map(move |t| (s, t))) {
                    let slot = |position| (combine_slot(shape, server, Token(token), position), bytes);
                    all.extend((0..pairs).map(slot));
                }
            }
        }
        all
    }

    /// Returns the relay records in either kind of operator, where machines send.
    fn relay_records(&self, shape: &Shape, kind: Operator) -> Vec<(Place, u64)> {
        let of = |(p, server, n)| (record(shape, p, server, n), self.records[kind as usize]);
        self.numbered().map(of).collect()
    }

    /// Returns the records and end flags where an agent sends.
    fn streams(&self, shape: &Shape, kind: Operator) -> Vec<(Place, u64)> {
        let of = |(p, server, n)| {
            (Place::window(gathered(shape, (p, kind), server, n)), self.records[kind as usize])
        };
        let ends = PARTITIONS.into_iter().flat_map(|p| (0..self.servers).map(move |server| (p, server)));
        let ends = ends.map(|(p, server)| (Place::window(gathered_end(shape, p, server)), 8));
        self.numbered().map(of).chain(ends).collect()
    }

    fn numbered(&self) -> impl Iterator<Item = (Partition, u32, u32)> {
        let (servers, bs) = (self.servers, self.bs);
        let of = move |p| (0..servers).flat_map(move |server| (0..bs).map(move |n| (p, server, n)));
        PARTITIONS.into_iter().flat_map(of)
    }
}

const PARTITIONS: [Partition; 2] = [Partition::P0, Partition::P1];

proptest! {
    #![proptest_config(random::config(256))]

    #[test]
    fn words_records_and_slots_are_disjoint_aligned_and_in_the_window(config in any_hierarchy()) {
        let Some(shape) = try_shape(&config) else { return Err(TestCaseError::reject("no shape")) };
        let sizes = Sizes::of(&config);
        for kind in KINDS {
            for relayed in [sizes.relay_records(&shape, kind), sizes.streams(&shape, kind)] {
                let all = [sizes.words(&shape), relayed, sizes.near_slots(&shape, kind)].concat();
                prop_assert!(all.iter().all(|(at, _)| at.offset.is_multiple_of(8)), "flags are words");
                assert_disjoint(all, &shape, RankId(0));
            }
        }
    }

    #[test]
    fn areas_contain_every_word_record_and_slot(config in any_hierarchy()) {
        let Some(shape) = try_shape(&config) else { return Err(TestCaseError::reject("no shape")) };
        let (sizes, areas) = (Sizes::of(&config), areas(&shape, Mode::default(), RankId(0)).collect::<Vec<_>>());
        for area in &areas {
            prop_assert!(area.slot <= area.stride, "{:?}", area);
            prop_assert!(area.start.offset.is_multiple_of(8) && area.stride.is_multiple_of(8), "{:?}", area);
        }
        assert_disjoint(areas.iter().map(|area| (area.start, area.size())).collect(), &shape, RankId(0));
        let near = KINDS.map(|kind| sizes.near_slots(&shape, kind)).concat();
        let relayed = KINDS.map(|kind| sizes.relay_records(&shape, kind)).concat();
        for (at, len) in [sizes.words(&shape), relayed, near].concat() {
            let holds = |area: &&Area| (area.start..Place::window(area.start.offset + area.size())).contains(&at);
            let area = areas.iter().find(holds);
            prop_assert!(area.is_some_and(|area| {
                (at.offset - area.start.offset).is_multiple_of(area.stride) && len <= area.slot
            }), "{} B at {} of {:?}", len, at, area);
        }
    }

    #[test]
    fn a_stream_is_one_piece_that_ends_with_its_flag_and_names_its_server(config in any_hierarchy()) {
        let Some(shape) = try_shape(&config) else { return Err(TestCaseError::reject("no shape")) };
        let sizes = Sizes::of(&config);
        for (partition, kind, server) in PARTITIONS.into_iter().flat_map(|partition| {
            KINDS.into_iter().flat_map(move |kind| (0..sizes.servers).map(move |server| (partition, kind, server)))
        }) {
            let mut start = gathered_end(&shape, partition, server);
            for n in 0..sizes.bs {
                start -= sizes.records[kind as usize];
                prop_assert_eq!(gathered(&shape, (partition, kind), server, n), start);
                let end = start + gathered_bytes(&shape, kind, n + 1);
                prop_assert_eq!(end, gathered_end(&shape, partition, server) + 8);
                let at = Place { region: Region::WindowOut, offset: start };
                prop_assert_eq!(gathered_for(&shape, at), Some(server));
                prop_assert_eq!(gathered_for(&shape, Place::window(start)), None);
            }
        }
    }

    #[test]
    fn fields_of_a_record_follow_each_other_to_its_end(config in any_hierarchy()) {
        let Some(shape) = try_shape(&config) else { return Err(TestCaseError::reject("no shape")) };
        let mut end = 0;
        for field in crate::layout::map::record_fields(&shape) {
            prop_assert!(field.offset >= end && field.offset < end + 32, "{:?} behind {}", field, end);
            end = field.offset + field.size;
        }
        prop_assert_eq!(end, Sizes::of(&config).records[0]);
    }
}
