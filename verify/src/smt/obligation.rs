//! The questions to the solver: the theorem step by step, its instances, and that every guard is needed.

use super::model::{Effect, Guard, Harm, INVARIANT, PREMISE, QUIET_GATE, RIGID, STATE, Step};
use super::schedule::Schedule;
use super::z3::{self, Verdict};
use core::fmt::Write;
use core::time::Duration;

/// A question with the answer that is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obligation {
    /// What is claimed, or shown to fail.
    pub name: String,
    /// SMT-LIB 2, with one `check-sat`.
    pub script: String,
    /// The answer that confirms it.
    pub expect: Verdict,
}

impl Obligation {
    /// Asks z3.
    pub fn discharge(&self) -> Result<Duration, String> {
        let answer = z3::run(&self.script)?;
        if answer.verdicts == [self.expect] {
            Ok(answer.took)
        } else {
            Err(format!("{}: expected {:?}, z3 says {:?}", self.name, self.expect, answer.verdicts))
        }
    }
}

/// How a slot is cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Clears {
    /// By its reader; the clear lands up to the next quiet, as the fabric's contract has it.
    #[default]
    Late,
    /// By its reader; the clear lands at once, as on a strong memory.
    Prompt,
    /// By no rank: a flag holds its operator's number and is over when its reader has ended that operator.
    Epochs,
}

impl Clears {
    /// Whether the flag of an operator is cleared, where that follows from the rest of the state.
    const fn follows(self) -> Option<&'static str> {
        match self {
            Self::Late => None,
            Self::Prompt => Some("(taken@ s j n)"),
            Self::Epochs => Some("(< n (ended@ s))"),
        }
    }
}

/// The model, or a variant of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Theory {
    /// How slots are cleared.
    pub clears: Clears,
    /// A guard that is left out of every step that has it, by name.
    pub dropped: Option<&'static str>,
    /// Whether the premise of the theorem is left out.
    pub no_premise: bool,
}

