//! The same for people.

use super::super::{known, listed};
use super::{Issued, RankPlan, Summary};
use crate::report::pairs;

pub(in crate::command::plan) fn table(plan: &RankPlan) -> String {
    let relays: Vec<_> = plan.relays.iter().map(u32::to_string).collect();
    let mut about = plan.head.rows();
    about.extend([
        ("stage", plan.stage.to_string()),
        ("place", format!("server {}, number {} there", plan.server, plan.number)),
        ("relays by server", relays.join(" ")),
        ("partition of all offsets", plan.partition.to_string()),
    ]);
    let share = ["core", "servers=streams..", "tokens..", "slots..", "received rows=rows.."];
    let mut parts = vec![pairs(&about), listed("shares", &share, &plan.cores)];
    if let Some(dispatch) = &plan.dispatch {
        let send = ["core", "token", "server", "to", "pairs", "record", "offset", "bytes"];
        let (expert, of) = ("local expert=local_expert", "of=pairs");
        let forward = ["core", "source", "token", "k", "to", expert, "slot", "position", of, "offset"];
        parts.extend([
            listed("dispatch sends to other servers", &send, &dispatch.sends),
            listed("dispatch forwards inside the server", &forward, &dispatch.forwards),
        ]);
        parts.extend(tasks("dispatch", &dispatch.tasks));
    }
    if let Some(combine) = &plan.combine {
        let back = ["core", "row", "source", "token", "position", "of=pairs", "to", "offset"];
        let (sum, total) =
            (["core", "to", "token", "rows of ranks=from"], ["core", "token", "servers", "from"]);
        parts.extend([
            listed("combine returns inside the server", &back, &combine.returns),
            listed("combine sums inside the server", &sum, &combine.sums),
            listed("combine sums own tokens", &total, &combine.tokens),
        ]);
        parts.extend(tasks("combine", &combine.tasks));
    }
    parts.join("\n\n")
}

fn tasks(operator: &str, tasks: &[Issued]) -> Option<String> {
    let title = format!("{operator} tasks, in the order of issue");
    let columns = ["to", "records", "local_buf", "remote_buf", "bytes"];
    (!tasks.is_empty()).then(|| listed(&title, &columns, tasks))
}

pub(in crate::command::plan) fn summary_table(summary: &Summary) -> String {
    let Summary { ranks, servers, cores, .. } = summary;
    let about = pairs(&[
        ("source", summary.source.clone()),
        ("group", format!("{ranks} ranks on {servers} servers x {cores} cores")),
        ("experts", known(summary.experts_known)),
    ]);
    if !summary.experts_known {
        return about;
    }
    let columns = [
        "rank",
        "tokens across=tokens_across",
        "their rows B=across_bytes",
        "tokens relayed=tokens_relayed",
        "rows forwarded=rows_forwarded",
        "these rows B=inside_bytes",
        "rows received=rows_received",
    ];
    format!("{about}\n{}", listed("", &columns, &summary.traffic))
}
