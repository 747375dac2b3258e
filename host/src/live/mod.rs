//! One rank of a live group, for who has tensors of its own and calls operators one by one: engines, and Python.
//!
//! Members of a group are processes that have joined, or threads of one process. Each calls the same operators in the same
//! order, which is checked: a call that differs from that of another rank ends the group with both named. A call returns when
//! the operator has ended on its rank.

mod results;
mod tokens;

pub use results::Results;
pub use tokens::Tokens;
use tokens::refused;

use crate::backend::shared::SharedMemory;
use crate::backend::{Backend, row_copy};
use crate::case::{ExpertMap, RankTensors};
use crate::clashes::{self, clashes};
use crate::config::Config;
use crate::driver::rank::{Cores, Operator};
use crate::driver::schedule::Schedule;
use crate::driver::{Failure, Hang, Options, keep_operands};
use crate::error::{Error, Missing};
use crate::world::join::{Alike, Joins, NotJoined, Rendezvous};
use crate::world::{Announced, Call, Called, Calls, Departed, Gone, GroupMemory, Peers, Phase, World};
use crate::{expert, global_rank, group, hints};
use core::hash::{Hash, Hasher};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::hash::DefaultHasher;
use std::io;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use veriep_core::inputs::Inputs;
use veriep_core::layout::outputs::{capacity, ep_recv_counts_bytes};
use veriep_core::place::Tensor;
use veriep_core::protocol::{self, Choices, Fingerprints, Operands};
use veriep_core::shape::{Given, Limits, Op, Shape};
use veriep_core::sim::cluster::Returned;
use veriep_core::units::{CoreId, ExpertId, RankId};
use veriep_core::vector::Any;

/// Batches in flight that two partitions of each kind are proved to bear.
pub const IN_FLIGHT_MAX: usize = 2;
/// Between two questions to the caller whether it still wants to wait.
const ASKS: Duration = Duration::from_millis(20);
/// Behind a death, until others that came with it have been seen, too.
const SETTLES: Duration = Duration::from_millis(20);

/// In which order a member combines its batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Each once, the oldest first, as the protocol has it.
    #[default]
    Strict,
    /// A batch may be combined twice or never. The group emulates that, with operators that the caller does not see: a batch
    /// that must make room is combined with zeros, and one that is combined again is dispatched again.
    Loose,
}

/// How a group behaves: what its configuration does not say.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// No rank moved for so long: give up.
    pub deadline: Duration,
    /// The same on all ranks.
    pub order: Order,
    /// Whose ranges the configuration must keep.
    pub limits: Limits,
    /// What works on rows.
    pub vector: Any,
    /// The buffer stays as large as the configuration says; else it is raised to what it must be.
    pub is_fixed: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(300),
            order: Order::Strict,
            limits: Limits::Product,
            vector: Any::default(),
            is_fixed: false,
        }
    }
}

/// One configuration of a group.
#[derive(Clone, Debug)]
struct Layer {
    config: Config,
    shape: Shape,
}

/// What all members of a group are given alike.
#[derive(Clone, Debug)]
pub struct Plan {
    layers: Vec<Layer>,
    /// Redundant experts: ids are logical ones then.
    expert_map: Option<ExpertMap>,
    options: Options,
    bytes: u64,
    deadline: Duration,
    order: Order,
    /// Batches that may be in flight at once.
    in_flight_max: usize,
}

/// A member of a live group.
#[derive(Debug)]
pub struct Member {
    plan: Arc<Plan>,
    rank: RankId,
    /// Not like that of any other member in this process.
    number: u64,
    world: Arc<World>,
    calls: Calls,
    memory: Arc<SharedMemory>,
    peers: Option<Peers>,
    /// By layer.
    cores: Vec<Cores>,
    slots: [Slot; IN_FLIGHT_MAX],
    /// Slots dispatched and not combined, the oldest first.
    in_flight: VecDeque<usize>,
    batches: usize,
    operators: u64,
    /// Why it takes part no more.
    ended: Option<Error>,
    /// The process that it is of.
    pid: u32,
}

