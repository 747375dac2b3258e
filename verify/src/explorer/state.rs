//! A state: all machines, all memory, all effects that have not landed.

use super::oracle::{Expected, RankTensors};
use super::phase::Phase;
use super::protocol::{Protocol, RANKS, Reduce};
use super::refine::Beside;
use super::setup::{Choice, OPEN, Setup};
use super::story::{Line, Told, Who};
use super::violation::Violation;
use super::witness::Taken;
use core::hash::{Hash, Hasher};
use std::collections::VecDeque;
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_128;

/// What is told once, however many there are.
pub(super) const CLEARS: &str = "clears its flags";

/// All that is a core's own: its phase and what it keeps in its scratch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Local {
    pub(super) phase: Phase,
    pub(super) words: Vec<u32>,
    /// What a step leaves in the scratch row for later ones.
    pub(super) row: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Core<O> {
    /// The number of what its machine holds, which is 0 between operators.
    pub(super) local: u32,
    /// Parts begun or about to begin, from the beginning.
    pub(super) op: u32,
    /// What its machines hold that have sent and do not go on yet, in the order in which they began; then 0.
    pub(super) open: [u32; OPEN],
    /// Changes where a defect steps instead of waiting.
    pub(super) polled: bool,
    /// What the memory keeps of it.
    pub(super) own: O,
}

/// A round that a rank has begun and not all have ended.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// What each rank has chosen so far.
    pub(super) choices: Vec<Option<Choice>>,
    pub(super) tensors: Vec<Rc<RankTensors>>,
    /// What all ranks must write, once all have chosen.
    pub(super) expected: Option<Rc<Vec<Expected>>>,
}

impl Hash for Round {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.choices.hash(state);
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Story {
    pub(super) events: Vec<Line>,
    /// The cores that stepped, in order.
    pub(super) steps: Vec<usize>,
    /// Steps with their calls, if there is a witness.
    pub(super) taken: Vec<Taken>,
}

/// Writes out [`Clone`] for the sake of `clone_from`, which allocates nothing where it need not: a search does hardly anything
/// but copy states.
macro_rules! clone_in_place {
    ($Type:ident $(<$($Of:ident),*>)? { $($field:ident),* }) => {
        impl$(<$($Of: Clone),*>)? Clone for $Type$(<$($Of),*>)? {
            fn clone(&self) -> Self {
                let Self { $($field),* } = self;
                Self { $($field: Clone::clone($field)),* }
            }

            fn clone_from(&mut self, source: &Self) {
                let Self { $($field),* } = source;
                $(self.$field.clone_from($field);)*
            }
        }
    };
}
pub(super) use clone_in_place;

#[derive(Debug)]
pub(super) struct State<M, O> {
    /// Rank-major.
    pub(super) cores: Vec<Core<O>>,
    pub(super) memory: M,
    /// Output bytes that each rank has written in its current operator.
    pub(super) written: Vec<u32>,
    /// Live rounds; the first is number `first_round`.
    pub(super) rounds: VecDeque<Rc<Round>>,
    pub(super) first_round: u32,
    /// The state of the theorem's model, where it is asked for.
    pub(super) beside: Option<Box<Beside>>,
    /// Kept only while a way is told again.
    pub(super) story: Option<Story>,
}

clone_in_place!(State<M, O> { cores, memory, written, rounds, first_round, beside, story });

pub(super) type StateOf<P> = State<<P as Protocol>::Memory, <P as Protocol>::Own>;

impl<M, O: Clone + Default> State<M, O> {
    pub(super) fn new(setup: &Setup<'_>, memory: M, told: bool) -> Self {
        let core = Core { local: 0, op: 0, open: [0; OPEN], polled: false, own: O::default() };
        Self {
            cores: vec![core; setup.envs.len()],
            memory,
            written: vec![0; setup.model.ranks as usize],
            rounds: VecDeque::new(),
            first_round: 0,
            beside: setup.model.refined.then(|| Box::new(Beside::new(setup))),
            story: told.then(Story::default),
        }
    }

