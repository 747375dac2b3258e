//! Domains that the other models leave out: masks of pairs, shared experts, TP peers, ranks that have left, records of three
//! blocks. The protocol, and what is broken in it on purpose, each under the weakest conditions that show it.

use crate::verdict::{caught, safe, safe_in_reuse};
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Model, Traffic, Violation};

fn dc(ranks: u32) -> Model {
    Model::new(ranks, "DC").weak()
}

#[test]
fn masks_of_pairs() {
    safe_in_reuse("masks of pairs, 2 ranks x 1 core, DC for any number of rounds, weak", &dc(2).pair_masks());
    safe("masks of pairs, 2 ranks x 2 cores, DC once, weak", &dc(2).pair_masks().cores(2).units(1));
    let two = Model::new(2, "DDCC").pair_masks().weak().units(1);
    safe("masks of pairs, 2 ranks x 1 core, DDCC once, weak", &two);
    let blocks = || dc(2).blocks(1).pair_masks();
    safe_in_reuse("masks of pairs, blocks, 2 ranks x 1 core, DC for any number of rounds, weak", &blocks());
    safe("masks of pairs, blocks, 2 ranks x 2 cores, DC once, weak", &blocks().cores(2).units(1));
}

/// The first rank has more tokens than the second one, whose slots of tokens are never used.
#[test]
fn batches_that_differ() {
    let uneven = |model: Model| model.bs(&[2, 1]).weak();
    safe_in_reuse("uneven, 2 ranks x 1 core, DC for any number of rounds, weak", &uneven(dc(2)));
    safe_in_reuse(
        "uneven, blocks, 2 ranks x 1 core, DC for any number of rounds, weak",
        &uneven(dc(2).blocks(1)),
    );
    let two = uneven(Model::new(2, "DDCC").blocks(1));
    safe_in_reuse("uneven, blocks, 2 ranks x 1 core, DDCC twice, weak", &two.units(2));
    safe("uneven, blocks, 2 ranks x 2 cores, DC once, weak", &uneven(dc(2).blocks(1)).cores(2).units(1));
}

/// The second rank has no tokens in any round: it publishes counts of 0, awaits all, and has nothing to sum.
#[test]
fn a_rank_without_tokens() {
    let idle = |model: Model| model.bs(&[1, 0]);
    safe_in_reuse("no tokens, 2 ranks x 1 core, DC for any number of rounds, weak", &idle(dc(2)));
    safe_in_reuse(
        "no tokens, 2 ranks x 1 core, DDCC for any number of rounds, weak",
        &idle(Model::new(2, "DDCC").weak()),
    );
    safe_in_reuse("no tokens, 2 ranks x 2 cores, DC for any number of rounds, weak", &idle(dc(2)).cores(2));
    safe_in_reuse(
        "no tokens, separate, 2 ranks x 1 core, DC for any number of rounds, weak",
        &idle(dc(2)).separate(),
    );
    safe_in_reuse(
        "no tokens, in place, 2 ranks x 1 core, DC for any number of rounds, weak",
        &idle(dc(2)).in_place(),
    );
    safe_in_reuse(
        "no tokens, direct, 2 ranks x 1 core, DC for any number of rounds, weak",
        &idle(dc(2)).direct(1),
    );
    safe_in_reuse(
        "no tokens, overwrite, 2 ranks x 1 core, DC for any number of rounds, weak",
        &idle(dc(2)).overwrite(1),
    );
    let blocks = || idle(dc(2)).blocks(1);
    safe_in_reuse("no tokens, blocks, 2 ranks x 1 core, DC for any number of rounds, weak", &blocks());
    safe_in_reuse(
        "no tokens, blocks, 2 ranks x 2 cores, DC for any number of rounds, weak",
        &blocks().cores(2),
    );
    safe("no tokens, blocks, 3 ranks x 1 core, DC once, weak", &dc(3).blocks(1).bs(&[1, 0, 1]).units(1));
    let across = idle(dc(4)).tp().traffic(Traffic::Given(ACROSS));
    safe_in_reuse("no tokens, TP = 2, 2 EP ranks x 1 core, across, DC three times, weak", &across.units(3));
}

#[test]
fn shared_experts_for_ever() {
    let shared = || dc(2).shared_ranks(1);
    safe_in_reuse("shared experts, 2 ranks x 1 core, DC for any number of rounds, weak", &shared());
    safe_in_reuse(
        "shared experts, separate, 2 ranks x 1 core, DC for any number of rounds, weak",
        &shared().separate(),
    );
    safe_in_reuse(
        "shared experts, blocks, 2 ranks x 1 core, DC for any number of rounds, weak",
        &shared().blocks(1),
    );
    safe_in_reuse(
        "shared experts, in place, 2 ranks x 1 core, DC for any number of rounds, weak",
        &shared().in_place(),
    );
    safe_in_reuse(
        "shared experts, direct, 2 ranks x 1 core, DC for any number of rounds, weak",
        &shared().direct(1),
    );
    safe_in_reuse("shared experts, 2 ranks x 2 cores, DC for any number of rounds, weak", &shared().cores(2));
}

#[test]
fn shared_experts_of_two_other_ranks() {
    safe("shared experts, 3 ranks x 1 core, DC twice, weak", &dc(3).shared_ranks(1).units(2));
}

