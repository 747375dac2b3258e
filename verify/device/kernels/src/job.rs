//! The work of a block, independent of the processor that runs it.

#[cfg(feature = "all")]
use crate::AGENT_BYTES;
use crate::{Job, LANES, Role, Said, scene};
use core::slice;
use core::sync::atomic::{AtomicU32, Ordering};
#[cfg(feature = "all")]
use veriep_core::fabric::raw::RawNic;
use veriep_core::fabric::raw::{RawFabric, RowCopy, Segment};
use veriep_core::fabric::{Fabric, Progress, ProtocolError};
use veriep_core::inputs::Inputs;
#[cfg(feature = "all")]
use veriep_core::protocol::{Agent, AgentEnv};
use veriep_core::protocol::{CombineInputs, Context, Env, Machine, Operator, Scratch};
use veriep_core::shape::{Limits, Shape};
use veriep_core::units::{CoreId, RankId};
use veriep_core::vector::Portable;

/// Does a job as thread number `lane` of its block, over the fabric that is made of a raw one and the number of lanes that copy.
///
/// # Safety
/// The job keeps what [`RawFabric::new`] asks for; the jobs of all ranks are done at once, and those that share one have the same
/// answer.
pub unsafe fn run<'a, F: Fabric>(job: *mut Job, lane: u32, fabric: impl Fn(RawFabric<'a>, u32) -> F) {
    // SAFETY: nothing writes to it before the end of this block.
    let said = unsafe { role(&*job, lane, fabric) };
    if lane == 0 {
        // SAFETY: all lanes have the same answer, so none reads the job any more.
        let job = unsafe { &mut *job };
        job.said = said;
        // SAFETY: a u32 of the rank, which only its blocks access, all as an atomic.
        let ended = unsafe { AtomicU32::from_ptr(job.ended) };
        ended.fetch_add(u32::from(job.role != Role::Agent), Ordering::AcqRel);
    }
}

unsafe fn role<'a, F: Fabric>(job: &'a Job, lane: u32, fabric: impl Fn(RawFabric<'a>, u32) -> F) -> Said {
    let scene = scene(job.scene);
    let Some(shape) = Shape::check(&scene.config, Limits::None, &mut |_| ()) else { return Said::Refused };
    let rank = RankId(job.rank);
    let operator = match job.role {
        Role::Dispatch => Operator::Dispatch,
        Role::Combine => Operator::Combine,
        #[cfg(feature = "all")]
        // SAFETY: the caller's promise. One lane is the agent.
        Role::Agent => return if lane == 0 { unsafe { agent(job, &shape, rank) } } else { Said::Nothing },
        #[cfg(not(feature = "all"))]
        Role::Agent => return Said::Refused,
    };
    // SAFETY: the caller's promise.
    let raw = unsafe { RawFabric::new(&job.peers, rank, job.outputs) };
    let mut fabric = fabric(raw.with_servers(shape.server_ranks()).with_row_copy(RowCopy::Plain), job.lanes);
    let Ok(env) = Env::new(&shape, rank, CoreId(job.core), scene.choices, fabric.terms(), Portable) else {
        return Said::Refused;
    };
    // SAFETY: inputs, and outputs of operators that have ended; nothing writes them now.
    let read = |of: Segment| unsafe { slice::from_raw_parts(of.base().cast_const(), of.len() as usize) };
    let output = |tensor| job.outputs.get(tensor as usize).map_or(&[][..], |&of| read(of));
    // SAFETY: four bytes each, aligned as memory of a device is; any bits are a number.
    let (expert_ids, expert_scales) =
        unsafe { (read(job.expert_ids).align_to().1, read(job.expert_scales).align_to().1) };
    let inputs = Inputs { x: read(job.x), expert_ids, expert_scales, ..Inputs::default() };
    let combine_inputs = CombineInputs::of(read(job.y), output);
    // SAFETY: each thread of the block has a part of its own, and there is room for 32 of them.
    let own = |of: Segment| unsafe {
        let len = of.len() as usize / LANES as usize;
        slice::from_raw_parts_mut(of.base().add(len * lane as usize), len)
    };
    let row = own(job.row);
    // SAFETY: as of ids.
    let words = unsafe { own(job.words).align_to_mut().1 };
    let mut machine = Machine::begin(operator, &env);
    drive(job.attempts, || {
        let scratch = Scratch { words, row };
        let (core, fabric) = (env.on(&shape)?, &mut fabric);
        machine.step(&mut Context { core, fabric, inputs: &inputs, combine_inputs: &combine_inputs, scratch })
    })
}

/// Steps a machine until it is done, or until it has waited for too long.
fn drive(attempts: u32, mut step: impl FnMut() -> Result<Progress, ProtocolError>) -> Said {
    let mut left = attempts;
    loop {
        match step() {
            Ok(Progress::Done) => return Said::Done,
            Ok(Progress::Stepped) => {}
            Ok(Progress::Pending(_)) if left == 0 => return Said::Waits,
            Ok(Progress::Pending(_)) => left -= 1,
            Err(_) => return Said::Error,
        }
    }
}

#[cfg(feature = "all")]
/// Steps a rank's agent until all cores of the rank have ended.
unsafe fn agent(job: &Job, shape: &Shape, rank: RankId) -> Said {
    const { assert!(size_of::<(u64, Agent)>() <= AGENT_BYTES && align_of::<(u64, Agent)>() <= 256) };
    // SAFETY: room for both, which the rank's one agent alone uses; bytes that are zero are no agent yet, as the word says.
    let agent = unsafe {
        let (is_there, agent) = (job.agent.cast::<u64>(), job.agent.cast::<u64>().add(1).cast::<Agent>());
        if is_there.read() == 0 {
            agent.write(Agent::new());
            is_there.write(1);
        }
        &mut *agent
    };
    let env = AgentEnv::new(shape, rank, scene(job.scene).choices.order);
    // SAFETY: the caller's promise; this is the one agent of the rank.
    let mut nic = unsafe { RawNic::new(&job.peers, rank) };
    // SAFETY: a u32 of the rank, which only its blocks access, all as an atomic.
    let ended = unsafe { AtomicU32::from_ptr(job.ended) };
    loop {
        // Asked first: the doorbell of a core that ends behind this step is seen by the next one.
        let was_last = ended.load(Ordering::Acquire) == shape.aiv_num();
        match agent.step(shape, &env, &mut nic) {
            Err(_) => return Said::Error,
            Ok(Progress::Pending(_)) if was_last => return Said::Done,
            Ok(_) => {}
        }
    }
}
