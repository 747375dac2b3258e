//! Members of a live group receive and sum what the reference says. A call that breaks a rule returns an error that names the rule.

mod halves;

use core::time::Duration;
use std::thread;
use veriep_case::batch::Batch;
use veriep_case::case::{Case, OwnedMask};
use veriep_case::config::Config;
use veriep_case::error::{Error, Gone};
use veriep_case::generate::{self, MaskKind, generate};
use veriep_core::inputs::{Inputs, Mask};
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::protocol::Receive;
use veriep_core::shape::{Dtype, Limits, Shape};
use veriep_core::units::RankId;
use veriep_group::compare::expected;
use veriep_group::expert;
use veriep_group::live::{Handle, Member, Order, Plan, Results, Terms, Tokens};
use veriep_testing::trial::preset_with;

const LONG: Duration = Duration::from_secs(60);

fn case(set: &[&str], mask: MaskKind) -> Case {
    let (mut config, _) = preset_with("tiny", set);
    config.raise_buffer();
    generate(config, generate::Options { seed: 3, mask, ..generate::Options::default() }, "test").unwrap()
}

fn terms(deadline: Duration) -> Terms {
    Terms { deadline, is_fixed: true, ..Terms::default() }
}

fn plan(config: &Config, deadline: Duration) -> Result<Plan, Error> {
    Plan::new(config.clone(), terms(deadline))
}

fn members(config: &Config, deadline: Duration) -> Vec<Member> {
    plan(config, deadline).unwrap().local(&[]).unwrap()
}

/// Runs `run` for each member, on a thread of its own.
fn each<T: Send>(members: Vec<Member>, run: impl Fn(Member) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = members.into_iter().map(|member| scope.spawn(move || run(member))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn go_on() -> bool {
    true
}

/// Returns the tokens that a member passes to dispatch: those of a batch without the inactive ones at its end.
fn tokens<'a>(inputs: &Inputs<'a>, shape: &Shape) -> Tokens<'a> {
    let Inputs { x, expert_ids, expert_scales, mask, scales, .. } = *inputs;
    let all = Tokens { x, expert_ids, expert_scales, mask, scales, ..Tokens::default() };
    let Mask::Tokens(mask) = mask else { return all };
    let n = mask.iter().filter(|&&active| active).count();
    Tokens {
        x: &x[..n * shape.row_bytes() as usize],
        expert_ids: &expert_ids[..n * shape.k() as usize],
        expert_scales: &expert_scales[..n * shape.k() as usize],
        mask: Mask::None,
        ..all
    }
}

/// Returns the bytes of an output that dispatch has written.
#[expect(unsafe_code, reason = "a member gives addresses")]
fn read<'m>(member: &'m Member, of: &Handle, tensor: Tensor) -> &'m [u8] {
    let (at, len) = member.output(of, tensor);
    // SAFETY: The batch has been dispatched, and combine needs the member for itself: until then no core writes there.
    unsafe { core::slice::from_raw_parts(at, len) }
}

/// Returns the results that the stand-in experts compute from the rows that a member has received.
fn stand_ins(member: &Member, batch: &Batch<'_>, of: &Handle) -> Vec<u8> {
    let reads = |at: Place, len, reads: &mut dyn FnMut(&[u8])| {
        let Region::Output(tensor) = at.region else { panic!("{at:?}") };
        reads(&read(member, of, tensor)[at.offset as usize..][..len as usize]);
        Ok(())
    };
    let mut y = Vec::new();
    let shape = member.shape_of(of.layer()).unwrap();
    expert::run(shape, batch, (member.rank(), Receive::Copy), &reads, &mut y).unwrap();
    y
}

/// What a batch brings to combine besides the experts' results, for the tokens that [`tokens`] gives dispatch.
fn results<'a>(inputs: &Inputs<'a>, y: &'a [u8]) -> Results<'a> {
    let active = match inputs.mask {
        Mask::Tokens(mask) => mask.iter().filter(|&&active| active).count() * inputs.x.len() / mask.len(),
        _ => inputs.x.len(),
    };
    Results {
        y,
        expert_scales: None,
        shared_expert_x: inputs.shared_expert_x.map(|rows| &rows[..active]),
        const_expert_alpha_1: inputs.const_expert_alpha_1,
        const_expert_alpha_2: inputs.const_expert_alpha_2,
        const_expert_v: inputs.const_expert_v,
    }
}

