//! Refinement: every move of the machines is a step of the model for any number of ranks ([`smt`](crate::smt)), several of them,
//! or none.
//!
//! Beside a state goes the state of the model that the way there has led to. Its guards are asked on every move, also on those to
//! states that are known. What is beside a state must be a *function* of it: two ways to one state that leave the model
//! in different ones are an error, or else what one of them knows would stand for the other. So it need not tell states apart.

use super::model::Product;
use super::protocol::VIRTUAL;
use super::setup::Setup;
use super::state::{Bytes, Core, State};
use super::violation::Violation;
use crate::smt::model::Step;
use crate::smt::obligation::Clears;
use crate::smt::relay;
use crate::smt::schedule::{Partitions, Schedule};
use crate::smt::slots;
use crate::smt::trace::{Event, Expected, Facts, Instance, Run, Wrong};
use core::hash::Hash;
use veriep_core::place::Place;
use veriep_core::protocol::Operator;
use veriep_core::units::{CoreId, RankId, Token};

/// Something that has happened to a slot, or that a core is quiet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    pub(super) step: Step,
    /// Whose slot.
    pub(super) rank: RankId,
    pub(super) at: At,
    /// Who has done it, or issued it.
    pub(super) by: (RankId, CoreId),
}

/// The slot that an event concerns.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    /// The slot at a place in the model's addresses, of the core's newest operator in that partition.
    Place(Place),
    /// The slot of that number, of that operator.
    Slot(usize, u32),
    /// The same, and it is only issued: from now on it can happen.
    Issued(usize, u32),
}

/// What is beside a state.
#[derive(Clone, Debug)]
pub(super) struct Beside {
    facts: Facts,
    /// By rank: its cores that were quiet in their operator, as bits.
    quiet: Vec<u32>,
    /// Why a move was no step of the model, until the search asks.
    broken: Option<String>,
}

impl Beside {
    pub(super) fn new(setup: &Setup<'_>) -> Self {
        let ranks = setup.model.ranks as usize;
        Self { facts: Facts::new(ranks), quiet: vec![0; ranks], broken: None }
    }

    /// A number for the model's state.
    pub(super) fn number(&self) -> u64 {
        let mut bytes = Bytes::default();
        (&self.facts, &self.quiet).hash(&mut bytes);
        bytes.number()
    }

    /// Why the last move was no step of the model.
    pub(super) fn verdict(&mut self) -> Result<(), Violation> {
        self.broken.take().map_or(Ok(()), |why| Err(Violation::Unrefined { why }))
    }
}

impl<M, O: Clone + Default> State<M, O> {
    /// A core begins an operator: its rank does, if it is the first.
    pub(super) fn note_begin(&mut self, setup: &Setup<'_>, rank: usize, op: u32) {
        if self.beside.as_ref().is_some_and(|beside| beside.facts.begun[rank] <= op) {
            self.step_of_rank(setup, Step::Begin, rank, op);
            self.take_flags(setup, rank);
        }
    }

    /// Takes the flags that have landed for the operator of a rank, in the hierarchy: that a core has seen one shows in no state,
    /// and the model may take it at any time.
    fn take_flags(&mut self, setup: &Setup<'_>, rank: usize) {
        let Some(facts) = self.beside.as_ref().map(|beside| &beside.facts) else { return };
        if setup.model.product != Product::Hierarchy || facts.begun[rank] == facts.ended[rank] {
            return;
        }
        let here = |flag: &&(usize, usize, u32)| (flag.0, flag.2) == (rank, facts.ended[rank]);
        let seen = facts.landed.difference(&facts.taken).filter(here).copied().collect::<Vec<_>>();
        for (rank, slot, n) in seen {
            self.take(setup, Event { step: Step::Take, rank, slot, n });
        }
    }

    /// All cores of a rank have ended an operator.
    pub(super) fn note_end(&mut self, setup: &Setup<'_>, rank: usize, op: u32) {
        self.step_of_rank(setup, Step::End, rank, op);
        self.beside.iter_mut().for_each(|beside| beside.quiet[rank] = 0);
    }

