//! The machine of any protocol.

use super::{Choices, Context, Operator, Receive, Scratch, a2, a3, a3_v2, direct, hierarchy};
use crate::fabric::{Awaited, Capabilities, Fabric, Progress, ProtocolError, Result, Watch};
use crate::shape::{Protocol, Shape};
use crate::units::{CoreId, RankId};
use crate::vector::Vector;
use core::fmt;

/// One core's machine of one operator, of any protocol. A plain value: it can be copied, compared and hashed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Machine {
    /// Dispatch of A3: rows are copied out or received in place.
    A3Dispatch(a3::Dispatch),
    /// Combine of A3, also of fullmesh_v2.
    A3Combine(a3::Combine),
    /// Dispatch of fullmesh_v2.
    V2Dispatch(a3_v2::Dispatch),
    /// Dispatch with direct placement.
    DirectDispatch(direct::Dispatch),
    /// Pull combine.
    DirectCombine(direct::Combine),
    /// Dispatch of the A2 full mesh.
    A2Dispatch(a2::Dispatch),
    /// Combine of the A2 full mesh.
    A2Combine(a2::Combine),
    /// Dispatch of the A2 hierarchy.
    HierarchyDispatch(hierarchy::Dispatch),
    /// Combine of the A2 hierarchy.
    HierarchyCombine(hierarchy::Combine),
}

/// The reason why a core cannot take part in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refused {
    /// The shape has no such core.
    NoCore {
        /// The EP rank, which must be below [`ep_world_size`](Shape::ep_world_size).
        rank: RankId,
        /// The core, which must be below [`aiv_num`](Shape::aiv_num).
        core: CoreId,
    },
    /// This build lacks the machines for this shape and these choices.
    LeftOut {
        /// The feature of this crate that has them.
        feature: &'static str,
    },
    /// A group of this shape cannot receive rows in this mode ([`Receive::suits`]).
    Receive(Receive),
    /// The memory lacks calls that the machine makes.
    Capabilities {
        /// The missing calls.
        missing: Capabilities,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCore { rank, core } => write!(f, "the shape has no core {core} of rank {rank}"),
            Self::LeftOut { feature } => write!(f, "built without the feature {feature}"),
            Self::Receive(receive) if receive.overwrites() => f.write_str(
                "this shape has no direct placement with rows as long as results, or its window is too small for it",
            ),
            Self::Receive(receive) if receive.is_direct() => {
                f.write_str("this shape has no direct placement, or its window is too small for it")
            }
            Self::Receive(_) => f.write_str("this shape does not receive rows in place"),
            Self::Capabilities { missing } => {
                f.write_str("the memory has no ")?;
                let mut and = "";
                for (name, _) in missing.iter_names() {
                    write!(f, "{and}{name}")?;
                    and = " and ";
                }
                Ok(())
            }
        }
    }
}

impl core::error::Error for Refused {}

/// The constants of a core over a group's life, by protocol. They also determine the machines that the core runs.
#[derive(Clone, Debug)]
pub enum Env<V> {
    /// A3, with rows copied out or received in place.
    A3(a3::Env<V>),
    /// fullmesh_v2.
    V2(a3::Env<V>),
    /// Direct placement.
    Direct(a3::Env<V>),
    /// The A2 full mesh.
    A2(a2::Env<V>),
    /// The A2 hierarchy.
    Hierarchy(hierarchy::Env<V>),
}

