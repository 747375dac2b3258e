//! Landing of effects, between two steps.

use super::{Again, Behind, Effect, FORCED, Zoo};
use crate::conformance::exam::fault::{Fault, Kind};
use crate::place::Place;
use crate::sim::storage::{Spot, Storage};
use crate::units::RankId;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

impl Zoo {
    /// Ends a step: what is due lands.
    pub(in crate::conformance::exam) fn tick(&mut self, behind: &mut Behind) {
        self.now += 1;
        self.take_lines(behind);
        if let Some(Fault::Unflushed) = self.animal.fault {
            self.flush_older();
        }
        let mut i = 0;
        while i < self.effects.len() {
            if self.effects[i].due > self.now || self.is_blocked(i) {
                i += 1;
                continue;
            }
            if self.effects[i].kind == Kind::Transfer && self.advance(i, behind) {
                i += 1;
                continue;
            }
            let effect = self.effects.remove(i);
            if effect.kind != Kind::Transfer {
                self.land(&effect, behind);
            }
        }
        let calls = self.calls;
        let due: Vec<_> = self.again.extract_if(.., |again| again.calls <= calls).collect();
        for Again { to, at, bytes, .. } in due {
            self.poke(behind, to, at, &bytes);
        }
    }

    fn take_lines(&mut self, behind: &Behind) {
        let fault = self.animal.fault;
        for e in self.effects.iter_mut().filter(|e| e.fresh) {
            e.fresh = false;
            if let Some(Fault::Line(kinds, line)) = fault
                && kinds.contains(&e.kind)
            {
                let start = Place { offset: e.at.offset / line * line, ..e.at };
                let end = (e.at.offset + e.bytes.len() as u64).next_multiple_of(line);
                let spot = Spot { member: e.to, batch: 0, at: start };
                let kept = behind.storage.read(spot, end - start.offset);
                e.line = kept.map(|bytes| (start, bytes.to_vec()));
            }
        }
    }

    /// Flushes each publish after which its core has issued something.
    fn flush_older(&mut self) {
        let mut newest = BTreeMap::new();
        for (i, e) in self.effects.iter().enumerate() {
            newest.insert(e.from, i);
        }
        let now = self.now;
        for (i, e) in self.effects.iter_mut().enumerate() {
            if e.due == FORCED && e.kind == Kind::Publish && newest[&e.from] > i {
                e.due = now;
            }
        }
    }

    /// Returns whether something must land before effect `i`.
    fn is_blocked(&mut self, i: usize) -> bool {
        let (earlier, rest) = self.effects.split_at_mut(i);
        let effect = &rest[0];
        let now = self.now;
        let mut blocked = false;
        for e in earlier.iter_mut().filter(|e| e.from == effect.from && e.to == effect.to && !e.loose) {
            let before = match (effect.kind, e.kind) {
                (Kind::Publish, Kind::Put) => true,
                (Kind::Store, Kind::Store) | (Kind::Write, Kind::Write) => e.at == effect.at && !effect.loose,
                (Kind::Message, Kind::Message) => e.message != effect.message,
                _ => false,
            };
            blocked |= before;
            if before && e.due == FORCED {
                e.due = now;
            }
        }
        blocked
    }

    /// Delivers some words of a transfer, and returns whether any are left.
    fn advance(&mut self, i: usize, behind: &mut Behind) -> bool {
        let Effect { from, to, at, source, left, whole, .. } = self.effects[i];
        let words = left / 8;
        let some = if self.dice.below(3) == 0 { words } else { 1 + self.dice.below(words as usize) as u64 };
        let done = whole as u64 - left;
        for word in 0..some {
            let inside = match self.animal.fault {
                Some(Fault::Backwards(above)) if whole as u64 > above => left - 8 - 8 * word,
                Some(Fault::LastFirst(above)) if whole as u64 > above => {
                    (done + 8 * word + whole as u64 - 8) % whole as u64
                }
                _ => done + 8 * word,
            };
            let place = |start: Place| Place { offset: start.offset + inside, ..start };
            let read_at = place(source);
            let spot = Spot { member: from.member, batch: 0, at: read_at };
            let mut bytes = behind.storage.read(spot, 8).map_or(vec![0; 8], <[u8]>::to_vec);
            if let Some(Fault::Remembers) = self.animal.fault {
                bytes = self.remembered.entry((from.member, read_at)).or_insert(bytes).clone();
            }
            if let Some(Fault::EchoTransfer(calls)) = self.animal.fault {
                self.again.push(Again { calls: self.calls + calls, to, at: place(at), bytes: bytes.clone() });
            }
            self.poke(behind, to, place(at), &bytes);
        }
        self.effects[i].left -= 8 * some;
        self.effects[i].left > 0
    }

    fn land(&mut self, effect: &Effect, behind: &mut Behind) {
        let Effect { to, at, kind, line, .. } = effect;
        let mut bytes = effect.bytes.clone();
        let spot = Spot { member: *to, batch: 0, at: *at };
        let old = behind.storage.read(spot, bytes.len() as u64).map(<[u8]>::to_vec);
        if *kind == Kind::Publish
            && let Some(old) = old.as_ref().and_then(|old| old.first_chunk())
            && let Some(new) = bytes.first_chunk()
        {
            let (old, new) = (u64::from_le_bytes(*old), u64::from_le_bytes(*new));
            match self.animal.fault {
                Some(Fault::Adds) => bytes = old.wrapping_add(new).to_le_bytes().to_vec(),
                Some(Fault::Ors) => bytes = (old | new).to_le_bytes().to_vec(),
                _ => {}
            }
        }
        match self.animal.fault {
            Some(Fault::Echo(of, calls)) if of == *kind => {
                self.again.push(Again { calls: self.calls + calls, to: *to, at: *at, bytes: bytes.clone() });
            }
            Some(Fault::Undone(calls)) if *kind == Kind::Publish => {
                let back = old.unwrap_or_default();
                self.again.push(Again { calls: self.calls + calls, to: *to, at: *at, bytes: back });
                let bytes = bytes.clone();
                self.again.push(Again { calls: self.calls + calls + 8, to: *to, at: *at, bytes });
            }
            _ => {}
        }
        if let Some((start, mut kept)) = line.clone() {
            let inside = (at.offset - start.offset) as usize;
            kept[inside..inside + bytes.len()].copy_from_slice(&bytes);
            return self.poke(behind, *to, start, &kept);
        }
        self.poke(behind, *to, *at, &bytes);
    }

    fn poke(&self, behind: &mut Behind, to: RankId, at: Place, bytes: &[u8]) {
        let at = self.wrapped(at);
        if behind.storage.holds(Spot { member: to, batch: 0, at }, bytes.len() as u64) {
            behind.poke(to, at, bytes);
        }
    }
}
