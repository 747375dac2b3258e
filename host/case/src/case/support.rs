//! Ways to receive rows that a configuration excludes: by design of its protocol, or by a limit of this program.

use crate::error::{Error, Problem};
use veriep_core::layout::direct::required_bytes;
use veriep_core::protocol::Receive;
use veriep_core::shape::{Seen, Shape};

/// Why a parameter excludes a way to receive.
fn why(parameter: &str) -> &'static str {
    match parameter {
        "comm_alg" => "impossible: rows of fullmesh_v2 have flags among their bytes",
        "tp_world_size" => "impossible: experts of a TP pair need rows of both peers in one place",
        "comm_quant_mode" => "impossible: results stay where experts write them, so no core converts them",
        "quant_mode" => "impossible: an int8 row is shorter than its result",
        "product" => "a limit of VeriEP: on A2 rows are copied out of the windows",
        _ => "a limit of VeriEP: rows that are placed directly are not shifted",
    }
}

/// Whether the machines of `shape` receive rows so.
///
/// # Errors
/// Each parameter whose value leaves only another way, with the values that do not.
pub fn receives(shape: &Shape, receive: Receive) -> Result<(), Error> {
    let option = match receive {
        Receive::Overwrite { .. } => "--experts overwrite",
        Receive::Direct { .. } => "--receive direct",
        Receive::Copy | Receive::InPlace => "--receive in-place",
    };
    let problem = |parameter: &'static str, seen: &str, values: &str| {
        // What is possible where experts cannot overwrite: with converted rows, and with all else.
        let otherwise = if parameter == "quant_mode" { "" } else { "--receive copy " };
        let hint = receive.overwrites().then(|| format!("{otherwise}--experts apart"));
        let rule = format!("must be {values}: {}", why(parameter));
        Problem { hint, ..Problem::new(parameter, seen, rule) }
    };
    let excluded = |(parameter, seen, values)| {
        let seen = match seen {
            Seen::Word(word) => word.to_owned(),
            seen => seen.to_string(),
        };
        problem(parameter, &format!(" = {seen}"), values)
    };
    let mut problems: Vec<_> = receive.excluded_by(shape).map(excluded).collect();
    if receive.is_direct() && shape.port_offset() != 0 {
        problems.push(problem("--port-offset", &format!(" {}", shape.port_offset()), "0"));
    }
    if !problems.is_empty() {
        return Err(Error::Invalid { place: option.to_owned(), problems });
    }
    let required_mb = required_bytes(shape, receive.areas(), receive.overwrites()).div_ceil(1 << 20);
    if required_mb <= shape.window_bytes() >> 20 {
        return Ok(());
    }
    Err(Error::Invalid {
        place: format!("--receive {}, {} batches in flight", receive.name(), receive.areas()),
        problems: vec![Problem::new(
            "hccl_buffsize_mb",
            &format!(" = {}", shape.window_bytes() >> 20),
            format!("must be at least {required_mb}"),
        )],
    })
}
