//! Operators in two halves and the gates of a rank, by the C functions: one rank of two cores, which one thread steps.

use super::misuse::{config, opaque, said_in, shape_of};
use crate::codes::*;
use crate::driver::{
    veriep_core_begin, veriep_core_new, veriep_core_resume, veriep_core_send, veriep_core_step,
};
use crate::gates::{veriep_gates_begin, veriep_gates_end, veriep_gates_new};
use crate::shape::veriep_shape_sizes;
use crate::types::*;
use core::ffi::c_char;
use core::mem::zeroed;
use core::ptr::{null, null_mut};
use std::boxed::Box;
use std::string::String;
use std::vec;
use std::vec::Vec;

const CORES: usize = 2;

/// Memory of whole words.
struct Words(Vec<u64>);

impl Words {
    fn new(bytes: u64) -> Self {
        Self(vec![0; bytes as usize / 8 + 1])
    }

    fn segment(&mut self) -> veriep_segment {
        veriep_segment { base: self.0.as_mut_ptr().cast(), len: 8 * self.0.len() as u64 }
    }

    fn tensor(&self, len: u64) -> veriep_bytes {
        veriep_bytes { data: self.0.as_ptr().cast(), len: len as usize }
    }
}

/// A core for the operators of a batch, and their scratch.
struct Seat {
    core: Box<veriep_core>,
    words: Vec<u32>,
    bytes: Vec<u8>,
}

/// A batch in flight.
struct Batch {
    x: Words,
    outputs: Vec<Words>,
    seats: Vec<Seat>,
    ticket: Box<veriep_ticket>,
}

/// A rank alone, of whose tokens each goes to both experts by half.
struct Rank {
    shape: Box<veriep_shape>,
    sizes: Box<veriep_sizes>,
    regions: [Words; 2],
    ids: Words,
    weights: Words,
    gates: Box<veriep_gates>,
    text: [c_char; 200],
}

impl Rank {
    fn new() -> Self {
        let shape = shape_of(&veriep_config { aiv_num: CORES as i64, ..config() });
        let (mut sizes, mut gates) = (opaque::<veriep_sizes>(), opaque());
        // SAFETY: all is there.
        unsafe {
            assert_eq!(veriep_shape_sizes(&raw const *shape, 0, &raw mut *sizes), VERIEP_OK);
            assert_eq!(veriep_gates_new(&raw mut *gates, &raw const *shape, null()), VERIEP_OK);
        }
        let regions = [sizes.state, sizes.window].map(Words::new);
        let both = |first: u32, second: u32| {
            Words(vec![u64::from(first) | u64::from(second) << 32; sizes.bs as usize])
        };
        let (ids, weights) = (both(0, 1), both(0.5_f32.to_bits(), 0.5_f32.to_bits()));
        Self { shape, sizes, regions, ids, weights, gates, text: [0; 200] }
    }

    fn batch(&self) -> Batch {
        let seat = |number| {
            let mut core = opaque();
            // SAFETY: all is there.
            let said = unsafe {
                veriep_core_new(
                    &raw mut *core,
                    &raw const *self.shape,
                    0,
                    0,
                    number,
                    null(),
                    15,
                    null_mut(),
                    0,
                )
            };
            assert_eq!(said, VERIEP_OK);
            let (words, bytes) = (vec![0; self.sizes.scratch_words], vec![0; self.sizes.scratch_bytes]);
            Seat { core, words, bytes }
        };
        Batch {
            x: Words::new(u64::from(self.sizes.bs) * self.sizes.row),
            outputs: self.sizes.outputs.iter().map(|&bytes| Words::new(bytes)).collect(),
            seats: (0..CORES as u32).map(seat).collect(),
            ticket: opaque(),
        }
    }

    /// Asks the gates for an operator: the code, and the text.
    fn begins(&mut self, which: u32, ticket: &mut veriep_ticket) -> (i32, String) {
        let (text, len) = (self.text.as_mut_ptr(), self.text.len());
        // SAFETY: all is there.
        let said = unsafe { veriep_gates_begin(&raw mut *self.gates, which, ticket, text, len) };
        (said, said_in(&self.text))
    }

    fn ends(&mut self, ticket: &mut veriep_ticket) -> i32 {
        // SAFETY: all is there.
        unsafe { veriep_gates_end(&raw mut *self.gates, ticket) }
    }

