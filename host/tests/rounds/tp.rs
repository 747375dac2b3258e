//! TP = 2: numbers in files, what peers add to each other, what corruption and a silent peer look like.

use crate::common::trial::small;
use crate::common::{fails, json, text};
use half::bf16;
use tempfile::tempdir;
use veriep::backend::Backend;
use veriep::backend::lockstep::{Lockstep, Memory};
use veriep::config::Config;
use veriep::generate::{Left, Options, generate_left};
use veriep::store::TensorFile;
use veriep_core::fabric::{Capabilities, Fabric, Flag, Progress, ProtocolError, Wait};
use veriep_core::inputs::Inputs;
use veriep_core::layout::state::Partition;
use veriep_core::layout::tp;
use veriep_core::place::Tensor;
use veriep_core::protocol::{
    Choices, Context, Env, Machine, Operands, Operator, Scratch, scratch_bytes, scratch_words,
};
use veriep_core::shape::{BatchSizes, Config as CoreConfig, Limits, Shape};
use veriep_core::units::{CoreId, RankId};
use veriep_core::vector::Portable;

/// One EP rank with a peer, two cores each, three tokens of two elements.
const CORES: u32 = 2;
const BS: usize = 3;

fn pair() -> Shape {
    let config = CoreConfig {
        ep_world_size: 1,
        tp_world_size: 2,
        moe_expert_num: 1,
        k: 1,
        h: 2,
        bs: BatchSizes::Uniform(BS as i64),
        aiv_num: CORES.into(),
        hccl_buffsize_mb: 1,
        ..CoreConfig::default()
    };
    Shape::new(&config, Limits::None).unwrap_or_else(|found| panic!("{found:?}"))
}

fn row(value: f32) -> Vec<u8> {
    [value, -value].iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect()
}

/// Steps both cores of so many peers through an operator in turn until all are done or one fails, or nobody moves any more.
/// Combine is given `y` of each. `before` is called before each step, with the peer that takes it.
fn poll(
    shape: &Shape,
    backend: &Lockstep,
    operator: Operator,
    peers: usize,
    y: &[Vec<u8>; 2],
    mut before: impl FnMut(usize),
) -> Result<Vec<Wait>, ProtocolError> {
    let core = |i| {
        let core = (RankId(0), CoreId(i % CORES));
        let env = Env::new(shape, core, Choices::default(), Capabilities::empty(), Portable).unwrap();
        let env = env.with_tp_rank(RankId(i / CORES));
        (Machine::begin(operator, &env), env, vec![0; scratch_words(shape)], vec![0; scratch_bytes(shape)])
    };
    let mut cores: Vec<_> = (0..2 * CORES).map(core).collect();
    let given = [0, 1].map(|peer| {
        [(Tensor::AssistInfo, 12 * 2 * BS), (Tensor::EpRecvCounts, 8)]
            .map(|(tensor, len)| output(backend, peer, tensor, len))
    });
    with_inputs(|inputs| {
        loop {
            let (mut waits, mut moved) = (Vec::new(), false);
            for (i, (machine, env, words, row)) in cores.iter_mut().enumerate().take(peers * CORES as usize) {
                let (peer, core) = (i / CORES as usize, CoreId(i as u32 % CORES));
                before(peer);
                let mut cx = Context {
                    shape,
                    env,
                    fabric: &mut backend.fabric(RankId(peer as u32), core, 0),
                    inputs: &inputs[peer],
                    operands: &Operands {
                        y: &y[peer],
                        assist_info: &given[peer][0],
                        ep_recv_counts: &given[peer][1],
                        ..Operands::default()
                    },
                    scratch: Scratch { words, row },
                };
                match machine.step(&mut cx)? {
                    Progress::Stepped => moved = true,
                    Progress::Pending(wait) => waits.push(wait),
                    Progress::Done => {}
                }
            }
            if !moved {
                return Ok(waits);
            }
        }
    })
}

