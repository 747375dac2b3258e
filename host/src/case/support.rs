//! What this version runs and reads, in one place: lines go from here as features arrive.

use crate::error::{Error, Problem};
use veriep_core::layout::direct::required_bytes;
use veriep_core::protocol::Receive;
use veriep_core::shape::{Seen, Shape};

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
        Problem { hint, ..Problem::new(parameter, seen, format!("{option} needs {values}")) }
    };
    let excluded = |(parameter, seen, values)| {
        let seen = match seen {
            Seen::Word(word) => word.to_owned(),
            seen => seen.to_string(),
        };
        problem(parameter, &format!(" = {seen}"), &format!("{parameter} = {values}"))
    };
    let mut problems: Vec<_> = receive.excluded_by(shape).map(excluded).collect();
    if receive.is_direct() && shape.port_offset() != 0 {
        problems.push(problem("--port-offset", "", "--port-offset 0"));
    }
    if !problems.is_empty() {
        return Err(Error::Invalid { place: "not supported yet".to_owned(), problems });
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
