//! A call of a function of `torch_npu`, as it is in Python, and the pieces between its commas.

use veriep_core::shape::Given;

/// The functions that take the parameters of the operators begin with this.
const FUNCTIONS: &str = "npu_moe_distribute_";
/// Those whose rules are here.
const KNOWN: [&str; 5] = [
    "npu_moe_distribute_dispatch",
    "npu_moe_distribute_dispatch_v2",
    "npu_moe_distribute_combine",
    "npu_moe_distribute_combine_v2",
    "npu_moe_distribute_combine_add_rms_norm",
];

/// Keys that are shapes, types or surroundings of a call, not arguments.
pub(super) const ELSEWHERE: [&str; 6] = ["product", "dtype", "k", "h", "bs", "hccl_buffsize_mb"];

/// Arguments without which there is no call.
pub(super) const REQUIRED: [&str; 2] = ["ep_world_size", "moe_expert_num"];

/// Arguments that dispatch and combine have alike, and that decide whether they are valid.
const SHARED: [&str; 10] = [
    "ep_world_size",
    "moe_expert_num",
    "tp_world_size",
    "shared_expert_num",
    "shared_expert_rank_num",
    "zero_expert_num",
    "copy_expert_num",
    "const_expert_num",
    "global_bs",
    "comm_alg",
];

/// Returns the arguments of a call that decide whether it is valid, and how much memory it needs.
pub(super) fn decisive() -> impl Iterator<Item = &'static str> {
    SHARED.into_iter().chain(["quant_mode", "comm_quant_mode", "expert_token_nums_type"])
}

/// Returns the arguments that all calls of one group have alike.
pub(super) fn of_group() -> impl Iterator<Item = &'static str> {
    SHARED.into_iter().chain(["group_ep", "group_tp"])
}

/// Returns the tensors that an argument of this name may be, of those on which rules depend.
pub(super) fn tensor(word: &str) -> Given {
    match word {
        "x_active_mask" => Given::MASK_1D | Given::MASK_2D,
        "scales" => Given::SCALES,
        "elastic_info" => Given::ELASTIC_INFO,
        "shared_expert_x" => Given::SHARED_EXPERT_X,
        _ => Given::empty(),
    }
}

/// The first call in a text.
pub(super) struct Call<'t> {
    pub(super) function: &'t str,
    /// Place of the first byte after the parenthesis.
    pub(super) start: usize,
}

impl<'t> Call<'t> {
    /// Returns what is wrong with a call of another function, whose rules are not here.
    pub(super) fn is_foreign(&self) -> Option<String> {
        let what = "rules of another operator, which are not here: must be one of";
        (!KNOWN.contains(&self.function)).then(|| format!("{}: {what} {}", self.function, KNOWN.join(", ")))
    }

    /// Finds the first call; names in comments do not count.
    pub(super) fn find(text: &'t str) -> Option<Self> {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        text.match_indices(FUNCTIONS).find_map(|(at, _)| {
            let before = &text[..at];
            let is_comment = before[before.rfind('\n').map_or(0, |end| end + 1)..].contains('#');
            let name_len = text[at..].find(|letter| !is_name(letter))?;
            let is_call = text[at + name_len..].starts_with('(') && !before.ends_with(is_name);
            let function = &text[at..at + name_len];
            (is_call && !is_comment).then_some(Self { function, start: at + name_len + 1 })
        })
    }
}

