//! What to change in `elastic_info`: one element, to a value that the door takes, or all of it left out.

use super::hint;
use crate::case::elastic::{self, Elastic};
use crate::error::{Cure, Error, Problem};
use core::fmt;
use veriep_core::shape::{Elastic as Left, RANKS_MAX, Seen, Shape, Violation};

/// The shape of those whom `info` leaves of `whole`, and how; `place` names its file in the error.
///
/// # Errors
/// Every rule that it breaks, with cures.
pub(crate) fn survivors(
    whole: Shape,
    info: Option<Vec<i32>>,
    place: impl fmt::Display,
) -> Result<(Shape, Option<Elastic>), Error> {
    let words = info.clone().unwrap_or_default();
    elastic::survivors(whole.clone(), info).map_err(|all| Error::Invalid {
        place: place.to_string(),
        problems: all.iter().map(|violation| problem(&whole, &words, violation, &all)).collect(),
    })
}

fn problem(whole: &Shape, info: &[i32], violation: &Violation, all: &[Violation]) -> Problem {
    let mut cures = element(whole, info, violation, all);
    if cures.is_empty() {
        // The domain itself is valid.
        cures.push(Cure { parameter: "elastic_info".to_owned(), value: None, breaks: Vec::new() });
    }
    let hint = hint(&cures);
    Problem { hint: Some(hint), cures, ..Problem::from(violation) }
}

/// The nearest values on either side of the wrong element, the upper one first.
fn element(whole: &Shape, info: &[i32], violation: &Violation, all: &[Violation]) -> Vec<Cure> {
    let (Seen::Number(seen), Some(at)) = (violation.seen, violation.element) else {
        return Vec::new();
    };
    let is_same = |a: &Violation, b: &Violation| a.rule == b.rule && a.element == b.element;
    let works = |value: &i64| {
        let mut words = info.to_vec();
        let place = words.get_mut(at as usize);
        let (Some(place), Ok(value)) = (place, i32::try_from(*value)) else { return false };
        *place = value;
        let mut is_cured = true;
        Left::check(whole, &words, &mut |found| {
            let known = all.iter().any(|other| is_same(found, other));
            is_cured &= known && !is_same(found, violation);
        });
        is_cured
    };
    // Every number here is a rank, -1, or so many experts.
    let values = -1..=(RANKS_MAX as i64).max(whole.moe_expert_num().into());
    let up = values.clone().find(|value| *value > seen && works(value));
    let down = values.rev().find(|value| *value < seen && works(value));
    let name = format!("elastic_info[{at}]");
    let cure = |value: i64| Cure { parameter: name.clone(), value: Some(value.into()), breaks: Vec::new() };
    [up, down].into_iter().flatten().map(cure).collect()
}
