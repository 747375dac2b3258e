//! Trials of a memory: whole rounds of every protocol, and the programs.

use super::fault::Animal;
use super::memory::{Behind, Idle, Zoo};
use super::view::{ZooFabric, ZooNic};
use crate::conformance::{Actor as Acts, Extent, Litmus, Op, ROW_MAX, Run, Step, Who};
use crate::fabric::Fabric;
use crate::fabric::completions::BehindCompletions;
use crate::fabric::nic::Nic;
use crate::inputs::Inputs;
use crate::layout::state::{Operator, STATE_BYTES, Slots};
use crate::place::{Place, Tensor};
use crate::protocol::{Choices, Flags, Receive, Stage};
use crate::shape::{BatchSizes, Config, Protocol, Shape};
use crate::sim::chooser::{AGENT, Actor, Dice};
use crate::sim::cluster::{AgentStep, Answer, Cluster, CoreStep, Failure, Planned, World, schedule};
use crate::sim::storage::{Dense, Spot, group_sizes};
use crate::testing::domain::{self, Domain, PAIR, Tensors, result_row, shape as shape_of};
use crate::testing::group::{Judge, map_large_vectors};
use crate::units::{CoreId, RankId};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::RefCell;

/// A protocol and its modes, with a group that runs it.
pub(super) struct Setup {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    choices: Choices,
}

impl Setup {
    /// Returns whether a group of it may run on a memory, as the door of every core says.
    pub(super) fn admits(&self, animal: &Animal) -> bool {
        self.choices.check(&self.shape, animal.terms()).is_ok()
    }
}

/// Every protocol in every mode. Rows are longer than a packet of 512 bytes, or of 4096.
pub(super) fn setups() -> Vec<Setup> {
    let plain = |r, h| Domain { r, e: 2 * r, k: 2, h, bs: 2, cores: 2, ..PAIR }.config();
    let a3 = Choices::default();
    let receive = |receive| Choices { receive, ..a3 };
    let tp = Config { tp_world_size: 2, moe_expert_num: 2, ..plain(2, 512) };
    let lines = Choices { slots: Slots::Lines, ..a3 };
    let v2 = Config { comm_alg: Protocol::FullmeshV2, ..plain(2, 512) };
    let a2 = Config { comm_alg: Protocol::Fullmesh, ..plain(3, 512) };
    let servers = Config { comm_alg: Protocol::Hierarchy, server_ranks: 2, ..plain(4, 512) };
    let stage = |stage| Choices { stage, ..a3 };
    let all = [
        ("joint", plain(2, 512), a3),
        ("joint on three ranks", plain(3, 16), a3),
        ("joint with long rows", plain(2, 4096), a3),
        ("slots of a line", plain(2, 512), lines),
        ("slots of a line on three ranks", plain(3, 16), lines),
        ("slots of a line in place", plain(3, 16), Choices { receive: Receive::InPlace, ..lines }),
        ("separate", plain(2, 512), Choices { flags: Flags::Separate, ..a3 }),
        ("in place", plain(2, 512), receive(Receive::InPlace)),
        (
            "separate in place",
            plain(3, 16),
            Choices { flags: Flags::Separate, receive: Receive::InPlace, ..a3 },
        ),
        ("direct", plain(2, 512), receive(Receive::Direct { areas: 1 })),
        ("overwrite", plain(3, 16), receive(Receive::Overwrite { areas: 1 })),
        ("TP = 2", tp, a3),
        ("fullmesh_v2", v2, a3),
        ("a2", a2, a3),
        ("hierarchy 2", servers, stage(Stage::Two)),
        ("hierarchy 3", servers, stage(Stage::Three)),
    ];
    all.into_iter().map(|(name, config, choices)| Setup { name, shape: shape_of(&config), choices }).collect()
}

/// Rounds of a run: each place is used several times.
pub(super) const ROUNDS: usize = 5;
/// Steps that change nothing, of all actors together, until they pass for a hang. The slowest right memory needs a tenth.
const PATIENCE: u64 = 6000;

/// Memory of zeros.
pub(super) fn fresh(shape: &Shape) -> Behind {
    with_windows(shape, shape.window_bytes())
}

/// The same with windows of so many bytes.
pub(super) fn with_windows(shape: &Shape, bytes: u64) -> Behind {
    map_large_vectors();
    let window = Spot { member: RankId(0), batch: 0, at: Place::window(0) }.region();
    let sizes = group_sizes(shape).map(|mut sizes| {
        sizes[window] = bytes;
        sizes
    });
    Behind::new(shape, Dense::new(sizes), Idle)
}

/// The outputs of operators, by round, whether it is combine, and member.
type Outputs = BTreeMap<(usize, bool, usize), Vec<u8>>;