    /// The live round of a batch; made if it does not exist yet.
    pub(super) fn round(&mut self, batch: u32) -> &mut Rc<Round> {
        let at = (batch - self.first_round) as usize;
        while self.rounds.len() <= at {
            let choices = vec![None; self.written.len()];
            self.rounds.push_back(Rc::new(Round { choices, ..Round::default() }));
        }
        &mut self.rounds[at]
    }

    /// Whether all so far was a step of the theorem's model, if that is asked.
    pub(super) fn refines(&mut self) -> Result<(), Violation> {
        self.beside.as_mut().map_or(Ok(()), |beside| beside.verdict())
    }

    /// By rank: the part that it is in. It has ended one when all of its cores have.
    pub(super) fn parts(&self) -> [u32; RANKS] {
        let mut operators = [0; RANKS];
        let cores = self.cores.chunks_exact(self.cores.len() / self.written.len());
        for (operator, cores) in operators.iter_mut().zip(cores) {
            *operator = cores.iter().map(|core| core.op).min().unwrap_or(0);
        }
        operators
    }

    /// The ranks whose first core waits in every second poll, and does so now, as bits.
    pub(super) fn withdrawn(&self) -> u32 {
        let cores = self.cores.chunks_exact(self.cores.len() / self.written.len());
        (0..).zip(cores).fold(0, |ranks, (rank, cores)| ranks | u32::from(cores[0].polled) << rank)
    }

    /// Forgets rounds that all cores have combined, with those before them.
    pub(super) fn retire(&mut self, setup: &Setup<'_>) {
        let parts = self.parts();
        let over = (0..self.written.len()).map(|rank| setup.over(rank, parts[rank])).min().unwrap_or(0);
        while self.first_round < over && self.rounds.pop_front().is_some() {
            self.first_round += 1;
        }
    }

    /// A number that tells states apart: equal for states that differ only in how long ago they began.
    pub(super) fn fingerprint<P>(&self, setup: &Setup<'_>, protocol: &P, bytes: &mut Bytes) -> u128
    where
        P: Reduce<Memory = M, Own = O>,
    {
        let parts = self.parts();
        let first_unit =
            (0..self.written.len()).map(|rank| setup.unit_of(rank, parts[rank])).min().unwrap_or(0);
        bytes.0.clear();
        // A group that ends does not repeat.
        let clock = if setup.model.units.is_some() { first_unit } else { first_unit % setup.period };
        clock.hash(bytes);
        let cores = self.cores.len() / self.written.len();
        for (rank, cores) in self.cores.chunks_exact(cores).enumerate() {
            let (first, _) = setup.unit(rank, first_unit);
            for core in cores {
                (core.op.wrapping_sub(first), core.local, core.polled).hash(bytes);
                if !setup.is_whole() {
                    core.open.hash(bytes);
                }
            }
        }
        (self.first_round.wrapping_sub(first_unit * setup.batches), &self.rounds, &self.written).hash(bytes);
        protocol.fingerprint(self, setup.unit(0, first_unit).1, bytes);
        xxh3_128(&bytes.0)
    }

    /// Adds to the story what a core did, in the line of what it did just before.
    pub(super) fn tell(&mut self, who: Who, did: &[Told]) {
        let Some(Story { events, .. }) = &mut self.story else { return };
        let last = events.last_mut().filter(|line| line.who.words == who.words);
        let told = last.as_ref().is_some_and(|line| line.did.last().is_some_and(|did| did.text == CLEARS));
        let did: Vec<_> = did.iter().filter(|did| !told || did.text != CLEARS).cloned().collect();
        match last {
            _ if did.is_empty() => {}
            Some(line) => line.did.extend(did),
            None => events.push(Line { who, did }),
        }
    }
}

/// Collects what is hashed.
#[derive(Default)]
pub(super) struct Bytes(Vec<u8>);

impl Bytes {
    /// A number for what was collected.
    pub(super) fn number(&self) -> u64 {
        xxh3_128(&self.0) as u64
    }
}

impl Hasher for Bytes {
    fn finish(&self) -> u64 {
        self.0.len() as u64
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}
