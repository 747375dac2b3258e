//! The functions that the page calls. Texts are UTF-8 in the program's memory: each call that makes one returns its length, and
//! [`lab_text`] says where it begins.
#![expect(clippy::missing_panics_doc, reason = "a page that asks for what is not there is broken")]

use super::report::list;
use super::{Lab, LeftOut, SCENES, digest, first_failure};
use alloc::format;
use alloc::string::String;
use core::cell::RefCell;

#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}

#[derive(Default)]
struct Page {
    lab: Option<Lab>,
    text: String,
}

struct OneThread(RefCell<Page>);

// SAFETY: the page calls from one thread, and this module has no other.
unsafe impl Sync for OneThread {}

static PAGE: OneThread = OneThread(RefCell::new(Page { lab: None, text: String::new() }));

fn with<T>(lab: impl FnOnce(&mut Lab) -> T) -> T {
    lab(PAGE.0.borrow_mut().lab.as_mut().expect("lab_new was called"))
}

fn told(text: String) -> usize {
    let mut page = PAGE.0.borrow_mut();
    page.text = text;
    page.text.len()
}

fn duty(number: i32) -> Option<usize> {
    usize::try_from(number).ok()
}

/// Begins a group; a negative duty leaves none out.
#[unsafe(no_mangle)]
pub extern "C" fn lab_new(scene: usize, left_out: i32, seed: u32) {
    let lab = Lab::new(scene, duty(left_out), u64::from(seed));
    PAGE.0.borrow_mut().lab = Some(lab);
}

/// Takes the offer of that number.
#[unsafe(no_mangle)]
pub extern "C" fn lab_take(offer: usize) {
    with(|lab| lab.take(offer));
}

/// Takes an offer that the seed chooses.
#[unsafe(no_mangle)]
pub extern "C" fn lab_drift() {
    with(Lab::drift);
}

/// Makes the text of the group's state.
#[unsafe(no_mangle)]
pub extern "C" fn lab_state() -> usize {
    let text = with(|lab| lab.state());
    told(text)
}

/// Makes the text of all scenes and their duties.
#[unsafe(no_mangle)]
pub extern "C" fn lab_scenes() -> usize {
    told(list(SCENES.iter().map(|scene| {
        let duties = list(scene.duties.iter().map(|LeftOut { name, about, seen, .. }| {
            format!("{{\"name\":\"{name}\",\"about\":\"{about}\",\"seen\":\"{seen}\"}}")
        }));
        format!("{{\"name\":\"{}\",\"duties\":{duties}}}", scene.name)
    })))
}

/// Returns the first of `seeds` seeds with which a run does not end well, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn lab_first_failure(scene: usize, left_out: i32, seeds: u32) -> i32 {
    first_failure(scene, duty(left_out), u64::from(seeds)).map_or(-1, |(seed, _)| seed as i32)
}

/// Makes the text of the digest of all that runs show.
#[unsafe(no_mangle)]
pub extern "C" fn lab_digest() -> usize {
    told(format!("{:016x}", digest()))
}

/// Returns where the last text begins.
#[unsafe(no_mangle)]
pub extern "C" fn lab_text() -> *const u8 {
    PAGE.0.borrow().text.as_ptr()
}
