//! Sizes for people: the window term by term.

use crate::report::columns;
use veriep_plan::sizes::{BufferSizes, MIB, Operand, Placed, configured_bytes};

pub(super) fn placed(placed: &Placed) -> (&'static str, String) {
    let Placed { experts, areas, required_bytes, required_mb } = placed;
    ("placed", format!("areas {areas}, experts {experts}: {required_bytes} bytes, {required_mb} MB"))
}

pub(super) fn rows(sizes: &BufferSizes) -> Vec<(&'static str, String)> {
    let smallest = if sizes.is_smallest { " (the smallest window)" } else { "" };
    let groups = match (sizes.required_ep_mb, sizes.required_tp_mb) {
        (Some(ep), Some(tp)) => format!(" (EP group {ep}, TP group {tp})"),
        _ => smallest.to_owned(),
    };
    let no_layout = || "none: VeriEP does not run this".to_owned();
    vec![
        ("required_mb", format!("{}{groups}", sizes.required_mb)),
        ("layout_mb", sizes.layout_mb.map_or_else(no_layout, |mb| mb.to_string())),
        ("configured_mb", sizes.configured_mb.to_string()),
        ("max_bs", format!("{} (limit: {})", sizes.max_bs, sizes.max_bs_limit)),
    ]
}

/// The sum term by term, what is left, and what the letters mean.
pub(super) fn arithmetic(sizes: &BufferSizes) -> String {
    let line = |name: &str, numbers: String, bytes: i128| {
        let mib = bytes as f64 / MIB as f64;
        vec![name.to_owned(), numbers, bytes.to_string(), format!("{mib:.2}")]
    };
    let mut rows: Vec<_> = sizes
        .terms
        .iter()
        .map(|term| {
            let factors: Vec<_> = term
                .operands
                .iter()
                .map(|Operand { symbol, value, .. }| format!("{symbol} {value}"))
                .collect();
            line(term.name, factors.join(" x "), term.bytes.into())
        })
        .collect();
    let sum = if sizes.required_tp_mb.is_some() { "the larger group" } else { "sum" };
    rows.push(line(sum, String::new(), sizes.required_bytes.into()));
    let configured = configured_bytes(sizes.configured_mb);
    rows.push(line("configured", format!("hccl_buffsize_mb {}", sizes.configured_mb), configured.into()));
    let left = i128::from(sizes.left_bytes);
    rows.push(line(if left < 0 { "missing" } else { "left" }, String::new(), left.abs()));
    let mut text = columns(&["window", "", "bytes", "MiB"], &rows);
    let mut told = Vec::new();
    for Operand { symbol, meaning, .. } in sizes.terms.iter().flat_map(|term| &term.operands) {
        if !told.contains(symbol) {
            told.push(symbol);
            text += &format!("\n {symbol}: {meaning}");
        }
    }
    text
}
