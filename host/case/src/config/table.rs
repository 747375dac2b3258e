//! The table that declares the keys of a configuration. Each has a row: its kind, name, type, default, and the other spellings
//! that are taken.

use super::{Bs, Origin};
use serde::{Deserialize, Serialize};
use veriep_core::shape::{BatchSizes, Config as CoreConfig, Release};

/// The place of a row in the core's configuration, if that has a number of this name.
macro_rules! place {
    (other, $core:ident, $key:ident) => {
        None
    };
    ($number:ident, $core:ident, $key:ident) => {
        Some(&mut $core.$key)
    };
}

/// Copies a number to the core's configuration.
macro_rules! copy {
    (number, $core:ident, $config:ident, $key:ident) => {
        $core.$key = $config.$key;
    };
    ($other:ident, $core:ident, $config:ident, $key:ident) => {};
}

/// Makes all that follows from the rows. Kinds are `number`, which the core has under the same name; `derived`, a number of the
/// core that does not are here as it is there; and `other`.
macro_rules! table {
    (
        keys { $($(#[$meta:meta])* $kind:ident $key:ident: $type:ty = $default:expr, [$($spelling:literal),*];)* }
        besides { $($(#[$besides_meta:meta])* $besides_kind:ident $besides:ident: $besides_type:ty = $besides_default:expr;)* }
    ) => {
        /// The keys of `config.toml`, as given. Meanings are at [`veriep_core::shape::Config`].
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Config {
            $($(#[$meta])* pub $key: $type,)*
            $($(#[$besides_meta])* #[serde(skip)] pub $besides: $besides_type,)*
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($key: $default,)* $($besides: $besides_default,)* }
            }
        }

        /// Each key with the other spellings that are taken.
        pub(super) const KEYS: [(&str, &[&str]); [$(stringify!($key)),*].len()] =
            [$((stringify!($key), &[$($spelling),*])),*];

        impl Config {
            /// Copies all numbers that the core has under the same names.
            pub(super) fn copy_numbers(&self, core: &mut CoreConfig<'_>) {
                $(copy!($kind, core, self, $key);)*
                $(copy!($besides_kind, core, self, $besides);)*
            }
        }

        /// The number of the core's configuration that has this name; none for `bs`, which may be a list.
        pub fn number_of<'c>(core: &'c mut CoreConfig<'_>, name: &str) -> Option<&'c mut i64> {
            match name {
                $(stringify!($key) => place!($kind, core, $key),)*
                $(stringify!($besides) => place!($besides_kind, core, $besides),)*
                _ => None,
            }
        }
    };
}

fn core() -> CoreConfig<'static> {
    CoreConfig::default()
}

fn default_bs() -> Bs {
    match core().bs {
        BatchSizes::Uniform(bs) | BatchSizes::Own { bs, .. } => Bs::Uniform(bs),
        BatchSizes::PerRank(list) => Bs::PerRank(list.to_vec()),
    }
}

table! {
    keys {
        /// The operators whose rules and sizes apply, by the name of a [`Release`].
        other release: String = Release::NEWEST.name().to_owned(), [];
        other product: String = "a3".to_owned(), [];
        other comm_alg: String = String::new(), ["commAlg"];
        other op: String = "combine".to_owned(), [];
        other dtype: String = "bf16".to_owned(), [];
        number ep_world_size: i64 = core().ep_world_size, ["epWorldSize"];
        number tp_world_size: i64 = core().tp_world_size, ["tpWorldSize"];
        number moe_expert_num: i64 = core().moe_expert_num, ["moeExpertNum"];
        /// Absent = 1 when there are shared-expert ranks, else 0.
        #[serde(skip_serializing_if = "Option::is_none")]
        derived shared_expert_num: Option<i64> = None, ["sharedExpertNum"];
        number shared_expert_rank_num: i64 = core().shared_expert_rank_num, ["sharedExpertRankNum"];
        number zero_expert_num: i64 = core().zero_expert_num, ["zeroExpertNum"];
        number copy_expert_num: i64 = core().copy_expert_num, ["copyExpertNum"];
        number const_expert_num: i64 = core().const_expert_num, ["constExpertNum"];
        number k: i64 = core().k, ["K", "topk", "topK", "top_k"];
        number h: i64 = core().h, ["H", "hidden_size"];
        other bs: Bs = default_bs(), ["BS", "Bs"];
        number global_bs: i64 = core().global_bs, ["globalBs", "globalBS"];
        number quant_mode: i64 = core().quant_mode, ["quantMode"];
        number comm_quant_mode: i64 = core().comm_quant_mode, ["commQuantMode"];
        number expert_token_nums_type: i64 = core().expert_token_nums_type, ["expertTokenNumsType"];
        number hccl_buffsize_mb: i64 = core().hccl_buffsize_mb, ["HCCL_BUFFSIZE"];
        number aiv_num: i64 = core().aiv_num, ["aivNum"];
        other norm_eps: f64 = 1e-6, ["normEps"];
        // Checked where `config/page.rs` says, and no part of the core's configuration.
        #[serde(skip_serializing_if = "Option::is_none")]
        other group_ep: Option<String> = None, ["groupEp"];
        #[serde(skip_serializing_if = "Option::is_none")]
        other group_tp: Option<String> = None, ["groupTp"];
        #[serde(skip_serializing_if = "Option::is_none")]
        other ep_rank_id: Option<Bs> = None, ["epRankId"];
        #[serde(skip_serializing_if = "Option::is_none")]
        other tp_rank_id: Option<Bs> = None, ["tpRankId"];
        #[serde(skip_serializing_if = "Option::is_none")]
        other expert_shard_type: Option<i64> = None, ["expertShardType"];
        #[serde(skip_serializing_if = "Option::is_none")]
        other hccl_intra_pcie_enable: Option<i64> = None, ["HCCL_INTRA_PCIE_ENABLE"];
        #[serde(skip_serializing_if = "Option::is_none")]
        other hccl_intra_roce_enable: Option<i64> = None, ["HCCL_INTRA_ROCE_ENABLE"];
        #[serde(skip_serializing_if = "Option::is_none")]
        other activation_scale: Option<toml::Value> = None, ["activationScale"];
        #[serde(skip_serializing_if = "Option::is_none")]
        other weight_scale: Option<toml::Value> = None, ["weightScale"];
        #[serde(skip_serializing_if = "Option::is_none")]
        other group_list: Option<toml::Value> = None, ["groupList"];
        #[serde(skip_serializing_if = "Option::is_none")]
        other group_list_type: Option<toml::Value> = None, ["groupListType", "groupList_type"];
        #[serde(skip_serializing_if = "Option::is_none")]
        other out_dtype: Option<toml::Value> = None, ["outDtype"];
        /// Of `moe_expert_num`, which counts all physical experts, those that are no copies of another.
        #[serde(skip_serializing_if = "Option::is_none")]
        other logical_experts: Option<i64> = None, ["logicalExperts", "num_logical_experts"];
        /// Of `moe_expert_num`, the copies.
        #[serde(skip_serializing_if = "Option::is_none")]
        other redundant_experts: Option<i64> = None, ["redundantExperts", "num_redundant_experts"];
        /// What ids below 0 mean: [`INACTIVE`](super::INACTIVE), or absent if there must be none.
        #[serde(skip_serializing_if = "Option::is_none")]
        other ids: Option<String> = None, [];
    }
    besides {
        /// Not a key of the file: always 8, but for models.
        number server_ranks: i64 = core().server_ranks;
        /// Not a key of the file: an option of the subcommands.
        number port_offset: i64 = core().port_offset;
        /// Not a key of the file: how the file is written.
        other origin: Origin = Origin::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use veriep_core::shape::Given;

    #[test]
    fn every_number_reaches_the_core_under_its_name() {
        let mut numbers = 0;
        for (seen, (key, _)) in (1234..).zip(KEYS) {
            if number_of(&mut core(), key).is_none() {
                continue;
            }
            let mut config = Config::default();
            config.set(&format!("{key}={seen}")).unwrap();
            let mut core = config.as_core(Given::empty());
            assert_eq!(number_of(&mut core, key).copied(), Some(seen), "{key}");
            numbers += 1;
        }
        assert_eq!(numbers, 16);
    }
}
