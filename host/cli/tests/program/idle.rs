//! A rank without tokens in a case.

use crate::common::json;
use tempfile::tempdir;
use veriep_case::case::load;

#[test]
fn a_case_with_a_batch_of_no_tokens_is_saved_loaded_and_run() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("case");
    let path = path.to_str().unwrap();
    let tiny = ["gen", "--preset", "tiny", "--set", "bs=[4, 0]", "--set", "global_bs=8"];
    json(0, &[&tiny[..], &["--seed", "3", "--out", path]].concat());
    let case = load(path.as_ref()).unwrap();
    assert!(case.ranks[1].expert_ids.is_empty() && case.ranks[1].x.is_empty());
    for backend in ["threads", "lockstep", "weak"] {
        json(0, &["run", path, "--rounds", "3", "--backend", backend]);
    }
}
