//! `diagnose` on dumps that are made here byte by byte, as the shipped operators leave them.

use crate::common::{config_file, fails, json, text, veriep};
use std::fs;
use std::path::Path;
use tempfile::{TempDir, tempdir};

const RANKS: u32 = 4;
const EXPERTS: u32 = 2;
const CORES: u32 = 3;
const BS: u32 = 5;
const K: u32 = 2;
const CONFIG: &str =
    "ep_world_size = 4\nmoe_expert_num = 8\nk = 2\nh = 1024\nbs = 5\naiv_num = 3\nhccl_buffsize_mb = 200\n";

/// Where a release has its partitions and records.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    from: &'static str,
    partition: usize,
    dispatches: usize,
    combines: usize,
}

pub(crate) const M: Places =
    Places { from: "cann-m", partition: 393_216, dispatches: 786_432, combines: 837_632 };
const H: Places = Places { from: "cann-h", partition: 512_000, dispatches: 972_800, combines: 998_400 };

struct Dump {
    places: Places,
    rank: u32,
    bytes: Vec<u8>,
}

impl Dump {
    /// Of a rank all of whose cores have begun these numbers of dispatches and combines, and ended them.
    fn new(places: Places, rank: u32, dispatches: u32, combines: u32) -> Self {
        let mut dump = Self { places, rank, bytes: vec![0; 1 << 20] };
        for core in 0..CORES {
            dump.dispatch(core, dispatches, 2);
            dump.combine(core, combines, 1 + BS / CORES + u32::from(core < BS % CORES));
        }
        dump
    }

    fn put(&mut self, at: usize, word: u32) {
        self.bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }

    fn record(&mut self, at: usize, begun: u32, position: u32) {
        let words = [begun % 2, position, self.rank, RANKS * EXPERTS, RANKS, RANKS * BS, begun, 0];
        for (word, value) in words.into_iter().enumerate() {
            self.put(at + 4 * word, if begun == 0 { 0 } else { value });
        }
    }

    fn dispatch(&mut self, core: u32, begun: u32, position: u32) {
        self.record(self.places.dispatches + 512 * core as usize, begun, position);
    }

    fn combine(&mut self, core: u32, begun: u32, position: u32) {
        self.record(self.places.combines + 512 * core as usize, begun, position);
    }

    /// A dispatch of this number in which all flags have come but those of `absent`, and no core has passed its wait.
    fn waits_in_dispatch(mut self, number: u32, absent: &[(u32, u32)]) -> Self {
        (0..CORES).for_each(|core| self.dispatch(core, number, 1));
        let base = (number as usize + 1) % 2 * self.places.partition;
        for slot in 0..EXPERTS * RANKS {
            if !absent.contains(&(slot % RANKS, slot / RANKS)) {
                self.put(base + 32 * slot as usize, 1.0f32.to_bits());
                self.put(base + 32 * slot as usize + 4, 7);
            }
        }
        self
    }

    /// A combine of this number in which `token` lacks the result of column `k`, and the core of that token waits for it.
    fn waits_in_combine(mut self, number: u32, (token, k): (u32, u32)) -> Self {
        // Tokens 0 and 1 are core 0's, 2 and 3 core 1's, 4 is core 2's.
        let (core, index) = (token / 2, token % 2);
        self.combine(core, number, 1 + index);
        let base = (number as usize + 1) % 2 * self.places.partition + 65_536;
        let tokens = token..(2 * core + 2).min(BS);
        for (token_of, column) in tokens.flat_map(|token| (0..K).map(move |column| (token, column))) {
            if (token_of, column) != (token, k) {
                let slot = base + 32 * (token_of * K + column) as usize;
                (0..8).for_each(|word| self.put(slot + 4 * word, 1.0f32.to_bits()));
            }
        }
        self
    }
}

fn folder(dumps: &[Dump]) -> TempDir {
    let folder = tempdir().unwrap();
    config_file(folder.path(), "config.toml", CONFIG);
    dumps.iter().for_each(|dump| write(folder.path(), dump));
    folder
}

