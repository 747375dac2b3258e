//! Twins that must fail. Each test says what is the weakest memory, how many rounds and which traffic show it,
//! and where it can be said, under which conditions the twin is safe. `--nocapture` prints the seeds.

use core::ops::Range;
use veriep_case::case::Case;
use veriep_case::config::Config;
use veriep_core::layout::state::Operator;
use veriep_core::place::Region;
use veriep_core::protocol::{Choices, Flags};
use veriep_core::sim::duty::{Double, Words};
use veriep_group::backend::lockstep::Memory::{Strong, Weak};
use veriep_group::driver::Options;
use veriep_testing::trial::{Trial, idle, seeded, send_all, small};
use veriep_testing::twins::Duty;

const SEEDS: Range<u64> = 0..200;

/// Two ranks of so many cores; in the last round every rank sends to both.
fn pair(cores: i64) -> Case {
    seeded(small(2, 4, 2, 3, cores), 1)
}

/// Two ranks of one core, each of which sends all its tokens to itself (or, not `own`, to the other).
fn secluded(own: bool) -> Case {
    let mut case = seeded(small(2, 4, 2, 2, 1), 1);
    (0..2).for_each(|rank| send_all(&mut case, rank, if own { rank } else { 1 - rank }));
    case
}

/// Two ranks of one core: rank 0 keeps its tokens, and rank 1 sends it all its own.
fn ahead() -> Case {
    let mut case = seeded(small(2, 4, 2, 2, 1), 1);
    (0..2).for_each(|rank| send_all(&mut case, rank, 0));
    case
}

#[test]
fn the_protocol_as_it_is_holds() {
    for cores in 1..=3 {
        Trial::new(&pair(cores), "DC", 6).must_hold(Weak, SEEDS);
        Trial::new(&pair(cores), "DDCC", 3).must_hold(Weak, SEEDS);
    }
}

/// Strong memory, one round, any traffic.
#[test]
fn publish_before_data_is_caught() {
    Trial::new(&pair(1), "DC", 1).must_catch(&Duty::RowsFirst, Strong, SEEDS);
}

/// Strong memory, one round, two cores: one publishes for both what the other has not yet put.
#[test]
fn a_missing_barrier_behind_quiet_is_caught() {
    Trial::new(&pair(2), "DC", 1).must_catch(&Duty::Barrier { even: false, odd: true }, Strong, SEEDS);
}

/// Strong memory, one round, two cores: the second copies out to the rows of the first.
#[test]
fn a_missing_barrier_behind_the_sums_is_caught() {
    Trial::new(&pair(2), "DC", 1).must_catch(&Duty::Barrier { even: true, odd: false }, Strong, SEEDS);
}

/// Strong memory, two rounds, ranks that send only to themselves (or are idle): then combine holds no rank back,
/// and a fast rank's second flag meets the first one. Where every rank waits for the other in combine, one
/// partition is enough.
#[test]
fn one_dispatch_partition_is_caught_with_self_traffic() {
    let twin = Duty::Second(Double::Partition(Operator::Dispatch));
    Trial::new(&secluded(true), "DC", 2).steady().must_catch(&twin, Strong, SEEDS);
    Trial::new(&secluded(false), "DC", 6).steady().cannot_catch(&twin, Strong, SEEDS);
    let mut all_idle = pair(1);
    (0..2).for_each(|rank| idle(&mut all_idle, rank));
    Trial::new(&all_idle, "DC", 2).must_catch(&twin, Strong, SEEDS);
}

/// One combine partition is safe with rounds in strict order, since the dispatch between two combines holds all
/// back. With two batches in flight strong memory and one DDCC show it.
#[test]
fn one_combine_partition_is_safe_in_strict_order_and_caught_with_two_batches_in_flight() {
    let twin = Duty::Second(Double::Partition(Operator::Combine));
    for case in [pair(1), pair(2)] {
        Trial::new(&case, "DC", 6).cannot_catch(&twin, Weak, SEEDS);
    }
    Trial::new(&secluded(true), "DC", 6).steady().cannot_catch(&twin, Weak, SEEDS);
    Trial::new(&pair(1), "DDCC", 1).must_catch(&twin, Strong, SEEDS);
}

