//! The words that this project's layout leaves in memory, in every protocol and mode. Their places and values are those of the
//! core: [`affine`] and [`event`].

mod a2;
mod a3;
mod a3_words;
mod batch;
mod direct;
mod halves;
mod hierarchy;
mod results;

use super::evidence::{Lack, Missing, OtherCall, Seen};
use super::memory::Memory;
use crate::export::indices;
use veriep_case::case::Case;
use veriep_case::global_rank;
use veriep_core::fabric::{Flag, ProtocolError, Wait};
use veriep_core::layout::affine::{self, INDICES_MAX, Named};
use veriep_core::layout::field::FieldName;
use veriep_core::layout::state::{Operator, Partition};
use veriep_core::place::{Place, Region};
use veriep_core::protocol::Choices;
use veriep_core::shape::{Protocol, Shape};
use veriep_core::sync::call::Begun;
use veriep_core::sync::event::{self, Value};
use veriep_core::sync::flag::{self, Seen as Word};
use veriep_core::units::RankId;

pub(super) struct Group<'a> {
    pub(super) shape: &'a Shape,
    pub(super) choices: Choices,
    pub(super) in_flight: u64,
    pub(super) takes_halves: bool,
    /// The batch that hangs.
    pub(super) case: Option<&'a Case>,
    /// By the number of the member.
    pub(super) members: Vec<Option<Memory>>,
}

/// Why a dump cannot be of the group: the member, the region, and what is wrong there. Without a member it is all of them.
pub(super) type Refused = (Option<(u32, Region)>, String);

/// The members of a group as their dumps show them; one without the dumps that are needed is unknown.
///
/// # Errors
/// The dumps cannot be of this group.
pub(super) fn read(group: &Group<'_>) -> Result<Vec<Option<Seen>>, Refused> {
    for (member, memory) in (0..).zip(&group.members) {
        if let Some(memory) = memory {
            check(group, member, memory).map_err(|(region, what)| (Some((member, region)), what))?;
        }
    }
    match group.shape.protocol() {
        // Windows of A2 are numbered by operators in their order, which halves do not have.
        Protocol::Fullmesh | Protocol::Hierarchy if group.takes_halves => {
            group.each(Region::Window, |_, _| Ok(Seen::somewhere()))
        }
        Protocol::Fullmesh => a2::read(group),
        Protocol::Hierarchy => hierarchy::read(group),
        _ if group.takes_halves => halves::read(group),
        _ => a3::read(group),
    }
}

/// The regions without which a member is unknown.
pub(super) const fn needed(shape: &Shape) -> &'static [Region] {
    match shape.protocol() {
        Protocol::Fullmesh => &[Region::State, Region::Window],
        Protocol::Hierarchy => &[Region::Window],
        _ => &[Region::State],
    }
}

impl Group<'_> {
    fn ep(&self, member: u32) -> RankId {
        global_rank::ep_rank(self.shape, RankId(member))
    }

    fn memory(&self, member: u32) -> Option<&Memory> {
        self.members.get(member as usize)?.as_ref()
    }

    /// Returns what `look` finds in the dump of each member; `None` for one without a dump. Its errors are those of `region`.
    fn each<T>(
        &self,
        region: Region,
        look: impl Fn(u32, &Memory) -> Result<T, String>,
    ) -> Result<Vec<Option<T>>, Refused> {
        let members = (0..).zip(&self.members).map(|(member, memory)| {
            let Some(memory) = memory else { return Ok(None) };
            look(member, memory).map(Some).map_err(|why| (Some((member, region)), why))
        });
        members.collect()
    }

    /// Returns the word of a map at these indices, from the field of that name, or `None` if the map or the dump is not there.
    fn word(
        &self,
        member: u32,
        (named, field): (Named, Option<FieldName>),
        indices: [u32; INDICES_MAX],
    ) -> Option<u64> {
        let (shape, mode) = (self.shape, self.choices.mode());
        let map = named.map(shape, mode, self.ep(member))?;
        let field =
            named.fields(shape, mode).find(|of| Some(of.name) == field).map_or(0, |field| field.offset);
        self.memory(member)?.word(Place { region: map.region, offset: map.offset(indices) + field })
    }
}

