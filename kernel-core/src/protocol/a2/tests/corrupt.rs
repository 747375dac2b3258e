//! Each word that a machine or an agent reads is corrupted: the error names it with the right numbers.

use super::{Delivery, TWO, a2, plain_result, routed, run};
use crate::fabric::{Flag, Progress, ProtocolError, Wait};
use crate::layout::a2_message::{Task, doorbell, task_word};
use crate::layout::a2_window::{FLAG, FLAG1, buffer_chosen, tail_flag, window_in};
use crate::layout::state::{Partition, core_word};
use crate::place::Place;
use crate::plan::order::SendOrder;
use crate::protocol::a2::{Agent, AgentEnv};
use crate::protocol::{Machine, Operator};
use crate::shape::{Config, Shape};
use crate::sim::cluster::{Failure, Planned};
use crate::testing::domain::{Domain, shape as shape_of};
use crate::testing::group::Group;
use crate::testing::group::memory;
use crate::units::{CoreId, RankId};
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

pub(super) const RANK: RankId = RankId(0);
pub(super) const PEER: RankId = RankId(1);
pub(super) const P0: Partition = Partition::P0;

/// Two ranks, two experts each, two tokens; both ranks send each token to experts 0 and 2.
pub(super) fn group(cores: i64) -> Group {
    group_of(&Config { aiv_num: cores, ..a2(TWO) })
}

pub(super) fn group_of(config: &Config<'_>) -> Group {
    let shape = shape_of(config);
    let tensors = [0, 1].map(|rank| routed(&shape, rank, &[0, 2, 0, 2]));
    let mut group = Group::of(&shape, vec![tensors.to_vec()], plain_result);
    group.begin_all();
    group
}

/// Steps core 0 of rank 0 until it waits for anything but quiet, and returns the wait.
fn wait(group: &mut Group) -> Wait {
    for _ in 0..1000 {
        match group.progress(0).unwrap() {
            Some(Progress::Pending(Wait::QUIET) | Progress::Stepped) => {}
            Some(Progress::Pending(wait)) => return wait,
            other => panic!("{other:?}"),
        }
    }
    panic!("never waits");
}

/// Steps core 0 of rank 0 until it fails.
pub(super) fn error(group: &mut Group) -> ProtocolError {
    for _ in 0..1000 {
        match group.progress(0) {
            Err(Failure::Core(RANK, CoreId(0), error)) => return error,
            Ok(Some(Progress::Done)) | Err(_) => break,
            Ok(_) => {}
        }
    }
    panic!("nothing was refused: {:?}", group.core(0));
}

/// Delivers a dispatch window of the peer by hand, with these counts, up to FLAG1.
fn deliver_counts(group: &mut Group, counts: &[u32]) {
    let at = |at| window_in(group.shape, P0, PEER, at);
    let (head, flag) = (at(0), at(FLAG1));
    let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
    group.memory.poke(RANK, head, &bytes);
    group.memory.poke_word(RANK, flag, FLAG.into());
}

#[test]
fn a_half_that_does_not_exist_is_refused() {
    for seen in [2, u64::MAX] {
        let mut group = group(1);
        let at = buffer_chosen(group.shape);
        group.memory.poke_word(RANK, at, seen);
        assert_eq!(error(&mut group), ProtocolError::Selector { at, seen });
    }
}

#[test]
fn a_doorbell_that_does_not_fit_the_half_is_refused_and_left_alone() {
    let mut group = group(1);
    group.memory.poke_word(RANK, doorbell(), 5);
    assert_eq!(error(&mut group), ProtocolError::Doorbell { seen: 5, min: 6, max: 6 });
    assert_eq!(group.memory.word(RANK, doorbell()), 5);
}

#[test]
fn a_core_in_an_impossible_epoch_is_refused_at_the_barrier() {
    let mut group = group(2);
    assert_eq!(wait(&mut group), Wait::barrier(CoreId(1)));
    group.memory.poke_word(RANK, core_word(CoreId(1), 1), 2 << 62);
    assert_eq!(error(&mut group), ProtocolError::CoreWord { core: CoreId(1), seen: 2 << 62, epoch: 1 });
}

