//! A3 with operators in halves: which words of its last dispatch and of its last combine a rank does not have. In which half a
//! core stopped, no word of its memory shows, so that none of them is surely awaited.

use super::super::evidence::Seen;
use super::a3::Core;
use super::{Group, LastOperator, Refused, a3, a3_words, direct, results};
use veriep_core::layout::state::{Operator, selector};
use veriep_core::place::Region;
use veriep_core::units::CoreId;

pub(super) fn read(group: &Group<'_>) -> Result<Vec<Option<Seen>>, Refused> {
    group.each(Region::State, |member, memory| {
        let (mut seen, cores) = (Seen::somewhere(), a3::cores(group, memory)?);
        for operator in [Operator::Dispatch, Operator::Combine] {
            // All cores of a rank begin the same operators; those of the first one stand for them.
            let is_new = memory.word(selector(operator, CoreId(0))).unwrap_or(0) == 0;
            let number = match cores.first().map_or(0, |core| core.begun[operator as usize]) {
                0 if is_new && group.choices.checked => continue,
                0 => 2,
                _ => 1,
            };
            let last = LastOperator { group, member, operator, number, call: None, seen: Seen::somewhere() };
            seen.waits.extend(look(last, &cores).waits);
        }
        Ok(seen)
    })
}

/// What is seen of an operator that may have ended.
fn look(mut last: LastOperator<'_>, cores: &[Core]) -> Seen {
    last.call = a3::call(&last);
    match (last.operator, last.group.choices.receive.is_direct()) {
        (Operator::Dispatch, true) => direct::dispatch(last),
        (Operator::Dispatch, false) => a3_words::of_halves(last, cores),
        (Operator::Combine, true) => direct::combine(last),
        (Operator::Combine, false) => results::combine(last, &[], &|_| &[]),
    }
}