    /// Steps one core once with so many steps at most.
    fn step(&mut self, batch: &mut Batch, core: usize, steps: u32) -> i32 {
        let [state, window] = self.regions.each_mut().map(Words::segment);
        let window_out = veriep_segment { base: null_mut(), len: 0 };
        let peer = veriep_peer { state, window, window_out };
        let of = |tensor: usize| batch.outputs[tensor].tensor(self.sizes.outputs[tensor]);
        // SAFETY: plain structures; all that they lead to is there and apart.
        unsafe {
            let operands = veriep_operands {
                // The experts return the rows unchanged.
                y: of(VERIEP_EXPAND_X as usize),
                assist_info: of(VERIEP_ASSIST_INFO as usize),
                ep_recv_counts: batch.outputs[VERIEP_EP_RECV_COUNTS as usize]
                    .tensor(self.sizes.ep_recv_counts),
                ..zeroed()
            };
            let inputs = veriep_inputs {
                x: batch.x.tensor(u64::from(self.sizes.bs) * self.sizes.row),
                expert_ids: self.ids.tensor(8 * u64::from(self.sizes.bs)),
                expert_scales: self.weights.tensor(8 * u64::from(self.sizes.bs)),
                call: VERIEP_CALL_COUNTED,
                ..zeroed()
            };
            let mut mapped: veriep_mapped = zeroed();
            (mapped.peers, mapped.peers_len) = (&peer, 1);
            mapped.outputs.iter_mut().zip(&mut batch.outputs).for_each(|(to, words)| *to = words.segment());
            let Seat { core, words, bytes } = &mut batch.seats[core];
            let cx = veriep_context {
                shape: &raw const *self.shape,
                inputs: &inputs,
                operands: &operands,
                mapped: &mapped,
                words: words.as_mut_ptr(),
                words_len: words.len(),
                bytes: bytes.as_mut_ptr(),
                bytes_len: bytes.len(),
                ..zeroed()
            };
            veriep_core_step(&raw mut **core, &cx, steps, null_mut())
        }
    }

    /// Begins something on all cores, and steps them until it has ended on all.
    fn run(&mut self, batch: &mut Batch, begin: impl Fn(&mut veriep_core) -> i32) {
        for seat in &mut batch.seats {
            assert_eq!(begin(&mut seat.core), VERIEP_OK);
        }
        let mut rest: Vec<_> = (0..CORES).collect();
        for _ in 0..9999 {
            rest.retain(|&core| {
                let said = self.step(batch, core, 3);
                assert!(said >= 0, "{said}");
                said != VERIEP_OK
            });
            if rest.is_empty() {
                return;
            }
        }
        panic!("cores {rest:?} do not end");
    }

    fn send(&mut self, batch: &mut Batch, which: u32) {
        assert_eq!(self.begins(which, &mut batch.ticket), (VERIEP_OK, String::new()));
        // SAFETY: of a core.
        self.run(batch, |core| unsafe { veriep_core_send(core, which) });
    }

    fn finish(&mut self, batch: &mut Batch) {
        // SAFETY: of a core.
        self.run(batch, |core| unsafe { veriep_core_resume(core) });
        assert_eq!(self.ends(&mut batch.ticket), VERIEP_OK);
    }
}

/// Fills the tokens of a batch.
fn fill(batch: &mut Batch, number: u64) {
    let one = 0x3F80 + number;
    batch.x.0.fill(one | one << 16 | one << 32 | one << 48);
}

#[test]
fn batches_overlap_in_halves() {
    let mut rank = Rank::new();
    let mut batches = [rank.batch(), rank.batch()];
    fill(&mut batches[0], 0);
    rank.send(&mut batches[0], VERIEP_DISPATCH);
    rank.finish(&mut batches[0]);
    for number in 1..9 {
        let [next, before] = &mut batches;
        let (next, before) = if number % 2 == 0 { (next, before) } else { (before, next) };
        fill(next, number);
        rank.send(next, VERIEP_DISPATCH);
        rank.send(before, VERIEP_COMBINE);
        rank.finish(next);
        rank.finish(before);
        let words = u64::from(rank.sizes.bs) * rank.sizes.row / 8;
        let x_out = &before.outputs[VERIEP_X_OUT as usize].0[..words as usize];
        assert_eq!(x_out, &before.x.0[..words as usize], "batch {}", number - 1);
    }
}