/// The last operator of a member, and what is seen of it.
struct LastOperator<'a> {
    group: &'a Group<'a>,
    member: u32,
    operator: Operator,
    number: u64,
    /// Its call, where words have numbers of calls and memory shows the member's own.
    call: Option<Begun>,
    seen: Seen,
}

impl<'a> LastOperator<'a> {
    /// Returns `None` for a member that has begun no operator.
    fn of(group: &'a Group<'a>, member: u32, seen: Seen) -> Option<Self> {
        let (operator, number) = seen.last?;
        Some(Self { group, member, operator, number, call: None, seen })
    }

    /// Notes a word of another call, which cores refuse as they read it. Whether one has come, as cores judge it.
    fn judged(&mut self, judged: Result<bool, ProtocolError>) -> bool {
        match judged {
            Ok(has_come) => has_come,
            Err(ProtocolError::OtherCall { awaited, seen, expected }) => {
                let wait = global_rank::of_wait(self.group.shape, RankId(self.member), awaited);
                self.seen.others.push(OtherCall { wait, seen, expected });
                true
            }
            // What is no flag has been refused, where it can be told.
            Err(_) => true,
        }
    }

    /// Whether a word of A3 has come. Without numbers of calls a place is empty before its word comes.
    fn has_come(&mut self, word: Option<u64>, awaited: Wait) -> bool {
        let Some(word) = word else { return false };
        match self.call {
            Some(call) => self.judged(call.read(word, awaited).map(|read| read.is_some())),
            None => word != 0,
        }
    }

    /// Returns the word of a map whose first index is the partition.
    fn word(&self, named: (Named, Option<FieldName>), [first, second]: [u32; 2]) -> Option<u64> {
        self.group.word(self.member, named, [partition(self.number).index(), first, second, 0, 0])
    }

    /// Returns the word that `wait` names as one that `core` lacks. `wait` has the numbers that machines use.
    fn lack(&self, core: u32, level: u32, wait: Wait) -> Lack {
        let wait = global_rank::of_wait(self.group.shape, RankId(self.member), wait);
        let what = Missing::Word { wait, operator: self.operator, level };
        Lack { core, number: self.number, what }
    }

    /// Notes a word that `core` lacks for certain.
    fn note_wait(&mut self, core: u32, level: u32, wait: Wait) {
        self.note(core, level, wait, true);
    }

    /// Notes a word that `core` lacks, for certain or perhaps.
    fn note(&mut self, core: u32, level: u32, wait: Wait, is_sure: bool) {
        let lack = self.lack(core, level, wait);
        if is_sure { self.seen.waits.push(lack) } else { self.seen.doubts.push(lack) }
    }

    /// Whether the words of dispatch slots that the member lacks are in part its own. None if it lacks none, or those of all
    /// slots.
    fn lacks_own(&self, is_of_slot: impl Fn(Flag) -> bool) -> Option<bool> {
        let waits = self.seen.waits.iter().filter_map(|lack| match lack.what {
            Missing::Word { wait, .. } if is_of_slot(wait.flag) => Some(wait),
            _ => None,
        });
        let is_own: Vec<_> = waits.map(|wait| wait.source() == Some(RankId(self.member))).collect();
        let shape = self.group.shape;
        let slots = shape.local_experts(self.group.ep(self.member)) * shape.ep_world_size();
        (!is_own.is_empty() && is_own.len() < slots as usize).then(|| is_own.contains(&true))
    }

    /// Looks at the slot in which the TP peer's core of the same number announces rows or results. An empty one is lacking.
    fn tp(&mut self, core: u32, level: u32) {
        let (selectors, slots) = match self.operator {
            Operator::Dispatch => (Named::TpDispatchSelectors, Named::TpDispatchSlots),
            Operator::Combine => (Named::TpCombineSelectors, Named::TpCombineSlots),
        };
        let begun = self.group.word(self.member, (selectors, None), [core, 0, 0, 0, 0]);
        let begun = begun.map(|word| self.group.choices.untagged().selector(word));
        let wait = Wait::new(Flag::Tp, RankId(1 - self.member % 2), &[core]);
        let word = self.word((slots, Some(FieldName::Rows)), [core, 0]);
        if let (Some(begun), Some(_), false) = (begun, word, self.has_come(word, wait)) {
            // Before it takes its partition there, it has cleared nothing.
            self.note(core, level, wait, begun != self.number % 2);
        }
    }
}