/// Compares what a member has received with the reference, then combines, and compares the sums.
fn has_received_and_summed(member: &mut Member, batch: &Batch<'_>, of: &Handle) {
    has_received(member, batch, of);
    let inputs = batch.inputs(member.rank());
    let y = stand_ins(member, batch, of);
    sums(member, batch, of, &results(&inputs, &y));
}

fn has_received(member: &Member, batch: &Batch<'_>, of: &Handle) {
    let of_oracle = batch.with_cluster(|cluster| expected(cluster, batch, member.rank()));
    for tensor in [
        Tensor::ExpandX,
        Tensor::DynamicScales,
        Tensor::ExpertTokenNums,
        Tensor::AssistInfo,
        Tensor::EpRecvCounts,
        Tensor::ExpandScales,
        Tensor::TpRecvCounts,
    ] {
        let seen = read(member, of, tensor);
        // After the counts A2 has entries for a step that these operators do not take.
        assert!(of_oracle[tensor as usize].starts_with(seen), "{tensor:?}");
        assert!(!seen.is_empty() || of_oracle[tensor as usize].is_empty() || of.rows == 0, "{tensor:?}");
    }
}

/// Combines a batch and compares the sums.
fn sums(member: &mut Member, batch: &Batch<'_>, of: &Handle, results: &Results<'_>) {
    let rank = member.rank();
    let of_oracle = batch.with_cluster(|cluster| expected(cluster, batch, rank));
    let mut x_out = vec![0xAA; member.x_out_bytes(of.layer())];
    member.combine(of, results, &mut x_out, &mut go_on).unwrap();
    assert!(x_out == of_oracle[Tensor::XOut as usize], "rank {rank} batch {}", of.batch);
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
            for (batch, of) in batches.iter().zip(&handles) {
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
        has_received_and_summed(&mut member, &batch, &of);
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
        refused(&mut member, Tokens { expert_scales: &[f32::INFINITY; 4], ..given }, "expert_scales");
        let [first, second] = [(); 2].map(|()| member.dispatch(&given, &mut go_on).unwrap());
        let third = line(member.dispatch(&given, &mut go_on).unwrap_err());
        assert!(third.contains("a third must not be dispatched") && third.contains("DDDCCC"), "{third}");
        let mut x_out = vec![0; member.x_out_bytes(0)];
        let y = stand_ins(&member, &batch, &second);
        let given = Results { y: &y, ..Results::default() };
        let mut refused = |member: &mut Member, of: &Handle, given: &Results<'_>| {
            line(member.combine(of, given, &mut x_out, &mut go_on).unwrap_err())
        };
        let wrong = refused(&mut member, &second, &given);
        assert!(wrong.contains("handle of batch 1: must be of batch 0"), "{wrong}");
        // Of the oldest batch, too little and too much.
        let whole = stand_ins(&member, &batch, &first);
        let longer = [&whole[..], &[0; 2048]].concat();
        for y in [&whole[2..], &whole[2048..], &longer[..whole.len() + 2], &longer] {
            let wrong = refused(&mut member, &first, &Results { y, ..given });
            assert!(wrong.starts_with("y: ") && wrong.contains("rows of 2048 bytes"), "{wrong}");
        }
        let of_whole = Results { y: &whole, ..given };
        for len in [0, 1, 2 * member.x_out_bytes(0)] {
            let wrong = line(member.combine(&first, &of_whole, &mut vec![0; len], &mut go_on).unwrap_err());
            assert!(wrong.starts_with("x_out: ") && wrong.contains("must be"), "{wrong}");
        }
        let wrong = refused(&mut member, &foreign, &given);
        assert!(wrong.ends_with("is of another rank or group"), "{wrong}");
        let wrong = refused(&mut member, &first, &Results { expert_scales: Some(&[1.0]), ..given });
        assert!(wrong.contains("expert_scales: 1 values: must be 4 for 2 tokens"), "{wrong}");
        let wrong = refused(&mut member, &first, &Results { expert_scales: Some(&[f32::NAN; 4]), ..given });
        assert!(wrong.contains("expert_scales") && wrong.contains("finite"), "{wrong}");
        let wrong = refused(&mut member, &first, &Results { shared_expert_x: Some(&[0; 7]), ..given });
        assert!(wrong.contains("shared_expert_x: 7 bytes: must be 4096 for 2 tokens"), "{wrong}");
        let wrong = refused(&mut member, &first, &Results { const_expert_v: &[0; 2], ..given });
        assert!(wrong.contains("const_expert_v"), "{wrong}");
        for of in [&first, &second] {
            has_received_and_summed(&mut member, &batch, of);
        }
        let mut x_out = vec![0; member.x_out_bytes(0)];
        let wrong = line(member.combine(&second, &given, &mut x_out, &mut go_on).unwrap_err());
        assert!(wrong.ends_with("has been combined already"), "{wrong}");
        let wrong = Tokens { layer: 1, ..tokens(&batch.inputs(member.rank()), &case.shape) };
        let wrong = line(member.dispatch(&wrong, &mut go_on).unwrap_err());
        assert_eq!(wrong, "layer = 1: must be in [0, 1)");
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
    assert!(of("op=combine_add_rms_norm").contains("members have no residual"));
    assert_eq!(members(&case.config, LONG)[0].shape().dtype(), Dtype::Bf16);
}

