//! Calls that some rank leaves out, or numbers wrongly, in every protocol.

use crate::fabric::ProtocolError;
use crate::layout::relay;
use crate::protocol::{Choices, Flags, Operator, Receive, Stage};
use crate::shape::{Config, Protocol, Shape};
use crate::sim::cluster::{Failure, Planned};
use crate::sim::seeded::Memory::{Late, Weak};
use crate::sync::call::CALLS;
use crate::testing::domain::{Dice, Domain, PAIR, row, shape as shape_of};
use crate::testing::group::{Group, Result, unmasked_rounds};
use crate::units::{CoreId, RankId};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

const ROUNDS: usize = 6;

/// A protocol with choices that change its words.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) config: Config<'static>,
    pub(super) choices: Choices,
}

/// Returns every kind of word, with one core and with two.
pub(super) fn cases() -> Vec<Case> {
    let checked = Choices { checked: true, ..Choices::default() };
    let receive = |receive| Choices { receive, ..checked };
    let plain = Domain { r: 3, e: 3, k: 2, h: 8, ..PAIR }.config();
    let mesh = Config { comm_alg: Protocol::Fullmesh, ..Domain { r: 3, e: 3, k: 2, h: 8, ..PAIR }.config() };
    let relayed = Domain { r: 4, e: 8, k: 3, h: 8, bs: 3, ..PAIR }.config();
    let relayed = Config { comm_alg: Protocol::Hierarchy, server_ranks: 2, ..relayed };
    let all = [
        ("joint flags", plain, checked),
        ("separate flags", plain, Choices { flags: Flags::Separate, ..checked }),
        ("in place", plain, receive(Receive::InPlace)),
        ("direct placement", plain, receive(Receive::Direct { areas: 1 })),
        ("overwriting", plain, receive(Receive::Overwrite { areas: 1 })),
        ("fullmesh_v2", Config { comm_alg: Protocol::FullmeshV2, ..plain }, checked),
        ("A2 full mesh", mesh, checked),
        ("hierarchy, stage 2", relayed, Choices { stage: Stage::Two, ..checked }),
        ("hierarchy, stage 3", relayed, Choices { stage: Stage::Three, ..checked }),
    ];
    let with_cores = |cores| {
        all.map(|(name, config, choices)| Case { name, config: Config { aiv_num: cores, ..config }, choices })
    };
    [1, 2].into_iter().flat_map(with_cores).collect()
}

impl Case {
    pub(super) fn shape(&self) -> Shape {
        shape_of(&self.config)
    }

    /// Returns a group of some rounds, in which the rows of a round differ from those of all others.
    pub(super) fn group(&self, rounds: usize, seed: u64) -> Group {
        let result: Result = |shape, round, source, token, k| {
            let number = round as u32 * 31 + source * 53 + token * 17 + k * 5;
            row(shape.dtype(), shape.h(), |i| ((number + i) % 127) as f32 - 60.0)
        };
        let shape = self.shape();
        let rounds = unmasked_rounds(&shape, rounds, &mut Dice(seed));
        let mut group = Group::of(&shape, rounds, result);
        group.near = Weak;
        group.choices = self.choices;
        group.actors = group.cluster.actors().collect();
        group
    }

    /// Runs a group in which rank 1 leaves out the operators that `skips` names.
    fn run_without(
        &self,
        seed: u64,
        skips: fn(&Planned) -> bool,
        counts: bool,
    ) -> core::result::Result<(), Failure> {
        let mut group = self.group(ROUNDS, seed);
        group.judge.counts = counts;
        let kept: Vec<_> = group.operators.iter().copied().filter(|planned| !skips(planned)).collect();
        for member in group.members.iter_mut().filter(|member| member.number == RankId(1)) {
            member.own = Some(kept.clone());
        }
        group.play(Late, seed)
    }
}

fn leaves_out_a_round(planned: &Planned) -> bool {
    planned.round == 3
}

fn leaves_out_a_combine(planned: &Planned) -> bool {
    planned.round == 3 && planned.operator == Operator::Combine
}

/// Returns the number of seeds for each case: with `.ci/prove` ten thousand over all, else a few that stand for them.
pub(super) fn seeds() -> u64 {
    if std::env::var_os("VERIEP_THOROUGH").is_some() { 10_000_u64.div_ceil(cases().len() as u64) } else { 12 }
}

