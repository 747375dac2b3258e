//! Each core does what `veriep plan` prints for it: every put and publish, in order, with place, length and count.

use crate::common::{json, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tempfile::tempdir;
use veriep_case::case;
use veriep_case::global_rank;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::Nic;
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::{Choices, Flags};
use veriep_core::units::{CoreId, RankId};
use veriep_group::backend::rank_remap::RankRemap;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::backend::{Backend, Layer};
use veriep_group::driver::threads::Spread;
use veriep_testing::trial::Trial;

/// What one core has others see; ranks by name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    Put { to: u64, region: Region, offset: u64, bytes: u64 },
    Publish { to: u64, region: Region, offset: u64, word: u64 },
}

type Log = BTreeMap<(u32, u32), Vec<Effect>>;

/// Memory that writes down what cores do to it.
struct Recorder {
    inner: SharedMemory,
    tp_world_size: u32,
    log: Mutex<Log>,
}

struct RecordingFabric<'b, F> {
    inner: F,
    recorder: &'b Recorder,
    rank: RankId,
    core: CoreId,
}

impl Backend for Recorder {
    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> impl Fabric {
        RecordingFabric { inner: self.inner.fabric(rank, core, batch), recorder: self, rank, core }
    }

    fn nic(&self, rank: RankId) -> impl Nic {
        self.inner.nic(rank)
    }

    fn read_output(&self, rank: RankId, batch: usize, of: Tensor, len: usize, read: &mut dyn FnMut(&[u8])) {
        self.inner.read_output(rank, batch, of, len, read);
    }
}

impl<F> RecordingFabric<'_, F> {
    fn record(&self, to: RankId, at: Place, effect: impl FnOnce(u64) -> Effect) {
        // After the status slots are the core's own words, of which a plan says nothing.
        if at.region != Region::State || at.offset < 768 << 10 {
            let to = global_rank::reached(self.recorder.tp_world_size, self.rank, to, at);
            let mut log = self.recorder.log.lock().unwrap();
            log.entry((self.rank.0, self.core.0)).or_default().push(effect(to.0.into()));
        }
    }
}

impl<F: Fabric> Middleware for RecordingFabric<'_, F> {
    veriep_core::around! { inner: F, its capabilities }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let bytes = (row.len() + tail.len()) as u64;
        let Place { region, offset } = at;
        self.record(to, at, |to| Effect::Put { to, region, offset, bytes });
        self.inner.put(to, at, row, tail)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let Place { region, offset } = at;
        self.record(to, at, |to| Effect::Publish { to, region, offset, word });
        self.inner.publish(to, at, word)
    }
}

fn number(item: &Value, key: &str) -> u64 {
    item[key].as_u64().unwrap_or_else(|| panic!("{key} of {item}"))
}

fn items<'p>(plan: &'p Value, key: &str) -> &'p [Value] {
    plan[key].as_array().unwrap_or_else(|| panic!("{key} of {plan}"))
}

fn put(to: u64, region: Region, offset: u64, bytes: u64) -> Effect {
    Effect::Put { to, region, offset, bytes }
}

/// A flag: 1.0, and with it a number, or once more 1.0.
fn publish(to: u64, region: Region, offset: u64, count: Option<u64>) -> Effect {
    Effect::Publish { to, region, offset, word: count.unwrap_or(0x3F80_0000) << 32 | 0x3F80_0000 }
}

/// What a plan of one core comes to.
fn effects(plan: &Value) -> Vec<Effect> {
    let (dispatch, combine) = (&plan["dispatch"], &plan["combine"]);
    let told = |offset, has_count: bool| -> Vec<_> {
        let tell = |p: &Value| {
            let count = has_count.then(|| number(p, "count"));
            publish(number(p, "to"), Region::State, number(p, offset), count)
        };
        items(dispatch, "publishes").iter().map(tell).collect()
    };
    let sent: Vec<_> = items(dispatch, "sends").iter().flat_map(|s| sent(&dispatch["blocks"], s)).collect();
    let mut all = Vec::new();
    for phase in items(dispatch, "phases") {
        match phase.as_str().unwrap() {
            "sends" | "sends, each block with its flag" => all.extend(sent.iter().cloned()),
            "publishes" => all.extend(told("offset", true)),
            "publishes token flags" => all.extend(told("token_flag_offset", false)),
            "tp" => all.extend(lent(&dispatch["tp"])),
            _ => {}
        }
    }
    all.extend(lent(&combine["tp"]));
    for s in items(combine, "sends") {
        all.push(put(number(s, "to"), Region::Window, number(s, "offset"), number(s, "bytes")));
        all.push(publish(number(s, "to"), Region::State, number(s, "flag_offset"), None));
    }
    all
}

