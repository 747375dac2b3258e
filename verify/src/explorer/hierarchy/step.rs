//! Moves of a hierarchy: a core takes a step that depends on what others do; then everybody takes those that do not.

use super::super::model::{Choice, Kind, Memory as Landing, Setup};
use super::super::oracle::{Oracle, RankTensors};
use super::super::phase::Phase;
use super::super::tape::{Tape, settled, ways, with_fewest_landings};
use super::super::violation::Violation;
use super::memory::{Effect, Heard, Scene};
use super::state::{Core, Group, Local, Numbers};
use super::view::{Asked, View};
use core::cell::{Cell, RefCell};
use kernel_core::fabric::{Progress, ProtocolError, Wait};
use kernel_core::place::Tensor;
use kernel_core::plan::relay as plan;
use kernel_core::protocol::Ub;
use kernel_core::units::{CoreId, RankId, Token};
use std::collections::HashMap;
use std::rc::Rc;

/// A successor, or why there must be none.
pub(super) type Next = Result<Group, Violation>;

/// Everything that grows while a model is explored, but the states.
pub(super) struct Known<'a> {
    pub(super) scene: Scene<'a>,
    pub(super) oracle: Oracle,
    /// All traffic.
    pub(super) matrices: Vec<Vec<Choice>>,
    numbers: Numbers,
    tensors: HashMap<(u32, u32, Choice), Rc<RankTensors>>,
}

/// What a step came to.
struct Stepped {
    progress: Result<Progress, ProtocolError>,
    tape: Tape<Asked>,
    /// Whether it depended on others at all, and the ranks that can still change what it looked at, as bits.
    touched: bool,
    open: u32,
    /// How much further on each word was read that counts and was taken for settled.
    supposed: Vec<u32>,
    issued: Vec<Effect>,
    violation: Option<Violation>,
}

impl<'a> Known<'a> {
    pub(super) fn new(setup: Setup<'a>) -> Self {
        let (words, row) = (vec![0; setup.ub_words], vec![0; setup.ub_bytes]);
        let mut numbers = Numbers::default();
        numbers.local(Local { phase: Phase::Between, words, row });
        let matrices = setup.matrices();
        let (scene, oracle) = (Scene::new(setup), Oracle::default());
        Self { scene, oracle, matrices, numbers, tensors: HashMap::new() }
    }