#[test]
fn gates_refuse_with_what_is_awaited() {
    let mut rank = Rank::new();
    let [mut first, mut second, mut third] = [(); 3].map(|()| *opaque::<veriep_ticket>());
    let begun = (VERIEP_OK, String::new());
    let early = |text: &str| (VERIEP_E_EARLY, String::from(text));
    assert_eq!(rank.begins(VERIEP_DISPATCH, &mut first), begun);
    // The one before is not received. A ticket that is there stays.
    let unreceived = early("a dispatch begins before the one before it has been received");
    assert_eq!(rank.begins(VERIEP_DISPATCH, &mut second), unreceived);
    assert_eq!(rank.ends(&mut second), VERIEP_E_ORDER);
    assert_eq!(rank.begins(VERIEP_DISPATCH, &mut first), unreceived);
    assert_eq!((rank.ends(&mut first), rank.ends(&mut first)), (VERIEP_OK, VERIEP_E_ORDER));
    assert_eq!(rank.begins(VERIEP_DISPATCH, &mut first), begun);
    assert_eq!(rank.ends(&mut first), VERIEP_OK);
    // Two partitions of results are in use.
    assert_eq!(rank.begins(VERIEP_COMBINE, &mut first), begun);
    assert_eq!(rank.begins(VERIEP_COMBINE, &mut second), begun);
    let one_before = "an operator begins before the one before in its partition has ended";
    assert_eq!(rank.begins(VERIEP_COMBINE, &mut third), early(one_before));
    assert_eq!(rank.ends(&mut first), VERIEP_OK);
    let unread = "an operator begins while other ranks may still read its partition";
    assert_eq!(
        rank.begins(VERIEP_COMBINE, &mut third),
        early(&[unread, ": a dispatch must begin and end before"].concat())
    );
    assert_eq!(rank.begins(VERIEP_DISPATCH, &mut third), begun);
    assert_eq!(
        rank.begins(VERIEP_COMBINE, &mut first),
        early(&[unread, ": the dispatch that has begun must end before"].concat())
    );
    assert_eq!((rank.ends(&mut third), rank.begins(VERIEP_COMBINE, &mut first)), (VERIEP_OK, begun));
}

#[test]
fn halves_out_of_order_are_codes() {
    let mut rank = Rank::new();
    let [mut batch, mut other] = [rank.batch(), rank.batch()];
    fill(&mut batch, 0);
    // SAFETY: null, or of a core.
    unsafe {
        assert_eq!(veriep_core_send(null_mut(), VERIEP_DISPATCH), VERIEP_E_NULL);
        assert_eq!(veriep_core_resume(null_mut()), VERIEP_E_NULL);
        assert_eq!(veriep_core_resume(&raw mut *opaque()), VERIEP_E_ORDER, "not made");
        let core = &raw mut *batch.seats[0].core;
        assert_eq!(veriep_core_send(core, 2), VERIEP_E_ARGUMENT);
        assert_eq!(veriep_core_resume(core), VERIEP_E_ORDER, "nothing was begun");
        rank.send(&mut batch, VERIEP_DISPATCH);
        let core = &raw mut *batch.seats[0].core;
        assert_eq!(rank.step(&mut batch, 0, 1), VERIEP_OK, "asked once more");
        assert_eq!(veriep_core_begin(core, VERIEP_COMBINE), VERIEP_E_ORDER, "it is set aside");
        assert_eq!(veriep_core_send(core, VERIEP_COMBINE), VERIEP_E_ORDER, "it is set aside");
        // The machine of the other batch has sent nothing.
        assert_eq!(veriep_core_resume(&raw mut *other.seats[0].core), VERIEP_E_ORDER);
        assert_eq!(rank.step(&mut other, 0, 1), VERIEP_E_ORDER);
        assert_eq!(veriep_core_resume(core), VERIEP_OK);
        assert_eq!(veriep_core_resume(core), VERIEP_E_ORDER, "once");
        assert_eq!(veriep_core_resume(&raw mut *batch.seats[1].core), VERIEP_OK);
        rank.run(&mut batch, |_| VERIEP_OK);
        assert_eq!(veriep_core_resume(core), VERIEP_E_ORDER, "it has ended");
        assert_eq!(veriep_core_begin(core, VERIEP_COMBINE), VERIEP_OK);
        assert_eq!(veriep_core_resume(core), VERIEP_E_ORDER, "a whole operator was begun");
    }
}

#[test]
fn a_tp_domain_has_no_halves() {
    let of = |tp_world_size| shape_of(&veriep_config { ep_world_size: 2, tp_world_size, ..config() });
    let mut core = opaque();
    for (tp, said) in [(1, VERIEP_OK), (2, VERIEP_E_REFUSED)] {
        let shape = of(tp);
        // SAFETY: all is there.
        unsafe {
            let new = veriep_core_new(&raw mut *core, &raw const *shape, 0, 0, 0, null(), 15, null_mut(), 0);
            assert_eq!(new, VERIEP_OK);
            assert_eq!(veriep_core_send(&raw mut *core, VERIEP_DISPATCH), said);
        }
    }
}
