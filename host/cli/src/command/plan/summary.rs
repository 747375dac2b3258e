//! The plan of all ranks for people.

use super::{Head, OfAll, experts, ports};
use crate::report::{columns, columns_of, list_of, pairs};
use veriep_plan::plans::summary::*;

pub(super) fn table(head: &Head, of: &OfAll, summary: &Summary) -> String {
    let about = pairs(&[
        ("source", head.source.clone()),
        ("group", format!("{} ranks x {} cores", of.ranks, of.cores)),
        ("experts", experts(head)),
        ("receive", summary.receive.to_owned()),
        ("order", summary.order.clone()),
        ("shared experts", summary.shared.clone()),
        ("port offset", summary.port_offset.to_string()),
    ]);
    let mut parts = vec![about];
    if let Some(CoreOutstanding { rank, core, before_quiet, after_quiet, most }) = &summary.outstanding {
        parts.push(format!(
            "outstanding: at most {most} puts and publishes of a core (rank {rank} core {core}): {before_quiet} before dispatch \
             is quiet, {after_quiet} after it"
        ));
    }
    let both = [
        ("received in dispatch", Some(&summary.dispatch)),
        ("received in combine", summary.combine.as_ref()),
    ];
    for (title, receivers) in both {
        let Some(receivers) = receivers else { continue };
        let some: Vec<_> = receivers.iter().filter(|receiver| receiver.rows != 0).cloned().collect();
        let columns =
            columns_of![Receiver; "rank" => rank, "from ranks" => sources, "rows" => rows, "bytes" => bytes];
        parts.push(list_of(title, &columns, &some));
    }
    parts.push(incast_table(&summary.incast));
    if !summary.shared_experts.is_empty() {
        let columns = columns_of![SharedExperts;
            "split" => split,
            "order" => order,
            "ranks that send to one" => sources_max,
            "at the same step" => at_once_max,
        ];
        parts.push(list_of("shared-expert ranks", &columns, &summary.shared_experts));
    }
    parts.extend(summary.ports.as_ref().map(|ports| ports::table(ports, summary.port_offset)));
    parts.join("\n\n")
}

fn incast_table(all: &[OfOrder]) -> String {
    let row = |of: &OfOrder, step: String, Numbers { max, mean, receivers }: &Numbers| {
        let numbers = [max.to_string(), format!("{mean:.2}"), format!("{receivers:.1}")];
        [of.operator.to_owned(), of.order.clone(), step].into_iter().chain(numbers).collect::<Vec<_>>()
    };
    let rows = all.iter().flat_map(|of| {
        let first = of.per_step.iter().take(3).enumerate();
        let first = first.map(|(i, numbers)| row(of, i.to_string(), numbers));
        first.chain([row(of, format!("all {}", of.steps), &of.all)])
    });
    let head = ["operator", "order", "step", "max", "mean", "receivers"];
    let rows: Vec<_> = rows.collect();
    format!("incast: ranks that send to one receiver at the same step\n{}", columns(&head, &rows))
}
