//! Options of a group that nothing states: dumps are read with each value that such an option can have.

use veriep_case::dump::Options;
use veriep_core::layout::state::Slots;
use veriep_core::protocol::Receive;

pub(super) const RECEIVE: &str = "receive";
pub(super) const EXPERTS: &str = "experts";
pub(super) const FLAGS: &str = "flags";
pub(super) const STAGE: &str = "stage";
pub(super) const SLOTS: &str = "slots";
/// Whether words have the numbers of their calls.
pub(super) const CHECKED: &str = "checked";
pub(super) const IN_FLIGHT: &str = "in_flight";

/// The options with each combination of values that those of the `open` names can have, the given ones first.
pub(super) fn variants(given: &Options, open: &[&str]) -> Vec<Options> {
    open.iter().fold(vec![given.clone()], |all, name| {
        all.iter()
            .flat_map(|options| values(name).into_iter().map(|value| with(options, name, value)))
            .collect()
    })
}

/// The values of an option, that of a file without it first.
fn values(name: &str) -> Vec<&'static str> {
    match name {
        RECEIVE => Receive::MODES.iter().map(|mode| mode.name()).collect(),
        EXPERTS => vec!["apart", "overwrite"],
        FLAGS => vec!["joint", "separate"],
        STAGE => vec!["3", "2"],
        SLOTS => Slots::ALL.map(Slots::name).into(),
        CHECKED => vec!["false", "true"],
        // Memory has two partitions.
        _ => vec!["1", "2"],
    }
}

/// The value of an option.
pub(super) fn value(options: &Options, name: &str) -> String {
    match name {
        RECEIVE => options.receive.clone(),
        EXPERTS => options.experts.clone(),
        FLAGS => options.flags.clone(),
        STAGE => options.stage.to_string(),
        SLOTS => options.slots.to_string(),
        CHECKED => options.checked.to_string(),
        _ => options.in_flight.to_string(),
    }
}

fn with(options: &Options, name: &str, value: &str) -> Options {
    let mut options = options.clone();
    match name {
        RECEIVE => value.clone_into(&mut options.receive),
        EXPERTS => value.clone_into(&mut options.experts),
        FLAGS => value.clone_into(&mut options.flags),
        STAGE => options.stage = value.parse().unwrap_or(options.stage),
        SLOTS => options.slots = value.parse().unwrap_or(options.slots),
        CHECKED => options.checked = value.parse().unwrap_or(options.checked),
        _ => options.in_flight = value.parse().unwrap_or(options.in_flight),
    }
    options
}
