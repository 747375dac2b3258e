//! Elastic domains: every rule of `elastic_info`, and the domains of survivors.

use veriep_core::fabric::rank_remap::RankRemap;
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::inputs::{InputError, Inputs};
use veriep_core::place::Place;
use veriep_core::shape::{BatchSizes, Buffer, Config, Elastic, Limits, Shape};
use veriep_core::units::{ExpertId, RankId};

/// Six ranks, two of them with the two shared experts; two MoE experts on each of the others.
fn six_ranks() -> Config<'static> {
    Config {
        ep_world_size: 6,
        moe_expert_num: 8,
        shared_expert_num: 2,
        shared_expert_rank_num: 2,
        k: 3,
        h: 4,
        bs: BatchSizes::Uniform(5),
        quant_mode: 2,
        aiv_num: 2,
        ..Config::default()
    }
}

fn shape(config: &Config<'_>) -> Shape {
    Shape::new(config, Limits::None).unwrap_or_else(|found| panic!("{found:?}"))
}

/// `elastic_info` with these ranks left, in this order.
fn info(whole: u32, left: &[u32], shared_ranks: i32, experts: i32) -> Vec<i32> {
    let mut to_new = vec![-1; whole as usize];
    let mut to_physical = to_new.clone();
    for (new, &physical) in left.iter().enumerate() {
        to_new[physical as usize] = new as i32;
        to_physical[new] = physical as i32;
    }
    [vec![1, left.len() as i32, shared_ranks, experts], to_new, to_physical].concat()
}

/// Four of six ranks left, out of order: a shared expert on each of two ranks, three MoE experts on each of two.
fn four_left() -> Vec<i32> {
    info(6, &[4, 0, 5, 2], 2, 6)
}

fn check(config: &Config<'_>, info: &[i32]) -> Result<Option<Elastic>, Vec<String>> {
    let mut found = Vec::new();
    let left = Elastic::check(&shape(config), info, &mut |violation| {
        assert_eq!(violation.parameter, "elastic_info");
        found.push(violation.to_string());
    });
    assert!(left.is_none() || found.is_empty(), "taken, with {found:?}");
    if found.is_empty() { Ok(left) } else { Err(found) }
}

/// Returns the one violation of four ranks left, with some words changed.
fn broken(changes: &[(usize, i32)]) -> String {
    let mut info = four_left();
    changes.iter().for_each(|&(at, word)| info[at] = word);
    let lines = check(&six_ranks(), &info).expect_err("a broken rule");
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines[0].clone()
}

#[test]
fn tables_that_are_inverse_name_the_survivors() {
    let left = check(&six_ranks(), &four_left()).unwrap().expect("switched on");
    let physical: Vec<_> = (0..6).map(|new| left.physical(RankId(new)).map(|rank| rank.0)).collect();
    assert_eq!(physical, [Some(4), Some(0), Some(5), Some(2), None, None]);
    let new_ids: Vec<_> = (0..7).map(|rank| left.new_id(RankId(rank)).map(|new| new.0)).collect();
    assert_eq!(new_ids, [Some(1), None, Some(3), None, Some(0), Some(2), None]);
    assert_eq!(left.whole_world_size(), 6);
}

#[test]
fn switched_off_it_is_as_if_absent_whatever_the_other_words_say() {
    let mut info = vec![7; 16];
    info[0] = 0;
    assert_eq!(check(&six_ranks(), &info), Ok(None));
    assert!(!Elastic::is_on(&info) && !Elastic::is_on(&[]));
    // Every other value of the first word switches it on.
    for enabled in [1, 2, -1, i32::MIN] {
        let info = [&[enabled], &four_left()[1..]].concat();
        assert!(Elastic::is_on(&info) && check(&six_ranks(), &info).unwrap().is_some());
    }
}

#[test]
fn the_number_of_words_is_four_and_two_per_rank() {
    for words in [0, 1, 4, 15, 17] {
        let mut info = four_left();
        info.resize(words, -1);
        let lines = check(&six_ranks(), &info).expect_err("a wrong length");
        assert_eq!(
            lines,
            [format!("elastic_info = {words}: must have 4 + 2 * ep_world_size elements (ep_world_size = 6)")]
        );
    }
}

