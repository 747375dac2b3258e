//! Duties that are left out on purpose, one at a time, to see that a test notices.

use super::chooser::Actor;
use super::flight::Broken;
use crate::fabric::nic::{Nic, Post, Transfer};
use crate::fabric::{Capabilities, Fabric, Fault};
use crate::layout::a2_window::buffer_chosen;
use crate::layout::affine::{Index, Mode, Named};
use crate::layout::locate::Spot;
use crate::layout::quantity::{Memory, Quantity};
use crate::layout::state::{self, Operator, Partition};
use crate::place::{Place, Region};
use crate::shape::Shape;
use crate::sync::flag::{self, WINDOW_FLAG};
use crate::units::{CoreId, RankId};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::DerefMut;

/// A set of words or bytes of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Words {
    /// Status words of A3, of one kind or of both.
    Status(Option<Operator>),
    /// Slots of the TP domain.
    TpSlots(Operator),
    /// Those of them that tell of no rows.
    EmptyTpSlots(Operator),
    /// Words of WindowsIn on A2, but for `bufferChosen`.
    WindowsIn,
    /// `bufferChosen` on A2.
    BufferChosen,
    /// WindowsOut.
    WindowsOut,
    /// By which near ranks of a hierarchy tell that they have entered an operator.
    Entered,
    /// These offsets of WindowsIn of these ranks.
    These(BTreeSet<(RankId, u64)>),
    /// All words of WindowsIn but `bufferChosen` and these.
    AllBut(BTreeSet<(RankId, u64)>),
}

/// Memory that exists twice, once for each partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Double {
    /// Status words and records of A3, of one kind.
    Partition(Operator),
    /// Slots and rows of the TP domain.
    TpPartition,
    /// Task records of A2.
    MessageSlot,
    /// Both windows of A2.
    Half,
    /// Windows of a hierarchy.
    Relay,
}

/// A duty of the protocol, of its driver or of the memory that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Quiet is answered before anything has landed.
    Quiet,
    /// These words are never cleared.
    Clear(Words),
    /// What is stored or written there is not issued before the second quiet of its core from then on.
    InTime(Words),
    /// No core waits for these words: they pass for what is waited for.
    Wait(Words),
    /// No core waits for other cores at the core barriers whose epochs are even, or odd.
    Barrier {
        /// At those that carry sums.
        even: bool,
        /// At those after quiet.
        odd: bool,
    },
    /// The second of both is on the first.
    Second(Double),
    /// Rows are put a step after the flag that covers them.
    RowsFirst,
    /// The flag is published first, with a count of no rows; the count follows a step later.
    WholeCount,
    /// Senders take dispatch status slots to be in the order of the records.
    StatusOrder,
    /// A record passes for complete once its own flag is there, not when that of the next is.
    NextFlag,
    /// The memory lets a published status word in that region overtake its core's puts.
    FlagBehindRows(Region),
    /// The memory lets messages of one core to one rank overtake each other.
    MessageOrder,
    /// The memory delivers the last word of a transfer first.
    LastWordLast,
}

/// What a core has been asked to do and the memory does not know yet.
#[derive(Clone, Debug, Default)]
pub struct Held {
    puts: Vec<(RankId, Place, Vec<u8>)>,
    /// To be issued before the core's next step.
    due: Vec<(RankId, Place, Due)>,
    /// With the number of quiets since.
    late: Vec<(Place, Vec<u8>, u32)>,
    /// The core's latest barrier.
    epoch: u64,
}

#[derive(Clone, Debug)]
enum Due {
    Put(Vec<u8>),
    Publish(u64),
}

/// The fabric of a core, or the interface of an agent, that leaves out a duty. `held` is kept from step to step.
#[derive(Debug)]
pub struct Faulty<'a, F, H> {
    inner: F,
    duty: &'a Duty,
    shape: &'a Shape,
    actor: Actor,
    held: H,
}