    fn setup(&self) -> &Setup<'a> {
        &self.scene.setup
    }

    fn cores(&self) -> usize {
        self.setup().model.cores as usize
    }

    /// All initial states: the first round's traffic is chosen.
    pub(super) fn initial(&mut self, told: bool) -> Vec<Next> {
        let first = Group::new(self.setup(), told);
        self.settle(first, None)
    }

    /// The steps that must be tried: those of some ranks, such that no other can change what these look at now.
    pub(super) fn expand(&mut self, state: &Group) -> Vec<(usize, Vec<Next>)> {
        let ranks = state.written.len();
        /// What one rank can do: the ways of its cores, their number, the ranks that can change what it looks at.
        type Open = (Vec<(usize, Vec<Next>)>, usize, u32);
        let mut of_rank: Vec<Open> = Vec::new();
        for rank in 0..ranks {
            let (mut all, mut count, mut by) = (Vec::new(), 0, 1 << rank);
            for core in rank * self.cores()..(rank + 1) * self.cores() {
                if state.cores[core].local != 0 {
                    let (ways, open) = self.ways(state, core);
                    count += ways.len();
                    by |= open;
                    all.push((core, ways));
                }
            }
            of_rank.push((all, count, by));
        }
        let closed = |rank: usize| {
            let mut set = 1_u32 << rank;
            loop {
                let members = of_rank.iter().enumerate().filter(|(rank, _)| set >> rank & 1 == 1);
                let (count, by) =
                    members.fold((0, set), |(count, by), (_, (_, ways, open))| (count + ways, by | open));
                if by == set {
                    return (count, set);
                }
                set = by;
            }
        };
        let all = self.setup().model.memory != Landing::Weak;
        let fewest = (0..ranks).map(closed).filter(|(count, _)| *count > 0).min();
        let set = if all { u32::MAX } else { fewest.map_or(0, |(_, set)| set) };
        let chosen = of_rank.into_iter().enumerate().filter(|(rank, _)| set >> rank & 1 == 1);
        let ways = chosen.flat_map(|(_, (ways, ..))| ways);
        ways.map(|(core, ways)| (core, self.settled(core, ways))).collect()
    }

    /// What a step of a core leads to.
    pub(super) fn after(&mut self, state: &Group, core: usize) -> Vec<Next> {
        let (ways, _) = self.ways(state, core);
        self.settled(core, ways)
    }

    fn settled(&mut self, core: usize, ways: Vec<Next>) -> Vec<Next> {
        let rank = core / self.cores();
        settled(ways, |next| self.settle(next, Some(rank)))
    }

    /// All steps that a core can take now, and the ranks that can still change what it sees, as bits.
    fn ways(&mut self, state: &Group, core: usize) -> (Vec<Next>, u32) {
        let explicit = self.setup().model.memory == Landing::WeakExplicit;
        let same = |(a, issued_by_a): &(Group, Vec<Effect>), (b, issued_by_b): &(Group, Vec<Effect>)| {
            let of = |next: &Group| (next.cores[core].local, next.cores[core].op, next.cores[core].epoch);
            let alike = |(a, b): (&Effect, &Effect)| a.is_like(b);
            !explicit
                && of(a) == of(b)
                && issued_by_a.len() == issued_by_b.len()
                && issued_by_a.iter().zip(issued_by_b).all(alike)
        };
        for supposing in [!explicit, false] {
            let (mut open, mut holds) = (0, true);
            let step = |given: Vec<bool>| {
                let Some((mut next, stepped)) = self.attempt(state, core, &given, false, supposing) else {
                    holds = false;
                    return (Tape::new(given), None);
                };
                let Stepped { progress, tape, open: by, violation, issued, .. } = stepped;
                open |= by;
                // Who waits on has not moved, but what it has seen stays landed.
                let landed = next.memory.flight.len() < state.memory.flight.len();
                let moved = self.conclude(&mut next, core, progress, violation).map(|moved| moved || landed);
                (tape, moved.map(|moved| moved.then_some((next, issued))).transpose())
            };
            let ways = with_fewest_landings(ways(step), same);
            if holds {
                let nexts = ways.into_iter().map(|(_, next)| next.map(|(next, _)| next));
                return (nexts.collect(), open);
            }
        }
        (Vec::new(), 0)
    }

    /// A step of a core by the choices that are given. `supposing` that words which count and have come may go on: then it
    /// is tried with each of them further on, too, in all combinations, and there is no answer if that makes a difference.
    /// Nobody else decides such a step, so it need not be a move.
    fn attempt(
        &mut self,
        state: &Group,
        core: usize,
        given: &[bool],
        peek: bool,
        supposing: bool,
    ) -> Option<(Group, Stepped)> {
        let mut with = |ahead| {
            let mut next = state.clone();
            let stepped = self.step(&mut next, core, given.to_vec(), peek, ahead);
            (next, stepped)
        };
        if !supposing {
            return Some(with(None));
        }
        let came_to = |(next, stepped): &(Group, Stepped)| {
            let progress = stepped.progress.as_ref().map(core::mem::discriminant).ok();
            let Stepped { tape, touched, open, violation, issued, .. } = stepped;
            let Core { local, epoch, .. } = next.cores[core];
            (local, epoch, progress, tape.clone(), *touched, *open, violation.clone(), issued.clone())
        };
        let first = with(Some(Vec::new()));
        let mut others = further(0, &first.1.supposed);
        while let Some(ahead) = others.pop() {
            let known = ahead.len();
            let other = with(Some(ahead));
            if came_to(&other) != came_to(&first) {
                return None;
            }
            others.extend(further(known, &other.1.supposed));
        }
        Some(first)
    }

    /// Takes every step that depends on nobody else, and begins operators; branches where a round's traffic is chosen.
    /// Over weak memory only the rank that moved can have such a step.
    fn settle(&mut self, state: Group, moved: Option<usize>) -> Vec<Next> {
        let strong = self.setup().model.memory == Landing::Strong;
        let (start, end) = match moved.filter(|_| !strong) {
            Some(rank) => (rank * self.cores(), (rank + 1) * self.cores()),
            None => (0, state.cores.len()),
        };
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
                let explicit = self.setup().model.memory == Landing::WeakExplicit;
                let alone = self.attempt(&state, core, &[], true, !explicit);
                let moves = |stepped: &Stepped| !matches!(stepped.progress, Ok(Progress::Pending(_)));
                let Some((mut next, Stepped { progress, violation, .. })) =
                    alone.filter(|(_, stepped)| !stepped.touched && moves(stepped))
                else {
                    core += 1;
                    continue;
                };
                if let Err(violation) = self.conclude(&mut next, core, progress, violation) {
                    settled.push(Err(violation));
                    continue 'states;
                }
                // The end of an operator may let a core before this one begin.
                core = if next.cores[core].local == 0 { start } else { core };
                state = next;
            }
            settled.push(Ok(state));
        }
        settled
    }

    /// The join: all cores of the rank have ended the operator before.
    fn may_begin(&self, state: &Group, core: usize) -> bool {
        let op = state.cores[core].op;
        !self.setup().ended(op) && state.operator(self.setup(), core / self.cores()) >= op
    }

    fn begin(&mut self, state: &Group, core: usize) -> Vec<Group> {
        let (kind, batch, _) = self.setup().operator(state.cores[core].op);
        let phase = self.setup().begin(kind);
        let mut state = state.clone();
        let local = self.numbers.local_of(0).clone();
        state.cores[core].local = self.numbers.local(Local { phase, ..local });
        if state.matrix(batch).is_some() {
            return vec![state];
        }
        let with = |(number, matrix): (u16, &Vec<Choice>)| {
            let mut state = state.clone();
            state.rounds.push_back(number);
            let to: Vec<_> = matrix.iter().map(|first| first.unwrap_or_default().to_string()).collect();
            state.tell(
                "",
                &[format!("round {batch} begins: the ranks' tokens go to experts {}", to.join(", "))],
            );
            state
        };
        (0..).zip(&self.matrices).map(with).collect()
    }

    fn tensors(&mut self, rank: u32, tag: u32, choice: Choice) -> Rc<RankTensors> {
        let setup = &self.scene.setup;
        let entry = self.tensors.entry((rank, tag, choice));
        Rc::clone(entry.or_insert_with(|| Rc::new(RankTensors::new(setup, rank, tag, choice))))
    }

    /// `ahead`: words that count are taken for settled once they have come, and read as so much further on, one by one.
    fn step(
        &mut self,
        state: &mut Group,
        core: usize,
        given: Vec<bool>,
        peek: bool,
        ahead: Option<Vec<u32>>,
    ) -> Stepped {
        let (rank, number) = (core / self.cores(), core % self.cores());
        let op = state.cores[core].op;
        let (kind, batch, _) = self.setup().operator(op);
        let tag = batch % self.setup().tags;
        let matrix = usize::from(state.matrix(batch).unwrap_or_default());
        let expected = self.oracle.expected(&self.scene.setup, &self.matrices[matrix], tag);
        let tensors = self.tensors(rank as u32, tag, self.matrices[matrix][rank]);
        let Local { mut phase, mut words, mut row } = self.numbers.local_of(state.cores[core].local).clone();
        let before = (phase.clone(), words.clone());
        let at = (0..state.written.len()).map(|rank| state.operator(self.setup(), rank)).collect();
        let inputs = tensors.inputs();
        let shape = self.setup().shape;
        let on = |server: u32| {
            let of = |token| plan::pairs(shape, inputs.ids(shape, Token(token)), server) > 0;
            u32::from((0..shape.bs(RankId(rank as u32))).any(of)) << server
        };
        let Core { epoch, heard, .. } = state.cores[core];
        let mut view = View {
            scene: &self.scene,
            numbers: &mut self.numbers,
            memory: RefCell::new(&mut state.memory),
            me: (RankId(rank as u32), CoreId(number as u32)),
            op,
            kind,
            at,
            epoch: Cell::new(epoch),
            heard: Cell::new(heard),
            servers: (0..shape.servers()).map(on).sum(),
            expected: Rc::clone(&expected),
            peek,
            tape: RefCell::new(Tape::new(given)),
            touched: Cell::new(false),
            open: Cell::new(0),
            ahead,
            supposed: RefCell::default(),
            in_step: Cell::new(None),
            issued: Vec::new(),
            written: 0,
            violation: RefCell::default(),
            story: state.story.is_some().then(RefCell::default),
        };
        let ub = Ub { words: &mut words, row: &mut row };
        let progress = self.scene.setup.step(core, &mut phase, &mut view, &inputs, Some(&expected[rank]), ub);
        let View { tape, touched, open, supposed, issued, violation, story, written, epoch, heard, .. } =
            view;
        let (tape, mut violation) = (tape.into_inner(), violation.into_inner());
        let (touched, open, supposed) = (touched.get(), open.get(), supposed.into_inner());
        // Two roles count their records in the scratch.
        let moved = (&phase, &words) != (&before.0, &before.1);
        let stays = matches!(progress, Ok(Progress::Pending(_)));
        if matches!(progress, Ok(Progress::Stepped)) && !moved || stays && moved {
            violation.get_or_insert(Violation::Misreported { rank: RankId(rank as u32) });
        }
        let local = self.numbers.local(Local { phase, words, row });
        let known = Core { local, op, epoch: epoch.get(), heard: heard.get() };
        state.cores[core] = known;
        state.written[rank] += written;
        if let (Some(did), false) = (story, stays) {
            let who = self.who(core, op);
            state.tell(&who, &did.into_inner());
        }
        Stepped { progress, tape, touched, open, supposed, issued, violation }
    }

    /// Draws the consequences of a step. `Ok(false)`: the core is pending.
    fn conclude(
        &mut self,
        state: &mut Group,
        core: usize,
        progress: Result<Progress, ProtocolError>,
        violation: Option<Violation>,
    ) -> Result<bool, Violation> {
        if let Some(violation) = violation {
            return Err(violation);
        }
        match progress {
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
        let (rank, of) = (core / self.cores(), self.cores());
        let op = state.cores[core].op;
        let (kind, batch, _) = self.setup().operator(op);
        let who = self.who(core, op);
        state.tell(&who, &["ends".to_owned()]);
        state.cores[core].op = op + 1;
        state.cores[core].local = 0;
        if state.operator(self.setup(), rank) <= op {
            return Ok(());
        }
        let cores = &mut state.cores[rank * of..][..of];
        // The join: each has heard what all have.
        let most = |heard: Heard, core: &Core| core::array::from_fn(|i| heard[i].max(core.heard[i]));
        let mut heard = cores.iter().fold([0; _], most);
        heard[rank] = op + 1;
        cores.iter_mut().for_each(|core| core.heard = heard);
        let matrix = usize::from(state.matrix(batch).unwrap_or_default());
        let expected =
            self.oracle.expected(&self.scene.setup, &self.matrices[matrix], batch % self.setup().tags);
        let outputs =
            Tensor::ALL.iter().filter(|&&tensor| (tensor == Tensor::XOut) == (kind == Kind::Combine));
        let expected = outputs.map(|&tensor| expected[rank].output(tensor).len() as u32).sum();
        let seen = core::mem::take(&mut state.written[rank]);
        let rank = RankId(rank as u32);
        if seen != expected {
            return Err(Violation::Incomplete { rank, seen, expected });
        }
        state.memory.end(&self.scene, rank, op).map_or(Ok(()), Err)?;
        state.retire(self.setup());
        Ok(())
    }

    pub(super) fn who(&self, core: usize, op: u32) -> String {
        let (rank, core) = (core / self.cores(), core % self.cores());
        let core = if self.cores() > 1 { format!(" core {core}") } else { String::new() };
        format!("rank {rank}{core}, {}: ", self.setup().named(op))
    }

    /// What the cores wait for, if nobody can move.
    pub(super) fn tell_waits(&mut self, state: &mut Group) {
        for core in 0..state.cores.len() {
            if let Some(wait) = self.waits_for(state, core) {
                let line = format!("{}{wait}", self.who(core, state.cores[core].op));
                state.story.iter_mut().for_each(|story| story.push(line.clone()));
            }
        }
    }

    fn waits_for(&mut self, state: &Group, core: usize) -> Option<Wait> {
        if state.cores[core].local == 0 {
            return None;
        }
        match self.step(&mut state.clone(), core, Vec::new(), false, None).progress {
            Ok(Progress::Pending(wait)) => Some(wait),
            _ => None,
        }
    }
}

/// What to try beside words that were read as `supposed`, from number `first` on: one of them an operator further on, those
/// before it as they were. No word goes on by two before this core moves: to end an operator a near rank must hear from this
/// one.
fn further(first: usize, supposed: &[u32]) -> Vec<Vec<u32>> {
    (first..supposed.len()).map(|i| [&supposed[..i], &[1]].concat()).collect()
}
