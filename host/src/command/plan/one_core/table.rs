//! The plan of one core for people.

use super::super::listed;
use super::super::ports;
use super::{Blocks, CorePlan, Exchange, name_of_flags};
use crate::report::pairs;
use veriep_core::protocol::Flags;

pub(in crate::command::plan) fn table(plan: &CorePlan) -> String {
    let (dispatch, combine) = (&plan.dispatch, &plan.combine);
    let range =
        |[start, end]: [u32; 2]| if start == end { "none".to_owned() } else { format!("{start}..{end}") };
    let unknown = || "not known".to_owned();
    let mut about = vec![
        ("source", plan.source.clone()),
        ("core", format!("{} of rank {}", plan.core, plan.rank)),
        ("experts", if plan.experts_known { "known" } else { "not known: shared experts only" }.to_owned()),
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
    let mut list = |title: &str, header: &[&str], rows: Vec<Vec<String>>| {
        parts.push(format!("{title}\n{}", listed(header, &rows)));
    };
    let text = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>();
    let maybe = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let sends = dispatch.sends.iter().map(|s| {
        let mut row = text(&[s.step as u64, s.token.into(), s.k.into()]);
        row.push(maybe(s.expert));
        row.extend(text(&[s.to.into(), s.row.unwrap_or(s.slot).into(), s.offset, s.bytes]));
        row.extend(s.info_offset.map(|offset| offset.to_string()));
        row
    });
    let slot = if dispatch.words.is_some() { "row" } else { "slot" };
    let head = ["step", "token", "k", "expert", "to", slot, "offset", "bytes", "info offset"];
    list("dispatch sends", &head[..head.len() - usize::from(dispatch.words.is_none())], sends.collect());
    if let Some(words) = &dispatch.words {
        for (title, told) in [("dispatch tells", &words.tells), ("dispatch hears", &words.hears)] {
            let rows = told.iter().map(|told| {
                let sum = told.counts.as_ref().map(|counts| counts.iter().sum());
                let mut row = vec![told.rank.to_string(), maybe(sum)];
                row.extend(text(&[told.counts_offset, told.counts_word, told.grants_offset]));
                row.extend(text(&[told.grants_word, told.token_flag_offset]));
                row
            });
            let head = ["rank", "rows", "counts", "their word", "grants", "their word", "token flag"];
            list(title, &head, rows.collect());
        }
    }
    let publishes = dispatch.publishes.iter().map(|p| {
        let mut row = text(&[p.destination.into(), p.to.into(), p.local_expert.into(), p.offset]);
        row.push(maybe(p.count));
        row.extend(p.token_flag_offset.map(|offset| offset.to_string()));
        row
    });
    let flagged = |head: &[&'static str]| {
        let separate = dispatch.flags == name_of_flags(Flags::Separate);
        [head, if separate { &["token flag"] } else { &[] }].concat()
    };
    let head = flagged(&["destination", "rank", "local expert", "offset", "count"]);
    if dispatch.words.is_none() {
        list("dispatch publishes", &head, publishes.collect());
    }
    let awaits = dispatch.awaits.iter().map(|a| {
        let mut row = text(&[a.slot.into(), a.local_expert.into(), a.from.into(), a.offset]);
        row.push(maybe(a.count));
        row.extend(a.token_flag_offset.map(|offset| offset.to_string()));
        row
    });
    let head = flagged(&["slot", "local expert", "from", "offset", "count"]);
    if dispatch.words.is_none() {
        list("dispatch awaits", &head, awaits.collect());
    }
    if let Some(sends) = &combine.sends {
        let rows = sends.iter().map(|r| {
            let [to, token, k] = [r.to, r.token, r.k].map(u64::from);
            text(&[r.step as u64, r.row.into(), to, token, k, r.offset, r.bytes, r.flag_offset])
        });
        let head = ["step", "row", "to", "token", "k", "offset", "bytes", "flag offset"];
        list("combine sends and publishes", &head, rows.collect());
    }
    if let Some(awaits) = &combine.awaits {
        let rows = awaits.iter().map(|a| text(&[a.token.into(), a.k.into(), a.from.into(), a.offset]));
        list("combine awaits", &["token", "k", "from", "offset"], rows.collect());
    }
    if let Some(pull) = &combine.pull {
        let rows = pull.publishes.iter().map(|&(to, offset)| text(&[to.into(), offset]));
        list("combine publishes: results are ready", &["to", "offset"], rows.collect());
        let rows = pull.reads.iter().flatten().map(|r| {
            let [token, k, from, row] = [r.token, r.k, r.from, r.row].map(u64::from);
            text(&[token, k, from, row, r.offset, r.bytes, r.flag_offset])
        });
        let head = ["token", "k", "from", "row", "offset", "bytes", "flag offset"];
        list("combine awaits and reads", &head, rows.collect());
    }
    if let Some(ports) = &plan.ports {
        parts.push(format!("all cores of rank {}: {}", plan.rank, ports::table(ports, plan.port_offset)));
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
