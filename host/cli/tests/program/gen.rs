//! `veriep gen`, from outside.

use crate::common::{fails, fails_with_lines, json, text, veriep};
use tempfile::tempdir;

fn files(case: &std::path::Path) -> Vec<Vec<u8>> {
    ["config.toml", "inputs.safetensors"].iter().map(|name| std::fs::read(case.join(name)).unwrap()).collect()
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let folder = tempdir().unwrap();
    let make = |name: &str, seed: &str| {
        let case = folder.path().join(name);
        let report = json(0, &["gen", "--preset", "tiny", "--seed", seed, "--out", text(&case)]);
        assert_eq!((&report["ranks"], &report["tokens"]), (&2.into(), &8.into()));
        files(&case)
    };
    let (a, b, c) = (make("a", "7"), make("b", "7"), make("c", "8"));
    assert_eq!(a, b);
    assert_eq!(a[0], c[0]);
    assert_ne!(a[1], c[1]);
}

#[test]
fn overrides_and_options_reach_the_case() {
    let folder = tempdir().unwrap();
    let case = folder.path().join("deep/case");
    let args =
        ["gen", "--preset", "tiny", "--set", "quant_mode=2", "--set", "bs=[1, 4]", "--set", "global_bs=8"];
    let options =
        ["--set", "dtype=f16", "--smooth-scales", "--routing", "zipf", "--seed", "1", "--out", text(&case)];
    json(0, &[&args[..], &options].concat());
    let loaded = veriep_case::case::load(&case).unwrap();
    assert_eq!((loaded.config.quant_mode, loaded.config.dtype.as_str()), (2, "f16"));
    assert_eq!(loaded.ranks.iter().map(|r| r.x.len()).collect::<Vec<_>>(), [2048, 4 * 2048]);
    assert_eq!(loaded.scales.unwrap().len(), 4 * 1024);
}

#[test]
fn const_experts_that_no_memory_holds_are_one_line() {
    let out = tempdir().unwrap();
    let case = out.path().join("case");
    let line = fails(
        2,
        &[
            "gen",
            "--preset",
            "tiny",
            "--set",
            "const_expert_num=2147483000",
            "--seed",
            "1",
            "--out",
            text(&case),
        ],
    );
    assert!(line.contains("const_expert_num = 2147483000: const_expert_v must fit"), "{line}");
}

#[test]
fn a_folder_with_other_files_is_not_overwritten() {
    let folder = tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    let out = text(folder.path());
    let args = ["gen", "--preset", "tiny", "--seed", "1", "--out", out];
    assert!(fails(2, &args).contains("--force"));
    assert!(veriep(&[&args[..], &["--force"]].concat()).status.success());
    assert!(folder.path().join("notes.txt").exists());
    let case = || std::fs::read(folder.path().join("inputs.safetensors")).unwrap();
    let first = case();
    let other = ["gen", "--preset", "tiny", "--seed", "2", "--out", out];
    assert!(fails(2, &other).ends_with("has a case already: --force replaces it"));
    assert!(case() == first, "a refused request changes nothing");
    assert!(veriep(&[&other[..], &["--force"]].concat()).status.success(), "a case may be made again");
    assert!(case() != first);
    assert_eq!(std::fs::read_dir(out).unwrap().count(), 3, "no temporary file stays");
}

#[test]
fn a_request_that_does_not_fit_is_one_line() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("case");
    let gen_tiny = |more: &[&str]| {
        let base = ["gen", "--preset", "tiny", "--seed", "1", "--out", text(&out)];
        fails(2, &[&base[..], more].concat())
    };
    assert!(gen_tiny(&["--set", "h=100"]).contains("h = 100"));
    assert!(gen_tiny(&["--set", "hh=100"]).contains("unknown key `hh`: did you mean `h`?"));
    assert!(gen_tiny(&["--set", "h"]).contains("missing '='"));
    assert!(gen_tiny(&["--smooth-scales"]).contains("scales"));
    assert!(gen_tiny(&["--routing", "random"]).contains("node-limited"));
    assert!(gen_tiny(&["--config", "x.toml"]).contains("--preset"));
    let (tp, run) = (["--set", "release=9.1.0", "--set", "tp_world_size=2"], ["run", "--preset", "tiny"]);
    for (verb, hint) in [
        (&["gen", "--preset", "tiny", "--seed", "1", "--out", text(&out), "--set", "k=17"][..], "hint: k = "),
        (&["run", "--preset", "tiny", "--set", "comm_alg=fullmesh_v3"], "hint: comm_alg = \"fullmesh_v"),
        (&[&run[..], &tp].concat(), "hint: tp_world_size = 1"),
    ] {
        let lines = fails_with_lines(2, verb);
        assert!(lines.iter().any(|line| line.contains(hint)), "{lines:?}");
    }
    assert!(fails(2, &["gen", "--preset", "huge", "--seed", "1", "--out", "x"]).contains("a2-hier-64"));
    assert!(
        fails(2, &["gen", "--seed", "1", "--out", text(&out)])
            .contains("missing argument: CONFIG, CASE or --preset NAME")
    );
    assert!(!out.exists());
}

#[test]
fn masks_need_an_even_bs_on_a3() {
    let folder = tempdir().unwrap();
    let args = ["gen", "--preset", "tiny", "--set", "bs=[1, 4]", "--set", "global_bs=8", "--mask", "tokens"];
    let line = fails(2, &[&args[..], &["--seed", "1", "--out", text(folder.path())]].concat());
    assert!(line.contains("x_active_mask") && line.contains("when ranks differ in bs"), "{line}");
    // On A2 no rank looks at another's batch.
    for sizes in ["bs=4", "bs=[1, 4, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1]"] {
        let (case, set) = (folder.path().join("case"), ["--set", sizes, "--set", "global_bs=128"]);
        let a2 = [
            "--set",
            "ep_world_size=16",
            "--set",
            "h=64",
            "--set",
            "moe_expert_num=32",
            "--seed",
            "1",
            "--force",
        ];
        let args =
            [&["gen", "--preset", "a2-64", "--mask", "tokens"][..], &set, &a2, &["--out", text(&case)]];
        json(0, &args.concat());
        assert_eq!(
            json(0, &["run", text(&case), "--rounds", "2", "--backend", "lockstep"])["verdict"],
            "yes"
        );
        assert_eq!(json(0, &["check", text(&case)])["verdict"], "yes");
    }
}

#[cfg(unix)]
#[test]
fn an_unwritable_target_is_one_line_and_leaves_nothing() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = fails(2, &["gen", "--preset", "tiny", "--seed", "1", "--out", text(&file)]);
    assert!(error.contains("file"), "{error}");
    let below = file.join("case");
    fails(2, &["gen", "--preset", "tiny", "--seed", "1", "--out", text(&below)]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    // Nor of folders that were made on the way.
    let nameless = folder.path().join("a").join("b").join("n".repeat(300));
    let error = fails(2, &["gen", "--preset", "tiny", "--seed", "1", "--out", text(&nameless)]);
    assert!(error.contains("cannot make the folder"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
