//! What this version runs and reads, in one place: lines go from here as features arrive.

use crate::error::{Error, Problem};
use veriep_core::layout::direct::required_bytes;
use veriep_core::protocol::Receive;
use veriep_core::shape::{Product, Protocol, Shape};

/// Whether the machines of `shape` receive rows so.
///
/// # Errors
/// Each parameter whose value leaves only another way, with the values that do not.
pub fn receives(shape: &Shape, receive: Receive) -> Result<(), Error> {
    let mut refused = Refused::default();
    if receive.keeps_rows() {
        refused.unless(shape.product() == Product::A3, "product", " = a2", "product = a3");
        let in_blocks = shape.protocol() == Protocol::FullmeshV2;
        refused.unless(!in_blocks, "comm_alg", " = fullmesh_v2", "comm_alg = \"\" or fullmesh_v1");
        refused.unless(shape.tp_world_size() == 1, "tp_world_size", " = 2", "tp_world_size = 0 or 1");
    }
    if receive.is_direct() {
        // Results are read as experts left them.
        refused.unless(
            shape.result_format().scale.is_none(),
            "comm_quant_mode",
            " = 2",
            "comm_quant_mode = 0",
        );
        refused.unless(shape.port_offset() == 0, "--port-offset", "", "--port-offset 0");
        if receive.overwrites() {
            refused.unless(shape.row_format().scale.is_none(), "quant_mode", " = 2", "quant_mode = 0");
        }
        let required = required_bytes(shape, receive.areas(), receive.overwrites());
        let required_mb = required.div_ceil(1 << 20);
        if required_mb > shape.window_bytes() >> 20 {
            return Err(Error::Invalid {
                place: format!("--receive {}, {} batches in flight", receive.name(), receive.areas()),
                problems: vec![Problem::new(
                    "hccl_buffsize_mb",
                    &format!(" = {}", shape.window_bytes() >> 20),
                    format!("must be at least {required_mb}"),
                )],
            });
        }
    }
    let (option, hint) = match receive {
        Receive::Overwrite { .. } => ("--experts overwrite", Some(OTHERWISE)),
        Receive::Direct { .. } => ("--receive direct", None),
        Receive::Copy | Receive::InPlace => ("--receive in-place", None),
    };
    refused.end(option, hint)
}

/// What is possible where experts cannot overwrite: with quantised rows, and with all else.
const OTHERWISE: [&str; 2] = ["--experts apart", "--receive copy --experts apart"];

#[derive(Default)]
struct Refused(Vec<(&'static str, String, &'static str)>);

impl Refused {
    fn unless(&mut self, supported: bool, parameter: &'static str, seen: &str, values: &'static str) {
        if !supported {
            self.0.push((parameter, seen.to_owned(), values));
        }
    }

    fn end(self, option: &str, otherwise: Option<[&str; 2]>) -> Result<(), Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let problem = |(parameter, seen, values): &(&str, String, &str)| {
            let hint =
                otherwise.map(|[quantised, any]| if *parameter == "quant_mode" { quantised } else { any });
            let problem = Problem::new(*parameter, seen, format!("{option} needs {values}"));
            Problem { hint: hint.map(str::to_owned), ..problem }
        };
        Err(Error::Invalid {
            place: "not supported yet".to_owned(),
            problems: self.0.iter().map(problem).collect(),
        })
    }
}
