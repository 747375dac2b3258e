//! The stream of a record of fullmesh_v2: a formula of its bytes with a mistake is refuted by a byte that machines put elsewhere.

use super::{refuting, shape_of};
use veriep_core::layout::block::{self, BYTE, Streamed};
use veriep_core::layout::expr::Expr;
use veriep_core::layout::record::{self, Triple};
use veriep_core::place::Place;
use veriep_core::shape::Protocol;
use veriep_verify::smt::layout::{Claim, claims, kinds, rows};

/// A formula of the places of a record's bytes with a mistake.
struct StreamTwin {
    name: &'static str,
    place: Expr<Streamed>,
    breaks: fn(&Claim) -> bool,
}

const ANY: Expr<Streamed> = Expr::Of(Streamed::Byte);
const BLOCK_OF_480: Expr<Streamed> = Expr::Over(&ANY, &Expr::Number(480));
const BLOCK_OF_448: Expr<Streamed> = Expr::Over(&ANY, &Expr::Number(448));

const STREAM_TWINS: [StreamTwin; 4] = [
    StreamTwin { name: "no room for flags", place: ANY, breaks: |claim| matches!(claim, Claim::Carried(..)) },
    StreamTwin {
        name: "flags of 24 bytes",
        place: Expr::Sum(&ANY, &Expr::Product(&BLOCK_OF_480, &Expr::Number(24))),
        breaks: |claim| matches!(claim, Claim::Carried(..)),
    },
    StreamTwin {
        name: "every byte first in its block",
        place: Expr::Product(&BLOCK_OF_480, &Expr::Number(512)),
        breaks: |claim| matches!(claim, Claim::Rising(_)),
    },
    StreamTwin {
        name: "payloads of 448 bytes",
        place: Expr::Sum(&ANY, &Expr::Product(&BLOCK_OF_448, &Expr::Number(64))),
        breaks: |claim| matches!(claim, Claim::Whole(..)),
    },
];

#[test]
fn a_stream_that_is_cut_wrongly_is_refuted_by_bytes_that_the_core_puts_elsewhere() {
    let kind = kinds().into_iter().find(|kind| kind.protocol == Protocol::FullmeshV2).unwrap();
    for StreamTwin { name, place, breaks } in STREAM_TWINS {
        let claim = claims(kind, &rows(kind)).into_iter().find(breaks).unwrap();
        let claim = match claim {
            Claim::Carried(row, _) => Claim::Carried(row, place),
            Claim::Rising(_) => Claim::Rising(place),
            Claim::Whole(field, _) => Claim::Whole(field, place),
            other => panic!("{other}"),
        };
        let (values, theory) = refuting(kind, name, &claim, false);
        let shape = shape_of(&theory, &values);
        let sent = record::sent_bytes(&shape);
        let byte = match claim {
            // The scale, and behind it the triple, end the stream.
            Claim::Whole(scale, _) => {
                let start = sent - Triple::BYTES - scale.size.constant().unwrap();
                start + values["inside"] as u64
            }
            _ => values["byte"] as u64,
        };
        assert!(byte < sent, "{name}: {byte} of {sent}");
        let number = (byte / block::PAYLOAD) as u32;
        let piece = block::stream(number, sent);
        let of_machines = block::block(Place::window(0), number).offset + byte - piece.start;
        let value = |formula: Expr<Streamed>| formula.value(&|Streamed::Byte| byte);
        assert!(value(BYTE) == of_machines && value(place) != of_machines, "{name}: {byte}");
    }
}
