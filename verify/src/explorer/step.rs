//! Moves: one core takes a step that others can see, or one effect lands; then everybody takes the steps that
//! nobody else can see.

use super::fabric::{View, land, may_land};
use super::model::{Choice, Kind, Memory, Setup, Twin};
use super::oracle::{Expected, Oracle, RankTensors};
use super::phase::Phase;
use super::state::{Core, Interner, Shared, State};
use super::tape::{Tape, settled, ways};
use super::violation::Violation;
use core::cell::{Cell, RefCell};
use kernel_core::fabric::{Progress, ProtocolError, Wait};
use kernel_core::place::Tensor;
use kernel_core::protocol::{Receive, Ub};
use kernel_core::units::RankId;
use std::collections::HashMap;
use std::rc::Rc;

/// What a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// A core, by its number in the group.
    Step(usize),
    /// An effect, by its place in the flight.
    Land(usize),
}

/// Everything that grows while a model is explored, but the states.
pub(super) struct Known<'a> {
    pub(super) setup: Setup<'a>,
    pub(super) interner: Interner,
    pub(super) oracle: Oracle,
    tensors: HashMap<(u32, u32, Choice), Rc<RankTensors>>,
}

/// A successor, or why there must be none.
pub(super) type Next = Result<State, Violation>;

/// What a step of a core came to.
struct Stepped {
    progress: Result<Progress, ProtocolError>,
    touched: bool,
    tape: Tape<()>,
    violation: Option<Violation>,
}

impl<'a> Known<'a> {
    pub(super) fn new(setup: Setup<'a>) -> Self {
        Self { setup, interner: Interner::default(), oracle: Oracle::default(), tensors: HashMap::new() }
    }

    /// All initial states: the first rounds' traffic is chosen.
    pub(super) fn initial(&mut self, logged: bool) -> Vec<Next> {
        let mut state = State::new(&self.setup);
        state.log = logged.then(Vec::new);
        self.settle(state)
    }

    /// All moves that are possible in `state`, in a fixed order.
    pub(super) fn moves(&self, state: &State) -> Vec<Move> {
        let explicit = self.setup.model.memory == Memory::WeakExplicit;
        let flight = 0..if explicit { state.shared.flight.len() } else { 0 };
        let twin = self.setup.model.twin;
        let landings = flight.filter(|&i| may_land(&state.shared.flight, i, twin)).map(Move::Land);
        let running = |i: &usize| state.cores[*i].phase != Phase::Between;
        (0..state.cores.len()).filter(running).map(Move::Step).chain(landings).collect()
    }

    /// What a move leads to: no state if the core is pending, several if a rank chooses new traffic or if the core looks
    /// at what has perhaps landed.
    pub(super) fn after(&mut self, state: &State, what: Move) -> Vec<Next> {
        let core = match what {
            Move::Step(core) => core,
            Move::Land(i) => {
                let mut next = state.clone();
                let effect = next.shared.flight.remove(i);
                return match land(&mut next.shared, &mut self.interner, &effect) {
                    Some(violation) => vec![Err(violation)],
                    None => self.settle(next),
                };
            }
        };
        let step = |given| {
            let mut next = state.clone();
            let stepped = self.step(&mut next, core, given, false);
            let tape = stepped.tape.clone();
            let moved = match self.conclude(&mut next, core, stepped) {
                Ok(false) if self.setup.model.twin == Twin::PollsByStepping => {
                    next.cores[core].polled ^= true;
                    Ok(true)
                }
                // It waits on, but what it has seen stays landed.
                Ok(false) => Ok(next.shared.flight.len() < state.shared.flight.len()),
                moved => moved,
            };
            (tape, moved.map(|moved| moved.then_some(next)).transpose())
        };
        let nexts = ways(step).into_iter().map(|(_, next)| next);
        settled(nexts, |next| self.settle(next))
    }

    /// What a core waits for; `None` if it can move.
    pub(super) fn waits_for(&mut self, state: &State, i: usize) -> Option<Wait> {
        match self.step(&mut state.clone(), i, Vec::new(), false).progress {
            Ok(Progress::Pending(wait)) => Some(wait),
            _ => None,
        }
    }