struct Zooed {
    judge: Judge,
    zoo: RefCell<Zoo>,
    /// With a TP domain: of each operator that a member has ended.
    outputs: Outputs,
}

impl Zooed {
    /// Keeps the outputs of an operator in a TP domain, which the reference does not judge here, and gives the experts' results.
    fn ended_in_tp_domain(
        &mut self,
        cluster: &mut Cluster<'_, Dense, Idle>,
        i: usize,
        planned: Planned,
    ) -> Result<(), Failure> {
        let (round, is_combine) = (planned.round, planned.operator == Operator::Combine);
        let of_operator = |tensor: &Tensor| (*tensor == Tensor::XOut) == is_combine;
        let outputs = Tensor::ALL.into_iter().filter(of_operator);
        let outputs = outputs.flat_map(|tensor| cluster.output(i, round, tensor)).copied().collect();
        self.outputs.insert((round, is_combine, i), outputs);
        if is_combine {
            return Ok(());
        }
        // The rows of both peers.
        let counts = cluster.output(i, round, Tensor::TpRecvCounts).as_chunks().0.iter().rev().take(2);
        let rows = counts.map(|&count| u64::from(u32::from_le_bytes(count))).sum::<u64>();
        let len = rows * cluster.shape.row_bytes();
        if len > cluster.output(i, round, Tensor::ExpandX).len() as u64 {
            return Err(Failure::Wrong("tp_recv_counts".to_string()));
        }
        // Small numbers of bf16, others in each row.
        let y =
            (0..len as usize).map(|byte| if byte % 2 == 0 { (byte / 2 + i) as u8 } else { 0x3F }).collect();
        cluster.members[i].returned[round] = cluster.returned(i, round, y);
        Ok(())
    }
}

impl World<Dense, Idle> for Zooed {
    fn inputs(&self, member: RankId, round: usize) -> Inputs<'_> {
        World::<Dense, Idle>::inputs(&self.judge, member, round)
    }

    fn ended(
        &mut self,
        cluster: &mut Cluster<'_, Dense, Idle>,
        i: usize,
        planned: Planned,
    ) -> Result<(), Failure> {
        match cluster.shape.tp_world_size() {
            1 => self.judge.ended(cluster, i, planned),
            _ => self.ended_in_tp_domain(cluster, i, planned),
        }
    }

    fn through(&self, core: Actor, inner: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        let completions = self.zoo.borrow().animal.completions;
        let mut fabric = ZooFabric { zoo: &self.zoo, inner, core };
        if completions { step(&mut BehindCompletions::new(fabric)) } else { step(&mut fabric) }
    }

    fn through_nic(&self, agent: Actor, inner: &mut dyn Nic, step: AgentStep<'_>) -> Answer {
        step(&mut ZooNic { zoo: &self.zoo, inner, agent })
    }
}

/// Runs some rounds as a seed decides, and returns what the reference has not judged.
///
/// # Errors
/// The first thing that goes wrong.
fn outputs(setup: &Setup, animal: &Animal, seed: u64) -> Result<Outputs, String> {
    let (shape, tp) = (&setup.shape, setup.shape.tp_world_size());
    let mut inputs = domain::Dice(seed);
    let mut round = || {
        let members = 0..shape.ep_world_size() * tp;
        members.map(|member| Tensors::unmasked(shape, RankId(member / tp), &mut inputs)).collect()
    };
    let tensors = (0..ROUNDS).map(|_| round()).collect();
    let behind = fresh(shape);
    let mut cluster = Cluster::new(shape, setup.choices, behind, schedule("DC", ROUNDS));
    cluster.checked = false;
    cluster.memory.rewrites = true;
    let judge = Judge::new(shape, tensors, |shape, _, source, token, k| result_row(shape, source, token, k));
    let zoo = RefCell::new(Zoo::new(animal, tp, seed));
    let mut world = Zooed { judge, zoo, outputs: BTreeMap::new() };
    let mut dice = Dice(seed ^ 0x5EED);
    let actors: Vec<_> = cluster.actors().collect();
    cluster.begin(&mut world).map_err(|failure| format!("{failure:?}"))?;
    let (mut idle, mut asleep) = (0, 0);
    while cluster.members.iter().any(|member| member.ended < cluster.operators.len()) {
        if dice.below(64) == 0 {
            asleep = if dice.below(2) == 0 { dice.word() } else { 0 };
        }
        let at = dice.below(actors.len());
        if asleep >> (at % 64) & 1 == 1 && dice.below(16) > 0 {
            continue;
        }
        let before = progress(&cluster);
        cluster.step(actors[at], &mut world).map_err(|failure| said(&failure))?;
        world.zoo.get_mut().tick(&mut cluster.memory);
        idle = if progress(&cluster) == before { idle + 1 } else { 0 };
        if idle > PATIENCE {
            return Err("hang".to_string());
        }
    }
    Ok(world.outputs)
}

