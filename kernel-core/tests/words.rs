//! What machines say: every wait and every error is a line of its own that tells all its numbers, and in an elastic domain
//! the ranks in it are renamed.

use kernel_core::fabric::{Fault, ProtocolError as E, Wait as W};
use kernel_core::place::Place;
use kernel_core::units::{CoreId, RankId};
use std::collections::BTreeSet;

const RANK: RankId = RankId(41);
const CORE: CoreId = CoreId(23);

fn waits() -> Vec<W> {
    let (source, local_expert) = (RANK, 52);
    vec![
        W::Quiet,
        W::Core(CORE),
        W::DispatchFlag { source, local_expert },
        W::CountFlag { source, local_expert },
        W::TokenFlag { source, local_expert },
        W::Grant { source, local_expert },
        W::Results { source },
        W::TpFlag { peer: RANK, core: CORE },
        W::BlockFlag { source, local_expert, record: 61, block: 62 },
        W::WindowCounts { source },
        W::WindowRows { source, rows: 63 },
        W::Entered { source },
        W::RowsDone { source, core: CORE },
        W::RelayedCount { relay: source, source: RankId(43), local_expert },
        W::Record { source, record: 61 },
        W::Idle,
        W::Nic { to: RANK },
        W::CombineFlag { source, token: 64, k: 65 },
    ]
}

fn errors() -> Vec<E> {
    let (source, local_expert, token, k) = (RANK, 52, 64, 65);
    let (at, seen, max) = (Place::state(0x7700), 0x99, 88);
    vec![
        E::Selector { at, seen },
        E::CoreWord { core: CORE, seen, epoch: 3 },
        E::Status { source, local_expert, seen },
        E::TokenFlag { source, local_expert, seen },
        E::Grant { source, local_expert, seen, max },
        E::Results { source, seen },
        E::SentRow { token, k, seen: 99, max },
        E::ResultsAt { seen },
        E::BlockFlag { source, local_expert, record: 61, block: 62, seen },
        E::Count { source, local_expert, seen: 99, max: 88 },
        E::Rows { seen: 99, max },
        E::Triple { row: 66, seen: [41, 64, 65] },
        E::CombineFlag { source, token, k, seen },
        E::TpSlot { core: CORE, seen },
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
        E::Fault(Fault { rank: RANK, at, len: 73 }),
        E::Internal("what for"),
    ]
}

/// The numbers of a value as it debugs, but for places, which have a form of their own.
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
        E::from(Fault { rank: RANK, at: Place::state(8), len: 1 }).to_string(),
        "no access to 1 bytes at state+0x8 of rank 41"
    );
}

#[test]
fn ranks_are_renamed_and_nothing_else() {
    let name = |rank: RankId| RankId(rank.0 + 900);
    for wait in waits() {
        let seen = wait.renamed(name);
        let (of_tp, before) = (matches!(wait, W::TpFlag { .. }), wait.source());
        assert_eq!(seen.source(), if of_tp { before } else { before.map(name) }, "{wait:?}");
        let renamed = format!("{wait:?}").replace("RankId(4", "RankId(94");
        assert_eq!(format!("{seen:?}"), if of_tp { format!("{wait:?}") } else { renamed });
    }
    for error in errors() {
        // A fault names the rank whose memory it is, and there are no agents in an elastic domain.
        let renamed = format!("{error:?}").replace("RankId(41)", "RankId(941)");
        let seen = format!("{:?}", error.renamed(name));
        assert!(seen == renamed || matches!(error, E::Fault(_) | E::Task { .. }), "{seen}, not {renamed}");
    }
}
