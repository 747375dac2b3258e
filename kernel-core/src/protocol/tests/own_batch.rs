//! Groups in which each rank knows its own batch size alone, and steps on a shape of its own.

use crate::fabric::{Capabilities, Terms};
use crate::inputs::Inputs;
use crate::layout::outputs::capacity;
use crate::place::Tensor;
use crate::protocol::{Agent, Choices, Env, Fingerprints, Refused};
use crate::shape::{BatchSizes, Config, Limits, Protocol, Shape};
use crate::sim::chooser::{AGENT, Actor, Choice, Chooser};
use crate::sim::cluster::{Failure, Planned, World, schedule};
use crate::sim::seeded::{self, Seeded};
use crate::sim::storage::{Dense, group_sizes};
use crate::testing::domain::{Dice, Domain, Tensors, result_row, shape as shape_of};
use crate::testing::group::{Cluster, Judge, Memory};
use crate::units::{CoreId, RankId};
use crate::vector::Portable;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

/// The most tokens of a rank.
const BOUND: i64 = 3;

/// A judge who knows the sizes of all ranks, of a group whose ranks do not.
struct Apart {
    judge: Judge,
    whole: &'static Shape,
    own: Vec<&'static Shape>,
}

impl World<Dense, Seeded> for Apart {
    fn inputs(&self, member: RankId, round: usize) -> Inputs<'_> {
        World::<Dense, Seeded>::inputs(&self.judge, member, round)
    }

    fn ended(&mut self, cluster: &mut Cluster<'_>, i: usize, planned: Planned) -> Result<(), Failure> {
        cluster.shape = self.whole;
        self.judge.ended(cluster, i, planned)?;
        cluster.shape = self.own[i];
        Ok(())
    }
}

/// A group of each protocol, with two cores and at most [`BOUND`] tokens on a rank.
fn configs() -> Vec<Config<'static>> {
    let three = Domain { r: 3, e: 6, s: 0, rs: 0, k: 2, h: 8, bs: BOUND, cores: 2 };
    let servers =
        Config { comm_alg: Protocol::Hierarchy, server_ranks: 2, ..Domain { r: 4, e: 8, ..three }.config() };
    [
        three.config(),
        Config { quant_mode: 2, ..three.config() },
        Domain { e: 4, s: 1, rs: 1, ..three }.config(),
        Config { comm_alg: Protocol::FullmeshV2, ..three.config() },
        Config { comm_alg: Protocol::Fullmesh, ..three.config() },
        Config { quant_mode: 2, ..servers },
        servers,
    ]
    .into()
}