#[test]
fn a_core_waits_for_counts_then_for_the_rows_that_they_announce() {
    let mut group = group(1);
    assert_eq!(wait(&mut group), Wait::new(Flag::WindowCounts, PEER, &[]));
    deliver_counts(&mut group, &[2, 1]);
    let missing = wait(&mut group);
    assert_eq!(missing, Wait::new(Flag::WindowRows, PEER, &[3]));
    assert_eq!(missing.to_string(), "missing: end flag of rank 1 after 3 rows");
    assert_eq!(missing.source(), Some(PEER));
    // The peer cannot have sent this window.
    group.judge.lenient = true;
    // A flag after any other number of rows is ignored.
    for rows in [0, 1, 2, 4] {
        let at = window_in(group.shape, P0, PEER, tail_flag(group.shape, Operator::Dispatch, rows));
        group.memory.poke_word(RANK, at, FLAG.into());
        assert_eq!(wait(&mut group), missing);
    }
    let at = window_in(group.shape, P0, PEER, tail_flag(group.shape, Operator::Dispatch, 3));
    for seen in [0, 1, 0x7FFF_FFFF, 0xFFFF_FFFE, u64::MAX << 32] {
        group.memory.poke_word(RANK, at, seen);
        assert_eq!(wait(&mut group), missing, "{seen:#x}");
    }
    // The word beside the flag does not matter.
    group.memory.poke_word(RANK, at, u64::MAX);
    let ended = (0..1000).any(|_| group.progress(0).unwrap() == Some(Progress::Done));
    assert!(ended, "{:?}", group.core(0));
}

#[test]
fn a_count_beyond_the_tokens_of_its_source_is_refused() {
    for (counts, local_expert, seen) in [([3, 0], 0, 3), ([0, 3], 1, 3), ([0, u32::MAX], 1, u32::MAX)] {
        let mut group = group(1);
        deliver_counts(&mut group, &counts);
        assert_eq!(error(&mut group), ProtocolError::Count { source: PEER, local_expert, seen, max: 2 });
    }
}

#[test]
fn counts_that_are_more_than_a_source_can_send_to_a_rank_are_refused() {
    let shape = shape_of(&a2(Domain { e: 6, k: 1, ..TWO }));
    let tensors = [0, 1].map(|rank| routed(&shape, rank, &[0, 3]));
    let mut group = Group::of(&shape, vec![tensors.to_vec()], plain_result);
    group.begin_all();
    deliver_counts(&mut group, &[1, 1, 1]);
    assert_eq!(error(&mut group), ProtocolError::Rows { seen: 3, max: 2 });
}

/// Returns the group at the start of combine.
pub(super) fn at_combine(mut group: Group) -> Group {
    group.operators.truncate(1);
    assert_eq!(run(&mut group, Delivery::Strong, 1), Ok(()));
    group.operators.push(Planned::whole(Operator::Combine, 0));
    group.begin_all();
    assert!(matches!(group.core(0).machine, Some(Machine::A2Combine(_))));
    group
}

/// Returns the error of core 0 of rank 0 in combine, with its operands changed.
fn combine_error(change: impl FnOnce(&Shape, &mut Vec<u8>, &mut Vec<u8>, &mut Vec<u8>)) -> ProtocolError {
    combine_error_of(group(1), change)
}

fn combine_error_of(
    mut group: Group,
    change: impl FnOnce(&Shape, &mut Vec<u8>, &mut Vec<u8>, &mut Vec<u8>),
) -> ProtocolError {
    group = at_combine(group);
    let shape = group.shape;
    let rows = &mut group.members[0].returned[0];
    change(shape, &mut rows.y, &mut rows.ep_recv_counts, &mut rows.expand_idx);
    // The peer's windows arrive: its rows belong to the pairs of expert 2.
    for actor in [1, 3, 1, 3].into_iter().cycle().take(200) {
        let _ = group.act(actor);
    }
    error(&mut group)
}

#[test]
fn recv_counts_with_more_rows_than_a_source_can_send_are_refused() {
    let shape = shape_of(&a2(Domain { e: 6, k: 1, ..TWO }));
    let tensors = [0, 1].map(|rank| routed(&shape, rank, &[0, 3]));
    let mut group = Group::of(&shape, vec![tensors.to_vec()], plain_result);
    group.begin_all();
    let error = combine_error_of(group, |_, _, counts, _| {
        // One row of rank 0 for each of three experts, though it has two tokens.
        (0..).zip([1, 1, 2, 2, 3, 3]).for_each(|(slot, sum)| set(counts, slot, sum));
    });
    assert_eq!(error, ProtocolError::Rows { seen: 3, max: 2 });
}