impl Theory {
    /// The guards of a step in this variant.
    pub fn guards(&self, step: Step) -> impl Iterator<Item = &'static Guard> {
        let dropped = self.dropped;
        step.guards().iter().filter(move |(name, _)| Some(*name) != dropped)
    }

    pub fn steps(&self) -> impl Iterator<Item = Step> {
        let follows = self.clears != Clears::Late;
        Step::ALL.into_iter().filter(move |&step| !(follows && step == Step::Clear))
    }

    /// The premise of the theorem.
    pub fn premise(&self) -> String {
        if self.clears == Clears::Late { PREMISE.to_owned() } else { PREMISE.replace(QUIET_GATE, "") }
    }

    /// Sorts, what is rigid, and the premise.
    pub fn prelude(&self) -> String {
        let mut text = String::from("(declare-sort Rank 0)\n(declare-sort Slot 0)\n");
        for (name, signature, meaning) in RIGID {
            let _ = writeln!(text, "(declare-fun {name} {signature}) ; {meaning}");
        }
        text.push_str("(declare-fun gate (Rank Slot Int Int) Int)\n");
        text.push_str("(declare-fun told (Rank Slot Int Int) Slot)\n");
        if !self.no_premise {
            let _ = writeln!(text, "(assert {})", self.premise());
        }
        text
    }

    /// An arbitrary state before the step that is looked at.
    pub fn state(&self) -> String {
        let mut text = String::new();
        for (name, signature, _, meaning) in STATE {
            let (parameters, kind) = split(signature);
            let _ = match self.clears.follows().filter(|_| name == "cleared") {
                Some(value) => {
                    writeln!(text, "(define-fun {name} {parameters} {kind} {})", value.replace('@', ""))
                }
                None => writeln!(text, "(declare-fun {name} {} {kind}) ; {meaning}", types(parameters)),
            };
        }
        text
    }

    /// The state after a step, in terms of the one before.
    pub fn next_state(&self, step: Step) -> String {
        let mut text = String::new();
        for (name, signature, _, _) in STATE {
            let (parameters, kind) = split(signature);
            let follows = self.clears.follows().filter(|_| name == "cleared");
            let value = match (step.effect(), kind) {
                _ if follows.is_some() => follows.unwrap_or_default().replace('@', "_1"),
                (Effect::Count(changed, to), _) if changed == name => {
                    format!("(ite (= r S) {to} ({name} r))")
                }
                (Effect::Fact(changed), _) if changed == name => {
                    format!("(or ({name} s j n) (and (= s S) (= j J) (= n N)))")
                }
                (_, "Int") => format!("({name} r)"),
                _ => format!("({name} s j n)"),
            };
            let _ = writeln!(text, "(define-fun {name}_1 {parameters} {kind} {value})");
        }
        text
    }

    /// The invariant of the state with this suffix, as assertions.
    pub fn invariant(&self) -> String {
        INVARIANT.iter().fold(String::new(), |mut text, (name, formula)| {
            let _ = writeln!(text, "; {name}\n(assert {})", formula.replace('@', ""));
            text
        })
    }

    /// The guards of a step, as assertions about `S`, `J` and `N`.
    pub fn guard(&self, step: Step) -> String {
        let mut text = String::from("(declare-const S Rank) (declare-const J Slot) (declare-const N Int)\n");
        for (name, formula) in self.guards(step) {
            let _ = writeln!(text, "(assert {}) ; {step}: {name}", formula.replace('@', ""));
        }
        text
    }

    fn obligation(&self, name: String, expect: Verdict, parts: &[&str]) -> Obligation {
        let script = format!("; {name}\n{}{}{}(check-sat)\n", self.prelude(), self.state(), parts.concat());
        Obligation { name, script, expect }
    }

    /// The invariant holds in the beginning.
    pub fn init(&self) -> Obligation {
        let mut init = String::new();
        for (name, signature, value, _) in STATE {
            if self.clears != Clears::Late && name == "cleared" {
                continue;
            }
            let (parameters, _) = split(signature);
            let _ = writeln!(
                init,
                "(assert (forall {parameters} (= ({name}{}) {value})))",
                if parameters.contains("Slot") { " s j n" } else { " r" }
            );
        }
        self.obligation("init => I".to_owned(), Verdict::Unsat, &[&init, &violated("")])
    }

    /// A step keeps the invariant.
    pub fn step(&self, step: Step) -> Obligation {
        let parts = [&self.invariant(), &self.guard(step), &self.next_state(step), &violated("_1")];
        self.obligation(format!("I & {step} => I'"), Verdict::Unsat, &parts.map(String::as_str))
    }

    /// In a state with the invariant, a harm cannot be done.
    pub fn safe(&self, harm: Harm) -> Obligation {
        let (step, absent) = harm.absent();
        let harmful = format!("(assert (not {}))\n", absent.replace('@', ""));
        let parts = [&self.invariant(), &self.guard(step), &harmful];
        self.obligation(format!("I => not: {harm}"), Verdict::Unsat, &parts.map(String::as_str))
    }

    /// While some rank has not ended an operator, a rank can take a step of that operator or an earlier one which changes
    /// something. Every such step raises a count of a rank, or makes true one of finitely many facts of these operators: so if
    /// none is put off indefinitely, all ranks end the operator. For any number of ranks one of them has ended fewest. What flags
    /// are behind is no circle: each lies lower, so one that is missing lies lowest.
    pub fn goes_on(&self) -> Obligation {
        let mut stuck = "(declare-fun height (Rank Slot Int) Int)
(assert (forall ((s Rank) (j Slot) (n Int) (i Slot)) (=> (behind s j n i)
  (and (expects (source s j n) i n) (< (height (source s j n) i n) (height s j n))))))
(declare-const least Rank) (declare-const low Rank) (declare-const lowest Slot) (declare-const goal Int)
(define-fun misses ((r Rank) (j Slot)) Bool (and (expects r j (ended least)) (not (taken r j (ended least)))))
(define-fun sender () Rank (source low lowest (ended least)))
(assert (forall ((r Rank)) (<= (ended least) (ended r)))) ; one of them has ended fewest
(assert (forall ((r Rank) (j Slot)) (=> (misses r j) (and (misses low lowest)
  (<= (height low lowest (ended least)) (height r j (ended least))))))) ; and misses the lowest flag, if any
(assert (and (<= 0 (ended least)) (<= (ended least) goal)))\n"
            .to_owned();
        for step in self.steps().filter(|step| step.effect() != Effect::None) {
            let changes = match step {
                Step::Land | Step::Take => "(= S low) (= J lowest)",
                // To be quiet once more changes nothing.
                Step::Quiet => "(or (= S least) (= S low) (= S sender)) (< (hushed S) (begun S))",
                Step::Clear => "true",
                _ => "(or (= S least) (= S low) (= S sender))",
            };
            let guards: String = self.guards(step).map(|(_, formula)| formula.replace('@', "")).collect();
            let _ = writeln!(
                stuck,
                "(assert (forall ((S Rank) (J Slot) (N Int)) (not (and (<= N goal) {changes} {guards})))) ; {step}"
            );
        }
        let name = "I => some rank below N + 1 can move".to_owned();
        self.obligation(name, Verdict::Unsat, &[&self.invariant(), &stuck])
    }

    /// The whole theorem: one obligation for the beginning, one per step that changes something, one per harm.
    pub fn theorem(&self) -> Vec<Obligation> {
        let steps = self.steps().filter(|step| step.effect() != Effect::None);
        core::iter::once(self.init())
            .chain(steps.map(|step| self.step(step)))
            .chain(Harm::ALL.map(|harm| self.safe(harm)))
            .collect()
    }

    /// A state with the invariant in which a step can be taken although others are far on: the invariant and
    /// the guards do not contradict each other.
    pub fn can_be_taken(&self, step: Step) -> Obligation {
        let lively = "(declare-const other Rank) (declare-const earlier Int) (declare-const own Slot)
(assert (and (distinct S other) (behind S J N own)))
(assert (and (<= 0 earlier) (< earlier (- N 1)) (reuse S J earlier N) (expects S J N) (quiets S J (- N 1))))
(assert (and (<= 2 N) (< N (begun other)) (landed S J earlier) (cleared S J earlier)))\n";
        let parts = [&self.invariant(), &self.guard(step), lively];
        self.obligation(format!("{step} can be taken"), Verdict::Sat, &parts)
    }
}

