//! The search for the key that a word stands for, or for the reason why it is none. The keys are declared in `config/table.rs`.

use super::table::KEYS;

/// Words of the operators and of the functions that call them which no key stands for, and why.
const NOT_KEYS: [(&[&str], &str); 9] = [
    (
        &[
            "x",
            "expert_ids",
            "scales",
            "x_active_mask",
            "expert_scales",
            "elastic_info",
            "shared_expert_x",
            "residual_x",
            "gamma",
            "const_expert_alpha_1",
            "const_expert_alpha_2",
            "const_expert_v",
            "expert_map",
            "replicas",
        ],
        "a tensor: belongs into inputs.safetensors",
    ),
    (
        &[
            "expand_x",
            "assist_info_for_combine",
            "expand_idx",
            "ep_send_counts",
            "ep_recv_counts",
            "tp_send_counts",
            "tp_recv_counts",
            "expand_scales",
            "dynamic_scales",
            "expert_token_nums",
        ],
        "a tensor that dispatch returns: belongs into no configuration",
    ),
    (&["performance_info", "ori_x"], "a tensor that nothing reads here: must be left out"),
    (&["y_dtype"], "an argument of torch_npu that nothing reads here: must be left out"),
    (
        &["localMoeExpertNum", "localExpertNum", "local_moe_expert_num", "local_expert_num"],
        "derived from moe_expert_num / (ep_world_size - shared_expert_rank_num): must be left out",
    ),
    (&["maxBs", "max_bs"], "derived: the largest bs, or global_bs / ep_world_size: must be left out"),
    (&["world_size", "worldSize"], "must be ep_world_size or tp_world_size"),
    (&["rank_id", "rankId"], "must be ep_rank_id or tp_rank_id"),
    (&["group"], "must be group_ep or group_tp"),
];

/// Letters of a word that may be wrong in one place, and in two, for a key to be what was meant.
const WRONG_ONCE: usize = 4;
const WRONG_TWICE: usize = 7;
/// Letters of the longest word that is compared with keys: none is longer.
const WORD_LEN_MAX: usize = 40;

/// Why a word is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotKey {
    /// The key that it surely means.
    Misspelt(&'static str),
    /// It means something else, which these words say.
    Other(&'static str),
    /// It means nothing.
    Foreign,
}

impl NotKey {
    /// What to say of `word`; the list of all keys is as long as a page.
    pub(super) fn what(self, word: &str, lists_keys: bool) -> String {
        let shown = super::short(word);
        match self {
            Self::Misspelt(key) => misspelt(&shown, key),
            Self::Other(why) => format!("unknown key `{shown}`: {why}"),
            Self::Foreign if lists_keys => foreign(&shown, &KEYS.map(|(key, _)| key)),
            Self::Foreign => format!("unknown key `{shown}`"),
        }
    }
}

/// Returns the key that a word is, else why it is none.
pub(super) fn key(word: &str) -> Result<&'static str, NotKey> {
    if let Some((key, _)) = KEYS.iter().find(|(key, others)| *key == word || others.contains(&word)) {
        return Ok(key);
    }
    let is_word = |other: &&str| plain(other) == plain(word);
    if let Some((_, why)) = NOT_KEYS.iter().find(|(words, _)| words.iter().any(&is_word)) {
        return Err(NotKey::Other(why));
    }
    Err(meant(word, &KEYS.map(|(key, _)| key)).map_or(NotKey::Foreign, NotKey::Misspelt))
}

/// Says that a word is none of these keys, and which one was surely meant, else all of them.
pub fn unknown(word: &str, keys: &[&str]) -> String {
    let shown = super::short(word);
    meant(word, keys).map_or_else(|| foreign(&shown, keys), |key| misspelt(&shown, key))
}

fn misspelt(shown: &str, key: &str) -> String {
    format!("unknown key `{shown}`: did you mean `{key}`?")
}

fn foreign(shown: &str, keys: &[&str]) -> String {
    format!("unknown key `{shown}`: must be one of {}", keys.join(", "))
}

/// A word without what spellings differ in.
fn plain(word: &str) -> String {
    word.replace('_', "").to_lowercase()
}

