//! Combine of A3 with rows that return: which results a rank lacks, and whose they are. The batch says that, or, in the ranks'
//! windows, the triples of the rows that they have received.

use super::super::evidence::{Lack, Missing, Seen};
use super::a3::Core;
use super::{Group, LastOperator, partition};
use std::collections::HashMap;
use veriep_case::global_rank::named;
use veriep_core::fabric::{Flag, Wait};
use veriep_core::layout::affine::Named;
use veriep_core::layout::field::FieldName;
use veriep_core::layout::record::{Triple, triple_of};
use veriep_core::layout::state::{Operator, core_word};
use veriep_core::layout::{block, data};
use veriep_core::place::Region;
use veriep_core::placement::Home;
use veriep_core::plan::{route, split};
use veriep_core::protocol::Flags;
use veriep_core::shape::Protocol;
use veriep_core::sync::barrier;
use veriep_core::units::{CoreId, Pair, RankId, Token};

/// What a TP peer tells comes before all results.
const TP: u32 = 0;

/// The combine of a member among `others`, as far as they have been looked at, and the cores of each.
pub(super) fn combine<'a>(
    mut last: LastOperator<'_>,
    others: &[Option<Seen>],
    cores: &dyn Fn(u32) -> &'a [Core],
) -> Seen {
    let LastOperator { group, member, number, .. } = last;
    let (shape, rank) = (group.shape, group.ep(member));
    (0..shape.aiv_num()).for_each(|core| last.tp(core, TP));
    if shape.protocol() == Protocol::FullmeshV2 {
        // A count says that rows come, not that they have.
        let own = (0..shape.aiv_num()).map(|core| of_batch(group, member, number, core, cores(member)));
        let own = own.filter(|(_, is_of_batch)| *is_of_batch).flat_map(|(rows, _)| rows);
        last.seen.heard = own.map(|triple| triple.source.0).collect();
    }
    let has_begun = |of: u32| {
        let seen = others.get(of as usize).and_then(Option::as_ref);
        seen.is_none_or(|seen| seen.has_begun(Operator::Combine, number) && seen.behind.is_empty())
    };
    // What the core words of a rank tell of this dispatch, until it has passed another one.
    let counted = |of: u32| {
        let seen = others.get(of as usize).and_then(Option::as_ref);
        let is_last = seen.is_some_and(|seen| {
            seen.begun[0] == number || seen.last == Some((Operator::Dispatch, number + 1))
        });
        if is_last && has_begun(of) { cores(of) } else { &[] }
    };
    last.seen.contradictions.extend(lost_rows(group, member, number, counted(member)));
    let sources = sources(group, member, number, &counted);
    let is_blind = group.case.is_none() && !has_windows(group, member);
    for core in 0..shape.aiv_num() {
        for token in split::tokens(shape, rank, CoreId(core)) {
            let has = |k: &u32| {
                let word = last.word((Named::CombineStatus, Some(FieldName::Word)), [token, *k]);
                let source = sources.get(&(token, *k)).copied().flatten();
                let ep_rank = source.map_or(rank, |source| group.ep(source));
                let come = last.has_come(word, Wait::new(Flag::Combine, ep_rank, &[token, *k]));
                // Of a result whose sender is not known, the number says nothing of a rank.
                if source.is_none() {
                    last.seen.others.retain(|other| {
                        other.wait.flag != Flag::Combine || other.wait.source() != Some(RankId(member))
                    });
                }
                come
            };
            let (there, empty): (Vec<u32>, Vec<u32>) = (0..shape.combine_columns()).partition(has);
            let lack = |k, source| Lack { core, number, what: Missing::Result { token, k, source } };
            let lacks: Vec<_> = empty
                .into_iter()
                .filter_map(|k| match sources.get(&(token, k)) {
                    Some(source) => Some(lack(k, *source)),
                    // No rank has a row for it, as far as all are known.
                    None => is_blind.then(|| lack(k, None)),
                })
                .collect();
            // Flags of a token are cleared together. A result that its rank cannot have sent is no cleared one.
            let unsent = |lack: &Lack| lack.what.source().is_some_and(|source| !has_begun(source));
            let (unsent, others): (Vec<_>, Vec<_>) = lacks.into_iter().partition(unsent);
            let is_open = there.is_empty() && unsent.is_empty();
            last.seen.waits.extend(unsent);
            last.seen.may_lack_results |= there.is_empty() && group.case.is_none();
            if !there.is_empty() {
                last.seen.waits.extend(others);
            } else if is_open {
                last.seen.doubts.extend(others);
            }
        }
    }
    last.seen
}

/// Whether the windows of all ranks are known that may return results to a member.
fn has_windows(group: &Group<'_>, member: u32) -> bool {
    let tp = group.shape.tp_world_size();
    let mut holders =
        (0..group.shape.ep_world_size()).map(|rank| named(tp, RankId(member), RankId(rank), false));
    holders.all(|of| group.memory(of.0).is_some_and(|memory| memory.has(Region::Window)))
}