/// What is kept of a batch until its combine.
#[derive(Debug, Default)]
struct Slot {
    batch: usize,
    /// Rows that the rank has received.
    rows: usize,
    route: Arc<Route>,
    returned: Returned,
}

/// Which tokens of a batch go where.
#[derive(Debug, Default)]
struct Route {
    layer: usize,
    /// Of the member's tokens, padded to `bs`.
    tensors: RankTensors,
    /// How many tokens the caller gave.
    tokens: usize,
    has_weights: bool,
}

/// A batch between its dispatch and its combine.
#[derive(Clone, Debug)]
pub struct Handle {
    /// The number of its dispatch.
    pub batch: usize,
    /// Rows that the rank has received.
    pub rows: usize,
    slot: usize,
    /// Whose it is.
    member: u64,
    route: Arc<Route>,
}

impl Handle {
    /// The layer that it went through.
    #[must_use]
    pub fn layer(&self) -> usize {
        self.route.layer
    }
}

/// Asks a caller that waits, now and then, whether it still wants to.
pub type GoesOn<'a> = &'a mut dyn FnMut() -> bool;

impl Plan {
    /// Checks a configuration.
    ///
    /// # Errors
    /// It breaks a rule, or needs tensors that a member is not given.
    pub fn new(config: Config, terms: Terms) -> Result<Self, Error> {
        Self::of_layers(vec![config], None, terms)
    }

    /// Checks the configurations of layers that share one group, at least one, and the map of their redundant experts.
    ///
    /// # Errors
    /// One breaks a rule, or cannot share memory with the first.
    pub fn of_layers(
        mut configs: Vec<Config>,
        expert_map: Option<ExpertMap>,
        terms: Terms,
    ) -> Result<Self, Error> {
        let Terms { deadline, order, limits, vector, is_fixed } = terms;
        if !is_fixed {
            configs.iter_mut().for_each(Config::raise_buffer);
            let largest = configs.iter().map(|config| config.hccl_buffsize_mb).max().unwrap_or(0);
            configs.iter_mut().for_each(|config| config.hccl_buffsize_mb = largest);
        }
        let given = if expert_map.is_some() { Given::EXPERT_MAP } else { Given::empty() };
        let mut layers = Vec::new();
        for config in configs {
            let shape = hints::shape(&config, given, limits, "Group")?;
            if shape.op() != Op::Combine {
                let rule = "must be combine: members have no residual";
                return Err(refused("op", " = combine_add_rms_norm", rule));
            }
            if let Some(map) = &expert_map {
                hints::expert_map(&shape, map, "Group")?;
            }
            layers.push(Layer { config, shape });
        }
        if layers.is_empty() {
            return Err(Error::Request("layers: must be at least one".to_owned()));
        }
        let in_flight_max = in_flight_max(&layers)?;
        let options = Options { choices: Choices::default(), vector, ..Options::default() };
        let shapes: Vec<_> = layers.iter().map(|layer| &layer.shape).collect();
        let bytes =
            SharedMemory::bytes_of_layers(&shapes, IN_FLIGHT_MAX).map_err(|e| of_system("memory", &e))?;
        Ok(Self { layers, expert_map, options, bytes, deadline, order, in_flight_max })
    }

