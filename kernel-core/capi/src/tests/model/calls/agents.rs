//! Agents, in lockstep with those of Rust.

use super::came::{check_steps, said_of};
use super::cores::shape_to_go_on_with;
use super::memories::{Cache, mapped_of, reach_of};
use super::{List, ORDERS, shape_of};
use crate::agent::{veriep_agent_awaits, veriep_agent_new, veriep_agent_step};
use crate::codes::*;
use crate::tests::model::Args;
use crate::tests::model::caches::Noted;
use crate::tests::model::mood::Moody;
use crate::tests::model::tables::nic_table;
use crate::tests::model::world::{AgentSeat, Outcome, Phase, World, nothing};
use crate::types::*;
use core::cell::Cell;
use core::ptr::null;
use kernel_core::fabric::ProtocolError;
use kernel_core::fabric::nic::Nic;
use kernel_core::protocol::{Agent, AgentEnv, Ran, Run};
use kernel_core::shape::Protocol;
use kernel_core::units::RankId;
use std::vec::Vec;

fn drive_agent(world: &mut World, args: &mut Args, awaits: bool) -> Outcome {
    let mood = world.mood();
    let steps = world.dice.pick(&[0, 1, 2, 40]);
    let tells = world.tells();
    let (shape_at, of) = shape_to_go_on_with(world, args);
    let rank = world.seats[args.seat].rank;

    // The memory of C.
    let (memory, twins_memory) = (&world.memories[0], &world.memories[1]);
    let reach = memory.reach(rank);
    let mut moody = Moody::new(reach.nic(rank), mood, rank);
    let mut nic = nic_table(&raw mut moody);
    if args.fault("nic.observe").is_some() {
        nic.observe = None;
    }
    if args.fault("nic.post").is_some() {
        nic.post = None;
    }
    let cache = Cache { memory, told: Cell::default() };
    let (mut peers, mut tp) = (Vec::new(), Vec::new());
    let mut mapped = mapped_of(args, &cache, tells, rank, &mut peers, &mut tp);
    let is_both = args.fault("cx.nic and cx.mapped").is_some();
    let nic_at = args.pointer("nic", &mut nic);
    let mapped_at = args.pointer("mapped", &mut mapped);

    // What the twin comes to.
    let AgentSeat { object, phase, twin } = &mut world.agents[rank as usize];
    let (mut came, mut awaited) = (Ran { steps: 0, end: Ok(Run::Budget) }, Vec::new());
    let told = Cell::default();
    let mut asked = Vec::new();
    if args.refused.is_none() {
        let (env, agent) = twin.as_mut().unwrap();
        let whole = twins_memory.reach(rank);
        let cut;
        let mut by_table = Moody::new(whole.nic(rank), mood, rank);
        let (mut by_address, mut by_caches);
        let nic: &mut dyn Nic = if args.is_table {
            &mut by_table
        } else if tells.writes || tells.reads {
            cut = reach_of(twins_memory, rank, &mapped);
            let inner = cut.nic(rank);
            by_caches = Noted { inner, memory: twins_memory, own: (rank, 0), tells, told: &told };
            &mut by_caches
        } else {
            cut = reach_of(twins_memory, rank, &mapped);
            by_address = cut.nic(rank);
            &mut by_address
        };
        if awaits {
            came = agent.awaits(&of, env, nic, &mut |what| awaited.push(what)).into();
        } else {
            came = agent.run(&of, env, nic, steps);
        }
        asked = by_table.calls();
        if !matches!(came.end, Ok(_) | Err(ProtocolError::OtherShape { .. })) {
            *phase = Phase::Dead;
        }
    }

    // The same by C.
    let agent = args.object("agent", &raw mut **object, &raw const *world.blank);
    let list = awaits.then(|| {
        List::<veriep_awaited>::new_in(
            &mut world.dice,
            &mut world.list,
            &raw mut *world.count,
            args,
            awaited.len(),
        )
    });
    let text_len = args.length("text", world.text.len());
    let cx = veriep_context {
        shape: shape_at,
        mapped: if !args.is_table || is_both { mapped_at } else { null() },
        nic: if args.is_table { nic_at } else { null() },
        text: args.pointer("text", world.text.as_mut_ptr()),
        text_len,
        ..nothing()
    };
    let cx_at = args.pointer("cx", (&raw const cx).cast_mut());
    let status = args.pointer("status", &raw mut *world.status);
    // SAFETY: as above.
    let said = unsafe {
        match &list {
            Some(list) => veriep_agent_awaits(agent, cx_at, list.to, list.room, list.count, status),
            None => veriep_agent_step(agent, cx_at, steps, status),
        }
    };
    if args.refused.is_none() {
        assert_eq!(moody.calls(), asked, "calls of the interface");
        assert_eq!(cache.told.take(), told.take(), "what caches are told");
    }
    args.outcome(said, || {
        let awaits = list.as_ref().map(|list| (list, &awaited[..]));
        // An agent tells what it waits for in any case.
        let (code, text) = check_steps(world, args, &came, status, awaits);
        (code, text.map(|_| said_of(&came, true).2))
    })
}

pub(in crate::tests::model) fn agent_new(world: &mut World, args: &mut Args) -> Outcome {
    let (shape, of) = shape_of(world, args, "shape");
    let right = world.seats[args.seat].rank;
    let rank =
        if args.fault("rank").is_some() { of.ep_world_size() } else { right.min(of.ep_world_size() - 1) };
    let order_right = world.dice.below(4) as u32;
    let order = args.number("order", order_right, 4);
    let agent = &mut world.agents[right as usize];
    let out = args.pointer("out", &raw mut *agent.object);
    // SAFETY: as above.
    let said = unsafe { veriep_agent_new(out, shape, rank, order) };
    args.outcome(said, || {
        if matches!(of.protocol(), Protocol::Fullmesh | Protocol::Hierarchy) {
            agent.twin = Some((AgentEnv::new(&of, RankId(rank), ORDERS[order as usize]), Agent::new()));
            agent.phase = Phase::Running;
            (VERIEP_OK, None)
        } else {
            (agent.twin, agent.phase) = (None, Phase::None);
            (VERIEP_E_REFUSED, None)
        }
    })
}

pub(in crate::tests::model) fn agent_step(world: &mut World, args: &mut Args) -> Outcome {
    drive_agent(world, args, false)
}

pub(in crate::tests::model) fn agent_awaits(world: &mut World, args: &mut Args) -> Outcome {
    drive_agent(world, args, true)
}
