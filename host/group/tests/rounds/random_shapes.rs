//! Random shapes and traffic, shrunk when they fail: every backend gives the same bytes, and the reference's.

use crate::random;
use proptest::prelude::*;
use veriep_case::case::{Case, OwnedMask};
use veriep_case::config::{Bs, Config};
use veriep_case::generate::{self, Left, MaskKind, Routing};
use veriep_core::fabric::{Capabilities, Terms};
use veriep_core::layout::state::Slots;
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::{Choices, Flags, Receive};
use veriep_group::backend::lockstep::Memory;
use veriep_group::driver::Options;
use veriep_group::driver::threads::Spread;
use veriep_testing::trial::{Trial, idle, make_left, seeded, small};

/// A shape and what is asked of it.
#[derive(Clone, Debug)]
struct Sample {
    config: Config,
    options: generate::Options,
    /// Ranks without an active token, by bit.
    idle: u16,
    choices: Choices,
    schedule: &'static str,
    seed: u64,
    /// `elastic_info`.
    left: Option<Vec<i32>>,
}

impl Sample {
    fn case(&self) -> Case {
        let left = self.left.as_deref().map_or(Left::All, Left::Info);
        let mut case = make_left(self.config.clone(), self.options, left);
        if !matches!(case.ranks[0].mask, OwnedMask::Pairs(_)) && !case.shape.bs_is_uneven() {
            let ranks = veriep_case::global_rank::count(&case.shape);
            (0..ranks)
                .filter(|rank| self.idle.rotate_right(*rank) & 1 == 1)
                .for_each(|rank| idle(&mut case, rank));
        }
        case
    }
}

/// Batch sizes, of which the first is 1 if all are 0.
fn not_all_idle(bs: &[i64]) -> Vec<i64> {
    let first = if bs.iter().all(|&bs| bs == 0) { 1 } else { bs[0] };
    [&[first], &bs[1..]].concat()
}

prop_compose! {
    fn domains()(
        moe_ranks in 1i64..5, local in 1i64..4, replicas in 0i64..3, shared in 1i64..5, k in 1i64..17,
        h in 1i64..41, cores in prop_oneof![3 => 1i64..9, 1 => 1i64..49], bs in prop::collection::vec(prop_oneof![1 => Just(0i64), 5 => 1i64..6], 16),
        [even, prefix_sums, f16, comm_quant, norm] in any::<[bool; 5]>(),
        port_offset in prop_oneof![Just(0i64), 1i64..300],
        // Half of the domains have no special experts at all.
        specials in prop_oneof![Just([0; 3]), prop::array::uniform3(0i64..4)],
    ) -> Config {
        let experts = moe_ranks * local;
        let ranks = (moe_ranks + replicas * shared).max(2);
        let (experts, shared_ranks) = if moe_ranks + replicas * shared < 2 { (2 * local, 0) } else { (experts, replicas * shared) };
        let list = not_all_idle(&bs[..ranks as usize]);
        let max_bs = list.iter().copied().max().unwrap_or(1);
        Config {
            ep_world_size: ranks,
            moe_expert_num: experts,
            shared_expert_rank_num: shared_ranks,
            shared_expert_num: (shared_ranks > 0).then_some(shared),
            zero_expert_num: specials[0],
            copy_expert_num: specials[1],
            const_expert_num: specials[2],
            k: k.min(experts + specials.iter().sum::<i64>()),
            h,
            bs: if even { Bs::Uniform(bs[0].max(1)) } else { Bs::PerRank(list) },
            global_bs: if even { 0 } else { max_bs * ranks },
            expert_token_nums_type: i64::from(!prefix_sums),
            dtype: if f16 { "f16" } else { "bf16" }.to_owned(),
            op: if norm { "combine_add_rms_norm" } else { "combine" }.to_owned(),
            comm_quant_mode: if comm_quant { 2 } else { 0 },
            aiv_num: cores,
            hccl_buffsize_mb: 16,
            port_offset: 512 * port_offset,
            ..Config::default()
        }
    }
}

