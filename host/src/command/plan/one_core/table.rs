//! The plan of one core for people.

use super::super::{experts, listed, ports};
use super::{Blocks, CorePlan, Exchange, name_of_flags};
use crate::report::pairs;
use veriep_core::protocol::Flags;

pub(in crate::command::plan) fn table(plan: &CorePlan) -> String {
    let (dispatch, combine) = (&plan.dispatch, &plan.combine);
    let range =
        |[start, end]: [u32; 2]| if start == end { "none".to_owned() } else { format!("{start}..{end}") };
    let unknown = || "not known".to_owned();
    let mut about = vec![
        ("source", plan.head.source.clone()),
        ("core", format!("{} of rank {}", plan.head.core.unwrap_or(0), plan.head.rank)),
        ("experts", experts(plan.head.experts_known)),
        ("receive", format!("{}, experts {}", plan.receive, plan.experts)),
        ("order", plan.order.to_owned()),
        ("shared experts", plan.shared.to_owned()),
        ("port offset", plan.port_offset.to_string()),
        ("flags", dispatch.flags.to_owned()),
        ("writes expand_idx of pairs", range(dispatch.index_pairs)),
    ];
    about.extend(match dispatch.blocks {
        None => [
            ("sends (token, k) pairs", range(dispatch.moe_pairs)),
            ("  in this order", rotated(&dispatch.moe_order)),
        ],
        Some(_) => [
            ("sends to MoE experts", range(dispatch.experts)),
            ("  in this order", rotated(&dispatch.expert_order)),
        ],
    });
    about.extend([
        ("sends (token, shared) pairs", range(dispatch.shared_pairs)),
        ("  in this order", rotated(&dispatch.shared_order)),
    ]);
    about.extend(match &dispatch.words {
        None => vec![
            ("publishes to destinations", range(dispatch.destinations)),
            ("awaits and copies out slots", range(dispatch.slots)),
            ("returns rows", combine.rows.map_or_else(unknown, range)),
        ],
        Some(words) => vec![("tells and hears ranks", range(words.ranks))],
    });
    about.push(("awaits and sums tokens", range(combine.tokens)));
    about.extend(dispatch.blocks.iter().map(|b| ("blocks of a record", blocks(b))));
    for (title, exchange) in [("dispatch: lends peer", &dispatch.tp), ("combine: lends peer", &combine.tp)] {
        about.extend(exchange.iter().map(|exchange| (title, lent(exchange))));
    }
    let phases: Vec<_> = (1..).zip(&dispatch.phases).map(|(i, phase)| format!(" {i:<2} {phase}")).collect();
    let mut parts = vec![pairs(&about), format!("dispatch, in this order\n{}", phases.join("\n"))];
    let flagged = |columns: &[&'static str]| {
        let separate = dispatch.flags == name_of_flags(Flags::Separate);
        [columns, if separate { &["token flag=token_flag_offset"] } else { &[] }].concat()
    };
    let mut send = vec!["step", "token", "k", "expert", "to", "slot", "offset", "bytes"];
    if dispatch.words.is_some() {
        send[5] = "row";
        send.push("info offset=info_offset");
    }
    parts.push(listed("dispatch sends", &send, &dispatch.sends));
    match &dispatch.words {
        None => {
            let publish =
                flagged(&["destination", "rank=to", "local expert=local_expert", "offset", "count"]);
            let wait = flagged(&["slot", "local expert=local_expert", "from", "offset", "count"]);
            parts.push(listed("dispatch publishes", &publish, &dispatch.publishes));
            parts.push(listed("dispatch awaits", &wait, &dispatch.awaits));
        }
        Some(words) => {
            let counts = ["rank", "rows", "counts=counts_offset", "their word=counts_word"];
            let grants = ["grants=grants_offset", "their word=grants_word", "token flag=token_flag_offset"];
            let columns = [&counts[..], &grants].concat();
            parts.push(listed("dispatch tells", &columns, &words.tells));
            parts.push(listed("dispatch hears", &columns, &words.hears));
        }
    }
    if let Some(sends) = &combine.sends {
        let send = ["step", "row", "to", "token", "k", "offset", "bytes", "flag offset=flag_offset"];
        parts.push(listed("combine sends and publishes", &send, sends));
    }
    if let Some(awaits) = &combine.awaits {
        parts.push(listed("combine awaits", &["token", "k", "from", "offset"], awaits));
    }
    if let Some(pull) = &combine.pull {
        let publish = ["to=0", "offset=1"];
        parts.push(listed("combine publishes: results are ready", &publish, &pull.publishes));
        let read = ["token", "k", "from", "row", "offset", "bytes", "flag offset=flag_offset"];
        let reads = pull.reads.as_deref().unwrap_or_default();
        parts.push(listed("combine awaits and reads", &read, reads));
    }
    if let Some(ports) = &plan.ports {
        let ports = ports::table(ports, plan.port_offset);
        parts.push(format!("all cores of rank {}: {ports}", plan.head.rank));
    }
    parts.join("\n\n")
}

fn blocks(blocks: &Blocks) -> String {
    let Blocks { count, stride, bytes, bytes_of_last, flag_offset } = blocks;
    format!("{count} x {bytes} B (last {bytes_of_last}) every {stride} B, flag at +{flag_offset}")
}

fn lent(exchange: &Exchange) -> String {
    let Exchange { peer, rows, offset, stride, slot_offset, awaits_rows, .. } = exchange;
    let (Some([start, end]), Some(offset), Some([first, last])) = (rows, offset, awaits_rows) else {
        return format!("rank {peer}, slot at {slot_offset}");
    };
    format!(
        "rank {peer} rows {start}..{end} at {offset} + {stride} i, slot {slot_offset}; gets {first}..{last}"
    )
}

/// A rotated range, in short.
fn rotated(order: &[u32]) -> String {
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
