//! A2's full mesh: the same search over its machines, agents and transfers.
//!
//! A **move** is a step of a core that reads what others write, is quiet, or ends an operator; or a piece of a transfer
//! that arrives, up to a word at which its reader could look for a flag. What a core puts, writes and stores is *issued,
//! perhaps landed* until its quiet: another access to it meanwhile, a read or a write, is an error at once. So is
//!
//! - a piece that comes to a half whose reader has not ended the operator before with that half. Hence a window that
//!   has come whole stays as it is until its reader ends the operator: its reads are no moves, the end is one;
//! - a write to what a transfer has still to read;
//! - a write to a task whose transfer has not begun. Hence agents post as soon as they are rung: one that looks later,
//!   or whose interface is busy, is a transfer that begins later.
//!
//! # What is forgotten
//! A window in when its rank has ended the operator; a piece of a window out when it was delivered; a task when it was
//! posted. Forgotten bytes hold what is no count, no task and no row, so to read one of them shows. **What stays are
//! flags**: a word of a window in at which anybody could look for a flag keeps being one or not being one. In a window out
//! every word becomes a flag at which this group could look for one, since what was sent there once may have been any row;
//! whatever is sent along between the named parts is as bad as it can be.
//!
//! Element 16 on of every row is half a flag. Payload tells the batches of a unit apart, or two rounds.
//!
//! [`Memory::WeakExplicit`](super::Memory::WeakExplicit) forgets nothing, lets every effect land by a move of its own,
//! has a piece for every word of either operator, and takes every read for a move. Then only what really goes wrong is an
//! error: one core a rank, and a few operators, are all that is within reach.

mod bent;
mod memory;
mod noted;
mod view;
mod words;

use super::liveness::Mover;
use super::plan::Part;
use super::protocol::{Outcome, Protocol, Reduce, Run, Tell, who};
use super::setup::Setup;
use super::state::{Bytes, StateOf};
use super::step::{Standing, Step, StepOf};
use super::story::{Line, Told, Who};
use super::violation::Violation;
use super::witness::Witness;
use bent::Bent;
use core::cell::RefCell;
use core::hash::{BuildHasher, Hash};
use foldhash::fast::FixedState;
pub(super) use memory::Scene;
use memory::{Flying, Late, Memory};
use veriep_core::fabric::Progress;
use veriep_core::fabric::nic::Nic;
use veriep_core::layout::a2_message::{DOORBELL, MESSAGE_SLOT};
use veriep_core::layout::a2_window::buffer_chosen;
use veriep_core::place::{Place, Region};
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::AgentEnv;
use veriep_core::sim::Actor;
use veriep_core::sim::chooser::AGENT;
use veriep_core::units::RankId;
use view::View;

/// What happens in the memory, or beside it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The agent of a rank posts.
    Agent(usize),
    /// The next piece of a transfer arrives, by its place in the flight.
    Arrive(usize),
    /// One effect of a core lands, if every landing is a move of its own.
    Land(usize, usize),
    /// The same of a core's barrier word, by parity.
    LandWord(usize, usize),
    /// The same of a rank's `bufferChosen`.
    LandFlip(usize),
}

impl Scene<'_> {
    /// The operator that an agent serves next.
    fn served(&self, memory: &Memory, rank: usize) -> u32 {
        memory.posted[rank] / (self.setup.model.ranks - 1).max(1)
    }

    /// Whether an agent has something to serve; else it is idle.
    fn is_rung(&self, memory: &Memory, rank: usize) -> bool {
        u64::from(self.served(memory, rank)) != memory.doorbell[rank]
    }

    fn agent(&self, state: &mut StateOf<Self>, rank: usize) -> Result<bool, Violation> {
        let (me, memory) = (RankId(rank as u32), &mut state.memory);
        let env = AgentEnv::new(self.setup.shape, me, SendOrder::Staggered);
        let (mut agent, op) = (memory.agents[rank].clone(), self.served(memory, rank));
        let (witness, actor) = (self.setup.witness(), Actor { member: me, core: AGENT });
        let calls = witness.map_or(0, Witness::calls);
        let step = Step::new(Standing::of_agent(me, op));
        let mut view = View { scene: self, memory, rank, step, landed: RefCell::default() };
        let mut run = |nic: &mut dyn Nic| agent.step(self.setup.shape, &env, nic);
        let progress = match witness {
            Some(witness) => witness.through_nic(actor, &mut view, &mut run),
            None => run(&mut view),
        };
        let violation = view.step.found.violation.take();
        memory.agents[rank] = agent;
        self.note(state, actor, self.setup.part_of(op), calls, false);
        match (violation, progress) {
            (Some(violation), _) => Err(violation),
            (None, Ok(progress)) => Ok(progress == Progress::Stepped),
            (None, Err(error)) => Err(Violation::Refused { rank: me, error: error.to_string() }),
        }
    }
}

