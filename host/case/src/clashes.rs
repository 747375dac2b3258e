//! Conflicts between configurations that share one group: parameters that all ranks and layers must agree on, and layouts that
//! cannot share one window. The argument is in docs/doubt/layers.md.

use crate::config::Config;
use serde::Serialize;
use veriep_core::layout::state::Partition;
use veriep_core::layout::tp::partition_start;
use veriep_core::shape::{Algorithm, Given, Protocol, Shape};
use veriep_core::units::RankId;

/// A parameter on which configurations disagree.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Clash {
    pub parameter: &'static str,
    /// One per configuration, in the order given.
    pub values: Vec<String>,
    pub message: String,
}

/// One configuration of a group. Reports contain only its file.
#[derive(Serialize)]
pub struct Layer {
    pub file: String,
    #[serde(skip)]
    pub config: Config,
    /// If it is valid.
    #[serde(skip)]
    pub shape: Option<Shape>,
    /// If it is switched on.
    #[serde(skip)]
    pub elastic_info: Option<Vec<i32>>,
}

/// Most batches in flight that the protocol allows at all.
const IN_FLIGHT_MAX: u32 = 2;

/// All clashes of layers of which `in_flight` batches are in flight, and with how many none of their layouts
/// is in the way of another; `None` when they cannot share a group at all, or one is invalid.
pub fn clashes(layers: &[&Layer], in_flight: u32) -> (Vec<Clash>, Option<u32>) {
    let mut found = parameters(layers);
    found.extend(elastic(layers));
    if !found.is_empty() {
        // Layouts of different groups have nothing to do with each other.
        return (found, None);
    }
    let shapes: Option<Vec<_>> = layers.iter().map(|layer| layer.shape.as_ref()).collect();
    let Some([first, ..]) = shapes.as_deref() else { return (found, None) };
    let mut in_flight_max = IN_FLIGHT_MAX;
    let rules: &[Rule] = match first.protocol() {
        Protocol::FullmeshV1 => &[COMBINE_AREA_IN_FLIGHT, TP_PARTITION],
        Protocol::FullmeshV2 => &[COMBINE_AREA],
        Protocol::Fullmesh => &[ROW, RECORD],
        Protocol::Hierarchy => &[ROW, RELAY_PAIRS],
        _ => &[],
    };
    for rule in rules {
        let Some(clash) = rule.clash(layers, shapes.as_deref().unwrap_or_default()) else { continue };
        if rule.in_flight {
            in_flight_max = 1;
        }
        let is_new = found.iter().all(|other| other.parameter != clash.parameter);
        if is_new && (!rule.in_flight || in_flight > 1) {
            found.push(clash);
        }
    }
    (found, Some(in_flight_max))
}

