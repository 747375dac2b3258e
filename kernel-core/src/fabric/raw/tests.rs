//! Properties that no run on this processor shows: the orderings of word accesses, and the places of fences. Loom's models
//! show that they suffice.

use super::{Peer, RawFabric, RawNic, RowCopy, Segment};
use crate::fabric::coherent::{OBSERVE, PUBLISH, SOURCE, STORE, TRANSFER};
use crate::fabric::nic::{Nic, Post, Transfer};
use crate::fabric::{Capabilities, Fabric, Fault, prefetch};
use crate::place::{Place, Region, Tensor};
use crate::units::RankId;
use Did::{Fence, Load, Store};
use core::cell::RefCell;
use core::sync::atomic::Ordering;
use std::format;
use std::vec;
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
/// The number of the same rank in its TP domain.
const TP_ME: RankId = RankId(1);

/// Several lines, from the start of one on.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Bytes([u8; 4 * prefetch::LINE]);

const REGIONS: [Region; 6] = [
    Region::State,
    Region::Window,
    Region::WindowOut,
    Region::TpState,
    Region::TpWindow,
    Region::Output(Tensor::XOut),
];

/// Returns the content of a region of a rank before anything is written: no other has it.
fn marked(rank: RankId, region: Region) -> u8 {
    let number = REGIONS.iter().position(|&one| one == region).unwrap() as u8;
    1 + 8 * rank.0 as u8 + number
}

/// Calls `act` with the fabric and the interface of one rank; the first two of four ranks are one server, and two ranks are its
/// TP domain.
fn with(row_copy: RowCopy, act: impl FnOnce(RawFabric<'_>, RawNic<'_>)) {
    in_servers_of(2, |fabric, nic| act(fabric.with_row_copy(row_copy), nic));
}

/// The same with servers of so many ranks.
fn in_servers_of(ranks: u32, act: impl FnOnce(RawFabric<'_>, RawNic<'_>)) {
    let of = |rank, region| Bytes([marked(RankId(rank), region); _]);
    let mut memory = [0, 1, 2, 3].map(|rank| [0, 1, 2].map(|n| of(rank, REGIONS[n])));
    let mut tp = [0, 1].map(|rank| [3, 4].map(|n| of(rank, REGIONS[n])));
    let mut output = of(ME.0, REGIONS[5]);
    let segment = |bytes: &mut Bytes| Segment::new(bytes.0.as_mut_ptr(), bytes.0.len() as u64);
    let peers = memory.each_mut().map(|[state, window, out]| Peer {
        state: segment(state),
        window: segment(window),
        window_out: segment(out),
    });
    let tp = tp.each_mut().map(|[state, window]| Peer {
        state: segment(state),
        window: segment(window),
        window_out: Segment::EMPTY,
    });
    let outputs = Tensor::ALL.map(|t| if t == Tensor::XOut { segment(&mut output) } else { Segment::EMPTY });
    // SAFETY: the segments are allocations of their own that outlive the call, and only this thread accesses them, through
    // these two, one after the other.
    let (fabric, nic) =
        unsafe { (RawFabric::new(&peers, ME, outputs).with_tp(&tp, TP_ME), RawNic::new(&peers, ME)) };
    act(fabric.with_servers(ranks), nic);
}

/// A place in every region of every rank that the fabric reaches, far ones included.
fn everywhere() -> impl Iterator<Item = (RankId, Place)> {
    REGIONS.into_iter().flat_map(|region| {
        let ranks: &[RankId] = match region {
            Region::State | Region::Window => &[ME, NEAR, FAR],
            Region::TpState | Region::TpWindow => &[RankId(0), TP_ME],
            Region::WindowOut | Region::Output(_) => &[ME],
        };
        ranks.iter().map(move |&rank| (rank, Place { region, offset: 128 }))
    })
}

/// The loads and stores by which others learn of something, and the ranks of a server, all regions of each. What goes to far
/// ranks goes by messages.
#[test]
fn words_are_accessed_with_the_orderings_that_the_models_check() {
    assert_eq!([PUBLISH, TRANSFER, STORE], [Ordering::Release, Ordering::Release, Ordering::Relaxed]);
    assert_eq!([OBSERVE, SOURCE], [Ordering::Acquire, Ordering::Relaxed]);
    with(RowCopy::Ahead, |mut fabric, mut nic| {
        for (rank, at) in everywhere() {
            let publish = done(|| assert_eq!(fabric.publish(rank, at, 1).is_ok(), rank != FAR, "{at}"));
            assert_eq!(publish, if rank == FAR { vec![] } else { vec![Store(PUBLISH)] }, "{at} of {rank}");
            let send = done(|| assert_eq!(fabric.send(rank, at, &[1; 16]).is_ok(), rank == FAR, "{at}"));
            assert_eq!(send, if rank == FAR { vec![Store(PUBLISH); 2] } else { vec![] }, "{at} of {rank}");
        }
        for region in REGIONS {
            let at = Place { region, offset: 128 };
            assert_eq!(done(|| fabric.store(at, 7).unwrap()), [Store(STORE)], "{at}");
            assert_eq!(done(|| assert_eq!(fabric.observe(at), Ok(7))), [Load(OBSERVE)], "{at}");
            // An agent has no TP domain and no outputs.
            let is_seen = !region.is_of_tp() && !matches!(region, Region::Output(_));
            let seen = done(|| assert_eq!(nic.observe(at).ok(), is_seen.then_some(7), "{at}"));
            assert_eq!(seen, if is_seen { vec![Load(OBSERVE)] } else { vec![] }, "{at}");
        }
        for (to, words) in [ME, NEAR, FAR].into_iter().flat_map(|to| [1, 2, 16].map(|words| (to, words))) {
            let (from, at) = (Place::window_out(0), Place::window(0));
            let transfer = Transfer { to, from, at, len: 8 * words };
            let post = done(|| assert_eq!(nic.post(&transfer), Ok(Post::Posted)));
            let each = [Load(SOURCE), Store(TRANSFER)];
            assert_eq!(post, each.repeat(words as usize), "{words} words to {to}");
        }
    });
}

