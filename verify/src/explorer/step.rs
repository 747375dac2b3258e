//! Moves: one core takes a step that others can see, or something happens in the memory; then everybody takes the steps that
//! nobody else can see.

use super::model::{Choice, Setup, Twin};
use super::oracle::{Expected, Oracle, RankTensors};
use super::phase::Phase;
use super::protocol::{Came, Protocol, Step, StepOf, View, who};
use super::state::{Core, Local, Locals, Round, State, StateOf};
use super::tape::{Tape, settled, ways, with_fewest_landings};
use super::violation::Violation;
use core::cell::RefCell;
use core::mem::discriminant;
use kernel_core::fabric::Progress;
use kernel_core::place::Tensor;
use kernel_core::protocol::{Operator, Ub};
use kernel_core::units::{CoreId, RankId};
use std::collections::HashMap;
use std::rc::Rc;

/// What a move is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Move<E> {
    /// A step of a core, by its number in the group.
    Core(usize),
    /// Something that happens in the memory.
    Event(E),
}

/// Everything that grows while a model is explored, but the states.
pub(super) struct Known<'a, P> {
    pub(super) setup: &'a Setup<'a>,
    pub(super) protocol: P,
    pub(super) oracle: Oracle,
    locals: Locals,
    tensors: HashMap<(u32, u32, Choice), Rc<RankTensors>>,
}

/// A successor, or why there must be none.
pub(super) type Next<P> = Result<StateOf<P>, Violation>;

/// A move and its successors.
pub(super) type Found<P> = (Move<<P as Protocol>::Event>, Vec<Next<P>>);

/// What a core can do: its number, and where each way through its step leads.
type Ways<P> = (usize, Vec<Next<P>>);

/// How a core steps.
#[derive(Default)]
struct Ask {
    /// What of the effects in flight has landed.
    given: Vec<bool>,
    /// Whether accesses whose outcome depends on others are refused.
    peek: bool,
}

impl<'a, P: Protocol> Known<'a, P> {
    pub(super) fn new(setup: &'a Setup<'a>, protocol: P) -> Self {
        let (locals, oracle) = (Locals::new(setup), Oracle::default());
        Self { setup, protocol, oracle, locals, tensors: HashMap::new() }
    }

    fn cores(&self) -> usize {
        self.setup.model.cores as usize
    }

    /// All initial states: the first rounds' traffic is chosen.
    pub(super) fn initial(&mut self, told: bool) -> Vec<Next<P>> {
        let first = State::new(self.setup, self.protocol.memory(), told);
        self.settle(first, None)
    }

    /// The moves that must be tried: steps of some ranks, such that no other can change what these look at now, and all that
    /// can happen in the memory.
    pub(super) fn expand(&mut self, state: &StateOf<P>) -> Vec<Found<P>> {
        let ranks = state.written.len();
        // By rank: what its cores can do, and the ranks that can change what it looks at.
        let mut of_rank: Vec<(Vec<Ways<P>>, u32)> = Vec::new();
        for rank in 0..ranks {
            let (mut all, mut by) = (Vec::new(), 1 << rank);
            for core in rank * self.cores()..(rank + 1) * self.cores() {
                if state.cores[core].local != 0 {
                    let (ways, open) = self.ways(state, core);
                    by |= open;
                    all.push((core, ways));
                }
            }
            of_rank.push((all, by));
        }
        let closed = |rank: usize| {
            let mut set = 1_u32 << rank;
            loop {
                let members = of_rank.iter().enumerate().filter(|(rank, _)| set >> rank & 1 == 1);
                let number = |all: &[Ways<P>]| all.iter().map(|(_, ways)| ways.len()).sum::<usize>();
                let (count, by) =
                    members.fold((0, set), |(count, by), (_, (all, open))| (count + number(all), by | open));
                if by == set {
                    return (count, set);
                }
                set = by;
            }
        };
        let fewest = || (0..ranks).map(closed).filter(|(count, _)| *count > 0).min();
        let set = if self.protocol.moves_few() { fewest().map_or(0, |(_, set)| set) } else { u32::MAX };
        let chosen = of_rank.into_iter().enumerate().filter(|(rank, _)| set >> rank & 1 == 1);
        let ways = chosen.flat_map(|(_, (all, _))| all);
        let mut found: Vec<_> =
            ways.map(|(core, ways)| (Move::Core(core), self.settled(ways, Some(core)))).collect();
        for event in self.protocol.events(state) {
            found.push((Move::Event(event), self.after(state, Move::Event(event))));
        }
        found
    }

