//! Every routing of small domains, as consecutive rounds on live groups: partitions are reused while the
//! traffic changes, ranks send to themselves, are idle, receive nothing.

use half::bf16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use veriep_case::batch::Batch;
use veriep_case::case::{Case, OwnedMask, RankTensors};
use veriep_case::config::Config;
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::{Choices, Flags, Receive};
use veriep_core::shape::Protocol;
use veriep_group::backend::lockstep::Memory;
use veriep_group::driver::Options;
use veriep_group::driver::threads::Spread;
use veriep_testing::tier;
use veriep_testing::trial::{Traffic, Trial, seeded, small};

/// Rounds without a stop.
const ROUNDS: usize = 16;

/// What masked pairs may name: nothing, or the expert of an active pair.
const UNREAD: [i32; 4] = [-1, 0, i32::MAX, i32::MIN];

/// What a token can ask for: its experts and which of the pairs are active.
fn choices(experts: i32, k: usize) -> Vec<(Vec<i32>, Vec<bool>)> {
    let mut all: Vec<(Vec<Option<i32>>, _)> = vec![(Vec::new(), Vec::new())];
    for _ in 0..k {
        all = all
            .into_iter()
            .flat_map(|(ids, mask): (Vec<Option<i32>>, Vec<bool>)| {
                let free: Vec<_> =
                    (0..experts).map(Some).filter(|id| !ids.contains(id)).chain([None]).collect();
                free.into_iter()
                    .map(move |id| ([&ids[..], &[id]].concat(), [&mask[..], &[id.is_some()]].concat()))
            })
            .collect();
    }
    let point_somewhere = |choice: usize, ids: Vec<Option<i32>>| {
        (choice..).zip(ids).map(|(i, id)| id.unwrap_or(UNREAD[i % UNREAD.len()])).collect()
    };
    all.into_iter().enumerate().map(|(choice, (ids, mask))| (point_somewhere(choice, ids), mask)).collect()
}

/// The tensors of routing number `routing`; payloads belong to `round`.
fn tensors(case: &Case, mut routing: usize, round: usize) -> Vec<RankTensors> {
    let k = case.shape.k() as usize;
    let choices = choices(case.shape.moe_expert_num() as i32, k);
    (0..case.ranks.len())
        .map(|rank| {
            let (mut ids, mut mask) = (Vec::new(), Vec::new());
            for _ in 0..case.ranks[rank].expert_ids.len() / k {
                let (token_ids, token_mask) = &choices[routing % choices.len()];
                routing /= choices.len();
                ids.extend(token_ids);
                mask.extend(token_mask);
            }
            let value = |i: usize| ((round * 37 + rank * 11 + i) % 251) as f32 - 125.5;
            RankTensors {
                x: (0..case.ranks[rank].x.len() / 2)
                    .flat_map(|i| bf16::from_f32(value(i)).to_le_bytes())
                    .collect(),
                expert_ids: ids,
                mask: OwnedMask::Pairs(mask),
                ..case.ranks[rank].clone()
            }
        })
        .collect()
}