fn set(bytes: &mut [u8], entry: usize, value: i32) {
    bytes[entry * 4..][..4].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn recv_counts_that_no_dispatch_puts_out_are_refused() {
    // The correct entries are 2, 4, 4, 4: expert 0 has two rows of each rank.
    let wrong = |entry, value: i32| {
        combine_error(move |_, _, counts, _| {
            assert_eq!(counts[..16], [2u8, 4, 4, 4].map(|n| [n, 0, 0, 0]).concat());
            set(counts, entry, value);
        })
    };
    let entry = |slot, seen, min, max| ProtocolError::RecvCount { slot, seen, min, max };
    assert_eq!(wrong(0, -1), entry(0, -1, 0, 2));
    assert_eq!(wrong(0, 3), entry(0, 3, 0, 2));
    assert_eq!(wrong(1, 1), entry(1, 1, 2, 4));
    assert_eq!(wrong(1, 5), entry(1, 5, 2, 4));
    assert_eq!(wrong(3, 3), entry(3, 3, 4, 6));
    assert_eq!(wrong(3, 6), ProtocolError::RecvCounts { seen: 6, max: 4 }, "six rows, but y holds four");
    let short = combine_error(|_, _, counts, _| counts.truncate(12));
    assert_eq!(short, entry(3, -1, 4, 6));
    let empty = combine_error(|shape, y, _, _| y.truncate(2 * shape.row_bytes() as usize));
    assert_eq!(empty, ProtocolError::RecvCounts { seen: 4, max: 2 });
}

#[test]
fn a_slot_that_the_expert_does_not_have_is_refused() {
    for (pair, seen) in [(0, -1), (0, 2), (3, i32::MAX), (3, i32::MIN)] {
        let error = combine_error(|_, _, _, expand_idx| set(expand_idx, pair, seen));
        let (token, k) = (pair as u32 / 2, pair as u32 % 2);
        assert_eq!(error, ProtocolError::ExpandIdx { token, k, seen: seen.into(), slots: 2 });
    }
    let short = combine_error(|_, _, _, expand_idx| expand_idx.truncate(4));
    assert_eq!(short, ProtocolError::ExpandIdx { token: 0, k: 1, seen: -1, slots: 2 });
}

/// The agent of rank 0 of three, whose doorbell has been rung, with this task for its first peer.
fn serve(task: Task, rung: u64) -> (Result<Progress, ProtocolError>, usize) {
    let shape = agent_shape();
    let mut world = memory(&shape);
    for (i, word) in (0..).zip(task.to_words()) {
        world.poke_word(RANK, task_word(P0, PEER, i), word);
    }
    world.poke_word(RANK, doorbell(), rung);
    let (mut agent, before) = (Agent::new(), Agent::new());
    let env = AgentEnv::new(&shape, RANK, SendOrder::Staggered);
    let result = agent.step(&shape, &env, &mut world.nic(RANK));
    if result.is_err() {
        assert_eq!(agent, before);
    }
    (result, world.transfers().len())
}

fn agent_shape() -> Shape {
    shape_of(&a2(Domain { r: 3, e: 3, ..TWO }))
}

fn honest() -> Task {
    Task::new(&agent_shape(), P0, Operator::Dispatch, RANK, PEER, 2)
}

#[test]
fn an_honest_task_of_any_length_is_posted() {
    let shape = agent_shape();
    for (kind, rows) in
        [(Operator::Combine, 0), (Operator::Combine, 2), (Operator::Dispatch, 0), (Operator::Dispatch, 2)]
    {
        let task = Task::new(&shape, P0, kind, RANK, PEER, rows);
        assert_eq!(serve(task, 1), (Ok(Progress::Stepped), 1), "{task:?}");
    }
    let whole = Task { count: shape.rank_window() / 8, ..honest() };
    assert_eq!(serve(whole, 1), (Ok(Progress::Stepped), 1));
    assert_eq!(serve(honest(), 0), (Ok(Progress::Pending(Wait::IDLE)), 0));
}

#[test]
fn a_task_with_a_wrong_field_is_refused_by_its_name_and_not_posted() {
    let (good, window) = (honest(), agent_shape().rank_window());
    let (local, remote, most) = (good.local_buf, good.remote_buf, window / 8);
    let buffers = |field: &'static str, right: u64| {
        [0, right + 8, right - 8, right + window, u64::MAX].map(|seen| (field, seen, right, right))
    };
    // Its own window at the peer is the first one, so no address is below it.
    let remotes = [8, window, u64::MAX].map(|seen| ("remote_buf", seen, remote, remote));
    let counts = [0, 4, most + 1, u64::MAX].map(|seen| ("count", seen, 5, most));
    let types = [0, 7, u32::MAX.into()].map(|seen| ("data_type", seen, 6, 6));
    let ranks = [0, 2, 3, u32::MAX.into()].map(|seen| ("remote_rank_id", seen, 1, 1));
    let all = buffers("local_buf", local).into_iter().chain(remotes).chain(counts).chain(types).chain(ranks);
    for (field, seen, min, max) in all {
        let task = match field {
            "local_buf" => Task { local_buf: seen, ..good },
            "remote_buf" => Task { remote_buf: seen, ..good },
            "count" => Task { count: seen, ..good },
            "data_type" => Task { data_type: seen as u32, ..good },
            _ => Task { remote_rank_id: seen as u32, ..good },
        };
        let error = ProtocolError::Task { peer: PEER, field, seen, min, max };
        assert_eq!(serve(task, 1), (Err(error), 0));
    }
    let error = ProtocolError::Task { peer: PEER, field: "count", seen: 4, min: 5, max: 9 };
    assert_eq!(error.to_string(), "task for rank 1: count = 4: must be in [5, 9]");
}

