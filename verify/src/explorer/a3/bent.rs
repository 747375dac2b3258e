//! Defects of A3's memory and fabric: a layer between a machine and its view, which bends what the machine asks for or what
//! it sees. Without a defect every call goes through unchanged.

use super::super::protocol::{self, VIRTUAL, first_word};
use super::super::setup::Setup;
use super::super::violation::Violation;
use super::memory::{Scene, is_flag};
use super::view::{View, is_core_word, is_shared};
use crate::defects::Defect;
use core::cell::Cell;
use veriep_core::fabric::order::{Issued, Kind};
use veriep_core::fabric::{Capabilities, Fabric, Fault, Progress};
use veriep_core::layout::block;
use veriep_core::layout::data::{dispatch_record, partition_start};
use veriep_core::layout::direct::{Area, Parts};
use veriep_core::layout::state::{
    CORE_RECORD, CORE_WORDS, DISPATCH_STATUS, Direct, PARTITION, Partition, STATUS_SLOT, Slots, combine_slot,
    selector,
};
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::placement::Home;
use veriep_core::protocol::Operator;
use veriep_core::shape::Shape;
use veriep_core::sync::flag;
use veriep_core::units::{CoreId, RankId, Token};

/// The bits of a core word that hold the number of its barrier. The others are sums of rows.
const EPOCH_BITS: u64 = 3 << 62;

impl Scene<'_> {
    /// Whether the memory keeps an effect from landing before an earlier one.
    pub(super) fn follows(&self, effect: &Issued, earlier: &Issued) -> bool {
        let overtakes = self.setup.model.defect == Defect::RelaxedPublish && earlier.kind == Kind::Put;
        !overtakes && effect.must_follow(earlier)
    }
}

/// A core's view, bent as the model's defect says.
pub(super) struct Bent<'v, 'a> {
    view: View<'v, 'a>,
    /// Whether the core has put something since its last quiet.
    sent: bool,
    /// Where it last saw the flag of a block.
    block_seen: Cell<Option<u64>>,
    /// Of the rows that the step has read for the last time, those that its effects have used.
    used: usize,
}

impl<'v, 'a> Bent<'v, 'a> {
    pub(super) fn new(view: View<'v, 'a>, sent: bool) -> Self {
        Self { view, sent, block_seen: Cell::default(), used: 0 }
    }

    /// The view, and what is kept of the core for its next step.
    pub(super) fn into_parts(self) -> (View<'v, 'a>, bool) {
        (self.view, self.sent)
    }

    fn defect(&self) -> Defect {
        self.setup().model.defect
    }

    fn setup(&self) -> &'a Setup<'a> {
        self.view.scene.setup
    }

    /// Where a core comes to that goes to `at`.
    fn folded(&self, at: Place) -> Place {
        if self.defect() == Defect::OneBarrierWord && is_core_word(at) { first_word(at) } else { at }
    }

    /// The word that a core takes for the one at `at`, without a look at the memory; `None` if it looks.
    fn assumed_word(&self, at: Place) -> Result<Option<u64>, Fault> {
        let step = &self.view.step;
        let word = match self.defect() {
            // A core that asks has exchanged counts, so all traffic is chosen.
            Defect::NoFlagOfNothing if self.leaves_out(step.at.rank, at) => return Ok(Some(flag::ARRIVED)),
            Defect::MaskedWait if self.is_last_of_masked(at) => flag::ARRIVED,
            Defect::TakesBack if self.is_taken_back(at) => 0,
            Defect::EarlyGrants if self.is_taken_for_idle(at) => flag::ARRIVED,
            // As if the other had arrived together with this core, without rows.
            _ if self.skips_barrier_word(at) => {
                self.view.newest(self.view.virtually(self.view.own_word(at))) & EPOCH_BITS
            }
            _ => return Ok(None),
        };
        step.touch(at)?;
        Ok(Some(word))
    }

