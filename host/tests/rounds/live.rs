//! Members of a live group receive and sum what the oracle says. A call that breaks a rule returns an error that names the rule.

use crate::common::trial::preset_with;
use core::time::Duration;
use std::thread;
use veriep::batch::Batch;
use veriep::case::{Case, OwnedMask};
use veriep::compare::expected;
use veriep::config::Config;
use veriep::error::Error;
use veriep::expert;
use veriep::generate::{self, MaskKind, generate};
use veriep::live::{Handle, Member, Plan, Tokens};
use veriep::world::Gone;
use veriep_core::inputs::{Inputs, Mask};
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::protocol::Receive;
use veriep_core::shape::{Dtype, Shape};
use veriep_core::units::RankId;
use veriep_core::vector::Any;

const LONG: Duration = Duration::from_secs(60);

fn case(set: &[&str], mask: MaskKind) -> Case {
    let (mut config, _) = preset_with("tiny", set);
    config.raise_buffer();
    generate(config, generate::Options { seed: 3, mask, ..generate::Options::default() }, "test").unwrap()
}

fn plan(config: &Config, deadline: Duration) -> Result<Plan, Error> {
    Plan::new(config.clone(), true, Any::default(), deadline)
}

fn members(config: &Config, deadline: Duration) -> Vec<Member> {
    plan(config, deadline).unwrap().local().unwrap()
}

fn go_on() -> bool {
    true
}

/// Returns the tokens that a member passes to dispatch: those of a batch without the inactive ones at its end.
fn tokens<'a>(inputs: &Inputs<'a>, shape: &Shape) -> Tokens<'a> {
    let Inputs { x, expert_ids, expert_scales, mask, .. } = *inputs;
    let all = Tokens { x, expert_ids, expert_scales, mask };
    let Mask::Tokens(mask) = mask else { return all };
    let n = mask.iter().filter(|&&active| active).count();
    Tokens {
        x: &x[..n * shape.row_bytes() as usize],
        expert_ids: &expert_ids[..n * shape.k() as usize],
        expert_scales: &expert_scales[..n * shape.k() as usize],
        mask: Mask::None,
    }
}

/// Returns the bytes of an output that dispatch has written.
#[expect(unsafe_code, reason = "a member gives addresses")]
fn read(member: &Member, of: Handle, tensor: Tensor) -> &[u8] {
    let (at, len) = member.output(of, tensor);
    // SAFETY: The batch has been dispatched, and combine needs the member for itself: until then nobody writes there.
    unsafe { core::slice::from_raw_parts(at, len) }
}

/// Returns the results that the stand-in experts compute from the rows that a member has received.
fn stand_ins(member: &Member, batch: &Batch<'_>, of: Handle) -> Vec<u8> {
    let reads = |at: Place, len, reads: &mut dyn FnMut(&[u8])| {
        let Region::Output(tensor) = at.region else { panic!("{at:?}") };
        reads(&read(member, of, tensor)[at.offset as usize..][..len as usize]);
        Ok(())
    };
    let mut y = Vec::new();
    expert::run(member.shape(), batch, (member.rank(), Receive::Copy), &reads, &mut y).unwrap();
    y
}

/// Compares what a member has received with the oracle, then combines, and compares the sums.
fn has_received_and_summed(member: &mut Member, batch: &Batch<'_>, of: Handle) {
    let rank = member.rank();
    let of_oracle = batch.with_cluster(|cluster| expected(cluster, batch, rank));
    let all = [Tensor::ExpandX, Tensor::DynamicScales, Tensor::ExpertTokenNums];
    for tensor in all.into_iter().filter(|&tensor| member.output(of, tensor).1 > 0) {
        assert!(read(member, of, tensor) == of_oracle[tensor as usize], "{tensor:?}");
    }
    let (y, mut x_out) = (stand_ins(member, batch, of), vec![0xAA; member.x_out_bytes()]);
    member.combine(of, &y, &mut x_out, &mut go_on).unwrap();
    assert!(x_out == of_oracle[Tensor::XOut as usize], "rank {rank} round {}", of.round);
}

