//! The kinds of evidence, from a model to a device: what each looks at, and what it cannot see.

use super::keep;
use super::sheet::{Anchor, Sheet};
use crate::common::json;

/// One kind of evidence.
struct Rung {
    class: &'static str,
    kind: &'static str,
    of: String,
    /// What was looked at there, as the program says.
    how_much: String,
    misses: &'static str,
}

/// The obligations of a proof, each of which a solver checks.
fn obligations() -> usize {
    include_str!("../../../../../verify/smt/theorem.smt2").matches("(check-sat)").count()
}

#[test]
fn the_kinds_of_evidence_are_drawn_with_what_they_miss() {
    let search = json(0, &["schedule", "DDCC"]);
    assert_eq!((&search["verdict"], &search["complete"]), (&"yes".into(), &true.into()));
    let plan = json(0, &["plan", "--preset", "deepseek-v3-decode", "--seed", "1"]);
    let rungs = [
        Rung {
            class: "p",
            kind: "proved",
            of: "model, any size".to_owned(),
            how_much: format!("{} obligations", obligations()),
            misses: "misses: the code",
        },
        Rung {
            class: "d",
            kind: "searched",
            of: format!("code, {} ranks", search["ranks"]),
            how_much: format!("{} states", search["states"]),
            misses: "misses: larger groups",
        },
        Rung {
            class: "g",
            kind: "sampled",
            of: format!("code, {} ranks", plan["ranks"]),
            how_much: "real sizes".to_owned(),
            misses: "misses: rare orders",
        },
        Rung {
            class: "x",
            kind: "assumed",
            of: "your device".to_owned(),
            how_much: "its memory's contract".to_owned(),
            misses: "nothing ran there",
        },
    ];
    const WIDTH: usize = 180;
    const STEP: usize = 44;
    let mut sheet = Sheet::new();
    let bottom = 20 + STEP * (rungs.len() - 1) + 116;
    for (number, rung) in rungs.iter().enumerate() {
        let (left, top) = (20 + number * (WIDTH + 8), 20 + STEP * (rungs.len() - 1 - number));
        sheet.rect([left, top], [WIDTH, bottom - top], rung.class);
        let lines = [("h", rung.kind), ("", &rung.of), ("", &rung.how_much), ("r", rung.misses)];
        for (y, (class, words)) in (top + 26..).step_by(24).zip(lines) {
            sheet.words([left + WIDTH / 2, y], Anchor::Middle, class, words);
        }
    }
    let right = 20 + rungs.len() * (WIDTH + 8) - 8;
    sheet.path(format!("M20 {0}L{right} {0}", bottom + 22), "c");
    sheet.label([right / 2, bottom + 26], Anchor::Middle, "", "closer to reality");
    let label = "Four kinds of evidence: a model is proved for any size, the code is searched for 2 ranks and sampled at real sizes, and \
                 your device is assumed; none sees what the next one does";
    keep("evidence", &sheet.finish_for_all([right + 20, bottom + 40], label));
}
