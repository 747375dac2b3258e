//! The bare copies of a round are those that the machines make, and measuring them leaves the memory as it was.

use veriep_case::case::Case;
use veriep_case::generate::{self, generate};
use veriep_case::global_rank;
use veriep_core::fabric::Fabric;
use veriep_core::layout::outputs::capacity;
use veriep_core::place::{Place, Tensor};
use veriep_core::protocol::{Choices, Operator, Receive, Stage};
use veriep_core::units::CoreId;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::backend::{Backend, Pages};
use veriep_group::roofline::{MEASURED_FROM, Traffic, fastest};
use veriep_testing::trial::preset_with;

fn case(set: &[&str]) -> Case {
    let (config, _) = preset_with("tiny", set);
    generate(config, generate::Options { seed: 1, ..Default::default() }, "test").unwrap()
}

/// Returns the bytes that an operator copies in each of its phases, in all ranks together.
fn bytes(traffic: &Traffic<'_>, round: usize, operator: Operator) -> Vec<u64> {
    traffic.copies(round, operator).iter().map(|copies| copies.bytes).collect()
}

#[test]
fn rows_are_listed_once_for_each_time_that_they_are_copied() {
    let case = case(&["h=1024", "bs=16", "hccl_buffsize_mb=16"]);
    let sent: u64 = case.ranks.iter().map(|rank| rank.expert_ids.len() as u64).sum();
    let (rows, sums) = (sent * 2048, 2 * 16 * 2048);
    for (receive, dispatch, combine) in [
        (Receive::Copy, vec![rows, rows], vec![rows, rows + sums]),
        (Receive::InPlace, vec![rows], vec![rows, rows + sums]),
        (Receive::Direct { areas: 1 }, vec![rows], vec![rows + sums]),
    ] {
        let choices = Choices { receive, ..Choices::default() };
        let traffic = Traffic::new(&case, choices).unwrap();
        for round in [0, 1] {
            assert_eq!(bytes(&traffic, round, Operator::Dispatch), dispatch, "{receive:?}");
            assert_eq!(bytes(&traffic, round, Operator::Combine), combine, "{receive:?}");
        }
    }
}

#[test]
fn rows_on_a2_go_through_an_agent_and_a_relay() {
    let a2 = ["product=a2", "ep_world_size=16", "moe_expert_num=16", "h=1024", "hccl_buffsize_mb=200"];
    for (comm_alg, dispatch, combine) in [
        // Gathered in its own window, posted, copied out or summed.
        ("comm_alg=fullmesh", 3, 3),
        // To a relay, from there to the experts, copied out; back to a relay, summed there, and summed by the owner.
        ("comm_alg=hierarchy", 3, 3),
    ] {
        let case = case(&[&a2[..], &[comm_alg]].concat());
        let traffic = Traffic::new(&case, Choices::default()).unwrap();
        assert_eq!(bytes(&traffic, 0, Operator::Dispatch).len(), dispatch, "{comm_alg}");
        assert_eq!(bytes(&traffic, 0, Operator::Combine).len(), combine, "{comm_alg}");
    }
}

#[test]
fn a_message_to_a_relay_reads_its_token_unless_it_is_quantised() {
    for (quant_mode, operator, reads) in [
        ("quant_mode=0", Operator::Dispatch, true),
        ("quant_mode=2", Operator::Dispatch, false),
        ("quant_mode=0", Operator::Combine, false),
    ] {
        let servers = ["product=a2", "comm_alg=hierarchy", "ep_world_size=16", "moe_expert_num=16", "h=1024"];
        let case = case(&[&servers[..], &["hccl_buffsize_mb=200", quant_mode]].concat());
        let traffic = Traffic::new(&case, Choices::default()).unwrap();
        let copies = traffic.copies(0, operator);
        // Messages to relays come first.
        assert!(
            copies[0].bytes > 0 && copies[0].tokens == if reads { copies[0].bytes } else { 0 },
            "{quant_mode} {operator:?} {copies:?}"
        );
        assert!(copies[1..].iter().all(|copies| copies.tokens == 0), "{quant_mode} {operator:?} {copies:?}");
    }
}

#[test]
fn memory_on_which_copies_were_measured_is_as_new() {
    const ZEROS: [u8; 4096] = [0; 4096];
    let servers = ["product=a2", "comm_alg=hierarchy", "ep_world_size=16", "moe_expert_num=16", "h=7168"];
    let servers = case(&[&servers[..], &["hccl_buffsize_mb=105"]].concat());
    assert!(Traffic::new(&servers, Choices::default()).unwrap().bytes_sent() > MEASURED_FROM);
    let case = case(&["h=7168", "bs=48", "hccl_buffsize_mb=9"]);
    let direct = [Receive::Direct { areas: 1 }, Receive::Overwrite { areas: 1 }];
    let ways = [Receive::Copy, Receive::InPlace].into_iter().chain(direct);
    let of_way = |receive| (&case, Choices { receive, ..Choices::default() });
    let in_stage = |stage| (&servers, Choices { stage, ..Choices::default() });
    for (case, choices) in ways.map(of_way).chain([Stage::Two, Stage::Three].map(in_stage)) {
        // Zeros that were never written are read fastest in large pages.
        let memory = SharedMemory::with_pages(case, 1, Pages::Huge).unwrap();
        let memory = fastest(memory, (case, choices), 2).unwrap();
        for rank in global_rank::all(&case.shape) {
            let fabric = memory.fabric(rank, CoreId(0), 0);
            let is_zero = |bytes: &[u8]| {
                assert!(bytes.chunks(ZEROS.len()).all(|part| part == &ZEROS[..part.len()]), "{choices:?}");
            };
            is_zero(fabric.bytes(Place::window(0), case.shape.window_bytes()).unwrap());
            is_zero(fabric.bytes(Place::window_out(0), case.shape.window_out_bytes()).unwrap());
            for tensor in Tensor::ALL {
                let len = capacity(&case.shape, rank, tensor) as usize;
                memory.read_output(rank, 0, tensor, len, &mut |bytes| is_zero(bytes));
            }
        }
    }
}
