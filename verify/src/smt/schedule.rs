//! Schedules: the operators of a rank in their order, and the ones that share partitions.

use core::fmt;
use core::fmt::Write;
use veriep_core::protocol::Operator;

/// An endless repetition of a word of operators, and their partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// `D` and `C`.
    pub word: &'static str,
    pub partitions: Partitions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitions {
    /// A2: operator `n` of either kind uses half `n % p`, and both kinds wait for all.
    Shared(u32),
    /// A3: each kind has its own and its own sequence: (dispatch, combine).
    PerKind(u32, u32),
}

impl Schedule {
    /// A2, with this many halves.
    pub const fn a2(halves: u32) -> Self {
        Self { word: "DC", partitions: Partitions::Shared(halves) }
    }

    /// A3, with this many partitions for dispatch and combine.
    pub const fn a3(word: &'static str, dispatch: u32, combine: u32) -> Self {
        Self { word, partitions: Partitions::PerKind(dispatch, combine) }
    }

    /// Operators of the word.
    pub const fn word_len(&self) -> u32 {
        self.word.len() as u32
    }

    pub fn operator(&self, n: u32) -> Operator {
        match self.word.as_bytes().get((n % self.word_len()) as usize) {
            Some(b'D') => Operator::Dispatch,
            _ => Operator::Combine,
        }
    }

    /// Whether operator `n` waits for a flag of every rank, and is quiet before its own.
    pub fn waits_for_all(&self, n: u32) -> bool {
        matches!(self.partitions, Partitions::Shared(_)) || self.operator(n) == Operator::Dispatch
    }

    /// Whether two operators take their partitions from one sequence.
    fn same_sequence(&self, m: u32, n: u32) -> bool {
        matches!(self.partitions, Partitions::Shared(_)) || self.operator(m) == self.operator(n)
    }

    /// The number of operator `n` in its sequence.
    pub fn ordinal(&self, n: u32) -> u32 {
        (0..n).filter(|&m| self.same_sequence(m, n)).count() as u32
    }

    /// Partitions of the sequence of operator `n`.
    pub fn partitions_of(&self, n: u32) -> u32 {
        match self.partitions {
            Partitions::Shared(p) => p,
            Partitions::PerKind(d, c) => match self.operator(n) {
                Operator::Dispatch => d,
                Operator::Combine => c,
            },
        }
    }

    /// The partition of operator `n`.
    pub fn partition(&self, n: u32) -> u32 {
        self.ordinal(n) % self.partitions_of(n)
    }

    /// Whether operator `n` uses the slots of the earlier operator `m`.
    pub fn reuse(&self, m: u32, n: u32) -> bool {
        m < n && self.same_sequence(m, n) && self.partition(m) == self.partition(n)
    }

    /// SMT text that asks for two uses of a slot without an operator in between at which a rank may have
    /// learned that all others have gone on. `gates` says which operators count as such. Numbers are those
    /// of all rounds, without end: a place of the word and how often the word was gone through.
    pub fn ungated(&self, gates: impl Fn(&Self, u32) -> bool) -> String {
        let len = self.word_len();
        let mut text = String::from("(declare-const m Int) (declare-const n Int) (declare-const uses Int)\n");
        let mut cases = String::new();
        for (a, b) in (0..len).flat_map(|a| (0..len).map(move |b| (a, b))) {
            if !self.same_sequence(a, b) {
                continue;
            }
            // Positions and ordinals are linear in the number of times the word was gone through.
            let each = (0..len).filter(|&other| self.same_sequence(other, a)).count();
            let gate = (1..=len).find(|&d| gates(self, a + d));
            let late = gate.map_or("true".to_owned(), |d| format!("(>= (+ m {d}) n)"));
            let _ = write!(
                cases,
                "\n (and (= m (+ (* {len} gm) {a})) (= n (+ (* {len} gn) {b}))
      (= (+ (* {each} gn) {}) (+ (* {each} gm) {} (* {} uses))) {late})",
                self.ordinal(b),
                self.ordinal(a),
                self.partitions_of(a)
            );
        }
        let _ = write!(
            text,
            "(declare-const gm Int) (declare-const gn Int)
(assert (and (<= 0 gm) (<= 0 gn) (<= 1 uses)))
(assert (or {cases}))\n"
        );
        text
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partitions {
            Partitions::Shared(p) => write!(f, "A2 {}, {p} shared", self.word),
            Partitions::PerKind(d, c) => write!(f, "A3 {}, {d} dispatch, {c} combine", self.word),
        }
    }
}