/// The premise, for a schedule in which every gate waits for all: two uses of a slot have one in between.
pub fn instance(
    schedule: &Schedule,
    name: &str,
    gates: impl Fn(&Schedule, u32) -> bool,
    expect: Verdict,
) -> Obligation {
    let name = format!("{schedule}: {name}");
    let script = format!("; {name}\n{}(check-sat)\n", schedule.ungated(gates));
    Obligation { name, script, expect }
}

/// What links the instances to the theorem: an operator in between that waits for a flag of all who were quiet is a gate.
pub fn wait_all_is_a_gate() -> Obligation {
    let prelude = Theory { no_premise: true, ..Theory::default() }.prelude();
    let premise = PREMISE
        .replace("(gate s j m n)", "(between m n)")
        .replace("(told s j m n)", "(word_of s (source s j n) (between m n))");
    let name = "wait-all and quiet in between => premise".to_owned();
    let script = format!(
        "; {name}
{prelude}
(declare-fun waits_for_all (Int) Bool)
(declare-fun between (Int Int) Int)
(declare-fun word_of (Rank Rank Int) Slot) ; the slot of r in which it awaits s in n
(assert (forall ((s Rank) (r Rank) (n Int)) (=> (waits_for_all n)
  (and (quiets r (word_of s r n) n) (expects r (word_of s r n) n) (= s (source r (word_of s r n) n))))))
(assert (forall ((s Rank) (j Slot) (m Int) (n Int)) (=> (reuse s j m n)
  (and (< m (between m n)) (< (between m n) n) (waits_for_all (between m n))))))
(assert (not {premise}))
(check-sat)
"
    );
    Obligation { name, script, expect: Verdict::Unsat }
}

/// The hierarchy's slots keep the premise: namesakes hear from each other by end flags in every operator, and their slots have
/// two partitions; near ranks write after the word that their owner has entered. Its twins have fewer partitions, or a write
/// that is not after that word.
pub fn hierarchy_has_gates(partitions: u32, is_behind: bool) -> Obligation {
    let theory = Theory { no_premise: true, clears: Clears::Epochs, ..Theory::default() };
    let premise = theory
        .premise()
        .replace("(gate s j m n)", "(ite (near (source s j n) s) n (- n 1))")
        .replace("(told s j m n)", "(ite (near (source s j n) s) (entered s) (end s))");
    let behind = if is_behind { "(behind s j n (entered s))" } else { "" };
    let expect = if partitions > 1 && is_behind { Verdict::Unsat } else { Verdict::Sat };
    let name =
        format!("hierarchy, {partitions} partitions, near writes behind entered: {is_behind} => premise");
    let script = format!(
        "; {name}
{}
(declare-fun near (Rank Rank) Bool)
(declare-fun namesake (Rank Rank) Bool)
(declare-fun entered (Rank) Slot) ; in which its near ranks hear that this one has entered
(declare-fun end (Rank) Slot) ; in which its namesakes get the end flag of its stream
(assert (forall ((r Rank) (s Rank) (n Int)) (and
  (=> (near r s) (and (expects r (entered s) n) (= s (source r (entered s) n))))
  (=> (namesake r s) (and (expects r (end s) n) (= s (source r (end s) n)))))))
(assert (forall ((s Rank) (j Slot) (m Int) (n Int)) (=> (and (expects s j n) (reuse s j m n))
  (ite (near (source s j n) s) (and (< m n) {behind})
       (and (namesake (source s j n) s) (<= (+ m {partitions}) n))))))
(assert (not {premise}))
(check-sat)
",
        theory.prelude()
    );
    Obligation { name, script, expect }
}