#[test]
fn ranks_left_are_from_one_to_all() {
    assert_eq!(
        broken(&[(1, 0)]),
        "elastic_info[1] = 0: ranks left must be in [1, ep_world_size] (ep_world_size = 6)"
    );
    assert!(broken(&[(1, -1)]).contains("= -1: ranks left"));
    // Seven ranks of six; the tables cannot be read then.
    assert!(broken(&[(1, 7)]).contains("= 7: ranks left"));
    // The one rank must have K = 3 ids.
    assert!(check(&six_ranks(), &info(6, &[3], 0, 3)).is_ok());
    assert!(check(&six_ranks(), &info(6, &[5, 4, 3, 2, 1, 0], 2, 8)).is_ok());
}

#[test]
fn shared_ranks_left_are_fewer_than_all_and_divide_evenly() {
    let words = "shared-expert ranks left must be in [0, ranks left) and a multiple of shared_expert_num";
    for (left, legal) in [(-2, false), (-1, false), (0, true), (1, false), (2, true), (3, false), (4, false)]
    {
        let mut info = info(6, &[4, 0, 5, 2], left, 0);
        // MoE experts divide evenly over each number of MoE ranks.
        info[3] = if left == 0 { 8 } else { 6 };
        match check(&six_ranks(), &info) {
            Ok(_) => assert!(legal, "{left}"),
            Err(lines) => {
                assert!(!legal && lines.len() == 1 && lines[0].contains(words), "{left}: {lines:?}");
            }
        }
    }
}

#[test]
fn without_shared_expert_ranks_none_can_be_left() {
    for shared_expert_num in [0, 1] {
        let whole =
            Config { shared_expert_num, shared_expert_rank_num: 0, moe_expert_num: 12, ..six_ranks() };
        assert!(check(&whole, &info(6, &[1, 2, 3], 0, 9)).is_ok());
        let lines = check(&whole, &info(6, &[1, 2, 3], 1, 6)).expect_err("no rank held shared experts");
        assert!(lines.len() == 1 && lines[0].contains("must be 0: no rank held shared experts"), "{lines:?}");
    }
}

#[test]
fn moe_experts_left_are_positive_divide_evenly_and_leave_k_ids() {
    assert!(broken(&[(3, 0)]).contains("= 0: MoE experts left must be at least 1"));
    assert!(broken(&[(3, -4)]).contains("= -4: MoE experts left must be at least 1"));
    assert!(broken(&[(3, 5)]).contains("= 5: MoE experts left must be a multiple of the MoE ranks left"));
    assert_eq!(
        broken(&[(3, 2)]),
        "elastic_info[3] = 2: MoE experts left must leave K distinct ids (k = 3, special experts = 0)"
    );
    assert!(check(&six_ranks(), &info(6, &[4, 0, 5, 2], 2, 4)).is_ok());
    // With one special expert two MoE experts give three ids.
    let special = Config { zero_expert_num: 1, ..six_ranks() };
    assert!(check(&special, &info(6, &[4, 0, 5, 2], 2, 2)).is_ok());
}

#[test]
fn local_experts_times_ranks_stay_within_the_whole() {
    // The whole has 2 * 6 slots: three experts on each of four ranks are just as many, four are more.
    assert!(check(&six_ranks(), &info(6, &[4, 0, 5, 2], 2, 6)).is_ok());
    assert_eq!(
        broken(&[(3, 8)]),
        "elastic_info[3] = 8: local experts times ranks must not exceed those of the whole domain \
         (local experts left = 4, ranks left = 4, of the whole = 12)"
    );
}

#[test]
fn more_moe_experts_leave_the_ids_of_special_experts_within_the_limit() {
    // One rank left may hold 12, since the whole domain has 2 * 6 slots.
    let whole = Config { zero_expert_num: (i32::MAX - 9).into(), ..six_ranks() };
    assert!(check(&whole, &info(6, &[0], 0, 9)).is_ok());
    let lines = check(&whole, &info(6, &[0], 0, 10)).expect_err("an id beyond i32");
    assert!(lines.len() == 1 && lines[0].contains("special experts together must be within the limit"));
}

#[test]
fn an_entry_out_of_range_is_named() {
    // table1 of physical rank 1, which has left; then of rank 4.
    for (at, seen) in [(5, -2), (5, 4), (8, 9)] {
        assert!(broken(&[(at, seen)]).contains("a new id must be in [0, ranks left), or -1"), "{at}");
    }
    // table2 of new id 1, then after the last.
    assert!(broken(&[(11, 6)]).contains("a physical rank must be in [0, ep_world_size)"));
    assert!(broken(&[(11, -1)]).contains("a physical rank must be in [0, ep_world_size)"));
    assert_eq!(broken(&[(14, 1)]), "elastic_info[14] = 1: must be -1 after the last new id (new id = 4)");
}