/// Runs some rounds as a seed decides. Outputs of a TP domain are compared with those over a memory in which effects land at once.
///
/// # Errors
/// The first thing that goes wrong.
pub(super) fn play(setup: &Setup, animal: &Animal, seed: u64) -> Result<(), String> {
    let seen = outputs(setup, animal, seed)?;
    if setup.shape.tp_world_size() == 1 {
        return Ok(());
    }
    let want = outputs(setup, &super::zoo::RIGHT[0], seed)?;
    if seen == want { Ok(()) } else { Err("an output of the TP domain".to_string()) }
}

/// Returns the steps that moved, and the operators that members have ended.
fn progress(cluster: &Cluster<'_, Dense, Idle>) -> (u64, usize) {
    (cluster.steps, cluster.members.iter().map(|member| member.ended).sum())
}

fn said(failure: &Failure) -> String {
    match failure {
        Failure::Wrong(what) => what.split(':').next().unwrap_or_default().to_string(),
        Failure::Core(_, _, error) | Failure::Agent(_, error) => format!("{error}"),
        Failure::Hang(_) => "hang".to_string(),
    }
}

/// The group that programs need.
pub(super) fn litmus_shape(server_ranks: u32) -> Shape {
    let one = |ranks| Domain { r: ranks, e: ranks, k: 1, h: 8, bs: 1, cores: 2, ..PAIR }.config();
    let bs = BatchSizes::Uniform(1);
    let config = match server_ranks {
        0 => Config { comm_alg: Protocol::Fullmesh, bs, ..one(3) },
        _ => Config { comm_alg: Protocol::Hierarchy, server_ranks: 2, bs, ..one(4) },
    };
    shape_of(&config)
}

/// The extents in which a program is run: as it is, with rows of more than a packet, and with the longest; if it has places far
/// apart, in a whole window, too.
pub(super) fn extents(shape: &Shape, litmus: &Litmus) -> Vec<Extent> {
    let of = |row| Extent::new(row, 0, 0).unwrap_or_default();
    let is_apart = |op: &Op| matches!(op, Op::PutApart { .. } | Op::PublishApart { .. });
    let apart = litmus.programs.iter().flat_map(|program| program.ops).any(is_apart);
    let all = [Extent::default(), of(1032), of(ROW_MAX)];
    all.into_iter().chain(apart.then_some(wide(shape))).collect()
}

/// The whole window and state of a shape.
pub(super) fn wide(shape: &Shape) -> Extent {
    Extent::new(1032, shape.window_bytes(), STATE_BYTES).unwrap_or_default()
}

/// Runs a program once, and returns whether its expectations held.
pub(super) fn held(
    litmus: &Litmus,
    behind: &mut Behind,
    animal: &Animal,
    extent: Extent,
    repetition: u64,
    seed: u64,
) -> bool {
    let zoo = RefCell::new(Zoo::new(animal, 1, seed));
    let mut runs: Vec<_> =
        litmus.programs.iter().map(|&program| Run::new(program, repetition).in_extent(extent)).collect();
    let mut dice = Dice(seed ^ 0x11);
    let (mut idle, mut asleep) = (0, 0);
    while !runs.is_empty() {
        if dice.below(32) == 0 {
            asleep = if dice.below(2) == 0 { dice.word() } else { 0 };
        }
        let at = dice.below(runs.len());
        let run = &mut runs[at];
        let member = RankId(run.program.rank);
        let awake = asleep >> (member.0 % 64) & 1 == 0 || dice.below(16) == 0;
        if awake {
            let step = match run.program.who {
                Who::Core(core) => {
                    let core = Actor { member, core: CoreId(core) };
                    let inner = &mut behind.fabric(member, core.core, 0);
                    let mut fabric = ZooFabric { zoo: &zoo, inner, core };
                    match animal.completions {
                        false => run.step(&mut Acts::Core(&mut fabric)),
                        true => run.step(&mut Acts::Core(&mut BehindCompletions::new(fabric))),
                    }
                }
                Who::Agent => {
                    let agent = Actor { member, core: AGENT };
                    let inner = &mut behind.nic(member);
                    run.step(&mut Acts::Agent(&mut ZooNic { zoo: &zoo, inner, agent }))
                }
            };
            match step {
                Ok(Step::Moved) => idle = 0,
                Ok(Step::Waits) => idle += 1,
                Ok(Step::Done) => drop(runs.swap_remove(at)),
                Err(_) => return false,
            }
        }
        zoo.borrow_mut().tick(behind);
        if idle > PATIENCE / 2 {
            return false;
        }
    }
    true
}