/// Returns what is between commas from `start` up to the bracket that closes, without blanks and comments around, with the
/// number of its line; `None` if no bracket closes it.
pub fn pieces(text: &str, start: usize) -> Option<Vec<(usize, &str)>> {
    let (mut all, mut depth, mut quote, mut from) = (Vec::new(), 0, None, start);
    let lines_in = |text: &str| text.bytes().filter(|byte| *byte == b'\n').count();
    // After the last letter that is neither blank nor in a comment.
    let mut end = start;
    let (mut line, mut counted) = (1 + lines_in(&text[..start]), start);
    let mut piece = |from: usize, to: usize| {
        let begun = without_comments(&text[from..to]);
        let content = begun.trim();
        if !content.is_empty() {
            let place = to - begun.len();
            line += lines_in(&text[counted..place]);
            counted = place;
            all.push((line, content));
        }
    };
    let mut letters = text[start..].char_indices();
    while let Some((at, letter)) = letters.next() {
        let at = start + at;
        match (quote, letter) {
            (Some(_), '\\') => {
                letters.next();
            }
            (Some(open), _) => quote = quote.filter(|_| letter != open),
            (None, '"' | '\'') => quote = Some(letter),
            (None, '#') => {
                // Up to the end of the line nothing counts.
                letters.by_ref().find(|(_, letter)| *letter == '\n');
                continue;
            }
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') if depth == 0 => {
                piece(from, end.max(from));
                return Some(all);
            }
            (None, ')' | ']' | '}') => depth -= 1,
            (None, ',') if depth == 0 => {
                piece(from, end.max(from));
                from = at + 1;
            }
            _ => {}
        }
        if quote.is_some() || !letter.is_whitespace() {
            end = at + letter.len_utf8();
        }
    }
    None
}

/// A text from after the blanks and comments that it begins with.
fn without_comments(text: &str) -> &str {
    let mut left = text.trim_start();
    while left.starts_with('#') {
        left = left.split_once('\n').map_or("", |(_, behind)| behind).trim_start();
    }
    left
}

/// Splits `name=value`; `None` for what has no name. A comment after the value is no part of it.
pub(super) fn keyword(piece: &str) -> Option<(&str, &str)> {
    let (name, value) = piece.split_once('=')?;
    let name = name.trim();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_name && !value.starts_with('=')).then_some((name, value.trim()))
}

/// Splits a string in quotes from what follows it.
pub(super) fn string_and_rest(piece: &str) -> Option<(&str, &str)> {
    let mut is_escaped = false;
    let closes = |(at, letter): (usize, char)| {
        let ends = letter == '"' && !is_escaped && at > 0;
        is_escaped = letter == '\\' && !is_escaped;
        ends.then_some(at + 1)
    };
    let end = piece.starts_with('"').then(|| piece.char_indices().find_map(closes))??;
    Some(piece.split_at(end))
}

#[cfg(test)]
mod tests {
    use crate::config::{Bs, Config};

    const CALL: &str = "\
# npu_moe_distribute_dispatch(x=1)
import torch_npu
output = torch_npu.npu_moe_distribute_dispatch_v2(
    x=hidden.view(-1, h),  # (tokens, h)
    expert_ids=ids, group_ep=\"mc2, (ep\", ep_world_size=32,
    ep_rank_id=self.rank, moe_expert_num=256,
    # quant_mode=1,
    scales=None, x_active_mask=mask, group_tp='', quant_mode=2, global_bs=0, comm_alg=\"fullmesh_v2\",
    y_dtype=torch.int8,
)[0]
";

    #[test]
    fn literal_arguments_of_a_call_are_read_and_the_others_noted() {
        let mut config = Config::parse(CALL).unwrap();
        let expected = Config {
            ep_world_size: 32,
            moe_expert_num: 256,
            quant_mode: 2,
            comm_alg: "fullmesh_v2".to_owned(),
            group_ep: Some("mc2, (ep".to_owned()),
            group_tp: Some(String::new()),
            ..Config::default()
        };
        assert_eq!(config, expected);
        let notes = config.notes();
        let not_read = "x, expert_ids, ep_rank_id, x_active_mask, y_dtype";
        assert_eq!(notes[0], format!("not read of the call of npu_moe_distribute_dispatch_v2: {not_read}"));
        let defaults = "bs, dtype, h, hccl_buffsize_mb, k, product";
        assert_eq!(
            notes[1],
            format!("the input does not say {defaults}: defaults stand for them, which --set changes")
        );
        for assignment in ["product=a3", "dtype=bf16", "k=4", "bs=8", "hccl_buffsize_mb=400"] {
            config.set(assignment).unwrap();
        }
        assert_eq!(config.origin.missing(), ["h"]);
    }

