//! What several configurations on one group must agree on (seed 003: equal on all ranks and all layers).

use crate::config::{Bs, Config};
use serde::Serialize;

/// A parameter on which configurations disagree.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Clash {
    pub(super) parameter: &'static str,
    /// One per configuration, in the order given.
    pub(super) values: Vec<String>,
    pub(super) message: String,
}

/// All clashes. Values that mean the same agree: `""` and the layout it stands for, TP 0 and 1, one
/// shared expert or none when no rank holds one, `global_bs` 0 and `BS * R`.
pub(super) fn clashes(configs: &[(String, Config)]) -> Vec<Clash> {
    type Value = fn(&Config) -> String;
    let parameters: [(&'static str, Value, Value); 10] = [
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
        ("global_bs", |c| c.global_bs.to_string(), |c| global_bs(c).to_string()),
        ("hccl_buffsize_mb", |c| c.hccl_buffsize_mb.to_string(), |c| c.hccl_buffsize_mb.to_string()),
        ("aiv_num", |c| c.aiv_num.to_string(), |c| c.aiv_num.to_string()),
    ];
    let mut found = Vec::new();
    for (parameter, as_given, meaning) in parameters {
        let values: Vec<_> = configs.iter().map(|(_, config)| as_given(config)).collect();
        let meanings: Vec<_> = configs.iter().map(|(_, config)| meaning(config)).collect();
        let agree = |list: &[String]| list.windows(2).all(|pair| pair[0] == pair[1]);
        if agree(&values) || agree(&meanings) {
            continue;
        }
        let seen: Vec<_> =
            configs.iter().zip(&values).map(|((name, _), value)| format!("{value} in {name}")).collect();
        let message = format!("{parameter} = {}: must be equal on one group", seen.join(", "));
        found.push(Clash { parameter, values, message });
    }
    found
}

fn layout(config: &Config) -> &str {
    match (config.product.as_str(), config.comm_alg.as_str()) {
        ("a3", "") => "fullmesh_v1",
        ("a2", "") => "fullmesh",
        (_, other) => other,
    }
}

fn shared(config: &Config) -> i64 {
    match (config.shared_expert_rank_num, config.shared_experts()) {
        (0, 1) => 0,
        (_, shared) => shared,
    }
}

fn global_bs(config: &Config) -> i64 {
    match (&config.bs, config.global_bs) {
        (Bs::Uniform(bs), 0) => bs.saturating_mul(config.ep_world_size),
        (_, global_bs) => global_bs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clashing(a: &str, b: &str) -> Vec<&'static str> {
        let parse = |text| (String::new(), Config::parse(text).unwrap());
        clashes(&[parse(a), parse(b)]).iter().map(|clash| clash.parameter).collect()
    }

    #[test]
    fn values_that_mean_the_same_do_not_clash() {
        assert!(clashing("comm_alg = 'fullmesh_v1'\ntp_world_size = 1", "shared_expert_num = 1").is_empty());
        assert!(clashing("global_bs = 256", "").is_empty());
        assert!(clashing("bs = 8", "bs = 32\nh = 1024\nk = 4\nquant_mode = 2").is_empty());
    }

    #[test]
    fn values_that_must_be_equal_clash() {
        assert_eq!(clashing("aiv_num = 4", "ep_world_size = 8"), ["ep_world_size", "aiv_num"]);
        assert_eq!(clashing("bs = 8\nglobal_bs = 128", ""), ["global_bs"]);
        assert_eq!(clashing("comm_alg = 'fullmesh_v2'", ""), ["comm_alg"]);
    }
}