impl Protocol for Scene<'_> {
    type Memory = Memory;
    type Own = ();
    type Event = Event;
    type Query = ();
    type Effect = ();

    const ENDS_ARE_MOVES: bool = true;

    fn memory(&self) -> Memory {
        Memory::new(self)
    }

    fn step(
        &mut self,
        memory: &mut Memory,
        (): &mut (),
        step: StepOf<Self>,
        run: Run<'_>,
    ) -> (Outcome, StepOf<Self>) {
        let (scene, rank) = (&*self, step.at.rank.index());
        let mut bent = Bent { view: View { scene, memory, rank, step, landed: RefCell::default() } };
        let came = run(&mut bent);
        let View { memory, step, landed, .. } = bent.view;
        if !matches!(came, Ok(Progress::Pending(_))) {
            landed.take().into_iter().for_each(|(core, parity)| memory.core_words[core][parity].land());
        }
        (came, step)
    }

    fn events(&self, state: &StateOf<Self>) -> Vec<Event> {
        let memory = &state.memory;
        let arrivals = (0..memory.flying.len()).map(Event::Arrive);
        if !self.is_explicit() {
            return arrivals.collect();
        }
        let (ranks, cores) = (0..memory.agents.len(), 0..state.cores.len());
        let agents = ranks.clone().filter(|&rank| self.is_rung(memory, rank)).map(Event::Agent);
        let landings =
            cores.clone().flat_map(|core| memory.may_land(core).map(move |i| Event::Land(core, i)));
        let is_late = |&(core, parity): &(usize, usize)| memory.core_words[core][parity].late.is_some();
        let words = cores.flat_map(|core| [(core, 0), (core, 1)]).filter(is_late);
        let words = words.map(|(core, parity)| Event::LandWord(core, parity));
        let flips = ranks.filter(|&rank| memory.chosen[rank].late.is_some()).map(Event::LandFlip);
        agents.chain(arrivals).chain(landings).chain(words).chain(flips).collect()
    }

    fn apply(&mut self, state: &mut StateOf<Self>, event: Event) -> Result<bool, Violation> {
        if let Event::Agent(rank) = event {
            return self.agent(state, rank);
        }
        let noted = match event {
            Event::Arrive(i) => Memory::noted(self, &state.memory.flying[i]),
            _ => Vec::new(),
        };
        let (at, memory) = (self.setup.numbers(state.parts()), &mut state.memory);
        let trouble = match event {
            Event::Agent(_) => None,
            Event::Arrive(i) => memory.arrive(self, i, &at),
            Event::Land(core, i) => memory.land(self, core, i),
            Event::LandWord(core, parity) => {
                memory.core_words[core][parity].land();
                None
            }
            Event::LandFlip(rank) => {
                memory.chosen[rank].land();
                None
            }
        };
        state.note(self.setup, noted);
        trouble.map_or(Ok(true), Err)
    }

    fn mover(&self, state: &StateOf<Self>, event: Event) -> (Mover, u64) {
        let memory = &state.memory;
        let hash = FixedState::default();
        let number = match event {
            Event::Agent(rank) => return (Mover::Agent, hash.hash_one(rank)),
            Event::Arrive(i) => {
                // Between two ends of operators this tells apart what is under way.
                let Flying { from, to, op, .. } = memory.flying[i];
                hash.hash_one((1, from, to, op % 4))
            }
            Event::Land(core, i) => {
                let Late { spot, start, bytes: late, store, .. } = &memory.late[core][i];
                hash.hash_one((2, core, spot, start, late, store))
            }
            Event::LandWord(core, parity) => hash.hash_one((3, core, parity)),
            Event::LandFlip(rank) => hash.hash_one((4, rank)),
        };
        (Mover::Memory, number)
    }

    /// Agents post all that was rung for. One that looks later is a transfer that begins later, and a core that writes a
    /// task of a transfer that has not begun is an error.
    fn settle(&mut self, state: &mut StateOf<Self>) -> Result<(), Violation> {
        for rank in 0..if self.is_explicit() { 0 } else { state.written.len() } {
            while self.is_rung(&state.memory, rank) {
                if state.story.is_some() {
                    let event = self.describe(state, Event::Agent(rank));
                    state.story.iter_mut().for_each(|story| story.events.push(event.clone()));
                }
                self.agent(state, rank)?;
            }
        }
        Ok(())
    }

    fn setup(&self) -> &Setup<'_> {
        self.setup
    }

    fn ended(&self, state: &mut StateOf<Self>, rank: usize, op: u32) -> Option<Violation> {
        state.memory.forget_received(self, rank, op);
        None
    }
}