/// Returns how runs of so many seeds ended: by a refused call, a wait, something else.
fn endings(case: &Case, skips: fn(&Planned) -> bool, counts: bool, seeds: u64) -> [u64; 3] {
    let mut endings = [0; 3];
    for seed in 0..seeds {
        let ending = match case.run_without(seed, skips, counts) {
            Err(Failure::Core(_, _, ProtocolError::OtherCall { .. })) => 0,
            Err(Failure::Hang(_)) => 1,
            _ => 2,
        };
        endings[ending] += 1;
    }
    endings
}

#[test]
fn groups_that_check_calls_agree_with_the_oracle() {
    for case in cases() {
        for (seed, counts) in [(1, false), (2, true)] {
            let mut group = case.group(ROUNDS, seed);
            group.judge.counts = counts;
            let ended = group.play(Late, seed);
            assert_eq!(ended, Ok(()), "{}, {} cores", case.name, case.config.aiv_num);
        }
    }
}

#[test]
fn a_rank_that_leaves_out_a_call_is_never_handed_other_rows() {
    for case in cases() {
        let what = format!("{}, {} cores", case.name, case.config.aiv_num);
        assert_eq!(endings(&case, leaves_out_a_round, false, seeds()), [seeds(), 0, 0], "{what}");
        // The others await its rows, and it awaits their next dispatch: each names the other.
        let [refused, hangs, others] = endings(&case, leaves_out_a_combine, false, seeds());
        assert_eq!((refused + hangs, others), (seeds(), 0), "{what}: {refused} refused, {hangs} hang");
    }
}

#[test]
fn without_numbers_a_left_out_round_is_not_seen() {
    let wrong: Vec<String> = cases()
        .iter()
        .filter(|case| {
            let unchecked = Case { choices: Choices { checked: false, ..case.choices }, ..**case };
            endings(&unchecked, leaves_out_a_round, false, 12)[2] == 12
                && endings(case, leaves_out_a_round, true, 12)[2] == 12
        })
        .map(|case| format!("{} {}", case.name, case.config.aiv_num))
        .collect();
    assert_eq!(wrong.len(), cases().len(), "only {wrong:?}");
}

#[test]
fn a_wrong_number_is_refused_with_the_rank_and_both_numbers() {
    for case in cases() {
        let mut group = case.group(ROUNDS, 1);
        // Rank 1 brings the number of the round after, once.
        group.judge.wrong_call = Some((RankId(1), 2));
        let Err(Failure::Core(rank, _, ProtocolError::OtherCall { awaited, seen, expected })) =
            group.play(Late, 1)
        else {
            panic!("{}: not refused", case.name)
        };
        let [own, of_rank_1] = if rank == RankId(1) { [3, 2] } else { [2, 3] };
        assert_eq!((expected.call(), seen.call()), (own, of_rank_1), "{}: {awaited}", case.name);
        assert!(rank.0 == 1 || awaited.rank == RankId(1), "{}: {awaited}", case.name);
    }
}

#[test]
fn numbers_go_round() {
    for case in cases() {
        for counts in [false, true] {
            let mut group = case.group(ROUNDS, 4);
            group.judge.counts = counts;
            group.judge.first_call = CALLS - 3;
            assert_eq!(group.play(Late, 4), Ok(()), "{}", case.name);
        }
    }
}

#[test]
fn the_epochs_of_a_hierarchy_go_round() {
    for case in cases().into_iter().filter(|case| case.config.comm_alg == Protocol::Hierarchy) {
        for (checked, bits) in [(false, 48), (true, 36)] {
            let case = Case { choices: Choices { checked, ..case.choices }, ..case };
            let mut group = case.group(ROUNDS, 5);
            let (ranks, cores) = (group.shape.ep_world_size(), group.shape.aiv_num());
            for (rank, core) in (0..ranks).flat_map(|rank| (0..cores).map(move |core| (rank, core))) {
                group.memory.poke_word(RankId(rank), relay::epoch(CoreId(core)), (1 << bits) - 4);
            }
            assert_eq!(group.play(Late, 5), Ok(()), "{}, {bits} bits", case.name);
        }
    }
}

#[test]
fn a_rank_that_abstains_serves_the_others_in_every_protocol() {
    for case in cases() {
        let mut group = case.group(ROUNDS, 6);
        // Rank 1 has nothing in rounds 2 and 3, and rank 0 nothing in round 3.
        group.judge.abstaining = [(RankId(1), 2), (RankId(1), 3), (RankId(0), 3)].to_vec();
        assert_eq!(group.play(Late, 6), Ok(()), "{}, {} cores", case.name, case.config.aiv_num);
    }
}