impl Words {
    fn hold(&self, shape: &Shape, rank: RankId, at: Place, seen: Option<u64>) -> bool {
        let is_chosen = at == buffer_chosen(shape);
        let of_window = at.region == Region::Window && !is_chosen;
        match self {
            Self::Status(None) => status_kind(shape, at).is_some(),
            Self::Status(kind) => status_kind(shape, at) == *kind,
            Self::TpSlots(kind) => tp_kind(shape, at) == Some(*kind),
            Self::EmptyTpSlots(kind) => tp_kind(shape, at) == Some(*kind) && seen == Some(flag::status(0)),
            Self::WindowsIn => of_window,
            Self::BufferChosen => is_chosen,
            Self::WindowsOut => at.region == Region::WindowOut,
            Self::Entered => find(shape, &[Named::Entered], at).is_some(),
            Self::These(places) => of_window && places.contains(&(rank, at.offset)),
            Self::AllBut(places) => of_window && !places.contains(&(rank, at.offset)),
        }
    }

    /// What a word that is not waited for passes for.
    const fn passed(&self, seen: u64, kind: Option<Operator>) -> u64 {
        match (self, kind) {
            (Self::Entered, _) => u64::MAX,
            (_, Some(Operator::Dispatch)) if seen == 0 => flag::status(0),
            (_, Some(Operator::Dispatch)) => seen,
            (_, Some(Operator::Combine)) => flag::ARRIVED,
            _ => WINDOW_FLAG as u64,
        }
    }
}

/// The slot of one of these that has a place, in a group with any choices. Words are those of a rank with MoE experts.
fn find(shape: &Shape, names: &[Named], at: Place) -> Option<Spot> {
    let plain = Mode::default();
    let modes = [plain, Mode { landings: 1, ..plain }, Mode { streams: true, ..plain }];
    let rank = RankId(shape.ep_world_size().saturating_sub(1));
    let all = names.iter().flat_map(|named| modes.map(|mode| (named, mode)));
    all.filter(|(named, _)| named.row().is_some_and(|row| row.region == at.region))
        .find_map(|(named, mode)| named.find(&Memory { shape, mode, rank }, at.offset))
}

const STATUS_OF_DISPATCH: &[Named] = &[Named::DispatchStatus, Named::DirectRecords];
const STATUS_OF_COMBINE: &[Named] = &[Named::CombineStatus, Named::ResultsReady];

/// The kind whose status word is there.
fn status_kind(shape: &Shape, at: Place) -> Option<Operator> {
    let kinds = [(Operator::Dispatch, STATUS_OF_DISPATCH), (Operator::Combine, STATUS_OF_COMBINE)];
    kinds.into_iter().find(|(_, names)| find(shape, names, at).is_some()).map(|(kind, _)| kind)
}

fn tp_kind(shape: &Shape, at: Place) -> Option<Operator> {
    let kinds = [(Operator::Dispatch, Named::TpDispatchSlots), (Operator::Combine, Named::TpCombineSlots)];
    kinds.into_iter().find(|(_, named)| find(shape, &[*named], at).is_some()).map(|(kind, _)| kind)
}

/// The core whose barrier word is there, and the parity of its epochs.
fn core_word(shape: &Shape, at: Place) -> Option<(CoreId, u64)> {
    let core = find(shape, &[Named::CoreWords], at)?.index(Index::Core).map(CoreId)?;
    let parity = [0, 1].into_iter().find(|&parity| state::core_word(core, parity) == at)?;
    Some((core, parity.into()))
}

impl Double {
    /// The areas that exist twice.
    const fn names(self) -> &'static [Named] {
        match self {
            Self::Partition(Operator::Dispatch) => {
                &[Named::DispatchStatus, Named::DirectRecords, Named::DispatchRecords]
            }
            Self::Partition(Operator::Combine) => {
                &[Named::CombineStatus, Named::ResultsReady, Named::CombineRows]
            }
            Self::TpPartition => {
                &[Named::TpDispatchSlots, Named::TpCombineSlots, Named::TpRecords, Named::TpResults]
            }
            Self::MessageSlot => &[Named::Tasks],
            Self::Half => &[Named::WindowsIn, Named::WindowsOut],
            Self::Relay => &[Named::EndFlags, Named::Counts, Named::RelayRecords],
        }
    }

    /// Returns the place in the first partition of a place in either.
    #[must_use]
    pub fn fold(self, shape: &Shape, at: Place) -> Place {
        let Some(spot) = find(shape, self.names(), at) else { return at };
        let mut dims = spot.map.dims().iter().zip(spot.indices);
        let of_partition = dims.find(|(dim, _)| dim.index == Index::Partition);
        let offset = of_partition.map_or(0, |(dim, index)| dim.stride.unsigned_abs() * u64::from(index));
        Place { offset: at.offset - offset, ..at }
    }
}

