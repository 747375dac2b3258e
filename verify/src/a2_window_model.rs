//! A2's scheme as an abstract model: dispatch and combine share one sequence of
//! operators; operator `n` uses half `n % P` of every window; a rank ends an operator when it has heard from all
//! peers, and its flags land late and in any order (A2 design, section 2.4.3).
//!
//! Explored for any number of operators: a state counts operators from its slowest rank.

use std::collections::{HashSet, VecDeque};

/// What the search found.
#[derive(Clone, Debug)]
pub struct Report {
    pub states: usize,
    /// Whether every reachable state was visited.
    pub complete: bool,
    /// The shortest way into trouble, one line per event.
    pub counterexample: Option<Vec<String>>,
}

/// The group: how far each rank is, and which windows of the operators from its own on have landed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// Operator that each rank runs.
    at: Vec<u32>,
    /// By receiver, then sender: operators whose window has landed, as bits from the receiver's operator on.
    landed: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
enum Move {
    /// The window of operator `n` of `from` lands at `to`.
    Land { from: usize, to: usize, n: u32 },
    /// The rank has heard from all peers and begins its next operator.
    Next { rank: usize },
}

/// Explores `ranks` ranks whose windows have `halves` halves, up to `operators` operators or for any number; not beyond `states_max`
/// states, nor when `stop` says so.
pub fn explore(
    ranks: usize,
    halves: u32,
    operators: Option<u32>,
    states_max: usize,
    stop: fn() -> bool,
) -> Report {
    let first = State { at: vec![0; ranks], landed: vec![vec![0; ranks]; ranks] };
    let mut seen = HashSet::from([first.relative(operators.is_some())]);
    let mut ways: Vec<(usize, Option<Move>)> = vec![(0, None)];
    let mut frontier = VecDeque::from([(0, first)]);
    while let Some((id, state)) = frontier.pop_front() {
        for what in state.moves(operators) {
            if let Some(m) = state.overwrites(what, halves) {
                let mut events = story(&ways, id);
                events.push(tell(what));
                if let Move::Land { to, .. } = what {
                    events.push(format!("rank {to} has not ended operator {m}, which uses the same half"));
                }
                return Report { states: ways.len(), complete: false, counterexample: Some(events) };
            }
            let next = state.after(what);
            if seen.insert(next.relative(operators.is_some())) {
                ways.push((id, Some(what)));
                frontier.push_back((ways.len() - 1, next));
            }
        }
        if ways.len() > states_max || stop() {
            return Report { states: ways.len(), complete: false, counterexample: None };
        }
    }
    Report { states: ways.len(), complete: true, counterexample: None }
}

impl State {
    /// The state without how long ago it began.
    fn relative(&self, absolute: bool) -> Self {
        let first = if absolute { 0 } else { self.at.iter().copied().min().unwrap_or(0) };
        Self { at: self.at.iter().map(|at| at - first).collect(), landed: self.landed.clone() }
    }

    fn moves(&self, operators: Option<u32>) -> Vec<Move> {
        let mut moves = Vec::new();
        for to in 0..self.at.len() {
            for from in (0..self.at.len()).filter(|&from| from != to) {
                for n in self.at[to]..=self.at[from] {
                    if self.landed[to][from] >> (n - self.at[to]) & 1 == 0 {
                        moves.push(Move::Land { from, to, n });
                    }
                }
            }
            let heard = (0..self.at.len()).all(|from| from == to || self.landed[to][from] & 1 == 1);
            if heard && operators.is_none_or(|n| self.at[to] + 1 < n) {
                moves.push(Move::Next { rank: to });
            }
        }
        moves
    }

    /// The operator whose half a landing window overwrites although its reader has not ended it.
    fn overwrites(&self, what: Move, halves: u32) -> Option<u32> {
        let Move::Land { to, n, .. } = what else { return None };
        (self.at[to]..n).find(|m| m % halves == n % halves)
    }

    fn after(&self, what: Move) -> Self {
        let mut next = self.clone();
        match what {
            Move::Land { from, to, n } => next.landed[to][from] |= 1 << (n - self.at[to]),
            Move::Next { rank } => {
                next.at[rank] += 1;
                next.landed[rank].iter_mut().for_each(|landed| *landed >>= 1);
            }
        }
        next
    }
}

fn story(ways: &[(usize, Option<Move>)], mut id: usize) -> Vec<String> {
    let mut events = Vec::new();
    while let (parent, Some(what)) = ways[id] {
        events.push(tell(what));
        id = parent;
    }
    events.reverse();
    events
}

fn tell(what: Move) -> String {
    match what {
        Move::Land { from, to, n } => {
            format!("the window of rank {from} for operator {n} lands at rank {to}")
        }
        Move::Next { rank } => format!("rank {rank} has heard from all ranks and begins its next operator"),
    }
}