    /// What a move leads to: nothing if the mover waits, several states if a rank chooses new traffic or if a core looks at
    /// what has perhaps landed.
    pub(super) fn after(&mut self, state: &StateOf<P>, what: Move<P::Event>) -> Vec<Next<P>> {
        match what {
            Move::Core(core) => {
                let (ways, _) = self.ways(state, core);
                self.settled(ways, Some(core))
            }
            Move::Event(event) => {
                let mut next = state.clone();
                let happened = self.protocol.happen(&mut next, event);
                let next = happened.map(|happened| happened.then_some(next)).transpose();
                self.settled(next.into_iter().collect(), None)
            }
        }
    }

    fn settled(&mut self, ways: Vec<Next<P>>, moved: Option<usize>) -> Vec<Next<P>> {
        settled(ways, |next| self.settle(next, moved))
    }

    /// All steps that a core can take now, and the ranks that can still change what it sees, as bits.
    fn ways(&mut self, state: &StateOf<P>, core: usize) -> (Vec<Next<P>>, u32) {
        let polls = self.setup.model.twin == Twin::PollsByStepping;
        for supposing in [self.protocol.supposes(), false] {
            let (mut open, mut holds) = (0, true);
            let step = |given: Vec<bool>| {
                let (mut next, ask) = (state.clone(), Ask { given, peek: false });
                let Some((came, step)) = self.attempt(&mut next, core, &ask, supposing) else {
                    holds = false;
                    return (Tape::new(ask.given), None);
                };
                open |= step.open.get();
                let tape = step.tape.into_inner();
                let landed = P::in_flight(&next.memory) < P::in_flight(&state.memory);
                let moved = self.conclude(&mut next, core, came, step.violation.into_inner());
                let moved = moved.map(|moved| {
                    next.cores[core].polled ^= !moved && polls;
                    moved || polls || landed
                });
                (tape, moved.map(|moved| moved.then_some((next, step.issued))).transpose())
            };
            let ways = ways(step);
            let same = |(a, of_a): &(StateOf<P>, Vec<P::Effect>),
                        (b, of_b): &(StateOf<P>, Vec<P::Effect>)| {
                self.protocol.is_one_enough(of_a, of_b)
                    && a.cores[core].op == b.cores[core].op
                    && go_on_alike::<P>(&a.cores[core], &b.cores[core])
            };
            if holds {
                let ways = with_fewest_landings(ways, same);
                let nexts = ways.into_iter().map(|(_, next)| next.map(|(next, _)| next));
                return (nexts.collect(), open);
            }
        }
        (Vec::new(), 0)
    }

    /// A step of a core. `supposing` that words which count and have come may go on: then it is tried with each of them
    /// further on, too, in all combinations, and there is no answer, and nothing has changed, if that makes a difference.
    /// Nobody else decides such a step, so it need not be a move.
    fn attempt(
        &mut self,
        state: &mut StateOf<P>,
        core: usize,
        ask: &Ask,
        supposing: bool,
    ) -> Option<(Came, StepOf<P>)> {
        if !supposing {
            return Some(self.step(state, core, ask, None));
        }
        let before = state.clone();
        let (came, step) = self.step(state, core, ask, Some(Vec::new()));
        let mut others = further(0, &step.supposed.borrow());
        while let Some(ahead) = others.pop() {
            let (known, mut there) = (ahead.len(), before.clone());
            let (other_came, other) = self.step(&mut there, core, ask, Some(ahead));
            let same = go_on_alike::<P>(&state.cores[core], &there.cores[core])
                && came.as_ref().map(discriminant).ok() == other_came.as_ref().map(discriminant).ok()
                && (&step.tape, &step.touched, &step.open, &step.violation, &step.issued)
                    == (&other.tape, &other.touched, &other.open, &other.violation, &other.issued);
            if !same {
                *state = before;
                return None;
            }
            others.extend(further(known, &other.supposed.borrow()));
        }
        Some((came, step))
    }

    /// What a core waits for; nothing if it can move.
    fn waits_for(&mut self, state: &StateOf<P>, core: usize) -> Option<String> {
        let op = state.cores[core].op;
        match self.step(&mut state.clone(), core, &Ask::default(), None).0 {
            Ok(Progress::Pending(wait)) => Some(format!("{}{wait}", who(self.setup, core, op))),
            _ => None,
        }
    }

    /// Tells what everybody waits for.
    pub(super) fn tell_waits(&mut self, state: &mut StateOf<P>) {
        for core in 0..state.cores.len() {
            let wait = if state.cores[core].local == 0 { None } else { self.waits_for(state, core) };
            state.story.iter_mut().for_each(|story| story.events.extend(wait.clone()));
        }
    }