#[test]
fn tables_that_are_not_inverse_are_refused_in_both_directions() {
    // Two ranks are exchanged in one table only.
    assert_eq!(
        broken(&[(10, 0), (11, 4)]),
        "elastic_info[4] = 1: the tables must be inverse: table2 has another rank for this new id \
         (entry = 0, the other table's = 4)"
    );
    // Rank 0 is missing in table1: its new id still names it.
    assert!(broken(&[(4, -1)]).contains("table1 has another new id for this rank"));
    // A rank has left but has a new id.
    assert!(broken(&[(5, 1)]).contains("table2 has another rank for this new id"));
    // One rank has two new ids.
    assert!(broken(&[(13, 4)]).contains("table2 has another rank for this new id"));
}

#[test]
fn rules_that_have_nothing_to_do_with_each_other_are_reported_together() {
    let mut info = four_left();
    (info[2], info[3], info[5]) = (1, 0, 17);
    let lines = check(&six_ranks(), &info).expect_err("three broken rules");
    assert_eq!(lines.len(), 3, "{lines:?}");
}

/// All small whole domains and valid heads, with a few orders of survivors.
fn small_domains(mut judge: impl FnMut(&Config<'_>, &Shape, &[u32], &Elastic)) {
    let mut seen = 0;
    for (ranks, shared, shared_ranks) in [(2, 0, 0), (4, 0, 0), (4, 1, 1), (5, 1, 2), (6, 2, 2), (7, 2, 4)] {
        for local in 1..4i64 {
            let experts = local * (ranks - shared_ranks);
            let whole = Config {
                ep_world_size: ranks,
                moe_expert_num: experts,
                shared_expert_num: shared,
                shared_expert_rank_num: shared_ranks,
                k: 2.min(experts),
                ..six_ranks()
            };
            let shape = shape(&whole);
            for left in 1..=ranks as u32 {
                for (shared_ranks, experts) in (0..left as i32).flat_map(|s| (1..20).map(move |e| (s, e))) {
                    for turn in 0..left {
                        // Every second rank first, then rotated: any order is legal.
                        let mut order: Vec<_> =
                            (0..ranks as u32).step_by(2).chain((1..ranks as u32).step_by(2)).collect();
                        order.truncate(left as usize);
                        order.rotate_left(turn as usize);
                        let words = info(ranks as u32, &order, shared_ranks, experts);
                        if let Some(elastic) = Elastic::check(&shape, &words, &mut |_| ()) {
                            judge(&whole, &shape, &order, &elastic);
                            seen += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(seen > 500, "{seen}");
}

#[test]
fn survivors_are_placed_and_numbered_as_a_domain_of_their_own() {
    small_domains(|whole, shape_of_whole, order, elastic| {
        let left = shape_of_whole.survivors(elastic);
        let shared = if left.shared_expert_rank_num() == 0 { 0 } else { whole.shared_expert_num };
        let fresh = shape(&Config {
            ep_world_size: order.len() as i64,
            moe_expert_num: left.moe_expert_num().into(),
            shared_expert_num: shared,
            shared_expert_rank_num: left.shared_expert_rank_num().into(),
            ..*whole
        });
        assert_eq!(left.ep_world_size(), fresh.ep_world_size());
        assert_eq!(left.expert_ids_end(), fresh.expert_ids_end());
        assert_eq!(left.combine_columns(), fresh.combine_columns());
        for e in (0..left.moe_expert_num()).map(ExpertId) {
            assert_eq!(left.moe_home(e), fresh.moe_home(e));
        }
        for rank in (0..left.ep_world_size()).map(RankId) {
            assert_eq!(left.local_experts(rank), fresh.local_experts(rank));
            assert_eq!(left.shared_expert_of(rank), fresh.shared_expert_of(rank));
            for j in 0..left.shared_expert_num() {
                assert_eq!(left.shared_home(rank, j), fresh.shared_home(rank, j));
            }
        }
    });
}

#[test]
fn rows_of_survivors_fit_the_capacity_and_the_areas_of_the_whole() {
    small_domains(|whole, shape_of_whole, order, elastic| {
        let left = shape_of_whole.survivors(elastic);
        let (bs, ranks, local) = (
            5,
            whole.ep_world_size,
            whole.moe_expert_num / (whole.ep_world_size - whole.shared_expert_rank_num),
        );
        let replicas = whole.shared_expert_rank_num / whole.shared_expert_num.max(1);
        let of_shared = if replicas == 0 { 0 } else { bs * ((ranks + replicas - 1) / replicas) };
        let capacity = of_shared.max(bs * ranks * local.min(whole.k)) as u64;
        for rank in (0..left.ep_world_size()).map(RankId) {
            assert_eq!(left.rows_max(rank), capacity, "{whole:?}");
            // All tokens of all ranks, with as many experts as there are.
            let most = 5 * order.len() as u64 * u64::from(left.local_experts(rank).min(left.k()));
            assert!(most <= capacity, "{most} > {capacity}: {whole:?}, {elastic:?}");
        }
        assert!(left.dispatch_slots() <= shape_of_whole.dispatch_slots());
        assert!(
            left.dispatch_area() + left.combine_area()
                <= shape_of_whole.dispatch_area() + shape_of_whole.combine_area()
        );
        assert_eq!(left.window_bytes(), shape_of_whole.window_bytes());
        assert!(Buffer::with(whole, Limits::None).fits());
    });
}

#[test]
fn batch_sizes_follow_their_ranks_and_the_largest_stays_the_wholes() {
    let list = [9, 1, 2, 3, 4, 5];
    let whole = shape(&Config { bs: BatchSizes::PerRank(&list), global_bs: 54, ..six_ranks() });
    let elastic = Elastic::check(&whole, &info(6, &[4, 1, 5, 2], 2, 6), &mut |_| ()).unwrap();
    let left = whole.survivors(&elastic);
    assert_eq!([0, 1, 2, 3].map(|new| left.bs(RankId(new))), [4, 1, 5, 2]);
    assert_eq!(left.bs_max(), 9);
    // This holds even if the survivors agree: the whole domain's list decides.
    let list = [9, 3, 3, 3, 3, 3];
    let whole = shape(&Config { bs: BatchSizes::PerRank(&list), global_bs: 54, ..six_ranks() });
    assert!(whole.survivors(&elastic).bs_is_uneven());
    let list = [9; 6];
    let whole = shape(&Config { bs: BatchSizes::PerRank(&list), global_bs: 54, ..six_ranks() });
    assert!(!whole.survivors(&elastic).bs_is_uneven());
}

#[test]
fn elastic_domain_keeps_scale_rows() {
    let whole = shape(&six_ranks());
    let elastic = Elastic::check(&whole, &info(6, &[4, 0, 5, 2], 0, 4), &mut |_| ()).unwrap();
    let left = whole.survivors(&elastic);
    assert_eq!((left.shared_expert_num(), left.combine_columns()), (0, 3));
    assert_eq!((left.shared_expert_rows(), left.expert_rows()), (2, 10));
    for e in 0..4 {
        assert_eq!(left.expert_row(left.moe_home(ExpertId(e))), 2 + e);
    }
    // Survivors of another whole have another shape, though the smaller domains agree.
    let other = shape(&Config { moe_expert_num: 12, ..six_ranks() }).survivors(&elastic);
    assert_eq!((left.moe_expert_num(), left.local_expert_num()), (4, other.local_expert_num()));
    assert_ne!(left.fingerprint(), other.fingerprint());
}

/// One rank's inputs: one expert per token, all ids 0 to 2.
fn with_scales<T>(scales: Option<&[f32]>, ids: &[i32], judge: impl FnOnce(&Inputs<'_>) -> T) -> T {
    // The largest bf16.
    let x = [0x7F, 0x7F].map(|_| 0x7F7F_u16).into_iter().chain([0x7F7F; 18]).flat_map(u16::to_le_bytes);
    let x: Vec<u8> = x.collect();
    let weights = [1.0; 15];
    judge(&Inputs { x: &x, expert_ids: ids, expert_scales: &weights, scales, ..Inputs::default() })
}

#[test]
fn more_moe_experts_than_the_whole_are_refused_only_with_scales() {
    let whole = shape(&six_ranks());
    let ids = [0, 1, 2].repeat(5);
    for (experts, refused) in [(7, false), (8, false), (9, true), (12, true)] {
        let elastic = Elastic::check(&whole, &info(6, &[3], 0, experts), &mut |_| ()).unwrap();
        let left = whole.survivors(&elastic);
        with_scales(None, &ids, |inputs| assert_eq!(inputs.check(&left, RankId(0)), Ok(())));
        let seen = with_scales(Some(&[1.0; 40]), &ids, |inputs| inputs.check(&left, RankId(0)));
        let error = InputError::ExpertRow { tensor: "scales", rows: 10, expert: 8 };
        assert_eq!(seen, if refused { Err(error) } else { Ok(()) }, "{experts} experts");
    }
}

#[test]
fn a_special_expert_is_not_smoothed_by_a_lost_experts_row() {
    // Six of eight experts are left, and a zero expert: id 6 is the zero expert, row 2 + 6 of scales is unused.
    let whole = shape(&Config { zero_expert_num: 1, ..six_ranks() });
    let elastic = Elastic::check(&whole, &four_left(), &mut |_| ()).unwrap();
    let left = whole.survivors(&elastic);
    let mut scales = [1.0; 40];
    scales[8 * 4..9 * 4].fill(2.0);
    let ids = [0, 1, 6].repeat(5);
    with_scales(Some(&scales), &ids, |inputs| assert_eq!(inputs.check(&left, RankId(0)), Ok(())));
    // Expert 1 has row 3.
    scales[3 * 4] = 2.0;
    with_scales(Some(&scales), &ids, |inputs| assert!(inputs.check(&left, RankId(0)).is_err()));
}

/// Records the target of the last put, publish or message. It can do everything.
#[derive(Default)]
struct Note(Option<RankId>);

impl Fabric for Note {
    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn send(&mut self, to: RankId, _: Place, _: &[u8]) -> Result<(), Fault> {
        self.0 = Some(to);
        Ok(())
    }

    fn put(&mut self, to: RankId, _: Place, _: &[u8], _: &[u8]) -> Result<(), Fault> {
        self.0 = Some(to);
        Ok(())
    }

    fn publish(&mut self, to: RankId, _: Place, _: u64) -> Result<(), Fault> {
        self.0 = Some(to);
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        Ok(true)
    }

    fn observe(&self, _: Place) -> Result<u64, Fault> {
        Ok(0)
    }

    fn store(&mut self, _: Place, _: u64) -> Result<(), Fault> {
        Ok(())
    }

    fn bytes(&self, _: Place, _: u64) -> Result<&[u8], Fault> {
        Ok(&[])
    }

    fn write(&mut self, _: Place, _: &[u8]) -> Result<(), Fault> {
        Ok(())
    }

    fn deliver(&mut self, _: Place, _: Place, _: u64) -> Result<(), Fault> {
        Ok(())
    }
}

#[test]
fn puts_and_publishes_go_to_the_physical_ranks_of_new_ids_only() {
    let elastic = check(&six_ranks(), &four_left()).unwrap();
    let mut fabric = RankRemap { inner: Note::default(), left: elastic.as_ref() };
    let at = Place::window(8);
    for (new, physical) in (0..).zip([4, 0, 5, 2]) {
        fabric.put(RankId(new), at, &[], &[]).unwrap();
        assert_eq!(fabric.inner.0.take(), Some(RankId(physical)));
        fabric.publish(RankId(new), at, 1).unwrap();
        assert_eq!(fabric.inner.0.take(), Some(RankId(physical)));
    }
    assert_eq!(fabric.put(RankId(4), at, &[1], &[]), Err(Fault::new(RankId(4), at, 1)));
    assert_eq!(fabric.publish(RankId(5), at, 1), Err(Fault::new(RankId(5), at, 8)));
    // Messages would go to other ranks: they are neither offered nor carried.
    assert_eq!(fabric.capabilities(), Capabilities::all().difference(Capabilities::SEND));
    assert_eq!(fabric.send(RankId(0), at, &[1; 8]), Err(Fault::new(RankId(0), at, 8)));
    assert_eq!(fabric.inner.0, None);
    fabric.left = None;
    assert_eq!(fabric.capabilities(), Capabilities::all());
    fabric.put(RankId(5), at, &[], &[]).unwrap();
    assert_eq!(fabric.inner.0.take(), Some(RankId(5)));
    fabric.send(RankId(5), at, &[1; 8]).unwrap();
    assert_eq!(fabric.inner.0, Some(RankId(5)));
}
