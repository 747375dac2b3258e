//! Moves: one core takes a step that others can see, or something happens in the memory; then all cores take the steps that
//! no other core can see.

use super::numbers::Numbers;
use super::oracle::{Expected, Oracle, RankTensors};
use super::phase::{At, Phase};
use super::protocol::{Explored, Outcome, Protocol, View, who};
use super::setup::{Choice, OPEN, Setup};
use super::state::{Core, Local, Round, State, StateOf, Story};
use super::step::{Account, Findings, Search, Standing, Step, StepOf};
use super::story::{Line, Told, Who};
use super::tape::Tape;
use super::violation::Violation;
use super::witness::Witness;
use core::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use veriep_core::fabric::Progress;
use veriep_core::place::Tensor;
use veriep_core::protocol::{Operator, Scratch};
use veriep_core::sim::order::Half;
use veriep_core::units::{CoreId, RankId};

#[derive(Clone, Copy, Debug)]
pub(super) enum Move<E> {
    /// A step of a core, by its number in the group.
    Core(usize),
    /// Something that happens in the memory.
    Event(E),
}

/// Everything that grows while a model is explored, but the states.
pub(super) struct Known<'a, P: Protocol> {
    pub(super) setup: &'a Setup<'a>,
    pub(super) protocol: P,
    pub(super) oracle: Oracle,
    /// What machines of cores hold, by number.
    locals: Numbers<Local>,
    /// The state of the core that steps, kept here so that a step allocates nothing for it.
    local: Local,
    /// States that are not needed any more, for copies of others.
    spare: Vec<Box<StateOf<P>>>,
    tensors: HashMap<(u32, u32, Choice), Rc<RankTensors>>,
    /// What must never happen, with the stories that ended in it, while one is told.
    pub(super) failures: Vec<(Violation, Story)>,
}

/// A successor, or why there must be none.
pub(super) type Next<P> = Result<Box<StateOf<P>>, Violation>;

pub(super) type Found<P> = (Move<<P as Protocol>::Event>, Vec<Next<P>>);

/// How a core steps.
#[derive(Default)]
pub(super) struct Ask {
    /// What of the effects in flight has landed.
    pub(super) given: Vec<bool>,
    /// Whether accesses whose outcome depends on others are refused.
    pub(super) peek: bool,
}

impl<'a, P: Explored> Known<'a, P> {
    pub(super) fn new(setup: &'a Setup<'a>, protocol: P) -> Self {
        let (mut locals, oracle) = (Numbers::default(), Oracle::default());
        let (words, row) = (vec![0; setup.scratch_words], vec![0; setup.staged_bytes]);
        let local = Local { phase: Phase::Between, words, row };
        locals.number(&local);
        let (spare, tensors, failures) = (Vec::new(), HashMap::new(), Vec::new());
        Self { setup, protocol, oracle, locals, local, spare, tensors, failures }
    }

    /// A copy of a state.
    pub(super) fn copy(&mut self, state: &StateOf<P>) -> Box<StateOf<P>> {
        let Some(mut copy) = self.spare.pop() else { return Box::new(state.clone()) };
        State::clone_from(&mut copy, state);
        copy
    }

    /// Takes a state that is not needed any more.
    pub(super) fn give_back(&mut self, state: Box<StateOf<P>>) {
        self.spare.push(state);
    }

    pub(super) fn cores(&self) -> usize {
        self.setup.model.cores as usize
    }

    /// All initial states: the first rounds' traffic is chosen.
    pub(super) fn initial(&mut self, told: bool) -> Vec<Next<P>> {
        let first = State::new(self.setup, self.protocol.memory(), told);
        let mut settled = Vec::new();
        self.settle(Box::new(first), u32::MAX, &mut settled);
        settled
    }

