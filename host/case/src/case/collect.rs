//! Collects the faults of the tensors of a case: a few lines for each tensor, and the number of the others.

use crate::error::Problem;
use std::collections::HashMap;

/// Most problems listed of one tensor.
const LISTED_MAX: usize = 4;

/// Problems by tensor, in the order in which the tensors came up.
#[derive(Debug, Default)]
pub(super) struct Collected {
    tensors: Vec<OfTensor>,
    places: HashMap<String, usize>,
}

#[derive(Debug)]
struct OfTensor {
    name: String,
    listed: Vec<Problem>,
    more: u64,
}

impl Collected {
    /// Adds a problem of `tensor`; it is only put into words when it is listed.
    pub(super) fn add(&mut self, tensor: &str, problem: impl FnOnce(&str) -> Problem) {
        let place = match self.places.get(tensor) {
            Some(&place) => place,
            None => {
                self.places.insert(tensor.to_owned(), self.tensors.len());
                self.tensors.push(OfTensor { name: tensor.to_owned(), listed: Vec::new(), more: 0 });
                self.tensors.len() - 1
            }
        };
        let of_tensor = &mut self.tensors[place];
        if of_tensor.listed.len() < LISTED_MAX {
            of_tensor.listed.push(problem(tensor));
        } else {
            of_tensor.more += 1;
        }
    }

    /// Whether nothing is wrong with `tensor`.
    pub(super) fn is_sound(&self, tensor: &str) -> bool {
        !self.places.contains_key(tensor)
    }

    /// All that is listed, and a line for what is not.
    pub(super) fn end(self) -> Vec<Problem> {
        let lines = |OfTensor { name, mut listed, more }| {
            if more > 0 {
                listed.push(Problem::new(name, "", format!("{more} more wrong values")));
            }
            listed
        };
        self.tensors.into_iter().flat_map(lines).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_problems_of_each_tensor_are_listed_and_the_rest_counted() {
        let mut collected = Collected::default();
        for i in 0..1000 {
            for tensor in ["rank0.x", "rank1.x"] {
                collected.add(tensor, |tensor| Problem::new(tensor, &format!("[{i}]"), "must be finite"));
            }
        }
        collected.add("scales", |tensor| Problem::new(tensor, ": missing", "must be there"));
        assert!(collected.is_sound("rank2.x") && !collected.is_sound("rank1.x"));
        let messages: Vec<_> = collected.end().into_iter().map(|problem| problem.message).collect();
        assert_eq!(messages.len(), 5 + 5 + 1);
        assert_eq!(messages[3], "rank0.x[3]: must be finite");
        assert_eq!(messages[4], "rank0.x: 996 more wrong values");
        assert_eq!(messages[9], "rank1.x: 996 more wrong values");
        assert_eq!(messages[10], "scales: missing: must be there");
    }
}
