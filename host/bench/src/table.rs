//! The report for people.

use crate::blocks::Ratio;
use crate::entry::{Entry, Sent};
use crate::history::Change;
use crate::measure::Bench;
use veriep::cli::RowCopyArg;
use veriep::command::quantiles::Quantiles;
use veriep::report::{columns, pairs};
use veriep_case::config::Bs;

pub(crate) fn table(bench: &Bench) -> String {
    let Bench { machine, .. } = bench;
    let gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    let blocks =
        format!("{} of {} iterations after {}, alternately", bench.blocks, bench.iterations, bench.warm_up);
    let about = pairs(&[
        ("machine", format!("{}, {} cores, {gib:.0} GiB, {}", machine.cpu, machine.cores, machine.os)),
        ("threads", format!("{}, {} vectors", bench.threads, bench.vector)),
        ("source", [core::slice::from_ref(&bench.source), bench.set.as_slice()].concat().join(" ")),
        ("routing", format!("{}, seed {}", bench.routing, bench.seed)),
        ("blocks", blocks),
        ("reference", "agrees bit for bit with every system, before and after".to_owned()),
    ]);
    let header = [
        "system", "R", "BS", "operator", "min ms", "median", "p90", "p99", "GB/s", "chained", "stolen",
        "waited",
    ];
    let rows: Vec<_> = bench.results.iter().flat_map(rows).collect();
    let mut all = format!("{about}\n\n{}", columns(&header, &rows));
    if bench.results.iter().any(|entry| entry.load.busy) {
        all += &format!(
            "\n{BUSY}: other programs wanted the processors; times are longer, and ratios do not hold"
        );
    }
    let mut more = |title: &str, header: &[&str], rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            all += &format!("\n\n{title}\n{}", columns(&[&["system", "R", "BS"], header].concat(), &rows));
        }
    };
    let results = || bench.results.iter();
    let header = ["times as fast as", "dispatch", "combine"];
    more("median (quartiles) over the blocks", &header, results().flat_map(ratios).collect());
    let title = "between processes through the MPI, in a round";
    more(title, &["messages", "MB"], results().filter_map(sent).collect());
    let header = ["ns per step", "per effect", "per flag", "of dispatch", "of combine"];
    more("when rows weigh nothing", &header, results().filter_map(protocol).collect());
    if let Some(beside) = &bench.compared {
        let header = ["system", "R", "BS", "dispatch", "combine", "chained"];
        let row = |(entry, change): (&Entry, &Change)| {
            let mark = if change.was_busy { " (busy then)" } else { "" };
            let ratio = |ratio: Option<f64>| or_dash(ratio, |ratio| format!("{ratio:.2}{mark}"));
            [name(entry), [change.dispatch, change.combine, change.round].map(ratio).to_vec()].concat()
        };
        let rows: Vec<_> = bench.results.iter().zip(&beside.results).map(row).collect();
        let differs = if beside.differs.is_empty() {
            String::new()
        } else {
            format!(", with another {}", beside.differs.join(" and "))
        };
        all += &format!("\n\ntimes as fast as in {}{differs}\n{}", beside.file, columns(&header, &rows));
    }
    all
}

/// After the name of what was measured under load, wherever it stands.
const BUSY: &str = "(busy)";

/// System, R and BS.
fn name(entry: &Entry) -> Vec<String> {
    let mut system = match entry.receive {
        Some(receive) => format!("{} {receive}", entry.system),
        None => entry.system.clone(),
    };
    if let Some(experts) = entry.experts.filter(|&experts| experts != "apart") {
        system += &format!(" {experts}");
    }
    if let Some(way) = entry.asked.filter(|&way| way != RowCopyArg::Auto) {
        system += &format!(" {}", veriep::cli::name_of(way));
    }
    if entry.quant_mode != 0 {
        system += " int8";
    }
    if entry.receive.is_some() && entry.aiv_num != 8 {
        system += &format!(" {} cores", entry.aiv_num);
    }
    if entry.load.busy {
        system += &format!(" {BUSY}");
    }
    let bs = match &entry.bs {
        Bs::Uniform(bs) => bs.to_string(),
        Bs::PerRank(_) => "list".to_owned(),
    };
    vec![system, entry.ep_world_size.to_string(), bs]
}

fn or_dash<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

fn rows(entry: &Entry) -> [Vec<String>; 2] {
    let three = |value: Option<f64>| or_dash(value, |v| format!("{v:.3}"));
    let row = |operator: &str, ms: Option<Quantiles>, rate: Option<f64>, round: Option<Quantiles>| {
        let mut row = name(entry);
        row.push(operator.to_owned());
        row.extend(
            [ms.map(|q| q.min), ms.map(|q| q.median), ms.map(|q| q.p90), ms.map(|q| q.p99)].map(three),
        );
        row.push(or_dash(rate, |v| format!("{v:.2}")));
        row.push(three(round.map(|q| q.median)));
        let share = |share: Option<f64>| or_dash(share, |share| format!("{:.0} %", share * 100.0));
        row.extend([entry.stolen_share, entry.load.pressure].map(share));
        row
    };
    let Entry { chained, gb_per_s, .. } = entry;
    [
        row("dispatch", entry.dispatch_ms, gb_per_s.dispatch, None),
        row("combine", entry.combine_ms, gb_per_s.combine, chained.round_ms),
    ]
}

fn spread(ratio: Option<Ratio>) -> String {
    or_dash(ratio, |Ratio { median, low, high }| format!("{median:.2} ({low:.2}-{high:.2})"))
}

fn ratios(entry: &Entry) -> Vec<Vec<String>> {
    let row = |than: &crate::entry::Than| {
        [name(entry), vec![than.system.clone(), spread(than.dispatch), spread(than.combine)]].concat()
    };
    entry.than.iter().map(row).collect()
}

fn sent(entry: &Entry) -> Option<Vec<String>> {
    let Sent { messages, bytes } = entry.sent?;
    Some([name(entry), vec![messages.to_string(), format!("{:.3}", bytes as f64 / 1e6)]].concat())
}

fn protocol(entry: &Entry) -> Option<Vec<String>> {
    let protocol = entry.protocol.as_ref()?;
    let one = |value: f64| format!("{value:.1}");
    let numbers = vec![
        one(protocol.ns_per_step),
        one(protocol.ns_per_effect),
        or_dash(protocol.ns_per_flag, one),
        spread(protocol.share.dispatch),
        spread(protocol.share.combine),
    ];
    Some([name(entry), numbers].concat())
}