/// Runs six rounds of a case with a thread for each member, and `in_flight` batches at once.
fn rounds(case: &Case, in_flight: usize) {
    let run = |mut member: Member| {
        for first in (0..6).step_by(in_flight) {
            let batches: Vec<_> = (first..first + in_flight).map(|n| Batch::varied(case, n)).collect();
            let dispatch = |batch: &Batch<'_>| {
                let given = tokens(&batch.inputs(member.rank()), &case.shape);
                member.dispatch(&given, &mut go_on).unwrap()
            };
            let handles: Vec<_> = batches.iter().map(dispatch).collect();
            for (batch, of) in batches.iter().zip(handles) {
                has_received_and_summed(&mut member, batch, of);
            }
        }
    };
    thread::scope(|scope| {
        members(&case.config, LONG).into_iter().for_each(|member| drop(scope.spawn(|| run(member))));
    });
}

#[test]
fn members_receive_and_sum_what_the_oracle_says() {
    for (set, mask) in [
        (&["bs=6"][..], MaskKind::None),
        (&["quant_mode=2", "aiv_num=3", "dtype=f16"], MaskKind::Tokens),
        (&["copy_expert_num=2", "zero_expert_num=1"], MaskKind::Pairs),
        (&["ep_world_size=3", "shared_expert_rank_num=1", "comm_quant_mode=2"], MaskKind::Tokens),
        (&["comm_alg=fullmesh_v2", "copy_expert_num=1", "zero_expert_num=1"], MaskKind::Pairs),
        (&["ep_world_size=4", "release=9.1.0", "tp_world_size=2"], MaskKind::None),
        (&["ep_world_size=4", "bs=[1,3,2,4]", "global_bs=16"], MaskKind::None),
        (&["ep_world_size=4", "bs=[0,3,0,4]", "global_bs=16"], MaskKind::None),
        (&["ep_world_size=4", "comm_alg=fullmesh_v2", "bs=[4,3,0,4]", "global_bs=16"], MaskKind::None),
        (&["product=a2", "ep_world_size=16", "moe_expert_num=16", "aiv_num=2"], MaskKind::Tokens),
    ] {
        let case = case(set, mask);
        rounds(&case, 1);
        rounds(&case, 2);
    }
    for bs in [&["bs=2"][..], &["bs=[2,0,1,2,0,0,0,0,0,0,0,0,0,0,0,1]", "global_bs=32"]] {
        let (config, routing) = preset_with("a2-hier-16", &[&["aiv_num=2", "h=1024"], bs].concat());
        let options = generate::Options { routing, ..generate::Options::default() };
        rounds(&generate(config, options, "test").unwrap(), 2);
    }
}

#[test]
fn pairs_without_an_expert_count_as_masked() {
    let case = case(&["bs=3", "moe_expert_num=8", "k=4"], MaskKind::None);
    let mut left_out = case.clone();
    for rank in &mut left_out.ranks {
        rank.mask = OwnedMask::Pairs((0..12).map(|pair| pair % 5 != 0).collect());
    }
    let batch = Batch::new(&left_out);
    let run = |mut member: Member| {
        let inputs = batch.inputs(member.rank());
        let ids = inputs.expert_ids.iter().enumerate().map(|(pair, &id)| if pair % 5 == 0 { -1 } else { id });
        let ids: Vec<_> = ids.collect();
        let given = Tokens { expert_ids: &ids, mask: Mask::None, ..tokens(&inputs, &case.shape) };
        let of = member.dispatch(&given, &mut go_on).unwrap();
        has_received_and_summed(&mut member, &batch, of);
    };
    thread::scope(|scope| {
        members(&case.config, LONG).into_iter().for_each(|member| drop(scope.spawn(|| run(member))));
    });
}

