//! The same for people.

use super::super::listed;
use super::{Await, Issued, RankPlan, Summary};
use crate::report::pairs;

fn known(experts_known: bool) -> String {
    if experts_known { "known" } else { "not known: see --seed" }.to_owned()
}

fn text(numbers: &[u64]) -> Vec<String> {
    numbers.iter().map(u64::to_string).collect()
}

pub(in crate::command::plan) fn table(plan: &RankPlan) -> String {
    let of = |core: u32| format!("core {core} of rank {}", plan.rank);
    let about = pairs(&[
        ("source", plan.source.clone()),
        ("plan of", plan.core.map_or_else(|| format!("rank {}", plan.rank), of)),
        ("experts", known(plan.experts_known)),
        ("half of all offsets", plan.half.to_string()),
        ("bytes of a window", plan.rank_window.to_string()),
        ("tasks", format!("{} per operator, {}", plan.tasks_per_operator, plan.order)),
    ]);
    let mut parts = vec![about];
    let mut list = |title: &str, header: &[&str], rows: Vec<Vec<String>>| {
        parts.push(format!("{title}\n{}", listed(header, &rows)));
    };
    let range = |[start, end]: [u32; 2]| format!("{start}..{end}");
    let shares = plan.cores.iter().map(|share| {
        let rows = share.rows.map_or_else(|| "-".to_owned(), range);
        vec![share.core.to_string(), range(share.tokens), range(share.ranks), rows]
    });
    list("shares", &["core", "tokens", "ranks", "received rows"], shares.collect());
    if let Some(dispatch) = &plan.dispatch {
        let reorder = dispatch.reorder.iter().map(|r| {
            let [core, token, k, expert] = [r.core, r.token, r.k, r.expert].map(u64::from);
            let [to, slot, position] = [r.to, r.slot, r.position].map(u64::from);
            text(&[core, token, k, expert, to, slot, position, r.offset, r.bytes])
        });
        let head = ["core", "token", "k", "expert", "to", "slot", "position", "offset", "bytes"];
        list("dispatch reorders", &head, reorder.collect());
        list("dispatch tasks, in the order of issue", &TASK, tasks(&dispatch.tasks));
        list("dispatch awaits", &AWAIT, awaits(&dispatch.awaits));
    }
    if let Some(combine) = &plan.combine {
        let reorder = combine.reorder.iter().map(|r| {
            let [core, row, to, position] = [r.core, r.row, r.to, r.position].map(u64::from);
            text(&[core, row, to, position, r.offset, r.bytes])
        });
        let head = ["core", "row", "to", "position", "offset", "bytes"];
        list("combine reorders", &head, reorder.collect());
        list("combine tasks, in the order of issue", &TASK, tasks(&combine.tasks));
        list("combine awaits", &AWAIT, awaits(&combine.awaits));
        let addr = combine.token_addr.iter().map(|a| {
            let [core, token, k] = [a.core, a.token, a.k].map(u64::from);
            text(&[core, token, k, a.from.into(), a.position.into(), a.offset])
        });
        list("combine sums", &["core", "token", "k", "from", "position", "offset"], addr.collect());
    }
    parts.join("\n\n")
}

const TASK: [&str; 8] = ["core", "to", "rows", "record at", "local_buf", "remote_buf", "count", "bytes"];

fn tasks(tasks: &[Issued]) -> Vec<Vec<String>> {
    let row = |t: &Issued| {
        let [core, to, rows] = [t.core, t.remote_rank_id, t.rows].map(u64::from);
        text(&[core, to, rows, t.offset, t.local_buf, t.remote_buf, t.count, t.bytes])
    };
    tasks.iter().map(row).collect()
}

const AWAIT: [&str; 6] = ["core", "from", "rows", "window at", "FLAG1 at", "last flag at"];

fn awaits(awaits: &[Await]) -> Vec<Vec<String>> {
    let row = |a: &Await| {
        let mut row = text(&[a.core.into(), a.from.into(), a.rows.into(), a.offset]);
        row.push(a.flag1_offset.map_or_else(|| "-".to_owned(), |at| at.to_string()));
        row.push(a.flag_offset.to_string());
        row
    };
    awaits.iter().map(row).collect()
}

pub(in crate::command::plan) fn summary_table(summary: &Summary) -> String {
    let about = pairs(&[
        ("source", summary.source.clone()),
        ("group", format!("{} ranks x {} cores", summary.ranks, summary.cores)),
        ("experts", known(summary.experts_known)),
        ("bytes of a window", summary.rank_window.to_string()),
        ("tasks", format!("{} per rank and operator", summary.tasks_per_operator)),
    ]);
    if !summary.experts_known {
        return about;
    }
    let rows: Vec<_> = summary
        .traffic
        .iter()
        .map(|r| {
            let [rank, sent, received, own] =
                [r.rank, r.rows_sent, r.rows_received, r.rows_to_itself].map(u64::from);
            let (dispatch, combine) = (r.dispatch_task_bytes, r.combine_task_bytes);
            text(&[rank, sent, received, own, dispatch, combine, r.window_bytes_max])
        })
        .collect();
    let head = [
        "rank",
        "rows sent",
        "received",
        "to itself",
        "dispatch tasks B",
        "combine tasks B",
        "fullest window B",
    ];
    format!("{about}\n\n{}", listed(&head, &rows))
}