impl Duty {
    /// The rules that the memory breaks.
    #[must_use]
    pub fn broken(&self) -> Broken {
        Broken {
            publishes: if let Self::FlagBehindRows(region) = self { Some(*region) } else { None },
            messages: *self == Self::MessageOrder,
            transfers: *self == Self::LastWordLast,
        }
    }

    /// Returns the place that stands for a place where something that exists twice is one.
    #[must_use]
    pub fn place(&self, shape: &Shape, at: Place) -> Place {
        if let Self::Second(double) = self { double.fold(shape, at) } else { at }
    }
}

impl<'a, F: DerefMut, H: DerefMut<Target = Held>> Faulty<'a, F, H> {
    /// What `actor` sees and does without `duty`.
    pub const fn new(inner: F, duty: &'a Duty, shape: &'a Shape, actor: Actor, held: H) -> Self {
        Self { inner, duty, shape, actor, held }
    }

    fn place(&self, at: Place) -> Place {
        self.duty.place(self.shape, at)
    }

    fn is_late(&self, at: Place) -> bool {
        matches!(self.duty, Duty::InTime(words) if words.hold(self.shape, self.actor.member, at, None))
    }

    /// Redirects the read of a record's flag to the flag before it in the partition.
    fn looked_at(&self, at: Place) -> Place {
        let record =
            (*self.duty == Duty::NextFlag).then(|| find(self.shape, &[Named::RelayRecords], at)).flatten();
        let pitch =
            Quantity::RelayPitch.value(&Memory { shape: self.shape, mode: Mode::default(), rank: RankId(0) });
        match record {
            Some(Spot { indices: [_, server, record, ..], inside: 0, .. }) if server + record > 0 => {
                Place { offset: at.offset - pitch, ..at }
            }
            _ => at,
        }
    }

    /// The slot of a sender that takes the status area to be in the order of the records.
    fn rank_major(&self, to: RankId, at: Place) -> Place {
        let Some(slot) = find(self.shape, &[Named::DispatchStatus], at) else { return at };
        let [partition, local_expert, source, ..] = slot.indices;
        let wrong = source * self.shape.local_experts(to) + local_expert;
        let partition = if partition == 0 { Partition::P0 } else { Partition::P1 };
        let status = state::Slots::Shipped.dispatch_status(partition, wrong);
        Place { offset: status.offset + slot.inside, ..status }
    }

    /// Takes what is late enough out of what is held.
    fn overdue(&mut self) -> Vec<(Place, Vec<u8>)> {
        self.held.late.iter_mut().for_each(|late| late.2 += 1);
        let due = self.held.late.extract_if(.., |late| late.2 > 1);
        due.map(|(at, bytes, _)| (at, bytes)).collect()
    }
}

impl<F: DerefMut<Target: Fabric>, H: DerefMut<Target = Held>> Faulty<'_, F, H> {
    /// Issues what is due since the core's last step. The core may step then.
    pub fn begin(mut self) -> Result<Self, Fault> {
        for (to, at, due) in core::mem::take(&mut self.held.due) {
            match due {
                Due::Put(bytes) => self.inner.put(to, at, &bytes, &[])?,
                Due::Publish(word) => self.inner.publish(to, at, word)?,
            }
        }
        Ok(self)
    }
}

