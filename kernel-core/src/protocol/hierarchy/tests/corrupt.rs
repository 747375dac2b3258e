//! One word of another rank is corrupted: its reader refuses it by name, or waits for it by name.

use super::small;
use crate::fabric::ProtocolError;
use crate::layout::relay::{self, Part, ROW, Tail, behind, mark};
use crate::layout::state::{Operator, Partition};
use crate::place::Place;
use crate::plan::relay as plan;
use crate::protocol::Stage;
use crate::shape::{Config, Shape};
use crate::sim::cluster::Failure;
use crate::sim::seeded::Memory::Weak;
use crate::testing::domain::{Dice, Tensors, shape as shape_of};
use crate::testing::group::unmasked_rounds as random_rounds;
use crate::units::{CoreId, RankId};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The rank that reads the word. Its namesake on server 1 is rank 2.
const READER: RankId = RankId(0);
const SOURCE: RankId = RankId(2);
const BOTH: [Stage; 2] = [Stage::Two, Stage::Three];

/// Two servers of two ranks with batches of 4, of which rank 2 has only 3 tokens, so there is room for more records.
fn domain() -> Shape {
    let sizes = crate::shape::BatchSizes::PerRank(&[4, 4, 3, 4]);
    shape_of(&Config { bs: sizes, global_bs: 16, ..small() })
}

/// Tensors such that each of both ranks has a token with two rows on server 0.
fn tensors(shape: &Shape) -> Vec<Vec<Tensors>> {
    let two = Part { pairs: 2, position: 1 };
    let has = |tensors: &[Vec<Tensors>], rank: RankId| {
        let mut rows = plan::inside(shape, &tensors[0][rank.index()].ids);
        rows.any(|(_, server, forward)| (server, forward.part) == (0, two))
    };
    let mut drawn = (0..).map(|seed| random_rounds(shape, 1, &mut Dice(seed)));
    drawn.find(|tensors| has(tensors, READER) && has(tensors, SOURCE)).unwrap()
}

/// Runs one round in which the word at `at` of the reader is `word`.
fn lie(stage: Stage, at: Place, word: u64) -> Result<(), Failure> {
    let shape = domain();
    let mut group = super::group(stage, &shape, tensors(&shape), "DC");
    group.memory.stuck.push((READER, at, word));
    group.memory.rewrites = true;
    group.play(Weak, 1)
}

/// Returns the reader's error.
fn refusal(stage: Stage, at: Place, word: u64) -> String {
    match lie(stage, at, word) {
        Err(Failure::Core(READER, CoreId(0), error)) => {
            assert!(!matches!(error, ProtocolError::Internal(_) | ProtocolError::Given(_)), "{error}");
            format!("{error}")
        }
        other => panic!("{stage:?}, {word:#x} at {at}: {other:?}"),
    }
}

/// The places of record number `record` from server 1, and of the end flag.
fn stream(stage: Stage, kind: Operator, record: u32) -> (Place, Place) {
    let (shape, partition) = (domain(), partition(kind));
    match stage {
        Stage::Two => (
            Place::window(relay::gathered(&shape, (partition, kind), 1, record)),
            Place::window(relay::gathered_end(&shape, partition, 1)),
        ),
        Stage::Three => (relay::record(&shape, partition, 1, record), relay::end_flag(partition, 1)),
    }
}

/// Dispatch is operator 1, combine is operator 2.
const fn partition(kind: Operator) -> Partition {
    match kind {
        Operator::Dispatch => Partition::P0,
        Operator::Combine => Partition::P1,
    }
}

const fn epoch(kind: Operator) -> u64 {
    match kind {
        Operator::Dispatch => 1,
        Operator::Combine => 2,
    }
}

/// Returns the number of records that cross from rank 2 to rank 0 in the operator.
fn records(kind: Operator) -> u32 {
    let shape = domain();
    let tensors = tensors(&shape);
    let (rank, server) = match kind {
        Operator::Dispatch => (SOURCE, 0),
        Operator::Combine => (READER, 1),
    };
    let crossings = plan::across(&shape, rank, &tensors[0][rank.index()].ids);
    crossings.filter(|crossing| crossing.server == server).count() as u32
}