/// Every place with what is there, as the fabric sees it.
fn seen(fabric: &RawFabric<'_>) -> Vec<(RankId, Place, u8)> {
    let at = |(rank, at)| (rank, at, fabric.peer_bytes(rank, at, 1).unwrap()[0]);
    everywhere().map(at).collect()
}

/// The rank is not its number in the TP domain here, so a mix-up of the two finds another content.
#[test]
fn every_call_reaches_the_memory_of_the_rank_and_region_that_it_names() {
    let word = |byte| u64::from_le_bytes([byte; 8]);
    let own = |region: Region| if region.is_of_tp() { TP_ME } else { ME };
    with(RowCopy::Ahead, |mut fabric, nic| {
        for (rank, at, byte) in seen(&fabric) {
            assert_eq!(byte, marked(rank, at.region), "{at} of {rank}");
        }
        for region in REGIONS {
            let (at, byte) = (Place { region, offset: 128 }, marked(own(region), region));
            assert_eq!(fabric.bytes(at, 8), Ok(&[byte; 8][..]), "{at}");
            assert_eq!(fabric.observe(at), Ok(word(byte)), "{at}");
            if !matches!(region, Region::Output(_)) {
                let output = Place::output(Tensor::XOut, 8);
                fabric.deliver(output, at, 8).unwrap();
                assert_eq!(fabric.bytes(output, 8), Ok(&[byte; 8][..]), "delivered from {at}");
                let is_reached = !region.is_of_tp();
                assert_eq!(nic.observe(at).ok(), is_reached.then_some(word(byte)), "{at}");
            }
        }
        let lent = fabric.lend(Place::output(Tensor::XOut, 128), 8).unwrap();
        assert_eq!(lent[0].get(), marked(ME, Region::Output(Tensor::XOut)));
    });
    // What is written is there and nowhere else.
    type Write = fn(&mut RawFabric<'_>, RankId, Place) -> Result<(), Fault>;
    let writes: [(&str, Write); 5] = [
        ("put", |fabric, rank, at| fabric.put(rank, at, &[99; 8], &[])),
        ("publish", |fabric, rank, at| fabric.publish(rank, at, 0x6363_6363_6363_6363)),
        ("send", |fabric, rank, at| fabric.send(rank, at, &[99; 8])),
        ("store", |fabric, _, at| fabric.store(at, 0x6363_6363_6363_6363)),
        ("write", |fabric, _, at| fabric.write(at, &[99; 8])),
    ];
    for (name, write) in writes {
        for (rank, at) in everywhere() {
            let is_legal = match name {
                "put" | "publish" => rank != FAR,
                "send" => rank == FAR,
                "store" => rank == own(at.region),
                // Only into memory of the rank itself.
                _ => rank == ME && !at.region.is_of_tp(),
            };
            if !is_legal {
                continue;
            }
            with(RowCopy::Ahead, |mut fabric, _| {
                let before = seen(&fabric);
                write(&mut fabric, rank, at).unwrap();
                let changed = |&(to, place, byte): &(RankId, Place, u8)| {
                    let is_it = (to, place) == (rank, at);
                    (to, place, if is_it { 99 } else { byte })
                };
                assert_eq!(
                    seen(&fabric),
                    before.iter().map(changed).collect::<Vec<_>>(),
                    "{name} to {at} of {rank}"
                );
            });
        }
    }
}

/// A rank gets words or messages, never both; messages are offered where some rank gets them.
#[test]
fn what_a_fabric_offers_is_what_it_carries_out_in_servers_of_any_size() {
    for ranks in 0..=5 {
        in_servers_of(ranks, |mut fabric, _| {
            let mut are_sent = false;
            for rank in (0..4).map(RankId) {
                let is_far = ranks > 0 && rank.0 >= ranks;
                let at = Place::window(0);
                assert_eq!(fabric.publish(rank, at, 1).is_ok(), !is_far, "{rank} in servers of {ranks}");
                assert_eq!(
                    fabric.put(rank, at, &[1; 8], &[]).is_ok(),
                    !is_far,
                    "{rank} in servers of {ranks}"
                );
                assert_eq!(fabric.send(rank, at, &[1; 8]).is_ok(), is_far, "{rank} in servers of {ranks}");
                are_sent |= is_far;
            }
            let rest = Capabilities::all().difference(Capabilities::SEND);
            let offered = if are_sent { Capabilities::all() } else { rest };
            assert_eq!(fabric.capabilities(), offered, "servers of {ranks}");
        });
    }
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

/// A row on its way: written at a place of a rank, perhaps with a tail, or delivered to an output.
#[derive(Clone, Copy, Debug)]
enum Row {
    Put { to: RankId, at: Place, len: usize, tail: usize },
    Deliver { from: Place, len: usize },
}

impl Row {
    /// Every kind of row that a fabric carries.
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for len in [8, prefetch::LINE - 1, prefetch::LINE, 2 * prefetch::LINE] {
            for (to, at) in everywhere().filter(|&(to, _)| to != FAR) {
                let at = Place { offset: 0, ..at };
                all.extend([0, 8, 40].map(|tail| Self::Put { to, at, len, tail }));
            }
            // An output is not delivered to itself.
            let sources = REGIONS.into_iter().filter(|region| !matches!(region, Region::Output(_)));
            all.extend(sources.map(|region| Self::Deliver { from: Place { region, offset: 0 }, len }));
        }
        all
    }

    fn go(self, fabric: &mut RawFabric<'_>) {
        let bytes = [1; 2 * prefetch::LINE];
        match self {
            Self::Put { to, at, len, tail } => fabric.put(to, at, &bytes[..len], &bytes[..tail]).unwrap(),
            Self::Deliver { from, len } => {
                fabric.deliver(Place::output(Tensor::XOut, 0), from, len as u64).unwrap();
            }
        }
    }

    /// Whether a fence must follow.
    fn owes(self, row_copy: RowCopy) -> bool {
        let (Self::Put { len, .. } | Self::Deliver { len, .. }) = self;
        cfg!(target_arch = "x86_64") && row_copy == RowCopy::Streaming && len >= prefetch::LINE
    }
}

/// By which others may learn that rows have come.
#[derive(Clone, Copy, Debug)]
enum Telling {
    Publish(RankId, Place),
    Send(Place),
    Quiet,
}

impl Telling {
    fn all() -> Vec<Self> {
        let places = everywhere();
        let telling = |(rank, at)| if rank == FAR { Self::Send(at) } else { Self::Publish(rank, at) };
        places.map(telling).chain([Self::Quiet]).collect()
    }

    fn go(self, fabric: &mut RawFabric<'_>) {
        match self {
            Self::Publish(rank, at) => fabric.publish(rank, at, 1).unwrap(),
            Self::Send(at) => fabric.send(FAR, at, &[1; 8]).unwrap(),
            Self::Quiet => assert_eq!(fabric.quiet(), Ok(true)),
        }
    }

    /// What it does by itself.
    fn alone(self) -> &'static [Did] {
        if let Self::Quiet = self { &[] } else { &[Store(PUBLISH)] }
    }
}