    #[test]
    fn an_expression_is_no_literal() {
        for value in ["16 if big else 8", "int(16)", "n", "-n", "[n]", "f'16'", "16 + 16", "a == 16", "True"]
        {
            let config =
                Config::parse(&format!("npu_moe_distribute_dispatch(ep_world_size={value})")).unwrap();
            assert_eq!(config, Config::default(), "{value}");
            assert!(config.notes()[0].ends_with(": ep_world_size"), "{:?}", config.notes());
            let missing = config.origin.missing();
            assert!(missing.contains(&"ep_world_size"), "{value}");
            assert_eq!(missing.iter().filter(|key| **key == "moe_expert_num").count(), 1, "{missing:?}");
        }
        let commented = "npu_moe_distribute_dispatch(\n  ep_world_size=32  # ranks, (all)\n  )";
        assert_eq!(Config::parse(commented).unwrap().ep_world_size, 32);
        let continued = "npu_moe_distribute_dispatch(\n  ep_world_size=32  # ranks\n  + 32)";
        assert_eq!(Config::parse(continued).unwrap(), Config::default());
    }

    #[test]
    fn what_may_hide_in_an_argument_without_a_name_is_not_known() {
        for hiding in ["x, ids", "**kwargs"] {
            let text = format!("npu_moe_distribute_dispatch({hiding}, moe_expert_num=64, ep_rank_id=rank)");
            let missing = Config::parse(&text).unwrap().origin.missing();
            assert!(missing.contains(&"ep_world_size") && missing.contains(&"comm_alg"), "{missing:?}");
            assert!(!missing.contains(&"moe_expert_num") && !missing.contains(&"ep_rank_id"), "{missing:?}");
        }
    }

    #[test]
    fn what_a_call_or_file_needs_and_does_not_state_is_missing() {
        let missing = |text: &str, set: &[&str]| {
            let mut config = Config::parse(text).unwrap();
            set.iter().for_each(|assignment| config.set(assignment).unwrap());
            config.origin.missing()
        };
        let all = ["bs", "dtype", "ep_world_size", "h", "hccl_buffsize_mb", "k", "moe_expert_num", "product"];
        assert_eq!(missing("npu_moe_distribute_combine_v2(ep_world_size=None)", &[]), all);
        for nothing in ["", "# bs = 8\n", "{}", "{\"h\": null, \"group_tp\": null}", "release = \"seed\""] {
            assert_eq!(missing(nothing, &[]), all, "{nothing}");
        }
        // As if the file had the key: the documented defaults of the others stand.
        assert_eq!(missing("", &["bs=8"]), [""; 0]);
        assert_eq!(missing("bs = 8", &[]), [""; 0]);
        let null = "{\"k\": null, \"bs\": 8, \"quant_mode\": null, \"group_tp\": null}";
        assert_eq!(missing(null, &[]), ["k", "quant_mode"]);
        assert_eq!(missing(null, &["k=4"]), ["quant_mode"]);
        assert_eq!(Config::default().origin.missing(), [""; 0]);
    }

    #[test]
    fn a_call_of_another_operator_is_refused_by_its_name() {
        for function in
            ["dispatch_setup", "dispatch_teardown", "combine_setup", "combine_teardown", "dispatch_v9"]
        {
            let text =
                format!("torch_npu.npu_moe_distribute_{function}(x, ep_world_size=16, moe_expert_num=64)");
            let told = Config::parse(&text).unwrap_err().to_string();
            assert!(
                told.contains(&format!("npu_moe_distribute_{function}: rules of another operator")),
                "{told}"
            );
            assert!(told.contains("must be one of npu_moe_distribute_dispatch, "), "{told}");
        }
    }