    /// What a move leads to: nothing if the mover waits, several states if a rank chooses new traffic or if a core looks at
    /// what has perhaps landed.
    pub(super) fn after(&mut self, state: &StateOf<P>, what: Move<P::Event>) -> Vec<Next<P>> {
        match what {
            Move::Core(core) => {
                let (ways, _) = self.ways(state, core);
                self.settled(state, ways, Some(core))
            }
            Move::Event(event) => {
                let mut next = self.copy(state);
                let happened = self.protocol.apply(&mut next, event);
                let happened = happened.and_then(|happened| next.refines().map(|()| happened));
                let next = happened.map(|happened| happened.then_some(next)).transpose();
                self.settled(state, next.into_iter().collect(), None)
            }
        }
    }

    /// What settling makes of each successor of a state; trouble stays what it is. `moved` is the core that has moved.
    pub(super) fn settled(
        &mut self,
        state: &StateOf<P>,
        ways: Vec<Next<P>>,
        moved: Option<usize>,
    ) -> Vec<Next<P>> {
        let mut settled = Vec::with_capacity(ways.len());
        for way in ways {
            match way {
                Ok(next) => {
                    let stirred = self.protocol.woken_by(&state.memory, &next.memory, moved);
                    self.settle(next, stirred, &mut settled);
                }
                Err(violation) => settled.push(Err(violation)),
            }
        }
        settled
    }

    /// Tells what each core waits for.
    pub(super) fn tell_waits(&mut self, state: &mut StateOf<P>) {
        for core in (0..state.cores.len()).filter(|&core| state.cores[core].local != 0).collect::<Vec<_>>() {
            let (came, _) = self.step(&mut state.clone(), core, &Ask::default(), None);
            if let (Ok(Progress::Pending(wait)), Some(story)) = (came, &mut state.story) {
                let who = who(self.setup, core, self.setup.part_at(core, state.cores[core].op).planned);
                story.events.push(Line { who, did: vec![Told::of(wait.to_string())] });
            }
        }
    }

