//! The corpora of `fuzz/corpus`: what fuzzing with guidance came to. No person made these files, so no test says of each what
//! it means, as `seeds.rs` does of seeds; here is what they come to together.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use veriep_fuzz::inputs;
use veriep_fuzz::shape_layout::{self, Verdict};

/// What a target makes of each of its files.
fn run_all<T>(target: &str, run: fn(&[u8]) -> Option<T>) -> Vec<T> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(target);
    let mut files: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let of = |file: &PathBuf| {
        println!("{}", file.display());
        run(&std::fs::read(file).unwrap())
    };
    files.iter().filter_map(of).collect()
}

#[test]
fn the_corpus_has_shapes_of_every_algorithm_and_wrong_values_of_every_parameter() {
    let (mut taken, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for verdict in run_all("shape_layout", shape_layout::run) {
        match verdict {
            Verdict::Valid(shape) => _ = taken.insert(format!("{:?}", shape.protocol())),
            Verdict::Refused(parameters) => refused.extend(parameters),
        }
    }
    assert_eq!(taken.len(), 4, "{taken:?}");
    // All but `server_ranks`, which the target leaves as it is.
    assert_eq!(refused.len(), 28, "{refused:?}");
}

#[test]
fn the_corpus_has_elastic_domains_and_wrong_values_of_most_tensors() {
    let reports = run_all("inputs", inputs::run);
    let [left, refused] =
        [true, false].map(|elastic| reports.iter().filter(|r| r.elastic == elastic).count());
    assert!(left > 10 && refused > 10, "{left} elastic domains, {refused} that are none");
    let sound = reports.iter().filter(|report| report.redundant).count();
    assert!(sound > 10 && sound + 10 < reports.len(), "{sound} sound maps of {}", reports.len());
    let wrong: BTreeSet<_> =
        reports.iter().filter_map(|report| Some(report.tensors.err()?.tensor())).collect();
    assert!(wrong.len() >= 9, "{wrong:?}");
}