/// Tokens 1, 2, 3 of peer 0 and 11, 12, 13 of peer 1, all for the only expert.
fn with_inputs<T>(f: impl FnOnce(&[Inputs<'_>; 2]) -> T) -> T {
    let x = [0, 10].map(|base| (1..=BS).flat_map(|t| row((base + t) as f32)).collect::<Vec<_>>());
    let inputs = |x| Inputs { x, expert_ids: &[0; BS], expert_scales: &[1.0; BS], ..Inputs::default() };
    f(&[inputs(&x[0]), inputs(&x[1])])
}

fn dispatched(shape: &Shape) -> Lockstep {
    let backend = Lockstep::new(shape, 1, Memory::Strong, 0).unwrap();
    let waits = poll(shape, &backend, Operator::Dispatch, 2, &Default::default(), |_| {});
    assert_eq!(waits, Ok(vec![]));
    backend
}

fn output(backend: &Lockstep, peer: usize, tensor: Tensor, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    backend.read_output(RankId(peer as u32), 0, tensor, len, &mut |bytes| all = bytes.to_vec());
    all
}

/// Runs combine on so many of the peers.
fn combined(shape: &Shape, backend: &Lockstep, peers: usize) -> Result<Vec<Wait>, ProtocolError> {
    // Peer 0 returns 100, 101, ... for its rows and then the other's, peer 1 returns 200, 204, ...
    let y = [(100.0, 1.0), (200.0, 4.0)]
        .map(|(base, step)| (0..2 * BS).flat_map(|i| row(base + step * i as f32)).collect::<Vec<_>>());
    poll(shape, backend, Operator::Combine, peers, &y, |_| {})
}

#[test]
fn peers_gather_each_others_rows_behind_their_own() {
    let shape = pair();
    let backend = dispatched(&shape);
    let rows = |values: [f32; 2 * BS]| values.iter().flat_map(|&v| row(v)).collect::<Vec<_>>();
    for (peer, x) in [[1., 2., 3., 11., 12., 13.], [11., 12., 13., 1., 2., 3.]].into_iter().enumerate() {
        assert_eq!(output(&backend, peer, Tensor::ExpandX, 4 * 2 * BS), rows(x), "peer {peer}");
        let totals = [3, 3].map(i32::to_le_bytes).concat();
        assert_eq!(output(&backend, peer, Tensor::TpRecvCounts, 8), totals);
        assert_eq!(output(&backend, peer, Tensor::EpRecvCounts, 8), totals);
        assert_eq!(output(&backend, peer, Tensor::ExpertTokenNums, 8), 6i64.to_le_bytes());
    }
}

#[test]
fn each_peer_adds_what_the_other_returns_for_its_rows() {
    let shape = pair();
    let backend = dispatched(&shape);
    assert_eq!(combined(&shape, &backend, 2), Ok(vec![]));
    // Own row t, and row 3 + t of the other.
    let sums = [[100. + 212., 101. + 216., 102. + 220.], [200. + 103., 204. + 104., 208. + 105.]];
    for (peer, sums) in sums.into_iter().enumerate() {
        let expected: Vec<u8> = sums.iter().flat_map(|&sum| row(sum)).collect();
        assert_eq!(output(&backend, peer, Tensor::XOut, 4 * BS), expected, "peer {peer}");
    }
}

#[test]
fn sums_of_peers_are_rounded_once_to_nearest_even() {
    use veriep_core::shape::Dtype;
    use veriep_core::vector::Vector;
    for (a, b, sum) in [
        (256.0, 1.0, 256.0),
        (256.0, 3.0, 260.0),
        (258.0, 1.0, 260.0),
        (-0.0, -0.0, -0.0),
        (f32::INFINITY, 1.0, f32::INFINITY),
    ] {
        let mut out = [0; 4];
        Portable.add(Dtype::Bf16, &row(a), &row(b), &mut out);
        assert_eq!(out.as_slice(), row(sum), "{a} + {b}");
    }
    let mut out = [0; 4];
    Portable.add(Dtype::Bf16, &row(f32::INFINITY), &row(f32::NEG_INFINITY), &mut out);
    assert_eq!(out, [0xC0, 0x7F, 0xC0, 0x7F]);
}

#[test]
fn a_slot_that_no_peer_could_have_published_is_refused() {
    let shape = pair();
    let first = |first: u32| first.to_le_bytes();
    for (word, row, error) in [
        (7, 0, ProtocolError::Flag { awaited: Wait::new(Flag::Tp, RankId(1), &[0]), seen: 7 }),
        // Four rows of three, and two that are not the first core's share.
        (4 << 32 | 0x3F80_0000, 0, ProtocolError::TpRows { core: CoreId(0), first: 0, rows: 4, max: 3 }),
        (
            2 << 32 | 0x3F80_0000,
            u32::MAX,
            ProtocolError::TpRows { core: CoreId(0), first: u32::MAX, rows: 2, max: 3 },
        ),
        (2 << 32 | 0x3F80_0000, 1, ProtocolError::TpRows { core: CoreId(0), first: 1, rows: 2, max: 3 }),
    ] {
        let backend = dispatched(&shape);
        let mut fabric = backend.fabric(RankId(1), CoreId(0), 0);
        let at = tp::slot(Operator::Combine, Partition::P0, CoreId(0));
        fabric.put(RankId(0), tp::first_row(at), &first(row), &[]).unwrap();
        fabric.publish(RankId(0), at, word).unwrap();
        drop(fabric);
        // Peer 1 stays away, or it would overwrite the slot.
        assert_eq!(combined(&shape, &backend, 1), Err(error));
    }
}

#[test]
fn a_row_of_the_peer_with_a_token_out_of_order_is_refused() {
    let shape = pair();
    let backend = Lockstep::new(&shape, 1, Memory::Strong, 0).unwrap();
    let mut poked = false;
    let result = poll(&shape, &backend, Operator::Dispatch, 2, &Default::default(), |peer| {
        if peer == 1 && !poked {
            let slot = tp::slot(Operator::Dispatch, Partition::P0, CoreId(0));
            let heard = backend.fabric(RankId(0), CoreId(0), 0).observe(slot).unwrap();
            if heard != 0 {
                // Peer 1 has told of its rows; the second becomes one more copy of the first.
                let record = tp::record(&shape, RankId(0), Partition::P0, 1);
                let triple = veriep_core::layout::record::triple_of(&shape, record);
                backend.fabric(RankId(1), CoreId(0), 0).put(RankId(0), triple, &[0; 12], &[]).unwrap();
                poked = true;
            }
        }
    });
    assert_eq!(result, Err(ProtocolError::Triple { row: 4, seen: [0, 0, 0] }));
}

#[test]
fn a_peer_that_does_not_come_is_named() {
    let shape = pair();
    let backend = Lockstep::new(&shape, 1, Memory::Strong, 0).unwrap();
    let waits = poll(&shape, &backend, Operator::Dispatch, 1, &Default::default(), |_| {});
    let wait = |core| Wait::new(Flag::Tp, RankId(1), &[core]);
    assert_eq!(waits, Ok(vec![wait(0), wait(1)]));
    assert_eq!(wait(1).to_string(), "missing: TP flag of rank 1, core 1");
}

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
