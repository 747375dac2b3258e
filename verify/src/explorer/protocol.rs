//! What differs between protocols: what their cores share, how a step sees it, what need not be searched, how it is told.

use super::liveness::Mover;
use super::oracle::Expected;
use super::refine::Noted;
use super::setup::Setup;
use super::state::{Bytes, Round, StateOf};
use super::story::{Line, Told, Who};
use super::tape::Tape;
use super::violation::Violation;
use super::witness::Taken;
use core::cell::{Cell, RefCell};
use core::hash::Hash;
use std::rc::Rc;
use veriep_core::fabric::{Fabric, Fault, Progress, ProtocolError};
use veriep_core::layout::state::DISPATCH_SELECTORS;
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::protocol::Operator;
use veriep_core::sim::Actor;
use veriep_core::units::{CoreId, RankId};

/// Most ranks of a model.
pub(super) const RANKS: usize = 4;
/// Where virtual partitions begin in the model's addresses.
pub(super) const VIRTUAL: u64 = 1 << 40;
/// What unread or never written bytes look like.
pub(super) static NOTHING: [u8; 1024] = [0xEE; 1024];

/// A place in words: its partition and where it is in there.
pub(super) fn spot(at: Place) -> String {
    let partitioned = at.region == Region::Window || at.offset % VIRTUAL < DISPATCH_SELECTORS;
    let place = Place { offset: at.offset % VIRTUAL, ..at };
    if partitioned { format!("{place} in partition {}", at.offset / VIRTUAL) } else { place.to_string() }
}

/// The first one of the two words of a core for its barriers.
pub(super) fn first_word(at: Place) -> Place {
    Place { offset: at.offset & !15, ..at }
}

/// What a machine's step came to.
pub(super) type Came = Result<Progress, ProtocolError>;

/// What a step of a core does over the view that it is given.
pub(super) type Run<'r> = &'r mut dyn FnMut(&mut dyn View) -> Came;

/// A core's view of what is shared.
pub(super) trait View: Fabric {
    /// Runs the experts of the rank's next batch, where they read rows in the window: those that are due after so many moves
    /// of theirs.
    fn experts(&mut self, _moves: u32) -> Result<Progress, Fault> {
        Ok(Progress::Done)
    }
}

/// A protocol in the search. The value knows the model and where things lie in it.
pub(super) trait Protocol: Sized {
    /// What cores share, with all that is in flight.
    type Memory: Clone;
    /// What the memory keeps of a core.
    type Own: Clone + Default + Hash;
    /// What can happen in the memory by itself.
    type Event: Copy;
    /// What a step can ask of effects in flight.
    type Asked: Copy + PartialEq;
    /// An effect that a step had, where ways through steps are compared.
    type Effect: Clone + PartialEq;

    /// Whether the end of an operator is a move of its own: until then nobody may write where its rank has read.
    const ENDS_ARE_MOVES: bool = false;
    /// Whether the traffic of a round is chosen when its first rank begins it, and not rank by rank.
    const CHOOSES_AT_ONCE: bool = false;

    /// The memory of a group that was just created.
    fn memory(&self) -> Self::Memory;

    /// Lets a core take a step, and draws its consequences for the memory. There must be none if it was refused something.
    fn step(
        &mut self,
        memory: &mut Self::Memory,
        own: &mut Self::Own,
        step: StepOf<Self>,
        run: Run<'_>,
    ) -> (Came, StepOf<Self>);

    /// What can happen in the memory now, in a fixed order.
    fn events(&self, state: &StateOf<Self>) -> Vec<Self::Event>;

    /// Lets it happen. Whether it could.
    fn happen(&mut self, state: &mut StateOf<Self>, event: Self::Event) -> Result<bool, Violation>;

    /// Who makes an event, and a number that tells this one from others that can happen between two ends of operators.
    fn mover(&self, state: &StateOf<Self>, event: Self::Event) -> (Mover, u64);

    /// An event in words, before it happens.
    fn tell(&self, state: &StateOf<Self>, event: Self::Event) -> Line;

    /// What it knows of the model.
    fn setup(&self) -> &Setup<'_>;

    /// Gives a place and a word of operator `op` the names that they have in a run.
    fn rename(&self, at: &mut Place, word: &mut Option<u64>, op: u32);

    /// Adds a step in operator `op` to the story, if a witness keeps calls: its calls are those from number `first` on, and
    /// `ended` says whether it has ended the operator.
    fn note(&self, state: &mut StateOf<Self>, actor: Actor, op: u32, first: usize, ended: bool) {
        let (Some(witness), Some(story)) = (self.setup().witness(), &mut state.story) else { return };
        let calls = first..witness.calls();
        witness.rename(calls.clone(), &mut |at, word| self.rename(at, word, op));
        story.taken.push(Taken { actor, planned: self.setup().named(op), calls, ended });
    }

    /// What happens at once behind every move.
    fn settle(&mut self, _: &mut StateOf<Self>) -> Result<(), Violation> {
        Ok(())
    }

    /// All cores of a rank have ended an operator.
    fn ended(&self, _: &mut StateOf<Self>, _rank: usize, _op: u32) -> Option<Violation> {
        None
    }

    /// Effects that have perhaps not landed. If there are fewer of them, a core that waits on has moved all the same: what
    /// it has seen stays landed.
    fn in_flight(_: &Self::Memory) -> usize {
        0
    }

    /// Adds what tells states apart of the memory and of what it keeps of cores. Operators count from `first`.
    fn fingerprint(&self, state: &StateOf<Self>, first: u32, bytes: &mut Bytes);

