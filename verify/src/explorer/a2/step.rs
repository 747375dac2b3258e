//! Moves of an A2 group.

use super::super::model::{Choice, Kind, Setup};
use super::super::oracle::{Expected, Oracle, RankTensors};
use super::super::phase::Phase;
use super::super::tape::{Tape, settled, ways};
use super::super::violation::Violation;
use super::memory::Scene;
use super::state::{Core, Group, Move};
use super::view::View;
use super::{Landing, Twin};
use core::cell::{Cell, RefCell};
use kernel_core::fabric::{Progress, ProtocolError, Wait};
use kernel_core::place::Tensor;
use kernel_core::plan::order::SendOrder;
use kernel_core::protocol::{AgentEnv, Ub};
use kernel_core::units::{CoreId, RankId};
use std::collections::HashMap;
use std::rc::Rc;

/// A successor, or why there must be none.
pub(super) type Next = Result<Group, Violation>;

/// Everything that grows while a model is explored, but the states.
pub(super) struct Known<'a> {
    pub(super) scene: Scene<'a>,
    pub(super) oracle: Oracle,
    tensors: HashMap<(u32, u32, Choice), Rc<RankTensors>>,
}

/// What a step came to.
struct Stepped {
    progress: Result<Progress, ProtocolError>,
    touched: bool,
    tape: Tape<()>,
    violation: Option<Violation>,
}

impl<'a> Known<'a> {
    pub(super) fn new(setup: Setup<'a>) -> Self {
        Self { scene: Scene::new(setup), oracle: Oracle::default(), tensors: HashMap::new() }
    }

    /// All initial states: the first rounds' traffic is chosen.
    pub(super) fn initial(&mut self, told: bool) -> Vec<Next> {
        let first = Group::new(&self.scene, told);
        self.settle(first)
    }

    fn cores(&self) -> usize {
        self.scene.setup.model.cores as usize
    }

    /// What a move leads to: nothing if the mover waits, several states if a rank chooses new traffic or if a core looks
    /// at what has perhaps landed.
    pub(super) fn after(&mut self, state: &Group, what: Move) -> Vec<Next> {
        let step = |given| {
            let mut next = state.clone();
            let (tape, moved) = self.moved(&mut next, what, given);
            (tape, moved.map(|moved| moved.then_some(next)).transpose())
        };
        let nexts = ways(step).into_iter().map(|(_, next)| next);
        settled(nexts, |next| self.settle(next))
    }

    /// Does a move by the choices that are given. Whether it could be done.
    fn moved(
        &mut self,
        next: &mut Group,
        what: Move,
        given: Vec<bool>,
    ) -> (Tape<()>, Result<bool, Violation>) {
        let moved = match what {
            Move::Core(core) => {
                let stepped = self.step(next, core, given, false);
                return (stepped.tape.clone(), self.conclude(next, core, stepped));
            }
            Move::Agent(rank) => self.agent(next, rank),
            Move::Arrive(i) => {
                let at = next.operators(&self.scene.setup);
                next.memory.arrive(&self.scene, i, &at).map_or(Ok(true), Err)
            }
            Move::Land(core, i) => {
                let landed = next.memory.land(&self.scene, core / self.cores(), core, i);
                landed.map_or(Ok(true), Err)
            }
            Move::LandWord(core, parity) => {
                next.memory.core_words[core].land(parity);
                Ok(true)
            }
            Move::LandFlip(rank) => {
                next.memory.land_flip(rank);
                Ok(true)
            }
        };
        (Tape::new(given), moved)
    }

    /// What a core waits for; `None` if it can move.
    pub(super) fn waits_for(&mut self, state: &Group, core: usize) -> Option<Wait> {
        match self.step(&mut state.clone(), core, Vec::new(), false).progress {
            Ok(Progress::Pending(wait)) => Some(wait),
            _ => None,
        }
    }