#[test]
fn a_doorbell_more_than_two_operators_ahead_is_refused() {
    for seen in [3, u64::MAX] {
        let error = ProtocolError::Doorbell { seen, min: 0, max: 2 };
        assert_eq!(serve(honest(), seen), (Err(error), 0));
    }
    assert_eq!(serve(honest(), 2).1, 1, "two operators may wait for an agent");
}

#[test]
fn an_agent_without_peers_serves_any_doorbell_in_one_step() {
    let shape = shape_of(&a2(Domain { r: 1, e: 1, k: 1, ..TWO }));
    let env = AgentEnv::new(&shape, RANK, SendOrder::Staggered);
    for rung in [1, 2, 1 << 40, u64::MAX] {
        let (mut world, mut agent) = (memory(&shape), Agent::new());
        world.poke_word(RANK, doorbell(), rung);
        assert_eq!(agent.step(&shape, &env, &mut world.nic(RANK)), Ok(Progress::Stepped));
        let idle = Progress::Pending(Wait::IDLE);
        assert_eq!(agent.step(&shape, &env, &mut world.nic(RANK)), Ok(idle), "{rung}");
    }
}

#[test]
fn tasks_are_posted_from_the_next_rank_on_and_retried_without_room() {
    let shape = agent_shape();
    let mut world = memory(&shape);
    for rank in (0..3).map(RankId) {
        let env = AgentEnv::new(&shape, rank, SendOrder::Staggered);
        for peer in (0..3).map(RankId) {
            let task = Task::new(&shape, P0, Operator::Combine, rank, peer, 0);
            for (i, word) in (0..).zip(task.to_words()) {
                world.poke_word(rank, task_word(P0, peer, i), word);
            }
        }
        world.poke_word(rank, doorbell(), 1);
        let mut agent = Agent::new();
        let next = [1, 2, 0][rank.index()];
        world.room = 0;
        let full = agent.step(&shape, &env, &mut world.nic(rank));
        world.room = 9;
        assert_eq!(full, Ok(Progress::Pending(Wait::new(Flag::Nic, RankId(next), &[]))));
        let posted = [0, 1, 2, 3].map(|_| agent.step(&shape, &env, &mut world.nic(rank)).unwrap());
        let idle = Progress::Pending(Wait::IDLE);
        assert_eq!(posted, [Progress::Stepped, Progress::Stepped, idle, idle], "rank {rank}");
        assert_eq!(world.transfers().len(), 2);
        world.settle();
    }
    // Even empty windows hold a flag for each rank.
    for (to, from) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)].map(|(a, b)| (RankId(a), RankId(b))) {
        let at = window_in(&shape, P0, from, tail_flag(&shape, Operator::Combine, 0));
        assert!(world.word(to, Place { ..at }) == 0, "the windows out held no flag");
    }
}

#[test]
fn nothing_is_taken_for_returned_when_there_is_nothing() {
    let error = combine_error(|_, y, counts, idx| {
        y.clear();
        counts.clear();
        idx.clear();
    });
    assert_eq!(error, ProtocolError::RecvCount { slot: 0, seen: -1, min: 0, max: 2 });
}
