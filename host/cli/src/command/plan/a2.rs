//! Plans of the A2 full mesh for people.

use super::{Head, OfAll, OfRank, known, page};
use crate::report::{columns_of, list_of, pairs};
use veriep_plan::plans::a2::*;

/// The same for people.
pub(super) fn table(head: &Head, of: &OfRank, plan: &Plan) -> String {
    let more = [
        ("half of all offsets", plan.half.to_string()),
        ("bytes of a window", plan.rank_window.to_string()),
        ("tasks", format!("{} per operator, {}", plan.tasks_per_operator, plan.order)),
    ];
    let shares = columns_of![Share;
        "core" => core, "tokens" => tokens, "ranks" => ranks, "received rows" => rows,
    ];
    let mut lists = vec![list_of("shares", &shares, &plan.cores)];
    lists.extend(plan.dispatch.iter().flat_map(of_dispatch));
    lists.extend(plan.combine.iter().flat_map(of_combine));
    page(head, of, more, lists)
}

fn of_dispatch(dispatch: &Dispatch) -> [String; 3] {
    let reorder = columns_of![Reorder;
        "core" => core, "token" => token, "k" => k, "expert" => expert, "to" => to, "slot" => slot,
        "position" => position, "offset" => offset, "bytes" => bytes,
    ];
    [
        list_of("dispatch reorders", &reorder, &dispatch.reorder),
        of_tasks("dispatch tasks, in the order of issue", &dispatch.tasks),
        of_awaits("dispatch awaits", &dispatch.awaits),
    ]
}

fn of_combine(combine: &Combine) -> [String; 4] {
    let reorder = columns_of![ReorderRow;
        "core" => core, "row" => row, "to" => to, "position" => position, "offset" => offset, "bytes" => bytes,
    ];
    let sums = columns_of![TokenRow;
        "core" => core, "token" => token, "k" => k, "from" => from, "position" => position, "offset" => offset,
    ];
    [
        list_of("combine reorders", &reorder, &combine.reorder),
        of_tasks("combine tasks, in the order of issue", &combine.tasks),
        of_awaits("combine awaits", &combine.awaits),
        list_of("combine sums", &sums, &combine.token_addr),
    ]
}

fn of_tasks(title: &str, tasks: &[TaskRecord]) -> String {
    let columns = columns_of![TaskRecord;
        "core" => core, "to" => remote_rank_id, "rows" => rows, "record at" => offset, "local_buf" => local_buf,
        "remote_buf" => remote_buf, "count" => count, "bytes" => bytes,
    ];
    list_of(title, &columns, tasks)
}

fn of_awaits(title: &str, awaits: &[Await]) -> String {
    let columns = columns_of![Await;
        "core" => core, "from" => from, "rows" => rows, "window at" => offset, "FLAG1 at" => flag1_offset,
        "last flag at" => flag_offset,
    ];
    list_of(title, &columns, awaits)
}

pub(super) fn summary_table(head: &Head, of: &OfAll, summary: &Summary) -> String {
    let about = pairs(&[
        ("source", head.source.clone()),
        ("group", format!("{} ranks x {} cores", of.ranks, of.cores)),
        ("experts", known(head)),
        ("bytes of a window", summary.rank_window.to_string()),
        ("tasks", format!("{} per rank and operator", summary.tasks_per_operator)),
    ]);
    if !head.experts_known {
        return about;
    }
    let columns = columns_of![OfOne;
        "rank" => rank, "rows sent" => rows_sent, "received" => rows_received, "to itself" => rows_to_itself,
        "dispatch tasks B" => dispatch_task_bytes, "combine tasks B" => combine_task_bytes,
        "fullest window B" => window_bytes_max,
    ];
    format!("{about}\n{}", list_of("", &columns, &summary.traffic))
}