fn write(folder: &Path, dump: &Dump) {
    fs::write(folder.join(format!("rank{}.state", dump.rank)), &dump.bytes).unwrap();
}

fn culprits(status: i32, places: Places, folder: &Path, more: &[&str]) -> Vec<u64> {
    let said = json(status, &[&["diagnose", text(folder), "--from", places.from], more].concat());
    let culprits = said["culprits"].as_array().unwrap();
    culprits.iter().map(|rank| rank.as_u64().unwrap()).collect()
}

#[test]
fn good_runs_and_zeros_have_no_culprit() {
    for places in [M, H] {
        for (dispatches, combines) in [(1, 1), (6, 5), (7, 7)] {
            let dumps: Vec<_> =
                (0..RANKS).map(|rank| Dump::new(places, rank, dispatches, combines)).collect();
            assert_eq!(culprits(0, places, folder(&dumps).path(), &[]), [0; 0]);
        }
        // Nothing shows that these are dumps of a group at all.
        let zeros: Vec<_> = (0..RANKS).map(|rank| Dump::new(places, rank, 0, 0)).collect();
        assert_eq!(culprits(4, places, folder(&zeros).path(), &[]), [0; 0]);
    }
}

#[test]
fn a_rank_that_never_began_is_named_by_both_releases() {
    for places in [M, H] {
        for silent in 0..RANKS {
            let absent = [(silent, 0), (silent, 1)];
            let of = |rank| match rank == silent {
                true => Dump::new(places, rank, 0, 0),
                false => Dump::new(places, rank, 0, 0).waits_in_dispatch(1, &absent),
            };
            let folder = folder(&(0..RANKS).map(of).collect::<Vec<_>>());
            assert_eq!(culprits(3, places, folder.path(), &[]), [u64::from(silent)]);
            let line =
                fails(3, &["diagnose", text(folder.path()), "--from", places.from, "--format", "table"]);
            assert_eq!(
                line,
                format!("error: rank {silent} has not sent 6 words and has not begun dispatch 1")
            );
        }
    }
}

#[test]
fn a_rank_that_stopped_between_its_flags_is_named() {
    for places in [M, H] {
        // Rank 2 has sent its flags to ranks 0 and 1, and for one of two experts to rank 3.
        let of = |rank| match rank {
            0 | 1 => Dump::new(places, rank, 5, 4).waits_in_dispatch(5, &[]),
            2 => Dump::new(places, rank, 5, 4).waits_in_dispatch(5, &[(2, 0), (2, 1)]),
            _ => Dump::new(places, rank, 5, 4).waits_in_dispatch(5, &[(2, 1)]),
        };
        let folder = folder(&(0..RANKS).map(of).collect::<Vec<_>>());
        assert_eq!(culprits(3, places, folder.path(), &[]), [2]);
        let said = json(3, &["diagnose", text(folder.path()), "--from", places.from]);
        let last = &said["ranks"][3];
        assert_eq!((&last["operator"], &last["number"]), (&"dispatch".into(), &5.into()));
        assert_eq!(last["waits_for"].as_array().unwrap().len(), 1);
        assert_eq!(
            (&last["waits_for"][0]["source"], &last["waits_for"][0]["expert"]),
            (&2.into(), &1.into())
        );
    }
}