    /// Takes every step that nobody else can see, and begins operators; branches where traffic is chosen. `moved` is the core
    /// that has made a move.
    fn settle(&mut self, state: StateOf<P>, moved: Option<usize>) -> Vec<Next<P>> {
        let all = self.cores();
        let (start, end) = match moved.filter(|_| self.protocol.settles_by_rank()) {
            Some(core) => (core / all * all, (core / all + 1) * all),
            None => (0, state.cores.len()),
        };
        let supposing = self.protocol.supposes();
        let mut open = vec![state];
        let mut settled = Vec::new();
        'states: while let Some(mut state) = open.pop() {
            let mut core = start;
            while core < end {
                if state.cores[core].local == 0 {
                    if self.may_begin(&state, core) {
                        open.extend(self.begin(&state, core));
                        continue 'states;
                    }
                    core += 1;
                    continue;
                }
                let alone = |came: &Came| match came {
                    Ok(Progress::Pending(_)) => false,
                    Ok(Progress::Done) => !P::ENDS_ARE_MOVES,
                    Ok(Progress::Stepped) | Err(_) => true,
                };
                let before = (state.cores[core].clone(), state.written[core / all], state.story.clone());
                let ask = Ask { given: Vec::new(), peek: true };
                let attempt = self.attempt(&mut state, core, &ask, supposing);
                let Some((came, step)) = attempt.filter(|(came, step)| !step.touched.get() && alone(came))
                else {
                    (state.cores[core], state.written[core / all], state.story) = before;
                    core += 1;
                    continue;
                };
                if let Err(violation) = self.conclude(&mut state, core, came, step.violation.into_inner()) {
                    settled.push(Err(violation));
                    continue 'states;
                }
                // The end of an operator may let a core before this one begin.
                core = if state.cores[core].local == 0 { start } else { core };
            }
            settled.push(self.protocol.settle(&mut state).map(|()| state));
        }
        settled
    }

    fn may_begin(&self, state: &StateOf<P>, core: usize) -> bool {
        let op = state.cores[core].op;
        if self.setup.ended(op) {
            return false;
        }
        let first = core / self.cores() * self.cores();
        let rank = &state.cores[first..][..self.cores()];
        if core != first && self.setup.has_experts(op) {
            // They run on the first core.
            let phase = &self.locals.of(rank[0].local).phase;
            if rank[0].op <= op && !(rank[0].op == op && matches!(phase, Phase::Runs(_))) {
                return false;
            }
        }
        // The join: all cores of the rank have ended the operator before.
        self.setup.model.twin == Twin::NoJoin || rank.iter().all(|other| other.op >= op)
    }

    /// Begins a core's next operator; with it, traffic may be chosen.
    fn begin(&mut self, state: &StateOf<P>, core: usize) -> Vec<StateOf<P>> {
        let (setup, rank, op) = (self.setup, core / self.cores(), state.cores[core].op);
        let (operator, batch, _) = setup.operator(op);
        let mut state = state.clone();
        // Experts run as late as may be.
        let experts = setup.has_experts(op) && core.is_multiple_of(self.cores());
        let phase = if experts { Phase::Experts } else { setup.begin(operator) };
        let idle = Local::clone(self.locals.of(0));
        state.cores[core].local = self.locals.number(Local { phase, ..idle });
        let choices = state.round(batch).choices.clone();
        if choices[rank].is_some() {
            return vec![state];
        }
        let named = |choice: &Choice| choice.map_or_else(|| "nobody".to_owned(), |e| format!("expert {e}"));
        let mut with = |choices: Vec<Option<Choice>>, who: String, to: String| {
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
            state.tell(&who, &[to]);
            state
        };
        if P::CHOOSES_AT_ONCE {
            let one = |matrix: Vec<Choice>| {
                let to: Vec<_> = matrix.iter().map(|first| first.unwrap_or_default().to_string()).collect();
                let to = format!("the ranks' tokens go to experts {}", to.join(", "));
                with(matrix.into_iter().map(Some).collect(), format!("round {batch} begins: "), to)
            };
            return setup.matrices().into_iter().map(one).collect();
        }
        let one = |choice: Choice| {
            let mut choices = choices.clone();
            choices[rank] = Some(choice);
            let to = format!("sends to {}", named(&choice));
            with(choices, format!("rank {rank} begins round {batch}: "), to)
        };
        setup.choices(rank as u32).into_iter().map(one).collect()
    }

    /// Steps a core's machine once. Words that count operators are read as so much further on as `ahead` says.
    fn step(
        &mut self,
        state: &mut StateOf<P>,
        core: usize,
        ask: &Ask,
        ahead: Option<Vec<u32>>,
    ) -> (Came, StepOf<P>) {
        let (setup, at) = (self.setup, state.operators());
        let (rank, number) = (core / self.cores(), core % self.cores());
        let Core { local, op, .. } = state.cores[core];
        let (operator, batch, nth) = setup.operator(op);
        let round = Rc::clone(state.round(batch));
        let known = Rc::clone(self.locals.of(local));
        let Local { mut phase, mut words, mut row } = Local::clone(&known);
        let staged = row.len();
        // No more than the machines ask for.
        row.resize(setup.ub_bytes, 0);
        let me = (RankId(rank as u32), CoreId(number as u32));
        let step = Step::new(me, (op, operator, nth), at, Rc::clone(&round));
        let step = Step {
            peek: ask.peek,
            ahead,
            tape: RefCell::new(Tape::new(ask.given.clone())),
            told: state.story.is_some().then(RefCell::default),
            ..step
        };
        let expected = round.expected.as_ref().map(|all| &all[rank]);
        let inputs = round.tensors[rank].inputs();
        let mut run = |view: &mut dyn View| {
            let ub = Ub { words: &mut words, row: &mut row };
            setup.step(core, &mut phase, view, &inputs, expected, ub)
        };
        let own = &mut state.cores[core].own;
        let (came, step) = self.protocol.step(&mut state.memory, own, step, &mut run);
        // Two roles of the hierarchy count their records in the scratch.
        let moved = (&phase, &words) != (&known.phase, &known.words);
        let stays = matches!(came, Ok(Progress::Pending(_)));
        if matches!(came, Ok(Progress::Stepped)) && !moved || stays && moved {
            step.blame(Violation::Misreported { rank: step.rank });
        }
        row.truncate(staged);
        if moved || row != known.row {
            state.cores[core].local = self.locals.number(Local { phase, words, row });
        }
        state.written[rank] += step.written;
        if let (Some(did), false) = (&step.told, stays) {
            state.tell(&who(setup, core, op), &did.borrow());
        }
        (came, step)
    }

    /// Draws the consequences of a step. `Ok(false)`: the core is pending.
    fn conclude(
        &mut self,
        state: &mut StateOf<P>,
        core: usize,
        came: Came,
        violation: Option<Violation>,
    ) -> Result<bool, Violation> {
        if !matches!(came, Ok(Progress::Pending(_))) {
            state.story.iter_mut().for_each(|story| story.steps.push(core));
        }
        if let Some(violation) = violation {
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
        let (operator, batch, _) = self.setup.operator(op);
        state.tell(&who(self.setup, core, op), &["ends".to_owned()]);
        let Core { own, .. } = state.cores[core].clone();
        state.cores[core] = Core { local: 0, op: op + 1, polled: false, own };
        if state.operators()[rank] <= op {
            return Ok(());
        }
        let seen = core::mem::take(&mut state.written[rank]);
        let expected = state.round(batch).expected.as_ref().map_or(0, |all| bytes_of(&all[rank], operator));
        let rank_id = RankId(rank as u32);
        // Without the join a core of the next operator may have written already.
        if seen != expected && self.setup.model.twin != Twin::NoJoin {
            return Err(Violation::Incomplete { rank: rank_id, seen, expected });
        }
        self.protocol.ended(state, rank, op).map_or(Ok(()), Err)?;
        state.retire(self.setup);
        Ok(())
    }
}

/// Whether two cores go on alike, whatever their ways were.
fn go_on_alike<P: Protocol>(a: &Core<P::Own>, b: &Core<P::Own>) -> bool {
    a.local == b.local && P::is_alike(&a.own, &b.own)
}

/// What to try beside words that were read as `supposed`, from number `first` on: one of them an operator further on, those
/// before it as they were. No word goes on by two before this core moves: to end an operator a near rank must hear from this
/// one.
fn further(first: usize, supposed: &[u32]) -> Vec<Vec<u32>> {
    (first..supposed.len()).map(|i| [&supposed[..i], &[1]].concat()).collect()
}

/// Output bytes of an operator.
fn bytes_of(expected: &Expected, operator: Operator) -> u32 {
    let of = |tensor: &&Tensor| (**tensor == Tensor::XOut) == (operator == Operator::Combine);
    Tensor::ALL.iter().filter(of).map(|&tensor| expected.output(tensor).len() as u32).sum()
}