prop_compose! {
    fn samples()(
        config in domains(), [quantised, smooth, shared_expert_x] in any::<[bool; 3]>(), mask in 0..3, idle: u16,
        order in proptest::sample::select(&SendOrder::ALL), [separate, lines] in any::<[bool; 2]>(), receive in 0..4,
        blocks in prop_oneof![2 => Just(None), 1 => prop_oneof![1i64..20, 180i64..260].prop_map(Some)],
        routing in prop_oneof![Just(Routing::Uniform), Just(Routing::Zipf), Just(Routing::Hot)],
        schedule in prop_oneof![Just("DC"), Just("DDCC"), Just("DCDDCC"), Just("DDCCDC")], seed in 0u64..1000,
    ) -> Sample {
        // With fullmesh_v2 rows may take several blocks.
        let config = match blocks {
            None => config,
            Some(h) => Config { comm_alg: "fullmesh_v2".to_owned(), h, ..config },
        };
        let uneven = matches!(config.bs, Bs::PerRank(_));
        let mask = match mask {
            1 if !uneven => MaskKind::Tokens,
            2 if !uneven => MaskKind::Pairs,
            _ => MaskKind::None,
        };
        let config = Config { quant_mode: if quantised { 2 } else { 0 }, ..config };
        let options = generate::Options {
            routing,
            seed,
            mask,
            smooth_scales: quantised && smooth,
            shared_expert_x: shared_expert_x && config.shared_expert_rank_num == 0,
            ..Default::default()
        };
        let flags = if separate { Flags::Separate } else { Flags::Joint };
        let receive = match receive {
            1 if blocks.is_none() => Receive::InPlace,
            2 | 3 if blocks.is_none() && config.comm_quant_mode == 0 => {
                let areas = if schedule == "DC" { 1 } else { 2 };
                let overwrites = receive == 3 && !quantised;
                if overwrites { Receive::Overwrite { areas } } else { Receive::Direct { areas } }
            }
            _ => Receive::Copy,
        };
        let slots = if lines { Slots::Lines } else { Slots::Shipped };
        Sample { config, options, idle, choices: Choices { order, flags, receive, slots, ..Choices::default() }, schedule, seed, left: None }
    }
}

prop_compose! {
    /// Some of the ranks, in any order, with any numbers of experts that are legal.
    fn elastic_samples()(
        sample in samples(), order in Just((0..32).collect::<Vec<i32>>()).prop_shuffle(), left in 1i64..33,
        shared_ranks in 0i64..5, local in 1i64..13,
    ) -> Sample {
        let Config { ep_world_size: ranks, moe_expert_num, shared_expert_rank_num, .. } = sample.config;
        let left = left.min(ranks);
        let shared = sample.config.shared_experts();
        let shared_ranks = (shared_ranks * shared).min(left - 1) / shared.max(1) * shared;
        let slots = moe_expert_num / (ranks - shared_expert_rank_num) * ranks;
        let experts = local.min(slots / left) * (left - shared_ranks);
        // An expert without a row of them cannot be smoothed.
        let smooth_scales = sample.options.smooth_scales && experts <= moe_expert_num;
        let options = generate::Options { smooth_scales, ..sample.options };
        let mut info = vec![-1; 4 + 2 * ranks as usize];
        info[..4].copy_from_slice(&[1, left as i32, shared_ranks as i32, experts as i32]);
        let physical = order.into_iter().filter(|&rank| i64::from(rank) < ranks).take(left as usize);
        for (new, physical) in physical.enumerate() {
            info[4 + physical as usize] = new as i32;
            info[4 + ranks as usize + new] = physical;
        }
        // fullmesh_v2 knows no elastic domains.
        let config = Config { comm_alg: String::new(), k: sample.config.k.min(experts), ..sample.config };
        Sample { config, options, left: Some(info), ..sample }
    }
}

prop_compose! {
    /// Two TP ranks; every rank has one expert then.
    fn tp_samples()(sample in samples()) -> Sample {
        let Config { ep_world_size, shared_expert_rank_num, k, .. } = sample.config;
        let experts = ep_world_size - shared_expert_rank_num;
        let config = Config {
            comm_alg: String::new(), tp_world_size: 2, moe_expert_num: experts, k: k.min(experts), comm_quant_mode: 0, ..sample.config
        };
        let choices = Choices { receive: Receive::Copy, ..sample.choices };
        Sample { config, choices, ..sample }
    }
}

prop_compose! {
    /// A2 full mesh: no shared experts, no const experts, results as they are.
    fn a2_samples()(
        sample in samples(), ranks in 2i64..7, local in 1i64..4, wide: bool,
        schedule in prop_oneof![Just("DC"), Just("DDCC"), Just("DDDCCC"), Just("DCDDCC")],
    ) -> Sample {
        let Config { zero_expert_num, copy_expert_num, k, h, bs, .. } = sample.config;
        let uneven = matches!(bs, Bs::PerRank(_));
        let bs = match bs {
            Bs::PerRank(mut list) => {
                list.resize(ranks as usize, 1);
                Bs::PerRank(not_all_idle(&list))
            }
            uniform => uniform,
        };
        let max_bs = match &bs {
            Bs::PerRank(list) => list.iter().copied().max().unwrap_or(1),
            Bs::Uniform(bs) => *bs,
        };
        let config = Config {
            product: "a2".to_owned(),
            ep_world_size: ranks,
            moe_expert_num: ranks * local,
            zero_expert_num,
            copy_expert_num,
            k: k.min(ranks * local + zero_expert_num + copy_expert_num),
            h: if wide { 32 * (h % 8 + 1) } else { 8 * (h % 5 + 1) },
            bs,
            global_bs: if uneven { max_bs * ranks } else { 0 },
            dtype: sample.config.dtype,
            quant_mode: sample.config.quant_mode,
            expert_token_nums_type: sample.config.expert_token_nums_type,
            aiv_num: sample.config.aiv_num,
            hccl_buffsize_mb: 8,
            ..Config::default()
        };
        let options = generate::Options { shared_expert_x: false, ..sample.options };
        let choices = Choices { receive: Receive::Copy, ..sample.choices };
        Sample { config, options, schedule, choices, ..sample }
    }
}

