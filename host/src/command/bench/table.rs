//! The report for people.

use super::{Bench, Entry};
use crate::command::quantiles::Quantiles;
use crate::config::Bs;
use crate::report::{columns, pairs};

pub(super) fn table(bench: &Bench) -> String {
    let Bench { machine, .. } = bench;
    let gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    let about = pairs(&[
        ("machine", format!("{}, {} cores, {gib:.0} GiB, {}", machine.cpu, machine.cores, machine.os)),
        ("threads", format!("{}, {} vectors", bench.threads, bench.vector)),
        ("source", [core::slice::from_ref(&bench.source), bench.set.as_slice()].concat().join(" ")),
        ("routing", format!("{}, seed {}", bench.routing, bench.seed)),
        ("iterations", format!("{} after {} to warm up, in each regime", bench.iterations, bench.warm_up)),
        ("oracle", "agrees bit for bit with every system, before and after".to_owned()),
    ]);
    let header = [
        "system",
        "R",
        "BS",
        "operator",
        "median ms",
        "p90",
        "p99",
        "chained",
        "GB/s",
        "memcpy ms",
        "of memcpy",
    ];
    let rows: Vec<_> = bench.results.iter().flat_map(rows).collect();
    format!("{about}\n\n{}", columns(&header, &rows))
}

fn rows(entry: &Entry) -> [Vec<String>; 2] {
    let Entry { chained, memcpy_ms, of_memcpy, gb_per_s, .. } = entry;
    let system = match entry.receive {
        Some(receive) => format!("{} {receive}", entry.system),
        None => entry.system.to_owned(),
    };
    let bs = match &entry.bs {
        Bs::Uniform(bs) => bs.to_string(),
        Bs::PerRank(_) => "list".to_owned(),
    };
    let row = |operator: &str,
               ms: Option<Quantiles>,
               [rate, memcpy, of]: [Option<f64>; 3],
               round: Option<Quantiles>| {
        let three = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.3}"));
        let two = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.2}"));
        vec![
            system.clone(),
            entry.ep_world_size.to_string(),
            bs.clone(),
            operator.to_owned(),
            three(ms.map(|q| q.min)),
            three(ms.map(|q| q.median)),
            three(ms.map(|q| q.p90)),
            three(ms.map(|q| q.p99)),
            two(rate),
            three(memcpy),
            two(of),
            three(round.map(|q| q.median)),
            entry.stolen_share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
        ]
    };
    [
        row(
            "dispatch",
            entry.dispatch_ms,
            [gb_per_s.dispatch, memcpy_ms.map(|m| m.dispatch), of_memcpy.map(|o| o.dispatch)],
            None,
        ),
        row(
            "combine",
            entry.combine_ms,
            [gb_per_s.combine, memcpy_ms.map(|m| m.combine), of_memcpy.map(|o| o.combine)],
            chained.round_ms,
        ),
    ]
}