    #[test]
    fn what_is_wrong_in_a_call_names_its_line() {
        let wrong = |text: &str| {
            let faults = Config::parse(text).unwrap_err();
            (faults.all[0].line, faults.to_string())
        };
        let call = "torch_npu.npu_moe_distribute_combine_v2(\n  expand_x,\n  moe_expert_nums=8,\n  k=\"8\")";
        let (line, told) = wrong(call);
        assert_eq!(line, 3);
        assert!(told.starts_with("`moe_expert_nums=8`: unknown key `moe_expert_nums`: did you mean `moe_expert_num`?; `k=\"8\"`: string"), "{told}");
        let (line, told) = wrong("a = 1\nnpu_moe_distribute_combine(x=(1,\n");
        assert_eq!(
            (line, told.as_str()),
            (2, "`npu_moe_distribute_combine(x=(1,`: npu_moe_distribute_combine( is not closed")
        );
        assert!(wrong("npu_moe_distribute_combine(k=1, K=2)").1.contains("duplicate key"));
        assert!(!wrong("other(k=1)").1.contains("closed"));
    }

    #[test]
    fn a_call_names_the_operator_and_the_first_one_counts() {
        let fused = Config::parse("npu_moe_distribute_combine_add_rms_norm(norm_eps=1e-5)").unwrap();
        assert_eq!((fused.op.as_str(), fused.norm_eps), ("combine_add_rms_norm", 1e-5));
        let two = |combine: &str| {
            Config::parse(&format!(
                "npu_moe_distribute_dispatch(ep_world_size=8, quant_mode=2)\nnpu_moe_distribute_combine({combine})"
            ))
        };
        let agreeing = two("ep_world_size=8, moe_expert_num=64, quant_mode=0").unwrap();
        assert_eq!((agreeing.ep_world_size, agreeing.quant_mode), (8, 2));
        assert!(agreeing.notes().iter().any(|note| note.starts_with("not read: the calls after the first")));
        let told = two("x, ep_world_size=4").unwrap_err();
        assert_eq!(told.all[0].line, 2);
        let line = "`ep_world_size=4`: the first call, in line 1, has `ep_world_size=8`: must agree";
        assert_eq!(told.to_string(), line);
    }

    #[test]
    fn an_object_of_json_is_a_configuration() {
        let text = "{\n \"bs\": [1, 2],\n \"epWorldSize\": 2, \"group_ep\": \"a, {b:\", \"group_tp\": null,\n \"norm_eps\": 1e-5\n}";
        let config = Config::parse(text).unwrap();
        let expected = Config {
            bs: Bs::PerRank(vec![1, 2]),
            ep_world_size: 2,
            group_ep: Some("a, {b:".to_owned()),
            norm_eps: 1e-5,
            ..Config::default()
        };
        assert_eq!(config, expected);
        assert_eq!(Config::parse("{}").unwrap(), Config::default());
        assert_eq!(config.notes(), [""; 0]);
    }

    #[test]
    fn what_is_wrong_in_json_names_its_line() {
        for (text, line, told) in [
            ("{\"k\": 8,\n\"zeta\": 1}", 2, "`\"zeta\": 1`: unknown key `zeta`: must be one of"),
            ("{\"zeta\": null}", 1, "`\"zeta\": null`: unknown key `zeta`: must be one of"),
            ("{\"k\": 8,\n\n\"K\": 1}", 3, "`\"K\": 1`: duplicate key: k in two spellings"),
            ("{\"k\": 8,\n\"h\": \"1\"}", 2, "`\"h\": \"1\"`: string \"1\": must be an integer"),
            (
                "{\"k\": {\"a\": 8}}",
                1,
                "`\"k\": {\"a\": 8}`: must be a number, a string or a list of numbers",
            ),
            ("{\"k\": 8", 1, "`{\"k\": 8`: not JSON: "),
            ("{\"k\": 8}\n[1]", 2, "`[1]`: not JSON: "),
        ] {
            let faults = Config::parse(text).unwrap_err();
            let seen = faults.to_string();
            assert_eq!(faults.all[0].line, line, "{seen}");
            assert!(seen.starts_with(told), "{seen}");
        }
    }
}
