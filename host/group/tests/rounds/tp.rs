//! TP = 2: numbers in files, what peers add to each other, what corruption and a silent peer look like.

use half::bf16;
use veriep_core::fabric::{Capabilities, Fabric, Flag, Progress, ProtocolError, Terms, Wait};
use veriep_core::inputs::Inputs;
use veriep_core::layout::state::Partition;
use veriep_core::layout::tp;
use veriep_core::place::Tensor;
use veriep_core::protocol::{
    Choices, CombineInputs, Context, Env, Machine, Operator, Scratch, scratch_bytes, scratch_words,
};
use veriep_core::shape::{BatchSizes, Config as CoreConfig, Limits, Shape};
use veriep_core::units::{CoreId, RankId};
use veriep_core::vector::Portable;
use veriep_group::backend::Backend;
use veriep_group::backend::lockstep::{Lockstep, Memory};

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

/// Steps both cores of so many peers through an operator in turn until all are done or one fails, or none moves any more.
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
        let (rank, core) = (RankId(0), CoreId(i % CORES));
        let terms = Terms::new(Capabilities::empty());
        let env = Env::new(shape, rank, core, Choices::default(), terms, Portable).unwrap();
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
                    core: env.on(shape)?,
                    fabric: &mut backend.fabric(RankId(peer as u32), core, 0),
                    inputs: &inputs[peer],
                    combine_inputs: &CombineInputs {
                        y: &y[peer],
                        assist_info: &given[peer][0],
                        ep_recv_counts: &given[peer][1],
                        ..CombineInputs::default()
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