    /// Whether a core does not wait for the core whose word of the barrier is at `at`.
    fn skips_barrier_word(&self, at: Place) -> bool {
        let skips = match self.defect() {
            Defect::NoBarrier => true,
            Defect::NoPullBarrier => self.view.step.at.operator == Operator::Combine,
            Defect::BarrierOfLowerCores => {
                let other = (at.offset.wrapping_sub(CORE_WORDS) / CORE_RECORD) as u32;
                other > self.view.step.at.core.0
            }
            _ => false,
        };
        skips && is_core_word(at) && at != self.view.own_word(at)
    }

    /// Whether the flag there is that of the last active expert of a token that has a masked one.
    fn is_last_of_masked(&self, at: Place) -> bool {
        let step = &self.view.step;
        let (shape, inputs) = (self.setup().shape, step.at.round.tensors[step.at.rank.index()].inputs());
        let of = |token| {
            let ks = 0..shape.k();
            let active = ks.clone().rfind(|&k| inputs.pair_is_active(shape, token, k));
            let slot =
                active.map(|k| Slots::Shipped.combine_status(Partition::P0, combine_slot(shape, token, k)));
            let masked = ks.into_iter().any(|k| !inputs.pair_is_active(shape, token, k));
            masked && slot.is_some_and(|slot| slot.offset == at.offset % PARTITION)
        };
        let is_status = at.region == Region::State && is_flag(at) && step.at.operator == Operator::Combine;
        is_status && (0..shape.bs(step.at.rank)).map(Token).any(of)
    }

    /// Whether the dispatch flag there is of a rank that has taken it back.
    fn is_taken_back(&self, at: Place) -> bool {
        let step = &self.view.step;
        let is_dispatch = at.region == Region::State && at.offset % PARTITION < DISPATCH_STATUS;
        let source = (at.offset % PARTITION / STATUS_SLOT) as u32 % self.setup().shape.ep_world_size();
        is_dispatch && is_flag(at) && source != step.at.rank.0 && step.at.withdrawn >> source & 1 == 1
    }

    /// Whether the word there is that of the counts of a later rank that has not begun.
    fn is_taken_for_idle(&self, at: Place) -> bool {
        let (step, source) = (&self.view.step, self.view.source_of(at));
        let is_counts = self.view.direct_word(at) == Some(Direct::Counts);
        is_counts && source > step.at.rank && step.at.operators[source.index()] < step.at.op
    }

    /// Whether a core refuses a record of which it has seen a later block, and not the one whose flag is at `at`.
    fn refuses(&self, at: Place, word: u64) -> bool {
        if self.defect() != Defect::RefusesGaps || at.region != Region::Window {
            return false;
        }
        let seen = if word != 0 { self.block_seen.replace(Some(at.offset)) } else { self.block_seen.get() };
        word == 0 && seen == Some(block::block(at, 1).offset)
    }

    /// Whether there is no word at `at` on rank `to`: the token flag of a slot without rows.
    fn leaves_out(&self, to: RankId, at: Place) -> bool {
        if self.defect() != Defect::NoFlagOfNothing || self.view.direct_word(at).is_some() {
            return false;
        }
        let Some((slot, all)) = token_slot(at).zip(self.view.step.at.expected()) else { return false };
        let sums = all[to.index()].output(Tensor::EpRecvCounts);
        let sum = |slot: u32| sums.chunks_exact(4).nth(slot as usize);
        slot.checked_sub(1).map_or(Some(&[0; 4][..]), sum) == sum(slot)
    }

    /// Whether a published word never sets out.
    fn is_lost(&self, to: RankId, at: Place) -> bool {
        let is_second = !self.view.step.at.nth.is_multiple_of(2);
        self.defect() == Defect::PollsByStepping && is_second && to == RankId(1) && is_flag(at)
    }