/// In any order of operators whatever, a kind that waits for all needs two partitions: its own operators are
/// the gates. `at(i)` is the number of its `i`-th operator.
pub fn two_partitions_of_wait_all() -> Obligation {
    let name = "any schedule: wait-all with 2 partitions has a gate".to_owned();
    let script = format!(
        "; {name}
(declare-fun at (Int) Int)
(assert (forall ((i Int)) (< (at i) (at (+ i 1)))))
(assert (forall ((i Int) (k Int)) (=> (< i k) (< (at i) (at k))))) ; the same, for any distance
(declare-const i Int) (declare-const uses Int)
(assert (and (<= 0 i) (<= 1 uses)))
(assert (not (exists ((g Int)) (and (< (at i) (at g)) (< (at g) (at (+ i (* 2 uses))))))))
(check-sat)
"
    );
    Obligation { name, script, expect: Verdict::Unsat }
}

/// The instances that the documents claim, with the answer of each: unsat where there is a gate in between.
pub fn instances() -> Vec<Obligation> {
    let waits = Schedule::waits_for_all;
    let (yes, no) = (Verdict::Unsat, Verdict::Sat);
    let claimed = [
        (Schedule::a2(2), yes),
        (Schedule::a2(1), no),
        (Schedule::a3("DC", 2, 2), yes),
        (Schedule::a3("DC", 2, 1), yes),
        (Schedule::a3("DC", 1, 2), no),
        (Schedule::a3("DDCC", 2, 2), yes),
        (Schedule::a3("DDCC", 2, 1), no),
        (Schedule::a3("DDDCCC", 2, 2), no),
        (Schedule::a3("DDDCCC", 2, 3), yes),
        (Schedule::a3("DDCDCC", 2, 2), yes),
        (Schedule::a3("DDDDCCCC", 2, 3), no),
        (Schedule::a3("DDDDCCCC", 2, 4), yes),
    ];
    let mut all: Vec<_> = claimed
        .iter()
        .map(|(schedule, expect)| {
            let what = if *expect == yes { "a gate between two uses" } else { "NO gate between two uses" };
            instance(schedule, what, waits, *expect)
        })
        .collect();
    // One dispatch partition: the combine in between is a gate for the pairs of ranks that have traffic, but
    // it is not quiet, so only where clears land at once.
    let name = "a combine between two dispatches";
    all.push(instance(&Schedule::a3("DC", 1, 1), name, |_, _| true, yes));
    all
}

/// The theorem as one file, for people and for other solvers: `verify/smt/NAME.smt2`. Where flags are epochs it ends with what links
/// the hierarchy to it.
pub fn theorem_file(name: &str, clears: Clears) -> String {
    let theory = Theory { clears, ..Theory::default() };
    let mut text = format!(
        "; Written by veriep_verify::smt::obligation::theorem_file; a test keeps it so. Run: z3 verify/smt/{name}.smt2
; Any number of ranks: between two uses of a slot the rank that writes it next has waited for its owner.
; A slot (s, j) is a flag word of rank s and the rows it covers; operators n are numbered as every rank runs them.
; The answer to every question is unsat.\n\n{}\n{}",
        theory.prelude(),
        theory.state()
    );
    let shared = format!("{}{}", theory.prelude(), theory.state());
    for Obligation { name, script, .. } in theory.theorem().into_iter().chain([theory.goes_on()]) {
        let own = script.replace(&shared, "").replace(&format!("; {name}\n"), "");
        let _ = write!(text, "\n; ---- {name}\n(push)\n{own}(pop)\n");
    }
    if clears == Clears::Epochs {
        text.push_str("\n(reset)\n");
        text.push_str(&hierarchy_has_gates(2, true).script);
    }
    text
}

fn violated(suffix: &str) -> String {
    let all = INVARIANT.iter().fold(String::new(), |mut text, (_, formula)| {
        text.push('\n');
        text.push_str(&formula.replace('@', suffix));
        text
    });
    format!("(assert (not (and {all})))\n")
}

/// `((r Rank)) Int` as its parameters and its type.
fn split(signature: &'static str) -> (&'static str, &'static str) {
    signature.rsplit_once(' ').unwrap_or((signature, ""))
}

/// `((s Rank) (j Slot))` as `(Rank Slot)`.
fn types(parameters: &str) -> String {
    let names = parameters.trim_matches(['(', ')']).split(") (");
    let types: Vec<_> = names.filter_map(|pair| pair.split_once(' ')).map(|(_, t)| t).collect();
    format!("({})", types.join(" "))
}
