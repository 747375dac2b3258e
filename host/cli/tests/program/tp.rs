//! A TP domain through the program: files, hangs and layouts name its members.

use crate::common::{fails, json, text};
use tempfile::tempdir;
use veriep_case::config::Config;
use veriep_case::generate::{Left, Options, generate_left};
use veriep_case::store::TensorFile;
use veriep_testing::trial::small;

fn saved() -> tempfile::TempDir {
    let config = Config {
        release: "9.1.0".to_owned(),
        tp_world_size: 2,
        h: 1024,
        hccl_buffsize_mb: 200,
        ..small(3, 3, 2, 4, 2)
    };
    let case = generate_left(config, Options::default(), Left::All, "test").unwrap();
    let folder = tempdir().unwrap();
    case.save(folder.path()).unwrap();
    folder
}

#[test]
fn files_count_ranks_as_ep_rank_times_two_and_tp_rank() {
    let folder = saved();
    let out = folder.path().join("result.safetensors");
    let report = json(0, &["run", text(folder.path()), "--out", text(&out), "--backend", "weak"]);
    assert_eq!(report["ranks"], 6);
    let mut file = TensorFile::open(&out).unwrap();
    let words = |file: &mut TensorFile, name: &str| {
        let bytes = file.read(name).unwrap();
        bytes.chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
    };
    for ep in 0..3 {
        let (first, second) = (format!("rank{}", 2 * ep), format!("rank{}", 2 * ep + 1));
        let totals = words(&mut file, &format!("{first}.tp_recv_counts"));
        assert_eq!(words(&mut file, &format!("{second}.tp_recv_counts")), totals, "by TP rank on both");
        for (name, own) in [(&first, 0), (&second, 1)] {
            let counts = words(&mut file, &format!("{name}.ep_recv_counts"));
            assert_eq!((counts.len(), counts[2], counts[5]), (6, totals[own], totals[1 - own]), "{name}");
            let rows = (totals[0] + totals[1]) as usize;
            assert_eq!(file.info(&format!("{name}.expand_x")).unwrap().shape, [rows, 1024]);
            assert_eq!(file.info(&format!("{name}.assist_info_for_combine")).unwrap().shape, [rows, 3]);
            assert_eq!(file.info(&format!("{name}.x_out")).unwrap().shape, [4, 1024]);
        }
        // The peers hold the same rows, each its own first.
        let x = |file: &mut TensorFile, name: &str| file.read(&format!("{name}.expand_x")).unwrap();
        let (a, mut b) = (x(&mut file, &first), x(&mut file, &second));
        b.rotate_left(totals[1] as usize * 2048);
        assert!(a == b, "EP rank {ep}");
    }
}

#[test]
fn a_hang_names_the_peer_by_its_number() {
    let folder = saved();
    // Rank 3 is EP rank 1, TP rank 1; it owes flags to ranks 1 and 5, and to its peer 2.
    let args = ["run", text(folder.path()), "--backend", "lockstep", "--inject", "silent=3"];
    let line = fails(3, &args);
    assert!(line.contains("waiting for rank 3 ("), "{line}");
    let report = json(3, &args);
    let missing = report["missing"].as_array().unwrap();
    let tp: Vec<_> = missing.iter().filter(|one| one["what"] == "tp_flag").collect();
    assert!(
        !tp.is_empty() && tp.iter().any(|one| one["rank"] == 2 && one["source_rank"] == 3),
        "{missing:?}"
    );
    let owed = |rank: u32| missing.iter().any(|one| one["rank"] == rank && one["what"] == "dispatch_flag");
    assert!(owed(1) && owed(5), "{missing:?}");
    let line = fails(2, &["run", text(folder.path()), "--inject", "silent=6"]);
    assert!(line.ends_with("with RANK in [0, 5]"), "{line}");
}

#[test]
fn the_layout_draws_tp_regions_of_any_member() {
    let folder = saved();
    let report = json(0, &["layout", text(folder.path()), "--rank", "5"]);
    let areas = report["areas"].as_array().unwrap();
    let of = |region: &str| areas.iter().filter(|area| area["region"] == region).count();
    assert_eq!((of("tp_state"), of("tp_window")), (6, 4));
    let results = areas.iter().find(|area| area["name"] == "tp results").unwrap();
    // A = 4 * 3 * min(1, 2) rows.
    assert_eq!((results["count"].as_u64(), results["stride"].as_u64()), (Some(12), Some(2048)));
    let line = fails(2, &["layout", text(folder.path()), "--rank", "6"]);
    assert!(line.contains("must be in [0, 5]"), "{line}");
}