#[test]
fn an_end_flag_of_another_operator_or_with_too_many_records_is_refused() {
    for (stage, kind) in BOTH.into_iter().flat_map(|s| [(s, Operator::Dispatch), (s, Operator::Combine)]) {
        let (epoch, n) = (epoch(kind), records(kind));
        assert!(n > 1, "{n}");
        let (first, end) = stream(stage, kind, 0);
        let seen = refusal(stage, end, mark(epoch + 1, n));
        assert!(seen.contains(&format!("word at {end} names operator {}", epoch + 1)), "{seen}");
        let seen = refusal(stage, end, mark(epoch, 5));
        assert!(seen.contains("of rank 2: records = 5"), "{seen}");
        let seen = refusal(stage, first, epoch + 1);
        assert!(seen.contains(&format!("word at {first} names operator {}", epoch + 1)), "{seen}");
        // The source has sent no record of that number.
        if n < 4 {
            let seen = refusal(stage, end, mark(epoch, n + 1));
            assert!(seen.contains(&format!("record {n} of rank 2")), "{n} {seen}");
        }
    }
}

#[test]
fn a_stream_that_is_shorter_than_the_owner_knows_is_refused() {
    let (n, kind) = (records(Operator::Combine), Operator::Combine);
    for stage in BOTH {
        let (_, end) = stream(stage, kind, 0);
        let seen = refusal(stage, end, mark(epoch(kind), n - 1));
        assert!(seen.contains(&format!("of rank 2: records = {}", n - 1)), "{seen}");
    }
}

#[test]
fn a_record_without_its_own_flag_is_refused() {
    for (stage, kind) in BOTH.into_iter().flat_map(|s| [(s, Operator::Dispatch), (s, Operator::Combine)]) {
        let (first, _) = stream(stage, kind, 0);
        let seen = refusal(stage, first, 0);
        assert!(seen.contains("record 0 of rank 2: front flag = 0"), "{seen}");
    }
}

#[test]
fn a_record_of_no_token_or_with_other_pairs_is_refused() {
    for (stage, kind) in BOTH.into_iter().flat_map(|s| [(s, Operator::Dispatch), (s, Operator::Combine)]) {
        let at = behind(stream(stage, kind, 0).0, relay::TOKEN);
        let seen = refusal(stage, at, 1 << 32 | 4);
        assert!(seen.contains("record 0 of rank 2: token = 4"), "{seen}");
        let seen = refusal(stage, at, 9 << 32);
        let field = if kind == Operator::Dispatch { "pairs = 9" } else { "token = 0" };
        assert!(seen.contains(&format!("record 0 of rank 2: {field}")), "{seen}");
    }
}

#[test]
fn ids_that_do_not_make_as_many_pairs_as_the_record_says_are_refused() {
    let shape = domain();
    let tensors = tensors(&shape);
    let mut rows = plan::inside(&shape, &tensors[0][SOURCE.index()].ids);
    let (_, _, forward) = rows.find(|(_, server, _)| *server == 0).unwrap();
    for stage in BOTH {
        let ids = relay::record_ids(&shape) + u64::from(4 * (forward.k & !1));
        let at = behind(stream(stage, Operator::Dispatch, 0).0, ids);
        let seen = refusal(stage, at, u64::MAX);
        assert!(seen.contains("record 0 of rank 2: pairs"), "{seen}");
    }
}

#[test]
fn an_impossible_count_is_refused() {
    let shape = domain();
    let at = relay::count(&shape, Partition::P0, 1, SOURCE);
    for stage in BOTH {
        let seen = refusal(stage, at, mark(1, 4));
        assert!(seen.contains("count of rank 2 for local expert 1 = 4: must be in [0, 3]"), "{seen}");
        let seen = refusal(stage, at, mark(2, 0));
        assert!(seen.contains(&format!("word at {at} names operator 2")), "{seen}");
    }
}

/// Returns the local expert of a row that the reader gets from rank 2 in dispatch.
fn row_from_source() -> u32 {
    let shape = domain();
    let tensors = tensors(&shape);
    let mut rows = plan::inside(&shape, &tensors[0][SOURCE.index()].ids);
    rows.find(|(_, _, forward)| forward.home.rank == READER).unwrap().2.home.local_expert
}