fn leak(config: &Config<'_>) -> &'static Shape {
    Box::leak(Box::new(shape_of(config)))
}

/// Returns the shape of `rank`, which has so many tokens and knows nothing of others.
fn own_shape(config: &Config<'_>, rank: u32, bs: i64) -> &'static Shape {
    let global_bs = BOUND * config.ep_world_size;
    leak(&Config { bs: BatchSizes::Own { rank: RankId(rank), bs }, global_bs, ..*config })
}

/// Plays rounds in which every rank draws another size each time, over memory that stays.
fn play(config: &Config<'_>, choices: Choices, rounds: u32, seed: u64) {
    let (ranks, global_bs) = (config.ep_world_size as u32, BOUND * config.ep_world_size);
    let (mut dice, bound) = (Dice(seed), leak(config));
    let agreed = Fingerprints::new(bound, choices);
    let new = Memory::new(bound, Dense::new(group_sizes(bound)), Seeded::new(seeded::Memory::Weak, seed));
    let mut kept = (new, (0..ranks).map(|_| Agent::new()).collect::<Vec<_>>());
    for round in 0..rounds {
        let sizes: Vec<i64> = (0..ranks)
            .map(|rank| if rank == round % ranks { BOUND - 1 } else { dice.below(BOUND as u32 + 1).into() })
            .collect();
        let whole = leak(&Config { bs: BatchSizes::PerRank(&sizes), global_bs, ..*config });
        let own: Vec<_> = (0..ranks).zip(&sizes).map(|(rank, &bs)| own_shape(config, rank, bs)).collect();
        for shape in &own {
            assert_eq!(Fingerprints::new(shape, choices).first_difference(&agreed), None);
        }
        // A rank at the bound may mask tokens: it does not know that others have fewer.
        let tensors = |rank: u32| Tensors::random(own[rank as usize], RankId(rank), &mut dice);
        let tensors = (0..ranks).map(tensors).collect();
        let judge = Judge::new(whole, [tensors].into(), |shape, _, source, token, k| {
            result_row(shape, source, token, k)
        });
        let mut world = Apart { judge, whole, own };
        let (memory, agents) = kept;
        let mut cluster = Cluster::new(whole, choices, memory, schedule("DC", 1));
        for (i, agent) in agents.into_iter().enumerate() {
            cluster.members[i].agent = agent;
            cluster.shape = world.own[i];
            cluster.begin_next(i, &mut world).unwrap();
            if choices.has_agents(whole) {
                let member = RankId(i as u32);
                cluster.memory.chooser.may_step(Actor { member, core: AGENT });
            }
        }
        while let Some(choice) = cluster.memory.chooser.next() {
            if let Choice::Step(actor) = choice {
                cluster.shape = world.own[actor.member.index()];
            }
            cluster.take(choice, &mut world).unwrap();
        }
        let ended = cluster.members.iter().all(|member| member.ended == 2);
        assert!(ended, "{choices:?}, {sizes:?}, seed {seed}: {:?}", cluster.members);
        kept = (cluster.memory, cluster.members.into_iter().map(|member| member.agent).collect());
    }
}

#[test]
fn ranks_that_know_their_own_batch_alone_agree_with_the_oracle() {
    for config in configs() {
        for choices in Choices::all(&shape_of(&config)) {
            (0..2).for_each(|seed| play(&config, choices, 4, seed));
        }
    }
}

#[test]
fn a_core_of_a_rank_whose_batch_is_not_known_is_refused() {
    for config in configs() {
        let shape = own_shape(&config, 1, 2);
        let env = |rank| {
            let rank = RankId(rank);
            let terms = Terms::new(Capabilities::all());
            Env::new(shape, rank, CoreId(0), Choices::default(), terms, Portable).err()
        };
        assert_eq!([env(1), env(0)], [None, Some(Refused::OtherBatch { rank: RankId(0) })]);
    }
}

/// What depends on the batches of others is as large as the bound needs.
#[test]
fn other_ranks_may_have_as_many_tokens_as_the_bound() {
    for config in configs() {
        let (shape, bound) = (own_shape(&config, 1, 0), shape_of(&config));
        assert_eq!((shape.bs(RankId(0)), shape.bs(RankId(1)), shape.bs_max()), (3, 0, 3));
        for rank in [RankId(0), RankId(1)] {
            let rows = |shape: &Shape| capacity(shape, rank, Tensor::ExpandX);
            assert_eq!(rows(shape), rows(&bound));
        }
        assert_eq!(shape.window_bytes(), bound.window_bytes());
        assert!(shape.bs_is_uneven() && !own_shape(&config, 1, BOUND).bs_is_uneven());
    }
}

#[test]
fn rules_of_one_batch_name_what_is_wrong() {
    let config = configs().remove(0);
    let own =
        |rank, bs, global_bs| Config { bs: BatchSizes::Own { rank: RankId(rank), bs }, global_bs, ..config };
    let broken =
        |config: Config<'_>| Shape::new(&config, Limits::None).err().map(|broken| broken.to_string());
    assert_eq!(broken(own(2, 3, 0)), None);
    assert_eq!(broken(own(2, 0, 9)), None);
    let tp = Config { tp_world_size: 2, moe_expert_num: 3, ..own(0, 3, 9) };
    for (config, rule) in [
        (own(3, 3, 9), "must be that of a rank below ep_world_size"),
        (own(0, 0, 0), "must be above 0 on some rank"),
        (own(0, 4, 9), "must be 0 or a multiple of ep_world_size from bs * ep_world_size on"),
        (own(0, 1, 10), "must be 0 or a multiple of ep_world_size from bs * ep_world_size on"),
        (tp, "must be given for every rank in a TP domain"),
    ] {
        let seen = broken(config).unwrap_or_default();
        assert!(seen.contains(rule), "{seen}");
    }
}
