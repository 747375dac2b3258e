//! Differences between protocols: what their cores share and how a step sees it; what need not be searched; how it is told.

use super::liveness::Mover;
use super::plan::Part;
use super::setup::Setup;
use super::state::{Bytes, StateOf};
use super::step::StepOf;
use super::story::{Line, Who};
use super::violation::Violation;
use super::witness::Taken;
use core::hash::Hash;
use veriep_core::fabric::{Fabric, Fault, Progress, ProtocolError};
use veriep_core::layout::state::{CORE_RECORD, DISPATCH_SELECTORS};
use veriep_core::place::{Place, Region};
use veriep_core::sim::Actor;
use veriep_core::sim::cluster::Planned;

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
    Place { offset: at.offset / CORE_RECORD * CORE_RECORD, ..at }
}

/// What a machine's step came to.
pub(super) type Outcome = Result<Progress, ProtocolError>;

/// What a step of a core does over the view that it is given.
pub(super) type Run<'r> = &'r mut dyn FnMut(&mut dyn View) -> Outcome;

/// A core's view of what is shared.
pub(super) trait View: Fabric {
    /// Runs the experts of the rank's next batch, where they read rows in the window: those that are due after so many moves
    /// of theirs.
    fn experts(&mut self, _moves: u32) -> Result<Progress, Fault> {
        Ok(Progress::Done)
    }
}

/// A protocol in the search: what happens. The value knows the model and where things are in it.
pub(super) trait Protocol: Sized {
    /// What cores share, with all that is in flight.
    type Memory: Clone;
    /// What the memory keeps of a core.
    type Own: Clone + Default + Hash;
    /// What can happen in the memory by itself.
    type Event: Copy;
    /// What a step can ask of effects in flight.
    type Query: Copy + PartialEq;
    /// An effect that a step had, where ways through steps are compared.
    type Effect: Clone + PartialEq;

    /// Whether the end of an operator is a move of its own: until then no rank may write where its rank has read.
    const ENDS_ARE_MOVES: bool = false;
    /// Whether the traffic of a round is chosen when its first rank begins it, and not rank by rank.
    const CHOOSES_AT_ONCE: bool = false;

    /// What it knows of the model.
    fn setup(&self) -> &Setup<'_>;

    /// The memory of a group that was just created.
    fn memory(&self) -> Self::Memory;

    /// Lets a core take a step, and draws its consequences for the memory. There must be none if it was refused something.
    fn step(
        &mut self,
        memory: &mut Self::Memory,
        own: &mut Self::Own,
        step: StepOf<Self>,
        run: Run<'_>,
    ) -> (Outcome, StepOf<Self>);

    /// What can happen in the memory now, in a fixed order.
    fn events(&self, state: &StateOf<Self>) -> Vec<Self::Event>;

    /// Lets it happen. Returns whether it could.
    fn apply(&mut self, state: &mut StateOf<Self>, event: Self::Event) -> Result<bool, Violation>;

    /// Who makes an event, and a number that tells this one from others that can happen between two ends of operators.
    fn mover(&self, state: &StateOf<Self>, event: Self::Event) -> (Mover, u64);

    /// What happens immediately after every move.
    fn settle(&mut self, _: &mut StateOf<Self>) -> Result<(), Violation> {
        Ok(())
    }

    /// All cores of a rank have ended an operator.
    fn ended(&self, _: &mut StateOf<Self>, _rank: usize, _op: u32) -> Option<Violation> {
        None
    }
}

/// What need not be searched: which states are one, and which moves and ways need not be tried.
pub(super) trait Reduce: Protocol {
    /// Adds what tells states apart of the memory and of what it keeps of cores. Operators count from `first`.
    fn fingerprint(&self, state: &StateOf<Self>, first: u32, bytes: &mut Bytes);

    /// Effects that have perhaps not landed. If there are fewer of them, a core that waits on has moved all the same: what
    /// it has seen stays landed.
    fn in_flight(_: &Self::Memory) -> usize {
        0
    }

    /// Whether ranks may wait while others move whose cores look at nothing that those can change now.
    fn lets_ranks_wait(&self) -> bool {
        false
    }

    /// The cores, as bits, to which a move may have given a step that no other core can see. `moved` is the core that made it.
    fn woken_by(&self, _before: &Self::Memory, _after: &Self::Memory, moved: Option<usize>) -> u32 {
        moved.map_or(u32::MAX, |core| self.setup().cores_beside(core))
    }

    /// Whether a word that counts operators and has reached its value may be taken as final, if later values make no difference.
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

/// How a way into trouble is told.
pub(super) trait Tell: Protocol {
    /// An event in words, before it happens.
    fn describe(&self, state: &StateOf<Self>, event: Self::Event) -> Line;

    /// Gives a place and a word of an operator the names that they have in a run.
    fn rename(&self, at: &mut Place, word: &mut Option<u64>, part: Part);

    /// Adds a step in a part to the story, if a witness keeps calls: its calls are those from number `first` on, and
    /// `ended` says whether it has ended the part.
    fn note(&self, state: &mut StateOf<Self>, actor: Actor, part: Part, first: usize, ended: bool) {
        let (Some(witness), Some(story)) = (self.setup().witness(), &mut state.story) else { return };
        let calls = first..witness.calls();
        witness.rename(calls.clone(), &mut |at, word| self.rename(at, word, part));
        story.taken.push(Taken { actor, planned: part.planned, calls, ended });
    }
}

/// All that a search asks of a protocol.
pub(super) trait Explored: Reduce + Tell {}

impl<P: Reduce + Tell> Explored for P {}

/// A core of the group in words, before what it does.
pub(super) fn who(setup: &Setup<'_>, core: usize, planned: Planned) -> Who {
    let cores = setup.model.cores;
    let (rank, core) = (core as u32 / cores, core as u32 % cores);
    let named = if cores > 1 { format!(" core {core}") } else { String::new() };
    let words = format!("rank {rank}{named}, {planned}: ");
    Who { words, rank: Some(rank), core: Some(core) }
}