/// Makes a case in which a rank brings everything that a member takes.
fn full_case(set: &[&str], options: generate::Options) -> Case {
    let (mut config, _) = preset_with("tiny", set);
    config.raise_buffer();
    generate(config, generate::Options { seed: 5, ..options }, "test").unwrap()
}

#[test]
fn members_take_every_tensor_of_the_operators() {
    let plain = generate::Options::default();
    let smooth = generate::Options { smooth_scales: true, ..plain };
    let shared = generate::Options { shared_expert_x: true, ..plain };
    let masked = generate::Options { mask: MaskKind::Tokens, ..shared };
    for (set, options) in [
        (&["quant_mode=2", "bs=5"][..], smooth),
        (&["quant_mode=2", "ep_world_size=3", "shared_expert_rank_num=1"], smooth),
        (&["bs=5"], shared),
        (&["bs=5"], masked),
        (&["const_expert_num=2", "copy_expert_num=1", "zero_expert_num=1", "bs=5"], masked),
        (&["const_expert_num=1", "dtype=f16"], plain),
    ] {
        rounds(&full_case(set, options), 2);
    }
}

#[test]
fn weights_that_dispatch_did_not_have_are_given_to_combine() {
    for set in [&["bs=3"][..], &["comm_quant_mode=2"], &["comm_alg=fullmesh_v2"]] {
        let case = full_case(set, generate::Options::default());
        let batch = Batch::new(&case);
        each(members(&case.config, LONG), |mut member| {
            let inputs = batch.inputs(member.rank());
            let unknown = Tokens { expert_scales: &[], ..tokens(&inputs, &case.shape) };
            let of = member.dispatch(&unknown, &mut go_on).unwrap();
            has_received(&member, &batch, &of);
            let y = stand_ins(&member, &batch, &of);
            let mut given = results(&inputs, &y);
            let mut x_out = vec![0; member.x_out_bytes(0)];
            let missing = member.combine(&of, &given, &mut x_out, &mut go_on).unwrap_err();
            let missing = missing.lines().join("");
            assert!(missing.ends_with("expert_scales is missing: must be given to dispatch or to combine"));
            given.expert_scales = Some(inputs.expert_scales);
            sums(&mut member, &batch, &of, &given);
        });
    }
}

#[test]
fn logical_experts_are_sent_to_their_replicas() {
    let set = ["moe_expert_num=8", "ep_world_size=4", "bs=6"];
    let options = generate::Options { logical_experts: Some(5), ..generate::Options::default() };
    let case = full_case(&set, options);
    let batch = Batch::new(&case);
    let map = case.expert_map.clone();
    let plan = Plan::of_layers(vec![case.config.clone()], map, terms(LONG)).unwrap();
    each(plan.local(&[]).unwrap(), |mut member| {
        let logical = &case.ranks[member.rank().index()].expert_ids;
        let given = tokens(&batch.inputs(member.rank()), &case.shape);
        let given = Tokens { expert_ids: logical, ..given };
        let of = member.dispatch(&given, &mut go_on).unwrap();
        has_received_and_summed(&mut member, &batch, &of);
        let physical = vec![7; logical.len()];
        let wrong = member.dispatch(&Tokens { expert_ids: &physical, ..given }, &mut go_on).unwrap_err();
        assert!(wrong.lines().join("").contains("[0, 5)"), "{:?}", wrong.lines());
    });
}

