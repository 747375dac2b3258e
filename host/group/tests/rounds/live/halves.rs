//! Members take operators in two halves: what they receive and sum is what the reference says, and what may not begin is refused.

use super::{
    LONG, case, each, go_on, has_received, has_received_and_summed, members, results, stand_ins, terms,
    tokens,
};
use core::time::Duration;
use std::collections::VecDeque;
use std::thread;
use std::time::Instant;
use veriep_case::batch::Batch;
use veriep_case::case::Case;
use veriep_case::error::Error;
use veriep_case::generate::{self, MaskKind, generate};
use veriep_core::place::Tensor;
use veriep_core::sim::chooser::Dice;
use veriep_core::units::RankId;
use veriep_group::compare::expected;
use veriep_group::live::{Handle, Member, Order, Plan, Sent, Terms};
use veriep_testing::trial::preset_with;

/// Runs six batches of a case in the usual overlap: a batch is sent before the one before is combined, and received after that
/// one's results are sent.
fn overlapped(case: &Case, polls: bool) {
    let run = |mut member: Member| {
        let mut before: Option<(Batch<'_>, Handle)> = None;
        for number in 0..6 {
            let batch = Batch::varied(case, number);
            let given = tokens(&batch.inputs(member.rank()), &case.shape);
            let dispatched = member.send_dispatch(&given, &mut go_on).unwrap();
            let combined = before.take().map(|(batch, of)| {
                has_received(&member, &batch, &of);
                let y = stand_ins(&member, &batch, &of);
                let given = results(&batch.inputs(member.rank()), &y);
                (member.send_combine(&of, &given, &mut go_on).unwrap(), batch)
            });
            if polls {
                while !member.poll(dispatched).unwrap() {
                    thread::yield_now();
                }
            }
            let of = member.finish_dispatch(dispatched, &mut go_on).unwrap();
            if let Some((combined, batch)) = combined {
                finishes(&mut member, &batch, combined);
            }
            before = Some((batch, of));
        }
        let (batch, of) = before.unwrap();
        has_received_and_summed(&mut member, &batch, &of);
    };
    each(members(&case.config, LONG), run);
}

/// Takes the sums of a batch, and compares them.
fn finishes(member: &mut Member, batch: &Batch<'_>, sent: Sent) {
    let rank = member.rank();
    let of_oracle = batch.with_cluster(|cluster| expected(cluster, batch, rank));
    let mut x_out = vec![0xAA; member.x_out_bytes(0)];
    member.finish_combine(sent, &mut x_out, &mut go_on).unwrap();
    assert!(x_out == of_oracle[Tensor::XOut as usize], "rank {rank} batch {}", sent.batch);
}

#[test]
fn members_overlap_batches_in_halves() {
    for (set, mask) in [
        (&["bs=6"][..], MaskKind::None),
        (&["quant_mode=2", "aiv_num=3", "dtype=f16"], MaskKind::Tokens),
        (&["copy_expert_num=2", "zero_expert_num=1"], MaskKind::Pairs),
        (&["ep_world_size=3", "shared_expert_rank_num=1", "comm_quant_mode=2"], MaskKind::Tokens),
        (&["comm_alg=fullmesh_v2", "copy_expert_num=1"], MaskKind::Pairs),
    ] {
        let case = case(set, mask);
        overlapped(&case, false);
        overlapped(&case, true);
    }
}

#[test]
fn what_halves_cannot_do_is_refused_and_the_group_goes_on() {
    let case = case(&["bs=6"], MaskKind::None);
    let run = |mut member: Member| {
        let [first, second, third] = [0, 1, 2].map(|number| Batch::varied(&case, number));
        let [first_inputs, second_inputs, third_inputs] =
            [&first, &second, &third].map(|batch| batch.inputs(member.rank()));
        let sent = member.send_dispatch(&tokens(&first_inputs, &case.shape), &mut go_on).unwrap();
        for refused in [
            member.send_dispatch(&tokens(&second_inputs, &case.shape), &mut go_on).map(drop),
            member.dispatch(&tokens(&second_inputs, &case.shape), &mut go_on).map(drop),
        ] {
            let line = refused.unwrap_err().to_string();
            assert!(line.contains("dispatch of batch 1: batch 0 has been sent and not received"), "{line}");
        }
        let mut x_out = vec![0; member.x_out_bytes(0)];
        let line = member.finish_combine(sent, &mut x_out, &mut go_on).unwrap_err().to_string();
        assert!(line.contains("combine of batch 0"), "{line}");
        let of = member.finish_dispatch(sent, &mut go_on).unwrap();
        let again = member.finish_dispatch(sent, &mut go_on).unwrap_err().to_string();
        assert!(again.contains("dispatch of batch 0: has been finished already"), "{again}");
        let y = stand_ins(&member, &first, &of);
        let combined = member.send_combine(&of, &results(&first_inputs, &y), &mut go_on).unwrap();
        let next = member.send_dispatch(&tokens(&second_inputs, &case.shape), &mut go_on).unwrap();
        // Both slots hold a batch: the first one's sums are not there.
        let next = member.finish_dispatch(next, &mut go_on).unwrap();
        let line = member.dispatch(&tokens(&third_inputs, &case.shape), &mut go_on).unwrap_err().to_string();
        assert!(line.contains("2 batches in flight"), "{line}");
        finishes(&mut member, &first, combined);
        has_received_and_summed(&mut member, &second, &next);
        let of = member.dispatch(&tokens(&third_inputs, &case.shape), &mut go_on).unwrap();
        has_received_and_summed(&mut member, &third, &of);
    };
    each(members(&case.config, LONG), run);
}

#[test]
fn a_polled_half_is_finished_before_anything_else_begins() {
    let case = case(&["bs=6"], MaskKind::None);
    let mut both = members(&case.config, LONG);
    let (mut late, mut early) = (both.pop().unwrap(), both.pop().unwrap());
    let batch = Batch::varied(&case, 0);
    let inputs = [0, 1].map(|rank| batch.inputs(RankId(rank)));
    let sent = early.send_dispatch(&tokens(&inputs[0], &case.shape), &mut go_on).unwrap();
    // The other rank has sent nothing.
    assert!((0..50).all(|_| !early.poll(sent).unwrap()));
    let line = early.send_dispatch(&tokens(&inputs[0], &case.shape), &mut go_on).unwrap_err().to_string();
    assert!(line.contains("dispatch of batch 0 has been polled: must be finished"), "{line}");
    let late_sent = late.send_dispatch(&tokens(&inputs[1], &case.shape), &mut go_on).unwrap();
    while !early.poll(sent).unwrap() {}
    let handles = [
        early.finish_dispatch(sent, &mut go_on).unwrap(),
        late.finish_dispatch(late_sent, &mut go_on).unwrap(),
    ];
    has_received(&early, &batch, &handles[0]);
    has_received(&late, &batch, &handles[1]);
}

/// A caller that polls alone waits as long as one that finishes, and is told the same.
#[test]
fn polls_reach_the_deadline_and_say_for_whom() {
    let case = case(&["bs=6"], MaskKind::None);
    let batch = Batch::varied(&case, 0);
    let [finished, polled] = [false, true].map(|polls| {
        let [mut zero, mut one] =
            <[Member; 2]>::try_from(members(&case.config, Duration::from_millis(50))).unwrap();
        let given = tokens(&batch.inputs(RankId(0)), &case.shape);
        let sent = zero.send_dispatch(&given, &mut go_on).unwrap();
        let since = Instant::now();
        let error = if polls {
            loop {
                match zero.poll(sent) {
                    Ok(has_ended) => assert!(!has_ended && since.elapsed() < LONG),
                    Err(error) => break error,
                }
            }
        } else {
            zero.finish_dispatch(sent, &mut go_on).map(drop).unwrap_err()
        };
        assert!(since.elapsed() >= Duration::from_millis(50));
        assert_eq!(zero.poll(sent).unwrap_err().lines(), error.lines(), "for good");
        // For all.
        let other = one.send_dispatch(&given, &mut go_on).unwrap_err();
        assert!(matches!(other, Error::NoProgress { .. }), "{other}");
        let Error::NoProgress { missing, .. } = error else { panic!("{error}") };
        missing
    });
    assert!(!polled.is_empty() && polled.iter().all(|missing| missing.source_rank == Some(1)), "{polled:?}");
    assert_eq!(polled, finished);
}

/// So long that a loaded machine does not come near it.
const DEADLINE: Duration = Duration::from_secs(1);

/// The deadline is for ranks that do not move, not for whole halves: what comes late starts it again.
#[test]
fn polls_that_move_start_the_deadline_again() {
    let case = case(&["ep_world_size=4", "moe_expert_num=8"], MaskKind::None);
    let batch = Batch::varied(&case, 0);
    let mut all = members(&case.config, DEADLINE);
    let send = |member: &mut Member| {
        let given = tokens(&batch.inputs(member.rank()), &case.shape);
        member.send_dispatch(&given, &mut go_on).unwrap()
    };
    let (first, others) = all.split_first_mut().unwrap();
    let sent = send(first);
    let since = Instant::now();
    let mut poll = |until: Duration| {
        while since.elapsed() < until {
            first.poll(sent).unwrap();
            thread::yield_now();
        }
    };
    for (number, other) in (1..).zip(others) {
        poll(DEADLINE * 3 / 5 * number);
        send(other);
    }
    assert!(since.elapsed() > DEADLINE);
    while !first.poll(sent).unwrap() {}
}

/// A rank that has polled and worked for long still waits for the others when it finishes.
#[test]
fn finishing_counts_its_own_deadline() {
    let case = case(&["bs=6"], MaskKind::None);
    let batch = Batch::varied(&case, 0);
    let run = |mut member: Member| {
        let inputs = batch.inputs(member.rank());
        if member.rank() == RankId(1) {
            thread::sleep(DEADLINE * 5 / 4);
        }
        let sent = member.send_dispatch(&tokens(&inputs, &case.shape), &mut go_on).unwrap();
        if member.rank() == RankId(0) {
            assert!(!member.poll(sent).unwrap());
            thread::sleep(DEADLINE * 9 / 8);
        }
        let of = member.finish_dispatch(sent, &mut go_on).unwrap();
        has_received(&member, &batch, &of);
    };
    each(members(&case.config, DEADLINE), run);
}

/// A rank that works for longer than the deadline between two polls has not waited all that time.
#[test]
fn polls_that_are_far_apart_do_not_reach_the_deadline() {
    let case = case(&["bs=6"], MaskKind::None);
    let batch = Batch::varied(&case, 0);
    let [mut zero, mut one] = <[Member; 2]>::try_from(members(&case.config, DEADLINE)).unwrap();
    let given = |member: &Member| tokens(&batch.inputs(member.rank()), &case.shape);
    let sent = zero.send_dispatch(&given(&zero), &mut go_on).unwrap();
    assert!(!zero.poll(sent).unwrap());
    thread::sleep(DEADLINE * 5 / 4);
    assert!(!zero.poll(sent).unwrap());
    one.send_dispatch(&given(&one), &mut go_on).unwrap();
    while !zero.poll(sent).unwrap() {}
}

/// Members take any order that they are not refused, and what they have begun ends without another dispatch.
#[test]
fn no_order_that_is_allowed_needs_another_dispatch_to_end() {
    let case = case(&["bs=1", "aiv_num=1"], MaskKind::None);
    let run = |mut member: Member| {
        // The same choices on both ranks.
        let mut dice = Dice(5);
        let (mut dispatched, mut handles, mut combined) = (None, VecDeque::new(), Vec::new());
        let (mut number, mut refused) = (0, 0);
        for _ in 0..400 {
            match dice.below(4) {
                0 => {
                    let batch = Batch::varied(&case, number);
                    let given = tokens(&batch.inputs(member.rank()), &case.shape);
                    match member.send_dispatch(&given, &mut go_on) {
                        Ok(sent) => (dispatched, number) = (Some((sent, batch)), number + 1),
                        Err(error) => {
                            assert!(matches!(error, Error::Request(_)), "{error}");
                            refused += 1;
                        }
                    }
                }
                1 => {
                    if let Some((sent, batch)) = dispatched.take() {
                        handles.push_back((member.finish_dispatch(sent, &mut go_on).unwrap(), batch));
                    }
                }
                2 => {
                    if let Some((of, batch)) = handles.pop_front() {
                        let y = stand_ins(&member, &batch, &of);
                        let given = results(&batch.inputs(member.rank()), &y);
                        combined.push((member.send_combine(&of, &given, &mut go_on).unwrap(), batch));
                    }
                }
                _ => {
                    if let Some((sent, batch)) = dice.draw(&mut combined) {
                        finishes(&mut member, &batch, sent);
                    }
                }
            }
        }
        assert!(number > 20 && refused > 20, "{number} batches, {refused} refused");
    };
    each(members(&case.config, LONG), run);
}

/// The order in which the rule is at work, by hand.
#[test]
fn a_dispatch_waits_for_the_sums_of_the_batch_before_the_last() {
    let case = case(&["bs=6"], MaskKind::None);
    let run = |mut member: Member| {
        let batches = [0, 1, 2].map(|number| Batch::varied(&case, number));
        let inputs = [0, 1, 2].map(|number| batches[number].inputs(member.rank()));
        let mut combined = [0, 1].map(|number| {
            let of = member.dispatch(&tokens(&inputs[number], &case.shape), &mut go_on).unwrap();
            let y = stand_ins(&member, &batches[number], &of);
            Some(member.send_combine(&of, &results(&inputs[number], &y), &mut go_on).unwrap())
        });
        finishes(&mut member, &batches[1], combined[1].take().unwrap());
        let last = tokens(&inputs[2], &case.shape);
        for refused in
            [member.send_dispatch(&last, &mut go_on).map(drop), member.dispatch(&last, &mut go_on).map(drop)]
        {
            let line = refused.unwrap_err().to_string();
            let rule = "dispatch of batch 2: combine of batch 0 has been sent and not summed: must be finished before";
            assert!(line.contains(rule), "{line}");
        }
        finishes(&mut member, &batches[0], combined[0].take().unwrap());
        let of = member.dispatch(&last, &mut go_on).unwrap();
        has_received_and_summed(&mut member, &batches[2], &of);
    };
    each(members(&case.config, LONG), run);
}

#[test]
fn ranks_that_take_halves_in_other_orders_are_named() {
    let case = case(&["bs=6"], MaskKind::None);
    let run = |mut member: Member| {
        let batch = Batch::varied(&case, 0);
        let given = tokens(&batch.inputs(member.rank()), &case.shape);
        match member.rank() {
            RankId(0) => member.dispatch(&given, &mut go_on).map(drop),
            _ => {
                let sent = member.send_dispatch(&given, &mut go_on);
                sent.and_then(|sent| member.finish_dispatch(sent, &mut go_on)).map(drop)
            }
        }
    };
    let lines = each(members(&case.config, LONG), run).into_iter().map(|ran| ran.unwrap_err().to_string());
    let lines: Vec<_> = lines.collect();
    // A rank that reads the other's verdict first says only who differ.
    assert!(lines.iter().all(|line| line.contains("rank") && line.contains("called")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("the sending half of dispatch")), "{lines:?}");
}

#[test]
fn what_has_no_halves_says_so() {
    let tp = case(&["ep_world_size=4", "release=9.1.0", "tp_world_size=2"], MaskKind::None);
    let loose = case(&["bs=6"], MaskKind::None);
    for (case, order, words) in [
        (tp, Order::Strict, "operators of a TP domain have no halves"),
        (loose, Order::Loose, "order = loose: operators have no halves"),
    ] {
        let plan = Plan::new(case.config.clone(), Terms { order, ..terms(LONG) }).unwrap();
        let batch = Batch::varied(&case, 0);
        let mut member = plan.local(&[]).unwrap().remove(0);
        let given = tokens(&batch.inputs(RankId(0)), &case.shape);
        let line = member.send_dispatch(&given, &mut go_on).unwrap_err().to_string();
        assert!(line.contains(words), "{line}");
    }
}

/// A2 takes one operator after the other: its halves follow each other.
#[test]
fn a2_members_take_halves_one_after_the_other() {
    let a2 = case(&["product=a2", "ep_world_size=16", "moe_expert_num=16", "aiv_num=2"], MaskKind::Tokens);
    let (config, routing) = preset_with("a2-hier-16", &["aiv_num=2", "h=1024", "bs=2"]);
    let options = generate::Options { routing, ..generate::Options::default() };
    let hierarchy = generate(config, options, "test").unwrap();
    for case in [a2, hierarchy] {
        let run = |mut member: Member| {
            for number in 0..3 {
                let batch = Batch::varied(&case, number);
                let inputs = batch.inputs(member.rank());
                let sent = member.send_dispatch(&tokens(&inputs, &case.shape), &mut go_on).unwrap();
                let of = member.finish_dispatch(sent, &mut go_on).unwrap();
                has_received(&member, &batch, &of);
                let y = stand_ins(&member, &batch, &of);
                let sent = member.send_combine(&of, &results(&inputs, &y), &mut go_on).unwrap();
                let next = Batch::varied(&case, number + 1);
                let given = tokens(&next.inputs(member.rank()), &case.shape);
                let line = member.send_dispatch(&given, &mut go_on).unwrap_err().to_string();
                assert!(line.contains("on A2 before the one before has ended"), "{line}");
                finishes(&mut member, &batch, sent);
            }
        };
        each(members(&case.config, LONG), run);
    }
}
