//! Invalid arguments of a machine or an agent: they give an error, never a panic, and nothing is sent.

use super::corrupt::{P0, PEER, RANK, at_combine, error, group, group_of};
use super::{TWO, a2};
use crate::fabric::{Fault, Progress, ProtocolError};
use crate::layout::a2_message::{Task, doorbell, task_word};
use crate::layout::a2_window::buffer_chosen;
use crate::layout::state::{Operator, core_word};
use crate::plan::order::SendOrder;
use crate::protocol::a2::{Agent, AgentEnv};
use crate::shape::Config;
use crate::testing::domain::row;
use crate::testing::group::Group;
use crate::testing::group::memory;
use crate::units::CoreId;

fn quantised() -> Group {
    group_of(&Config { quant_mode: 2, ..a2(TWO) })
}

#[test]
fn an_own_core_word_that_no_barrier_leaves_is_refused_at_the_start() {
    let mut group = group(2);
    group.memory.poke_word(RANK, core_word(CoreId(0), 0), 1 << 62);
    let expected = ProtocolError::CoreWord { core: CoreId(0), seen: 1 << 62, epoch: 0 };
    assert_eq!(error(&mut group), expected);
}

#[test]
fn a_refusal_of_the_fabric_stops_the_machine() {
    let mut group = group(1);
    let at = buffer_chosen(group.shape);
    group.memory.truncate_window(RANK, 100);
    assert_eq!(error(&mut group), ProtocolError::Fault(Fault::new(RANK, at, 8)));
}

#[test]
fn quantising_a_token_that_is_not_finite_fails_and_nothing_is_sent() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut group = quantised();
        let dtype = group.shape.dtype();
        group.judge.rounds[0][0].x = row(dtype, 16, |i| if i == 14 { value } else { 1.0 });
        assert_eq!(error(&mut group), ProtocolError::NotFinite { token: 1 });
        // The agent of rank 0 follows both cores in the list of actors.
        assert_eq!(group.act(2), Ok(false));
        assert_eq!((group.memory.word(RANK, doorbell()), group.memory.posted as usize), (0, 0));
    }
}

#[test]
fn a_scratch_that_is_too_short_is_an_error_and_not_a_panic() {
    let words = group(1).core(0).words.len();
    for len in 0..words {
        let [mut dispatch, mut combine] = [group(1), at_combine(group(1))];
        for group in [&mut dispatch, &mut combine] {
            group.core(0).words.truncate(len);
            let error = error(group);
            assert!(matches!(error, ProtocolError::Given(_)), "{error} with {len} of {words} words");
        }
    }
    // The scratch holds a record of int8 with its scale, or a row of dtype.
    for len in 0..40 {
        let mut group = quantised();
        group.core(0).row.truncate(len);
        assert!(matches!(error(&mut group), ProtocolError::Given(_)), "{len} bytes, dispatch");
    }
    for len in 0..16 {
        let mut group = at_combine(group(1));
        group.core(0).row.truncate(len);
        for actor in [0, 1, 2, 3].into_iter().cycle().take(400) {
            let _ = group.act(actor);
        }
        assert!(matches!(error(&mut group), ProtocolError::Given(_)), "{len} bytes, combine");
    }
}

#[test]
fn unchecked_inputs_are_an_error_and_not_a_panic() {
    for mut group in [group(1), quantised()] {
        group.judge.rounds[0][0].x.truncate(8);
        let error = error(&mut group);
        assert!(matches!(error, ProtocolError::Given(_) | ProtocolError::NotFinite { .. }), "{error}");
    }
}

#[test]
fn an_agent_posts_a_corrected_task_and_no_other_twice() {
    let shape = group(1).shape;
    let mut world = memory(shape);
    let env = AgentEnv::new(shape, RANK, SendOrder::Staggered);
    let good = Task::new(shape, P0, Operator::Dispatch, RANK, PEER, 1);
    let mut agent = Agent::new();
    world.poke_word(RANK, doorbell(), 1);
    for flip in 0..64 {
        // One bit of each word in turn is flipped; for the length, which may vary, a high bit.
        let mut words = good.to_words();
        let i = flip % words.len();
        words[i] ^= 1 << if i < 2 { flip } else { flip / 4 + 40 };
        for (i, word) in (0..).zip(words) {
            world.poke_word(RANK, task_word(P0, PEER, i), word);
        }
        match agent.step(shape, &env, &mut world.nic(RANK)) {
            Err(ProtocolError::Task { peer: PEER, .. }) => {
                assert_eq!((&agent, world.transfers().len()), (&Agent::new(), 0), "{words:x?}");
            }
            other => panic!("{other:?}: {words:x?}"),
        }
    }
    for (i, word) in (0..).zip(good.to_words()) {
        world.poke_word(RANK, task_word(P0, PEER, i), word);
    }
    let other = group(2).shape;
    let refused = agent.step(other, &env, &mut world.nic(RANK));
    let (made_for, given) = (shape.fingerprint(), other.fingerprint());
    assert_eq!((refused, world.transfers().len()), (Err(ProtocolError::OtherShape { made_for, given }), 0));
    assert_eq!(agent.step(shape, &env, &mut world.nic(RANK)), Ok(Progress::Stepped));
    assert_eq!(world.transfers().len(), 1);
}
