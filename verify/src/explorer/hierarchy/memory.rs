//! Memory of a hierarchy: cells that have landed, effects that perhaps have, and who knows of whose end.

use super::super::memory::{Flight, InFlight, Sparse};
use super::super::model::Memory as Landing;
use super::super::numbers::Numbers;
use super::super::protocol::RANKS;
use super::super::setup::Setup;
use super::super::state::clone_in_place;
use super::super::violation::Violation;
use crate::order::Order;
use foldhash::HashMap;
use veriep_core::fabric::order::{Issued, Kind};
use veriep_core::layout::a2_message::{Task, task_word};
use veriep_core::layout::relay;
use veriep_core::layout::state::{Partition, core_word};
use veriep_core::place::{Place, Region};
use veriep_core::protocol::{Agent, Stage};
use veriep_core::shape::Shape;
use veriep_core::units::{CoreId, RankId};

/// By rank: the operator that it is known to have begun, so that it has ended those before.
pub(super) type Heard = [u32; RANKS];

/// What is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) enum Area {
    Entered,
    RowsDone,
    End,
    Count,
    /// A record, from its front flag on.
    Record,
    /// The flag of a near slot.
    Flag,
    /// The row of a near slot.
    Row,
    /// What is gathered for a transfer: the end flag, or a record from its front flag on.
    Out,
    /// A word of a task.
    Task,
    /// A barrier word of a core.
    Barrier,
}

/// A place of some rank: what is there, in which partition of the model's, and which of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) struct Spot {
    pub(super) area: Area,
    pub(super) partition: u8,
    pub(super) number: u16,
}

/// A model, and where things are in it.
pub(in super::super) struct Scene<'a> {
    pub(super) setup: &'a Setup<'a>,
    words: HashMap<Place, (Area, u16, Option<Partition>)>,
    /// Bytes between near slots.
    near_pitch: u64,
    /// What rows and records hold.
    pub(super) bodies: Numbers<Vec<u8>>,
}

impl<'a> Scene<'a> {
    pub(in super::super) fn new(setup: &'a Setup<'a>) -> Self {
        let shape = setup.shape;
        let mut words = HashMap::default();
        let mut word = |at: Place, area, number: u32, of| words.insert(at, (area, number as u16, of));
        for near in 0..shape.server_ranks() {
            word(relay::entered(near), Area::Entered, near, None);
            for core in 0..shape.aiv_num() {
                let number = near * shape.aiv_num() + core;
                word(relay::rows_done(near, CoreId(core)), Area::RowsDone, number, None);
            }
        }
        for number in 0..2 * shape.aiv_num() {
            word(core_word(CoreId(number / 2), number % 2), Area::Barrier, number, None);
        }
        for partition in [Partition::P0, Partition::P1] {
            for number in 0..shape.ep_world_size() * Task::WORDS {
                let at = task_word(partition, RankId(number / Task::WORDS), number % Task::WORDS);
                word(at, Area::Task, number, Some(partition));
            }
            let ends = setup.model.choices.stage == Stage::Three;
            for server in (0..shape.servers()).filter(|_| ends) {
                word(relay::end_flag(partition, server), Area::End, server, Some(partition));
            }
            for slot in 0..shape.local_expert_num() * shape.ep_world_size() {
                let (expert, source) = (slot / shape.ep_world_size(), slot % shape.ep_world_size());
                let at = relay::count(shape, partition, expert, RankId(source));
                word(at, Area::Count, slot, Some(partition));
            }
        }
        let slot = |slot| relay::dispatch_slot(shape, 0, RankId(0), slot).offset;
        let near_pitch = slot(1) - slot(0);
        Self { setup, words, near_pitch, bodies: Numbers::default() }
    }