#[test]
fn a_result_that_never_came_is_traced_by_the_batch() {
    let cases = tempdir().unwrap();
    let config = config_file(cases.path(), "c.toml", CONFIG);
    let case = cases.path().join("case");
    assert!(veriep(&["gen", &config, "--out", text(&case), "--seed", "3"]).status.success());
    let ids = veriep_case::case::load(&case).unwrap().ranks[1].expert_ids.clone();
    for places in [M, H] {
        for token in 0..BS {
            for k in 0..K {
                // Rank 1 lacks a result in combine 4. The rank that returns it has not begun it; the others have ended.
                let owner = ids[(token * K + k) as usize].cast_unsigned() / EXPERTS;
                let of = |rank| match rank {
                    1 => Dump::new(places, rank, 4, 4).waits_in_combine(4, (token, k)),
                    _ => Dump::new(places, rank, 4, if rank == owner { 3 } else { 4 }),
                };
                let dumps: Vec<_> = (0..RANKS).map(of).collect();
                let folder = folder(&dumps);
                let with_case = culprits(3, places, folder.path(), &["--case", text(&case)]);
                assert_eq!(with_case, [u64::from(owner)]);
                // Without the batch the rank that is behind is named; where rank 1 owes itself no rank is behind.
                let expected = if owner == 1 { vec![] } else { vec![u64::from(owner)] };
                let status = if expected.is_empty() { 4 } else { 3 };
                assert_eq!(culprits(status, places, folder.path(), &[]), expected);
            }
        }
    }
}

#[test]
fn tokens_without_any_result_are_told_where_they_are_summed_in_order() {
    for (places, expected) in [
        (H, vec!["combine 2: result for token 1, k = 0", "combine 2: result for token 1, k = 1"]),
        (M, vec!["combine 2: all results of 1 tokens"]),
    ] {
        // Core 0 of rank 0 has summed one of its two tokens, and nothing of the other has come.
        let mut dumps: Vec<_> = (0..RANKS).map(|rank| Dump::new(places, rank, 2, 2)).collect();
        dumps[0].combine(0, 2, 2);
        let folder = folder(&dumps);
        // Whose they are only the batch tells.
        let said = json(4, &["diagnose", text(folder.path()), "--from", places.from]);
        let missing: Vec<_> = said["missing"].as_array().unwrap().iter().map(|word| &word["what"]).collect();
        assert_eq!(missing, expected);
        assert_eq!(said["culprits"], serde_json::json!([]));
    }
}

#[test]
fn a_rank_that_waits_for_another_is_not_to_blame() {
    // Rank 3 hangs in combine 4, where rank 2 has returned nothing. Ranks 0 and 1 are in dispatch 5.
    let of = |rank| match rank {
        0 | 1 => Dump::new(M, rank, 5, 4).waits_in_dispatch(5, &[(2, 0), (2, 1), (3, 0), (3, 1)]),
        2 => Dump::new(M, rank, 4, 3),
        _ => Dump::new(M, rank, 4, 4).waits_in_combine(4, (2, 1)),
    };
    let dumps: Vec<_> = (0..RANKS).map(of).collect();
    let dumped = folder(&dumps);
    assert_eq!(culprits(3, M, dumped.path(), &[]), [2]);
    // Without its dump it is unknown, and rank 3 has an excuse.
    fs::remove_file(dumped.path().join("rank2.state")).unwrap();
    assert_eq!(culprits(4, M, dumped.path(), &[]), [0; 0]);
    let said = json(4, &["diagnose", text(dumped.path()), "--from", "cann-m"]);
    assert_eq!(said["ranks"][2]["operator"], serde_json::Value::Null);
    assert!(said["unknown"].to_string().contains("ranks without a dump: [2]"), "{said}");
}

/// Ranks in combine 5, with these cores of each that have not begun it.
pub(crate) fn with_absent_cores(places: Places, absent: [&[u32]; RANKS as usize]) -> TempDir {
    let dumps = (0..RANKS).zip(absent).map(|(rank, absent)| {
        let mut dump = Dump::new(places, rank, 5, 5);
        absent.iter().for_each(|core| dump.combine(*core, 4, 2));
        dump
    });
    folder(&dumps.collect::<Vec<_>>())
}