    /// Whether a word that others look at is never cleared.
    fn forgets(&self, at: Place) -> bool {
        let (Setup { model, shape, .. }, step) = (self.setup(), &self.view.step);
        let direct = self.view.direct_word(at);
        let is_token_flag = || direct.map_or(token_slot(at).is_some(), |word| word == Direct::TokenFlags);
        let is_count = || {
            let is_plain = at.region == Region::State && token_slot(at).is_none();
            direct.map_or(is_plain, |word| word == Direct::Counts)
        };
        match self.defect() {
            Defect::NoClear => true,
            Defect::NoCountClear => is_count(),
            Defect::NoTokenClear => is_token_flag(),
            Defect::NoBlockClear => at.region == Region::Window,
            Defect::NoLastBlockClear => at.region == Region::Window && is_last_block(shape, step.at.rank, at),
            Defect::NoGrantClear => direct == Some(Direct::Grants),
            Defect::NoSharedClear => {
                let last = Slots::Shipped.dispatch_status(Partition::P0, shape.ep_world_size() - 1);
                step.at.rank.0 < model.shared_ranks && at.offset % PARTITION == last.offset
            }
            Defect::NoTpClear if at.region == Region::TpState => {
                self.view.read_word(self.view.virtually(at)) == flag::status(0)
            }
            Defect::NoReadyClear => step.at.operator == Operator::Combine,
            _ => false,
        }
    }

    /// Asks the memory for room for an effect, if the model's may be busy: it has room, or answers busy. Both ways are tried.
    fn has_room(&mut self, at: Place) -> Result<bool, Fault> {
        if !self.setup().model.busy {
            return Ok(true);
        }
        self.view.step.touch(at)?;
        let has_room = self.view.step.search.tape.get_mut().choose(());
        if !has_room {
            // A row that was read for an effect without room is read again.
            self.view.read_rows.get_mut().truncate(self.used);
        }
        Ok(has_room)
    }

    /// An effect has been taken, which has used all rows that were read.
    fn taken(&mut self) {
        self.used = self.view.read_rows.get_mut().len();
    }

    /// Asks for room, and refuses an effect for which there is none.
    fn ask_room(&mut self, to: RankId, at: Place) -> Result<(), Fault> {
        if self.has_room(at)? { Ok(()) } else { Err(Fault::busy(to, at, 0)) }
    }

    /// Clears the combine flags of the partition that comes next.
    fn clean_next(&mut self) {
        let (model, view) = (self.setup().model, &mut self.view);
        let next = u64::from((view.step.at.nth + 1) % model.partitions[Operator::Combine as usize]) * VIRTUAL;
        for slot in 0..model.tokens * model.k {
            let at = Slots::Shipped.combine_status(Partition::P0, slot);
            let at = Place { offset: at.offset + next, ..at };
            let place = view.scene.places.number(&(view.step.at.rank, at));
            if view.memory.get_mut().word(place) != 0 {
                view.step.found.blame(Violation::LostFlag { rank: view.step.at.rank, at });
            }
            view.memory.get_mut().set_word(place, 0);
        }
        view.step.account.say(|| "clears the flags of its next combine".to_owned());
    }
}

impl Fabric for Bent<'_, '_> {
    fn capabilities(&self) -> Capabilities {
        self.view.capabilities()
    }