    fn shape(&self) -> &'a Shape {
        self.setup.shape
    }

    /// What is at a place as machines give it, and how far behind its beginning; the machines' partition must be that
    /// of the operator.
    pub(super) fn spot(&self, at: Place, op: u32) -> Option<(Spot, u64)> {
        let shape = self.shape();
        let own = if op.is_multiple_of(2) { Partition::P0 } else { Partition::P1 };
        let partition = (op % self.setup.model.partitions[0]) as u8;
        let in_partition = |area, number| Spot { area, partition, number };
        let everywhere = |area, number| Spot { area, partition: 0, number };
        if let Some(&(area, number, of)) = self.words.get(&at) {
            return match of {
                Some(of) => (of == own).then_some((in_partition(area, number), 0)),
                None => Some((everywhere(area, number), 0)),
            };
        }
        if !matches!(at.region, Region::Window | Region::WindowOut) {
            return None;
        }
        if let Some(inside) = at.offset.checked_sub(relay::near_area()) {
            let (number, inside) = ((inside / self.near_pitch) as u16, inside % self.near_pitch);
            let slots = shape.moe_expert_num() * shape.bs_max();
            let area = if inside < relay::ROW { Area::Flag } else { Area::Row };
            let start = if area == Area::Row { relay::ROW } else { 0 };
            return (u32::from(number) < slots).then_some((everywhere(area, number), inside - start));
        }
        if self.setup.model.choices.stage == Stage::Two {
            let (server, number, inside) = self.in_stream(at, own, op)?;
            let (area, number) = match (at.region, number.checked_sub(1)) {
                (Region::WindowOut, _) => (Area::Out, server * (shape.bs_max() + 1) + number),
                (_, None) => (Area::End, server),
                (_, Some(record)) => (Area::Record, server * shape.bs_max() + record),
            };
            return Some((in_partition(area, number as u16), inside));
        }
        let inside = at.offset.checked_sub(relay::record(shape, own, 0, 0).offset)?;
        let pitch = relay::record_pitch(shape);
        let (number, inside) = (inside / pitch, inside % pitch);
        let records = u64::from(shape.servers() * shape.bs_max());
        (number < records).then_some((in_partition(Area::Record, number as u16), inside))
    }

    /// Stage 2: of which server's stream something is, 0 for its end flag or a record's number plus 1, and how far inside.
    fn in_stream(&self, at: Place, own: Partition, op: u32) -> Option<(u32, u32, u64)> {
        let shape = self.shape();
        let start = |server| relay::stream_start(shape, own, server);
        let server = (at.offset.checked_sub(start(0))? / (start(1) - start(0))) as u32;
        let before = relay::gathered_end(shape, own, server).checked_sub(at.offset)?;
        let len = relay::record_bytes(shape, self.setup.operator(op).0);
        let number = before.div_ceil(len);
        let exists = server < shape.servers() && number <= shape.bs_max().into();
        exists.then_some((server, number as u32, number * len - before))
    }

    /// Who must have ended an operator before what is there may be written anew. What an agent sends, and its task, are read
    /// until they are delivered, for which the rank waits to which they go.
    fn reader(&self, rank: RankId, spot: Spot) -> RankId {
        let (shape, number) = (self.shape(), u32::from(spot.number));
        match spot.area {
            Area::Out => shape.relay(rank, number / (shape.bs_max() + 1)),
            Area::Task => RankId(number / Task::WORDS),
            _ => rank,
        }
    }

    /// Where a place of operator `op` would be in the machines' first partition.
    pub(super) fn first_place(&self, at: Place, spot: Spot, op: u32) -> Place {
        let first = (spot.area, spot.number, Some(Partition::P0));
        let word = self.words.iter().find(|(_, word)| **word == first).map(|(&at, _)| at);
        let records = |partition| relay::record(self.shape(), partition, 0, 0).offset;
        match spot.area {
            Area::Record if op % 2 == 1 => {
                Place { offset: at.offset - records(Partition::P1) + records(Partition::P0), ..at }
            }
            _ => word.unwrap_or(at),
        }
    }

    /// The operator that used a spot before, if its place is used again: who writes must have heard that its owner has ended
    /// that.
    fn before(&self, spot: Spot, op: u32) -> Option<u32> {
        match spot.area {
            Area::Entered | Area::RowsDone => None,
            Area::Flag | Area::Row => op.checked_sub(1),
            Area::Task => op.checked_sub(self.message_slots()),
            Area::End | Area::Count | Area::Record | Area::Out | Area::Barrier => {
                op.checked_sub(self.setup.model.partitions[0])
            }
        }
    }

    /// The ranks that write to a spot of a rank, as bits.
    pub(super) fn writers(&self, rank: RankId, spot: Spot) -> u32 {
        let shape = self.shape();
        let (number, (server, _)) = (u32::from(spot.number), shape.server_of(rank));
        let near = |number| 1 << shape.rank_on(server, number).0;
        match spot.area {
            Area::Entered => near(number),
            Area::RowsDone => near(number / shape.aiv_num()),
            Area::End => 1 << shape.relay(rank, number).0,
            Area::Record => 1 << shape.relay(rank, number / shape.bs_max()).0,
            Area::Count => 1 << shape.relay(RankId(number % shape.ep_world_size()), server).0,
            Area::Flag | Area::Row => (0..shape.server_ranks()).map(near).sum(),
            Area::Out | Area::Task | Area::Barrier => 1 << rank.0,
        }
    }

    /// Whether `effect` must not land before `earlier`. In stage 2 messages are the words of transfers.
    pub(super) fn follows(&self, effect: &Issued, earlier: &Issued) -> bool {
        let by_words = self.setup.model.choices.stage == Stage::Two;
        match (effect.kind, earlier.kind) {
            (Kind::Message(number), Kind::Message(before)) if by_words => {
                (effect.from, effect.to, number) == (earlier.from, earlier.to, before)
            }
            _ => effect.must_follow(earlier),
        }
    }
}