/// Three batches in flight are one too many for two combine partitions. Strong memory, one DDDCCC, a rank whose
/// tokens stay at home and whose peer's come to it: no rank holds it back, and its third combine writes over rows
/// that the peer has not read. With two batches in flight it may run ahead as it likes.
#[test]
fn three_batches_in_flight_are_caught() {
    let case = ahead();
    for memory in [Strong, Weak] {
        let failed = SEEDS.filter(|&seed| Trial::new(&case, "DDDCCC", 1).in_lockstep(memory, seed).is_err());
        let failed: Vec<_> = failed.collect();
        eprintln!(
            "DDDCCC on {memory:?} memory fails on {} seeds, the first is {:?}",
            failed.len(),
            failed.first()
        );
        assert!(!failed.is_empty());
        Trial::new(&case, "DDCC", 3).must_hold(memory, SEEDS);
    }
}

/// Weak memory. One round with two cores: one publishes for both what of the other has not landed. With one
/// core that flag itself comes after the puts, and what is left is the late clear: idle ranks and three
/// rounds, so that the flag of a round comes to a word whose clear of the round before last has not landed.
/// Strong memory has nothing to wait for.
#[test]
fn a_missing_quiet_is_caught_on_weak_memory() {
    Trial::new(&pair(2), "DC", 1).must_catch(&Duty::Quiet, Weak, SEEDS);
    let mut one_idle = pair(1);
    idle(&mut one_idle, 0);
    let mut all_idle = one_idle.clone();
    idle(&mut all_idle, 1);
    Trial::new(&all_idle, "DC", 3).must_catch(&Duty::Quiet, Weak, 0..2000);
    for case in [pair(1), pair(2), one_idle, all_idle] {
        Trial::new(&case, "DC", 6).cannot_catch(&Duty::Quiet, Strong, SEEDS);
    }
}

/// Strong memory, three rounds: the flag of the round before last, with its count. In two rounds no word is
/// used twice.
#[test]
fn a_clear_that_never_happens_is_caught_in_three_rounds() {
    for kind in [Operator::Dispatch, Operator::Combine] {
        Trial::new(&pair(1), "DC", 3).must_catch(&Duty::Clear(Words::Status(Some(kind))), Strong, SEEDS);
        Trial::new(&pair(1), "DC", 2).cannot_catch(&Duty::Clear(Words::Status(Some(kind))), Weak, SEEDS);
    }
}

/// Strong memory, three rounds, self or idle traffic: a peer that no rank holds back has published for the round
/// after next before the clear comes.
#[test]
fn a_clear_in_the_next_operator_is_caught() {
    let twin = Duty::InTime(Words::Status(Some(Operator::Dispatch)));
    Trial::new(&secluded(true), "DC", 3).steady().must_catch(&twin, Strong, SEEDS);
}

/// Weak memory, one round; it is combine that fails, since dispatch is quiet before it publishes.
#[test]
fn a_relaxed_publish_is_caught_on_weak_memory() {
    Trial::new(&pair(1), "DC", 1).must_catch(&Duty::FlagBehindRows(Region::State), Weak, SEEDS);
    Trial::new(&pair(1), "DC", 6).cannot_catch(&Duty::FlagBehindRows(Region::State), Strong, SEEDS);
}

/// Strong memory, one round, any traffic.
#[test]
fn a_count_that_comes_behind_its_flag_is_caught() {
    Trial::new(&pair(1), "DC", 1).must_catch(&Duty::WholeCount, Strong, SEEDS);
}

/// Strong memory, one round, more than one local expert and traffic that is not symmetric.
#[test]
fn status_slots_in_the_order_of_the_data_slots_are_caught() {
    Trial::new(&pair(1), "DC", 1).must_catch(&Duty::StatusOrder, Strong, 0..1);
}

/// The same with separate flags and with fullmesh_v2, whose cores send before they have heard of each other. No
/// other rank hears of a rank's counts before all of its cores are quiet, so on strong memory join or not is one.
#[test]
fn a_missing_join_is_caught_with_separate_flags_and_with_blocks_on_weak_memory() {
    let no_join = |flags| Options {
        no_join: true,
        choices: Choices { flags, ..Choices::default() },
        ..Options::default()
    };
    let blocks = seeded(Config { comm_alg: "fullmesh_v2".to_owned(), ..small(2, 4, 2, 3, 2) }, 1);
    for (case, flags) in [(pair(2), Flags::Separate), (blocks, Flags::Joint)] {
        let trial = Trial { options: no_join(flags), ..Trial::new(&case, "DDCC", 4) };
        trial.must_hold(Strong, SEEDS);
        let caught = SEEDS.into_iter().find_map(|seed| Some((seed, trial.in_lockstep(Weak, seed).err()?)));
        let (seed, error) = caught.expect("a seed that shows it");
        eprintln!("no join, {flags:?}, on Weak memory, seed {seed}: {error}");
        let options = Options { no_join: false, ..trial.options };
        Trial { options, ..trial }.must_hold(Weak, SEEDS);
    }
}

