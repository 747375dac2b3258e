//! The model: state, steps, invariant and safety, each said once, as SMT-LIB text.
//!
//! `@` after the name of a state function stands for the state that is meant: nothing for the one before a
//! step, `_1` for the one after it. Every step has the same parameters: a rank `S`, one of its slots `J`, an
//! operator `N`; steps of a whole rank do not look at `J`.
//!
//! A **slot** `(s, j)` is a flag word of rank `s` with the rows that it covers: in dispatch one per (local
//! expert, source rank), in combine one per (token, column). Operators are numbered over all kinds, as each
//! rank runs them.

use core::fmt;

/// What does not change during a run: who expects what of whom, and which operators use a slot again.
pub const RIGID: [(&str, &str, &str); 6] = [
    ("expects", "(Rank Slot Int) Bool", "rank s ends operator n only after it has the flag in its slot j"),
    ("source", "(Rank Slot Int) Rank", "who sends that flag"),
    ("carries", "(Rank Slot Int) Bool", "and whether rows come with it"),
    ("quiets", "(Rank Slot Int) Bool", "and whether its sender is quiet before it sends it"),
    ("behind", "(Rank Slot Int Slot) Bool", "its sender sends both after it took that flag of its own in n"),
    ("reuse", "(Rank Slot Int Int) Bool", "operator n uses the slot of the earlier operator m"),
];

/// The state: name, parameters and type, value in the beginning, meaning.
pub const STATE: [(&str, &str, &str, &str); 6] = [
    ("begun", "((r Rank)) Int", "0", "operators that r has begun"),
    ("ended", "((r Rank)) Int", "0", "operators that r has ended"),
    ("hushed", "((r Rank)) Int", "0", "operators begun when r was last quiet"),
    ("landed", "((s Rank) (j Slot) (n Int)) Bool", "false", "the flag of operator n is in the slot"),
    ("taken", "((s Rank) (j Slot) (n Int)) Bool", "false", "s has seen it and issued the clear"),
    ("cleared", "((s Rank) (j Slot) (n Int)) Bool", "false", "the clear has landed"),
];

/// The premise of the theorem: **between two uses of a slot, the rank that writes it next has waited for a flag before
/// which its owner was quiet.** `gate` names the operator of that flag, `told` its slot. That can be the operator that uses the
/// slot again, if all that it writes there is behind that flag.
pub const PREMISE: &str = "(forall ((s Rank) (j Slot) (m Int) (n Int))
  (=> (and (<= 0 m) (reuse s j m n) (expects s j n))
      (and (< m (gate s j m n)) (<= (gate s j m n) n)
           (=> (= n (gate s j m n)) (behind s j n (told s j m n)))
           (quiets (source s j n) (told s j m n) (gate s j m n))
           (expects (source s j n) (told s j m n) (gate s j m n))
           (= s (source (source s j n) (told s j m n) (gate s j m n))))))";

/// What the premise does not ask where a quiet has no clears to wait for.
pub const QUIET_GATE: &str = "
           (quiets (source s j n) (told s j m n) (gate s j m n))";

pub const INVARIANT: [(&str, &str); 7] = [
    (
        "one operator at a time",
        "(forall ((r Rank)) (and (<= 0 (ended@ r)) (<= (ended@ r) (begun@ r)) (<= (begun@ r) (+ 1 (ended@ r)))))",
    ),
    ("quiet inside what has begun", "(forall ((r Rank)) (<= (hushed@ r) (begun@ r)))"),
    (
        "a flag tells that its sender has begun, and, where it is meant to, that it was quiet",
        "(forall ((s Rank) (j Slot) (n Int)) (=> (landed@ s j n)
  (and (< n (begun@ (source s j n))) (=> (quiets s j n) (< n (hushed@ (source s j n)))))))",
    ),
    ("what is taken has landed", "(forall ((s Rank) (j Slot) (n Int)) (=> (taken@ s j n) (landed@ s j n)))"),
    (
        "what has ended has taken all that it expects",
        "(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended@ s)) (expects s j n)) (taken@ s j n)))",
    ),
    (
        "who was quiet in a later operator has cleared what it took",
        "(forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken@ s j n) (< (+ 1 n) (hushed@ s))) (cleared@ s j n)))",
    ),
    (
        "who has ended was quiet before the flags that tell so",
        "(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended@ (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed@ (source s j n)))))",
    ),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Rank `S` begins operator `N`: the first step of its first core.
    Begin,
    /// The last core of `S` is quiet in `N`.
    Quiet,
    /// A row of operator `N`, or a piece of one, arrives in slot `J` of `S`.
    Write,
    /// The flag of operator `N` arrives in slot `J` of `S`.
    Land,
    /// `S` has seen that flag and issues its clear.
    Take,
    /// `S` reads the rows of slot `J`.
    Read,
    Clear,
    /// The last core of `S` ends `N`.
    End,
}

/// What a step says to be true before it, by name.
pub type Guard = (&'static str, &'static str);