    /// The valid configuration of the first layer.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.shape_of(0)
    }

    fn shape_of(&self, layer: usize) -> &Shape {
        &self.layers[layer].shape
    }

    fn shapes(&self) -> Vec<&Shape> {
        self.layers.iter().map(|layer| &layer.shape).collect()
    }

    /// Bytes of the group's memory: all regions, and the outputs of every batch in flight.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What all members must have alike.
    fn alike(&self) -> Alike {
        let of_layer = |layer: &Layer| Fingerprints::new(&layer.shape, self.options.choices);
        let map = self.expert_map.as_ref().map(|map| (&map.words, map.rows));
        Alike {
            layers: self.layers.iter().map(of_layer).collect(),
            others: vec![
                ("order".to_owned(), self.order as u64),
                ("expert_map".to_owned(), map.map_or(0, |map| number_of(&map))),
            ],
        }
    }

    /// The call of an operator, or of the join, as others compare it.
    fn call(&self, operator: Called, layer: usize, batch: usize, common: u64) -> Call {
        let shape = self.shape_of(layer);
        Call {
            operator,
            group: self.alike().whole(),
            layer: layer as u64,
            batch: batch as u64,
            h: shape.h().into(),
            k: shape.k().into(),
            bs: shape.bs_max().into(),
            common,
        }
    }

    /// The ranks of the group, each a member.
    #[must_use]
    pub fn members(&self) -> usize {
        global_rank::count(self.shape()) as usize
    }

    /// Joins a group of processes as one of its ranks, and waits for the others as long as that. Calls are compared with
    /// those of the groups that share `beside`: the join is one of them.
    ///
    /// # Errors
    /// Not all came in time, a rank was given something else or called something else, or the system refuses.
    pub fn join(
        self,
        rank: RankId,
        rendezvous: Rendezvous<'_>,
        patience: Duration,
        beside: Option<Calls>,
        goes_on: GoesOn<'_>,
    ) -> Result<Member, Error> {
        let joins = Joins {
            process: rank.index(),
            processes: self.members(),
            bytes: self.bytes,
            alike: self.alike(),
            patience,
        };
        let announced = beside.as_ref().map(|calls| calls.announce(self.call(Called::Join, 0, 0, 0)));
        let mismatch = || announced.as_ref().and_then(Announced::mismatch);
        let joined = joins.join(rendezvous, &mut || goes_on() && mismatch().is_none());
        let joined = joined.map_err(|error| match (error, mismatch()) {
            (NotJoined::Interrupted, Some(line)) => Error::Mismatch(line),
            (NotJoined::Interrupted, None) => Error::Interrupted("while others were waited for".to_owned()),
            (NotJoined::Missing { processes, of, after }, _) => {
                let missing = |&process: &usize| Missing {
                    rank: rank.0,
                    operator: "join",
                    what: "process",
                    source_rank: Some(process as u32),
                    ..Missing::default()
                };
                let missing = processes.iter().map(missing).collect();
                let line = NotJoined::Missing { processes, of, after }.to_string();
                Error::NoProgress { line, missing }
            }
            (error, _) => Error::Request(error.to_string()),
        })?;
        let memory = Arc::new(self.memory(&joined.memory)?);
        let calls = beside.unwrap_or_else(|| Calls::new(joined.world.clone()));
        let view = View { world: joined.world, peers: Some(joined.peers), calls };
        Ok(Member::new(Arc::new(self), rank, memory, view))
    }

    /// All members of a group whose ranks are threads of this process. Each member's calls are compared with those of the
    /// groups that share its `beside`, if there are any.
    ///
    /// # Errors
    /// The system refuses memory, or `beside` is of another number of ranks.
    pub fn local(self, beside: &[Calls]) -> Result<Vec<Member>, Error> {
        let (processes, workers) = (self.members(), 1);
        if !beside.is_empty() && beside.len() != processes {
            let (seen, rule) = (beside.len(), processes);
            return Err(Error::Request(format!("beside: {seen} ranks: must be {rule}")));
        }
        let mapping =
            GroupMemory::new(processes, workers, self.bytes).map_err(|e| of_system("memory", &e))?;
        let memory = Arc::new(self.memory(&mapping)?);
        let plan = Arc::new(self);
        let member = |process| {
            let ranks = global_rank::count(plan.shape());
            let world = World::seated(&mapping, (process, processes), workers, ranks);
            world.sit();
            let calls = beside.get(process).cloned().unwrap_or_else(|| Calls::new(world.clone()));
            let view = View { world, peers: None, calls };
            Member::new(plan.clone(), RankId(process as u32), memory.clone(), view)
        };
        Ok((0..processes).map(member).collect())
    }

    fn memory(&self, mapping: &GroupMemory) -> Result<SharedMemory, Error> {
        let start = GroupMemory::start(self.members(), 1);
        let memory = SharedMemory::of_layers(mapping.map(), start, &self.shapes(), IN_FLIGHT_MAX)
            .map_err(|e| of_system("memory", &e))?;
        // Rows as they come and as experts take them.
        let tokens = |shape: &Shape| self.members() as u64 * u64::from(shape.bs_max());
        let bytes =
            |shape: &Shape| 2 * tokens(shape) * u64::from(shape.combine_columns()) * shape.row_bytes();
        let largest = self.layers.iter().map(|layer| bytes(&layer.shape)).max().unwrap_or(0);
        Ok(memory.with_row_copy(row_copy::usual(largest)))
    }
}