/// Weak memory, two dispatches in a row, two cores: a core begins the second while its own word of the last
/// barrier has not landed, reads the epoch before from it, and arrives at the wrong barrier. With the join every
/// other core has observed that word. Strong memory cannot show it: every dispatch has two full core barriers, so
/// no core is more than an operator ahead of another, and what it touches early is in the other partition. Nor
/// can DC: a combine begins only when its rows are there, so that all cores have ended the dispatch, join or not.
#[test]
fn a_missing_join_is_caught_on_weak_memory() {
    let options = Options { no_join: true, ..Options::default() };
    for case in [pair(2), pair(3)] {
        let trial = Trial { options, ..Trial::new(&case, "DDCC", 4) };
        trial.must_hold(Strong, SEEDS);
        let (seed, error) = SEEDS
            .into_iter()
            .find_map(|seed| Some((seed, trial.in_lockstep(Weak, seed).err()?)))
            .expect("a seed that shows it");
        eprintln!("no join on Weak memory, seed {seed}: {error}");
        Trial { options, ..Trial::new(&case, "DC", 8) }.must_hold(Weak, SEEDS);
    }
}

/// Two TP domains of two ranks, one token to each expert and all others to one of them.
fn tp(cores: i64) -> Case {
    seeded(Config { tp_world_size: 2, ..small(2, 2, 1, 4, cores) }, 1)
}

#[test]
fn the_protocol_with_a_tp_domain_holds() {
    for cores in 1..=3 {
        Trial::new(&tp(cores), "DC", 6).must_hold(Weak, 0..60);
        Trial::new(&tp(cores), "DDCC", 3).must_hold(Weak, 0..60);
    }
}

/// Weak memory, one round. On strong memory never.
#[test]
fn a_tp_slot_that_overtakes_its_rows_is_caught_on_weak_memory() {
    Trial::new(&tp(1), "DC", 1).must_catch(&Duty::FlagBehindRows(Region::TpState), Weak, SEEDS);
    Trial::new(&tp(1), "DC", 3).cannot_catch(&Duty::FlagBehindRows(Region::TpState), Strong, 0..40);
}

/// Strong memory, `DDCC` once: a peer that is ahead puts its second rows over the first. In strict order the peers'
/// other operator is between.
#[test]
fn one_tp_partition_is_caught_with_two_batches_in_flight() {
    Trial::new(&tp(1), "DDCC", 1).must_catch(&Duty::Second(Double::TpPartition), Strong, SEEDS);
    Trial::new(&tp(1), "DC", 4).cannot_catch(&Duty::Second(Double::TpPartition), Strong, 0..40);
}

/// Strong memory, three rounds: a partition must come round.
#[test]
fn a_tp_slot_that_is_never_cleared_is_caught_in_three_rounds() {
    for kind in [Operator::Dispatch, Operator::Combine] {
        Trial::new(&tp(1), "DC", 3).must_catch(&Duty::Clear(Words::TpSlots(kind)), Strong, SEEDS);
        Trial::new(&tp(1), "DC", 2).cannot_catch(&Duty::Clear(Words::TpSlots(kind)), Strong, 0..40);
    }
}

/// Strong memory, three rounds: a core that had no rows has some when the partition comes round. With the same counts in
/// every round no test can tell: what stayed is what is about to come.
#[test]
fn a_tp_slot_of_no_rows_that_is_never_cleared_is_caught_once_counts_change() {
    let case = seeded(Config { tp_world_size: 2, ..small(2, 2, 1, 1, 1) }, 1);
    for kind in [Operator::Dispatch, Operator::Combine] {
        let (trial, twin) = (Trial::new(&case, "DC", 3), Duty::Clear(Words::EmptyTpSlots(kind)));
        trial.must_catch(&twin, Strong, SEEDS);
        trial.steady().cannot_catch(&twin, Weak, SEEDS);
    }
}
