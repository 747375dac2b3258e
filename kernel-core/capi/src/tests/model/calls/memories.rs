//! The memory of C as a table and as addresses.

use crate::codes::*;
use crate::driver::veriep_fabric_can;
use crate::tests::model::Args;
use crate::tests::model::caches::Tells;
use crate::tests::model::caches::Told;
use crate::tests::model::memory::{Memory, Reach};
use crate::tests::model::structures::Fault;
use crate::tests::model::tables::table;
use crate::tests::model::world::{Outcome, World};
use crate::types::*;
use core::cell::Cell;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::slice;
use kernel_core::fabric::Capabilities;
use kernel_core::fabric::raw::{Peer, Segment};
use std::vec::Vec;

/// A table without the functions that the slips say, and without some of the optional ones.
pub(super) fn lacking(
    args: &mut Args,
    mut whole: veriep_fabric,
    without: Capabilities,
) -> (veriep_fabric, Capabilities) {
    let mut lacks = |name| args.fault(name).is_some();
    macro_rules! drop_if_lacking {
        ($($name:literal $function:ident)*) => { $(if lacks($name) { whole.$function = None; })* };
    }
    drop_if_lacking! {
        "fabric.put" put "fabric.publish" publish "fabric.store" store "fabric.write" write
        "fabric.quiet" quiet "fabric.observe" observe "fabric.bytes" bytes "fabric.deliver" deliver
        "fabric.peer_bytes" peer_bytes "fabric.send" send "fabric.lend" lend "fabric.prefetch" prefetch
    }
    if without.contains(Capabilities::LEND) {
        whole.lend = None;
    }
    if without.contains(Capabilities::PREFETCH) {
        whole.prefetch = None;
    }
    let mut can = Capabilities::empty();
    can.set(Capabilities::PEER_BYTES, whole.peer_bytes.is_some());
    can.set(Capabilities::SEND, whole.send.is_some());
    can.set(Capabilities::LEND, whole.lend.is_some());
    can.set(Capabilities::PREFETCH, whole.prefetch.is_some());
    (whole, can)
}

/// Some of the calls that a memory may leave out.
pub(super) fn some(world: &mut World) -> Capabilities {
    Capabilities::from_bits_truncate(4 * world.dice.below(4) as u32)
}

pub(in crate::tests::model) fn fabric_can(world: &mut World, args: &mut Args) -> Outcome {
    let without = some(world);
    let (mut fabric, can) = lacking(args, table(null_mut()), without);
    let at = args.pointer("fabric", &mut fabric);
    // SAFETY: as above.
    let said = unsafe { veriep_fabric_can(at) };
    args.outcome(said, || (can.bits() as i32, None))
}

/// Ranges of which caches were told.
pub(super) struct Cache<'m> {
    pub(super) memory: &'m Memory,
    pub(super) told: Cell<Told>,
}

