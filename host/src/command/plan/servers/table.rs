//! The same for people.

use super::super::listed;
use super::{Combine, CoreShare, Dispatch, Issued, RankPlan, Summary};
use crate::report::pairs;

fn known(experts_known: bool) -> String {
    if experts_known { "known" } else { "not known: see --seed" }.to_owned()
}

fn text<const N: usize>(numbers: [u64; N]) -> Vec<String> {
    numbers.iter().map(u64::to_string).collect()
}

fn list(numbers: &[u32]) -> String {
    let words: Vec<_> = numbers.iter().map(u32::to_string).collect();
    words.join(" ")
}

pub(in crate::command::plan) fn table(plan: &RankPlan) -> String {
    let of = |core: u32| format!("core {core} of rank {}", plan.rank);
    let about = pairs(&[
        ("source", plan.source.clone()),
        ("plan of", plan.core.map_or_else(|| format!("rank {}", plan.rank), of)),
        ("experts", known(plan.experts_known)),
        ("stage", plan.stage.to_string()),
        ("place", format!("server {}, number {} there", plan.server, plan.number)),
        ("relays by server", list(&plan.relays)),
        ("partition of all offsets", plan.partition.to_string()),
    ]);
    let mut parts = vec![about, shares(&plan.cores)];
    parts.extend(plan.dispatch.iter().flat_map(dispatch));
    parts.extend(plan.combine.iter().flat_map(combine));
    parts.join("\n\n")
}

fn titled(title: &str, header: &[&str], rows: &[Vec<String>]) -> String {
    format!("{title}\n{}", listed(header, rows))
}

fn shares(cores: &[CoreShare]) -> String {
    let range = |[start, end]: [u32; 2]| format!("{start}..{end}");
    let rows: Vec<_> = cores
        .iter()
        .map(|share| {
            let rows = share.rows.map_or_else(|| "-".to_owned(), range);
            let [streams, tokens, slots] = [share.streams, share.tokens, share.slots].map(range);
            vec![share.core.to_string(), streams, tokens, slots, rows]
        })
        .collect();
    titled("shares", &["core", "servers", "tokens", "slots", "received rows"], &rows)
}

fn dispatch(plan: &Dispatch) -> Vec<String> {
    let sends = plan.sends.iter().map(|s| {
        let [core, token, server, to, pairs] = [s.core, s.token, s.server, s.to, s.pairs].map(u64::from);
        text([core, token, server, to, pairs, s.record.into(), s.offset, s.bytes])
    });
    let forwards = plan.forwards.iter().map(|f| {
        let [core, source, token, k] = [f.core, f.source, f.token, f.k].map(u64::from);
        let [to, expert, slot, position] = [f.to, f.local_expert, f.slot, f.position].map(u64::from);
        text([core, source, token, k, to, expert, slot, position, f.pairs.into(), f.offset])
    });
    let send_head = ["core", "token", "server", "to", "pairs", "record", "offset", "bytes"];
    let forward_head =
        ["core", "source", "token", "k", "to", "local expert", "slot", "position", "of", "offset"];
    let mut parts = vec![
        titled("dispatch sends to other servers", &send_head, &sends.collect::<Vec<_>>()),
        titled("dispatch forwards inside the server", &forward_head, &forwards.collect::<Vec<_>>()),
    ];
    parts.extend(tasks("dispatch tasks, in the order of issue", &plan.tasks));
    parts
}

fn combine(plan: &Combine) -> Vec<String> {
    let returns = plan.returns.iter().map(|r| {
        let [core, row, source, token] = [r.core, r.row, r.source, r.token].map(u64::from);
        text([core, row, source, token, r.position.into(), r.pairs.into(), r.to.into(), r.offset])
    });
    let sums = plan.sums.iter().map(|sum| {
        let mut row = text([sum.core.into(), sum.to.into(), sum.token.into()]);
        row.push(list(&sum.from));
        row
    });
    let totals = plan.tokens.iter().map(|total| {
        let mut row = text([total.core.into(), total.token.into()]);
        row.extend([list(&total.servers), list(&total.from)]);
        row
    });
    let return_head = ["core", "row", "source", "token", "position", "of", "to", "offset"];
    let mut parts = vec![
        titled("combine returns inside the server", &return_head, &returns.collect::<Vec<_>>()),
        titled(
            "combine sums inside the server",
            &["core", "to", "token", "rows of ranks"],
            &sums.collect::<Vec<_>>(),
        ),
        titled("combine sums own tokens", &["core", "token", "servers", "from"], &totals.collect::<Vec<_>>()),
    ];
    parts.extend(tasks("combine tasks, in the order of issue", &plan.tasks));
    parts
}

fn tasks(title: &str, tasks: &[Issued]) -> Option<String> {
    let row = |t: &Issued| text([t.to.into(), t.records.into(), t.local_buf, t.remote_buf, t.bytes]);
    let rows: Vec<_> = tasks.iter().map(row).collect();
    let head = ["to", "records", "local_buf", "remote_buf", "bytes"];
    (!rows.is_empty()).then(|| titled(title, &head, &rows))
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
    let row = |r: &super::OfRank| {
        let relayed = [r.tokens_relayed, r.rows_forwarded, r.inside_bytes, r.rows_received];
        [text([r.rank.into(), r.tokens_across, r.across_bytes]), text(relayed)].concat()
    };
    let rows: Vec<_> = summary.traffic.iter().map(row).collect();
    let head = [
        "rank",
        "tokens across",
        "their rows B",
        "tokens relayed",
        "rows forwarded",
        "these rows B",
        "rows received",
    ];
    format!("{about}\n\n{}", listed(&head, &rows))
}
