//! Every backend takes the same exam.

use std::sync::Mutex;
use veriep_case::verdict::Verdict;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::raw::RowCopy;
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::place::Place;
use veriep_core::shape::Shape;
use veriep_core::units::{CoreId, RankId};
use veriep_group::backend::lockstep::{Lockstep, Memory};
use veriep_group::backend::shared::SharedMemory;
use veriep_group::backend::{Backend, Layer};
use veriep_group::conformance::{Strength, in_lockstep, on_threads, refusals, shape};

/// However rows are copied.
const WAYS: [RowCopy; 3] = [RowCopy::Ahead, RowCopy::Plain, RowCopy::Streaming];

#[test]
fn shared_memory_keeps_the_contract_on_real_threads() {
    for way in WAYS {
        on_threads(|shape| SharedMemory::new(shape, 1).unwrap().with_row_copy(way), 1000);
        refusals(|shape| SharedMemory::new(shape, 1).unwrap().with_row_copy(way));
    }
}

#[test]
fn an_exam_with_programs_that_were_not_run_is_unknown() {
    let lockstep = |seeds| in_lockstep(lockstep(Memory::Strong), seeds, Strength::Any);
    assert_eq!(lockstep(0..2).verdict(), Verdict::Yes);
    assert_eq!(lockstep(0..0).verdict(), Verdict::Unknown);
    let threads = |repetitions| on_threads(|shape| SharedMemory::new(shape, 1).unwrap(), repetitions);
    assert_eq!(threads(2).verdict(), Verdict::Yes);
    assert_eq!(threads(0).verdict(), Verdict::Unknown);
    // A fabric without messages takes no program that sends some.
    let without = || Bent { bend: Bend::Claims(Capabilities::SEND), held: Mutex::default() };
    let exam = on_threads(|shape| without().over(SharedMemory::new(shape, 1).unwrap()), 2);
    assert_eq!((exam.verdict(), exam.held.is_empty()), (Verdict::Unknown, false));
    assert!(exam.skipped.iter().all(|(_, why)| why.contains("SEND")), "{exam:?}");
}

#[test]
fn a_row_is_the_same_row_wherever_it_lies_and_however_long_it_is() {
    WAYS.into_iter().for_each(copies_exactly);
}

fn copies_exactly(way: RowCopy) {
    let shape = shape();
    let memory = SharedMemory::new(&shape, 1).unwrap().with_row_copy(way);
    let row: Vec<u8> = (0..1500u32).map(|i| (i * 7 % 251) as u8 + 1).collect();
    for (from, at, len) in (0..17).flat_map(|from| {
        (0..33).flat_map(move |at| [1, 63, 64, 65, 127, 144, 301, 1024, 1351].map(|len| (from, at, len)))
    }) {
        let (row, tail) = row[from..].split_at(len);
        // Also the lengths at which tails are copied in another way, with each row another one.
        let tail = &tail[..[0, 5, 31, 32, 33, 44, 63, 64, 65, 75][(from + at as usize + len) % 10]];
        let mut fabric = memory.fabric(RankId(0), CoreId(0), 0);
        fabric.write(Place::window(0), &[0; 1536]).unwrap();
        fabric.put(RankId(0), Place::window(at), row, tail).unwrap();
        assert!(fabric.quiet().unwrap());
        let seen = fabric.bytes(Place::window(0), 1536).unwrap();
        let (at, end) = (at as usize, at as usize + len);
        let behind = end + tail.len();
        assert_eq!((&seen[at..end], &seen[end..behind]), (row, tail), "{len} bytes at {at}");
        assert!(
            seen[..at].iter().chain(&seen[behind..]).all(|&byte| byte == 0),
            "{len} bytes at {at}: beside"
        );
    }
}

fn lockstep(memory: Memory) -> impl Fn(&Shape, u64) -> Lockstep {
    move |shape, seed| Lockstep::new(shape, 1, memory, seed).expect("memory")
}

#[test]
fn strong_lockstep_memory_keeps_the_contract() {
    in_lockstep(lockstep(Memory::Strong), 0..300, Strength::Any);
    refusals(|shape| lockstep(Memory::Strong)(shape, 0));
}

#[test]
fn weak_lockstep_memory_keeps_the_contract_and_no_more() {
    in_lockstep(lockstep(Memory::Weak), 0..1000, Strength::Weak);
    refusals(|shape| lockstep(Memory::Weak)(shape, 0));
}

/// A layer in which agents or messages have a rule of their own broken.
struct Bent {
    bend: Bend,
    /// The end of a message that has still to be sent.
    held: Mutex<Option<(RankId, Place, Vec<u8>)>>,
}