    /// Whether ranks wait whose cores change nothing that those of the others look at now.
    fn moves_few(&self) -> bool {
        false
    }

    /// The cores, as bits, that a move may have given a step which nobody else can see. `moved` is the core that made it.
    fn stirred(&self, _before: &Self::Memory, _after: &Self::Memory, moved: Option<usize>) -> u32 {
        moved.map_or(u32::MAX, |core| self.setup().cores_beside(core))
    }

    /// Whether words that count operators and have come are taken for settled, if that they go on makes no difference.
    fn supposes(&self) -> bool {
        false
    }

    /// Whether two cores go on alike as far as the memory knows of them.
    fn is_alike(_: &Self::Own, _: &Self::Own) -> bool {
        true
    }

    /// Whether of two ways of a core to the same end, which had these effects, one is enough: the one that saw less to have
    /// landed.
    fn is_one_enough(&self, _: &[Self::Effect], _: &[Self::Effect]) -> bool {
        false
    }
}

/// A step of a core: who takes it, what it must come to, and what it has found out.
pub(super) struct Step<A, E> {
    pub(super) rank: RankId,
    pub(super) core: CoreId,
    /// The operator, and which one of its kind it is.
    pub(super) op: u32,
    pub(super) operator: Operator,
    pub(super) nth: u32,
    /// By rank: the operator that it is in.
    pub(super) at: [u32; RANKS],
    pub(super) round: Rc<Round>,
    /// Whether accesses whose outcome depends on others are refused: the caller only wants to know whether there are any.
    pub(super) peek: bool,
    /// Words that count operators are taken for settled once they have come, and read as so many operators further on, one
    /// by one; those behind as they are.
    pub(super) ahead: Option<Vec<u32>>,
    /// How far that was.
    pub(super) supposed: RefCell<Vec<u32>>,
    /// The ranks whose first core waits and has taken back what it told, as bits, for the defect that asks.
    pub(super) withdrawn: u32,
    /// Whether it depended on others at all.
    pub(super) touched: Cell<bool>,
    /// The ranks that can still change what it looked at, as bits, if the protocol asks.
    pub(super) open: Cell<u32>,
    pub(super) tape: RefCell<Tape<A>>,
    pub(super) issued: Vec<E>,
    /// What the theorem's model calls it.
    pub(super) noted: RefCell<Vec<Noted>>,
    /// Output bytes.
    pub(super) written: u32,
    pub(super) violation: RefCell<Option<Violation>>,
    /// What it did, in words, if that is to be told.
    pub(super) told: Option<RefCell<Vec<Told>>>,
}

pub(super) type StepOf<P> = Step<<P as Protocol>::Asked, <P as Protocol>::Effect>;

impl<A, E> Step<A, E> {
    /// A step of an agent that serves operator `op`: it knows nothing of rounds.
    pub(super) fn of_agent(rank: RankId, op: u32) -> Self {
        Self::new((rank, CoreId(0)), (op, Operator::Dispatch, 0), [0; RANKS], Rc::default())
    }

    /// A step of a core in an operator, given by its number, what it is and which one of its kind, that nobody watches.
    pub(super) fn new(
        (rank, core): (RankId, CoreId),
        (op, operator, nth): (u32, Operator, u32),
        at: [u32; RANKS],
        round: Rc<Round>,
    ) -> Self {
        Self {
            rank,
            core,
            op,
            operator,
            nth,
            at,
            round,
            peek: false,
            ahead: None,
            supposed: RefCell::default(),
            withdrawn: 0,
            touched: Cell::default(),
            open: Cell::default(),
            tape: RefCell::default(),
            issued: Vec::new(),
            noted: RefCell::default(),
            written: 0,
            violation: RefCell::default(),
            told: None,
        }
    }

    pub(super) fn blame(&self, violation: Violation) {
        self.violation.borrow_mut().get_or_insert(violation);
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
        if let Some(told) = &self.told {
            told.borrow_mut().push(Told { text: what(), memory: memory.map(|rank| rank.0), is_read });
        }
    }

    /// Notes an access whose outcome depends on others, or that others can see; refuses it while peeking.
    pub(super) fn touch(&self, at: Place) -> Result<(), Fault> {
        self.touched.set(true);
        if self.peek { Err(Fault::new(self.rank, at, 0)) } else { Ok(()) }
    }

    /// What all ranks must write; `None` while some rank has not chosen its traffic.
    pub(super) fn expected(&self) -> Option<&[Expected]> {
        self.round.expected.as_ref().map(|all| &all[..])
    }

    /// Compares an output with the oracle's.
    pub(super) fn judge(&mut self, at: Place, bytes: &[u8]) {
        let Region::Output(tensor) = at.region else { return };
        self.written += bytes.len() as u32;
        let range = at.offset as usize..at.offset as usize + bytes.len();
        let expected = self.expected().and_then(|all| all[self.rank.index()].output(tensor).get(range));
        // Before all ranks have chosen, nothing but this rank's own slots can be known.
        let unknown = self.round.expected.is_none() && tensor == Tensor::ExpandIdx;
        if !unknown && expected != Some(bytes) {
            self.blame(Violation::Diverged { rank: self.rank, at });
        }
    }
}

/// A core of the group in words, before what it does.
pub(super) fn who(setup: &Setup<'_>, core: usize, op: u32) -> Who {
    let cores = setup.model.cores;
    let (rank, core) = (core as u32 / cores, core as u32 % cores);
    let named = if cores > 1 { format!(" core {core}") } else { String::new() };
    let words = format!("rank {rank}{named}, {}: ", setup.named(op));
    Who { words, rank: Some(rank), core: Some(core) }
}