/// Runs all routings of a domain, in an order drawn from the seed.
fn run_all(config: Config, seed: u64) {
    let case = seeded(config, seed);
    let tokens: usize = case.ranks.iter().map(|rank| rank.expert_ids.len() / case.shape.k() as usize).sum();
    let number =
        choices(case.shape.moe_expert_num() as i32, case.shape.k() as usize).len().pow(tokens as u32);
    let mut order: Vec<_> = (0..number).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for i in (1..number).rev() {
        order.swap(i, rng.random_range(0..=i));
    }
    let rounds = |round: usize| Batch::with_tensors(&case, tensors(&case, order[round % number], round));
    let send_order = if seed.is_multiple_of(2) { SendOrder::Plain } else { SendOrder::Staggered };
    let runs = [
        ("DC", Flags::Joint, Receive::InPlace),
        ("DC", Flags::Separate, Receive::Copy),
        ("DDCC", Flags::Joint, Receive::Copy),
        ("DDCC", Flags::Separate, Receive::InPlace),
        ("DC", Flags::Joint, Receive::Direct { areas: 1 }),
        ("DDCC", Flags::Joint, Receive::Direct { areas: 2 }),
        ("DC", Flags::Joint, Receive::Overwrite { areas: 1 }),
    ];
    // These choices are the plain layout's of A3.
    let plain = case.shape.protocol() == Protocol::FullmeshV1;
    let runs: Vec<_> = runs
        .into_iter()
        .filter(|&(_, flags, receive)| {
            if plain { receive.suits(&case.shape) } else { flags == Flags::Joint && !receive.is_direct() }
        })
        .collect();
    // A third of the modes for each number of cores, so that one to three have them all.
    let (first, step) = tier((seed as usize % runs.len().min(3), 3), (0, 1));
    for (schedule, flags, receive) in runs.into_iter().skip(first).step_by(step) {
        let receive = if plain { receive } else { Receive::Copy };
        let options = Options {
            choices: Choices { order: send_order, flags, receive, ..Choices::default() },
            ..Options::default()
        };
        let chain = 2 * ROUNDS / schedule.len();
        let units = number.div_ceil(ROUNDS);
        let trial =
            Trial { traffic: Traffic::Own(&rounds), units, options, ..Trial::new(&case, schedule, chain) };
        for memory in tier(&[Memory::Weak][..], &[Memory::Strong, Memory::Weak]) {
            trial.must_hold(*memory, seed..seed + 1);
        }
        trial.on_threads(2, Spread::Cores).unwrap_or_else(|error| panic!("{schedule} on threads: {error}"));
    }
}

fn with_one_to_three_cores(config: &Config) {
    for cores in 1..=3 {
        run_all(Config { aiv_num: cores, ..config.clone() }, cores as u64);
    }
}

#[test]
fn two_ranks_with_one_token_each() {
    with_one_to_three_cores(&small(2, 2, 1, 1, 1));
    with_one_to_three_cores(&small(2, 2, 2, 1, 1));
    with_one_to_three_cores(&small(2, 4, 1, 1, 1));
    run_all(small(2, 4, 2, 1, 2), 2);
}

#[test]
fn two_ranks_with_two_tokens_each() {
    with_one_to_three_cores(&small(2, 2, 1, 2, 1));
    run_all(small(2, 4, 1, 2, 2), 2);
    run_all(small(2, 2, 2, 2, 2), 4);
}

#[test]
fn three_ranks_with_one_token_each() {
    with_one_to_three_cores(&small(3, 3, 1, 1, 1));
    run_all(small(3, 6, 1, 1, 2), 2);
    run_all(small(3, 3, 2, 1, 2), 4);
}

/// One block a record, then two of which the second has the triple alone.
#[test]
fn two_and_three_ranks_with_fullmesh_v2() {
    for h in [8, 210] {
        let v2 = |config| Config { comm_alg: "fullmesh_v2".to_owned(), h, ..config };
        with_one_to_three_cores(&v2(small(2, 2, 1, 1, 1)));
        with_one_to_three_cores(&v2(small(2, 2, 2, 1, 1)));
        run_all(v2(small(2, 4, 2, 1, 2)), 2);
        run_all(v2(small(2, 2, 1, 2, 2)), 4);
        run_all(v2(Config { quant_mode: 2, ..small(3, 3, 1, 1, 3) }), 5);
    }
}

/// What is awaited are windows here, whatever their rows, and dispatch's payload of one round is where combine of another
/// looks for flags.
#[test]
fn two_and_three_ranks_of_a2() {
    let a2 = |config| Config { product: "a2".to_owned(), hccl_buffsize_mb: 5, ..config };
    with_one_to_three_cores(&a2(small(2, 2, 1, 1, 1)));
    run_all(a2(small(2, 2, 2, 1, 2)), 4);
    run_all(a2(small(2, 2, 1, 2, 2)), 5);
    run_all(a2(Config { quant_mode: 2, ..small(3, 3, 1, 1, 3) }), 6);
}

#[test]
fn shared_experts_beside_two_moe_ranks() {
    let with = |shared_ranks, shared| Config {
        shared_expert_rank_num: shared_ranks,
        shared_expert_num: Some(shared),
        ..small(shared_ranks + 2, 2, 1, 1, 1)
    };
    with_one_to_three_cores(&with(1, 1));
    with_one_to_three_cores(&with(2, 1));
    with_one_to_three_cores(&with(2, 2));
    run_all(Config { quant_mode: 2, aiv_num: 2, ..with(2, 2) }, 2);
}