unsafe fn tell(context: *mut c_void, is_write: bool, address: *const c_void, len: usize) {
    // SAFETY: the context of `mapped`.
    let cache = unsafe { &*context.cast::<Cache<'_>>() };
    let mut told = cache.told.take();
    told.push((is_write, cache.memory.place_of(address), len));
    cache.told.set(told);
}

unsafe extern "C" fn clean(context: *mut c_void, address: *const c_void, len: usize) {
    // SAFETY: as above.
    unsafe { tell(context, true, address, len) };
}

unsafe extern "C" fn invalidate(context: *mut c_void, address: *const c_void, len: usize) {
    // SAFETY: as above.
    unsafe { tell(context, false, address, len) };
}

fn segment_of(args: &mut Args, name: &'static str, is_it: bool, of: Segment) -> veriep_segment {
    let base = if of.is_empty() { null_mut() } else { of.base() };
    let right = veriep_segment { base, len: of.len() };
    args.asked.insert(name);
    match args.slip(name).filter(|_| is_it) {
        Some(Fault::Null) => veriep_segment { base: null_mut(), ..right },
        Some(Fault::Misaligned) => veriep_segment { base: base.wrapping_byte_add(1), ..right },
        Some(Fault::OneShort) => veriep_segment { len: right.len - 1, ..right },
        // A word is there, which belongs to no region.
        Some(Fault::OneBeyond) => veriep_segment { len: right.len + 8, ..right },
        Some(Fault::Huge) => veriep_segment { len: u64::MAX, ..right },
        _ => right,
    }
}

/// The last of some peers has what slips say.
fn peers_of(args: &mut Args, names: [&'static str; 3], of: &[Peer]) -> Vec<veriep_peer> {
    let [state, window, window_out] = names;
    let last = of.len().wrapping_sub(1);
    let all = of.iter().enumerate().map(|(number, peer)| veriep_peer {
        state: segment_of(args, state, number == last, peer.state),
        window: segment_of(args, window, number == last, peer.window),
        window_out: segment_of(args, window_out, number == last, peer.window_out),
    });
    all.collect()
}

/// The memory of C as addresses, with whom caches are told.
pub(super) fn mapped_of(
    args: &mut Args,
    cache: &Cache<'_>,
    tells: Tells,
    rank: u32,
    peers: &mut Vec<veriep_peer>,
    tp: &mut Vec<veriep_peer>,
) -> veriep_mapped {
    *peers = peers_of(
        args,
        ["mapped.peers.state", "mapped.peers.window", "mapped.peers.window_out"],
        &cache.memory.peers,
    );
    *tp = peers_of(args, ["mapped.tp.state", "mapped.tp.window", "mapped.tp.window_out"], &cache.memory.tp);
    let outputs = cache.memory.outputs[rank as usize];
    let there: Vec<_> = (0..outputs.len()).filter(|number| !outputs[*number].is_empty()).collect();
    let wrong = there.get(args.any % there.len().max(1)).copied();
    // Where it goes on, all are as long as that: few are written to their ends.
    let is_all = matches!(args.slip("mapped.outputs"), Some(Fault::OneShort | Fault::OneBeyond));
    let mut all = [veriep_segment { base: null_mut(), len: 0 }; VERIEP_TENSORS];
    for (number, (to, segment)) in all.iter_mut().zip(outputs).enumerate() {
        *to = segment_of(
            args,
            "mapped.outputs",
            (is_all && !segment.is_empty()) || Some(number) == wrong,
            segment,
        );
    }
    let (peers_len, tp_len) = (args.length("mapped.peers", peers.len()), args.length("mapped.tp", tp.len()));
    veriep_mapped {
        peers: args.pointer("mapped.peers", peers.as_mut_ptr()),
        peers_len,
        tp: args.pointer("mapped.tp", tp.as_mut_ptr()),
        tp_len,
        outputs: all,
        cache_context: (&raw const *cache).cast_mut().cast(),
        clean: tells.writes.then_some(clean),
        invalidate: tells.reads.then_some(invalidate),
    }
}

/// What the twin reaches of its own memory, which is as long as what C was given.
pub(super) fn reach_of(memory: &Memory, rank: u32, given: &veriep_mapped) -> Reach {
    // SAFETY: of a call that is not refused.
    let (peers, tp) = unsafe {
        (slice::from_raw_parts(given.peers, given.peers_len), slice::from_raw_parts(given.tp, given.tp_len))
    };
    let cut = |own: Segment, given: &veriep_segment| {
        if given.len == 0 { Segment::EMPTY } else { Segment::new(own.base(), given.len) }
    };
    let all = |own: &[Peer], given: &[veriep_peer]| -> Vec<Peer> {
        let pairs = own.iter().zip(given);
        let cut = |(own, given): (&Peer, &veriep_peer)| Peer {
            state: cut(own.state, &given.state),
            window: cut(own.window, &given.window),
            window_out: cut(own.window_out, &given.window_out),
        };
        pairs.map(cut).collect()
    };
    let mut outputs = memory.outputs[rank as usize];
    outputs.iter_mut().zip(&given.outputs).for_each(|(own, given)| *own = cut(*own, given));
    Reach { peers: all(&memory.peers, peers), tp: all(&memory.tp, tp), outputs }
}