    fn line(&self) -> u64 {
        self.view.line()
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let has_room = self.has_room(at)?;
        if has_room || self.defect() == Defect::BusyAfterPut {
            self.view.put(to, at, row, tail)?;
            self.taken();
            self.sent = true;
        }
        if has_room { Ok(()) } else { Err(Fault::busy(to, at, 0)) }
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.ask_room(to, at)?;
        let (at, member) = (self.folded(at), self.view.member(to, at)?);
        if self.leaves_out(member, at) {
            return Ok(());
        }
        if self.is_lost(member, at) {
            return self.view.step.touch(at);
        }
        self.view.publish(to, at, word)?;
        self.taken();
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let quiet = match self.defect() {
            Defect::NoQuiet => self.view.is_quiet_but_for(|_| true),
            Defect::QuietOnlyIfSent if !self.sent => self.view.is_quiet_but_for(|_| true),
            Defect::LateClear => self.view.is_quiet_but_for(|effect| effect.issued.kind == Kind::Store),
            _ => self.view.quiet(),
        }?;
        self.sent &= !quiet;
        Ok(quiet)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let at = self.folded(at);
        if let Some(word) = self.assumed_word(at)? {
            return Ok(word);
        }
        let word = self.view.observe(at)?;
        if self.refuses(at, word) { Err(Fault::new(self.view.step.at.rank, at, 0)) } else { Ok(word) }
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.ask_room(self.view.step.at.rank, at)?;
        if self.defect() == Defect::CleansNext && at == selector(Operator::Combine, CoreId(0)) {
            self.view.step.touch(at)?;
            self.clean_next();
        }
        if self.leaves_out(self.view.step.at.rank, at) {
            return Ok(());
        }
        if is_shared(at) && self.forgets(at) {
            return self.view.take(at).map(|_| ());
        }
        self.view.store(at, word)?;
        self.taken();
        Ok(())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        if self.defect() == Defect::EarlyGrants && at.region == Region::State {
            // Of a rank that is taken for idle there is no table.
            return Ok(self.view.row(at, len)?.unwrap_or(&[0; 4]));
        }
        self.view.bytes(at, len)
    }

    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.view.row_at_peer(rank, result_place(self.setup(), rank, at), len)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.ask_room(self.view.step.at.rank, at)?;
        if self.defect() == Defect::EarlyGrants && self.view.step.at.expected().is_none() {
            // What will be right is not known yet.
            self.view.step.found.written += bytes.len() as u32;
            return Ok(());
        }
        self.view.write(at, bytes)?;
        self.taken();
        Ok(())
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.ask_room(self.view.step.at.rank, output)?;
        self.view.deliver(output, from, len)?;
        self.taken();
        Ok(())
    }
}

impl protocol::View for Bent<'_, '_> {
    fn experts(&mut self, moves: u32) -> Result<Progress, Fault> {
        let (setup, rank) = (self.setup(), self.view.step.at.rank);
        let moves = match self.defect() {
            // Of the two moves of a row the second one comes first.
            Defect::ResultAheadOfRead => moves ^ 1,
            Defect::ReadyAheadOfResults if self.view.row_of_move(moves).is_none() => {
                return Ok(Progress::Done);
            }
            _ => moves,
        };
        self.view.experts(moves, |at| result_place(setup, rank, at))
    }
}

/// Where results lie that machines look for at `at` on a rank.
fn result_place(Setup { model, shape, .. }: &Setup<'_>, rank: RankId, at: Place) -> Place {
    let area = |number| Parts::of(shape, rank, Area { number, overwritten: false }).result(0).offset;
    let is_one = model.defect == Defect::OneResultArea && at.offset >= area(1);
    Place { offset: if is_one { at.offset - area(1) + area(0) } else { at.offset }, ..at }
}

/// The dispatch slot whose `TokenFlag` is at `at`, a place as machines of the shipped protocol give it.
fn token_slot(at: Place) -> Option<u32> {
    let inside = at.offset % PARTITION;
    let is_status = at.region == Region::State && is_flag(at) && inside < DISPATCH_STATUS;
    (is_status && inside % STATUS_SLOT == 8).then_some((inside / STATUS_SLOT) as u32)
}

/// Whether the flag at `at` in a rank's window is that of a record's last block.
fn is_last_block(shape: &Shape, rank: RankId, at: Place) -> bool {
    let first = dispatch_record(shape, Partition::P0, Home { rank, local_expert: 0 }, RankId(0), 0);
    let last = block::flag(first, block::count(shape) - 1).offset;
    let (inside, pitch) = (at.offset % partition_start(shape, Partition::P1), shape.record_pitch());
    (inside + pitch - last).is_multiple_of(pitch)
}