    /// Takes every step that nobody else can see, and begins operators; branches where a rank chooses traffic.
    fn settle(&mut self, state: State) -> Vec<Next> {
        let mut open = vec![state];
        let mut settled = Vec::new();
        'states: while let Some(mut state) = open.pop() {
            let mut i = 0;
            while i < state.cores.len() {
                if state.cores[i].phase == Phase::Between {
                    if self.may_begin(&state, i) {
                        open.extend(self.begin(&state, i));
                        continue 'states;
                    }
                    i += 1;
                    continue;
                }
                let before = (state.cores[i].clone(), state.written.clone());
                let stepped = self.step(&mut state, i, Vec::new(), true);
                if stepped.touched || matches!(stepped.progress, Ok(Progress::Pending(_))) {
                    (state.cores[i], state.written) = before;
                    i += 1;
                    continue;
                }
                match self.conclude(&mut state, i, stepped) {
                    // The end of an operator may let a core before this one begin.
                    Ok(_) => i = if state.cores[i].phase == Phase::Between { 0 } else { i },
                    Err(violation) => {
                        settled.push(Err(violation));
                        continue 'states;
                    }
                }
            }
            settled.push(Ok(state));
        }
        settled
    }

    fn may_begin(&self, state: &State, i: usize) -> bool {
        let core = &state.cores[i];
        if self.setup.ended(core.op) {
            return false;
        }
        let cores = self.setup.model.cores as usize;
        let rank = i / cores;
        let mut others = state.cores[rank * cores..][..cores].iter();
        let first = &state.cores[rank * cores];
        let begun = first.op == core.op && matches!(first.phase, Phase::Runs(_));
        let has_experts = self.setup.operator(core.op).0 == Kind::Combine && i != rank * cores;
        if has_experts && self.setup.model.receive != Receive::Copy && !begun && first.op <= core.op {
            return false;
        }
        // The join: all cores of the rank have ended the operator before.
        self.setup.model.twin == Twin::NoJoin || others.all(|other| other.op >= core.op)
    }

    /// Begins a core's next operator; with it, its rank may choose its traffic.
    fn begin(&mut self, state: &State, i: usize) -> Vec<State> {
        let rank = i / self.setup.model.cores as usize;
        let (kind, batch, _) = self.setup.operator(state.cores[i].op);
        let mut state = state.clone();
        // Experts run as late as may be.
        let experts = kind == Kind::Combine
            && self.setup.model.receive != Receive::Copy
            && i.is_multiple_of(self.setup.model.cores as usize);
        state.cores[i].phase = if experts { Phase::Experts } else { self.setup.begin(kind) };
        if state.round(&self.setup, batch).choices[rank].is_some() {
            return vec![state];
        }
        let choices = self.setup.choices(rank as u32).into_iter();
        choices
            .map(|choice| {
                let mut state = state.clone();
                state.round(&self.setup, batch).choices[rank] = Some(choice);
                state
            })
            .collect()
    }

    /// Steps a core's machine once.
    fn step(&mut self, state: &mut State, i: usize, given: Vec<bool>, peek: bool) -> Stepped {
        let rank = (i / self.setup.model.cores as usize) as u32;
        let (kind, batch, nth) = self.setup.operator(state.cores[i].op);
        let tag = batch % self.setup.tags;
        let choices = state.round(&self.setup, batch).choices.clone();
        let own = choices[rank as usize].unwrap_or_default();
        let expected = self.expected(&choices, tag);
        let tensors = self
            .tensors
            .entry((rank, tag, own))
            .or_insert_with(|| Rc::new(RankTensors::new(&self.setup, rank, tag, own)))
            .clone();
        let State { cores, shared, written, .. } = state;
        let Core { phase, ub, row, sent, .. } = &mut cores[i];
        let before = phase.clone();
        // No more than the machines ask for.
        let mut scratch = vec![0; self.setup.ub_bytes];
        scratch[..row.len()].copy_from_slice(row);
        let ub = Ub { words: &mut ub[..self.setup.ub_words], row: &mut scratch };
        let mut view = View {
            setup: &self.setup,
            shared: RefCell::new(shared),
            interner: &mut self.interner,
            rank: RankId(rank),
            core: kernel_core::units::CoreId(i as u32 % self.setup.model.cores),
            kind,
            nth,
            expected: expected.clone(),
            peek,
            sent: *sent,
            touched: Cell::new(false),
            tape: RefCell::new(Tape::new(given)),
            block_seen: Cell::new(None),
            read_rows: RefCell::default(),
            written: 0,
            violation: RefCell::default(),
        };
        let progress = if *phase == Phase::Experts {
            *phase = self.setup.begin(Kind::Combine);
            view.experts().map(|()| Progress::Stepped).map_err(ProtocolError::from)
        } else {
            let own = expected.as_ref().map(|all| &all[rank as usize]);
            self.setup.step(i, phase, &mut view, &tensors.inputs(), own, ub)
        };
        let staged = row.len();
        row.copy_from_slice(&scratch[..staged]);
        let moved = *phase != before;
        if matches!(progress, Ok(Progress::Stepped)) && !moved
            || matches!(progress, Ok(Progress::Pending(_))) && moved
        {
            view.blame(Violation::Misreported { rank: RankId(rank) });
        }
        let (touched, violation) = (view.touched.get(), view.violation.take());
        *sent = view.sent;
        written[rank as usize] += view.written;
        let read = view.read_rows.take();
        let View { shared, tape, .. } = view;
        consume(shared.into_inner(), &read);
        Stepped { progress, touched, tape: tape.into_inner(), violation }
    }

    fn expected(&mut self, choices: &[Option<Choice>], tag: u32) -> Option<Rc<Vec<Expected>>> {
        let choices: Option<Vec<Choice>> = choices.iter().copied().collect();
        choices.map(|choices| self.oracle.expected(&self.setup, &choices, tag))
    }

    /// Draws the consequences of a step. `Ok(false)`: the core is pending.
    fn conclude(&mut self, state: &mut State, i: usize, stepped: Stepped) -> Result<bool, Violation> {
        let rank = RankId((i / self.setup.model.cores as usize) as u32);
        if let Some(log) = &mut state.log
            && !matches!(stepped.progress, Ok(Progress::Pending(_)))
        {
            log.push(i);
        }
        if let Some(violation) = stepped.violation {
            return Err(violation);
        }
        match stepped.progress {
            Ok(Progress::Pending(_)) => Ok(false),
            Ok(Progress::Stepped) => Ok(true),
            Ok(Progress::Done) => self.end(state, i).map(|()| true),
            Err(error) => Err(Violation::Refused { rank, error: error.to_string() }),
        }
    }

    /// Ends a core's operator; the last core of the rank answers for its outputs.
    fn end(&mut self, state: &mut State, i: usize) -> Result<(), Violation> {
        let cores = self.setup.model.cores as usize;
        let rank = i / cores;
        let op = state.cores[i].op;
        let (kind, batch, _) = self.setup.operator(op);
        state.cores[i] = Core {
            phase: Phase::Between,
            op: op + 1,
            ub: Default::default(),
            row: vec![0; self.setup.staged_bytes],
            sent: state.cores[i].sent,
            polled: false,
        };
        if state.cores[rank * cores..][..cores].iter().all(|core| core.op > op) {
            let seen = core::mem::take(&mut state.written[rank]);
            let choices = state.round(&self.setup, batch).choices.clone();
            let tag = batch % self.setup.tags;
            let expected = self.expected(&choices, tag).map_or(0, |all| bytes_of(&all[rank], kind));
            // Without the join a core of the next operator may have written already.
            if seen != expected && self.setup.model.twin != Twin::NoJoin {
                return Err(Violation::Incomplete { rank: RankId(rank as u32), seen, expected });
            }
        }
        if kind == Kind::Combine {
            state.round(&self.setup, batch).ended += 1;
            state.retire(&self.setup);
        }
        Ok(())
    }
}

/// Forgets rows that have been read for the last time.
fn consume(shared: &mut Shared, read: &[u16]) {
    read.iter().for_each(|&place| shared.set_row(place, None));
}

/// Output bytes of an operator.
fn bytes_of(expected: &Expected, kind: Kind) -> u32 {
    let of = |tensor: &&Tensor| (**tensor == Tensor::XOut) == (kind == Kind::Combine);
    Tensor::ALL.iter().filter(of).map(|&tensor| expected.output(tensor).len() as u32).sum()
}