    fn step_of_rank(&mut self, setup: &Setup<'_>, step: Step, rank: usize, n: u32) {
        self.take(setup, Event { step, rank, slot: 0, n });
    }

    /// What a move did to slots, in order.
    pub(super) fn note(&mut self, setup: &Setup<'_>, all: Vec<Noted>) {
        for Noted { step, rank, at, by: (of, core) } in all {
            let Some(beside) = &mut self.beside else { return };
            let Core { local, op, .. } = self.cores[(of.0 * setup.model.cores + core.0) as usize];
            let begun = if local == 0 { op } else { op + 1 };
            if step == Step::Quiet {
                let (quiet, all) = (&mut beside.quiet[rank.index()], (1 << setup.model.cores) - 1);
                let before = core::mem::replace(quiet, *quiet | 1 << core.0);
                if before != all && before | 1 << core.0 == all {
                    self.is_quiet(setup, rank.index(), begun - 1);
                }
                continue;
            }
            let found = match at {
                At::Slot(slot, n) | At::Issued(slot, n) => Some((slot, n)),
                At::Place(at) => setup.slot(rank, at, begun),
            };
            let Some((slot, n)) = found else { continue };
            let fact = (rank.index(), slot, n);
            // A core may look at a flag again, and on A2 be quiet again.
            let is_known = match (step, at) {
                (Step::Take, _) => beside.facts.taken.contains(&fact),
                (Step::Clear, At::Slot(..)) => beside.quiet[rank.index()] & 1 << core.0 != 0,
                _ => false,
            };
            let event = Event { step, rank: rank.index(), slot, n };
            if matches!(at, At::Issued(..)) {
                self.hold(setup, |run| run.may(event));
            } else if !is_known {
                self.take(setup, event);
                self.take_flags(setup, rank.index());
            }
        }
        self.forget_facts(setup);
    }

    /// All cores of a rank are quiet. On A2 that is when its window to itself has landed as a whole.
    fn is_quiet(&mut self, setup: &Setup<'_>, rank: usize, n: u32) {
        self.step_of_rank(setup, Step::Quiet, rank, n);
        if setup.model.product == Product::A2 {
            let slots = slots::a2_window(setup.operator(n).0, setup.model.ranks as usize);
            for slot in (2 * rank..2 * rank + 2).filter(|&slot| slots[slot].is_some()) {
                for step in [Step::Write, Step::Land] {
                    self.take(setup, Event { step, rank, slot, n });
                }
            }
        }
    }

    fn take(&mut self, setup: &Setup<'_>, event: Event) {
        self.hold(setup, |run| run.take(event));
    }