    /// Takes every step that nobody else can see, and begins operators; branches where a rank chooses traffic. The
    /// end of an operator is a move: until then nobody may write where its rank has read.
    fn settle(&mut self, state: Group) -> Vec<Next> {
        let mut open = vec![state];
        let mut settled = Vec::new();
        'states: while let Some(mut state) = open.pop() {
            let mut core = 0;
            while core < state.cores.len() {
                if state.cores[core].phase == Phase::Between {
                    if self.may_begin(&state, core) {
                        open.extend(self.begin(&state, core));
                        continue 'states;
                    }
                    core += 1;
                    continue;
                }
                let rank = core / self.cores();
                let before = (state.cores[core].clone(), state.written[rank]);
                let lines = state.story.clone();
                let stepped = self.step(&mut state, core, Vec::new(), true);
                let seen = stepped.touched || !matches!(stepped.progress, Ok(Progress::Stepped) | Err(_));
                if seen {
                    (state.cores[core], state.written[rank]) = before;
                    state.story = lines;
                    core += 1;
                    continue;
                }
                if let Err(violation) = self.conclude(&mut state, core, stepped) {
                    settled.push(Err(violation));
                    continue 'states;
                }
            }
            settled.push(self.post(&mut state).map(|()| state));
        }
        settled
    }

    /// Agents post all that was rung for. One that looks later is a transfer that begins later, and a core that writes a
    /// task of a transfer that has not begun is an error.
    fn post(&self, state: &mut Group) -> Result<(), Violation> {
        let explicit = self.scene.setup.model.memory == Landing::WeakExplicit;
        for rank in 0..if explicit { 0 } else { state.agents.len() } {
            while state.is_rung(&self.scene.setup, rank) {
                self.tell(state, Move::Agent(rank));
                self.agent(state, rank)?;
            }
        }
        Ok(())
    }

    /// The join: all cores of the rank have ended the operator before.
    fn may_begin(&self, state: &Group, core: usize) -> bool {
        let setup = &self.scene.setup;
        let op = state.cores[core].op;
        let joined = state.operators(setup)[core / self.cores()] >= op;
        !setup.ended(op) && (joined || setup.model.twin == Twin::NoJoin)
    }

    fn begin(&self, state: &Group, core: usize) -> Vec<Group> {
        let setup = &self.scene.setup;
        let rank = core / self.cores();
        let (kind, batch, _) = setup.operator(state.cores[core].op);
        let mut state = state.clone();
        state.cores[core].phase = setup.begin(kind);
        if state.round(batch)[rank].is_some() {
            return vec![state];
        }
        let with = |choice: Choice| {
            let mut state = state.clone();
            state.round(batch)[rank] = Some(choice);
            let to = choice.map_or_else(|| "nobody".to_owned(), |e| format!("expert {e}"));
            state.tell(&format!("rank {rank} begins round {batch}: "), &[format!("sends to {to}")]);
            state
        };
        setup.choices(rank as u32).into_iter().map(with).collect()
    }

    fn agent(&self, state: &mut Group, rank: usize) -> Result<bool, Violation> {
        let setup = &self.scene.setup;
        let peers = (setup.model.ranks - 1).max(1);
        let op = state.memory.posted[rank] / peers;
        let env = AgentEnv::new(setup.shape, RankId(rank as u32), SendOrder::Staggered);
        let mut view = View {
            scene: &self.scene,
            memory: &mut state.memory,
            rank,
            core: CoreId(0),
            op,
            kind: Kind::Dispatch,
            expected: None,
            choices: Vec::new(),
            peek: false,
            touched: Cell::new(false),
            tape: RefCell::new(Tape::new(Vec::new())),
            written: 0,
            violation: RefCell::default(),
            landed: RefCell::default(),
            story: None,
        };
        let progress = state.agents[rank].step(setup.shape, &env, &mut view);
        match (view.violation.take(), progress) {
            (Some(violation), _) => Err(violation),
            (None, Ok(progress)) => Ok(progress == Progress::Stepped),
            (None, Err(error)) => {
                Err(Violation::Refused { rank: RankId(rank as u32), error: error.to_string() })
            }
        }
    }

    fn step(&mut self, state: &mut Group, core: usize, given: Vec<bool>, peek: bool) -> Stepped {
        let op = state.cores[core].op;
        let cores = self.cores();
        let rank = core / cores;
        let (kind, batch, _) = self.scene.setup.operator(op);
        let tag = batch % self.scene.setup.tags;
        let choices = state.round(batch).clone();
        let own = choices[rank].unwrap_or_default();
        let expected = self.expected(&choices, tag);
        let setup = &self.scene.setup;
        let tensors = self.tensors.entry((rank as u32, tag, own));
        let tensors =
            Rc::clone(tensors.or_insert_with(|| Rc::new(RankTensors::new(setup, rank as u32, tag, own))));
        let told = state.story.is_some();
        let Group { cores: all, memory, .. } = state;
        let Core { phase, words, row, .. } = &mut all[core];
        let before = phase.clone();
        let mut scratch = vec![0; setup.ub_bytes];
        scratch[..row.len()].copy_from_slice(row);
        let ub = Ub { words, row: &mut scratch };
        let mut view = View {
            scene: &self.scene,
            memory,
            rank,
            core: CoreId((core % cores) as u32),
            op,
            kind,
            expected: expected.clone(),
            choices,
            peek,
            touched: Cell::new(false),
            tape: RefCell::new(Tape::new(given)),
            written: 0,
            violation: RefCell::default(),
            landed: RefCell::default(),
            story: told.then(RefCell::default),
        };
        let returned = expected.as_ref().map(|all| &all[rank]);
        let progress = setup.step(core, phase, &mut view, &tensors.inputs(), returned, ub);
        let staged = row.len();
        row.copy_from_slice(&scratch[..staged]);
        let moved = *phase != before;
        let stays = matches!(progress, Ok(Progress::Pending(_)));
        let mut violation = view.violation.take();
        if matches!(progress, Ok(Progress::Stepped)) && !moved || stays && moved {
            violation.get_or_insert(Violation::Misreported { rank: RankId(rank as u32) });
        }
        let (touched, written) = (view.touched.get(), view.written);
        let (landed, did, tape) = (view.landed.take(), view.story.take(), view.tape.into_inner());
        for (core, parity) in if stays { Vec::new() } else { landed } {
            state.memory.core_words[core].land(parity);
        }
        state.written[rank] += written;
        if let (Some(did), false) = (did, stays) {
            state.tell(&format!("{}: ", self.who(core, op)), &did.take());
        }
        Stepped { progress, touched, tape, violation }
    }

    fn expected(&mut self, choices: &[Option<Choice>], tag: u32) -> Option<Rc<Vec<Expected>>> {
        let choices: Option<Vec<Choice>> = choices.iter().copied().collect();
        choices.map(|choices| self.oracle.expected(&self.scene.setup, &choices, tag))
    }

    /// Draws the consequences of a step. `Ok(false)`: the core is pending.
    fn conclude(&mut self, state: &mut Group, core: usize, stepped: Stepped) -> Result<bool, Violation> {
        if let Some(violation) = stepped.violation {
            return Err(violation);
        }
        match stepped.progress {
            Ok(Progress::Pending(_)) => Ok(false),
            Ok(Progress::Stepped) => Ok(true),
            Ok(Progress::Done) => self.end(state, core).map(|()| true),
            Err(error) => {
                let rank = RankId((core / self.cores()) as u32);
                Err(Violation::Refused { rank, error: error.to_string() })
            }
        }
    }

    /// Ends a core's operator; with the last core of the rank its rank has ended it.
    fn end(&mut self, state: &mut Group, core: usize) -> Result<(), Violation> {
        let rank = core / self.cores();
        let op = state.cores[core].op;
        let (kind, batch, _) = self.scene.setup.operator(op);
        state.tell(&format!("{}: ", self.who(core, op)), &["ends".to_owned()]);
        state.cores[core] = Core::new(&self.scene.setup, op + 1);
        if state.operators(&self.scene.setup)[rank] <= op {
            return Ok(());
        }
        let choices = state.round(batch).clone();
        let expected = self.expected(&choices, batch % self.scene.setup.tags);
        let of = |tensor: &&Tensor| (**tensor == Tensor::XOut) == (kind == Kind::Combine);
        let bytes = |all: Rc<Vec<Expected>>| {
            Tensor::ALL.iter().filter(of).map(|&tensor| all[rank].output(tensor).len() as u32).sum()
        };
        let expected = expected.map_or(0, bytes);
        let seen = core::mem::take(&mut state.written[rank]);
        // Without the join a core of the next operator may have written already.
        if seen != expected && self.scene.setup.model.twin != Twin::NoJoin {
            return Err(Violation::Incomplete { rank: RankId(rank as u32), seen, expected });
        }
        state.memory.forget_received(&self.scene, rank, op);
        state.retire(&self.scene.setup);
        Ok(())
    }

    fn who(&self, core: usize, op: u32) -> String {
        let (rank, core) = (core / self.cores(), core % self.cores());
        let core = if self.cores() > 1 { format!(" core {core}") } else { String::new() };
        format!("rank {rank}{core}, {}", self.scene.setup.named(op))
    }

    /// A move in words, but for what a core does, which it tells itself.
    pub(super) fn tell(&self, state: &mut Group, what: Move) {
        let setup = &self.scene.setup;
        let line = match what {
            Move::Core(_) => return,
            Move::Agent(rank) => {
                let op = state.memory.posted[rank] / (setup.model.ranks - 1).max(1);
                format!("agent of rank {rank}: posts a window of {}", setup.named(op))
            }
            Move::Arrive(i) => {
                let flying = &state.memory.flying[i];
                let (from, to, op) = (flying.from, flying.to, setup.named(flying.op));
                let (done, len) = (flying.done, flying.len);
                format!("arrives at rank {to}: the window of rank {from}, {op}, from byte {done} of {len} on")
            }
            Move::Land(core, i) => {
                let late = &state.memory.late[core][i];
                let (start, len) = (late.start, late.bytes.len());
                format!(
                    "lands: {len} bytes of {:?}, from byte {start} on, of {}",
                    late.spot,
                    self.who(core, late.op)
                )
            }
            Move::LandWord(core, _) => {
                format!("lands: the barrier word of {}", self.who(core, state.cores[core].op))
            }
            Move::LandFlip(rank) => format!("lands: bufferChosen of rank {rank}"),
        };
        if let Some(story) = &mut state.story {
            story.push(line);
        }
    }

    /// The step that went wrong.
    pub(super) fn tell_last(&self, state: &mut Group, core: usize) {
        let op = state.cores[core].op;
        state.tell(&format!("{}: ", self.who(core, op)), &["goes on".to_owned()]);
    }

    /// What the cores wait for, if nobody can move.
    pub(super) fn tell_waits(&mut self, state: &Group, events: &mut Vec<String>) {
        for (i, core) in state.cores.iter().enumerate() {
            if core.phase != Phase::Between
                && let Some(wait) = self.waits_for(state, i)
            {
                events.push(format!("{}: {wait}", self.who(i, core.op)));
            }
        }
    }
}
