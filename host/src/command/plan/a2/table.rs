//! The same for people.

use super::super::{known, listed};
use super::{RankPlan, Summary};
use crate::report::pairs;

const TASK: [&str; 8] =
    ["core", "to=remote_rank_id", "rows", "record at=offset", "local_buf", "remote_buf", "count", "bytes"];
const AWAIT: [&str; 6] =
    ["core", "from", "rows", "window at=offset", "FLAG1 at=flag1_offset", "last flag at=flag_offset"];

pub(in crate::command::plan) fn table(plan: &RankPlan) -> String {
    let mut about = plan.head.rows();
    about.extend([
        ("half of all offsets", plan.half.to_string()),
        ("bytes of a window", plan.rank_window.to_string()),
        ("tasks", format!("{} per operator, {}", plan.tasks_per_operator, plan.order)),
    ]);
    let share = ["core", "tokens..", "ranks..", "received rows=rows.."];
    let mut parts = vec![pairs(&about), listed("shares", &share, &plan.cores)];
    if let Some(dispatch) = &plan.dispatch {
        let reorder = ["core", "token", "k", "expert", "to", "slot", "position", "offset", "bytes"];
        parts.extend([
            listed("dispatch reorders", &reorder, &dispatch.reorder),
            listed("dispatch tasks, in the order of issue", &TASK, &dispatch.tasks),
            listed("dispatch awaits", &AWAIT, &dispatch.awaits),
        ]);
    }
    if let Some(combine) = &plan.combine {
        let reorder = ["core", "row", "to", "position", "offset", "bytes"];
        let sum = ["core", "token", "k", "from", "position", "offset"];
        parts.extend([
            listed("combine reorders", &reorder, &combine.reorder),
            listed("combine tasks, in the order of issue", &TASK, &combine.tasks),
            listed("combine awaits", &AWAIT, &combine.awaits),
            listed("combine sums", &sum, &combine.token_addr),
        ]);
    }
    parts.join("\n\n")
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
    let columns = [
        "rank",
        "rows sent=rows_sent",
        "received=rows_received",
        "to itself=rows_to_itself",
        "dispatch tasks B=dispatch_task_bytes",
        "combine tasks B=combine_task_bytes",
        "fullest window B=window_bytes_max",
    ];
    format!("{about}\n{}", listed("", &columns, &summary.traffic))
}