/// What a word or a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Value {
    /// Operator of who wrote it.
    pub(super) op: u32,
    /// The number beside the epoch.
    pub(super) number: u32,
    /// The bytes of a row, or of a record behind its front flag, by number.
    pub(super) body: Option<u32>,
    /// What its writer had heard.
    pub(super) heard: Heard,
}

/// An effect that has perhaps landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Effect {
    pub(super) issued: Issued,
    pub(super) spot: Spot,
    pub(super) value: Value,
    /// Of a record: its front flag was seen, and its last word.
    pub(super) seen: [bool; 2],
}

impl InFlight for Effect {
    fn issued(&self) -> &Issued {
        &self.issued
    }
}

impl Effect {
    /// Whether it does the same, whatever its writer had heard.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let value = |effect: &Self| (effect.value.op, effect.value.number, effect.value.body);
        (self.issued, self.spot, value(self)) == (other.issued, other.spot, value(other))
    }

    fn is_at(&self, rank: RankId, spot: Spot) -> bool {
        (self.issued.to, self.spot) == (rank, spot)
    }
}

/// A word of a record that is seen by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Front,
    End,
    Whole,
}

#[derive(Debug, Default)]
pub(in super::super) struct Memory {
    /// By rank, then spot.
    pub(super) cells: Sparse<(u8, Spot), Value>,
    /// As they were issued.
    pub(super) flight: Flight<Effect>,
    /// By rank (stage 2).
    pub(super) agents: Vec<Agent>,
}

clone_in_place!(Memory { cells, flight, agents });

impl Memory {
    pub(super) fn cell(&self, rank: RankId, spot: Spot) -> Option<&Value> {
        self.cells.get((rank.0 as u8, spot))
    }

    /// The effect on a spot of a rank that has perhaps landed.
    pub(super) fn late(&self, rank: RankId, spot: Spot) -> Option<usize> {
        self.flight.iter().position(|effect| effect.is_at(rank, spot))
    }

    /// Whether some part of a record was seen.
    pub(super) fn was_seen(&self, rank: RankId, spot: Spot, part: Part) -> bool {
        let seen = self.late(rank, spot).map(|i| self.flight[i].seen);
        seen.is_some_and(|seen| seen[usize::from(part == Part::End)])
    }