#[test]
fn a_row_that_says_another_source_or_no_token_is_refused() {
    let shape = domain();
    let slot = relay::dispatch_slot(&shape, row_from_source(), SOURCE, 0);
    let at = behind(slot, ROW + shape.payload_bytes() + Tail::TRIPLE);
    for stage in BOTH {
        for (source, token) in [(3, 0), (2, 3), (4, 0)] {
            let seen = refusal(stage, at, token << 32 | source);
            assert!(seen.contains(&format!("= ({source}, {token}, ")), "{seen}");
        }
    }
}

#[test]
fn contradicting_flags_of_returned_rows_are_refused_by_their_reader() {
    let shape = domain();
    let tensors = tensors(&shape);
    // A token with two rows on this server, of the namesake and of the reader itself.
    for (source, server) in [(SOURCE, 1), (READER, 0)] {
        let rows = plan::inside(&shape, &tensors[0][source.index()].ids);
        let here = rows.filter(|(_, server, _)| *server == 0);
        let two = here.filter(|(_, _, forward)| forward.part == Part { pairs: 2, position: 1 });
        let (token, ..) = two.last().unwrap();
        for (stage, position) in BOTH.into_iter().flat_map(|stage| [(stage, 0), (stage, 1)]) {
            let at = relay::combine_slot(&shape, server, token, position);
            for pairs in [0, 1, 3, 9] {
                let seen = lie(stage, at, mark(2, pairs));
                if (source, position, pairs) == (SOURCE, 0, 1) {
                    // The sum lacks a row, and the token's owner detects it.
                    let Err(Failure::Core(SOURCE, _, error)) = seen else { panic!("{seen:?}") };
                    let text = format!("of rank 0: token = {}", token.0);
                    assert!(format!("{error}").contains(&text), "{error}");
                    continue;
                }
                let Err(Failure::Core(READER, _, error)) = seen else { panic!("{seen:?}") };
                let text = match source {
                    SOURCE => format!("of token {} of rank 2 states", token.0),
                    _ => format!("for token {}, k ", token.0),
                };
                assert!(format!("{error}").contains(&text), "{error}");
            }
            let seen = refusal(stage, at, mark(3, 2));
            assert!(seen.contains(&format!("word at {at} names operator 3")), "{seen}");
        }
    }
}

#[test]
fn a_returned_row_whose_flag_is_lost_is_named_once_all_are_returned() {
    let shape = domain();
    let tensors = tensors(&shape);
    let mut rows = plan::inside(&shape, &tensors[0][SOURCE.index()].ids);
    let (token, _, forward) =
        rows.find(|(_, server, forward)| *server == 0 && forward.part.pairs == 2).unwrap();
    for stage in BOTH {
        let at = relay::combine_slot(&shape, 1, token, forward.part.position);
        let seen = refusal(stage, at, 0);
        let text = format!("flag of row 0 of token {} of rank 2 states 0 rows: must be in [2, 2]", token.0);
        assert!(seen.contains(&text), "{seen}");
    }
}

#[test]
fn words_that_only_synchronise_are_waited_for_by_name() {
    for stage in BOTH {
        for (at, word, text) in [
            (relay::entered(1), 0, "Entered"),
            (relay::rows_done(1, CoreId(0)), 0, "RowsDone"),
            (relay::count(&domain(), Partition::P0, 0, SOURCE), 0, "Count"),
            (stream(stage, Operator::Dispatch, 0).1, 0, "Find"),
        ] {
            let seen = lie(stage, at, word);
            assert!(matches!(seen, Err(Failure::Hang(_))), "{stage:?} {text}: {seen:?}");
        }
    }
}

#[test]
fn weights_and_rows_that_are_others_harm_only_that_token() {
    let shape = domain();
    for stage in BOTH {
        // Rows are data: no value of theirs changes other rows, and the machines end.
        let slot = relay::dispatch_slot(&shape, row_from_source(), SOURCE, 0);
        let seen = lie(stage, behind(slot, ROW), 0x1234_5678);
        let Err(Failure::Wrong(text)) = &seen else { panic!("{seen:?}") };
        assert!(text.starts_with("rows of rank 0"), "{text}");
        let sum = behind(stream(stage, Operator::Combine, 0).0, ROW);
        let seen = lie(stage, sum, 0x1234_5678);
        let Err(Failure::Wrong(text)) = &seen else { panic!("{seen:?}") };
        assert!(text.starts_with("x_out of rank 0"), "{text}");
    }
}
