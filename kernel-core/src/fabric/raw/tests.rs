//! Properties that no run on this processor shows: the orderings of word accesses, and the places of fences. Loom's models
//! show that they suffice.

use super::{Peer, RawFabric, RawNic, RowCopy, Segment};
use crate::fabric::coherent::{OBSERVE, PUBLISH, SOURCE, STORE, TRANSFER};
use crate::fabric::nic::{Nic, Post, Transfer};
use crate::fabric::{Fabric, Fault, prefetch};
use crate::place::{Place, Tensor};
use crate::units::RankId;
use Did::{Fence, Load, Store};
use core::cell::RefCell;
use core::sync::atomic::Ordering;
use std::vec::Vec;

/// The actions of a fabric on which others depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Did {
    Fence,
    Load(Ordering),
    Store(Ordering),
}

std::thread_local! {
    static DONE: RefCell<Vec<Did>> = const { RefCell::new(Vec::new()) };
}

// Not inlined, since a test searches the first bytes of `fence` for the processor's instruction.
#[inline(never)]
pub(super) fn note(did: Did) {
    DONE.with_borrow_mut(|done| done.push(did));
}

/// Returns the actions of `act`.
fn done(act: impl FnOnce()) -> Vec<Did> {
    DONE.take();
    act();
    DONE.take()
}

const ME: RankId = RankId(0);
const NEAR: RankId = RankId(1);
const FAR: RankId = RankId(2);

/// Large enough to bypass the caches, which requires vectors of 16 bytes.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Row([u8; prefetch::LINE]);

const LEN: u64 = prefetch::LINE as u64;

/// Calls `act` with the fabric and the interface of one rank; the first two of four ranks are one server.
fn with(row_copy: RowCopy, act: impl FnOnce(RawFabric<'_>, RawNic<'_>)) {
    let mut memory = [[Row([0; prefetch::LINE]); 3]; 4];
    let mut output = Row([0; prefetch::LINE]);
    let segment = |row: &mut Row| Segment::new(row.0.as_mut_ptr(), LEN);
    let peers = memory.each_mut().map(|[state, window, out]| Peer {
        state: segment(state),
        window: segment(window),
        window_out: segment(out),
    });
    let outputs = Tensor::ALL.map(|t| if t == Tensor::XOut { segment(&mut output) } else { Segment::EMPTY });
    // SAFETY: the segments are rows of their own that outlive the call, and only this thread accesses them, through these
    // two, one after the other.
    let (fabric, nic) = unsafe { (RawFabric::new(&peers, ME, outputs), RawNic::new(&peers, ME)) };
    act(fabric.with_servers(2).with_row_copy(row_copy), nic);
}

#[test]
fn words_are_accessed_with_the_orderings_that_the_models_check() {
    with(RowCopy::Ahead, |mut fabric, mut nic| {
        let at = Place::state(8);
        let publish = done(|| fabric.publish(NEAR, at, 1).unwrap());
        assert_eq!(publish, [Store(PUBLISH)]);
        assert_eq!(done(|| fabric.send(FAR, at, &[1; 16]).unwrap()), [Store(PUBLISH); 2]);
        assert_eq!(done(|| assert_eq!(fabric.observe(at), Ok(0))), [Load(OBSERVE)]);
        assert_eq!(done(|| fabric.store(at, 1).unwrap()), [Store(STORE)]);
        assert_eq!(done(|| assert_eq!(nic.observe(at), Ok(1))), [Load(OBSERVE)]);
        let transfer = Transfer { to: NEAR, from: Place::window_out(0), at: Place::window(0), len: 16 };
        let post = done(|| assert_eq!(nic.post(&transfer), Ok(Post::Posted)));
        assert_eq!(post, [Load(SOURCE), Store(TRANSFER), Load(SOURCE), Store(TRANSFER)]);
    });
}

#[test]
fn a_word_at_half_a_words_offset_is_refused() {
    with(RowCopy::Plain, |mut fabric, nic| {
        let at = Place::state(4);
        let [own, near] = [ME, NEAR].map(|rank| Fault::new(rank, at, 8));
        assert_eq!(fabric.observe(at), Err(own));
        assert_eq!(fabric.store(at, 1), Err(own));
        assert_eq!(fabric.publish(NEAR, at, 1), Err(near));
        assert_eq!(nic.observe(at), Err(own));
    });
}

type Act = fn(&mut RawFabric<'_>);

fn put(fabric: &mut RawFabric<'_>) {
    fabric.put(NEAR, Place::window(0), &[1; prefetch::LINE], &[]).unwrap();
}

fn deliver(fabric: &mut RawFabric<'_>) {
    fabric.deliver(Place::output(Tensor::XOut, 0), Place::window(0), LEN).unwrap();
}

fn quiet(fabric: &mut RawFabric<'_>) {
    assert_eq!(fabric.quiet(), Ok(true));
}

/// A fence precedes every announcement of rows, and after it nothing is left to fence.
#[test]
#[cfg(target_arch = "x86_64")]
fn one_fence_separates_rows_past_the_caches_from_their_flag() {
    let tell: [(Act, &[Did]); 3] = [
        (|fabric| fabric.publish(NEAR, Place::state(0), 1).unwrap(), &[Store(PUBLISH)]),
        (|fabric| fabric.send(FAR, Place::state(0), &[1; 8]).unwrap(), &[Store(PUBLISH)]),
        (quiet, &[]),
    ];
    for (tell, told) in tell {
        for row in [put, deliver] {
            with(RowCopy::Streaming, |mut fabric, _| {
                assert_eq!(done(|| tell(&mut fabric)), told, "no row");
                assert_eq!(done(|| [row, row].iter().for_each(|row| row(&mut fabric))), []);
                assert_eq!(done(|| tell(&mut fabric)), [&[Fence], told].concat());
                assert_eq!(done(|| tell(&mut fabric)), told, "fenced");
                assert_eq!(done(|| drop(fabric)), [], "fenced");
            });
        }
    }
    for row in [put, deliver] {
        with(RowCopy::Streaming, |mut fabric, _| {
            row(&mut fabric);
            assert_eq!(done(|| drop(fabric)), [Fence]);
        });
    }
}

#[test]
fn rows_through_the_caches_want_no_fence() {
    for row_copy in [RowCopy::Ahead, RowCopy::Plain] {
        with(row_copy, |mut fabric, _| {
            let rows = done(|| [put, deliver, quiet].iter().for_each(|act| act(&mut fabric)));
            assert_eq!(rows, []);
            assert_eq!(done(|| drop(fabric)), []);
        });
    }
}

/// A missing fence has no visible effect, so the test searches the compiled code for it.
#[test]
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn the_fence_is_the_processors_instruction() {
    let fence = <super::RawCells<'_> as crate::fabric::coherent::Cells>::fence as fn(_);
    let code = fence as *const [u8; 16];
    assert!(code.addr().is_multiple_of(16), "functions begin at multiples of 16");
    // SAFETY: the code of a function, which may be read; it is mapped in whole pages. No other function lies so near.
    let code = unsafe { code.read() };
    assert!(code.windows(3).any(|bytes| bytes == [0x0F, 0xAE, 0xF8]), "no sfence in {code:02x?}");
}