impl<V> Env<V> {
    /// Creates the constants of `core` of EP rank `rank`, which makes these `choices` on a memory with these
    /// `capabilities`, and uses `vector` for work on rows.
    ///
    /// # Errors
    /// The shape has no such core, does not allow the choices, or the memory lacks a call that one of the machines would
    /// make ([`Choices::needs`]).
    pub fn new(
        shape: &Shape,
        (rank, core): (RankId, CoreId),
        choices: Choices,
        capabilities: Capabilities,
        vector: V,
    ) -> Result<Self, Refused> {
        if rank.0 >= shape.ep_world_size() || core.0 >= shape.aiv_num() {
            return Err(Refused::NoCore { rank, core });
        }
        choices.check(shape, capabilities)?;
        let a3 = |vector| a3::Env::new(shape, rank, core, choices, vector);
        Ok(match shape.protocol() {
            Protocol::FullmeshV1 if choices.receive.is_direct() => Self::Direct(a3(vector)),
            Protocol::FullmeshV1 => Self::A3(a3(vector)),
            Protocol::FullmeshV2 => Self::V2(a3(vector)),
            Protocol::Fullmesh => Self::A2(a2::Env::new(shape, rank, core, vector)),
            Protocol::Hierarchy => {
                Self::Hierarchy(hierarchy::Env::new(shape, rank, core, vector).with_stage(choices.stage))
            }
        })
    }

    /// Sets the rank's number in its TP domain to `tp_rank`. Only A3 has such domains.
    #[must_use]
    pub fn with_tp_rank(self, tp_rank: RankId) -> Self {
        match self {
            Self::A3(env) => Self::A3(env.with_tp_rank(tp_rank)),
            other => other,
        }
    }

    /// Lets `vector` work on rows from now on.
    pub fn set_vector(&mut self, vector: V) {
        *match self {
            Self::A3(env) | Self::V2(env) | Self::Direct(env) => &mut env.vector,
            Self::A2(env) => &mut env.vector,
            Self::Hierarchy(env) => &mut env.vector,
        } = vector;
    }

    /// Limits each step to one effect, so that a model checker can explore every order of effects. Steps of A2 machines
    /// never have more than one.
    #[must_use]
    pub fn one_by_one(self) -> Self {
        match self {
            Self::A3(env) => Self::A3(env.one_by_one()),
            Self::V2(env) => Self::V2(env.one_by_one()),
            Self::Direct(env) => Self::Direct(env.one_by_one()),
            other => other,
        }
    }

    /// Returns the maximum number of effects of one step.
    #[must_use]
    pub const fn effects_max(&self) -> u32 {
        match self {
            Self::A3(env) | Self::V2(env) | Self::Direct(env) => env.run,
            Self::A2(_) | Self::Hierarchy(_) => 1,
        }
    }
}

impl Machine {
    /// Creates the machine that carries out `operator` on the core with these constants.
    #[must_use]
    pub const fn begin<V>(operator: Operator, env: &Env<V>) -> Self {
        match (operator, env) {
            (Operator::Dispatch, Env::A3(_)) => Self::A3Dispatch(a3::Dispatch::new()),
            (Operator::Dispatch, Env::V2(_)) => Self::V2Dispatch(a3_v2::Dispatch::new()),
            (Operator::Combine, Env::A3(_) | Env::V2(_)) => Self::A3Combine(a3::Combine::new()),
            (Operator::Dispatch, Env::Direct(_)) => Self::DirectDispatch(direct::Dispatch::new()),
            (Operator::Combine, Env::Direct(_)) => Self::DirectCombine(direct::Combine::new()),
            (Operator::Dispatch, Env::A2(_)) => Self::A2Dispatch(a2::Dispatch::new()),
            (Operator::Combine, Env::A2(_)) => Self::A2Combine(a2::Combine::new()),
            (Operator::Dispatch, Env::Hierarchy(_)) => Self::HierarchyDispatch(hierarchy::Dispatch::new()),
            (Operator::Combine, Env::Hierarchy(_)) => Self::HierarchyCombine(hierarchy::Combine::new()),
        }
    }

