//! Named configurations.

use crate::config::{Bs, Config};
use crate::generate::Routing;

/// The names, in the order of the documents.
pub const NAMES: [&str; 6] = ["deepseek-v3-decode", "a3-288", "a2-64", "a2-hier-16", "a2-hier-64", "tiny"];

/// The configuration and routing after a name; `None` for an unknown one.
pub fn preset(name: &str) -> Option<(Config, Routing)> {
    let decode = Config { moe_expert_num: 256, k: 8, h: 7168, bs: Bs::Uniform(16), ..Config::default() };
    let hierarchy = |ranks| Config {
        product: "a2".to_owned(),
        comm_alg: "hierarchy".to_owned(),
        ep_world_size: ranks,
        ..decode.clone()
    };
    Some(match name {
        "deepseek-v3-decode" => (Config { ep_world_size: 16, ..decode }, Routing::Uniform),
        "a3-288" => {
            let config = Config {
                ep_world_size: 288,
                shared_expert_num: Some(1),
                shared_expert_rank_num: 32,
                bs: Bs::Uniform(48),
                hccl_buffsize_mb: 512,
                ..decode
            };
            (config, Routing::Uniform)
        }
        "a2-64" => (Config { product: "a2".to_owned(), ep_world_size: 64, ..decode }, Routing::Uniform),
        "a2-hier-16" => (hierarchy(16), Routing::NodeLimited),
        "a2-hier-64" => (hierarchy(64), Routing::NodeLimited),
        "tiny" => {
            let config = Config {
                ep_world_size: 2,
                moe_expert_num: 4,
                k: 2,
                h: 1024,
                bs: Bs::Uniform(4),
                ..Config::default()
            };
            (config, Routing::Uniform)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use veriep_core::shape::{Given, Limits, Shape};

    #[test]
    fn every_preset_is_valid() {
        for name in NAMES {
            let (config, _) = preset(name).expect(name);
            let shape = Shape::new(&config.as_core(Given::empty()), Limits::Product);
            assert!(shape.is_ok(), "{name}: {:?}", shape.err());
        }
        assert!(preset("none").is_none());
    }
}