#[test]
fn layers_of_other_sizes_share_one_memory() {
    let of = |set: &[&str]| {
        let set = [&["ep_world_size=4", "hccl_buffsize_mb=100"], set].concat();
        full_case(&set, generate::Options::default())
    };
    let cases = [of(&["bs=5"]), of(&["h=2048", "bs=3"]), of(&["k=4", "quant_mode=2", "dtype=f16"])];
    let configs: Vec<_> = cases.iter().map(|case| case.config.clone()).collect();
    let plan = || Plan::of_layers(configs.clone(), None, terms(LONG)).unwrap();
    each(plan().local(&[]).unwrap(), |mut member| {
        for n in 0..18 {
            let layer = [0, 1, 2, 1, 1, 0][n % 6];
            let (case, batch) = (&cases[layer], Batch::varied(&cases[layer], n));
            let given = tokens(&batch.inputs(member.rank()), &case.shape);
            let of = member.dispatch(&Tokens { layer, ..given }, &mut go_on).unwrap();
            // Their areas have other sizes: a second batch in flight would be on the first one's.
            let second = member.dispatch(&Tokens { layer, ..given }, &mut go_on).unwrap_err();
            assert!(second.to_string().starts_with("1 batch in flight: a second must not"), "{second}");
            has_received_and_summed(&mut member, &batch, &of);
        }
    });
    let alone: u64 = configs.iter().map(|config| bytes_of(core::slice::from_ref(config))).sum();
    assert!(bytes_of(&configs) < alone, "the window is there once");
    let other = of(&["aiv_num=3"]).config;
    let refused = Plan::of_layers(vec![configs[0].clone(), other], None, terms(LONG)).unwrap_err();
    assert!(refused.to_string().starts_with("aiv_num = 8 in layer 0, 3 in layer 1"), "{refused}");
}

/// Returns the bytes of the memory of a group.
fn bytes_of(configs: &[Config]) -> u64 {
    Plan::of_layers(configs.to_vec(), None, terms(LONG)).unwrap().bytes()
}

#[test]
fn a_loose_group_combines_a_batch_twice_or_never() {
    for set in [&["bs=3"][..], &["comm_alg=fullmesh_v2"], &["quant_mode=2", "copy_expert_num=1"]] {
        let case = full_case(set, generate::Options::default());
        let batches: Vec<_> = (0..6).map(|n| Batch::varied(&case, n)).collect();
        let plan = Plan::new(case.config.clone(), Terms { order: Order::Loose, ..terms(LONG) }).unwrap();
        each(plan.local(&[]).unwrap(), |mut member| {
            let mut sent = Vec::new();
            for batch in &batches {
                let given = tokens(&batch.inputs(member.rank()), &case.shape);
                let of = member.dispatch(&given, &mut go_on).unwrap();
                has_received(&member, batch, &of);
                let y = stand_ins(&member, batch, &of);
                sent.push((of, y));
            }
            // The last two are in flight; the others have been given back, and one is combined twice.
            for n in [5, 4, 0, 3, 3, 5] {
                let (of, y) = &sent[n];
                let inputs = batches[n].inputs(member.rank());
                sums(&mut member, &batches[n], of, &results(&inputs, y));
            }
        });
    }
}

