//! Random shapes and traffic, shrunk when they fail: every backend gives the same bytes, and the oracle's.

mod common;

use common::trial::{Trial, idle, make_left};
use host::backend::lockstep::Memory;
use host::case::{Case, OwnedMask};
use host::config::{Bs, Config};
use host::driver::Options;
use host::driver::threads::Spread;
use host::generate::{self, Left, MaskKind, Routing};
use kernel_core::a3::{Choices, Flags};
use kernel_core::plan::order::SendOrder;
use proptest::prelude::*;

/// A shape and what is asked of it.
#[derive(Clone, Debug)]
struct Sample {
    config: Config,
    options: generate::Options,
    /// Ranks without an active token, by bit.
    idle: u16,
    machines: Choices,
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
            let ranks = case.shape.ep_world_size();
            (0..ranks).filter(|rank| self.idle >> rank & 1 == 1).for_each(|rank| idle(&mut case, rank));
        }
        case
    }
}

prop_compose! {
    fn domains()(
        moe_ranks in 1i64..5, local in 1i64..4, replicas in 0i64..3, shared in 1i64..5, k in 1i64..17,
        h in 1i64..41, cores in prop_oneof![3 => 1i64..9, 1 => 1i64..49], bs in prop::collection::vec(1i64..6, 16),
        even: bool, prefix_sums: bool, f16: bool, port_offset in prop_oneof![Just(0i64), 1i64..300],
    ) -> Config {
        let experts = moe_ranks * local;
        let ranks = (moe_ranks + replicas * shared).max(2);
        let (experts, shared_ranks) = if moe_ranks + replicas * shared < 2 { (2 * local, 0) } else { (experts, replicas * shared) };
        let list = bs[..ranks as usize].to_vec();
        let max_bs = list.iter().copied().max().unwrap_or(1);
        Config {
            ep_world_size: ranks,
            moe_expert_num: experts,
            shared_expert_rank_num: shared_ranks,
            shared_expert_num: (shared_ranks > 0).then_some(shared),
            k: k.min(experts),
            h,
            bs: if even { Bs::Uniform(bs[0]) } else { Bs::PerRank(list) },
            global_bs: if even { 0 } else { max_bs * ranks },
            expert_token_nums_type: i64::from(!prefix_sums),
            dtype: if f16 { "f16" } else { "bf16" }.to_owned(),
            aiv_num: cores,
            hccl_buffsize_mb: 16,
            port_offset: 512 * port_offset,
            ..Config::default()
        }
    }
}

prop_compose! {
    fn samples()(
        config in domains(), quantised: bool, smooth: bool, mask in 0..3, idle: u16, staggered: bool, separate: bool,
        routing in prop_oneof![Just(Routing::Uniform), Just(Routing::Zipf), Just(Routing::Hot)],
        schedule in prop_oneof![Just("DC"), Just("DDCC"), Just("DCDDCC"), Just("DDCCDC")], seed in 0u64..1000,
    ) -> Sample {
        let uneven = matches!(config.bs, Bs::PerRank(_));
        let mask = match mask {
            1 if !uneven => MaskKind::Tokens,
            2 if !uneven => MaskKind::Pairs,
            _ => MaskKind::None,
        };
        let config = Config { quant_mode: if quantised { 2 } else { 0 }, ..config };
        let options =
            generate::Options { routing, seed, mask, smooth_scales: quantised && smooth, ..Default::default() };
        let order = if staggered { SendOrder::Staggered } else { SendOrder::Plain };
        let flags = if separate { Flags::Separate } else { Flags::Joint };
        Sample { config, options, idle, machines: Choices { order, flags }, schedule, seed, left: None }
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
        let config = Config { k: sample.config.k.min(experts), ..sample.config };
        Sample { config, options, left: Some(info), ..sample }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        max_shrink_iters: 200,
        // A failure prints its whole sample, seeds included.
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_backend_gives_the_bytes_of_the_oracle(sample in samples()) {
        judge(&sample)?;
    }

    #[test]
    fn every_backend_gives_the_bytes_of_the_oracle_for_those_who_are_left(sample in elastic_samples()) {
        judge(&sample)?;
    }
}

fn judge(sample: &Sample) -> Result<(), TestCaseError> {
    let case = sample.case();
    let options = Options { machines: sample.machines, ..Options::default() };
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