    /// A core sees (a part of) effect number `i`: it has landed, and all that must land before it. Tells `landed` of what has
    /// landed as a whole.
    pub(super) fn see(&mut self, scene: &Scene<'_>, i: usize, part: Part, landed: impl FnMut(&Effect)) {
        let seen = self.flight[i];
        let follows = |effect: &Issued, earlier: &Issued| scene.lands_behind(effect, earlier);
        let effects = self.flight.see(scene.setup, i, part == Part::Whole, follows);
        self.have_come(effects, landed);
        if part != Part::Whole
            && let Some(effect) = self.flight.find_mut(|effect| effect.issued == seen.issued)
        {
            effect.seen[usize::from(part == Part::End)] = true;
        }
    }

    /// A core is quiet: all that it issued has landed, but for messages.
    pub(super) fn quiet(&mut self, scene: &Scene<'_>, core: (RankId, CoreId), landed: impl FnMut(&Effect)) {
        let order = |_, effect: &Effect| {
            let is_late = effect.issued.from == core && !matches!(effect.issued.kind, Kind::Message(_));
            is_late.then(|| Order::by_quiet(effect.issued.kind))
        };
        let effects = self.flight.land(scene.setup, order);
        self.have_come(effects, landed);
    }

    /// These effects are no longer in flight; `landed` is told of each.
    fn have_come(&mut self, effects: Vec<Effect>, mut landed: impl FnMut(&Effect)) {
        for effect in effects {
            self.cells.set((effect.issued.to.0 as u8, effect.spot), Some(effect.value));
            landed(&effect);
        }
    }

    /// The ranks at which something of a core has perhaps not landed that quiet speaks for, as bits.
    pub(super) fn targets(&self, core: (RankId, CoreId)) -> u32 {
        let waits =
            |effect: &&Effect| effect.issued.from == core && !matches!(effect.issued.kind, Kind::Message(_));
        self.flight.iter().filter(waits).fold(0, |ranks, effect| ranks | 1 << effect.issued.to.0)
    }

    /// Takes in an effect of a core that has heard `heard`; its target is in operator `at`, by the slowest of its cores.
    pub(super) fn issue(
        &mut self,
        scene: &Scene<'_>,
        effect: Effect,
        heard: &Heard,
        at: u32,
    ) -> Option<Violation> {
        let Effect { issued: Issued { to: rank, from, at: place, .. }, spot, value, .. } = effect;
        let twice = self.cell(rank, spot).is_some_and(|cell| cell.op == value.op);
        let late = self.flight.iter().any(|earlier| {
            let follows = scene.follows(&effect.issued, &earlier.issued) && earlier.value.op < value.op;
            earlier.is_at(rank, spot) && !follows && scene.is_awaited(spot)
        });
        let owner = scene.reader(rank, spot);
        let unheard = scene.before(spot, value.op).filter(|&before| heard[owner.index()] <= before);
        let violation = if let Some(before) = unheard {
            let [operator, unended] = [value.op, before].map(|op| scene.setup.named(op));
            Some(match spot.area {
                Area::Out => Violation::SourceInUse { rank, to: owner, operator, unread: unended },
                Area::Task => Violation::TaskInUse { rank, operator, unread: unended },
                _ => Violation::Unheard { rank: from.0, owner, at: place, operator, unended },
            })
        } else if twice || late {
            Some(match spot.area {
                Area::Row | Area::Record => Violation::Overwritten { rank, at: place },
                _ => Violation::LostFlag { rank, at: place },
            })
        } else {
            let late = at > value.op && scene.is_awaited(spot);
            late.then(|| Violation::Unawaited { rank, operator: scene.setup.named(value.op) })
        };
        if scene.setup.model.memory == Landing::Strong {
            self.cells.set((rank.0 as u8, spot), Some(value));
        } else {
            self.flight.push(effect);
        }
        violation
    }

    /// A rank has ended an operator: what others can still do to its memory is said, and what it was told is forgotten.
    pub(super) fn end(&mut self, scene: &Scene<'_>, rank: RankId, op: u32) -> Option<Violation> {
        let owed = |effect: &Effect| {
            effect.issued.to == rank && effect.value.op <= op && scene.is_awaited(effect.spot)
        };
        let late = self.flight.iter().any(owed);
        self.cells.retain(|((of, _), value)| u32::from(*of) != rank.0 || value.op > op);
        late.then(|| Violation::Unawaited { rank, operator: scene.setup.named(op) })
    }
}