    /// Returns the name of the machine's phase, for reports and traces. A part's phase follows the name of the part:
    /// `Exchange.Await`. Machines with several roles return the phase of the one that moved last.
    #[must_use]
    pub const fn phase(&self) -> &'static str {
        match self {
            Self::A3Dispatch(machine) => machine.phase(),
            Self::A3Combine(machine) => machine.phase(),
            Self::V2Dispatch(machine) => machine.phase(),
            Self::DirectDispatch(machine) => machine.phase(),
            Self::DirectCombine(machine) => machine.phase(),
            Self::A2Dispatch(machine) => machine.phase(),
            Self::A2Combine(machine) => machine.phase(),
            Self::HierarchyDispatch(machine) => machine.phase(),
            Self::HierarchyCombine(machine) => machine.phase(),
        }
    }

    /// Advances the operator by at most [`effects_max`](Env::effects_max) effects that others can see.
    ///
    /// # Errors
    /// A value read from the fabric or from the operands contradicts the shape, the fabric refuses, a token cannot be
    /// quantised, or `env` belongs to another protocol or shape.
    pub fn step<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        cx: &mut Context<'_, Env<V>, F>,
    ) -> Result<Progress, ProtocolError> {
        let stop = self.run(cx, 1, &mut 0)?;
        Ok(stop.unwrap_or(Progress::Stepped))
    }

    /// Takes a step like [`step`](Self::step) and reports everything that it reads to `tell`. A pending step changes
    /// nothing, so this can be called on a pending machine: it tries once more. If it is still pending, only a change of a
    /// reported word or byte, or of quiet's answer, lets it move, and its driver may sleep until then. If it moves, the
    /// reports have no meaning.
    ///
    /// # Errors
    /// Fails like [`step`](Self::step).
    pub fn awaits<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        cx: &mut Context<'_, Env<V>, F>,
        tell: &mut dyn FnMut(Awaited),
    ) -> Result<Progress, ProtocolError> {
        let scratch = Scratch { words: cx.scratch.words, row: cx.scratch.row };
        let Context { shape, env, inputs, operands, .. } = *cx;
        let fabric: &mut dyn Fabric = &mut Watch::new(&mut *cx.fabric, tell);
        self.step(&mut Context { shape, env, fabric, inputs, operands, scratch })
    }

    /// Takes steps until `done` is `steps`, and returns `None`, or until the machine is pending or done. `done` counts the
    /// steps that moved. It is faster than a loop around [`step`](Self::step).
    ///
    /// # Errors
    /// Fails like [`step`](Self::step).
    #[inline(always)]
    pub fn run<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        cx: &mut Context<'_, Env<V>, F>,
        steps: u32,
        done: &mut u32,
    ) -> Result<Option<Progress>, ProtocolError> {
        macro_rules! drive {
            ($machine:ident, $env:ident) => {{
                let cx = &mut cx.bind::<_, V>($env, $env.fingerprint)?;
                drive(steps, done, || $machine.advance(cx))
            }};
        }
        match (self, cx.env) {
            (Self::A3Dispatch(machine), Env::A3(env)) => drive!(machine, env),
            (Self::A3Combine(machine), Env::A3(env) | Env::V2(env)) => drive!(machine, env),
            (Self::V2Dispatch(machine), Env::V2(env)) => drive!(machine, env),
            (Self::DirectDispatch(machine), Env::Direct(env)) => drive!(machine, env),
            (Self::DirectCombine(machine), Env::Direct(env)) => drive!(machine, env),
            (Self::A2Dispatch(machine), Env::A2(env)) => drive!(machine, env),
            (Self::A2Combine(machine), Env::A2(env)) => drive!(machine, env),
            (Self::HierarchyDispatch(machine), Env::Hierarchy(env)) => drive!(machine, env),
            (Self::HierarchyCombine(machine), Env::Hierarchy(env)) => drive!(machine, env),
            _ => Err(ProtocolError::OtherMachine),
        }
    }
}

/// Steps until the outcome is another than a step, or until `done`, which counts on, reaches `steps`.
///
/// # Errors
/// The step's error.
#[inline]
pub(super) fn drive(
    steps: u32,
    done: &mut u32,
    mut step: impl FnMut() -> Result<Progress>,
) -> Result<Option<Progress>> {
    for n in *done..steps {
        match step() {
            Ok(Progress::Stepped) => {}
            // Errors and waits are handled outside, so a step costs one comparison.
            other => {
                *done = n;
                return other.map(Some);
            }
        }
    }
    *done = steps;
    Ok(None)
}

static_assertions::const_assert!(size_of::<Machine>() <= 256);
static_assertions::const_assert!(size_of::<Env<()>>() <= 256);
