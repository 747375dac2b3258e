//! Effects that have been issued and have not landed, and what keeps them in order.

use super::chooser::Actor;
use crate::layout::state::PARTITION;
use crate::place::{Place, Region};
use crate::units::RankId;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// The name of a flight, which no other flight ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlightId {
    /// Flights are numbered in the order in which they were issued.
    pub(super) serial: u64,
    pub(super) slot: u32,
}

impl FlightId {
    /// A small number that no other flight has before this one has ended.
    #[must_use]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }
}

/// What kind of effect is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlightKind {
    /// A put, or a piece of one.
    Put,
    /// A published word.
    Publish,
    /// A stored word.
    Store,
    /// A write into WindowsOut.
    Write,
    /// A message of this number, or a piece of one.
    Message(u32),
    /// A transfer of an agent. What it carries is read here when it lands.
    Transfer(Place),
}

/// An effect on its way.
#[derive(Clone, Debug)]
pub struct Flight {
    /// Who issued it.
    pub from: Actor,
    /// Into whose memory.
    pub to: RankId,
    /// Where the rest of it goes.
    pub at: Place,
    /// What it is.
    pub kind: FlightKind,
    /// The bytes that have still to land.
    pub left: u64,
    /// The bytes that it stands for, which are more than it holds where rows are not kept.
    pub weight: u64,
    pub(super) bytes: Bytes,
    /// The group of puts that it belongs to.
    pub(super) group: u64,
    /// Whether nothing must land before it.
    pub(super) free: bool,
}

impl Flight {
    /// The place of the first byte that it stands for: of a put whose row is not kept, that is before the rest.
    #[must_use]
    pub const fn begins(&self) -> Place {
        let before = if matches!(self.kind, FlightKind::Put) { self.weight - self.left } else { 0 };
        Place { offset: self.at.offset - before, ..self.at }
    }

    /// The smallest piece of it that can land by itself: a byte of a put, a word of a message or transfer, else everything.
    #[must_use]
    pub const fn piece(&self) -> u64 {
        match self.kind {
            FlightKind::Put => 1,
            FlightKind::Message(_) | FlightKind::Transfer(_) => 8,
            FlightKind::Publish | FlightKind::Store | FlightKind::Write => self.left,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Bytes {
    /// None of its own: a transfer.
    Source,
    Word([u8; 8]),
    Many(Vec<u8>),
}

impl Bytes {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Source => &[],
            Self::Word(word) => word,
            Self::Many(bytes) => bytes,
        }
    }
}

/// All flights, by their slots.
#[derive(Clone, Debug, Default)]
pub(super) struct Flights {
    slots: Vec<(u64, Option<Flight>)>,
    unused: Vec<u32>,
    issued: u64,
}

impl Flights {
    /// The name of the flight that is added next.
    pub(super) fn next_id(&self) -> FlightId {
        FlightId { serial: self.issued, slot: self.unused.last().copied().unwrap_or(self.slots.len() as u32) }
    }

    pub(super) fn add(&mut self, flight: Flight) -> FlightId {
        let id = self.next_id();
        match self.unused.pop() {
            Some(slot) => self.slots[slot as usize] = (id.serial, Some(flight)),
            None => self.slots.push((id.serial, Some(flight))),
        }
        self.issued += 1;
        id
    }

    pub(super) fn get(&self, id: FlightId) -> Option<&Flight> {
        let (serial, flight) = self.slots.get(id.slot as usize)?;
        flight.as_ref().filter(|_| *serial == id.serial)
    }

    pub(super) fn get_mut(&mut self, id: FlightId) -> Option<&mut Flight> {
        let (serial, flight) = self.slots.get_mut(id.slot as usize)?;
        flight.as_mut().filter(|_| *serial == id.serial)
    }

    pub(super) fn remove(&mut self, id: FlightId) -> Option<Flight> {
        self.unused.push(id.slot);
        self.slots[id.slot as usize].1.take()
    }

    pub(super) const fn len(&self) -> usize {
        self.slots.len() - self.unused.len()
    }

