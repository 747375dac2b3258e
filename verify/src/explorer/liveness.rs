//! Liveness: operators end. It is judged on the graph of all states that were visited, whose moves name the mover.
//!
//! No actor ever has to move at once. Three assumptions say that an actor that can move for good does so some time
//! (**weak fairness**): the *driver* lets every core step, an *agent* posts what was rung for, the *memory* lands what was issued.
//! A group that is fair and yet ends no operator comes, in the end, to a strongly connected part of the graph without the
//! end of an operator, in which each actor that can move throughout does move: or to a single state in which no actor is fair that
//! can move. There must be no such part. Waiting is no move, so a single state stands for those who look in vain.

use crate::defects::Defect;
use foldhash::HashMap;

/// Whose fairness a move rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mover {
    Driver,
    Agent,
    Memory,
}

/// The moves of a search, by the numbers of their states. States are expanded in the order of their numbers, so the moves of
/// one are together.
#[derive(Default)]
pub(super) struct Graph {
    /// Where the moves of a state begin.
    first: Vec<u32>,
    moves: Vec<Edge>,
    movers: Vec<Mover>,
    numbers: HashMap<(Mover, u64), u16>,
    /// Whether all is over in a state.
    over: Vec<bool>,
}

#[derive(Clone, Copy)]
struct Edge {
    to: u32,
    /// Who moves, by number.
    by: u16,
    /// Whether it ends an operator.
    ends: bool,
}

/// What there is in a graph.
#[derive(Default)]
pub(super) struct Found {
    /// The last state from which no way leads to the end of an operator: there all have come to wait.
    pub(super) dead: Option<u32>,
    /// The first state of a part that need never be left.
    pub(super) circle: Option<u32>,
    /// Parts of several states without the end of an operator, good or bad.
    pub(super) parts: usize,
}

/// The graph is taken apart as Tarjan does, without the moves that end operators: each part after all that it leads to.
struct Search<'g> {
    graph: &'g Graph,
    defect: Defect,
    /// When each state was met first, from 1 on.
    met: Vec<u32>,
    /// The earliest state that it is known to lead back to.
    back: Vec<u32>,
    /// The part that a state belongs to, from 1 on.
    part: Vec<u32>,
    /// Met, and of no part yet.
    open: Vec<u32>,
    live: Vec<bool>,
    found: Found,
}

impl Graph {
    pub(super) const fn len(&self) -> usize {
        self.moves.len()
    }

    /// From here on come the moves of the next state.
    pub(super) fn next_state(&mut self, is_over: bool) {
        self.first.push(self.moves.len() as u32);
        self.over.push(is_over);
    }

    /// Adds a move of `mover`, who is told from others of the kind by a number.
    pub(super) fn add(&mut self, (mover, number): (Mover, u64), to: u32, ends: bool) {
        let (movers, next) = (&mut self.movers, self.numbers.len() as u16);
        let by = *self.numbers.entry((mover, number)).or_insert_with(|| {
            movers.push(mover);
            next
        });
        self.moves.push(Edge { to, by, ends });
    }

    fn of(&self, state: u32) -> core::ops::Range<usize> {
        let end = self.first.get(state as usize + 1).map_or(self.moves.len(), |&end| end as usize);
        self.first[state as usize] as usize..end
    }

    /// Asks whether operators end.
    pub(super) fn judge(&self, defect: Defect) -> Found {
        let states = self.first.len();
        let zeros = || vec![0_u32; states];
        let (met, back, part) = (zeros(), zeros(), zeros());
        let (open, live, found) = (Vec::new(), vec![false; states], Found::default());
        let mut search = Search { graph: self, defect, met, back, part, open, live, found };
        let mut clock = 0;
        (0..states as u32).for_each(|root| search.from(root, &mut clock));
        search.found.dead = search.live.iter().rposition(|live| !live).map(|state| state as u32);
        search.found
    }
}

impl Search<'_> {
    fn from(&mut self, root: u32, clock: &mut u32) {
        // States on the way, and which of their moves comes next.
        let mut way = Vec::new();
        let mut next = (self.met[root as usize] == 0).then_some(root);
        loop {
            if let Some(state) = next.take() {
                *clock += 1;
                (self.met[state as usize], self.back[state as usize]) = (*clock, *clock);
                self.open.push(state);
                way.push((state, self.graph.of(state)));
            }
            let Some((state, moves)) = way.last_mut() else { return };
            let at = *state as usize;
            if let Some(Edge { to, ends, .. }) = moves.next().map(|i| self.graph.moves[i]) {
                match self.met[to as usize] {
                    _ if ends || self.part[to as usize] > 0 => {}
                    0 => next = Some(to),
                    when => self.back[at] = self.back[at].min(when),
                }
                continue;
            }
            let (state, low) = (*state, self.back[at]);
            way.pop();
            if let Some((before, _)) = way.last() {
                let back = &mut self.back[*before as usize];
                *back = low.min(*back);
            }
            if low == self.met[at] {
                let start = self.open.iter().rposition(|&open| open == state).unwrap_or(0);
                let part = self.open.split_off(start);
                self.judge(&part, self.met[at]);
            }
        }
    }

    /// Judges a part, which gets this number.
    fn judge(&mut self, states: &[u32], number: u32) {
        let graph = self.graph;
        states.iter().for_each(|&state| self.part[state as usize] = number);
        let moves = |state: u32| graph.moves[graph.of(state)].iter();
        let all = || states.iter().flat_map(|&state| moves(state));
        let is_inside = |edge: &&Edge| !edge.ends && self.part[edge.to as usize] == number;
        let is_over = states.iter().any(|&state| graph.over[state as usize]);
        let live = is_over || all().any(|edge| edge.ends || self.live[edge.to as usize]);
        let leaves = |by: u16| {
            let fair = self.defect.is_fair(graph.movers[usize::from(by)]);
            let throughout = || states.iter().all(|&state| moves(state).any(|edge| edge.by == by));
            fair && !all().filter(is_inside).any(|edge| edge.by == by) && throughout()
        };
        let first = states.iter().copied().min();
        let stays = !is_over && first.is_some_and(|first| !moves(first).any(|edge| leaves(edge.by)));
        self.found.parts += usize::from(states.len() > 1);
        states.iter().for_each(|&state| self.live[state as usize] = live);
        if stays {
            self.found.circle = self.found.circle.into_iter().chain(first).min();
        }
    }
}