/// The partition that operator `number` uses, from 1.
const fn partition(number: u64) -> Partition {
    Partition::of(number.wrapping_sub(1))
}

/// Whether state regions hold what this group can have left there: nothing outside its areas, and in its flags nothing but
/// flags. A group with other choices, or of another release, has words elsewhere.
fn check(group: &Group<'_>, member: u32, memory: &Memory) -> Result<(), (Region, String)> {
    let (shape, mode, rank) = (group.shape, group.choices.mode(), group.ep(member));
    for region in [Region::State, Region::TpState].into_iter().filter(|region| memory.has(*region)) {
        let bytes = memory.whole(region);
        let mut known = vec![false; bytes.len() / 8];
        let maps = || affine::maps(shape, mode, rank).filter(|map| map.region == region);
        for map in maps().filter(|map| map.named.is_area()) {
            // A slot is its fields, unless there is more inside.
            let is_plain = !Named::ALL.iter().any(|named| named.inside().contains(&map.named));
            let fields = map.named.fields(shape, mode).map(|field| (field.offset, field.size));
            let fields: Vec<_> = fields.filter(|_| is_plain).collect();
            let fields = if fields.is_empty() { vec![(0, map.bytes)] } else { fields };
            let slots = indices(&map).map(|indices| map.offset(indices));
            for (at, bytes) in
                slots.flat_map(|at| fields.iter().map(move |(start, bytes)| (at + start, bytes)))
            {
                let words = (at / 8) as usize..(at + bytes).div_ceil(8) as usize;
                known.get_mut(words).into_iter().for_each(|words| words.fill(true));
            }
        }
        let word = |at: &usize| u64::from_le_bytes(*bytes.as_chunks().0.get(*at).unwrap_or(&[0; 8]));
        if let Some(at) = (0..known.len()).find(|at| !known[*at] && word(at) != 0) {
            let seen = word(&at);
            return Err((
                region,
                format!("{seen:#x} at byte {}, where this configuration has nothing", 8 * at),
            ));
        }
        let untagged = group.choices.untagged();
        for event in event::events(shape, mode).filter(|event| event.word.inside().is_empty()) {
            let Some(map) = maps().find(|map| map.named == event.word) else { continue };
            let mut fields = event.word.fields(shape, mode).filter(|field| Some(field.name) == event.field);
            let field = fields.next().map_or(0, |field| field.offset);
            for at in indices(&map).map(|indices| map.offset(indices) + field) {
                let seen = untagged.flag(word(&(at as usize / 8)));
                let is_legal = match event.value {
                    Value::Count => flag::dispatch(seen) != Word::Corrupt,
                    Value::Arrived => seen == 0 || seen == flag::ARRIVED,
                    _ => true,
                };
                if !is_legal {
                    let name = event.word.name();
                    return Err((region, format!("{name}: {seen:#x} at byte {at}: no flag of this layout")));
                }
            }
        }
    }
    Ok(())
}

/// How a core takes words that have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    None,
    /// Some in their order, and cleared each; it has stopped at the first that had not come.
    Some,
    /// As some, or all.
    Perhaps,
    All,
}

/// Of words, in the order in which a core takes them and clears them, those that it lacks for certain, and one that it lacks if
/// it waits for any. `is_there` tells which are in memory.
fn lacking<T: Copy>(
    words: impl IntoIterator<Item = T>,
    taken: Taken,
    is_there: impl Fn(T) -> bool,
) -> (Vec<T>, Option<T>) {
    let words: Vec<_> = words.into_iter().map(|word| (word, is_there(word))).collect();
    let empty = |words: &[(T, bool)]| {
        words.iter().filter(|(_, is_there)| !is_there).map(|(word, _)| *word).collect::<Vec<_>>()
    };
    match (taken, words.iter().position(|(_, is_there)| *is_there)) {
        (Taken::All, _) => (Vec::new(), None),
        (Taken::None, _) => (empty(&words), None),
        // It would have taken the next one.
        (Taken::Some | Taken::Perhaps, Some(first)) => (empty(&words[first.saturating_sub(1)..]), None),
        (Taken::Some, None) => (words.last().map(|(word, _)| *word).into_iter().collect(), None),
        (Taken::Perhaps, None) => (Vec::new(), words.last().map(|(word, _)| *word)),
    }
}