/// A record, in one or in blocks.
fn sent(blocks: &Value, send: &Value) -> Vec<Effect> {
    let (to, offset, bytes) = (number(send, "to"), number(send, "offset"), number(send, "bytes"));
    if blocks.is_null() {
        return vec![put(to, Region::Window, offset, bytes)];
    }
    let count = number(blocks, "count");
    let block = |i| {
        let at = offset + i * number(blocks, "stride");
        let bytes = number(blocks, if i + 1 < count { "bytes" } else { "bytes_of_last" });
        let flag = publish(to, Region::Window, at + number(blocks, "flag_offset"), None);
        [put(to, Region::Window, at, bytes), flag]
    };
    (0..count).flat_map(block).collect()
}

/// What goes to the TP peer.
fn lent(tp: &Value) -> Vec<Effect> {
    if tp.is_null() {
        return Vec::new();
    }
    let peer = number(tp, "peer");
    let [start, end] = [0, 1].map(|i| tp["rows"][i].as_u64().unwrap());
    let row = |i| number(tp, "offset") + i * number(tp, "stride");
    let rows = (0..end - start).map(|i| put(peer, Region::TpWindow, row(i), number(tp, "bytes")));
    let first = put(peer, Region::TpState, number(tp, "first_row_offset"), 4);
    let slot = publish(peer, Region::TpState, number(tp, "slot_offset"), Some(end - start));
    rows.chain([first, slot]).collect()
}

const KINDS: [&[&str]; 12] = [
    &["--set", "aiv_num=3"],
    &["--set", "aiv_num=1", "--mask", "pairs"],
    &["--set", "ep_world_size=4", "--set", "shared_expert_rank_num=2", "--set", "zero_expert_num=2"],
    &["--set", "comm_quant_mode=2", "--set", "quant_mode=2", "--mask", "tokens"],
    &["--set", "comm_alg=fullmesh_v2", "--set", "aiv_num=1"],
    &["--set", "comm_alg=fullmesh_v2", "--mask", "pairs", "--set", "copy_expert_num=1"],
    &["--set", "comm_alg=fullmesh_v2", "--set", "bs=[1, 3]", "--set", "global_bs=6"],
    &["--set", "comm_alg=fullmesh_v2", "--set", "ep_world_size=3", "--set", "shared_expert_rank_num=1"],
    &["--set", "comm_alg=fullmesh_v2", "--set", "quant_mode=2", "--routing", "hot", "--set", "h=1056"],
    &[
        "--set",
        "release=9.1.0",
        "--set",
        "tp_world_size=2",
        "--set",
        "moe_expert_num=2",
        "--set",
        "k=1",
        "--set",
        "aiv_num=3",
    ],
    &[
        "--set",
        "release=9.1.0",
        "--set",
        "tp_world_size=2",
        "--set",
        "ep_world_size=3",
        "--set",
        "shared_expert_rank_num=1",
        "--set",
        "moe_expert_num=2",
        "--set",
        "k=2",
        "--set",
        "quant_mode=2",
        "--set",
        "aiv_num=2",
    ],
    &["--set", "ep_world_size=4", "--set", "k=1", "--dead", "0,2"],
];

#[test]
fn what_is_planned_is_what_every_core_does_in_order() {
    let folder = tempdir().unwrap();
    for (i, kind) in KINDS.iter().enumerate() {
        let path = folder.path().join(format!("case{i}"));
        let base = ["gen", "--preset", "tiny", "--seed", "3", "--out", text(&path)];
        json(0, &[&base[..], kind].concat());
        let case = case::load(&path).unwrap();
        let is_v2 = kind.contains(&"comm_alg=fullmesh_v2");
        for (order, flags) in [("staggered", Flags::Joint), ("plain", Flags::Separate)] {
            let recorder = Recorder {
                inner: SharedMemory::new(&case, 1).unwrap(),
                tp_world_size: case.shape.tp_world_size(),
                log: Mutex::default(),
            };
            let backend = RankRemap::of(&case).over(recorder);
            let mut trial = Trial::new(&case, "DC", 1);
            let order_of_machines = if order == "plain" { SendOrder::Plain } else { SendOrder::Staggered };
            trial.options.choices = Choices { order: order_of_machines, flags, ..Choices::default() };
            trial.threaded(&backend, 1, Spread::Ranks).unwrap();
            let log = backend.inner.log.lock().unwrap();
            let mut seen = 0;
            for rank in global_rank::all(&case.shape).map(|rank| case.name(rank).0) {
                for core in 0..case.shape.aiv_num() {
                    let (r, c) = (rank.to_string(), core.to_string());
                    let mut args = vec!["plan", text(&path), "--rank", &r, "--core", &c, "--order", order];
                    if flags == Flags::Separate && !is_v2 {
                        args.extend(["--flags", "separate"]);
                    }
                    let planned = effects(&json(0, &args));
                    let done = log.get(&(rank, core)).cloned().unwrap_or_default();
                    assert_eq!(planned, done, "rank {rank} core {core} of {kind:?}, {order}, {flags:?}");
                    seen += done.len();
                }
            }
            assert!(
                seen > 0 && seen == log.values().map(Vec::len).sum::<usize>(),
                "no other core did a thing"
            );
        }
    }
}
