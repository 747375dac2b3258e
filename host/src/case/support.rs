//! What this version runs and reads, in one place: lines go from here as features arrive.

use crate::error::{Error, Problem};
use kernel_core::shape::{CommAlg, Given, Op, Product, Shape};

/// Whether the machines of this version run `shape`.
///
/// # Errors
/// Each parameter whose value is not run yet, with the values that are.
pub fn runnable(shape: &Shape) -> Result<(), Error> {
    let specials = [
        ("zero_expert_num", shape.zero_expert_num()),
        ("copy_expert_num", shape.copy_expert_num()),
        ("const_expert_num", shape.const_expert_num()),
    ];
    let mut refused = Refused::default();
    refused.layouts(shape);
    refused.unless(!shape.comm_quant(), "comm_quant_mode", " = 2", "0");
    for (parameter, count) in specials {
        refused.unless(count == 0, parameter, &format!(" = {count}"), "0");
    }
    refused.end("runs")
}

/// Whether this version draws the memory of `shape`.
///
/// # Errors
/// Each parameter whose value changes the layout in a way that is not drawn yet.
pub fn drawable(shape: &Shape) -> Result<(), Error> {
    let mut refused = Refused::default();
    refused.layouts(shape);
    refused.end("draws")
}

/// Whether this version plans the sends of `shape`.
///
/// # Errors
/// Each parameter whose value changes who sends what in a way that is not planned yet.
pub fn plannable(shape: &Shape) -> Result<(), Error> {
    let mut refused = Refused::default();
    let (a3, v1) = (shape.product() == Product::A3, shape.comm_alg() == CommAlg::FullmeshV1);
    refused.unless(a3, "product", " = a2", "a3");
    refused.unless(!a3 || v1, "comm_alg", " = fullmesh_v2", "\"\" and fullmesh_v1");
    refused.unless(shape.tp_world_size() == 1, "tp_world_size", " = 2", "0 and 1");
    refused.end("plans")
}

/// Whether this version reads and makes all input tensors of `shape`.
///
/// # Errors
/// Each parameter or tensor that stands for a feature not read yet.
pub fn readable(shape: &Shape, given: Given) -> Result<(), Error> {
    let consts = shape.const_expert_num();
    let mut refused = Refused::default();
    refused.unless(shape.op() == Op::Combine, "op", " = combine_add_rms_norm", "combine");
    refused.unless(consts == 0, "const_expert_num", &format!(" = {consts}"), "0");
    refused.unless(!given.contains(Given::SHARED_EXPERT_X), "shared_expert_x", " given", "cases without it");
    refused.end("reads")
}

#[derive(Default)]
struct Refused(Vec<(&'static str, String, &'static str)>);

impl Refused {
    fn layouts(&mut self, shape: &Shape) {
        let alg = shape.comm_alg();
        self.unless(alg != CommAlg::FullmeshV2, "comm_alg", " = fullmesh_v2", "\"\" and fullmesh_v1");
        self.unless(alg != CommAlg::Hierarchy, "comm_alg", " = hierarchy", "\"\" and fullmesh");
        self.unless(shape.op() == Op::Combine, "op", " = combine_add_rms_norm", "combine");
        self.unless(shape.tp_world_size() == 1, "tp_world_size", " = 2", "0 and 1");
    }

    fn unless(&mut self, supported: bool, parameter: &'static str, seen: &str, values: &'static str) {
        if !supported {
            self.0.push((parameter, seen.to_owned(), values));
        }
    }

    fn end(self, does: &str) -> Result<(), Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let problem = |(parameter, seen, values): &(&str, String, &str)| {
            Problem::new(*parameter, seen, format!("this version {does} {values}"))
        };
        Err(Error::Invalid {
            place: "not supported yet".to_owned(),
            problems: self.0.iter().map(problem).collect(),
        })
    }
}
