//! The plan of a group, which all members are given alike, and joining by it.

use super::tokens::refused;
use super::{GoesOn, IN_FLIGHT_MAX, Member, View};
use crate::backend::row_copy;
use crate::backend::shared::SharedMemory;
use crate::driver::Options;
use crate::world::join::{Alike, GroupSpec, JoinError, JoinRequest, Rendezvous};
use crate::world::{Announced, Call, Called, Calls, GroupMemory, GroupSize, World};
use core::hash::{Hash, Hasher};
use core::time::Duration;
use std::hash::DefaultHasher;
use std::io;
use std::sync::Arc;
use veriep_case::case::{self, ExpertMap};
use veriep_case::clashes::{self, clashes};
use veriep_case::config::Config;
use veriep_case::error::{Error, Missing};
use veriep_case::{global_rank, hints};
use veriep_core::protocol::{Choices, Fingerprints};
use veriep_core::shape::{Given, Limits, Op, Shape};
use veriep_core::units::RankId;
use veriep_core::vector::Any;

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
pub(super) struct Layer {
    pub(super) config: Config,
    pub(super) shape: Shape,
}

/// What all members of a group are given alike.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) layers: Vec<Layer>,
    /// Redundant experts: ids are logical ones then.
    pub(super) expert_map: Option<ExpertMap>,
    pub(super) options: Options,
    pub(super) bytes: u64,
    pub(super) deadline: Duration,
    pub(super) order: Order,
    /// Batches that may be in flight at once.
    pub(super) in_flight_max: usize,
    pub(super) limits: Limits,
    /// What all members must have alike, and one number for it.
    alike: Alike,
    group: u64,
}

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
            if config.operator() != Op::Combine {
                let rule = "must be combine: members have no residual";
                return Err(refused("op", " = combine_add_rms_norm", rule));
            }
            if let Some(map) = &expert_map {
                case::check_expert_map(&shape, map, "Group")?;
            }
            layers.push(Layer { config, shape });
        }
        if layers.is_empty() {
            return Err(Error::Request("layers: must be at least one".to_owned()));
        }
        let in_flight_max = in_flight_max(&layers)?;
        let options = Options {
            choices: Choices { checked: true, ..Choices::default() },
            vector,
            ..Options::default()
        };
        let shapes: Vec<_> = layers.iter().map(|layer| &layer.shape).collect();
        let bytes =
            SharedMemory::bytes_of_layers(&shapes, IN_FLIGHT_MAX).map_err(|e| of_system("memory", &e))?;
        let alike = alike(&layers, &options, expert_map.as_ref(), order);
        let group = alike.whole();
        Ok(Self { layers, expert_map, options, bytes, deadline, order, in_flight_max, limits, alike, group })
    }

    /// The valid configuration of the first layer.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.shape_of(0)
    }

    pub(super) fn shape_of(&self, layer: usize) -> &Shape {
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

    /// The call of an operator, or of the join, as others compare it.
    pub(super) fn call(&self, operator: Called, layer: usize, batch: usize, common: u64) -> Call {
        let shape = self.shape_of(layer);
        Call {
            operator,
            group: self.group,
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

    fn size(&self) -> GroupSize {
        GroupSize::of_single_ranks(self.members())
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
        let group = GroupSpec { size: self.size(), bytes: self.bytes, alike: self.alike.clone() };
        let request = JoinRequest { process: rank.index(), group, patience };
        let announced = beside.as_ref().map(|calls| calls.announce(self.call(Called::Join, 0, 0, 0)));
        let mismatch = || announced.as_ref().and_then(Announced::mismatch);
        let joined = request.join(rendezvous, &mut || goes_on() && mismatch().is_none());
        if let (Err(_), Some(calls), None) = (&joined, &beside, mismatch()) {
            calls.take_back();
        }
        let joined = joined.map_err(|error| match (error, mismatch()) {
            (JoinError::Interrupted, Some(line)) => Error::Mismatch(line),
            (JoinError::Interrupted, None) => Error::Interrupted("while others were waited for".to_owned()),
            (JoinError::Missing { processes, of, after }, _) => {
                let missing = |&process: &usize| Missing {
                    rank: rank.0,
                    operator: "join",
                    what: "process",
                    source_rank: Some(process as u32),
                    ..Missing::default()
                };
                let missing = processes.iter().map(missing).collect();
                let line = JoinError::Missing { processes, of, after }.to_string();
                Error::NoProgress { line, missing }
            }
            (error, _) => Error::Request(error.to_string()),
        })?;
        let memory = Arc::new(self.memory(&joined.memory)?);
        let watch = joined.peers.watch(&joined.world).map_err(|e| of_system("peers", &e))?;
        let calls = beside.unwrap_or_else(|| Calls::new(joined.world.clone()));
        let view = View { world: joined.world, watch: Some(watch), calls };
        Ok(Member::new(Arc::new(self), rank, memory, view))
    }

    /// All members of a group whose ranks are threads of this process. Each member's calls are compared with those of the
    /// groups that share its `beside`, if there are any.
    ///
    /// # Errors
    /// The system refuses memory, or `beside` is of another number of ranks.
    pub fn local(self, beside: &[Calls]) -> Result<Vec<Member>, Error> {
        let processes = self.members();
        if !beside.is_empty() && beside.len() != processes {
            let (seen, rule) = (beside.len(), processes);
            return Err(Error::Request(format!("beside: {seen} ranks: must be {rule}")));
        }
        let mapping = GroupMemory::new(self.size(), self.bytes).map_err(|e| of_system("memory", &e))?;
        let memory = Arc::new(self.memory(&mapping)?);
        let plan = Arc::new(self);
        let member = |process| {
            let world = World::member(&mapping, process);
            world.enter_member();
            let calls = beside.get(process).cloned().unwrap_or_else(|| Calls::new(world.clone()));
            let view = View { world, watch: None, calls };
            Member::new(plan.clone(), RankId(process as u32), memory.clone(), view)
        };
        Ok((0..processes).map(member).collect())
    }

    fn memory(&self, mapping: &GroupMemory) -> Result<SharedMemory, Error> {
        let memory = SharedMemory::of_layers(mapping.map(), mapping.start(), &self.shapes(), IN_FLIGHT_MAX)
            .map_err(|e| of_system("memory", &e))?;
        // Rows as they come and as experts take them.
        let tokens = |shape: &Shape| self.members() as u64 * u64::from(shape.bs_max());
        let bytes =
            |shape: &Shape| 2 * tokens(shape) * u64::from(shape.combine_columns()) * shape.row_bytes();
        let largest = self.layers.iter().map(|layer| bytes(&layer.shape)).max().unwrap_or(0);
        Ok(memory.with_row_copy(row_copy::usual(largest)))
    }
}

fn alike(layers: &[Layer], options: &Options, expert_map: Option<&ExpertMap>, order: Order) -> Alike {
    let of_layer = |layer: &Layer| Fingerprints::new(&layer.shape, options.choices);
    let map = expert_map.map_or(0, |map| number_of(&(&map.words, map.rows)));
    Alike {
        layers: layers.iter().map(of_layer).collect(),
        others: vec![("order".to_owned(), order as u64), ("expert_map".to_owned(), map)],
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
pub(super) fn number_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The same of values that have no hash of their own.
pub(super) fn number_of_floats(values: &[f32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    values.iter().for_each(|value| hasher.write_u32(value.to_bits()));
    hasher.finish()
}

fn of_system(what: &str, e: &io::Error) -> Error {
    Error::Request(format!("{what} of the group: {e}"))
}