#[test]
fn ranks_of_which_one_has_left() {
    // The survivors are a domain of their own: as many states as without the rank that has left.
    let left = |model: Model| model.elastic();
    safe_in_reuse("elastic, 2 of 3 ranks x 1 core, DC for any number of rounds, weak", &left(dc(2)));
    safe_in_reuse(
        "elastic, 2 of 3 ranks x 1 core, DDCC for any number of rounds, weak",
        &left(Model::new(2, "DDCC").weak()),
    );
    safe("elastic, 2 of 3 ranks x 2 cores, DC twice, weak", &left(dc(2)).cores(2).units(2));
    safe("elastic, 3 of 4 ranks x 1 core, DC once, weak", &left(dc(3)).units(1));
}

#[test]
fn tp_peers_for_ever() {
    // One EP rank: all rows are its own, and what can go wrong is between the peers.
    safe_in_reuse("TP = 2, 1 EP rank x 1 core, DC for any number of rounds, weak", &dc(2).tp());
    safe_in_reuse(
        "TP = 2, 1 EP rank x 1 core, int8, DC for any number of rounds, weak",
        &dc(2).tp().quantised(),
    );
    safe_in_reuse(
        "TP = 2, 1 EP rank x 1 core, DDCC for any number of rounds, weak",
        &Model::new(2, "DDCC").tp().weak(),
    );
    safe_in_reuse("TP = 2, 1 EP rank x 2 cores, DC for any number of rounds, weak", &dc(2).tp().cores(2));
}

/// Both TP ranks of an EP rank send to the other EP rank.
const ACROSS: &[&[i32]] = &[&[1, 1, 0, 0]];

#[test]
fn two_pairs_of_tp_peers() {
    let across = dc(4).tp().traffic(Traffic::Given(ACROSS));
    safe_in_reuse("TP = 2, 2 EP ranks x 1 core, across, DC three times, weak", &across.units(3));
}

#[test]
#[ignore = "takes 1 min; run: cargo test -p veriep-verify --test explorer -- --ignored domains:: --nocapture"]
fn two_pairs_of_tp_peers_with_all_traffic() {
    safe("TP = 2, 2 EP ranks x 1 core, DC once, weak", &dc(4).tp().units(1));
}

#[test]
fn records_of_three_blocks() {
    safe_in_reuse(
        "three blocks a record, 2 ranks x 1 core, DC for any number of rounds, weak",
        &dc(2).blocks(3),
    );
    safe("three blocks a record, 2 ranks x 2 cores, DC once, weak", &dc(2).blocks(3).cores(2).units(1));
}

#[test]
#[ignore = "takes 1 min; run: cargo test -p veriep-verify --test explorer -- --ignored domains:: --nocapture"]
fn records_of_three_blocks_on_two_cores() {
    let three = dc(2).blocks(3).cores(2).units(3);
    safe("three blocks a record, 2 ranks x 2 cores, DC three times, weak", &three);
}

#[test]
fn catches_a_token_with_a_masked_pair_that_is_summed_too_early() {
    // Any memory, one round, masks that differ within a token.
    safe("masked wait, tokens are masked", &Model::new(2, "DC").wide().units(1).defect(Defect::MaskedWait));
    let masked = || Model::new(2, "DC").pair_masks().units(1).defect(Defect::MaskedWait);
    let seen = caught("masked wait", &masked());
    assert!(matches!(seen.violation, Violation::Diverged { .. }), "{seen}");
    let seen = caught("masked wait, blocks", &masked().blocks(1));
    assert!(matches!(seen.violation, Violation::Diverged { .. }), "{seen}");
}

#[test]
fn catches_a_flag_of_shared_experts_that_is_never_cleared() {
    // Any memory, three rounds.
    let defect = |units| Model::new(2, "DC").shared_ranks(1).defect(Defect::NoSharedClear).units(units);
    safe("shared experts, no clear of the last slot, two rounds", &defect(2));
    let seen = caught("shared experts, no clear of the last slot, three rounds", &defect(3));
    assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
}

#[test]
fn catches_survivors_that_go_by_new_ids() {
    let defect = Model::new(2, "DC").units(1).defect(Defect::NewIds);
    safe("new ids, no rank gone", &defect);
    let seen = caught("new ids, one rank gone", &defect.elastic());
    assert!(matches!(seen.violation, Violation::Refused { .. }), "{seen}");
}

#[test]
fn catches_a_slot_of_a_tp_peer_without_rows_that_is_never_cleared() {
    // Any memory, three rounds, an idle rank.
    let defect = |units| Model::new(2, "DC").tp().defect(Defect::NoTpClear).units(units);
    safe("TP, no clear of slots without rows, no rank idle", &defect(3).traffic(Traffic::NoIdle));
    safe("TP, no clear of slots without rows, two rounds", &defect(2));
    let seen = caught("TP, no clear of slots without rows, three rounds", &defect(3));
    assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
}

#[test]
fn catches_a_tp_peers_flag_that_overtakes_its_rows() {
    // Needs weak memory.
    let defect = Model::new(2, "DC").tp().units(1).defect(Defect::RelaxedPublish);
    safe("TP, relaxed publish", &defect);
    let seen = caught("TP, relaxed publish, weak", &defect.weak());
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
}

#[test]
fn catches_the_last_blocks_flag_that_is_never_cleared() {
    // Any memory, three rounds, three blocks as well as one.
    let defect = |units| Model::new(2, "DC").blocks(3).defect(Defect::NoLastBlockClear).units(units);
    safe("three blocks, no clear of the last one, two rounds", &defect(2));
    let seen = caught("three blocks, no clear of the last one, three rounds", &defect(3));
    assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
}
