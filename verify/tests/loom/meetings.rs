//! Meetings of all processes, and of all threads of one: who goes on sees what the others did before, and may write again what
//! they have read since the meeting before. The code is that which drivers run.

use veriep_verify::defects::Defect;
use veriep_verify::loom::join::{Meet, announcements, meetings};
use veriep_verify::loom::search::{Bound, failure, model};

/// What is written before the third meeting was read after the first.
#[test]
fn who_has_met_all_others_sees_what_they_did() {
    let body = |meet, times| meetings(meet, 2, times, Defect::None);
    model("two meet once, words", Bound::Complete, 33..=41, body(Meet::Words, 1));
    model("two meet once, a count", Bound::Complete, 19..=23, body(Meet::Count, 1));
    model("two meet three times, words", Bound::Preemptions(3), 2_550..=3_120, body(Meet::Words, 3));
    model("two meet three times, a count", Bound::Preemptions(3), 450..=552, body(Meet::Count, 3));
}

/// Needs a memory weaker than total store order; one meeting of two.
#[test]
fn catches_relaxed_meetings() {
    let bent = [(Meet::Words, Defect::RelaxedOpen), (Meet::Count, Defect::RelaxedArrival)];
    let looks = [Meet::Words, Meet::Count].map(|meet| (meet, Defect::RelaxedLook));
    for (meet, defect) in bent.into_iter().chain(looks) {
        let how =
            failure(&format!("meeting, {meet:?}, {defect:?}"), Bound::Complete, meetings(meet, 2, 1, defect));
        assert!(how.contains("Causality violation") || how.contains("Concurrent"), "{how}");
    }
}

/// One of two that differ ends before it has moved anything, and the other cannot end its operator without it.
#[test]
fn of_two_calls_at_once_one_sees_the_other() {
    model("two announce a call", Bound::Complete, 66..=80, announcements(Defect::None));
}

/// Needs a memory weaker than total store order.
#[test]
fn catches_relaxed_announcements() {
    for (defect, seen) in [
        (Defect::RelaxedArrival, "both began without the other's call"),
        (Defect::RelaxedOpen, "Causality violation"),
        (Defect::RelaxedLook, "Causality violation"),
    ] {
        let how = failure(&format!("announcement, {defect:?}"), Bound::Complete, announcements(defect));
        assert!(how.contains(seen) || how.contains("Concurrent"), "{defect:?}: {how}");
    }
}