/// How many batches of these layers may be in flight.
fn in_flight_max(layers: &[Layer]) -> Result<usize, Error> {
    if layers.len() == 1 {
        return Ok(IN_FLIGHT_MAX);
    }
    let named = |(number, layer): (usize, &Layer)| clashes::Layer {
        file: format!("layer {number}"),
        config: layer.config.clone(),
        shape: Some(layer.shape.clone()),
        elastic_info: None,
    };
    let named: Vec<_> = layers.iter().enumerate().map(named).collect();
    let (found, in_flight_max) = clashes(&named.iter().collect::<Vec<_>>(), 1);
    match found.first() {
        Some(clash) => Err(Error::Request(clash.message.clone())),
        None => Ok(in_flight_max.map_or(1, |max| max as usize).min(IN_FLIGHT_MAX)),
    }
}

/// A number that differs where values differ, on ranks of one build.
fn number_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn of_system(what: &str, e: &io::Error) -> Error {
    Error::Request(format!("{what} of the group: {e}"))
}

/// What a member sees of the others.
struct View {
    world: Arc<World>,
    peers: Option<Peers>,
    calls: Calls,
}

impl Member {
    fn new(plan: Arc<Plan>, rank: RankId, memory: Arc<SharedMemory>, view: View) -> Self {
        static MEMBERS: AtomicU64 = AtomicU64::new(0);
        let cores = plan.layers.iter().map(|layer| Cores::of(&layer.shape)).collect();
        let View { world, peers, calls } = view;
        Self {
            plan,
            rank,
            number: MEMBERS.fetch_add(1, Ordering::Relaxed),
            world,
            calls,
            memory,
            peers,
            cores,
            slots: Default::default(),
            in_flight: VecDeque::new(),
            batches: 0,
            operators: 0,
            ended: None,
            pid: process::id(),
        }
    }