#[test]
fn cores_that_never_began_on_some_ranks_are_the_culprit() {
    for places in [M, H] {
        let folder = with_absent_cores(places, [&[], &[1, 2], &[], &[]]);
        assert_eq!(culprits(3, places, folder.path(), &[]), [1]);
        let line = fails(3, &["diagnose", text(folder.path()), "--from", places.from]);
        assert_eq!(line, "error: rank 1: cores 1, 2 have not begun combine 5; the rank has begun it");
        let folder = with_absent_cores(places, [&[2], &[], &[], &[]]);
        let line = fails(3, &["diagnose", text(folder.path()), "--from", places.from]);
        assert_eq!(line, "error: rank 0: core 2 has not begun combine 5; the rank has begun it");
    }
}

#[test]
fn cores_that_never_began_on_any_rank_leave_the_verdict_open() {
    let diagnose = |folder: &TempDir| json(4, &["diagnose", text(folder.path()), "--from", "cann-m"]);
    let said = diagnose(&with_absent_cores(M, [&[2]; 4]));
    assert_eq!((&said["verdict"], &said["culprits"]), (&"unknown".into(), &serde_json::json!([])));
    assert!(
        said["decides"][0].as_str().unwrap().starts_with("is aiv_num = 3 right? core 2 of every rank"),
        "{said}"
    );
    // Then it is open, too, what the other cores of a rank tell.
    let said = diagnose(&with_absent_cores(M, [&[2], &[1, 2], &[2], &[2]]));
    assert_eq!((&said["suspects"][0]["rank"], &said["culprits"]), (&1.into(), &serde_json::json!([])));
    // A record that never was on any rank: the configuration has a core too many.
    let dumps = (0..RANKS).map(|rank| {
        let mut dump = Dump::new(M, rank, 5, 5);
        dump.dispatch(2, 0, 0);
        dump.combine(2, 0, 0);
        dump
    });
    let said = diagnose(&folder(&dumps.collect::<Vec<_>>()));
    assert!(said["decides"][0].as_str().unwrap().starts_with("is aiv_num = 3 right?"), "{said}");
}

#[test]
fn two_batches_in_flight_are_told_apart() {
    let of = |rank| match rank {
        0 => Dump::new(M, rank, 6, 4),
        _ => Dump::new(M, rank, 6, 4).waits_in_dispatch(6, &[(0, 0)]),
    };
    let folder = folder(&(0..RANKS).map(of).collect::<Vec<_>>());
    assert_eq!(culprits(3, M, folder.path(), &["--in-flight", "2"]), [0]);
    // Where nothing states it, memory shows it.
    assert_eq!(culprits(3, M, folder.path(), &[]), [0]);
    let line = fails(2, &["diagnose", text(folder.path()), "--from", "cann-m", "--in-flight", "1"]);
    assert!(line.contains("6 dispatches and 4 combines begun: with 1 in flight that cannot be"), "{line}");
}

#[test]
fn dumps_that_contradict_each_other_name_no_culprit() {
    let says = |dumps: &[Dump], what: &str| {
        let folder = folder(dumps);
        let said = json(4, &["diagnose", text(folder.path()), "--from", dumps[0].places.from]);
        assert_eq!((&said["culprits"], &said["verdict"]), (&serde_json::json!([]), &"unknown".into()));
        assert_eq!(said["bound"], format!("evidence contradicts itself: {what}; by dumps of all 4 ranks"));
    };
    for places in [M, H] {
        let waits = |rank, of: u32| Dump::new(places, rank, 4, 3).waits_in_dispatch(4, &[(of, 0), (of, 1)]);
        // Rank 1 is in combine 5, and rank 2 as new.
        let in_combine = |rank| match rank {
            1 => Dump::new(places, rank, 5, 5).waits_in_combine(5, (2, 1)),
            2 => Dump::new(places, rank, 0, 0),
            _ => Dump::new(places, rank, 5, 5),
        };
        let what = "rank 2 has begun nothing, although rank 3 is in combine 5, which it reached by flags of all ranks";
        says(&(0..RANKS).map(in_combine).collect::<Vec<_>>(), what);
        // All wait for rank 1, and have flags of rank 2, which looks as if it had not begun.
        let in_dispatch = |rank| match rank {
            1 | 2 => Dump::new(places, rank, 3, 3),
            _ => waits(rank, 1),
        };
        let what = "rank 2 has not begun dispatch 4, although rank 0 has words of it in dispatch 4";
        says(&(0..RANKS).map(in_dispatch).collect::<Vec<_>>(), what);
        // A word after the last slot of dispatch.
        let mut dumps: Vec<_> = (0..RANKS).map(|rank| waits(rank, 1)).collect();
        dumps[3].put(32 * (EXPERTS * RANKS) as usize, 1.0f32.to_bits());
        says(&dumps, "rank 3: 0x3f800000 at byte 256, where this configuration has nothing");
    }
}

