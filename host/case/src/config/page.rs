//! Parameters of the sources that name groups and ranks, or say nothing that could be chosen. They are checked and change
//! nothing, but for A2's algorithm.

use super::{Bs, Config, INACTIVE, short};
use crate::error::{Cure, Problem};
use toml::Value;
use veriep_core::shape::{RANKS_MAX, Rule, Seen};

impl Config {
    /// `comm_alg`; if it is empty on A2, what the two variables of the environment choose.
    pub fn comm_alg(&self) -> &str {
        if self.asks_environment() && self.intra() == (Some(1), Some(0)) {
            "hierarchy"
        } else {
            &self.comm_alg
        }
    }

    fn asks_environment(&self) -> bool {
        self.product == "a2" && self.comm_alg.is_empty()
    }

    const fn intra(&self) -> (Option<i64>, Option<i64>) {
        (self.hccl_intra_pcie_enable, self.hccl_intra_roce_enable)
    }

    /// What is legal, and not what the sources advise or not what it looks like.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.origin.notes();
        if self.intra() != (None, None) {
            let seen = "hccl_intra_pcie_enable and hccl_intra_roce_enable";
            notes.push(match (self.asks_environment(), self.comm_alg()) {
                (false, _) => {
                    format!("{seen} change nothing: they are read with product = \"a2\" and comm_alg = \"\"")
                }
                (true, "") => {
                    format!(
                        "{seen} choose comm_alg = \"fullmesh\": the V2 reference advises to name it instead"
                    )
                }
                (true, name) => {
                    format!("{seen} choose comm_alg = {name:?}: the V2 reference advises to name it instead")
                }
            });
        }
        let is_counted = !self.origin.missing().contains(&"moe_expert_num");
        if let Some(logical) = self.counted_logical_experts().filter(|_| is_counted) {
            let (all, copies) = (self.moe_expert_num, self.moe_expert_num.saturating_sub(logical));
            notes.push(format!(
                "{all} physical experts are counted: {logical} logical and {copies} redundant"
            ));
        }
        if self.comm_alg == "fullmesh_v2" && self.tp_world_size == 0 {
            let page = "in the V2 reference fullmesh_v2 takes effect with tp_world_size = 1";
            notes.push(format!("{page}: here 0 and 1 both mean that there is no TP domain"));
        }
        notes
    }

    /// The logical experts, if either key of redundancy says how many there are.
    fn counted_logical_experts(&self) -> Option<i64> {
        self.logical_experts.or_else(|| Some(self.moe_expert_num.saturating_sub(self.redundant_experts?)))
    }

    /// The rules that these parameters break; each may be left out.
    pub fn page_problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut broken = |parameter: &str, seen: &str, rule: String, reads: &[&str]| {
            let cures = vec![Cure { parameter: parameter.to_owned(), value: None }];
            let hint = Some(format!("leave out {parameter}"));
            found.push(Problem { cures, hint, ..Problem::new(parameter, seen, rule).reading(reads) });
        };
        let is_a2 = self.product == "a2";
        // No release reads the name of a TP group that there is not; frameworks give it the name of the EP group.
        let group_tp = self.group_tp.as_ref().filter(|_| self.tp_world_size == 2 && !is_a2);
        for (parameter, name) in [("group_ep", self.group_ep.as_ref()), ("group_tp", group_tp)] {
            let Some(name) = name else { continue };
            let seen = format!(" = {}", short(&format!("{name:?}")));
            if !(1..128).contains(&name.len()) {
                broken(parameter, &seen, format!("must have 1 to 127 bytes (bytes = {})", name.len()), &[]);
            } else if parameter == "group_tp" && self.group_ep.as_ref() == Some(name) {
                broken(
                    parameter,
                    &seen,
                    "must differ from group_ep".to_owned(),
                    &["group_ep", "tp_world_size"],
                );
            }
        }
        let (logical, redundant) = (self.logical_experts, self.redundant_experts);
        for (parameter, seen) in [("logical_experts", logical), ("redundant_experts", redundant)] {
            if let Some(seen) = seen.filter(|seen| !(0..=self.moe_expert_num).contains(seen)) {
                let rule = Rule::Range { min: 0, max: self.moe_expert_num };
                broken(
                    parameter,
                    &format!(" = {seen}"),
                    format!("{rule} (moe_expert_num = {})", self.moe_expert_num),
                    &["moe_expert_num"],
                );
            }
        }
        if let (Some(logical), Some(redundant)) = (logical, redundant)
            && logical.saturating_add(redundant) != self.moe_expert_num
        {
            let rule = "must be moe_expert_num - redundant_experts: moe_expert_num counts physical experts";
            let numbers =
                format!("(moe_expert_num = {}, redundant_experts = {redundant})", self.moe_expert_num);
            let reads = ["moe_expert_num", "redundant_experts"];
            broken("logical_experts", &format!(" = {logical}"), format!("{rule} {numbers}"), &reads);
        } else if let Some(counted) = self.counted_logical_experts() {
            let specials = [self.zero_expert_num, self.copy_expert_num, self.const_expert_num];
            let specials = specials.into_iter().fold(0, i64::saturating_add);
            // Numbers that are out of their ranges are told by themselves.
            let is_legal = |all: i64| (0..=self.moe_expert_num).contains(&all);
            if is_legal(counted) && is_legal(self.k) && counted.saturating_add(specials) < self.k {
                let parameter = if logical.is_some() { "logical_experts" } else { "redundant_experts" };
                let seen = format!(" = {}", logical.or(redundant).unwrap_or(counted));
                let rule = "must leave each token k different logical or special experts";
                let (k, logical) = (self.k, format!("logical experts = {counted}"));
                broken(
                    parameter,
                    &seen,
                    format!("{rule} (k = {k}, {logical}, special experts = {specials})"),
                    &["k", "logical experts", "special experts"],
                );
            }
        }
        if let Some(seen) = self.ids.as_ref().filter(|ids| *ids != INACTIVE) {
            broken(
                "ids",
                &format!(" = {}", short(&format!("{seen:?}"))),
                format!("must be {INACTIVE:?}"),
                &[],
            );
        }
        let peers = if self.tp_world_size == 2 && !is_a2 { 2 } else { 1 };
        let ids = [
            ("ep_rank_id", &self.ep_rank_id, "ep_world_size", self.ep_world_size),
            ("tp_rank_id", &self.tp_rank_id, "ranks of the TP domain", peers),
        ];
        for (parameter, ids, of, number) in ids {
            // A size that is wrong itself is as large as any.
            let ranks = if (1..=RANKS_MAX as i64).contains(&number) { number } else { RANKS_MAX as i64 };
            match ids {
                Some(Bs::Uniform(id)) if !(0..ranks).contains(id) => {
                    let rule = Rule::Range { min: 0, max: ranks - 1 };
                    broken(parameter, &format!(" = {id}"), format!("{rule} ({of} = {number})"), &[of]);
                }
                Some(Bs::PerRank(list)) => {
                    let mut sorted = list.clone();
                    sorted.sort_unstable();
                    if !sorted.into_iter().eq(0..ranks) {
                        let rule = format!("must have each of 0 to {} once ({of} = {number})", ranks - 1);
                        broken(parameter, &format!(" = {}", Seen::List(list.len())), rule, &[of]);
                    }
                }
                _ => {}
            }
        }
        if let Some(seen) = self.expert_shard_type.filter(|&kind| kind != 0) {
            let rule = "must be 0: ranks of shared experts come first";
            broken("expert_shard_type", &format!(" = {seen}"), rule.to_owned(), &[]);
        }
        let (pcie, roce) = self.intra();
        for (parameter, value) in [("hccl_intra_pcie_enable", pcie), ("hccl_intra_roce_enable", roce)] {
            if let Some(seen) = value.filter(|seen| !(0..=1).contains(seen)) {
                broken(parameter, &format!(" = {seen}"), "must be 0 or 1".to_owned(), &[]);
            }
        }
        let dequantised = "combine takes results in dtype and dequantises none";
        let grouped = "combine goes by the counts of dispatch";
        let first_version = [
            ("activation_scale", &self.activation_scale, dequantised),
            ("weight_scale", &self.weight_scale, dequantised),
            ("group_list", &self.group_list, grouped),
            ("group_list_type", &self.group_list_type, grouped),
            ("out_dtype", &self.out_dtype, "x_out has the dtype of x"),
        ];
        for (parameter, value, why) in first_version {
            let is_null = |value: &&Value| value.as_integer() != Some(0) && value.as_str() != Some("null");
            if let Some(seen) = value.as_ref().filter(is_null) {
                broken(
                    parameter,
                    &format!(" = {}", short(&seen.to_string())),
                    format!("must be 0 or \"null\": {why}"),
                    &[],
                );
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<String> {
        let config = Config::parse(&text.replace("; ", "\n")).unwrap();
        config.page_problems().iter().map(|problem| problem.message.clone()).collect()
    }

    #[test]
    fn what_the_page_allows_is_taken() {
        for text in [
            "groupEp = \"ep\"; groupTp = \"\"; epRankId = 15; tpRankId = 0; expertShardType = 0",
            "group_ep = \"ep\"; group_tp = \"tp\"; tp_world_size = 2; tp_rank_id = 1",
            "group_ep = \"mc2\"; group_tp = \"mc2\"; tp_world_size = 1",
            "product = \"a2\"; group_ep = \"mc2\"; group_tp = \"mc2\"",
            "logical_experts = 56; redundant_experts = 8",
            "logical_experts = 56; redundant_experts = 8; moe_expert_num = 64",
            "redundant_experts = 8",
            "redundant_experts = 60; zero_expert_num = 3; copy_expert_num = 1",
            "logical_experts = 8; redundant_experts = 56",
            "logical_experts = 4; k = 4",
            "ep_world_size = 3; ep_rank_id = [2, 0, 1]; tp_world_size = 2; tp_rank_id = [1, 0]",
            "activationScale = 0; weightScale = \"null\"; groupList = 0; groupListType = 0; outDtype = 0",
            "HCCL_INTRA_PCIE_ENABLE = 1; HCCL_INTRA_ROCE_ENABLE = 1",
        ] {
            assert_eq!(told(text), [""; 0], "{text}");
        }
        assert_eq!(told(&format!("group_ep = \"{}\"", "g".repeat(127))), [""; 0]);
    }

    #[test]
    fn what_the_page_refuses_is_told_by_name() {
        let long = format!("group_ep = \"{}\"", "g".repeat(128));
        assert!(told(&long)[0].ends_with("...: must have 1 to 127 bytes (bytes = 128)"), "{:?}", told(&long));
        for (text, message) in [
            ("group_ep = \"\"", "group_ep = \"\": must have 1 to 127 bytes (bytes = 0)"),
            ("tp_world_size = 2; group_tp = \"\"", "group_tp = \"\": must have 1 to 127 bytes (bytes = 0)"),
            (
                "group_ep = \"a\"; group_tp = \"a\"; tp_world_size = 2",
                "group_tp = \"a\": must differ from group_ep",
            ),
            (
                "logical_experts = 56; redundant_experts = 9; moe_expert_num = 64",
                "logical_experts = 56: must be moe_expert_num - redundant_experts: moe_expert_num counts physical experts (moe_expert_num = 64, redundant_experts = 9)",
            ),
            (
                "logical_experts = 7",
                "logical_experts = 7: must leave each token k different logical or special experts (k = 8, logical experts = 7, special experts = 0)",
            ),
            (
                "redundant_experts = 60; zero_expert_num = 3",
                "redundant_experts = 60: must leave each token k different logical or special experts (k = 8, logical experts = 4, special experts = 3)",
            ),
            ("redundant_experts = 65", "redundant_experts = 65: must be in [0, 64] (moe_expert_num = 64)"),
            ("ep_rank_id = 16", "ep_rank_id = 16: must be in [0, 15] (ep_world_size = 16)"),
            ("ep_rank_id = -1", "ep_rank_id = -1: must be in [0, 15] (ep_world_size = 16)"),
            (
                "ep_world_size = 2; ep_rank_id = [1, 1]",
                "ep_rank_id = a list of 2 entries: must have each of 0 to 1 once (ep_world_size = 2)",
            ),
            ("tp_rank_id = 1", "tp_rank_id = 1: must be 0 (ranks of the TP domain = 1)"),
            (
                "tp_world_size = 2; tp_rank_id = [0]",
                "tp_rank_id = a list of 1 entry: must have each of 0 to 1 once (ranks of the TP domain = 2)",
            ),
            ("expert_shard_type = 1", "expert_shard_type = 1: must be 0: ranks of shared experts come first"),
            ("hccl_intra_roce_enable = 2", "hccl_intra_roce_enable = 2: must be 0 or 1"),
            (
                "activation_scale = 0.5",
                "activation_scale = 0.5: must be 0 or \"null\": combine takes results in dtype and dequantises none",
            ),
            (
                "group_list = [1, 2]",
                "group_list = [1, 2]: must be 0 or \"null\": combine goes by the counts of dispatch",
            ),
            ("out_dtype = \"bf16\"", "out_dtype = \"bf16\": must be 0 or \"null\": x_out has the dtype of x"),
        ] {
            assert_eq!(told(text), [message], "{text}");
        }
    }

    #[test]
    fn the_environment_chooses_the_algorithm_of_a2_when_comm_alg_is_empty() {
        let chosen = |text: &str| {
            let config = Config::parse(&format!("k = 8; {text}").replace("; ", "\n")).unwrap();
            (config.comm_alg().to_owned(), config.notes().len())
        };
        let hierarchy = "product = \"a2\"; hccl_intra_pcie_enable = 1; hccl_intra_roce_enable = 0";
        for (text, name, notes) in [
            (hierarchy, "hierarchy", 1),
            ("product = \"a2\"; hccl_intra_pcie_enable = 1", "", 1),
            ("product = \"a2\"; hccl_intra_pcie_enable = 1; hccl_intra_roce_enable = 1", "", 1),
            ("product = \"a2\"; hccl_intra_pcie_enable = 0; hccl_intra_roce_enable = 0", "", 1),
            (&format!("{hierarchy}; comm_alg = \"fullmesh\""), "fullmesh", 1),
            ("hccl_intra_pcie_enable = 1; hccl_intra_roce_enable = 0", "", 1),
            ("product = \"a2\"", "", 0),
            ("comm_alg = \"fullmesh_v2\"", "fullmesh_v2", 1),
            ("comm_alg = \"fullmesh_v2\"; tp_world_size = 1", "fullmesh_v2", 0),
        ] {
            assert_eq!(chosen(text), (name.to_owned(), notes), "{text}");
        }
    }
}