/// Parameters that must be equal. Values that mean the same agree: `""` and the layout it stands for, TP 0
/// and 1, one shared expert or none when no rank holds one. `global_bs` is not among them: 0, which is legal
/// for every `bs`, says the same as `bs * R`.
fn parameters(layers: &[&Layer]) -> Vec<Clash> {
    type Value = fn(&Config) -> String;
    let parameters: [(&'static str, Value, Value); 12] = [
        ("release", |c| c.release.clone(), |c| c.release().name().to_owned()),
        ("product", |c| c.product.clone(), |c| c.product.clone()),
        ("comm_alg", |c| format!("{:?}", c.comm_alg), |c| layout(c).to_owned()),
        ("ep_world_size", |c| c.ep_world_size.to_string(), |c| c.ep_world_size.to_string()),
        ("tp_world_size", |c| c.tp_world_size.to_string(), |c| c.tp_world_size.max(1).to_string()),
        ("moe_expert_num", |c| c.moe_expert_num.to_string(), |c| c.moe_expert_num.to_string()),
        ("shared_expert_num", |c| c.shared_experts().to_string(), |c| shared(c).to_string()),
        (
            "shared_expert_rank_num",
            |c| c.shared_expert_rank_num.to_string(),
            |c| c.shared_expert_rank_num.to_string(),
        ),
        ("hccl_buffsize_mb", |c| c.hccl_buffsize_mb.to_string(), |c| c.hccl_buffsize_mb.to_string()),
        ("aiv_num", |c| c.aiv_num.to_string(), |c| c.aiv_num.to_string()),
        ("group_ep", |c| format!("{:?}", name(&c.group_ep)), |c| name(&c.group_ep)),
        ("group_tp", |c| format!("{:?}", name(&c.group_tp)), |c| name(&c.group_tp)),
    ];
    let mut found: Vec<Clash> = Vec::new();
    for (parameter, as_given, meaning) in parameters {
        // What a layout is called follows from the product.
        if parameter == "comm_alg" && !found.is_empty() {
            continue;
        }
        let values: Vec<_> = layers.iter().map(|layer| as_given(&layer.config)).collect();
        let mut meanings: Vec<_> = layers.iter().map(|layer| meaning(&layer.config)).collect();
        // A layer that does not name its group may belong to any.
        meanings.retain(|meaning| !meaning.is_empty());
        if !all_equal(&meanings) {
            let seen = seen_in(layers, &values);
            let message = format!("{parameter} = {seen}: must be equal on one group");
            found.push(Clash { parameter, values, message });
        }
    }
    found
}

/// Who is left decides which ranks speak, and under which names: on all layers alike.
fn elastic(layers: &[&Layer]) -> Option<Clash> {
    let infos: Vec<_> = layers.iter().map(|layer| layer.elastic_info.as_ref()).collect();
    if all_equal(&infos) {
        return None;
    }
    let left = |info: &&Vec<i32>| format!("{} ranks left", info.get(1).copied().unwrap_or(0));
    let values: Vec<_> =
        infos.iter().map(|info| info.as_ref().map_or_else(|| "absent".to_owned(), left)).collect();
    let message = format!("elastic_info = {}: must be equal on one group", seen_in(layers, &values));
    Some(Clash { parameter: "elastic_info", values, message })
}

type Parameter = (&'static str, fn(&Shape) -> u64);

/// A quantity of a layout that must be equal.
struct Rule {
    /// The parameters it follows from, the first to change first.
    parameters: &'static [Parameter],
    name: &'static str,
    quantity: fn(&Shape) -> u64,
    /// Only with several batches in flight.
    in_flight: bool,
    why: &'static str,
}

const H: Parameter = ("h", |s| s.h().into());
const K: Parameter = ("k", |s| s.k().into());
const BS: Parameter = ("bs", |s| s.bs_max().into());
const QUANT_MODE: Parameter = ("quant_mode", |s| s.row_format().element.mode().cast_unsigned());

const COMBINE_AREA: Rule = Rule {
    parameters: &[H, K, BS],
    name: "combine area",
    quantity: Shape::combine_area,
    in_flight: false,
    why: "fullmesh_v2 looks for flags where another layer's results lie",
};
const COMBINE_AREA_IN_FLIGHT: Rule = Rule {
    in_flight: true,
    why: "with two batches in flight one layer's dispatch writes where another's results are still read",
    ..COMBINE_AREA
};
const TP_PARTITION: Rule = Rule {
    parameters: &[H, K, BS, QUANT_MODE],
    name: "TP partition",
    quantity: |shape| match shape.tp_world_size() {
        2 => partition_start(shape, RankId(shape.shared_expert_rank_num()), Partition::P1),
        _ => 0,
    },
    in_flight: false,
    why: "the second one begins where the first ends, so that partitions overlap",
};
const ROW: Rule = Rule {
    parameters: &[H],
    name: "row",
    quantity: Shape::row_bytes,
    in_flight: false,
    why: "a flag's place follows from it, and another layer's data lies there",
};
const RECORD: Rule =
    Rule { parameters: &[QUANT_MODE], name: "dispatched row", quantity: Shape::payload_bytes, ..ROW };
const RELAY_PAIRS: Rule = Rule {
    parameters: &[K],
    name: "list of pairs of a relay record",
    quantity: |shape| u64::from(shape.k().next_multiple_of(8)) * 8,
    ..ROW
};

impl Rule {
    fn clash(&self, layers: &[&Layer], shapes: &[&Shape]) -> Option<Clash> {
        let quantities: Vec<_> = shapes.iter().map(|shape| (self.quantity)(shape)).collect();
        if all_equal(&quantities) {
            return None;
        }
        let differs = |value: &fn(&Shape) -> u64| {
            !all_equal(&shapes.iter().map(|shape| value(shape)).collect::<Vec<_>>())
        };
        let (parameter, value) = self.parameters.iter().find(|(_, value)| differs(value))?;
        let values: Vec<_> = shapes.iter().map(|shape| value(shape).to_string()).collect();
        let bytes: Vec<_> = quantities.iter().map(u64::to_string).collect();
        let message = format!(
            "{parameter} = {}: the {} must have the same size on one group (bytes = {}): {}",
            seen_in(layers, &values),
            self.name,
            bytes.join(", "),
            self.why
        );
        Some(Clash { parameter, values, message })
    }
}

fn all_equal<T: PartialEq>(list: &[T]) -> bool {
    list.windows(2).all(|pair| pair[0] == pair[1])
}

fn seen_in(layers: &[&Layer], values: &[String]) -> String {
    let seen: Vec<_> =
        layers.iter().zip(values).map(|(layer, value)| format!("{value} in {}", layer.file)).collect();
    seen.join(", ")
}

fn layout(config: &Config) -> &str {
    match (config.product.as_str(), config.comm_alg()) {
        ("a3", "") => "fullmesh_v1",
        ("a2", "") => "fullmesh",
        ("a2", "hierarchy") if runs_as_full_mesh(config) => "fullmesh",
        (_, other) => other,
    }
}

/// Returns whether the operators of the release run this hierarchy as a full mesh.
fn runs_as_full_mesh(config: &Config) -> bool {
    let chosen = config.release().chosen(Algorithm::A2Hierarchy, &config.as_core(Given::empty()));
    chosen == Algorithm::A2Fullmesh
}

fn name(group: &Option<String>) -> String {
    group.clone().unwrap_or_default()
}

fn shared(config: &Config) -> i64 {
    match (config.shared_expert_rank_num, config.shared_experts()) {
        (0, 1) => 0,
        (_, shared) => shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use veriep_core::shape::Limits;

    #[test]
    fn groups_of_other_names_clash_and_a_layer_that_names_none_with_nobody() {
        let [a, b] = ["group_ep = 'a'", "group_ep = 'b'"];
        assert_eq!(clashing(1, a, b).0, ["group_ep"]);
        assert_eq!(clashing(1, a, "group_tp = 'b'").0, [""; 0]);
    }

    fn clashing(in_flight: u32, a: &str, b: &str) -> (Vec<&'static str>, Option<u32>) {
        let layers = [a, b].map(|text| {
            let config = Config::parse(text).unwrap();
            let shape = Shape::new(&config.as_core(Given::empty()), Limits::Product).ok();
            Layer { file: String::new(), config, shape, elastic_info: None }
        });
        let (clashes, in_flight_max) = clashes(&layers.each_ref(), in_flight);
        clashes.iter().for_each(|clash| println!("{}", clash.message));
        (clashes.iter().map(|clash| clash.parameter).collect(), in_flight_max)
    }

    #[test]
    fn values_that_mean_the_same_do_not_clash() {
        let fine = (Vec::new(), Some(2));
        assert_eq!(clashing(2, "comm_alg = 'fullmesh_v1'\ntp_world_size = 1", "shared_expert_num = 1"), fine);
        assert_eq!(clashing(2, "global_bs = 256", ""), fine);
        assert_eq!(clashing(2, "quant_mode = 2\ncomm_quant_mode = 2\ndtype = 'f16'", ""), fine);
    }

    #[test]
    fn values_that_must_be_equal_clash() {
        assert_eq!(clashing(1, "aiv_num = 4", "ep_world_size = 8").0, ["ep_world_size", "aiv_num"]);
        assert_eq!(clashing(1, "comm_alg = 'fullmesh_v2'", "").0, ["comm_alg"]);
        assert_eq!(clashing(1, "hccl_buffsize_mb = 300", "moe_expert_num = 32").0.len(), 2);
    }

    #[test]
    fn a_hierarchy_that_the_operators_run_as_a_full_mesh_clashes_with_none() {
        let [tree, mesh] = ["hierarchy", "fullmesh"]
            .map(|name| move |ranks| format!("product = 'a2'\ncomm_alg = '{name}'\nep_world_size = {ranks}"));
        // Neither layout is ours, so that no layouts are compared.
        for ranks in ["1\nmoe_expert_num = 16", "8", "8\nrelease = '9.0.0'"] {
            assert_eq!(clashing(2, &tree(ranks), &mesh(ranks)), (Vec::new(), None), "{ranks}");
        }
        for ranks in ["8\nrelease = '8.5.0'", "16", "16\nhccl_buffsize_mb = 400"] {
            assert_eq!(clashing(2, &tree(ranks), &mesh(ranks)), (vec!["comm_alg"], None), "{ranks}");
        }
    }

    #[test]
    fn how_the_size_of_a_batch_is_spelled_plays_no_part() {
        for (a, b) in [("bs = 8", "bs = 32"), ("bs = 8\nglobal_bs = 128", "bs = 32\nglobal_bs = 512")] {
            for (a, b) in [(a, b), (b, a)] {
                assert_eq!(clashing(1, a, b), (Vec::new(), Some(1)), "{a} {b}");
                assert_eq!(clashing(2, a, b), (vec!["bs"], Some(1)), "{a} {b}");
            }
        }
    }

    #[test]
    fn other_areas_allow_one_batch_in_flight() {
        for (a, parameter) in [("h = 2048", "h"), ("k = 4", "k"), ("bs = 4", "bs")] {
            assert_eq!(clashing(1, a, ""), (vec![], Some(1)), "{a}");
            assert_eq!(clashing(2, a, ""), (vec![parameter], Some(1)), "{a}");
        }
        // As large, otherwise composed.
        assert_eq!(clashing(2, "bs = 8\nk = 16", ""), (vec![], Some(2)));
    }

    #[test]
    fn flags_in_data_need_areas_of_one_size_always() {
        let v2 = "comm_alg = 'fullmesh_v2'\n";
        assert_eq!(clashing(1, &format!("{v2}h = 2048"), v2).0, ["h"]);
        assert_eq!(clashing(1, &format!("{v2}quant_mode = 2"), v2).0, [""; 0]);
    }

    #[test]
    fn rows_that_place_flags_must_be_equal_on_a2() {
        let a2 = "product = 'a2'\nhccl_buffsize_mb = 400\n";
        assert_eq!(clashing(1, &format!("{a2}h = 2048"), a2).0, ["h"]);
        assert_eq!(clashing(1, &format!("{a2}quant_mode = 2"), a2).0, ["quant_mode"]);
        assert_eq!(clashing(2, &format!("{a2}bs = 8\nk = 4"), a2), (vec![], Some(2)));
        let near = format!("{a2}comm_alg = 'hierarchy'\n");
        assert_eq!(clashing(1, &format!("{near}h = 2048"), &near).0, ["h"]);
        assert_eq!(clashing(1, &format!("{near}k = 9"), &near).0, ["k"]);
        assert_eq!(clashing(2, &format!("{near}k = 4\nbs = 8"), &near), (vec![], Some(2)));
    }

    #[test]
    fn the_second_partition_of_a_tp_pair_begins_in_one_place() {
        let tp = "tp_world_size = 2\nmoe_expert_num = 16\n";
        assert_eq!(clashing(1, &format!("{tp}bs = 8"), tp).0, ["bs"]);
        assert_eq!(clashing(2, tp, tp), (vec![], Some(2)));
    }
}