    /// Holds what happens against the model.
    fn hold(&mut self, setup: &Setup<'_>, what: impl FnOnce(&mut Run<'_>) -> Result<(), Wrong>) {
        let Some(mut beside) = self.beside.take() else { return };
        let instance = self.instance(setup, &beside.facts);
        let mut run = Run::from(&instance, core::mem::take(&mut beside.facts));
        if let Err(wrong) = what(&mut run) {
            beside.broken.get_or_insert(wrong.to_string());
        }
        beside.facts = run.facts;
        self.beside = Some(beside);
    }

    /// Forgets what is over: flags of rounds that all have combined, once their clears have landed.
    pub(super) fn forget_facts(&mut self, setup: &Setup<'_>) {
        let first = self.first_round;
        let Some(Beside { facts, .. }) = self.beside.as_deref_mut() else { return };
        let Facts { landed, taken, cleared, .. } = facts;
        let over: Vec<_> = cleared.iter().filter(|fact| setup.operator(fact.2).1 < first).copied().collect();
        for fact in over {
            for facts in [&mut *landed, taken, cleared] {
                facts.remove(&fact);
            }
        }
    }

    /// Who expects what of whom, in rounds that are not over, and in those whose clears have still to land.
    fn instance(&self, setup: &Setup<'_>, facts: &Facts) -> Instance {
        let (ranks, shape) = (setup.model.ranks as usize, setup.shape);
        let inputs = |n: u32, rank: usize| {
            let round = self.rounds.get((setup.operator(n).1.checked_sub(self.first_round))? as usize)?;
            round.choices[rank]?;
            Some(round.tensors.get(rank)?.inputs())
        };
        let rows = |n: u32, rank: usize, e: u32| {
            let Some(inputs) = inputs(n, rank) else { return 0 };
            let is_it = |token, k| {
                let id = inputs.ids(shape, token).get(k as usize);
                inputs.pair_is_active(shape, token, k) && id.is_some_and(|id| id.cast_unsigned() == e)
            };
            let pairs = (0..setup.model.tokens_of(rank as u32))
                .flat_map(|token| (0..setup.model.k).map(move |k| (token, k)));
            pairs.filter(|&(token, k)| is_it(Token(token), k)).count() as u32
        };
        let operators = setup.operators();
        let of = |n: u32, rank: usize| -> Vec<Option<Expected>> {
            let is_open = |slot: usize| {
                let fact = (rank, slot, n);
                facts.taken.contains(&fact) && !facts.cleared.contains(&fact)
            };
            let over = setup.operator(n).1 < self.first_round;
            let all = match setup.operator(n).0 {
                kind if setup.model.product == Product::A2 => slots::a2_window(kind, ranks),
                kind if setup.model.product == Product::Hierarchy => {
                    let ids = |rank| inputs(n, rank).map_or(&[][..], |inputs| inputs.expert_ids);
                    relay::expected(
                        shape,
                        kind,
                        RankId(rank as u32),
                        &(0..ranks).map(ids).collect::<Vec<_>>(),
                    )
                }
                Operator::Dispatch => {
                    let first = rank as u32 * setup.model.experts;
                    let rows = |expert, source| rows(n, source, first + expert);
                    slots::a3_dispatch(shape, setup.model.choices, RankId(rank as u32), rows)
                }
                Operator::Combine if setup.model.choices.receive.is_direct() => {
                    (0..ranks).map(|source| Some(Expected { source, ..Expected::default() })).collect()
                }
                Operator::Combine => (0..setup.model.tokens_of(rank as u32) * setup.model.k)
                    .map(|pair| {
                        let (token, k) = (Token(pair / setup.model.k), pair % setup.model.k);
                        let own = inputs(n, rank).filter(|inputs| inputs.pair_is_active(shape, token, k));
                        let id = own.and_then(|inputs| inputs.ids(shape, token).get(k as usize).copied());
                        let home = |id: i32| setup.rank_of(id.cast_unsigned()).index();
                        id.map(|id| Expected { source: home(id), carries: true, ..Expected::default() })
                    })
                    .collect(),
            };
            if !over {
                return all;
            }
            let left = Expected { source: rank, ..Expected::default() };
            (0..all.len()).map(|slot| is_open(slot).then_some(left)).collect()
        };
        let expected = (0..operators).map(|n| (0..ranks).map(|rank| of(n, rank)).collect()).collect();
        let [dispatch, combine] = setup.model.partitions;
        let partitions = match setup.model.product {
            Product::A3 => Partitions::PerKind(dispatch, combine),
            Product::A2 | Product::Hierarchy => Partitions::Shared(dispatch),
        };
        let clears = match setup.model.product {
            Product::Hierarchy => Clears::Epochs,
            Product::A3 | Product::A2 => Clears::Late,
        };
        Instance { schedule: Schedule { word: setup.word, partitions }, clears, expected }
    }
}

impl Setup<'_> {
    /// The slot of A3 to which a place belongs, and the newest of `begun` operators that has it in this partition.
    fn slot(&self, rank: RankId, at: Place, begun: u32) -> Option<(usize, u32)> {
        let within = at.offset % VIRTUAL;
        let (kind, slot) = slots::a3(self.shape, self.model.choices, rank, at.region, within)?;
        let partitions = self.model.partitions[kind as usize];
        let is_it = |&n: &u32| {
            let (operator, _, nth) = self.operator(n);
            operator == kind && u64::from(nth % partitions) == at.offset / VIRTUAL
        };
        (0..begun).rev().find(is_it).map(|n| (slot, n))
    }
}