#[test]
fn a_dump_of_something_else_is_refused() {
    let says = |place: &dyn Fn(&Path), words: &str| {
        let dumps: Vec<_> = (0..RANKS).map(|rank| Dump::new(M, rank, 3, 3)).collect();
        let folder = folder(&dumps);
        place(folder.path());
        let line = fails(2, &["diagnose", text(folder.path()), "--from", "cann-m"]);
        assert!(line.contains(words), "{line}");
    };
    let instead = |dump: Dump| move |folder: &Path| write(folder, &dump);
    let with = |at: usize, word: u32| {
        let mut dump = Dump::new(M, 1, 3, 2).waits_in_dispatch(3, &[]);
        dump.put(at, word);
        instead(dump)
    };
    says(&instead(Dump::new(H, 1, 3, 3)), "hint: --from cann-h");
    says(
        &with(M.dispatches + 512 + 8, 2),
        "rank1.state: dispatch record of core 1: ep_rank_id = 2: the configuration has 1",
    );
    says(&with(M.dispatches + 512 + 20, 9), "global_bs = 9: the configuration has 20");
    says(&with(M.dispatches, 0), "partition 0 and position 1 after 3 operators: cannot be");
    says(&with(M.dispatches + 3 * 512, 1), "record of core 3: has begun 0 operators, but is not empty");
    says(&with(0, 5), "dispatch slot 0: 0x5: must be 0 or 0x3f800000");
    says(
        &|folder| fs::write(folder.join("rank0.state"), [0; 100]).unwrap(),
        "has 100 bytes: must have 1048576",
    );
    says(&with(M.dispatches + 512 + 28, 1 << 31), "operators begun: cannot be so many");
    let config = |from: &'static str, to: &'static str| {
        move |folder: &Path| fs::write(folder.join("config.toml"), CONFIG.replace(from, to)).unwrap()
    };
    says(&config("moe_expert_num = 8", "moe_expert_num = 16"), "the configuration has");
    // By a default that is not the job's, a hang looks like a group in which no word is missing.
    says(
        &config("h = 1024\n", ""),
        "config.toml: h: missing: must be stated, since places depend on it; hint: --set h=VALUE",
    );
    says(&config("aiv_num = 3\n", ""), "aiv_num: missing: must be stated");
    says(
        &|folder| {
            fs::write(folder.join("config.toml"), format!("comm_alg = \"fullmesh_v2\"\n{CONFIG}")).unwrap();
        },
        "comm_alg = fullmesh_v2: its flags lie among the rows",
    );
    // Multiples of an odd number, cut down to their middle bytes.
    let noise: Vec<u8> = (1..=1 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 16) as u8).collect();
    says(
        &|folder| fs::write(folder.join("rank3.state"), &noise).unwrap(),
        "rank3.state: dispatch record of core 0",
    );
    let empty = tempdir().unwrap();
    config_file(empty.path(), "config.toml", CONFIG);
    let line = fails(2, &["diagnose", text(empty.path()), "--from", "cann-m"]);
    assert!(line.contains("has no dump: must have rank0.state and so on"), "{line}");
    let line = fails(2, &["diagnose", "nowhere", "--from", "cann-m"]);
    assert!(line.contains("nowhere: is no folder"), "{line}");
}