    /// Takes every step of the cores that are `stirred` which no other core can see, and begins operators; branches where
    /// traffic is chosen. What comes of it is added to `settled`.
    fn settle(&mut self, state: Box<StateOf<P>>, stirred: u32, settled: &mut Vec<Next<P>>) {
        let all = self.cores();
        let supposing = self.protocol.supposes();
        let (mut next, mut open) = (Some((state, stirred)), Vec::new());
        'states: while let Some((mut state, mut stirred)) = next.take().or_else(|| open.pop()) {
            let mut core = 0;
            while core < state.cores.len() {
                let is_between = state.cores[core].local == 0;
                if is_between && self.may_begin(&state, core) {
                    let stirred = stirred | self.setup.cores_beside(core);
                    open.extend(self.begin(&state, core).into_iter().map(|state| (state, stirred)));
                    continue 'states;
                }
                if is_between || stirred >> core & 1 == 0 {
                    core += 1;
                    continue;
                }
                let alone = |came: &Outcome| match came {
                    Ok(Progress::Pending(_)) => false,
                    Ok(Progress::Done) => !P::ENDS_ARE_MOVES,
                    Ok(Progress::Stepped) | Err(_) => true,
                };
                let before = (state.cores[core].clone(), state.written[core / all], state.story.clone());
                let ask = Ask { given: Vec::new(), peek: true };
                let attempt = self.attempt(&mut state, core, &ask, supposing);
                let Some((came, step)) =
                    attempt.filter(|(came, step)| !step.search.touched.get() && alone(came))
                else {
                    (state.cores[core], state.written[core / all], state.story) = before;
                    core += 1;
                    continue;
                };
                if let Err(violation) = self.conclude(&mut state, core, came, step.found) {
                    settled.push(Err(violation));
                    continue 'states;
                }
                // The end of an operator may let a core before this one begin.
                if state.cores[core].local == 0 {
                    stirred |= self.setup.cores_beside(core);
                    core = 0;
                }
            }
            let refines = self.protocol.settle(&mut state).and_then(|()| state.refines());
            self.note_failure(&refines, &state);
            settled.push(refines.map(|()| state));
        }
    }

    fn may_begin(&self, state: &StateOf<P>, core: usize) -> bool {
        let (of, op) = (core / self.cores(), state.cores[core].op);
        if self.setup.ended(of, op) {
            return false;
        }
        let first = of * self.cores();
        let rank = &state.cores[first..][..self.cores()];
        if core != first && self.setup.has_experts(self.setup.part(of, op)) {
            // They run on the first core.
            let phase = &self.locals.get(rank[0].local).phase;
            if rank[0].op <= op && !(rank[0].op == op && matches!(phase, Phase::Runs(_))) {
                return false;
            }
        }
        // The join: all cores of the rank have ended the operator before.
        !self.setup.model.defect.joins() || rank.iter().all(|other| other.op >= op)
    }

    /// Begins a core's next operator; with it, traffic may be chosen.
    fn begin(&mut self, state: &StateOf<P>, core: usize) -> Vec<Box<StateOf<P>>> {
        let (setup, rank, op) = (self.setup, core / self.cores(), state.cores[core].op);
        let part = setup.part(rank, op);
        let batch = part.batch();
        let mut state = self.copy(state);
        state.note_begin(setup, rank, op);
        // Experts run as late as may be.
        let experts = setup.has_experts(part) && core.is_multiple_of(self.cores());
        let idle = Local::clone(self.locals.get(0));
        let local = match part.planned.half {
            Half::Receive => self.resumed(&mut state, core, part.place),
            _ if experts => Local { phase: Phase::Experts { moves: 0 }, ..idle },
            _ => Local { phase: setup.begin(core, part.operator()), ..idle },
        };
        state.cores[core].local = self.locals.number(&local);
        let choices = state.round(batch).choices.clone();
        if choices[rank].is_some() {
            return vec![state];
        }
        let number = (core % self.cores()) as u32;
        let named =
            |choice: &Choice| choice.map_or_else(|| "no expert".to_owned(), |e| format!("expert {e}"));
        let mut with = |choices: Vec<Option<Choice>>, who: Who, to: String| {
            let mut state = state.clone();
            let (all, tag) = (choices.iter().copied().collect::<Option<Vec<Choice>>>(), batch % setup.tags);
            let expected = all.map(|all| self.oracle.expected(setup, &all, tag));
            let mut tensors = |(rank, choice): (u32, &Option<Choice>)| {
                let choice = choice.unwrap_or_default();
                let known = self.tensors.entry((rank, tag, choice));
                Rc::clone(known.or_insert_with(|| Rc::new(RankTensors::new(setup, rank, tag, choice))))
            };
            let tensors = (0..).zip(&choices).map(&mut tensors).collect();
            *state.round(batch) = Rc::new(Round { choices, tensors, expected });
            state.tell(who, &[Told::of(to)]);
            state
        };
        // A rank writes outputs before its TP peer's domain need have begun.
        if P::CHOOSES_AT_ONCE || setup.model.tp {
            let one = |matrix: Vec<Choice>| {
                let expert = |first: &Choice| first.map_or_else(|| "none".to_owned(), |e| e.to_string());
                let to: Vec<_> = matrix.iter().map(expert).collect();
                let to = format!("the ranks' tokens go to experts {}", to.join(", "));
                let who = Who { words: format!("round {batch} begins: "), ..Who::default() };
                with(matrix.into_iter().map(Some).collect(), who, to)
            };
            return setup.matrices().into_iter().map(one).collect();
        }
        let one = |choice: Choice| {
            let mut choices = choices.clone();
            choices[rank] = Some(choice);
            let to = format!("sends to {}", named(&choice));
            let words = format!("rank {rank} begins round {batch}: ");
            with(choices, Who { words, rank: Some(rank as u32), core: Some(number) }, to)
        };
        // In the first round no rank is behind.
        let is_late = batch > 0 && choices[..rank].iter().any(Option::is_some);
        let is_idle = setup.model.defect.idles_late_ranks() && is_late;
        let allowed = |choice: &Choice| !is_idle || choice.is_none();
        setup.choices(rank as u32).into_iter().filter(allowed).map(one).collect()
    }

    /// Takes the machine of a core that began as number `place` of those set aside.
    fn resumed(&self, state: &mut StateOf<P>, core: usize, place: usize) -> Local {
        let open = &mut state.cores[core].open;
        let mut local = Local::clone(self.locals.get(open[place]));
        open[place..].rotate_left(1);
        open[OPEN - 1] = 0;
        if let Phase::Sent { machine, written } = local.phase {
            state.written[core / self.cores()] += written;
            local.phase = Phase::Resumes(machine);
        }
        local
    }

    /// Sets the machine of a core aside that has sent, with what its rank has `written`.
    fn set_aside(&mut self, state: &mut StateOf<P>, core: usize, written: u32) {
        let Core { local, mut open, .. } = state.cores[core].clone();
        let mut local = Local::clone(self.locals.get(local));
        if let Phase::Runs(machine) = local.phase {
            local.phase = Phase::Sent { machine, written };
        }
        let free = open.iter().position(|&open| open == 0).unwrap_or(OPEN - 1);
        open[free] = self.locals.number(&local);
        state.cores[core].open = open;
    }

    /// Steps a core's machine once. Words that count operators are read as so much further on as `ahead` says.
    pub(super) fn step(
        &mut self,
        state: &mut StateOf<P>,
        core: usize,
        ask: &Ask,
        ahead: Option<Vec<u32>>,
    ) -> (Outcome, StepOf<P>) {
        let (setup, operators) = (self.setup, self.setup.numbers(state.parts()));
        let (rank, number) = (core / self.cores(), core % self.cores());
        let Core { local, op, .. } = state.cores[core];
        let part = setup.part(rank, op);
        let round = Rc::clone(state.round(part.batch()));
        let known = Rc::clone(self.locals.get(local));
        let Local { phase, words, row } = &mut self.local;
        phase.clone_from(&known.phase);
        words.clone_from(&known.words);
        row.clone_from(&known.row);
        let staged = row.len();
        // No more than the machines ask for.
        row.resize(setup.scratch_bytes, 0);
        let at = Standing {
            rank: RankId(rank as u32),
            core: CoreId(number as u32),
            op: part.number,
            operator: part.operator(),
            nth: part.nth,
            operators,
            round: Rc::clone(&round),
            withdrawn: state.withdrawn(),
        };
        let tape = RefCell::new(Tape::new(ask.given.clone()));
        let search = Search { peek: ask.peek, ahead, tape, ..Search::default() };
        let (found, account) = (Findings::default(), Account::new(state.story.is_some()));
        let step = Step { at, search, found, account };
        let expected = round.expected.as_ref().map(|all| &all[rank]);
        let inputs = round.tensors[rank].inputs();
        let mut run = |view: &mut dyn View| {
            let scratch = Scratch { words, row };
            setup.step(At { core, half: part.planned.half }, phase, view, &inputs, expected, scratch)
        };
        let calls = setup.witness().map_or(0, Witness::calls);
        let own = &mut state.cores[core].own;
        let (came, step) = self.protocol.step(&mut state.memory, own, step, &mut run);
        // Two roles of the hierarchy count their records in the scratch.
        let Local { phase, words, row } = &mut self.local;
        let moved = (&*phase, &*words) != (&known.phase, &known.words);
        let stays = matches!(came, Ok(Progress::Pending(_)));
        // For an effect without room a step may have prepared a row or its plan.
        let changed = moved && !setup.model.busy;
        if matches!(came, Ok(Progress::Stepped)) && !moved || stays && changed {
            step.found.blame(Violation::Misreported { rank: step.at.rank });
        }
        row.truncate(staged);
        if moved || *row != known.row {
            state.cores[core].local = self.locals.number(&self.local);
        }
        state.written[rank] += step.found.written;
        if let (Some(did), false) = (step.account.told(), stays) {
            state.tell(who(setup, core, part.planned), &did);
        }
        let ended = matches!(came, Ok(Progress::Done));
        self.protocol.note(state, setup.actor(core), part, calls, ended);
        (came, step)
    }

    /// Keeps the story of a state that must not be, while one is told.
    fn note_failure<T>(&mut self, what: &Result<T, Violation>, state: &StateOf<P>) {
        if let (Err(violation), Some(story)) = (what, &state.story) {
            self.failures.push((violation.clone(), story.clone()));
        }
    }

    /// Draws the consequences of a step. `Ok(false)`: the core is pending.
    pub(super) fn conclude(
        &mut self,
        state: &mut StateOf<P>,
        core: usize,
        came: Outcome,
        found: Findings,
    ) -> Result<bool, Violation> {
        let moved = self.draw(state, core, came, found);
        self.note_failure(&moved, state);
        moved
    }

    fn draw(
        &mut self,
        state: &mut StateOf<P>,
        core: usize,
        came: Outcome,
        found: Findings,
    ) -> Result<bool, Violation> {
        if !matches!(came, Ok(Progress::Pending(_))) {
            state.story.iter_mut().for_each(|story| story.steps.push(core));
        }
        // First by the theorem's model, where it is asked.
        state.note(self.setup, found.noted.into_inner());
        state.refines()?;
        if let Some(violation) = found.violation.into_inner() {
            return Err(violation);
        }
        match came {
            Ok(Progress::Pending(_)) => Ok(false),
            Ok(Progress::Stepped) => Ok(true),
            Ok(Progress::Done) => self.end(state, core).map(|()| true),
            Err(error) => {
                let rank = RankId((core / self.cores()) as u32);
                Err(Violation::Refused { rank, error: error.to_string() })
            }
        }
    }

    /// Ends a core's operator; the last core of the rank answers for its outputs.
    fn end(&mut self, state: &mut StateOf<P>, core: usize) -> Result<(), Violation> {
        let (rank, op) = (core / self.cores(), state.cores[core].op);
        let part = self.setup.part(rank, op);
        if state.story.is_some() {
            let ends = if part.planned.ends() { "ends" } else { "has sent" };
            state.tell(who(self.setup, core, part.planned), &[Told::of(ends)]);
        }
        let beside = &state.cores[rank * self.cores()..][..self.cores()];
        let is_last = beside.iter().filter(|other| other.op <= op).count() == 1;
        let seen = if is_last { core::mem::take(&mut state.written[rank]) } else { 0 };
        if !part.planned.ends() {
            self.set_aside(state, core, seen);
        }
        let Core { own, open, .. } = state.cores[core].clone();
        state.cores[core] = Core { local: 0, op: op + 1, open, polled: false, own };
        if !is_last || !part.planned.ends() {
            return Ok(());
        }
        let operator = part.operator();
        let expected =
            state.round(part.batch()).expected.as_ref().map_or(0, |all| bytes_of(&all[rank], operator));
        let rank_id = RankId(rank as u32);
        // Without the join a core of the next operator may have written already.
        if seen != expected && self.setup.model.defect.joins() {
            return Err(Violation::Incomplete { rank: rank_id, seen, expected });
        }
        state.note_end(self.setup, rank, op);
        state.refines()?;
        self.protocol.ended(state, rank, part.number).map_or(Ok(()), Err)?;
        state.retire(self.setup);
        state.forget_facts(self.setup);
        state.refines()
    }
}

/// Output bytes of an operator.
fn bytes_of(expected: &Expected, operator: Operator) -> u32 {
    let of = |tensor: &&Tensor| (**tensor == Tensor::XOut) == (operator == Operator::Combine);
    Tensor::ALL.iter().filter(of).map(|&tensor| expected.output(tensor).len() as u32).sum()
}
