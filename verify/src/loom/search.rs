//! Runs a body under loom: counts the executions of one that holds, catches the failure of one that must not.

use super::trace;
use crate::report;
use ::loom::model::Builder;
use core::any::Any;
use core::cell::Cell;
use core::fmt;
use core::ops::RangeInclusive;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::Instant;
use std::{panic, thread};

/// Branches of one execution: several times what the longest model needs, so that only an endless wait has more.
const BRANCHES_MAX: usize = 4_000;

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Every execution.
    Complete,
    /// Every execution in which a thread that could go on is interrupted at most so often.
    Preemptions(usize),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete => f.write_str("complete"),
            Self::Preemptions(n) => write!(f, "{n} preemptions"),
        }
    }
}

/// Runs `body` in every execution within `bound`, reports and returns how many there were.
///
/// # Panics
/// An execution fails, or their number is not in `expected`: then the search has changed, and a developer should
/// say why. A search that has shrunk may have lost what it was made for.
pub fn model(
    name: &str,
    bound: Bound,
    expected: RangeInclusive<usize>,
    body: impl Fn() + Send + Sync + 'static,
) -> usize {
    let (executions, seconds, result) = explore(bound, body);
    if let Err(payload) = result {
        report::line(
            "loom",
            name,
            &format!("execution {executions} fails ({bound}): {}", message(&*payload)),
        );
        trace::print();
        panic::resume_unwind(payload);
    }
    report::line("loom", name, &format!("{executions} executions, {seconds:.1} s ({bound})"));
    assert!(expected.contains(&executions), "loom {name}: {executions} executions, expected {expected:?}");
    executions
}

/// Runs `body` until an execution fails, reports which one and how (with `LOOM_TRACE` set, also what happened in
/// it), and returns how.
///
/// # Panics
/// No execution fails: the search cannot see what this twin breaks.
pub fn failure(name: &str, bound: Bound, body: impl Fn() + Send + Sync + 'static) -> String {
    let (executions, seconds, result) = silently(|| explore(bound, body));
    let Err(payload) = result else {
        panic!("loom {name}: none of {executions} executions fails ({bound})");
    };
    let how = message(&*payload);
    report::line("loom", name, &format!("execution {executions} fails, {seconds:.1} s ({bound}): {how}"));
    if std::env::var_os("LOOM_TRACE").is_some() {
        trace::print();
    }
    how
}

/// Runs executions of `body` until one fails. Returns their number, the seconds they took, and how the last one ended.
fn explore(bound: Bound, body: impl Fn() + Send + Sync + 'static) -> (usize, f64, thread::Result<()>) {
    let mut builder = Builder::new();
    builder.max_branches = BRANCHES_MAX;
    builder.preemption_bound = match bound {
        Bound::Complete => None,
        Bound::Preemptions(n) => Some(n),
    };
    let (executions, start) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let count = Arc::clone(&executions);
    let execution = move || {
        count.fetch_add(1, Ordering::Relaxed);
        trace::restart();
        body();
    };
    let result = panic::catch_unwind(AssertUnwindSafe(|| builder.check(execution)));
    (executions.load(Ordering::Relaxed), start.elapsed().as_secs_f64(), result)
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref().copied()).unwrap_or("a panic without words").trim().to_owned()
}

thread_local! {
    static SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` without printing its panics. Other threads print theirs.
fn silently<T>(body: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !SILENT.get() {
                loud(info);
            }
        }));
    });
    SILENT.set(true);
    let result = body();
    SILENT.set(false);
    result
}