#[test]
fn calls_that_differ_are_named_on_every_rank() {
    let case = full_case(
        &["ep_world_size=3", "quant_mode=2", "moe_expert_num=6"],
        generate::Options { smooth_scales: true, ..generate::Options::default() },
    );
    let batch = Batch::new(&case);
    let wide = full_case(&["ep_world_size=3", "moe_expert_num=6", "h=2048"], generate::Options::default());
    let configs = [case.config.clone(), wide.config];
    for order in [Order::Strict, Order::Loose] {
        for (wrong, text) in [
            ("combine", "rank 1 called combine, rank 0 dispatch: every rank must call the same"),
            (
                "layer",
                "rank 1 called dispatch with h = 2048, k = 2, bs = 4, rank 0 with h = 1024, k = 2, bs = 4",
            ),
            ("scales", "rank 1 called dispatch with other scales than rank 0"),
            (
                "shared",
                "rank 1 called combine with other const experts, or shared_expert_x on one of them alone",
            ),
        ] {
            let terms = Terms { order, is_fixed: false, ..terms(LONG) };
            let layers = if wrong == "layer" { 2 } else { 1 };
            let plan = Plan::of_layers(configs[..layers].to_vec(), None, terms).unwrap();
            let lines = each(plan.local(&[]).unwrap(), |mut member| {
                let (inputs, is_wrong) = (batch.inputs(member.rank()), member.rank() == RankId(1));
                let given = tokens(&inputs, &case.shape);
                let mut call = || -> Result<(), Error> {
                    let of = match (wrong, is_wrong) {
                        ("layer", true) => {
                            let x = given.x.repeat(2);
                            member.dispatch(&Tokens { x: &x, layer: 1, scales: None, ..given }, &mut go_on)
                        }
                        ("scales", true) => {
                            let scales: Vec<_> =
                                given.scales.unwrap().iter().map(|scale| scale * 2.0).collect();
                            member.dispatch(&Tokens { scales: Some(&scales), ..given }, &mut go_on)
                        }
                        _ => member.dispatch(&given, &mut go_on),
                    }?;
                    let y = stand_ins(&member, &batch, &of);
                    let mut results = results(&inputs, &y);
                    if wrong == "combine" && !is_wrong {
                        return member.dispatch(&given, &mut go_on).map(drop);
                    }
                    let shared = vec![0; given.x.len()];
                    if wrong == "shared" && is_wrong {
                        results.shared_expert_x = Some(&shared);
                    }
                    let mut x_out = vec![0; member.x_out_bytes(0)];
                    member.combine(&of, &results, &mut x_out, &mut go_on)
                };
                let error = call().unwrap_err();
                (member.rank(), error)
            });
            for (rank, error) in lines {
                let Error::Mismatch(line) = &error else { panic!("{wrong} {order:?} {rank}: {error}") };
                if rank == RankId(0) {
                    assert!(line.starts_with(text), "{line}");
                }
                assert!(line.contains("rank 1"), "{line}");
            }
        }
    }
}