/// Returns the rank that returns each result of a member, by token and column; `None` where several ranks may.
fn sources<'a>(
    group: &Group<'_>,
    member: u32,
    number: u64,
    cores: &dyn Fn(u32) -> &'a [Core],
) -> HashMap<(u32, u32), Option<u32>> {
    let (shape, own) = (group.shape, group.ep(member));
    let member_of = |rank| named(shape.tp_world_size(), RankId(member), rank, false).0;
    let mut found = HashMap::new();
    if let Some(case) = group.case {
        let inputs = case.inputs(RankId(member));
        for (token, k) in
            (0..shape.bs(own)).flat_map(|token| (0..shape.combine_columns()).map(move |k| (token, k)))
        {
            if let Some(home) = route::home(shape, own, &inputs, Pair { token: Token(token), k }) {
                found.insert((token, k), Some(member_of(home.rank)));
            }
        }
        return found;
    }
    for rank in (0..shape.ep_world_size()).map(RankId) {
        let holder = member_of(rank);
        for core in 0..shape.aiv_num() {
            let (rows, is_of_batch) = of_batch(group, holder, number, core, cores(holder));
            for Triple { token, k, .. } in rows.into_iter().filter(|triple| triple.source == own) {
                let source = is_of_batch.then_some(holder);
                let entry = found.entry((token.0, k)).or_insert(source);
                match (*entry, source) {
                    (Some(one), Some(other)) if one != other => *entry = None,
                    (None, Some(_)) => *entry = source,
                    _ => {}
                }
            }
        }
    }
    found
}

/// The triples of the rows that a core of a member has received in dispatch `number`, and whether none of an older one is among
/// them: windows are never cleared. A rank with several cores, which these are, knows how many rows it has.
fn of_batch(group: &Group<'_>, member: u32, number: u64, core: u32, cores: &[Core]) -> (Vec<Triple>, bool) {
    let rows = rows(group, member, number, core);
    if cores.len() < 2 {
        return (rows, true);
    }
    let is_whole = counted_rows(group, member, core) as usize == rows.len();
    (rows, is_whole)
}

/// How many rows a core of a member has counted in its last dispatch, of a rank with several cores.
pub(super) fn counted_rows(group: &Group<'_>, member: u32, core: u32) -> u32 {
    // Counts alone are exchanged before the first barrier of a dispatch, else before the second.
    let at = core_word(CoreId(core), u32::from(group.choices.flags == Flags::Separate));
    barrier::sum_in(group.memory(member).and_then(|memory| memory.word(at)).unwrap_or(0)).rows
}

/// What is wrong with the window of a member whose cores have all ended dispatch `number`: it has fewer rows than they counted.
fn lost_rows(group: &Group<'_>, member: u32, number: u64, cores: &[Core]) -> Option<String> {
    if cores.len() < 2 || !group.memory(member)?.has(Region::Window) {
        return None;
    }
    (0..cores.len() as u32).find_map(|core| {
        let (rows, counted) = (rows(group, member, number, core).len(), counted_rows(group, member, core));
        (rows < counted as usize)
            .then(|| format!("its window has {rows} rows of core {core}, its state region counts {counted}"))
    })
}

/// The triples of the rows that a core of a member has received in dispatch `number`, and perhaps of older ones after them. Pairs
/// rise within a slot, so rows that do not are older.
fn rows(group: &Group<'_>, member: u32, number: u64, core: u32) -> Vec<Triple> {
    let (shape, rank) = (group.shape, group.ep(member));
    let Some(memory) = group.memory(member).filter(|memory| memory.has(Region::Window)) else {
        return Vec::new();
    };
    let mut rows = Vec::new();
    for slot in split::slots(shape, rank, CoreId(core)) {
        let (local_expert, source) = (slot / shape.ep_world_size(), RankId(slot % shape.ep_world_size()));
        let mut least = 0;
        for record in 0..shape.bs(source) {
            let at =
                data::dispatch_record(shape, partition(number), Home { rank, local_expert }, source, record);
            let mut bytes = [0; Triple::BYTES as usize];
            memory.read(triple_of(shape, at), &mut bytes);
            let Ok(triple) = Triple::from_bytes(shape, &bytes) else { break };
            let pair = triple.token.0 * shape.combine_columns() + triple.k;
            if triple.source != source || pair < least || !triple.may_be_on(shape, rank) {
                break;
            }
            if bytes == [0; Triple::BYTES as usize] {
                // Nobody has written there, or it is the first pair of rank 0.
                let mut row = vec![0; shape.payload_bytes().min(block::PAYLOAD) as usize];
                memory.read(at, &mut row);
                if row.iter().all(|byte| *byte == 0) {
                    break;
                }
            }
            least = pair + 1;
            rows.push(triple);
        }
    }
    rows
}