/// The only change that a step makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None: it is here for its guard.
    None,
    /// `f(S)` becomes this.
    Count(&'static str, &'static str),
    /// `f(S, J, N)` becomes true.
    Fact(&'static str),
}

impl Step {
    pub const ALL: [Self; 8] =
        [Self::Begin, Self::Quiet, Self::Write, Self::Land, Self::Take, Self::Read, Self::Clear, Self::End];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Quiet => "quiet",
            Self::Write => "write",
            Self::Land => "land",
            Self::Take => "take",
            Self::Read => "read",
            Self::Clear => "clear",
            Self::End => "end",
        }
    }

    /// When it can be taken. All must hold.
    pub const fn guards(self) -> &'static [Guard] {
        const INSIDE: Guard = ("inside", "(and (= N (ended@ S)) (= (begun@ S) (+ 1 N)))");
        const EXPECTED: Guard = ("expected", "(expects S J N)");
        const SENT: Guard = ("sent", "(< N (begun@ (source S J N)))");
        const BEHIND: Guard =
            ("behind", "(forall ((i Slot)) (=> (behind S J N i) (taken@ (source S J N) i N)))");
        match self {
            Self::Begin => &[("join", "(and (= N (ended@ S)) (= (begun@ S) N))")],
            Self::Quiet => &[
                INSIDE,
                ("clears", "(forall ((j Slot) (n Int)) (=> (and (< n N) (taken@ S j n)) (cleared@ S j n)))"),
            ],
            Self::Write => &[
                EXPECTED,
                ("carries", "(carries S J N)"),
                SENT,
                BEHIND,
                ("data before flag", "(not (landed@ S J N))"),
            ],
            Self::Land => &[
                EXPECTED,
                SENT,
                BEHIND,
                ("hush", "(=> (quiets S J N) (< N (hushed@ (source S J N))))"),
                ("once", "(not (landed@ S J N))"),
            ],
            Self::Take => &[INSIDE, EXPECTED, ("flag", "(landed@ S J N)"), ("once", "(not (taken@ S J N))")],
            Self::Read => &[INSIDE, ("covered", "(taken@ S J N)")],
            Self::Clear => &[("issued", "(taken@ S J N)"), ("once", "(not (cleared@ S J N))")],
            Self::End => &[
                INSIDE,
                ("waits", "(forall ((j Slot)) (=> (expects S j N) (taken@ S j N)))"),
                (
                    "speaks",
                    "(forall ((s Rank) (j Slot)) (=> (and (= S (source s j N)) (expects s j N) (quiets s j N)) (< N (hushed@ S))))",
                ),
            ],
        }
    }

    pub const fn effect(self) -> Effect {
        match self {
            Self::Begin => Effect::Count("begun", "(+ 1 (begun S))"),
            Self::Quiet => Effect::Count("hushed", "(begun S)"),
            Self::Land => Effect::Fact("landed"),
            Self::Take => Effect::Fact("taken"),
            Self::Clear => Effect::Fact("cleared"),
            Self::End => Effect::Count("ended", "(+ 1 (ended S))"),
            Self::Write | Self::Read => Effect::None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A way in which a run goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Harm {
    /// A row can arrive over rows that its reader may still read.
    #[error("rows are overwritten that may still be read")]
    Overwritten,
    /// A flag can arrive before the former one is cleared: one of the two is lost.
    #[error("a flag arrives where the former one is not cleared: one of them is lost")]
    FlagLost,
    /// A row can arrive in the partition of an operator that its reader has not ended. Stricter than
    /// [`Self::Overwritten`]: the slot itself may be idle there.
    #[error("rows arrive in a partition that is still in use")]
    InUse,
    /// A row can arrive after its reader was told that it is there.
    #[error("rows arrive after their flag was taken")]
    Torn,
    /// A row can be read that has not arrived.
    #[error("rows are read that have not arrived")]
    Uncovered,
}

impl Harm {
    pub const ALL: [Self; 5] = [Self::Overwritten, Self::FlagLost, Self::InUse, Self::Torn, Self::Uncovered];

    /// The step that does it, and what must hold for it not to. A state is safe if that holds of every such
    /// step that can be taken.
    pub const fn absent(self) -> (Step, &'static str) {
        match self {
            Self::Overwritten => (
                Step::Write,
                "(forall ((m Int)) (=> (and (<= 0 m) (reuse S J m N) (carries S J m)) (< m (ended@ S))))",
            ),
            Self::FlagLost => (
                Step::Land,
                "(forall ((m Int)) (=> (and (<= 0 m) (reuse S J m N) (expects S J m)) (cleared@ S J m)))",
            ),
            Self::InUse => {
                (Step::Write, "(forall ((m Int)) (=> (and (<= 0 m) (reuse S J m N)) (< m (ended@ S))))")
            }
            Self::Torn => (Step::Write, "(not (taken@ S J N))"),
            Self::Uncovered => (Step::Read, "(landed@ S J N)"),
        }
    }
}