/// A fence precedes every way to tell of every row that owes one, and the end of the fabric; one is enough, and no other row has
/// one. What tells nothing leaves the fence to what does.
#[test]
fn one_fence_separates_rows_past_the_caches_from_their_flag() {
    for row_copy in [RowCopy::Ahead, RowCopy::Plain, RowCopy::Streaming] {
        for (row, telling) in Row::all()
            .into_iter()
            .flat_map(|row| Telling::all().into_iter().map(move |telling| (row, telling)))
        {
            let context = format!("{row_copy:?}, {row:?}, {telling:?}");
            let told = telling.alone();
            let owed: &[Did] = if row.owes(row_copy) { &[Fence] } else { &[] };
            with(row_copy, |mut fabric, _| {
                assert_eq!(done(|| telling.go(&mut fabric)), told, "no row: {context}");
                assert_eq!(done(|| [row, row].iter().for_each(|row| row.go(&mut fabric))), [], "{context}");
                let at = Place::state(64);
                let idle = done(|| {
                    fabric.store(at, 1).unwrap();
                    fabric.observe(at).unwrap();
                    fabric.write(Place::window(0), &[1; prefetch::LINE]).unwrap();
                    fabric.put(NEAR, Place::window(0), &[1; 8], &[1; 8]).unwrap();
                });
                assert_eq!(idle, [Store(STORE), Load(OBSERVE)], "{context}");
                assert_eq!(done(|| telling.go(&mut fabric)), [owed, told].concat(), "{context}");
                assert_eq!(done(|| telling.go(&mut fabric)), told, "fenced: {context}");
                assert_eq!(done(|| drop(fabric)), [], "fenced: {context}");
            });
        }
        for row in Row::all() {
            with(row_copy, |mut fabric, _| {
                row.go(&mut fabric);
                let owed: &[Did] = if row.owes(row_copy) { &[Fence] } else { &[] };
                assert_eq!(done(|| drop(fabric)), owed, "{row_copy:?}, {row:?}");
            });
        }
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
