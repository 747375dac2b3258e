//! Memory given as addresses: no access leaves its segments. Every segment here is an allocation of exactly its size, so
//! that AddressSanitizer (`.ci/sanitizer address`) detects every access outside.
#![allow(unsafe_code)]

use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::raw::{Outputs, Peer, RawFabric, RawNic, Segment};
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::units::RankId;

const BYTES: u64 = 64;
const ME: RankId = RankId(0);
const OTHER: RankId = RankId(1);

/// Words, so that every base is a multiple of 8.
type Memory = Box<[u64]>;

/// Two ranks of a group that are TP peers as well, and the outputs of one.
struct Group {
    ranks: Vec<[Memory; 3]>,
    tp: Vec<[Memory; 2]>,
    outputs: Vec<Memory>,
}

impl Group {
    fn new() -> Self {
        let memory = || vec![0; BYTES as usize / 8].into_boxed_slice();
        Self {
            ranks: (0..2).map(|_| [(); 3].map(|()| memory())).collect(),
            tp: (0..2).map(|_| [(); 2].map(|()| memory())).collect(),
            outputs: Tensor::ALL.iter().map(|_| memory()).collect(),
        }
    }

    fn with<T>(&mut self, run: impl FnOnce(RawFabric<'_>, RawNic<'_>) -> T) -> T {
        let segment = |memory: &mut Memory| Segment::new(memory.as_mut_ptr().cast(), BYTES);
        let peers: Vec<_> = (self.ranks.iter_mut())
            .map(|[state, window, out]| Peer {
                state: segment(state),
                window: segment(window),
                window_out: segment(out),
            })
            .collect();
        let tp: Vec<_> = (self.tp.iter_mut())
            .map(|[state, window]| Peer {
                state: segment(state),
                window: segment(window),
                window_out: Segment::EMPTY,
            })
            .collect();
        let mut outputs: Outputs = [Segment::EMPTY; Tensor::ALL.len()];
        outputs.iter_mut().zip(&mut self.outputs).for_each(|(to, memory)| *to = segment(memory));
        // SAFETY: the segments are allocations of their own that outlive the call, and only this thread accesses them,
        // through these two, one after the other.
        let (fabric, nic) =
            unsafe { (RawFabric::new(&peers, ME, outputs).with_tp(&tp, ME), RawNic::new(&peers, ME)) };
        run(fabric, nic)
    }
}

const REGIONS: [Region; 6] = [
    Region::State,
    Region::Window,
    Region::WindowOut,
    Region::TpState,
    Region::TpWindow,
    Region::Output(Tensor::ExpandX),
];

/// Offsets around the end of a segment, and far beyond.
const OFFSETS: [u64; 9] = [0, 8, BYTES - 16, BYTES - 8, BYTES - 1, BYTES, BYTES + 8, u64::MAX - 7, u64::MAX];

fn fits(offset: u64, len: u64) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= BYTES)
}

/// Returns whether this rank can access such a region of that rank.
fn mine(region: Region, rank: RankId) -> bool {
    rank == ME || !matches!(region, Region::WindowOut | Region::Output(_))
}

#[test]
fn every_call_ends_where_its_segment_ends() {
    let mut group = Group::new();
    group.with(|mut fabric, _| {
        for (region, offset) in REGIONS.into_iter().flat_map(|region| OFFSETS.map(|offset| (region, offset)))
        {
            let at = Place { region, offset };
            for len in [0, 1, 7, 8, 9, BYTES, BYTES + 1] {
                let row = vec![0xAB; len as usize];
                for to in [ME, OTHER] {
                    let (head, tail) = row.split_at(row.len() / 2);
                    assert_eq!(
                        fabric.put(to, at, head, tail).is_ok(),
                        fits(offset, len) && mine(region, to),
                        "{at:?}"
                    );
                }
                assert_eq!(fabric.write(at, &row).is_ok(), fits(offset, len), "{at:?}, {len}");
                let seen = fabric.bytes(at, len).map(<[u8]>::to_vec);
                assert_eq!(seen, if fits(offset, len) { Ok(row) } else { Err(Fault::new(ME, at, len)) });
                let output = Place::output(Tensor::XOut, offset);
                assert_eq!(fabric.deliver(output, at, len).is_ok(), fits(offset, len), "{at:?}, {len}");
            }
            let is_word = fits(offset, 8) && offset.is_multiple_of(8);
            for to in [ME, OTHER] {
                assert_eq!(fabric.publish(to, at, 7).is_ok(), is_word && mine(region, to), "{at:?}");
            }
            assert_eq!(fabric.store(at, 9).is_ok(), is_word, "{at:?}");
            assert_eq!(fabric.observe(at), if is_word { Ok(9) } else { Err(Fault::new(ME, at, 8)) });
        }
    });
}

#[test]
fn a_rank_that_there_is_not_is_a_fault() {
    Group::new().with(|mut fabric, mut nic| {
        let absent = RankId(2);
        for region in REGIONS {
            let at = Place { region, offset: 0 };
            assert!(fabric.put(absent, at, &[1], &[]).is_err() && fabric.publish(absent, at, 1).is_err());
        }
        let transfer = Transfer { to: absent, from: Place::window_out(0), at: Place::window(0), len: 8 };
        assert!(nic.post(&transfer).is_err());
    });
}

#[test]
fn a_transfer_that_does_not_fit_writes_nothing() {
    for (from, at) in OFFSETS.into_iter().flat_map(|from| OFFSETS.map(|at| (from, at))) {
        for len in [0, 8, 16, BYTES, BYTES + 8, u64::MAX - 7] {
            let mut group = Group::new();
            let [_, _, out] = &mut group.ranks[0];
            out.fill(u64::MAX);
            let may = len > 0 && fits(from, len) && fits(at, len) && (from | at).is_multiple_of(8);
            let (from, at) = (Place::window_out(from), Place::window(at));
            let posted = group.with(|_, mut nic| nic.post(&Transfer { to: OTHER, from, at, len }));
            assert_eq!(posted == Ok(Post::Posted), may, "{from:?} to {at:?}, {len}");
            let [_, window, _] = &group.ranks[1];
            let written = window.iter().filter(|&&word| word != 0).count() as u64 * 8;
            assert_eq!(written, if may { len } else { 0 }, "{from:?} to {at:?}, {len}");
        }
    }
}
