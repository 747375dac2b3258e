//! The exam of the exam: a zoo of memories, right and wrong, on which both the programs and whole rounds are run.
//!
//! **The law.** If any round of any protocol goes wrong on a memory, a required program fails on it; and a right memory passes all
//! of them.

mod fault;
mod memory;
mod rounds;
mod view;
mod zoo;

use super::{Claim, Extent, Litmus, SUITES};
use crate::layout::state::STATE_BYTES;
use crate::shape::Shape;
use crate::testing::golden;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicUsize, Ordering};
use fault::Animal;
use rounds::{ROUNDS, Setup, extents, fresh, held, litmus_shape, play, setups, wide, with_windows};

/// A required program, and the group that it needs.
struct Question {
    litmus: &'static Litmus,
    shape: Shape,
}

/// The finding about a memory: the numbers of the programs that fail, and of the setups in which a round goes wrong.
struct Row {
    animal: &'static Animal,
    fails: Vec<usize>,
    wrong: Vec<usize>,
}

/// The exam, and the rounds that it is to foretell.
struct Exam {
    questions: Vec<Question>,
    setups: Vec<Setup>,
}

impl Exam {
    fn new() -> Self {
        let of = |(suite, server_ranks): (&'static [Litmus], u32)| {
            let required = suite.iter().filter(|litmus| litmus.claim == Claim::Required);
            required.map(move |litmus| Question { litmus, shape: litmus_shape(server_ranks) })
        };
        Self { questions: SUITES.into_iter().flat_map(of).collect(), setups: setups() }
    }

    /// Every memory, with what `look` finds of it: two at a time.
    fn each(look: impl Fn(&'static Animal) -> Row + Sync) -> Vec<Row> {
        let all: Vec<_> = zoo::RIGHT.iter().chain(zoo::WRONG).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut rows = Vec::new();
            while let Some(&animal) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                rows.push(look(animal));
            }
            rows
        };
        let in_threads = || {
            std::thread::scope(|scope| {
                let threads = [(); 2].map(|()| scope.spawn(work));
                threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
            })
        };
        // WebAssembly has none.
        let mut rows = if cfg!(target_family = "wasm") { work() } else { in_threads() };
        rows.sort_by_key(|row| all.iter().position(|animal| animal.name == row.animal.name));
        rows
    }

    fn fails(&self, animal: &'static Animal, seeds: u64) -> impl Iterator<Item = usize> {
        let failing = move |at: &usize| {
            let question = &self.questions[*at];
            animal.terms().calls.contains(question.litmus.calls()) && fails(question, animal, seeds)
        };
        (0..self.questions.len()).filter(failing)
    }

    fn wrong(&self, animal: &'static Animal, seeds: u64) -> impl Iterator<Item = usize> {
        let goes_wrong = move |at: &usize| {
            let setup = &self.setups[*at];
            setup.admits(animal) && (0..seeds).any(|seed| play(setup, animal, seed).is_err())
        };
        (0..self.setups.len()).filter(goes_wrong)
    }

    /// The matrix as a text.
    fn text(&self, rows: &[Row]) -> String {
        let mut text = String::from(HEAD);
        text += "\n\n# Required programs, and the harmful memories that each alone convicts\n";
        for (at, question) in self.questions.iter().enumerate() {
            let alone = rows.iter().filter(|row| row.fails == [at] && !row.wrong.is_empty());
            let alone: Vec<_> = alone.map(|row| row.animal.name).collect();
            _ = writeln!(
                text,
                "{:2} {}{}{}",
                at + 1,
                question.litmus.name,
                if alone.is_empty() { "" } else { " <- " },
                alone.join("; ")
            );
        }
        text += "\n# Memories: the programs that fail; the setups in which rounds go wrong\n";
        for Row { animal, fails, wrong } in rows {
            let setups: Vec<_> = wrong.iter().map(|&at| self.setups[at].name).collect();
            let programs: Vec<_> = fails.iter().map(|at| format!("{}", at + 1)).collect();
            let or_none = |all: String| if all.is_empty() { "none".to_string() } else { all };
            let (programs, setups) = (or_none(programs.join(" ")), or_none(setups.join(", ")));
            _ = writeln!(text, "{}\n    programs: {programs}\n    rounds: {setups}", animal.name);
        }
        text
    }
}

const HEAD: &str =
    "Faulty and unusual memories, the exam, and whole rounds. Made by `exam::the_matrix_is_as_committed`.";

fn fails(question: &Question, animal: &Animal, seeds: u64) -> bool {
    let Question { litmus, shape } = question;
    extents(shape, litmus).into_iter().map(|extent| extent.with_line(animal.line)).any(|extent| {
        let mut behind = fresh(shape);
        (0..seeds).any(|seed| {
            if seed > 0 && (seed % PLACES == 0 || extent.is_wide()) {
                behind = fresh(shape);
            }
            let repetition = if extent.is_wide() { 0 } else { seed % PLACES };
            !held(litmus, &mut behind, animal, extent, repetition, seed)
        })
    })
}

/// Repetitions that share a memory.
const PLACES: u64 = 8;