    /// The valid configuration of the first layer.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.plan.shape()
    }

    /// The valid configuration of a layer, if there is one of that number.
    #[must_use]
    pub fn shape_of(&self, layer: usize) -> Option<&Shape> {
        self.plan.layers.get(layer).map(|layer| &layer.shape)
    }

    /// The calls that it compares with those of the other ranks, for groups beside it.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.calls.clone()
    }

    /// The MoE experts that it holds; none where it holds a shared one.
    pub fn experts(&self) -> impl Iterator<Item = ExpertId> {
        let (shape, own) = (self.shape(), self.ep_rank());
        (0..shape.moe_expert_num()).map(ExpertId).filter(move |&expert| shape.moe_home(expert).rank == own)
    }

    /// Its rank.
    #[must_use]
    pub const fn rank(&self) -> RankId {
        self.rank
    }

    /// The EP rank that it is of.
    fn ep_rank(&self) -> RankId {
        global_rank::ep_rank(self.shape(), self.rank)
    }

    /// Bytes of what combine puts out in a layer.
    #[must_use]
    pub fn x_out_bytes(&self, layer: usize) -> usize {
        self.shape_of(layer).map_or(0, |shape| capacity(shape, self.ep_rank(), Tensor::XOut) as usize)
    }

    /// The address of an output of a batch and the bytes of it that hold something: from the batch's dispatch until its
    /// combine begins nobody else writes them.
    #[must_use]
    pub fn output(&self, of: &Handle, tensor: Tensor) -> (*mut u8, usize) {
        let (shape, ep_rank) = (self.plan.shape_of(of.layer()), self.ep_rank());
        let all = capacity(shape, ep_rank, tensor);
        let rows_max = shape.rows_max(ep_rank) * u64::from(shape.tp_world_size());
        let len = match tensor {
            Tensor::EpRecvCounts => ep_recv_counts_bytes(shape, ep_rank),
            _ if tensor.is_of_received_rows() => all.checked_div(rows_max).unwrap_or(0) * of.rows as u64,
            _ => all,
        };
        let batch = outputs_of(of.layer(), of.slot);
        (self.memory.output(self.rank, batch, tensor).base(), len as usize)
    }

    /// Sends tokens to their experts, and takes the rows of those that are here.
    ///
    /// # Errors
    /// The tokens break a rule, or too many batches are in flight: nothing has happened. Or the group cannot go on, which is
    /// then so for good.
    pub fn dispatch(&mut self, tokens: &Tokens<'_>, goes_on: GoesOn<'_>) -> Result<Handle, Error> {
        self.is_open()?;
        let plan = self.plan.clone();
        let Some(layer) = plan.layers.get(tokens.layer) else {
            let (seen, rule) = (tokens.layer, plan.layers.len());
            return Err(Error::Request(format!("layer = {seen}: must be in [0, {rule})")));
        };
        let is_full = self.in_flight.len() >= plan.in_flight_max;
        if is_full && plan.order == Order::Strict {
            return Err(too_many(plan.in_flight_max));
        }
        let route = Arc::new(Route {
            layer: tokens.layer,
            tokens: tokens.expert_ids.len() / layer.shape.k() as usize,
            has_weights: !tokens.expert_scales.is_empty(),
            tensors: tokens.padded(&layer.config, &layer.shape, self.ep_rank(), plan.expert_map.as_ref())?,
        });
        let x = if route.tensors.x.is_empty() { tokens.x } else { &route.tensors.x };
        let inputs = Inputs { x, scales: tokens.scales, ..route.tensors.inputs() };
        tokens::check(&mut |found| inputs.check_dispatch(&layer.shape, self.ep_rank(), found))?;
        while self.in_flight.len() >= plan.in_flight_max {
            self.give_back_oldest(goes_on)?;
        }
        self.send(&route, &inputs, goes_on)
    }

    /// Runs the dispatch of a batch for which there is room.
    fn send(
        &mut self,
        route: &Arc<Route>,
        inputs: &Inputs<'_>,
        goes_on: GoesOn<'_>,
    ) -> Result<Handle, Error> {
        let Some(slot) = (0..IN_FLIGHT_MAX).find(|slot| !self.in_flight.contains(slot)) else {
            return Err(too_many(IN_FLIGHT_MAX));
        };
        let (plan, memory, batch) = (self.plan.clone(), self.memory.clone(), self.batches);
        let (layer, shape, ep_rank) = (route.layer, plan.shape_of(route.layer), self.ep_rank());
        let bits = |scales: &[f32]| scales.iter().map(|scale| scale.to_bits()).collect::<Vec<_>>();
        let common = inputs.scales.map_or(0, |scales| number_of(&bits(scales)));
        let run = Run { operator: protocol::Operator::Dispatch, layer, slot, batch, common };
        self.run(&*memory, &run, (inputs, &Operands::default()), goes_on)?;
        let outputs = outputs_of(layer, slot);
        let fabric = memory.fabric(self.rank, CoreId(0), outputs);
        let read = expert::reading(&*memory, &fabric, self.rank, outputs);
        let rows = match expert::expert_ends(shape, ep_rank, &read) {
            Ok(ends) => ends.last().copied().unwrap_or(0),
            Err(error) => return Err(self.fails(Error::Wrong(error.to_string()), Phase::Ended)),
        };
        let kept = &mut self.slots[slot];
        keep_operands(shape, &*memory, (self.rank, outputs), rows as u64, &mut kept.returned);
        (kept.batch, kept.rows, kept.route) = (batch, rows, route.clone());
        self.in_flight.push_back(slot);
        self.batches += 1;
        Ok(Handle { batch, rows, slot, member: self.number, route: route.clone() })
    }

    /// Returns what experts made of the rows of a batch and sums for every token of that batch what comes back into `x_out`,
    /// of [`x_out_bytes`](Self::x_out_bytes). In strict order the batch must be the oldest.
    ///
    /// # Errors
    /// It is not the oldest batch, or a tensor breaks a rule: nothing has happened. Or the group cannot go on, which is then so
    /// for good.
    pub fn combine(
        &mut self,
        of: &Handle,
        results: &Results<'_>,
        x_out: &mut [u8],
        goes_on: GoesOn<'_>,
    ) -> Result<(), Error> {
        self.is_open()?;
        self.may_be_combined(of)?;
        let plan = self.plan.clone();
        let shape = plan.shape_of(of.layer());
        let row = shape.row_bytes() as usize;
        let y = results.y;
        if y.len() != of.rows * row {
            let (seen, rest, rule) = (y.len() / row, y.len() % row, of.rows);
            let line = format!("y: {seen} rows and {rest} bytes: must be {rule} rows of {row} bytes");
            return Err(Error::Request(line));
        }
        let rule = self.x_out_bytes(of.layer());
        if x_out.len() != rule {
            return Err(Error::Request(format!("x_out: {} bytes: must be {rule}", x_out.len())));
        }
        let padded = results.padded(shape, self.ep_rank(), &of.route)?;
        let inputs = padded.inputs(&of.route.tensors, results);
        tokens::check(&mut |found| inputs.check_combine(shape, self.ep_rank(), found))?;
        let slot = self.make_oldest(of, goes_on)?;
        self.give_back(slot, &inputs, y, x_out, goes_on)
    }

    /// Whether a batch may be combined now: in strict order the oldest alone.
    fn may_be_combined(&self, of: &Handle) -> Result<(), Error> {
        let batch = of.batch;
        let refused = |why: String| Err(Error::Request(format!("handle of batch {batch}: {why}")));
        if of.member != self.number {
            return refused("is of another rank or group".to_owned());
        }
        if self.plan.order == Order::Loose {
            return Ok(());
        }
        match self.in_flight.front().map(|&oldest| self.slots[oldest].batch) {
            Some(oldest) if oldest == batch => Ok(()),
            Some(oldest) if batch > oldest && batch < self.batches => {
                refused(format!("must be of batch {oldest}: combines come in the order of dispatches"))
            }
            _ => refused("has been combined already".to_owned()),
        }
    }

    /// Emulates a loose order until a batch is the oldest in flight. Its slot.
    fn make_oldest(&mut self, of: &Handle, goes_on: GoesOn<'_>) -> Result<usize, Error> {
        let is_it = |slot: &Slot| slot.batch == of.batch;
        let batch = match self.in_flight.iter().any(|&slot| is_it(&self.slots[slot])) {
            true => of.batch,
            false => self.send_again(of, goes_on)?,
        };
        loop {
            match self.in_flight.front() {
                Some(&slot) if self.slots[slot].batch == batch => return Ok(slot),
                Some(_) => self.give_back_oldest(goes_on)?,
                None => return Err(Error::Wrong("a batch in flight is missing".to_owned())),
            }
        }
    }

    /// Dispatches a batch once more, with zeros, for its rows to have a way back. The number of that dispatch.
    fn send_again(&mut self, of: &Handle, goes_on: GoesOn<'_>) -> Result<usize, Error> {
        while self.in_flight.len() >= self.plan.in_flight_max {
            self.give_back_oldest(goes_on)?;
        }
        let shape = self.plan.shape_of(of.layer());
        let x = vec![0; shape.bs(self.ep_rank()) as usize * shape.row_bytes() as usize];
        let inputs = Inputs { x: &x, ..of.route.tensors.inputs() };
        let again = self.send(&of.route, &inputs, goes_on)?;
        if again.rows == of.rows {
            return Ok(again.batch);
        }
        let (batch, rows, seen) = (of.batch, of.rows, again.rows);
        let line = format!(
            "batch {batch} combined again: {seen} rows, and {rows} before: other ranks combine another"
        );
        Err(self.fails(Error::Wrong(line), Phase::GivenUp))
    }

    /// Combines the oldest batch in flight with zeros: the caller does not want its results.
    fn give_back_oldest(&mut self, goes_on: GoesOn<'_>) -> Result<(), Error> {
        let Some(&slot) = self.in_flight.front() else { return Ok(()) };
        let plan = self.plan.clone();
        let (route, rows) = (self.slots[slot].route.clone(), self.slots[slot].rows);
        let shape = plan.shape_of(route.layer);
        let y = vec![0; rows * shape.row_bytes() as usize];
        let (nothing, zeros) = (Results::default(), Results::zeros(shape, &route));
        let mut x_out = vec![0; self.x_out_bytes(route.layer)];
        self.give_back(slot, &zeros.inputs(&route.tensors, &nothing), &y, &mut x_out, goes_on)
    }

    /// Runs the combine of the oldest batch in flight.
    fn give_back(
        &mut self,
        slot: usize,
        inputs: &Inputs<'_>,
        y: &[u8],
        x_out: &mut [u8],
        goes_on: GoesOn<'_>,
    ) -> Result<(), Error> {
        let (layer, batch) = (self.slots[slot].route.layer, self.slots[slot].batch);
        let mut returned = core::mem::take(&mut self.slots[slot].returned);
        let operands = Operands { y, ..returned.operands() };
        let common = [inputs.const_expert_alpha_1, inputs.const_expert_alpha_2, inputs.const_expert_v];
        let common = number_of(&(common, inputs.shared_expert_x.is_some()));
        let memory = self.memory.clone();
        let memory = memory.with_output(Tensor::XOut, x_out);
        let run = Run { operator: protocol::Operator::Combine, layer, slot, batch, common };
        let ran = self.run(&memory, &run, (inputs, &operands), goes_on);
        // Kept for its room.
        returned.y.clear();
        self.slots[slot].returned = returned;
        self.in_flight.pop_front();
        ran
    }

    fn is_open(&self) -> Result<(), Error> {
        if process::id() != self.pid {
            let pid = self.pid;
            return Err(Error::Request(format!(
                "this member is of process {pid}: a copy made by fork must join a group of its own"
            )));
        }
        self.ended.clone().map_or(Ok(()), Err)
    }

    fn run<B: Backend>(
        &mut self,
        backend: &B,
        run: &Run,
        (inputs, operands): (&Inputs<'_>, &Operands<'_>),
        goes_on: GoesOn<'_>,
    ) -> Result<(), Error> {
        let Run { operator, layer, slot, batch, common } = *run;
        let (called, nth) = match operator {
            protocol::Operator::Dispatch => (Called::Dispatch, 0),
            protocol::Operator::Combine => (Called::Combine, 1),
        };
        let announced = self.calls.announce(self.plan.call(called, layer, batch, common));
        self.world.begin_operator(batch, nth);
        let (mut why, mut asked) = (None, Instant::now());
        let Self { plan, world, cores, rank, operators, .. } = self;
        let next = *operators + 1;
        let mut look = |idle| {
            if let Some(line) = announced.mismatch() {
                why = Some(Why::Mismatch(line));
            } else if !world.gone_before(next).is_empty() {
                why = Some(Why::Gone);
            } else if world.is_stopped() || idle >= plan.deadline {
                why = Some(Why::Late);
            } else if asked.elapsed() >= ASKS {
                asked = Instant::now();
                why = (!goes_on()).then_some(Why::Interrupted);
            }
            why.is_none()
        };
        let work = Operator {
            shape: plan.shape_of(layer),
            options: &plan.options,
            backend,
            world,
            rank: *rank,
            operator,
            batch: outputs_of(layer, slot),
            inputs,
            operands,
        };
        let ran = if look(Duration::ZERO) { cores[layer].run(&work, &mut look) } else { Ok(()) };
        match (why, ran) {
            (None, Ok(())) => {
                self.operators = next;
                self.world.end_operator();
                Ok(())
            }
            (Some(Why::Mismatch(line)), _) => Err(self.fails(Error::Mismatch(line), Phase::GivenUp)),
            (Some(Why::Gone), _) => {
                thread::sleep(SETTLES);
                let gone = self.world.gone_before(next);
                Err(self.gone(gone))
            }
            (Some(Why::Interrupted), _) => {
                Err(self.fails(Error::Interrupted("while others were waited for".to_owned()), Phase::Ended))
            }
            (Some(Why::Late), Err(Failure::Hang(hang))) => Err(self.late((nth, batch), hang)),
            (Some(Why::Late), _) => Err(self.late((nth, batch), Hang::default())),
            (None, Err(failure)) => {
                Err(self.fails(group::of_failure(batch, &round_trip(), &failure), Phase::Ended))
            }
        }
    }

    /// Nobody has moved for the deadline, here or on another rank: some do not run, or all wait for something.
    fn late(&mut self, (nth, round): (usize, usize), mut hang: Hang) -> Error {
        let silent =
            if self.peers.is_some() && !self.world.is_stopped() { self.world.silent() } else { Vec::new() };
        self.world.stop();
        if !silent.is_empty() {
            return self.gone(silent);
        }
        if hang.missing.is_empty() {
            let line = "the group has ended: another rank has waited for its deadline".to_owned();
            return self.fails(Error::NoProgress { line, missing: Vec::new() }, Phase::GivenUp);
        }
        hang.missing.iter_mut().for_each(|missing| missing.operator = nth);
        self.fails(group::of_failure(round, &round_trip(), &Failure::Hang(hang)), Phase::GivenUp)
    }

    fn gone(&mut self, departed: Vec<Departed>) -> Error {
        let told = |one: &Departed| one.told(&self.world, &|rank| rank, self.world.round_of(one.process));
        let gone: Vec<_> = departed.iter().map(told).collect();
        let lines = gone.iter().map(Gone::line).collect::<Vec<_>>().join("; ");
        let line = gone.first().map(Gone::place).unwrap_or_default() + &lines;
        self.fails(Error::Gone { line, gone, missing: Vec::new() }, Phase::GivenUp)
    }

    /// The group has ended for this member.
    fn fails(&mut self, error: Error, phase: Phase) -> Error {
        self.world.enter(phase);
        self.world.ring();
        self.ended = Some(error.clone());
        error
    }

    /// Leaves the group. Others go on as far as they do not need it.
    pub fn close(&mut self) {
        if self.ended.is_none() && process::id() == self.pid {
            self.world.enter(Phase::Ended);
            self.world.ring();
            self.ended = Some(Error::Request("the group has been closed".to_owned()));
        }
        self.peers = None;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.close();
    }
}

/// An operator of a batch.
struct Run {
    operator: protocol::Operator,
    layer: usize,
    slot: usize,
    batch: usize,
    /// A number of the tensors that all ranks give alike.
    common: u64,
}

/// The number of a batch's outputs in memory.
const fn outputs_of(layer: usize, slot: usize) -> usize {
    layer * IN_FLIGHT_MAX + slot
}

fn too_many(in_flight_max: usize) -> Error {
    let (number, next) = if in_flight_max == 1 { ("1 batch", "second") } else { ("2 batches", "third") };
    let why = match in_flight_max {
        1 => "these layers differ in size: veriep check A.toml B.toml",
        _ => "veriep schedule DDDCCC",
    };
    Error::Request(format!(
        "{number} in flight: a {next} must not be dispatched before the oldest is combined, or a fast rank overwrites what a \
         slow one still reads: {why}"
    ))
}

/// Why an operator was given up.
enum Why {
    Mismatch(String),
    Gone,
    Late,
    Interrupted,
}

/// The operators of a batch, for names.
fn round_trip() -> Schedule {
    Schedule::parse("DC").unwrap_or_else(|_| unreachable!("a dispatch and its combine"))
}
