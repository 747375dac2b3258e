//! The agent of a rank on A2.

use crate::codes::{Said, VERIEP_E_ARGUMENT, VERIEP_E_ORDER, VERIEP_E_REFUSED, VERIEP_PENDING, code, order};
use crate::context::{List, awaited, context, report};
use crate::fabric::NicTable;
use crate::given::{self, read};
#[cfg(target_has_atomic = "64")]
use crate::mapped::Mapped;
use crate::objects;
use crate::types::{veriep_agent, veriep_awaited, veriep_context, veriep_shape, veriep_status};
use kernel_core::fabric::ProtocolError;
use kernel_core::fabric::nic::Nic;
#[cfg(target_has_atomic = "64")]
use kernel_core::fabric::raw::RawNic;
use kernel_core::protocol::{Agent, AgentEnv, Choices, Ran, Stage};
use kernel_core::shape::Shape;
use kernel_core::units::RankId;

/// Makes the agent of `rank`, which issues tasks in this order (`VERIEP_ORDER_*`). It lives as long as the group.
/// `VERIEP_E_REFUSED` where no rank of the shape has an agent, whatever is chosen.
///
/// # Safety
/// Pointers that are not null lead to what they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_agent_new(
    out: *mut veriep_agent,
    shape: *const veriep_shape,
    rank: u32,
    order: u32,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        given::write(out)?;
        let shape = objects::get::<Shape>(shape)?;
        if rank >= shape.ep_world_size() {
            return Err(VERIEP_E_ARGUMENT);
        }
        let order = self::order(order)?;
        objects::forget::<objects::Agent>(out)?;
        let by_agents = Choices { stage: Stage::Two, ..Choices::default() };
        if !by_agents.has_agents(shape) {
            return Err(VERIEP_E_REFUSED);
        }
        let env = AgentEnv::new(shape, RankId(rank), order);
        objects::put(out, objects::Agent { env, rank, is_dead: false, agent: Agent::new() })
    })())
}

/// Lets the agent post at most `steps` tasks: `VERIEP_STEPPED`, `VERIEP_PENDING` when no task is to be posted, or a code below
/// 0. Of the context it takes the shape, the text, and `nic` or `mapped`. `status` may be null.
///
/// # Safety
/// As of `veriep_core_step`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_agent_step(
    agent: *mut veriep_agent,
    cx: *const veriep_context,
    steps: u32,
    status: *mut veriep_status,
) -> i32 {
    // SAFETY: the caller's.
    code(unsafe { drive(agent, cx, status, &mut |agent, env, shape, nic| agent.run(shape, env, nic, steps)) })
}

/// As `veriep_core_awaits`, of an agent.
///
/// # Safety
/// As of `veriep_core_awaits`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_agent_awaits(
    agent: *mut veriep_agent,
    cx: *const veriep_context,
    out: *mut veriep_awaited,
    room: usize,
    count: *mut usize,
    status: *mut veriep_status,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let mut list = List::new(out, room, count)?;
        let said = drive(agent, cx, status, &mut |agent, env, shape, nic| {
            agent.awaits(shape, env, nic, &mut |what| list.add(awaited(what))).into()
        })?;
        if said == VERIEP_PENDING { list.end().map(|_| said) } else { list.none(said) }
    })())
}

type Step<'s> = dyn FnMut(&mut Agent, &AgentEnv, &Shape, &mut dyn Nic) -> Ran + 's;

/// Opens what the caller gave, lets `step` go on, and reports.
///
/// # Safety
/// As of [`veriep_agent_step`].
unsafe fn drive(
    agent: *mut veriep_agent,
    cx: *const veriep_context,
    status: *mut veriep_status,
    step: &mut Step<'_>,
) -> Said {
    // SAFETY: the caller's.
    unsafe {
        let agent = objects::get_mut::<objects::Agent>(agent)?;
        let (given, is_table) = context(cx, status, |cx| !cx.nic.is_null())?;
        if agent.is_dead {
            return Err(VERIEP_E_ORDER);
        }
        let shape = objects::get::<Shape>(given.shape)?;
        let rank = RankId(agent.rank);
        let mut table;
        #[cfg(target_has_atomic = "64")]
        let mut mapped;
        let nic: &mut dyn Nic = if is_table {
            table = NicTable::new(read(given.nic)?, rank)?;
            &mut table
        } else {
            #[cfg(not(target_has_atomic = "64"))]
            return Err(VERIEP_E_REFUSED);
            #[cfg(target_has_atomic = "64")]
            {
                mapped = Mapped::new(given.mapped, rank, RankId(0), |peers, _, _| RawNic::new(peers, rank))?;
                &mut mapped
            }
        };
        let ran = step(&mut agent.agent, &agent.env, shape, nic);
        agent.is_dead = !matches!(ran.end, Ok(_) | Err(ProtocolError::OtherShape { .. }));
        report(given, status, ran, true)
    }
}
