//! The plan of one core for people.

use super::{Head, OfRank, experts, or_none, ports};
use crate::report::{Cell, Column, column, columns_of, list_of, pairs};
use veriep_plan::plans::direct;
use veriep_plan::plans::one_core::*;
use veriep_plan::plans::tp::Exchange;

pub(in crate::command::plan) fn table(head: &Head, of: &OfRank, plan: &Plan) -> String {
    let phases = (1..).zip(&plan.dispatch.phases).map(|(i, phase)| format!(" {i:<2} {phase}"));
    let phases: Vec<_> = phases.collect();
    let mut parts =
        vec![pairs(&about(head, of, plan)), format!("dispatch, in this order\n{}", phases.join("\n"))];
    parts.extend(of_dispatch(&plan.dispatch));
    parts.extend(of_combine(&plan.combine));
    parts.extend(
        plan.ports
            .as_ref()
            .map(|ports| format!("all cores of rank {}: {}", of.rank, ports::table(ports, plan.port_offset))),
    );
    parts.join("\n\n")
}

fn about(head: &Head, of: &OfRank, plan: &Plan) -> Vec<(&'static str, String)> {
    let (dispatch, combine) = (&plan.dispatch, &plan.combine);
    let ranges = &dispatch.ranges;
    let mut about = vec![
        ("source", head.source.clone()),
        ("core", format!("{} of rank {}", of.core.cell(), of.rank)),
        ("experts", experts(head)),
        ("receive", format!("{}, experts {}", plan.receive, plan.experts)),
        ("order", plan.order.clone()),
        ("shared experts", plan.shared.clone()),
        ("port offset", plan.port_offset.to_string()),
        ("flags", dispatch.flags.to_owned()),
        ("writes expand_idx of pairs", or_none(ranges.index_pairs)),
    ];
    about.extend(match dispatch.blocks {
        None => [("sends (token, k) pairs", or_none(ranges.moe_pairs)), in_order(&dispatch.moe_order)],
        Some(_) => [("sends to MoE experts", or_none(ranges.experts)), in_order(&dispatch.expert_order)],
    });
    about.push(("sends (token, shared) pairs", or_none(ranges.shared_pairs)));
    about.push(in_order(&dispatch.shared_order));
    match &dispatch.words {
        None => about.extend([
            ("publishes to destinations", or_none(ranges.destinations)),
            ("awaits and copies out slots", or_none(ranges.slots)),
            ("returns rows", combine.rows.map_or_else(|| "not known".to_owned(), or_none)),
        ]),
        Some(words) => about.push(("tells and hears ranks", or_none(words.ranks))),
    }
    about.push(("awaits and sums tokens", or_none(combine.tokens)));
    about.extend(dispatch.blocks.as_ref().map(|blocks| ("blocks of a record", of_blocks(blocks))));
    about.extend(dispatch.tp.as_ref().map(|exchange| ("dispatch: lends peer", lent(exchange))));
    about.extend(combine.tp.as_ref().map(|exchange| ("combine: lends peer", lent(exchange))));
    about
}

fn of_dispatch(dispatch: &Dispatch) -> Vec<String> {
    let Some(words) = &dispatch.words else {
        let sends = columns_of![Send;
            "step" => step, "token" => token, "k" => k, "expert" => expert, "to" => to, "slot" => slot,
            "offset" => offset, "bytes" => bytes,
        ];
        // Only separate flags have words of their own after the records.
        let are_separate = dispatch.flags == "separate";
        let publishes = columns_of![Publish;
            "destination" => destination, "rank" => to, "local expert" => local_expert, "offset" => offset,
            "count" => count, "token flag" => token_flag_offset,
        ];
        let awaits = columns_of![Await;
            "slot" => slot, "local expert" => local_expert, "from" => from, "offset" => offset,
            "count" => count, "token flag" => token_flag_offset,
        ];
        return vec![
            list_of("dispatch sends", &sends, &dispatch.sends),
            list_of("dispatch publishes", all_but(!are_separate, &publishes), &dispatch.publishes),
            list_of("dispatch awaits", all_but(!are_separate, &awaits), &dispatch.awaits),
        ];
    };
    let sends = columns_of![Send;
        "step" => step, "token" => token, "k" => k, "expert" => expert, "to" => to, "row" => row,
        "offset" => offset, "bytes" => bytes, "info offset" => info_offset,
    ];
    let of_words = columns_of![direct::Word;
        "rank" => rank, "rows" => rows, "counts" => counts_offset, "their word" => counts_word,
        "grants" => grants_offset, "their word" => grants_word, "token flag" => token_flag_offset,
    ];
    vec![
        list_of("dispatch sends", &sends, &dispatch.sends),
        list_of("dispatch tells", &of_words, &words.tells),
        list_of("dispatch hears", &of_words, &words.hears),
    ]
}

/// The columns, perhaps without the last one.
fn all_but<'c, 't, R>(last: bool, columns: &'c [Column<'t, R>]) -> &'c [Column<'t, R>] {
    &columns[..columns.len() - usize::from(last)]
}

fn of_combine(combine: &Combine) -> Vec<String> {
    let mut lists = Vec::new();
    if let Some(sends) = &combine.sends {
        let columns = columns_of![Return;
            "step" => step, "row" => row, "to" => to, "token" => token, "k" => k, "offset" => offset,
            "bytes" => bytes, "flag offset" => flag_offset,
        ];
        lists.push(list_of("combine sends and publishes", &columns, sends));
    }
    if let Some(awaits) = &combine.awaits {
        let columns = columns_of![AwaitRow; "token" => token, "k" => k, "from" => from, "offset" => offset];
        lists.push(list_of("combine awaits", &columns, awaits));
    }
    let Some(pull) = &combine.pull else { return lists };
    let columns = [
        column("to", &|(to, _): &(u32, u64)| to.to_string()),
        column("offset", &|(_, offset): &(u32, u64)| offset.to_string()),
    ];
    lists.push(list_of("combine publishes: results are ready", &columns, &pull.publishes));
    if let Some(reads) = &pull.reads {
        let columns = columns_of![direct::Read;
            "token" => token, "k" => k, "from" => from, "row" => row, "offset" => offset, "bytes" => bytes,
            "flag offset" => flag_offset,
        ];
        lists.push(list_of("combine awaits and reads", &columns, reads));
    }
    lists
}

fn of_blocks(blocks: &Blocks) -> String {
    let Blocks { count, stride, bytes, bytes_of_last, flag_offset } = blocks;
    format!("{count} x {bytes} B (last {bytes_of_last}) every {stride} B, flag at +{flag_offset}")
}

fn lent(exchange: &Exchange) -> String {
    let Exchange { peer, rows, offset, stride, slot_offset: slot, awaits_rows, .. } = exchange;
    let (Some(rows), Some(offset), Some(gets)) = (rows, offset, awaits_rows) else {
        return format!("rank {peer}, slot at {slot}");
    };
    let (rows, gets) = (rows.cell(), gets.cell());
    format!("rank {peer} rows {rows} at {offset} + {stride} i, slot {slot}; gets {gets}")
}

/// A rotated range, in short.
fn in_order(order: &[u32]) -> (&'static str, String) {
    let order = match (order.first(), order.last()) {
        (Some(first), Some(last)) if first > last => {
            let (low, high) = (order.iter().min(), order.iter().max());
            let [low, high] = [low, high].map(|n| n.copied().unwrap_or(0));
            format!("{first}..{}, {low}..{}", high + 1, last + 1)
        }
        (Some(first), Some(last)) => format!("{first}..{}", last + 1),
        _ => "-".to_owned(),
    };
    ("  in this order", order)
}