#[test]
fn what_cannot_be_is_refused_and_nothing_has_happened() {
    let case = case(&["bs=2"], MaskKind::None);
    let batch = Batch::new(&case);
    let line = |error: Error| error.lines().join("\n");
    let run = |mut member: Member, mut foreigner: Member| {
        let given = tokens(&batch.inputs(member.rank()), &case.shape);
        let foreign = foreigner.dispatch(&given, &mut go_on).unwrap();
        let refused = |member: &mut Member, wrong: Tokens<'_>, text: &str| {
            let seen = line(member.dispatch(&wrong, &mut go_on).unwrap_err());
            assert!(seen.starts_with(&format!("Group: {text}")), "{seen}");
        };
        let long = given.expert_ids.repeat(2);
        refused(
            &mut member,
            Tokens { expert_ids: &long, ..given },
            "expert_ids: 4 tokens: must be at most bs = 2",
        );
        refused(
            &mut member,
            Tokens { x: &given.x[1..], ..given },
            "x: 4095 bytes: must be 4096 for 2 tokens",
        );
        refused(
            &mut member,
            Tokens { mask: Mask::Pairs(&[true]), ..given },
            "x_active_mask: 1 values: must be 4",
        );
        refused(&mut member, Tokens { expert_ids: &[0, 0, 1, 9], ..given }, "expert_ids");
        let [first, second] = [(); 2].map(|()| member.dispatch(&given, &mut go_on).unwrap());
        let third = line(member.dispatch(&given, &mut go_on).unwrap_err());
        assert!(third.contains("a third must not be dispatched") && third.contains("DDDCCC"), "{third}");
        let mut x_out = vec![0; member.x_out_bytes()];
        let y = stand_ins(&member, &batch, second);
        let wrong = line(member.combine(second, &y, &mut x_out, &mut go_on).unwrap_err());
        assert!(wrong.contains("handle of round 1: must be of round 0"), "{wrong}");
        let wrong = line(member.combine(first, &y[2..], &mut x_out, &mut go_on).unwrap_err());
        assert!(wrong.starts_with("y: ") && wrong.contains("rows of 2048 bytes"), "{wrong}");
        let wrong = line(member.combine(foreign, &y, &mut x_out, &mut go_on).unwrap_err());
        assert!(wrong.ends_with("is of another rank or group"), "{wrong}");
        for of in [first, second] {
            has_received_and_summed(&mut member, &batch, of);
        }
        let wrong = line(member.combine(second, &y, &mut x_out, &mut go_on).unwrap_err());
        assert!(wrong.ends_with("has been combined already"), "{wrong}");
    };
    let [group, another] = [(); 2].map(|()| members(&case.config, LONG));
    thread::scope(|scope| {
        for (member, foreigner) in group.into_iter().zip(another) {
            scope.spawn(|| run(member, foreigner));
        }
    });
    let of = |set: &str| {
        let mut config = case.config.clone();
        config.set(set).unwrap();
        line(plan(&config, LONG).unwrap_err())
    };
    assert!(of("const_expert_num=1").contains("members have no tensors of const experts"));
    assert!(of("op=combine_add_rms_norm").contains("members have no residual"));
    assert_eq!(members(&case.config, LONG)[0].shape().dtype(), Dtype::Bf16);
}

#[test]
fn who_waits_too_long_says_for_whom() {
    let case = case(&[], MaskKind::None);
    let batch = Batch::new(&case);
    let [mut zero, mut one] =
        <[Member; 2]>::try_from(members(&case.config, Duration::from_millis(50))).unwrap();
    let given = tokens(&batch.inputs(RankId(0)), &case.shape);
    let error = zero.dispatch(&given, &mut go_on).unwrap_err();
    let Error::NoProgress { missing, .. } = &error else { panic!("{error}") };
    assert!(!missing.is_empty() && missing.iter().all(|m| m.source_rank == Some(1)), "{missing:?}");
    assert_eq!((missing[0].operator, missing[0].round), ("dispatch", 0));
    // For all.
    let error = one.dispatch(&given, &mut go_on).unwrap_err();
    assert!(matches!(error, Error::NoProgress { .. }), "{error}");
    let again = one.dispatch(&given, &mut go_on).unwrap_err();
    assert_eq!(again.lines(), error.lines(), "for good");
}

#[test]
fn who_leaves_or_is_interrupted_is_named_and_nobody_else() {
    let case = case(&["ep_world_size=4"], MaskKind::None);
    let batch = Batch::new(&case);
    for closes in [true, false] {
        // The last one has better things to do.
        let [zero, mut one, two, _three] = <[Member; 4]>::try_from(members(&case.config, LONG)).unwrap();
        thread::scope(|scope| {
            let waits = |mut member: Member| {
                let (batch, case) = (&batch, &case);
                scope.spawn(move || {
                    let given = tokens(&batch.inputs(member.rank()), &case.shape);
                    member.dispatch(&given, &mut go_on).unwrap_err()
                })
            };
            let waiting = [zero, two].map(waits);
            if closes {
                one.close();
            } else {
                let given = tokens(&batch.inputs(RankId(1)), &case.shape);
                let error = one.dispatch(&given, &mut || false).unwrap_err();
                assert!(matches!(error, Error::Interrupted(_)), "{error}");
            }
            for error in waiting.map(|one| one.join().unwrap()) {
                let [Gone { process: 1, how, ranks, .. }] = error.gone() else { panic!("{error}") };
                assert_eq!((how.as_str(), ranks.as_slice()), ("left", &[1][..]));
            }
        });
    }
}
