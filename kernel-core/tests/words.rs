//! The messages of machines: every wait and every error has a line of its own with all its numbers, and in an elastic
//! domain its ranks are renamed.

use std::collections::BTreeSet;
use veriep_core::fabric::{Detail, Fault, Flag, ProtocolError as E, Wait};
use veriep_core::place::Place;
use veriep_core::units::{CoreId, RankId};

const RANK: RankId = RankId(41);
const CORE: CoreId = CoreId(23);
/// The peer's number in the TP domain.
const PEER: RankId = RankId(1);

fn waits() -> Vec<Wait> {
    let of = |flag, index: &[u32]| Wait::new(flag, RANK, index);
    vec![
        Wait::QUIET,
        Wait::barrier(CORE),
        of(Flag::Dispatch, &[52]),
        of(Flag::Count, &[52]),
        of(Flag::Token, &[52]),
        of(Flag::Counts, &[]),
        of(Flag::Grant, &[]),
        of(Flag::Tokens, &[]),
        of(Flag::Results, &[]),
        Wait::new(Flag::Tp, PEER, &[CORE.0]),
        of(Flag::Block, &[52, 61, 62]),
        of(Flag::WindowCounts, &[]),
        of(Flag::WindowRows, &[63]),
        of(Flag::Entered, &[]),
        Wait::new(Flag::RowsDone, RANK, &[CORE.0]),
        of(Flag::RelayedCount, &[43, 52]),
        of(Flag::Record, &[61]),
        Wait::IDLE,
        of(Flag::Nic, &[]),
        Wait::ROOM,
        of(Flag::Combine, &[64, 65]),
    ]
}

fn errors() -> Vec<E> {
    let (source, local_expert, token, k) = (RANK, 52, 64, 65);
    let (at, seen, max) = (Place::state(0x7700), 0x99, 88);
    let flag = |flag, index: &[u32]| E::Flag { awaited: Wait::new(flag, RANK, index), seen };
    vec![
        E::Selector { at, seen },
        E::CoreWord { core: CORE, seen, epoch: 3 },
        flag(Flag::Dispatch, &[52]),
        flag(Flag::Token, &[52]),
        E::Grant { source, local_expert, seen, max },
        flag(Flag::Results, &[]),
        E::SentRow { token, k, seen: 99, max },
        E::ResultsAt { seen },
        flag(Flag::Block, &[52, 61, 62]),
        E::Count { source, local_expert, seen: 99, max: 88 },
        E::Rows { seen: 99, max },
        E::Triple { row: 66, seen: [41, 64, 65] },
        flag(Flag::Combine, &[token, k]),
        E::Flag { awaited: Wait::new(Flag::Tp, PEER, &[CORE.0]), seen },
        E::TpRows { core: CORE, first: 67, rows: 68, max },
        E::NotFinite { token },
        E::RecvCounts { seen: 99, max },
        E::RecvCount { slot: 69, seen: 99, min: 70, max: 88 },
        E::ExpandIdx { token, k, seen: 99, slots: 71 },
        E::Doorbell { seen: 99, min: 70, max },
        E::Task { peer: RANK, field: "count", seen: 99, min: 70, max },
        E::Epoch { at, seen: 99, max },
        E::Part { source, token, position: 72, seen: 99, min: 70, max: 88 },
        E::Record { source, record: 61, field: "pairs", seen: 99 },
        E::Fault(Fault::new(RANK, at, 73)),
        E::Fault(Fault::new(RANK, at, 73).with_code(-74)),
        E::Fault(Fault::busy(RANK, at, 73)),
        E::OtherMachine,
        E::Given("what"),
        E::Internal("what for"),
    ]
}

/// Returns the numbers of a value's debug output, without places, which have a format of their own.
fn numbers(debugged: &str) -> Vec<u64> {
    let digits = debugged.split(|c: char| !c.is_ascii_alphanumeric());
    digits.filter_map(|word| word.parse().ok()).filter(|&number| number > 20 && number < 0x7700).collect()
}

fn judge(all: &[(String, String)]) {
    let lines: BTreeSet<_> = all.iter().map(|(_, line)| line).collect();
    assert_eq!(lines.len(), all.len(), "two of them look alike");
    for (debugged, line) in all {
        assert!(!line.is_empty() && !line.contains('\n'), "{debugged}");
        for number in numbers(debugged) {
            let told = [number.to_string(), format!("{number:#x}")].iter().any(|form| line.contains(form));
            assert!(told, "{line:?} does not tell {number} of {debugged}");
        }
    }
}

#[test]
fn every_wait_is_a_line_of_its_own_with_all_its_numbers() {
    judge(&waits().iter().map(|wait| (format!("{wait:?}"), wait.to_string())).collect::<Vec<_>>());
}

#[test]
fn every_error_is_a_line_of_its_own_with_all_its_numbers() {
    judge(&errors().iter().map(|error| (format!("{error:?}"), error.to_string())).collect::<Vec<_>>());
    assert_eq!(
        E::from(Fault::new(RANK, Place::state(8), 1)).to_string(),
        "no access to 1 bytes at state+0x8 of rank 41"
    );
    let coded = Fault::new(RANK, Place::state(8), 1).with_code(-5);
    assert_eq!(coded.to_string(), "no access to 1 bytes at state+0x8 of rank 41: the backend says -5");
}

#[test]
fn ranks_are_renamed_and_nothing_else() {
    let name = |rank: RankId| RankId(rank.0 + 900);
    for wait in waits() {
        let is_rank = |detail| detail == Detail::RowsOf || detail == Detail::Rank && wait.flag != Flag::Tp;
        let renamed = |(detail, value)| (detail, if is_rank(detail) { value + 900 } else { value });
        let seen = wait.renamed(name);
        assert!(seen.details().eq(wait.details().map(renamed)), "{wait:?}");
        let source = wait.source().map(|rank| if wait.flag == Flag::Tp { rank } else { name(rank) });
        assert_eq!((seen.flag, seen.source()), (wait.flag, source));
    }
    for error in errors() {
        // A fault names the physical rank of the memory, and an elastic domain has no agents.
        let renamed = format!("{error:?}").replace("RankId(41)", "RankId(941)");
        let seen = format!("{:?}", error.renamed(name));
        assert!(seen == renamed || matches!(error, E::Fault(_) | E::Task { .. }), "{seen}, not {renamed}");
    }
}
