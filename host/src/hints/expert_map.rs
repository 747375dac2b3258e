//! What to change in `expert_map`: one word, or all of it left out.

use super::hint;
use crate::case::ExpertMap;
use crate::error::{Cure, Error, Problem};
use core::fmt;
use veriep_core::shape::{Shape, Violation};

/// Checks `expert_map`; `place` names its file in the error.
///
/// # Errors
/// Every rule that it breaks, with cures.
pub(crate) fn expert_map(shape: &Shape, map: &ExpertMap, place: impl fmt::Display) -> Result<(), Error> {
    let Err(all) = map.check(shape) else { return Ok(()) };
    let problems = all.iter().map(|violation| problem(shape, map, violation, &all)).collect();
    Err(Error::Invalid { place: place.to_string(), problems })
}

fn problem(shape: &Shape, map: &ExpertMap, violation: &Violation, all: &[Violation]) -> Problem {
    let cure = |parameter: &str, value: Option<i64>| Cure {
        parameter: parameter.to_owned(),
        value: value.map(Into::into),
        breaks: Vec::new(),
    };
    // An expert that has no place yet, or none.
    let missing = (0..shape.moe_expert_num().cast_signed()).find(|expert| !map.words.contains(expert));
    let works = |at: usize, word: i32| {
        let mut changed = map.clone();
        changed.words[at] = word;
        let is_same = |a: &Violation, b: &Violation| a.rule == b.rule && a.element == b.element;
        let left = changed.check(shape).err().unwrap_or_default();
        left.iter().all(|new| !is_same(new, violation) && all.iter().any(|old| is_same(new, old)))
    };
    let word = violation.element.and_then(|at| {
        let value = missing.into_iter().chain([-1]).find(|&word| works(at as usize, word))?;
        Some(cure(&format!("expert_map[{at}]"), Some(value.into())))
    });
    let most = violation.numbers.iter().take(2).map(|(_, number)| number).sum();
    let k = (violation.parameter == "k").then(|| cure("k", Some(most)));
    let mut cures: Vec<_> = word.into_iter().chain(k).collect();
    if cures.is_empty() {
        // The domain itself is valid.
        cures.push(cure("expert_map", None));
    }
    let hint = hint(&cures);
    Problem { hint: Some(hint), cures, ..Problem::from(violation) }
}
