//! Cures for `elastic_info` and `expert_map`: one word changed to a legal value, or the whole tensor left out.

use super::ExpertMap;
use super::elastic::{self, Elastic};
use crate::error::{Cure, Error, Problem};
use crate::hints::cured;
use core::fmt;
use veriep_core::shape::{Elastic as Left, RANKS_MAX, Seen, Shape, Violation};

/// The shape of those whom `info` leaves of `whole`, and how; `place` names its file in the error.
///
/// # Errors
/// Every rule that it breaks, with cures.
pub fn survivors(
    whole: Shape,
    info: Option<Vec<i32>>,
    place: impl fmt::Display,
) -> Result<(Shape, Option<Elastic>), Error> {
    let words = info.clone().unwrap_or_default();
    elastic::survivors(whole.clone(), info).map_err(|all| {
        refused(place, &all, "elastic_info", |violation| element(&whole, &words, violation, &all))
    })
}

/// Checks `expert_map`; `place` names its file in the error.
///
/// # Errors
/// Every rule that it breaks, with cures.
pub fn check_expert_map(shape: &Shape, map: &ExpertMap, place: impl fmt::Display) -> Result<(), Error> {
    map.check(shape)
        .map(drop)
        .map_err(|all| refused(place, &all, "expert_map", |violation| replica(shape, map, violation, &all)))
}

/// Returns the error of all violations, each with its cures. Leaving the tensor out is the cure of one that has no other.
fn refused(
    place: impl fmt::Display,
    all: &[Violation],
    tensor: &str,
    cures: impl Fn(&Violation) -> Vec<Cure>,
) -> Error {
    let problem = |violation: &Violation| {
        let mut cures = cures(violation);
        if cures.is_empty() {
            cures.push(cure(tensor, None));
        }
        cured(Problem::from(violation), cures)
    };
    Error::Invalid { place: place.to_string(), problems: all.iter().map(problem).collect() }
}

fn cure(parameter: &str, value: Option<i64>) -> Cure {
    Cure { parameter: parameter.to_owned(), value: value.map(Into::into) }
}

/// Returns whether the violations that are `left` are among `all`, and this one is not.
fn is_cured(violation: &Violation, all: &[Violation], left: &[Violation]) -> bool {
    let is_same = |a: &Violation, b: &Violation| a.rule == b.rule && a.element == b.element;
    left.iter().all(|new| !is_same(new, violation) && all.iter().any(|old| is_same(new, old)))
}

/// The nearest values on either side of the wrong element of `elastic_info`, the upper one first.
fn element(whole: &Shape, info: &[i32], violation: &Violation, all: &[Violation]) -> Vec<Cure> {
    let (Seen::Number(seen), Some(at)) = (violation.seen, violation.element) else {
        return Vec::new();
    };
    let works = |value: &i64| {
        let mut words = info.to_vec();
        let place = words.get_mut(at as usize);
        let (Some(place), Ok(value)) = (place, i32::try_from(*value)) else { return false };
        *place = value;
        let mut left = Vec::new();
        Left::check(whole, &words, &mut |found| left.push(*found));
        is_cured(violation, all, &left)
    };
    // Every number here is a rank, -1, or so many experts.
    let values = -1..=(RANKS_MAX as i64).max(whole.moe_expert_num().into());
    let up = values.clone().find(|value| *value > seen && works(value));
    let down = values.rev().find(|value| *value < seen && works(value));
    let name = format!("elastic_info[{at}]");
    [up, down].into_iter().flatten().map(|value| cure(&name, Some(value))).collect()
}

/// Returns the cures of a violation of `expert_map`: the wrong word replaced by an expert that has no place yet or by -1, or
/// the largest legal `k`.
fn replica(shape: &Shape, map: &ExpertMap, violation: &Violation, all: &[Violation]) -> Vec<Cure> {
    let missing = (0..shape.moe_expert_num().cast_signed()).find(|expert| !map.words.contains(expert));
    let works = |at: usize, word: i32| {
        let mut changed = map.clone();
        changed.words[at] = word;
        is_cured(violation, all, &changed.check(shape).err().unwrap_or_default())
    };
    let word = violation.element.and_then(|at| {
        let value = missing.into_iter().chain([-1]).find(|&word| works(at as usize, word))?;
        Some(cure(&format!("expert_map[{at}]"), Some(value.into())))
    });
    let most = violation.numbers.iter().take(2).map(|(_, number)| number).sum();
    let k = (violation.parameter == "k").then(|| cure("k", Some(most)));
    word.into_iter().chain(k).collect()
}
