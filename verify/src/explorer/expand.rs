//! Partial-order reduction: the moves that a search must try, and the ways through a step.

use super::model::Model;
use super::moves::{Ask, Found, Known, Move, Next};
use super::protocol::{Explored, Outcome};
use super::state::{Core, StateOf};
use super::step::StepOf;
use super::tape::{Tape, ways, with_fewest_landings};
use core::mem::discriminant;

/// What a core can do: its number, and where each way through its step leads.
type Ways<P> = (usize, Vec<Next<P>>);

impl<P: Explored> Known<'_, P> {
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
        let set = if self.protocol.lets_ranks_wait() { fewest().map_or(0, |(_, set)| set) } else { u32::MAX };
        let chosen = of_rank.into_iter().enumerate().filter(|(rank, _)| set >> rank & 1 == 1);
        let ways = chosen.flat_map(|(_, (all, _))| all);
        let mut found: Vec<_> =
            ways.map(|(core, ways)| (Move::Core(core), self.settled(state, ways, Some(core)))).collect();
        for event in self.protocol.events(state) {
            found.push((Move::Event(event), self.after(state, Move::Event(event))));
        }
        found
    }

    /// All steps that a core can take now, and the ranks that can still change what it sees, as bits.
    pub(super) fn ways(&mut self, state: &StateOf<P>, core: usize) -> (Vec<Next<P>>, u32) {
        let Model { defect, busy, .. } = *self.setup.model;
        for supposing in [self.protocol.supposes(), false] {
            let (mut open, mut holds) = (0, true);
            let step = |given: Vec<bool>| {
                let (mut next, ask) = (self.copy(state), Ask { given, peek: false });
                let Some((came, step)) = self.attempt(&mut next, core, &ask, supposing) else {
                    holds = false;
                    return (Tape::new(ask.given), None);
                };
                open |= step.search.open.get();
                let tape = step.search.tape.into_inner();
                let landed = P::in_flight(&next.memory) < P::in_flight(&state.memory);
                let moved = self.conclude(&mut next, core, came, step.found);
                let moved = moved.map(|moved| {
                    next.cores[core].polled = defect.is_polled(state.cores[core].polled, moved);
                    let prepared = busy && next.cores[core].local != state.cores[core].local;
                    moved || defect.polls() || landed || prepared
                });
                if matches!(moved, Ok(false)) {
                    self.give_back(next);
                    return (tape, None);
                }
                (tape, Some(moved.map(|_| (next, step.search.issued))))
            };
            let ways = ways(step);
            let same = |(a, of_a): &(Box<StateOf<P>>, Vec<P::Effect>),
                        (b, of_b): &(Box<StateOf<P>>, Vec<P::Effect>)| {
                self.protocol.is_one_enough(of_a, of_b)
                    && a.cores[core].op == b.cores[core].op
                    && go_on_alike::<P>(&a.cores[core], &b.cores[core])
            };
            if holds {
                let ways = with_fewest_landings(ways, same);
                let mut nexts = Vec::with_capacity(ways.len());
                nexts.extend(ways.into_iter().map(|(_, next)| next.map(|(next, _)| next)));
                return (nexts, open);
            }
        }
        (Vec::new(), 0)
    }

    /// A step of a core. `supposing` that words which count and have come may go on: then it is tried with each of them
    /// further on, too, in all combinations, and there is no answer, and nothing has changed, if that makes a difference.
    /// No other core decides such a step, so it need not be a move.
    pub(super) fn attempt(
        &mut self,
        state: &mut StateOf<P>,
        core: usize,
        ask: &Ask,
        supposing: bool,
    ) -> Option<(Outcome, StepOf<P>)> {
        if !supposing {
            return Some(self.step(state, core, ask, None));
        }
        let before = self.copy(state);
        let (came, step) = self.step(state, core, ask, Some(Vec::new()));
        let mut others = further(0, &step.search.supposed.borrow());
        while let Some(ahead) = others.pop() {
            let (known, mut there) = (ahead.len(), self.copy(&before));
            let (other_came, other) = self.step(&mut there, core, ask, Some(ahead));
            let same = go_on_alike::<P>(&state.cores[core], &there.cores[core])
                && came.as_ref().map(discriminant).ok() == other_came.as_ref().map(discriminant).ok()
                && step.search.is_like(&other.search)
                && step.found.violation == other.found.violation;
            self.give_back(there);
            if !same {
                state.clone_from(&before);
                self.give_back(before);
                return None;
            }
            others.extend(further(known, &other.search.supposed.borrow()));
        }
        self.give_back(before);
        Some((came, step))
    }
}

/// Whether two cores go on alike, whatever their ways were.
fn go_on_alike<P: Explored>(a: &Core<P::Own>, b: &Core<P::Own>) -> bool {
    a.local == b.local && P::is_alike(&a.own, &b.own)
}

/// What to try beside words that were read as `supposed`, from number `first` on: one of them an operator further on, those
/// before it as they were. No word goes on by two before this core moves: to end an operator a near rank must hear from this
/// one.
fn further(first: usize, supposed: &[u32]) -> Vec<Vec<u32>> {
    (first..supposed.len()).map(|i| [&supposed[..i], &[1]].concat()).collect()
}
