//! What this version runs and reads, in one place: lines go from here as features arrive.

use crate::error::{Error, Problem};
use kernel_core::shape::{CommAlg, Shape};

/// Whether the machines of this version run `shape`.
///
/// # Errors
/// Each parameter whose value is not run yet, with the values that are.
pub fn runnable(shape: &Shape) -> Result<(), Error> {
    let mut refused = Refused::default();
    refused.layouts(shape);
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
    refused.layouts(shape);
    refused.end("plans")
}

#[derive(Default)]
struct Refused(Vec<(&'static str, String, &'static str)>);

impl Refused {
    fn layouts(&mut self, shape: &Shape) {
        let hierarchy = shape.comm_alg() == CommAlg::Hierarchy;
        self.unless(!hierarchy, "comm_alg", " = hierarchy", "\"\" and fullmesh");
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