/// A wrong transfer, as an interface that knows no better would make it.
#[derive(Clone, Copy)]
enum Bend {
    /// In two parts without order; so many bytes are the second.
    Parts(u64),
    /// Its last word never.
    NoEnd,
    /// The last word of a message comes after the message after it.
    LateEnd,
    /// A message word by word, each of them whole before the next.
    WordByWord,
    /// Nothing is wrong but what the fabric says of itself.
    Claims(Capabilities),
}

/// A core whose messages are bent.
struct BentFabric<'b, F> {
    inner: F,
    bend: Bend,
    held: &'b Mutex<Option<(RankId, Place, Vec<u8>)>>,
}

impl<F: Fabric> Middleware for BentFabric<'_, F> {
    veriep_core::around! { inner: F }

    fn capabilities(&self) -> Capabilities {
        match self.bend {
            Bend::Claims(wrong) => self.inner.capabilities().symmetric_difference(wrong),
            _ => self.inner.capabilities(),
        }
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        let behind = |bytes: usize| Place { offset: at.offset + bytes as u64, ..at };
        match self.bend {
            Bend::WordByWord => {
                let mut words = message.chunks(8).enumerate();
                words.try_for_each(|(i, word)| self.inner.send(to, behind(8 * i), word))
            }
            Bend::LateEnd => {
                let mut held = self.held.lock().unwrap();
                if let Some((there, end_at, end)) = held.take() {
                    self.inner.send(to, at, message)?;
                    self.inner.send(there, end_at, &end)
                } else {
                    let (rest, end) = message.split_at(message.len() - 8);
                    *held = Some((to, behind(rest.len()), end.to_vec()));
                    self.inner.send(to, at, rest)
                }
            }
            _ => self.inner.send(to, at, message),
        }
    }
}

struct BentNic<N> {
    inner: N,
    bend: Bend,
}

impl<N: Nic> Nic for BentNic<N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        match self.bend {
            Bend::Parts(second) if second < len => {
                let first = len - second;
                self.inner.post(&Transfer { len: first, ..*transfer })?;
                let shifted = |place: Place| Place { offset: place.offset + first, ..place };
                self.inner.post(&Transfer { to, from: shifted(from), at: shifted(at), len: second })
            }
            Bend::NoEnd if len > 8 => self.inner.post(&Transfer { len: len - 8, ..*transfer }),
            _ => self.inner.post(transfer),
        }
    }
}

impl Layer for Bent {
    fn fabric<'b, F: Fabric + 'b>(&'b self, _: RankId, _: CoreId, inner: F) -> impl Fabric {
        BentFabric { inner, bend: self.bend, held: &self.held }
    }

    fn nic<'b, N: Nic + 'b>(&'b self, _: RankId, inner: N) -> impl Nic {
        BentNic { inner, bend: self.bend }
    }
}

fn bent(bend: Bend) {
    in_lockstep(
        |shape, seed| Bent { bend, held: Mutex::default() }.over(lockstep(Memory::Weak)(shape, seed)),
        0..1000,
        Strength::Weak,
    );
}

#[test]
#[should_panic(expected = "a transfer is delivered whole")]
fn transfers_whose_last_word_may_come_first_are_caught() {
    bent(Bend::Parts(8));
}

#[test]
#[should_panic(expected = "a transfer is delivered whole")]
fn transfers_in_two_parts_without_order_are_caught() {
    bent(Bend::Parts(104));
}

#[test]
#[should_panic(expected = "a transfer is delivered whole")]
fn transfers_that_never_end_are_caught() {
    bent(Bend::NoEnd);
}

#[test]
#[should_panic(expected = "a message is whole before the next one")]
fn messages_whose_end_comes_behind_the_next_are_caught() {
    bent(Bend::LateEnd);
}

#[test]
#[should_panic(expected = "the last word of a message says nothing of the others: never seen")]
fn messages_that_land_in_the_order_of_their_words_are_too_strong() {
    bent(Bend::WordByWord);
}

fn claims(wrong: Capabilities) {
    let bent = || Bent { bend: Bend::Claims(wrong), held: Mutex::default() };
    refusals(|shape| bent().over(lockstep(Memory::Weak)(shape, 0)));
}

#[test]
#[should_panic(expected = "Capabilities(PEER_BYTES): claimed false, works true")]
fn a_call_that_is_not_claimed_and_works_is_caught() {
    claims(Capabilities::PEER_BYTES);
}

#[test]
#[should_panic(expected = "Capabilities(LEND): claimed true, works false")]
fn a_claimed_call_that_fails_is_caught() {
    claims(Capabilities::LEND);
}