impl<F: DerefMut<Target: Fabric>, H: DerefMut<Target = Held>> Fabric for Faulty<'_, F, H> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities().difference(Capabilities::LEND)
    }

    fn line(&self) -> u64 {
        self.inner.line()
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let at = self.place(at);
        if *self.duty == Duty::RowsFirst {
            self.held.puts.push((to, at, [row, tail].concat()));
            return Ok(());
        }
        self.inner.put(to, at, row, tail)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        if core_word(self.shape, at).is_some() {
            self.held.epoch = word >> 62;
        }
        let (kind, at) = (status_kind(self.shape, at), self.place(at));
        match (self.duty, kind) {
            (Duty::RowsFirst, Some(_)) => {
                let puts = core::mem::take(&mut self.held.puts);
                self.held.due.extend(puts.into_iter().map(|(to, at, bytes)| (to, at, Due::Put(bytes))));
            }
            (Duty::WholeCount, Some(Operator::Dispatch)) if word != flag::status(0) => {
                self.held.due.push((to, at, Due::Publish(word)));
                return self.inner.publish(to, at, flag::status(0));
            }
            (Duty::StatusOrder, Some(Operator::Dispatch)) => {
                let at = self.rank_major(to, at);
                return self.inner.publish(to, at, word);
            }
            _ => {}
        }
        self.inner.publish(to, at, word)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        let at = self.place(at);
        self.inner.send(to, at, message)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        if *self.duty == Duty::Quiet {
            return Ok(true);
        }
        let quiet = self.inner.quiet()?;
        if quiet {
            for (at, bytes) in self.overdue() {
                match (at.region, bytes.first_chunk()) {
                    (Region::WindowOut, _) => self.inner.write(at, &bytes)?,
                    (_, Some(&word)) => self.inner.store(at, u64::from_le_bytes(word))?,
                    _ => {}
                }
            }
        }
        Ok(quiet)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let at = self.looked_at(self.place(at));
        let own = self.held.late.iter().rev().find(|late| late.0 == at && at.region != Region::WindowOut);
        let seen = match own.and_then(|late| late.1.first_chunk()) {
            Some(&word) => u64::from_le_bytes(word),
            None => self.inner.observe(at)?,
        };
        let rank = self.actor.member;
        match self.duty {
            Duty::Wait(words) if words.hold(self.shape, rank, at, None) => {
                Ok(words.passed(seen, status_kind(self.shape, at)))
            }
            Duty::Barrier { even, odd } => {
                let epoch = self.held.epoch;
                let skipped = if epoch.is_multiple_of(2) { *even } else { *odd };
                let of_epoch = |(core, parity)| core != self.actor.core && parity == epoch % 2;
                let passes =
                    skipped && core_word(self.shape, at).is_some_and(of_epoch) && seen >> 62 != epoch;
                Ok(if passes { epoch << 62 } else { seen })
            }
            _ => Ok(seen),
        }
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        let at = self.place(at);
        if let Duty::Clear(words) = self.duty {
            let seen = self.inner.observe(at)?;
            if words.hold(self.shape, self.actor.member, at, Some(seen)) {
                return Ok(());
            }
        }
        if self.is_late(at) {
            self.held.late.push((at, word.to_le_bytes().to_vec(), 0));
            return Ok(());
        }
        self.inner.store(at, word)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.inner.bytes(self.place(at), len)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        let at = self.place(at);
        if self.is_late(at) {
            self.held.late.push((at, bytes.to_vec(), 0));
            return Ok(());
        }
        self.inner.write(at, bytes)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let from = self.place(from);
        self.inner.deliver(output, from, len)
    }

    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.inner.peer_bytes(rank, self.place(at), len)
    }
}

/// An agent with a duty left out: only where both of something are one does it notice.
#[derive(Debug)]
pub struct FaultyNic<'a, N> {
    /// The interface.
    pub inner: N,
    /// What is left out.
    pub duty: &'a Duty,
    /// The domain.
    pub shape: &'a Shape,
}

impl<N: DerefMut<Target: Nic>> Nic for FaultyNic<'_, N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(self.duty.place(self.shape, at))
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let place = |at| self.duty.place(self.shape, at);
        let transfer = Transfer { from: place(transfer.from), at: place(transfer.at), ..*transfer };
        self.inner.post(&transfer)
    }
}