    /// All of them, in the order in which they were issued.
    pub(super) fn all(&self) -> Vec<FlightId> {
        let ids = self.slots.iter().zip(0..);
        let ids = ids.filter(|((_, flight), _)| flight.is_some());
        let mut ids: Vec<_> = ids.map(|(&(serial, _), slot)| FlightId { serial, slot }).collect();
        ids.sort_unstable();
        ids
    }
}

/// What one core has in flight, in the order that the contract gives it.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// Everything but messages and transfers: what quiet waits for.
    pub(super) unlanded: u32,
    /// One for each member that effects go to now, in no order: there are few.
    paths: Vec<Path>,
    /// Stores that have not landed, by their word: they land from the front, and the core observes the last.
    stores: BTreeMap<Place, VecDeque<FlightId>>,
}

/// From one core to one member.
#[derive(Clone, Debug)]
struct Path {
    to: RankId,
    /// Puts, and behind each group of them the publishes that wait for it and for all groups before. Only the first group
    /// has surely something left.
    groups: Few<Group>,
    /// The number of the first group.
    first: u64,
    /// Messages in the order in which they were sent.
    messages: VecDeque<Message>,
}

#[derive(Clone, Debug, Default)]
struct Group {
    puts: Few<FlightId>,
    left: u32,
    publishes: Few<FlightId>,
}

/// A queue that takes no allocation while it has one entry, as most have.
#[derive(Clone, Debug)]
struct Few<T> {
    first: Option<T>,
    more: VecDeque<T>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { first: None, more: VecDeque::new() }
    }
}

impl<T> Few<T> {
    const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    fn push(&mut self, entry: T) {
        match self.first {
            None => self.first = Some(entry),
            Some(_) => self.more.push_back(entry),
        }
    }

    fn pop(&mut self) -> Option<T> {
        core::mem::replace(&mut self.first, self.more.pop_front())
    }

    fn last_mut(&mut self) -> Option<&mut T> {
        self.more.back_mut().or(self.first.as_mut())
    }

    fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        match at.checked_sub(1) {
            None => self.first.as_mut(),
            Some(at) => self.more.get_mut(at),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.more)
    }
}

#[derive(Clone, Debug)]
struct Message {
    number: u32,
    /// Pieces that have not landed, in order; those that have landed may still be here.
    pieces: Vec<FlightId>,
    left: u32,
}

/// Rules of the contract that a memory breaks, for twins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    /// A publish of a status word there overtakes its core's puts.
    pub publishes: Option<Region>,
    /// Messages of one core to one rank overtake each other.
    pub messages: bool,
    /// The last word of a transfer is delivered first.
    pub transfers: bool,
}

impl Queue {
    /// The number of the path to a member, if there is one.
    fn to(&self, to: RankId) -> Option<usize> {
        self.paths.iter().position(|path| path.to == to)
    }

    /// The path to a member; made if there is none.
    fn path(&mut self, to: RankId) -> &mut Path {
        let at = self.to(to).unwrap_or_else(|| {
            self.paths.push(Path { to, groups: Few::default(), first: 0, messages: VecDeque::new() });
            self.paths.len() - 1
        });
        &mut self.paths[at]
    }

    /// Puts a flight in its order. Whether nothing must land before it.
    pub(super) fn enter(&mut self, id: FlightId, flight: &mut Flight, broken: Broken) -> bool {
        if !matches!(flight.kind, FlightKind::Message(_) | FlightKind::Transfer(_)) {
            self.unlanded += 1;
        }
        match flight.kind {
            FlightKind::Put => {
                let path = self.path(flight.to);
                if path.groups.last_mut().is_none_or(|group| !group.publishes.is_empty()) {
                    path.groups.push(Group::default());
                }
                flight.group = path.first + path.groups.len() as u64 - 1;
                if let Some(group) = path.groups.last_mut() {
                    group.puts.push(id);
                    group.left += 1;
                }
                true
            }
            FlightKind::Publish => {
                // A flight knows no shape to look a word up by. All of both partitions of this region is status words.
                let overtakes =
                    broken.publishes == Some(flight.at.region) && flight.at.offset < 2 * PARTITION;
                let path = self.to(flight.to).map(|at| &mut self.paths[at]);
                let group = path.and_then(|path| path.groups.last_mut()).filter(|_| !overtakes);
                let free = group.is_none();
                if let Some(group) = group {
                    group.publishes.push(id);
                }
                free
            }
            FlightKind::Store | FlightKind::Write => {
                let stores = self.stores.entry(flight.at).or_default();
                stores.push_back(id);
                stores.len() == 1
            }
            FlightKind::Message(number) => {
                let messages = &mut self.path(flight.to).messages;
                match messages.back_mut() {
                    Some(message) if message.number == number => {
                        message.pieces.push(id);
                        message.left += 1;
                    }
                    _ => messages.push_back(Message { number, pieces: Vec::from([id]), left: 1 }),
                }
                broken.messages || messages.len() == 1
            }
            FlightKind::Transfer(_) => true,
        }
    }