/// Returns the one key that a word begins, or that a slip of the hand turns into it; none if two are as near.
fn meant<'k>(word: &str, keys: &[&'k str]) -> Option<&'k str> {
    let seen = plain(word);
    let letters = seen.chars().count();
    if letters > WORD_LEN_MAX {
        return None;
    }
    let slips = match letters {
        WRONG_TWICE.. => 2,
        WRONG_ONCE.. => 1,
        _ => 0,
    };
    let distance = |key: &str| match strsim::osa_distance(&plain(key), &seen) {
        _ if is_repeated(key, &seen) => Some(0),
        distance => (distance <= slips).then_some(distance),
    };
    let near: Vec<_> = keys.iter().filter_map(|key| Some((distance(key)?, *key))).collect();
    let least = near.iter().map(|(distance, _)| *distance).min();
    let nearest = near.iter().filter(|(distance, _)| Some(*distance) == least).map(|(_, key)| *key);
    let begun = keys.iter().copied().filter(|key| begins(word, key));
    only(nearest).or_else(|| only(begun))
}

/// Whether a word is the letter of a key, several times.
fn is_repeated(key: &str, word: &str) -> bool {
    key.len() == 1 && !word.is_empty() && word.chars().all(|letter| key.starts_with(letter))
}

/// Whether at least two parts of a word are those with which a key begins, in the singular or plural.
fn begins(word: &str, key: &str) -> bool {
    let part = |part: &str| part.trim_end_matches('s').to_lowercase();
    let parts: Vec<_> = word.split('_').map(part).collect();
    let of_key: Vec<_> = key.split('_').map(part).collect();
    parts.len() > 1 && of_key.starts_with(&parts)
}

fn only<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next();
    if all.next().is_some() { None } else { first }
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
            logical_experts = 60\nredundant_experts = 4\nids = '-1-inactive'";
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
            ("moe_experts", "moe_expert_num"),
            ("epworldsize", "ep_world_size"),
            ("ep_wrold_size", "ep_world_size"),
            ("quant_mod", "quant_mode"),
            ("ep_rank", "ep_rank_id"),
            ("kk", "k"),
        ] {
            assert_eq!(key(word), Err(NotKey::Misspelt(meant)), "{word}");
            let told = NotKey::Misspelt(meant).what(word, true);
            assert_eq!(told, format!("unknown key `{word}`: did you mean `{meant}`?"));
        }
    }

    #[test]
    fn a_word_that_may_mean_two_keys_or_another_thing_gets_no_hint() {
        for word in [
            "batch_size",
            "tokens",
            "num_tokens",
            "num_experts",
            "weights",
            "ep",
            "tp",
            "dp_rank_id",
            "dp_world_size",
            "size",
            "token",
            "",
        ] {
            assert_eq!(key(word), Err(NotKey::Foreign), "{word}");
        }
        let told = NotKey::Foreign.what("tokens", true);
        assert!(told.starts_with("unknown key `tokens`: must be one of release, "), "{told}");
        assert_eq!(NotKey::Foreign.what("tokens", false), "unknown key `tokens`");
    }

    #[test]
    fn words_of_the_operators_are_taken_or_explained() {
        for (word, meant) in [("topk", "k"), ("topK", "k"), ("top_k", "k"), ("hidden_size", "h")] {
            assert_eq!(key(word), Ok(meant));
        }
        for (word, why) in [
            ("localMoeExpertNum", "moe_expert_num / (ep_world_size - shared_expert_rank_num)"),
            ("local_expert_num", "moe_expert_num / (ep_world_size - shared_expert_rank_num)"),
            ("maxBs", "global_bs / ep_world_size"),
            ("world_size", "ep_world_size or tp_world_size"),
            ("x", "a tensor: belongs into inputs.safetensors"),
            ("expertIds", "a tensor: belongs into inputs.safetensors"),
            ("x_active_mask", "a tensor: belongs into inputs.safetensors"),
            ("expand_x", "a tensor that dispatch returns"),
            ("performance_info", "nothing reads here"),
            ("y_dtype", "nothing reads here"),
        ] {
            let told = key(word).unwrap_err().what(word, true);
            assert!(told.contains(why) && !told.contains("did you mean"), "{told}");
        }
    }
}
