//! The plan of one core for people.

use super::super::{experts, ports};
use crate::report::{at, cell, lists, pairs};
use serde_json::Value;

const SEND: &[&str] = &["step", "token", "k", "expert", "to", "slot", "offset", "bytes"];
const SEND_ROW: &[&str] =
    &["step", "token", "k", "expert", "to", "row", "offset", "bytes", "info offset=info_offset"];
const WORDS: &[&str] = &[
    "rank",
    "rows",
    "counts=counts_offset",
    "their word=counts_word",
    "grants=grants_offset",
    "their word=grants_word",
    "token flag=token_flag_offset",
];
const PUBLISH: &[&str] = &[
    "destination",
    "rank=to",
    "local expert=local_expert",
    "offset",
    "count",
    "token flag=token_flag_offset",
];
const AWAIT: &[&str] =
    &["slot", "local expert=local_expert", "from", "offset", "count", "token flag=token_flag_offset"];
const RETURN: &[&str] = &["step", "row", "to", "token", "k", "offset", "bytes", "flag offset=flag_offset"];
const READ: &[&str] = &["token", "k", "from", "row", "offset", "bytes", "flag offset=flag_offset"];

pub(in crate::command::plan) fn table(plan: &Value) -> String {
    let of = |field| cell(plan, field);
    let range = |field| match at(plan, field).and_then(Value::as_array).map(Vec::as_slice) {
        Some([start, end]) if start == end => "none".to_owned(),
        Some(_) => cell(plan, &format!("{field}..")),
        None => "not known".to_owned(),
    };
    let is = |field: &str| at(plan, field).is_some_and(|value| !value.is_null());
    let order = |field| ("  in this order", rotated(at(plan, field)));
    let (in_blocks, direct) = (is("dispatch.blocks"), is("dispatch.words"));
    let mut about = vec![
        ("source", of("source")),
        ("core", format!("{} of rank {}", of("core"), of("rank"))),
        ("experts", experts(plan)),
        ("receive", format!("{}, experts {}", of("receive"), of("experts"))),
        ("order", of("order")),
        ("shared experts", of("shared")),
        ("port offset", of("port_offset")),
        ("flags", of("dispatch.flags")),
        ("writes expand_idx of pairs", range("dispatch.index_pairs")),
    ];
    about.extend(match in_blocks {
        false => [("sends (token, k) pairs", range("dispatch.moe_pairs")), order("dispatch.moe_order")],
        true => [("sends to MoE experts", range("dispatch.experts")), order("dispatch.expert_order")],
    });
    about.extend([
        ("sends (token, shared) pairs", range("dispatch.shared_pairs")),
        order("dispatch.shared_order"),
    ]);
    about.extend(match direct {
        false => vec![
            ("publishes to destinations", range("dispatch.destinations")),
            ("awaits and copies out slots", range("dispatch.slots")),
            ("returns rows", range("combine.rows")),
        ],
        true => vec![("tells and hears ranks", range("dispatch.words.ranks"))],
    });
    about.push(("awaits and sums tokens", range("combine.tokens")));
    about.extend(in_blocks.then(|| ("blocks of a record", blocks(&plan["dispatch"]["blocks"]))));
    for (title, exchange) in [("dispatch: lends peer", "dispatch"), ("combine: lends peer", "combine")] {
        about.extend(is(&format!("{exchange}.tp")).then(|| (title, lent(&plan[exchange]["tp"]))));
    }
    let phases = plan["dispatch"]["phases"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let phases: Vec<_> = (1..).zip(phases).map(|(i, phase)| format!(" {i:<2} {phase}")).collect();
    let mut parts = vec![pairs(&about), format!("dispatch, in this order\n{}", phases.join("\n"))];
    // Only separate flags have words of their own behind the records.
    let flagged = |columns: &'static [&'static str]| {
        &columns[..columns.len() - usize::from(plan["dispatch"]["flags"] != "separate")]
    };
    parts.extend(match direct {
        false => lists(
            plan,
            &[
                ("dispatch sends", "dispatch.sends", SEND),
                ("dispatch publishes", "dispatch.publishes", flagged(PUBLISH)),
                ("dispatch awaits", "dispatch.awaits", flagged(AWAIT)),
            ],
        ),
        true => lists(
            plan,
            &[
                ("dispatch sends", "dispatch.sends", SEND_ROW),
                ("dispatch tells", "dispatch.words.tells", WORDS),
                ("dispatch hears", "dispatch.words.hears", WORDS),
            ],
        ),
    });
    parts.extend(lists(
        plan,
        &[
            ("combine sends and publishes", "combine.sends", RETURN),
            ("combine awaits", "combine.awaits", &["token", "k", "from", "offset"]),
            ("combine publishes: results are ready", "combine.pull.publishes", &["to=0", "offset=1"]),
            ("combine awaits and reads", "combine.pull.reads", READ),
        ],
    ));
    if is("ports") {
        let ports = ports::table(&plan["ports"], &of("port_offset"));
        parts.push(format!("all cores of rank {}: {ports}", of("rank")));
    }
    parts.join("\n\n")
}

fn blocks(blocks: &Value) -> String {
    let of = |field| cell(blocks, field);
    let [count, bytes, last, stride, flag] =
        ["count", "bytes", "bytes_of_last", "stride", "flag_offset"].map(of);
    format!("{count} x {bytes} B (last {last}) every {stride} B, flag at +{flag}")
}

fn lent(exchange: &Value) -> String {
    let of = |field| cell(exchange, field);
    let (peer, slot) = (of("peer"), of("slot_offset"));
    if exchange["rows"].is_null() {
        return format!("rank {peer}, slot at {slot}");
    }
    let [rows, offset, stride, gets] = ["rows..", "offset", "stride", "awaits_rows.."].map(of);
    format!("rank {peer} rows {rows} at {offset} + {stride} i, slot {slot}; gets {gets}")
}

/// A rotated range, in short.
fn rotated(order: Option<&Value>) -> String {
    let order: Vec<u64> =
        order.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_u64).collect();
    match (order.first(), order.last()) {
        (Some(first), Some(last)) if first > last => {
            let (low, high) = (order.iter().min(), order.iter().max());
            let [low, high] = [low, high].map(|n| n.copied().unwrap_or(0));
            format!("{first}..{}, {low}..{}", high + 1, last + 1)
        }
        (Some(first), Some(last)) => format!("{first}..{}", last + 1),
        _ => "-".to_owned(),
    }
}
