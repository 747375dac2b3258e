//! The keys of a configuration: ours, and what the sources call the same parameter.

/// Each key with the other spellings that are taken.
const KEYS: [(&str, &[&str]); 37] = [
    ("release", &[]),
    ("product", &[]),
    ("comm_alg", &["commAlg"]),
    ("op", &[]),
    ("dtype", &[]),
    ("ep_world_size", &["epWorldSize"]),
    ("tp_world_size", &["tpWorldSize"]),
    ("moe_expert_num", &["moeExpertNum"]),
    ("shared_expert_num", &["sharedExpertNum"]),
    ("shared_expert_rank_num", &["sharedExpertRankNum"]),
    ("zero_expert_num", &["zeroExpertNum"]),
    ("copy_expert_num", &["copyExpertNum"]),
    ("const_expert_num", &["constExpertNum"]),
    ("k", &["K"]),
    ("h", &["H"]),
    ("bs", &["BS", "Bs"]),
    ("global_bs", &["globalBs", "globalBS"]),
    ("quant_mode", &["quantMode"]),
    ("comm_quant_mode", &["commQuantMode"]),
    ("expert_token_nums_type", &["expertTokenNumsType"]),
    ("hccl_buffsize_mb", &["HCCL_BUFFSIZE"]),
    ("aiv_num", &["aivNum"]),
    ("norm_eps", &["normEps"]),
    ("group_ep", &["groupEp"]),
    ("group_tp", &["groupTp"]),
    ("ep_rank_id", &["epRankId"]),
    ("tp_rank_id", &["tpRankId"]),
    ("expert_shard_type", &["expertShardType"]),
    ("hccl_intra_pcie_enable", &["HCCL_INTRA_PCIE_ENABLE"]),
    ("hccl_intra_roce_enable", &["HCCL_INTRA_ROCE_ENABLE"]),
    ("activation_scale", &["activationScale"]),
    ("weight_scale", &["weightScale"]),
    ("group_list", &["groupList"]),
    ("group_list_type", &["groupListType", "groupList_type"]),
    ("out_dtype", &["outDtype"]),
    ("logical_experts", &["logicalExperts", "num_logical_experts"]),
    ("redundant_experts", &["redundantExperts", "num_redundant_experts"]),
];

/// How much a key must be like a word for that to be what was meant: 1 is the same.
const ALIKE: f64 = 0.75;

/// The key that a word is.
///
/// # Errors
/// It is none: the one that may have been meant, else all of them.
pub(super) fn key(word: &str) -> Result<&'static str, String> {
    if let Some((key, _)) = KEYS.iter().find(|(key, others)| *key == word || others.contains(&word)) {
        return Ok(key);
    }
    Err(unknown(word, &KEYS.map(|(key, _)| key)))
}

/// That a word is none of these keys, and the one that may have been meant, else all of them.
pub(crate) fn unknown(word: &str, keys: &[&str]) -> String {
    let plain = |word: &str| word.replace('_', "").to_lowercase();
    let alike = |key: &str| strsim::jaro_winkler(&plain(key), &plain(word));
    let shown = super::short(word);
    match keys.iter().max_by(|a, b| alike(a).total_cmp(&alike(b))) {
        Some(key) if alike(key) >= ALIKE => format!("unknown key `{shown}`: did you mean `{key}`?"),
        _ => format!("unknown key `{shown}`: must be one of {}", keys.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn every_field_of_a_configuration_has_its_key() {
        // An optional one is left out of the text unless it is set.
        let optional = "group_ep = 'a'\ngroup_tp = 'b'\nep_rank_id = 0\ntp_rank_id = 0\nexpert_shard_type = 0
            hccl_intra_pcie_enable = 0\nhccl_intra_roce_enable = 0\nactivation_scale = 0\nweight_scale = 0
            group_list = 0\ngroup_list_type = 0\nout_dtype = 0\nshared_expert_num = 1
            logical_experts = 60\nredundant_experts = 4";
        let text = Config::parse(optional).unwrap().to_toml().unwrap();
        let fields: Vec<_> = text.lines().filter_map(|line| line.split_once(" = ")).collect();
        assert_eq!(fields.iter().map(|(key, _)| *key).collect::<Vec<_>>(), KEYS.map(|(key, _)| key));
        for ((_, others), (_, value)) in KEYS.iter().zip(fields) {
            for other in *others {
                assert!(Config::parse(&format!("{other} = {value}")).is_ok(), "{other}");
            }
        }
    }

    #[test]
    fn a_word_that_is_no_key_is_told_with_the_one_that_was_meant() {
        for (word, meant) in [
            ("hccl_buffsize", "hccl_buffsize_mb"),
            ("HcclBuffSize", "hccl_buffsize_mb"),
            ("world_size", "tp_world_size"),
            ("moe_experts", "moe_expert_num"),
            ("epworldsize", "ep_world_size"),
            ("batch_size", ""),
        ] {
            let told = key(word).unwrap_err();
            match meant {
                "" => assert!(told.contains("one of release, "), "{told}"),
                _ => assert_eq!(told, format!("unknown key `{word}`: did you mean `{meant}`?")),
            }
        }
    }
}
