//! The transitions between phases that machines take in tests: each must be declared.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use core::cell::RefCell;
use core::fmt::Write;

/// Phases, each with those that may follow it.
pub(crate) type Table = &'static [(&'static str, &'static [&'static str])];

/// What a machine may do, and the transitions that it has taken.
pub(crate) struct Machine {
    pub(crate) legal: Table,
    pub(crate) taken: BTreeSet<[&'static str; 2]>,
}

/// The beginning of the page that lists all transitions.
pub(crate) const HEAD: &str = "\
# Phases

All legal transitions between phases, by machine and part. A test writes this page (`SNAPSHOTS=overwrite cargo test -p veriep-core
every_declared_transition`) from the lines where `phases!` declares them. No test takes another transition, and each of these is
taken. Phases of a part have its name in front; `Part` stands for the parts that A3's layouts share.
";

impl Machine {
    /// Appends a section with the phases of the machine of `module`.
    pub(crate) fn list(&self, module: &str, page: &mut String) {
        let name = module.trim_start_matches("veriep_core::protocol::").replace("::", "/");
        writeln!(page, "\n## {name}\n\n| phase | may be followed by |\n|---|---|").unwrap();
        for (phase, next) in self.legal {
            writeln!(page, "| {phase} | {} |", next.join(", ")).unwrap();
        }
    }
}

std::thread_local! {
    static SEEN: RefCell<Option<BTreeMap<&'static str, Machine>>> = const { RefCell::new(None) };
}

/// Notes that the machine of a module goes from a phase to the next.
///
/// # Panics
/// That transition is not declared.
pub(crate) fn take(module: &'static str, legal: Table, before: &'static str, after: &'static str) {
    let is_legal = legal.iter().any(|(phase, next)| *phase == before && next.contains(&after));
    assert!(is_legal, "{module}: {before} -> {after} is not declared");
    SEEN.with_borrow_mut(|seen| {
        if let Some(seen) = seen {
            let machine = seen.entry(module).or_insert(Machine { legal, taken: BTreeSet::new() });
            machine.taken.insert([before, after]);
        }
    });
}

/// Returns the machines that take transitions while `run` runs in this thread, by module.
pub(crate) fn seen_in(run: impl FnOnce()) -> BTreeMap<&'static str, Machine> {
    SEEN.set(Some(BTreeMap::new()));
    run();
    SEEN.take().unwrap_or_default()
}