    /// Takes a flight that has landed out of its order; `freed` is told what may land now.
    pub(super) fn leave(&mut self, id: FlightId, flight: &Flight, freed: &mut Vec<FlightId>) {
        if !matches!(flight.kind, FlightKind::Message(_) | FlightKind::Transfer(_)) {
            self.unlanded -= 1;
        }
        match flight.kind {
            FlightKind::Put => {
                let Some(at) = self.to(flight.to) else { return };
                let path = &mut self.paths[at];
                let group = path.groups.get_mut((flight.group - path.first) as usize);
                group.into_iter().for_each(|group| group.left -= 1);
                while path.groups.first.as_ref().is_some_and(|group| group.left == 0) {
                    freed.extend(path.groups.pop().iter().flat_map(|group| group.publishes.iter()));
                    path.first += 1;
                }
                self.forget(at);
            }
            FlightKind::Store | FlightKind::Write => {
                let Some(stores) = self.stores.get_mut(&flight.at) else { return };
                stores.retain(|&store| store != id);
                freed.extend(stores.front());
                if stores.is_empty() {
                    self.stores.remove(&flight.at);
                }
            }
            FlightKind::Message(number) => {
                let Some(at) = self.to(flight.to) else { return };
                let path = &mut self.paths[at];
                let Some(i) = path.messages.iter().position(|message| message.number == number) else {
                    return;
                };
                path.messages[i].left -= 1;
                if path.messages[i].left == 0 {
                    path.messages.remove(i);
                    if i == 0 {
                        freed.extend(path.messages.front().into_iter().flat_map(|next| &next.pieces));
                    }
                }
                self.forget(at);
            }
            FlightKind::Publish | FlightKind::Transfer(_) => {}
        }
    }

    /// Forgets a path that nothing is on: all of them would grow with the number of peers, without limit.
    fn forget(&mut self, at: usize) {
        if self.paths[at].groups.is_empty() && self.paths[at].messages.is_empty() {
            self.paths.swap_remove(at);
        }
    }

    /// The store that its core observes at a word, if one has not landed.
    pub(super) fn own_store(&self, at: Place) -> Option<FlightId> {
        self.stores.get(&at)?.back().copied()
    }

    /// What must land before a flight of this queue, in order.
    pub(super) fn before(&self, id: FlightId, flight: &Flight) -> Vec<FlightId> {
        let path = self.to(flight.to).map(|at| &self.paths[at]);
        let mut all = Vec::new();
        match flight.kind {
            FlightKind::Publish => {
                let groups = path.into_iter().flat_map(|path| path.groups.iter());
                all.extend(groups.flat_map(|group| group.puts.iter()));
            }
            FlightKind::Store | FlightKind::Write => {
                all.extend(self.stores.get(&flight.at).into_iter().flatten());
            }
            FlightKind::Message(number) => {
                let messages = path.into_iter().flat_map(|path| &path.messages);
                let earlier = messages.take_while(|message| message.number != number);
                all.extend(earlier.flat_map(|message| &message.pieces));
            }
            FlightKind::Put | FlightKind::Transfer(_) => {}
        }
        all.into_iter().take_while(|&other| other < id).collect()
    }
}
