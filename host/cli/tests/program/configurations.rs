//! Sources of a subcommand's configuration.

use crate::common::{config_file, fails, json, text, veriep};
use serde_json::Value;
use tempfile::tempdir;

const TINY: &str = "epWorldSize = 2\nmoeExpertNum = 4\nK = 2\nH = 1024\nBS = 4\nHCCL_BUFFSIZE = 200\n";

/// What a subcommand is asked besides, and a part of what it says of any source.
type Asked = (&'static [&'static str], fn(&Value) -> &Value);

const VERBS: [Asked; 6] = [
    (&["check"], |report| &report["sizes"]),
    (&["layout", "--rank", "1"], |report| &report["areas"]),
    (&["plan", "--rank", "1", "--core", "2"], |report| &report["partition"]),
    (&["gen", "--seed", "4", "--force", "--out"], |report| &report["tokens"]),
    (&["golden", "--seed", "4", "--out"], |report| &report["tensors"]),
    (&["run", "--seed", "4", "--rounds", "1", "--backend", "lockstep"], |report| &report["cores"]),
];

#[test]
fn every_verb_takes_a_file_a_case_or_a_preset_and_sets_keys_over_it() {
    let folder = tempdir().unwrap();
    let file = config_file(folder.path(), "tiny.toml", TINY);
    let case = folder.path().join("case");
    json(0, &["gen", &file, "--seed", "4", "--out", text(&case)]);
    for (args, part) in VERBS {
        let out = folder.path().join(args[0]);
        let out = if args.contains(&"--out") { vec![text(&out)] } else { Vec::new() };
        let ask = |source: &[&str]| {
            let report = json(0, &[args, &out, source, &["--set", "aivNum=3"]].concat());
            part(&report).clone()
        };
        let [of_file, of_case, of_preset] =
            [&[file.as_str()][..], &[text(&case)], &["--preset", "tiny"]].map(ask);
        assert!(!of_file.is_null(), "{args:?}");
        assert_eq!((&of_file, &of_file), (&of_case, &of_preset), "{args:?}");
        // What is set counts.
        let wrong = [args, &out, &[file.as_str(), "--set", "aivNum=0"]].concat();
        assert!(fails(2, &wrong).contains("aiv_num = 0: must be in [1, 48]"), "{args:?}");
    }
}

#[test]
fn a_case_has_tensors_of_its_own() {
    let folder = tempdir().unwrap();
    let case = folder.path().join("case");
    json(0, &["gen", "--preset", "tiny", "--seed", "4", "--out", text(&case)]);
    for option in
        ["--routing=hot", "--mask=pairs", "--smooth-scales", "--shared-expert-x", "--hard", "--dead=1"]
    {
        let line = fails(2, &["run", text(&case), option]);
        let (option, _) = option.split_once('=').unwrap_or((option, ""));
        assert!(
            line.starts_with(&format!("error: {option}: ")) && line.ends_with("must be left out"),
            "{line}"
        );
    }
    // Of its configuration alone other ones are made.
    assert!(veriep(&["run", "--config", text(&case), "--routing", "hot", "--rounds", "1"]).status.success());
}

#[test]
fn layout_lists_the_outputs_that_there_are() {
    let folder = tempdir().unwrap();
    let file = config_file(folder.path(), "tiny.toml", TINY);
    let names = |more: &[&str]| -> Vec<String> {
        let layout = json(0, &[&["layout", &file][..], more].concat());
        let outputs = layout["outputs"].as_array().unwrap();
        assert!(outputs.iter().all(|output| output["capacity"].as_u64() > Some(0)));
        outputs.iter().map(|output| output["tensor"].as_str().unwrap().to_owned()).collect()
    };
    let of_dispatch =
        ["expand_x", "assist_info_for_combine", "expand_idx", "expert_token_nums", "ep_recv_counts"];
    // A shape serves both combines.
    assert_eq!(names(&[]), [&of_dispatch[..], &["x_out", "x", "rstd", "y"]].concat());
    assert_eq!(names(&["--set", "op=combine_add_rms_norm"]), names(&[]));
    assert!(names(&["--set", "quant_mode=2"]).contains(&"dynamic_scales".to_owned()));
    // Nor has it records where rows are placed directly.
    let [placed, plain] =
        ["direct", "in-place"].map(|way| json(0, &["layout", &file, "--receive", way])["record"].clone());
    assert_eq!((placed.as_array().unwrap().len(), plain.as_array().unwrap().len()), (0, 3));
}
