//! A step of a core while it is taken: where the core stands, what the search asks of the step, what it has found, and what is told
//! of it. Each is of its own.

use super::oracle::Expected;
use super::protocol::{Protocol, RANKS};
use super::refine::Noted;
use super::state::Round;
use super::story::Told;
use super::tape::Tape;
use super::violation::Violation;
use core::cell::{Cell, RefCell};
use std::rc::Rc;
use veriep_core::fabric::Fault;
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::protocol::Operator;
use veriep_core::units::{CoreId, RankId};

/// Where a core stands: who it is, the operator that it is in, and how far the other ranks are.
pub(super) struct Standing {
    pub(super) rank: RankId,
    pub(super) core: CoreId,
    /// The operator, and which one of its kind it is.
    pub(super) op: u32,
    pub(super) operator: Operator,
    pub(super) nth: u32,
    /// By rank: the operator that it is in.
    pub(super) operators: [u32; RANKS],
    pub(super) round: Rc<Round>,
    /// The ranks whose first core waits and has taken back what it told, as bits, for the defect that asks.
    pub(super) withdrawn: u32,
}

impl Standing {
    /// An agent that serves operator `op`: it knows nothing of rounds.
    pub(super) fn of_agent(rank: RankId, op: u32) -> Self {
        let (operators, round) = ([0; RANKS], Rc::default());
        Self {
            rank,
            core: CoreId(0),
            op,
            operator: Operator::Dispatch,
            nth: 0,
            operators,
            round,
            withdrawn: 0,
        }
    }

    /// What all ranks must write; `None` while some rank has not chosen its traffic.
    pub(super) fn expected(&self) -> Option<&[Expected]> {
        self.round.expected.as_ref().map(|all| &all[..])
    }
}

/// What a search asks of a step so that it need not try all others, and what it learns of that.
pub(super) struct Search<Q, E> {
    /// Whether accesses whose outcome depends on others are refused: the caller only wants to know whether there are any.
    pub(super) peek: bool,
    /// Words that count operators are taken for final once they have reached their values, and read as so many operators further
    /// on, one by one; those behind as they are.
    pub(super) ahead: Option<Vec<u32>>,
    /// How far that was.
    pub(super) supposed: RefCell<Vec<u32>>,
    /// Whether it depended on others at all.
    pub(super) touched: Cell<bool>,
    /// The ranks that can still change what it looked at, as bits, if the protocol asks.
    pub(super) open: Cell<u32>,
    /// What of the effects in flight has landed.
    pub(super) tape: RefCell<Tape<Q>>,
    pub(super) issued: Vec<E>,
}

impl<Q, E> Default for Search<Q, E> {
    fn default() -> Self {
        Self {
            peek: false,
            ahead: None,
            supposed: RefCell::default(),
            touched: Cell::default(),
            open: Cell::default(),
            tape: RefCell::default(),
            issued: Vec::new(),
        }
    }
}

impl<Q: PartialEq, E: PartialEq> Search<Q, E> {
    /// Whether the other step asked for the same and did the same.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let seen = |search: &Self| (search.touched.get(), search.open.get());
        seen(self) == seen(other) && self.tape == other.tape && self.issued == other.issued
    }
}

/// What a step has found.
#[derive(Default)]
pub(super) struct Findings {
    /// Output bytes.
    pub(super) written: u32,
    pub(super) violation: RefCell<Option<Violation>>,
    /// What the theorem's model calls it.
    pub(super) noted: RefCell<Vec<Noted>>,
}

impl Findings {
    pub(super) fn blame(&self, violation: Violation) {
        self.violation.borrow_mut().get_or_insert(violation);
    }
}

/// What a step did, in words, if that is to be told.
#[derive(Default)]
pub(super) struct Account(Option<RefCell<Vec<Told>>>);

impl Account {
    /// Of a step that is told, or is not.
    pub(super) fn new(is_told: bool) -> Self {
        Self(is_told.then(RefCell::default))
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        self.add(None, false, what);
    }

    /// Says what was written to the memory of a rank.
    pub(super) fn say_written(&self, to: RankId, what: impl FnOnce() -> String) {
        self.add(Some(to), false, what);
    }

    /// Says what was read in the memory of a rank.
    pub(super) fn say_read(&self, at: RankId, what: impl FnOnce() -> String) {
        self.add(Some(at), true, what);
    }

    fn add(&self, memory: Option<RankId>, is_read: bool, what: impl FnOnce() -> String) {
        if let Some(told) = &self.0 {
            told.borrow_mut().push(Told { text: what(), memory: memory.map(|rank| rank.0), is_read });
        }
    }

    /// Takes back what was said last.
    pub(super) fn unsay(&self) {
        if let Some(told) = &self.0 {
            told.borrow_mut().pop();
        }
    }

    /// Whether it is told and nothing has been said.
    pub(super) fn is_silent(&self) -> bool {
        self.0.as_ref().is_some_and(|told| told.borrow().is_empty())
    }

    /// What was said, if the step is told.
    pub(super) fn told(&self) -> Option<Vec<Told>> {
        self.0.as_ref().map(|told| told.borrow().clone())
    }
}

/// A step of a core.
pub(super) struct Step<Q, E> {
    pub(super) at: Standing,
    pub(super) search: Search<Q, E>,
    pub(super) found: Findings,
    pub(super) account: Account,
}

pub(super) type StepOf<P> = Step<<P as Protocol>::Query, <P as Protocol>::Effect>;

impl<Q, E> Step<Q, E> {
    /// A step without a watcher.
    pub(super) fn new(at: Standing) -> Self {
        Self { at, search: Search::default(), found: Findings::default(), account: Account::default() }
    }

    /// Notes an access whose outcome depends on others, or that others can see; refuses it while peeking.
    pub(super) fn touch(&self, at: Place) -> Result<(), Fault> {
        self.search.touched.set(true);
        if self.search.peek { Err(Fault::new(self.at.rank, at, 0)) } else { Ok(()) }
    }

    /// Compares an output with the reference's.
    pub(super) fn judge(&mut self, at: Place, bytes: &[u8]) {
        let Region::Output(tensor) = at.region else { return };
        self.found.written += bytes.len() as u32;
        let range = at.offset as usize..at.offset as usize + bytes.len();
        let (rank, all) = (self.at.rank, self.at.expected());
        let expected = all.and_then(|all| all[rank.index()].output(tensor).get(range));
        // Before all ranks have chosen, nothing but this rank's own slots can be known.
        let unknown = all.is_none() && tensor == Tensor::ExpandIdx;
        if !unknown && expected != Some(bytes) {
            self.found.blame(Violation::Diverged { rank, at });
        }
    }
}
