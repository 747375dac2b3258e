//! Plans of the hierarchy for people.

use super::{Head, OfAll, OfRank, known, page};
use crate::report::{Cell, columns_of, list_of, pairs};
use veriep_plan::plans::servers::*;

/// The same for people.
pub(super) fn table(head: &Head, of: &OfRank, plan: &Plan) -> String {
    let more = [
        ("stage", plan.stage.to_string()),
        ("place", format!("server {}, number {} there", plan.server, plan.number)),
        ("relays by server", plan.relays.cell()),
        ("partition of all offsets", plan.partition.to_string()),
    ];
    let shares = columns_of![Share;
        "core" => core, "servers" => streams, "tokens" => tokens, "slots" => slots, "received rows" => rows,
    ];
    let mut lists = vec![list_of("shares", &shares, &plan.cores)];
    lists.extend(plan.dispatch.iter().flat_map(of_dispatch));
    lists.extend(plan.combine.iter().flat_map(of_combine));
    page(head, of, more, lists)
}

fn of_dispatch(dispatch: &Dispatch) -> Vec<String> {
    let sends = columns_of![Crossing;
        "core" => core, "token" => token, "server" => server, "to" => to, "pairs" => pairs, "record" => record,
        "offset" => offset, "bytes" => bytes,
    ];
    let forwards = columns_of![Forwarded;
        "core" => core, "source" => source, "token" => token, "k" => k, "to" => to,
        "local expert" => local_expert, "slot" => slot, "position" => position, "of" => pairs,
        "offset" => offset,
    ];
    let mut lists = vec![
        list_of("dispatch sends to other servers", &sends, &dispatch.sends),
        list_of("dispatch forwards inside the server", &forwards, &dispatch.forwards),
    ];
    lists.extend(of_tasks("dispatch tasks, in the order of issue", &dispatch.tasks));
    lists
}

fn of_combine(combine: &Combine) -> Vec<String> {
    let returns = columns_of![Return;
        "core" => core, "row" => row, "source" => source, "token" => token, "position" => position,
        "of" => pairs, "to" => to, "offset" => offset,
    ];
    let sums = columns_of![Sum; "core" => core, "to" => to, "token" => token, "rows of ranks" => from];
    let tokens = columns_of![Total; "core" => core, "token" => token, "servers" => servers, "from" => from];
    let mut lists = vec![
        list_of("combine returns inside the server", &returns, &combine.returns),
        list_of("combine sums inside the server", &sums, &combine.sums),
        list_of("combine sums own tokens", &tokens, &combine.tokens),
    ];
    lists.extend(of_tasks("combine tasks, in the order of issue", &combine.tasks));
    lists
}

fn of_tasks(title: &str, tasks: &[Posted]) -> Option<String> {
    let columns = columns_of![Posted;
        "to" => to, "records" => records, "local_buf" => local_buf, "remote_buf" => remote_buf,
        "bytes" => bytes,
    ];
    (!tasks.is_empty()).then(|| list_of(title, &columns, tasks))
}

pub(super) fn summary_table(head: &Head, of: &OfAll, summary: &Summary) -> String {
    let about = pairs(&[
        ("source", head.source.clone()),
        ("group", format!("{} ranks on {} servers x {} cores", of.ranks, summary.servers, of.cores)),
        ("experts", known(head)),
    ]);
    if !head.experts_known {
        return about;
    }
    let columns = columns_of![OfOne;
        "rank" => rank, "tokens across" => tokens_across, "their rows B" => across_bytes,
        "tokens relayed" => tokens_relayed, "rows forwarded" => rows_forwarded,
        "these rows B" => inside_bytes, "rows received" => rows_received,
    ];
    format!("{about}\n{}", list_of("", &columns, &summary.traffic))
}