impl Reduce for Scene<'_> {
    fn fingerprint(&self, state: &StateOf<Self>, first: u32, bytes: &mut Bytes) {
        let Memory { areas, doorbell, chosen, core_words, late, posted, flying, .. } = &state.memory;
        for (posted, doorbell) in posted.iter().zip(doorbell) {
            // All that there is of an agent: tasks posted.
            posted.wrapping_sub(first * (self.setup.model.ranks - 1)).hash(bytes);
            doorbell.wrapping_sub(first.into()).hash(bytes);
        }
        (areas, chosen, core_words).hash(bytes);
        for late in late.iter().flatten() {
            (late.spot, late.start, &late.bytes, late.store).hash(bytes);
        }
        late.iter().for_each(|late| late.len().hash(bytes));
        let mut flying: Vec<_> = flying.iter().collect();
        flying.sort_by_key(|flying| (flying.from, flying.to, flying.op));
        for flying in flying {
            let op = flying.op.wrapping_sub(first);
            (flying.from, flying.to, op, flying.len, flying.done).hash(bytes);
        }
    }
}

impl Tell for Scene<'_> {
    fn describe(&self, state: &StateOf<Self>, event: Event) -> Line {
        let (setup, memory) = (self.setup, &state.memory);
        let by = |words: String, rank: usize, core| Who { words, rank: Some(rank as u32), core };
        let (who, text, to) = match event {
            Event::Agent(rank) => {
                let operator = setup.named(self.served(memory, rank));
                let who = by(format!("agent of rank {rank}: "), rank, None);
                (who, format!("posts a window of {operator}"), None)
            }
            Event::Arrive(i) => {
                let Flying { from, to, op, len, done } = memory.flying[i];
                let operator = setup.named(op);
                let text = format!("the window of rank {from}, {operator}, from byte {done} of {len} on");
                (by(format!("arrives at rank {to}: "), from, None), text, Some(to))
            }
            Event::Land(core, i) => {
                let Late { spot, start, bytes, op, .. } = &memory.late[core][i];
                let (len, who) = (bytes.len(), who(setup, core, setup.named(*op)));
                (who, format!("{len} bytes of {spot:?}, from byte {start} on, have landed"), None)
            }
            Event::LandWord(core, _) => (
                who(setup, core, setup.part_at(core, state.cores[core].op).planned),
                "its barrier word has landed".to_owned(),
                None,
            ),
            Event::LandFlip(rank) => {
                (by("lands: ".to_owned(), rank, Some(0)), format!("bufferChosen of rank {rank}"), Some(rank))
            }
        };
        Line { who, did: vec![Told { text, memory: to.map(|rank| rank as u32), is_read: false }] }
    }

    fn rename(&self, at: &mut Place, _: &mut Option<u64>, part: Part) {
        let window = self.setup.shape.window_bytes() / 2;
        let size = match at.region {
            _ if *at == buffer_chosen(self.setup.shape) => return,
            Region::Window | Region::WindowOut => window,
            Region::State if at.offset < DOORBELL => MESSAGE_SLOT,
            _ => return,
        };
        // The machines have two halves.
        if self.setup.model.partitions[0] != 2 {
            *at = self.told(*at, size, part.number);
        }
    }
}
