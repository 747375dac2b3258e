//! Tables of C functions over a memory of Rust.

use super::mood::Moody;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::slice;
use kernel_core::fabric::nic::{Nic, Post, Transfer};
use kernel_core::fabric::raw::{RawFabric, RawNic};
use kernel_core::fabric::{Fabric, Fault};
use kernel_core::place::{Place, Region, Tensor};
use kernel_core::units::RankId;

use crate::codes::VERIEP_OUTPUT;
use crate::types::{veriep_fabric, veriep_nic, veriep_place};

/// A table over a [`Moody`] fabric; over none it refuses everything with code 77.
pub(crate) fn table<'m>(fabric: *mut Moody<RawFabric<'m>>) -> veriep_fabric {
    veriep_fabric {
        context: fabric.cast(),
        put: Some(put),
        publish: Some(publish),
        quiet: Some(quiet),
        observe: Some(observe),
        store: Some(store),
        bytes: Some(bytes),
        write: Some(write),
        deliver: Some(deliver),
        peer_bytes: Some(peer_bytes),
        send: Some(send),
        lend: Some(lend),
        prefetch: Some(prefetch),
        line: 0,
    }
}

/// A table over a [`Moody`] interface.
pub(super) fn nic_table<'m>(nic: *mut Moody<RawNic<'m>>) -> veriep_nic {
    veriep_nic { context: nic.cast(), observe: Some(observe_by_nic), post: Some(post) }
}

fn place(at: veriep_place) -> Place {
    let region = match at.region {
        0 => Region::State,
        1 => Region::Window,
        2 => Region::WindowOut,
        3 => Region::TpState,
        4 => Region::TpWindow,
        output => Region::Output(Tensor::ALL[(output - VERIEP_OUTPUT) as usize]),
    };
    assert_eq!(at.reserved, 0);
    Place { region, offset: at.offset }
}

/// The fabric behind a table of functions, or the code of a memory that refuses everything.
unsafe fn of<'m>(context: *mut c_void) -> Result<&'m mut Moody<RawFabric<'m>>, i32> {
    // SAFETY: the context of a table of this file.
    unsafe { context.cast::<Moody<RawFabric<'m>>>().as_mut() }.ok_or(77)
}

fn code_of<T>(done: Result<Result<T, Fault>, i32>, with: impl FnOnce(T)) -> i32 {
    match done {
        Ok(Ok(seen)) => {
            with(seen);
            0
        }
        Ok(Err(fault)) => fault.code,
        Err(code) => code,
    }
}

unsafe extern "C" fn put(
    context: *mut c_void,
    to: u32,
    at: veriep_place,
    row: *const u8,
    row_len: usize,
    tail: *const u8,
    tail_len: usize,
) -> i32 {
    // SAFETY: what is told is there, here and below.
    unsafe {
        let (row, tail) = (slice::from_raw_parts(row, row_len), slice::from_raw_parts(tail, tail_len));
        code_of(of(context).map(|fabric| Fabric::put(fabric, RankId(to), place(at), row, tail)), drop)
    }
}

unsafe extern "C" fn send(
    context: *mut c_void,
    to: u32,
    at: veriep_place,
    message: *const u8,
    len: usize,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        let message = slice::from_raw_parts(message, len);
        code_of(of(context).map(|fabric| Fabric::send(fabric, RankId(to), place(at), message)), drop)
    }
}

unsafe extern "C" fn write(context: *mut c_void, at: veriep_place, bytes: *const u8, len: usize) -> i32 {
    // SAFETY: as above.
    unsafe {
        let bytes = slice::from_raw_parts(bytes, len);
        code_of(of(context).map(|fabric| Fabric::write(fabric, place(at), bytes)), drop)
    }
}

unsafe extern "C" fn publish(context: *mut c_void, to: u32, at: veriep_place, word: u64) -> i32 {
    // SAFETY: as above.
    unsafe { code_of(of(context).map(|fabric| Fabric::publish(fabric, RankId(to), place(at), word)), drop) }
}

unsafe extern "C" fn store(context: *mut c_void, at: veriep_place, word: u64) -> i32 {
    // SAFETY: as above.
    unsafe { code_of(of(context).map(|fabric| Fabric::store(fabric, place(at), word)), drop) }
}

unsafe extern "C" fn quiet(context: *mut c_void, landed: *mut u32) -> i32 {
    // SAFETY: as above.
    unsafe { code_of(of(context).map(Fabric::quiet), |seen| landed.write(seen.into())) }
}

unsafe extern "C" fn observe(context: *mut c_void, at: veriep_place, word: *mut u64) -> i32 {
    // SAFETY: as above.
    unsafe { code_of(of(context).map(|fabric| Fabric::observe(fabric, place(at))), |seen| word.write(seen)) }
}

unsafe extern "C" fn bytes(context: *mut c_void, at: veriep_place, len: u64, found: *mut *const u8) -> i32 {
    // SAFETY: as above.
    unsafe {
        code_of(of(context).map(|fabric| Fabric::bytes(fabric, place(at), len)), |seen| {
            found.write(seen.as_ptr());
        })
    }
}

unsafe extern "C" fn peer_bytes(
    context: *mut c_void,
    rank: u32,
    at: veriep_place,
    len: u64,
    found: *mut *const u8,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        code_of(of(context).map(|fabric| Fabric::peer_bytes(fabric, RankId(rank), place(at), len)), |seen| {
            found.write(seen.as_ptr());
        })
    }
}

unsafe extern "C" fn deliver(
    context: *mut c_void,
    output: veriep_place,
    from: veriep_place,
    len: u64,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        code_of(of(context).map(|fabric| Fabric::deliver(fabric, place(output), place(from), len)), drop)
    }
}

unsafe extern "C" fn lend(context: *mut c_void, at: veriep_place, len: u64) -> *mut u8 {
    // SAFETY: as above.
    let lent = unsafe { of(context) }.ok().and_then(|fabric| Fabric::lend(fabric, place(at), len));
    lent.map_or(null_mut(), |cells| cells.as_ptr().cast_mut().cast())
}

unsafe extern "C" fn prefetch(context: *mut c_void, bytes: *const u8, len: usize) {
    // SAFETY: as above.
    unsafe {
        if let Ok(fabric) = of(context) {
            Fabric::prefetch(fabric, slice::from_raw_parts(bytes, len));
        }
    }
}

unsafe extern "C" fn observe_by_nic(context: *mut c_void, at: veriep_place, word: *mut u64) -> i32 {
    // SAFETY: the context of a table of this file.
    unsafe {
        let nic = &*context.cast::<Moody<RawNic<'_>>>();
        code_of(Ok(nic.observe(place(at))), |seen| word.write(seen))
    }
}

unsafe extern "C" fn post(
    context: *mut c_void,
    to: u32,
    from: veriep_place,
    at: veriep_place,
    len: u64,
    posted: *mut u32,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        let nic = &mut *context.cast::<Moody<RawNic<'_>>>();
        let transfer = Transfer { to: RankId(to), from: place(from), at: place(at), len };
        code_of(Ok(nic.post(&transfer)), |seen| posted.write((seen == Post::Posted).into()))
    }
}