/// The law, on few seeds. Of a wrong memory it is enough that the exam fails somewhere; where no round has gone wrong, nothing is
/// asked.
#[test]
fn a_memory_that_breaks_the_protocol_fails_the_exam_and_a_right_one_does_not() {
    let exam = Exam::new();
    let rows = Exam::each(|animal| {
        let fails: Vec<_> = match animal.is_right() {
            true => exam.fails(animal, 2).collect(),
            false => exam.fails(animal, 3).take(1).collect(),
        };
        // The matrix, not this test, asks whether a wrong memory that fails the exam breaks a protocol.
        let asks = animal.is_right() || fails.is_empty();
        Row { animal, fails, wrong: if asks { exam.wrong(animal, 1).collect() } else { Vec::new() } }
    });
    for Row { animal, fails, wrong } in rows {
        let programs: Vec<_> = fails.iter().map(|&at| exam.questions[at].litmus.name).collect();
        let setups: Vec<_> = wrong.iter().map(|&at| exam.setups[at].name).collect();
        if animal.is_right() {
            assert!(
                fails.is_empty() && wrong.is_empty(),
                "{} is right: {programs:?} {setups:?}",
                animal.name
            );
        } else {
            assert!(wrong.is_empty(), "{} passes, and goes wrong in {setups:?}", animal.name);
        }
    }
}

/// All programs on all memories, and as many rounds as take minutes: `.ci/prove` asks for them.
#[test]
fn the_matrix_is_as_committed() {
    if std::env::var_os("VERIEP_THOROUGH").is_none() {
        return;
    }
    let exam = Exam::new();
    let rows = Exam::each(|animal| Row {
        animal,
        fails: exam.fails(animal, 16).collect(),
        wrong: exam.wrong(animal, 12).collect(),
    });
    for row in &rows {
        let Row { animal, fails, wrong } = row;
        if animal.is_right() {
            assert!(fails.is_empty() && wrong.is_empty(), "{} is right: {fails:?} {wrong:?}", animal.name);
        }
        assert!(wrong.is_empty() || !fails.is_empty(), "{} escapes: {wrong:?}", animal.name);
    }
    golden::check("exam.txt", &exam.text(&rows));
}

/// The law on a thousand rounds of every setup: on a memory that passes the exam none goes wrong.
#[test]
#[ignore = "takes minutes: cargo test -p veriep-core --all-features --lib -- --ignored a_thousand_rounds"]
fn a_thousand_rounds_go_well_on_a_memory_that_passes_the_exam() {
    const SEEDS: u64 = 1000 / ROUNDS as u64;
    let exam = Exam::new();
    let rows = Exam::each(|animal| {
        let fails: Vec<_> = exam.fails(animal, 3).take(1).collect();
        let wrong = if fails.is_empty() { exam.wrong(animal, SEEDS).collect() } else { Vec::new() };
        Row { animal, fails, wrong }
    });
    for Row { animal, wrong, .. } in rows {
        let setups: Vec<_> = wrong.iter().map(|&at| exam.setups[at].name).collect();
        assert!(wrong.is_empty(), "{} passes, and goes wrong in {setups:?}", animal.name);
    }
}

/// Windows of 5 GiB, of which little is touched. Programs whose places lie far apart see that they wrap at 4.
#[cfg(target_pointer_width = "64")]
#[test]
fn a_window_that_wraps_at_4_gib_fails_the_exam_if_it_is_as_large() {
    if std::env::var_os("VERIEP_THOROUGH").is_none() {
        return;
    }
    const WINDOW: u64 = 5 << 30;
    let extent = Extent::new(1032, WINDOW, STATE_BYTES).expect("a legal row");
    let fails = |animal: &Animal| {
        let questions = Exam::new().questions.into_iter();
        let questions = questions
            .filter(|question| extents(&question.shape, question.litmus).contains(&wide(&question.shape)));
        let fail = |Question { litmus, shape }: &Question| {
            !held(litmus, &mut with_windows(shape, WINDOW), animal, extent, 0, 1)
        };
        questions.filter(fail).map(|question| question.litmus.name).collect::<Vec<_>>()
    };
    assert_eq!(fails(&zoo::RIGHT[0]), [""; 0]);
    assert_ne!(fails(&zoo::WRAPS_AT_4_GIB), [""; 0]);
}

/// The door, on which the law rests for such memories: without it they would go wrong.
#[test]
fn a_memory_that_states_its_line_is_admitted_where_the_layout_keeps_it_apart() {
    let admitted = |line| -> Vec<_> {
        let animal = zoo::states(line, "a line", line);
        setups().iter().filter(|setup| setup.admits(&animal)).map(|setup| setup.name).collect()
    };
    let lines = ["slots of a line", "slots of a line on three ranks", "slots of a line in place"];
    let joint = ["joint", "joint on three ranks", "joint with long rows", "in place"];
    assert_eq!(admitted(8).len(), setups().len());
    for line in [16, 32] {
        let all = admitted(line);
        assert!(
            all.len() == 7 && joint.iter().chain(&lines).all(|name| all.contains(name)),
            "{line}: {all:?}"
        );
    }
    assert_eq!(admitted(64), lines);
    assert_eq!(admitted(128), [""; 0]);
}

/// The zoo is as large as it is said to be, and no two have one name.
#[test]
fn the_zoo_has_many_memories() {
    let names: BTreeSet<_> = zoo::RIGHT.iter().chain(zoo::WRONG).map(|animal| animal.name).collect();
    assert_eq!(names.len(), zoo::RIGHT.len() + zoo::WRONG.len());
    assert!(zoo::RIGHT.len() >= 15 && zoo::WRONG.len() >= 30);
}