prop_compose! {
    /// Redundant experts, on every product.
    fn redundant_samples()(
        sample in prop_oneof![samples(), a2_samples(), tp_samples()], logical in any::<prop::sample::Index>(),
    ) -> Sample {
        let config = sample.config;
        let logical = 1 + logical.index(config.moe_expert_num as usize) as i64;
        let specials = config.zero_expert_num + config.copy_expert_num + config.const_expert_num;
        let config = Config { k: config.k.min(logical + specials), ..config };
        let options = generate::Options { logical_experts: Some(logical as u32), ..sample.options };
        Sample { config, options, ..sample }
    }
}

/// Few by default, since every developer waits for them; `VERIEP_CASES` asks for more, of each kind of sample.
fn cases() -> u32 {
    std::env::var("VERIEP_CASES").map_or(20, |cases| match cases.parse() {
        Ok(cases) => cases,
        Err(_) => panic!("VERIEP_CASES={cases:?}: must be a number below 2^32"),
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 200,
        ..random::config(cases())
    })]

    #[test]
    fn every_backend_gives_the_bytes_of_the_oracle(sample in samples()) {
        judge(&sample)?;
    }

    #[test]
    fn every_backend_gives_the_bytes_of_the_oracle_on_a2(sample in a2_samples()) {
        judge(&sample)?;
    }

    #[test]
    fn every_backend_gives_the_bytes_of_the_oracle_with_a_tp_domain(sample in tp_samples()) {
        judge(&sample)?;
    }

    #[test]
    fn every_backend_gives_the_bytes_of_the_oracle_for_those_who_are_left(sample in elastic_samples()) {
        judge(&sample)?;
    }

    #[test]
    fn every_backend_gives_the_bytes_of_the_oracle_with_redundant_experts(sample in redundant_samples()) {
        judge(&sample)?;
    }
}

fn judge(sample: &Sample) -> Result<(), TestCaseError> {
    let case = sample.case();
    // Slots of a line are for some of these groups.
    let shipped = Choices { slots: Slots::Shipped, ..sample.choices };
    let may = sample.choices.check(&case.shape, Terms::new(Capabilities::all())).is_ok();
    let options = Options { choices: if may { sample.choices } else { shipped }, ..Options::default() };
    let trial = Trial { options, units: 2, ..Trial::new(&case, sample.schedule, 3) };
    let expected = trial.in_lockstep(Memory::Strong, sample.seed);
    prop_assert!(expected.is_ok(), "{}", expected.unwrap_err());
    let others = [
        trial.in_lockstep(Memory::Weak, sample.seed),
        trial.on_threads(2, Spread::Ranks),
        trial.on_threads(3, Spread::Cores),
    ];
    for (name, other) in ["weak", "threads by rank", "threads by core"].into_iter().zip(others) {
        prop_assert!(other.is_ok(), "{name}: {}", other.unwrap_err());
        prop_assert!(other.as_ref().ok() == expected.as_ref().ok(), "{name}: other bytes");
    }
    Ok(())
}

/// Special experts where they are the edge: tokens that have nothing else, more columns than MoE experts.
#[test]
fn tokens_whose_experts_are_all_special_give_the_bytes_of_the_oracle() {
    for (norm, comm_quant_mode, idle_rank) in [(false, 0, false), (true, 2, false), (false, 2, true)] {
        let config = Config {
            zero_expert_num: 2,
            copy_expert_num: 3,
            const_expert_num: 3,
            op: if norm { "combine_add_rms_norm" } else { "combine" }.to_owned(),
            comm_quant_mode,
            ..small(2, 2, 8, 5, 2)
        };
        let mut case = seeded(config, 3);
        // Rank 0: all of them, in falling order. Rank 1 mixes, K being four times E.
        for ids in case.ranks[0].expert_ids.chunks_exact_mut(8) {
            (2..10).rev().zip(ids).for_each(|(special, id)| *id = special);
        }
        if idle_rank {
            idle(&mut case, 1);
        }
        let trial = Trial::new(&case, "DDCC", 3);
        let expected = trial.in_lockstep(Memory::Strong, 1).unwrap();
        assert_eq!(trial.in_lockstep(Memory::Weak, 2).unwrap(), expected);
        assert_eq!(trial.on_threads(2, Spread::Cores).unwrap(), expected);
    }
}
