//! The A2 full mesh through the program: its agents, and what a plan says of them.

use crate::common::{fails, json, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::tempdir;
use veriep_case::store::TensorFile;

/// The smallest group of the product with narrow rows.
const SMALL: [&str; 14] = [
    "run",
    "--preset",
    "a2-64",
    "--set",
    "ep_world_size=16",
    "--set",
    "moe_expert_num=32",
    "--set",
    "h=64",
    "--set",
    "bs=2",
    "--set",
    "hccl_buffsize_mb=16",
    "--rounds=3",
];

#[test]
fn a_run_tells_how_many_tasks_an_agent_posts_in_an_operator() {
    for backend in ["threads", "lockstep", "weak"] {
        let seen = json(0, &[&SMALL[..], &["--backend", backend]].concat());
        assert_eq!(seen["tasks_per_operator"], 15.0, "one for each peer, on {backend}");
        assert_eq!(seen["rounds"], 3);
    }
}

#[test]
fn a_rank_whose_agent_is_silent_is_named() {
    let silent = ["--inject", "silent=5", "--deadline", "2"];
    let line = fails(3, &[&SMALL[..], &silent].concat());
    assert!(line.contains("waiting for rank 5 ") && line.contains("missing: counts of rank 5"), "{line}");
    // What its agent writes comes but for the last word: rows are there, and the flag behind them is not.
    let silent = ["--inject", "silent=5:ends", "--deadline", "2"];
    let line = fails(3, &[&SMALL[..], &silent].concat());
    assert!(line.contains("dispatch of round 0") && line.contains("waiting for rank 5 "), "{line}");
    assert!(line.contains("missing: end flag of rank 5 after "), "{line}");
    let silent = ["--inject", "silent=5", "--backend", "weak"];
    let line = fails(3, &[&SMALL[..], &silent].concat());
    assert!(line.contains("missing: counts of rank 5"), "{line}");
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

fn words(value: &Value) -> Vec<u8> {
    let word = |n: &Value| (n.as_i64().unwrap() as i32).to_le_bytes();
    list(value).iter().flat_map(word).collect()
}

fn at<const N: usize>(item: &Value, keys: [&str; N]) -> [u64; N] {
    keys.map(|key| item[key].as_u64().unwrap_or_else(|| panic!("{key} of {item}")))
}

/// What ranks reorder, by receiver: the row's place in `expand_x` (local expert, source, slot), whose token and which
/// pair it is, and its position in the window.
type Planned = BTreeMap<u64, BTreeMap<[u64; 3], [u64; 3]>>;

/// Two experts on each of 16 ranks.
fn planned(plans: &[Value]) -> Planned {
    let mut planned = Planned::new();
    for (source, plan) in (0..).zip(plans) {
        for item in list(&plan["dispatch"]["reorder"]) {
            let [token, k, expert, to, slot, position] =
                at(item, ["token", "k", "expert", "to", "slot", "position"]);
            let before = planned.entry(to).or_default();
            assert_eq!(before.insert([expert % 2, source, slot], [token, k, position]), None);
        }
    }
    planned
}

#[test]
fn the_plan_of_a_rank_is_what_a_run_does() {
    let folder = tempdir().unwrap();
    let (case, out) = (folder.path().join("case"), folder.path().join("result"));
    let (case, out) = (text(&case), text(&out));
    let sets: Vec<_> = SMALL[3..13].to_vec();
    let gen_args =
        [&["gen", "--preset", "a2-64"][..], &sets, &["--mask", "pairs", "--seed", "3", "--out", case]];
    json(0, &gen_args.concat());
    json(0, &["run", case, "--out", out]);
    let mut result = TensorFile::open(Path::new(out)).unwrap();
    let mut inputs = TensorFile::open(&folder.path().join("case/inputs.safetensors")).unwrap();
    let plans: Vec<Value> =
        (0..16).map(|rank| json(0, &["plan", case, "--rank", &rank.to_string()])).collect();
    let all = planned(&plans);
    let mut tensor = |name: &str| inputs.read(name).unwrap();
    for (rank, plan) in (0u64..).zip(&plans) {
        let (dispatch, combine) = (&plan["dispatch"], &plan["combine"]);
        let mut seen = |name: &str| result.read(&format!("rank{rank}.{name}")).unwrap();
        assert_eq!(words(&dispatch["expand_idx"]), seen("expand_idx"));
        assert_eq!(words(&dispatch["ep_recv_counts"]), seen("ep_recv_counts"));
        // Rows by what is planned are the rows that came.
        let received: Vec<_> = all.get(&rank).into_iter().flatten().collect();
        let rows = received.iter().flat_map(|([_, source, _], [token, ..])| {
            tensor(&format!("rank{source}.x"))[*token as usize * 128..][..128].to_vec()
        });
        assert_eq!(rows.collect::<Vec<_>>(), seen("expand_x"), "rank {rank}");
        // Results go where dispatch's rows came from.
        for item in list(&combine["reorder"]) {
            let [row, to, position] = at(item, ["row", "to", "position"]);
            let (&[_, source, _], &[.., sent_at]) = received[row as usize];
            assert_eq!((to, position), (source, sent_at), "row {row} of rank {rank}");
        }
        // Its own rows come back in the order in which they went.
        let own = |item: &Value| at(item, ["token", "k", "from", "position"]);
        let mut back: Vec<_> = list(&combine["token_addr"]).iter().map(own).collect();
        let sent = |item: &Value| at(item, ["token", "k", "to", "position"]);
        let mut went: Vec<_> = list(&dispatch["reorder"]).iter().map(sent).collect();
        back.sort_unstable();
        went.sort_unstable();
        assert_eq!(back, went);
        // Every window that is awaited ends where a task of its rank ends.
        for operator in ["dispatch", "combine"] {
            assert_eq!(list(&plan[operator]["tasks"]).len(), 15);
            for item in list(&plan[operator]["awaits"]).iter().filter(|item| item["from"] != rank) {
                let [from, offset, flag] = at(item, ["from", "offset", "flag_offset"]);
                let to_me = |task: &&Value| task["remote_rank_id"] == rank;
                let task = list(&plans[from as usize][operator]["tasks"]).iter().find(to_me).unwrap();
                assert_eq!(at(task, ["remote_buf", "bytes"]), [offset, flag + 8 - offset]);
            }
        }
        let status = list(&dispatch["send_status"]);
        assert!(status.iter().all(|head| list(head).len() == 32 && head[24] == u32::MAX));
        assert_eq!(list(&dispatch["expert_cumsum"]).len(), 33);
    }
    let parts = (0..8).map(|core| json(0, &["plan", case, "--rank", "4", "--core", &core.to_string()]));
    let tasks: usize = parts.map(|part| list(&part["dispatch"]["tasks"]).len()).sum();
    assert_eq!(tasks, 15, "each task has one core that writes it");
}

#[test]
fn a_plan_of_all_ranks_says_how_full_windows_are() {
    let seen = json(0, &["plan", "--preset", "a2-64", "--seed", "1"]);
    let [tasks, window] = at(&seen, ["tasks_per_operator", "rank_window"]);
    assert_eq!((tasks, list(&seen["traffic"]).len()), (63, 64));
    let of = |key| list(&seen["traffic"]).iter().map(|rank| at(rank, [key])[0]).collect::<Vec<_>>();
    assert_eq!(of("rows_sent").iter().sum::<u64>(), 64 * 16 * 8);
    assert_eq!(of("rows_received").iter().sum::<u64>(), 64 * 16 * 8);
    assert!(of("window_bytes_max").iter().all(|&bytes| bytes <= window));
    let unknown = json(0, &["plan", "--preset", "a2-64", "--rank", "9"]);
    assert!(unknown["dispatch"].is_null() && list(&unknown["cores"]).len() == 8);
}