#[test]
fn groups_beside_each_other_compare_their_calls() {
    let [narrow, wide] = [&["bs=3"][..], &["h=2048"]].map(|set| full_case(set, generate::Options::default()));
    let first = members(&narrow.config, LONG);
    let calls: Vec<_> = first.iter().map(Member::calls).collect();
    let second = plan(&wide.config, LONG).unwrap().local(&calls).unwrap();
    let pairs: Vec<_> = first.into_iter().zip(second).collect();
    let (narrow, wide) = (&narrow, &wide);
    let errors = thread::scope(|scope| {
        let run = |(mut first, mut second): (Member, Member)| {
            scope.spawn(move || {
                let (one, other) = (Batch::new(narrow), Batch::new(wide));
                for _ in 0..3 {
                    for (member, batch, case) in [(&mut first, &one, narrow), (&mut second, &other, wide)] {
                        let given = tokens(&batch.inputs(member.rank()), &case.shape);
                        let of = member.dispatch(&given, &mut go_on).unwrap();
                        has_received_and_summed(member, batch, &of);
                    }
                }
                let (member, batch, case) = match first.rank() {
                    RankId(0) => (&mut first, &one, narrow),
                    _ => (&mut second, &other, wide),
                };
                let given = tokens(&batch.inputs(member.rank()), &case.shape);
                member.dispatch(&given, &mut go_on).unwrap_err()
            })
        };
        let threads: Vec<_> = pairs.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let [zero, one] = errors.as_slice() else { panic!("{errors:?}") };
    let [zero, one] = [zero, one].map(ToString::to_string);
    assert!(
        zero.starts_with("rank 1 called dispatch with h = 2048, k = 2, bs = 4, rank 0 with h = 1024"),
        "{zero}"
    );
    assert!(
        one.starts_with("rank 0 called dispatch with h = 1024, k = 2, bs = 3, rank 1 with h = 2048"),
        "{one}"
    );
}

#[test]
fn limits_open_beyond_the_products_when_asked() {
    let (mut config, _) = preset_with("tiny", &["h=64", "bs=520"]);
    config.raise_buffer();
    let refused = plan(&config, LONG).unwrap_err().lines().join(" ");
    assert!(refused.contains("h = 64") && refused.contains("bs = 520"), "{refused}");
    let options = generate::Options { limits: Limits::None, seed: 5, ..generate::Options::default() };
    let case = generate(config.clone(), options, "test").unwrap();
    let open = Plan::new(config, Terms { limits: Limits::None, ..terms(LONG) }).unwrap();
    let batch = Batch::new(&case);
    each(open.local(&[]).unwrap(), |mut member| {
        let given = tokens(&batch.inputs(member.rank()), &case.shape);
        let of = member.dispatch(&given, &mut go_on).unwrap();
        has_received_and_summed(&mut member, &batch, &of);
    });
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

#[test]
fn a_member_that_leaves_out_a_numbered_call_is_named_on_every_rank() {
    let case = case(&["ep_world_size=3", "moe_expert_num=6"], MaskKind::None);
    let batch = Batch::new(&case);
    let lines = each(members(&case.config, LONG), |mut member| {
        let given = tokens(&batch.inputs(member.rank()), &case.shape);
        let numbers = if member.rank() == RankId(1) { [7, 8, 10] } else { [7, 8, 9] };
        let ended = numbers.map(|number| -> Result<(), Error> {
            let of = member.dispatch(&Tokens { call: Some(number), ..given }, &mut go_on)?;
            let y = stand_ins(&member, &batch, &of);
            let mut x_out = vec![0; member.x_out_bytes(0)];
            let results = Results { y: &y, ..Results::default() };
            member.combine(&of, &results, &mut x_out, &mut go_on)
        });
        let [Ok(()), Ok(()), Err(Error::Mismatch(line))] = ended else { panic!("{ended:?}") };
        (member.rank(), line)
    });
    for (rank, line) in lines {
        let text = match rank {
            RankId(1) => "called dispatch of batch 9, rank 1 of batch 10",
            _ => "rank 1 called dispatch of batch 10",
        };
        // A rank that is late may hear that two others differ.
        let is_named = line.contains(text) || line.contains("have called different operators");
        assert!(is_named, "rank {rank}: {line}");
    }
}

#[test]
fn a_member_without_tokens_takes_part_in_every_layout() {
    let unmasked = ["release=seed", "comm_alg=fullmesh_v2"];
    let hierarchy = ["product=a2", "comm_alg=hierarchy", "ep_world_size=16", "moe_expert_num=32", "k=4"];
    for set in [&[][..], &unmasked, &hierarchy] {
        let full = case(set, MaskKind::None);
        let batch = Batch::new(&full);
        let rounds = each(members(&full.config, LONG), |mut member| {
            let all = tokens(&batch.inputs(member.rank()), &full.shape);
            let none = Tokens { x: &[], expert_ids: &[], expert_scales: &[], ..all };
            [false, true, false].map(|is_idle| {
                let is_idle = is_idle && member.rank().0 < 2;
                let given = if is_idle { none } else { all };
                let of = member.dispatch(&given, &mut go_on).unwrap();
                let y = stand_ins(&member, &batch, &of);
                let mut x_out = vec![0xAA; member.x_out_bytes(0)];
                let results = Results { y: &y, ..Results::default() };
                member.combine(&of, &results, &mut x_out, &mut go_on).unwrap();
                (is_idle, of.rows, x_out)
            })
        });
        let rows = |n: usize| rounds.iter().map(|round| round[n].1).sum::<usize>();
        assert!(rows(1) < rows(0) && rows(2) == rows(0), "{set:?}: {} rows, not fewer", rows(1));
        for [first, second, third] in &rounds {
            assert_eq!(first.2, third.2, "{set:?}: the same tokens give the same sums");
            let zeros = vec![0; first.2.len()];
            assert_eq!(second.2, if second.0 { zeros } else { first.2.clone() }, "{set:?}");
        }
    }
}

#[test]
fn a_member_without_tokens_need_not_have_the_scales_of_the_others() {
    let case = full_case(
        &["ep_world_size=3", "quant_mode=2", "moe_expert_num=6"],
        generate::Options { smooth_scales: true, ..generate::Options::default() },
    );
    let batch = Batch::new(&case);
    each(members(&case.config, LONG), |mut member| {
        let is_idle = member.rank() == RankId(1);
        let inputs = batch.inputs(member.rank());
        let none = Tokens { x: &[], expert_ids: &[], expert_scales: &[], scales: None, ..Tokens::default() };
        let given = if is_idle { none } else { tokens(&inputs, &case.shape) };
        let of = member.dispatch(&given, &mut go_on).unwrap();
        let y = stand_ins(&member, &batch, &of);
        let mut x_out = vec![0; member.x_out_bytes(0)];
        let results = if is_idle { Results { y: &y, ..Results::default() } } else { results(&inputs, &y) };
        member.combine(&of, &results, &mut x_out, &mut go_on).unwrap();
    });
}
