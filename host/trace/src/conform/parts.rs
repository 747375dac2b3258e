//! The parts of operators that cores take, as a record has them: whole operators and halves. What the gates of a rank refuse of
//! them is found before anything else is judged.

use super::{Guard, Line, Refused, Trace};
use std::collections::{BTreeMap, HashMap};
use veriep_core::fabric::ProtocolError;
use veriep_core::protocol::{Choices, Gates, Operator};
use veriep_core::shape::Shape;
use veriep_core::sim::order::{Half, Planned, refused_by};

/// A part of an operator, and the line where a core takes it up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) line: usize,
    /// A sending half is one only where the record goes on to its end.
    pub(super) planned: Planned,
}

/// What a core has taken so far.
#[derive(Debug, Default)]
struct Course {
    parts: Vec<Part>,
    is_inside: bool,
}

impl Course {
    fn event(&mut self, line: usize, event: &Line) {
        let last = self.parts.last_mut().filter(|_| self.is_inside);
        match event.kind.as_str() {
            "begin" | "resume" => {
                let half = if event.kind == "begin" { Half::Whole } else { Half::Receive };
                let Some(planned) = planned(event, half) else { return };
                let is_same = |last: &Part| {
                    (last.planned.operator, last.planned.round) == (planned.operator, planned.round)
                };
                // A further begin is another phase.
                if !last.as_deref().is_some_and(is_same) {
                    self.parts.push(Part { line, planned });
                }
                self.is_inside = true;
            }
            "sent" => {
                last.into_iter().for_each(|part| part.planned.half = Half::Send);
                self.is_inside = false;
            }
            "end" => self.is_inside = false,
            _ => {}
        }
    }
}

fn planned(event: &Line, half: Half) -> Option<Planned> {
    let name = event.operator.as_deref()?;
    let operator =
        [Operator::Dispatch, Operator::Combine].into_iter().find(|operator| operator.name() == name)?;
    Some(Planned { operator, round: usize::try_from(event.batch?).ok()?, half })
}

/// The parts that each core takes, in its order, by rank and core.
pub(super) fn of_cores(trace: &Trace) -> BTreeMap<(u32, u32), Vec<Part>> {
    let mut courses = BTreeMap::<_, Course>::new();
    for (line, event) in (2..).zip(&trace.events) {
        if let Some(core) = event.core {
            courses.entry((event.rank, core)).or_default().event(line, event);
        }
    }
    courses.into_iter().map(|(who, course)| (who, course.parts)).collect()
}

/// By line, what a record of halves must not begin there: an operator that the gates of its rank refuse, or a part that is not
/// the one of the rank's other cores. Orders of whole operators are judged by what they do alone, and gates know two partitions.
pub(super) fn forbidden(trace: &Trace, shape: &Shape) -> HashMap<usize, Refused> {
    let mut forbidden = HashMap::new();
    if !trace.events.iter().any(|event| ["sent", "resume"].contains(&event.kind.as_str())) {
        return forbidden;
    }
    let choices = Choices { receive: trace.receive, ..Choices::default() };
    let mut ranks = BTreeMap::<_, Vec<_>>::new();
    for ((rank, _), parts) in of_cores(trace) {
        ranks.entry(rank).or_default().push(parts);
    }
    for cores in ranks.values() {
        let taken = of_rank(cores, &mut forbidden);
        let order: Vec<_> = taken.iter().map(|part| part.planned).collect();
        if trace.has_more_partitions {
            continue;
        }
        let refused = refused_by(&mut Gates::new(shape, &choices), &order[..sound(&order)]);
        if let Some((place, error)) = refused {
            let because = if let ProtocolError::Given(why) = error { Some(why) } else { None };
            forbidden.insert(taken[place].line, Refused { because, ..Guard::Gate.against(None) });
        }
    }
    forbidden
}

/// The parts of a rank: each is taken by one core first. Others that take another part instead are forbidden to.
fn of_rank(cores: &[Vec<Part>], forbidden: &mut HashMap<usize, Refused>) -> Vec<Part> {
    let mut taken = Vec::new();
    for nth in 0..cores.iter().map(Vec::len).max().unwrap_or(0) {
        let parts: Vec<_> = cores.iter().filter_map(|parts| parts.get(nth)).copied().collect();
        let Some(mut first) = parts.iter().copied().min_by_key(|part| part.line) else { break };
        let key = |part: &Part| (part.planned.operator, part.planned.round, part.planned.begins());
        for other in parts.iter().filter(|part| key(part) != key(&first)) {
            forbidden.insert(other.line, Guard::Join.against(Some(first.line)));
        }
        // A core whose record ends early may be in a sending half.
        if parts.iter().any(|part| part.planned.half == Half::Send) {
            first.planned.half = Half::Send;
        }
        taken.push(first);
    }
    taken
}

/// How many of a rank's first parts make an order: what ends has begun. Where they do not, a guard of the core refuses them.
fn sound(order: &[Planned]) -> usize {
    let mut open = Vec::new();
    for (place, planned) in order.iter().enumerate() {
        let operator = (planned.operator, planned.round);
        let found = open.iter().position(|other| *other == operator);
        match (planned.begins(), found) {
            (true, Some(_)) | (false, None) => return place,
            (false, Some(found)) => drop(open.swap_remove(found)),
            (true, None) => {}
        }
        if !planned.ends() {
            open.push(operator);
        }
    }
    order.len()
}
