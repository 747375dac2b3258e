//! In virtual time every core that can move is woken, and a group in which none can is an error that names the time.

use veriep_case::error::Error;
use veriep_case::generate::{Options, generate};
use veriep_core::protocol::{Choices, Stage};
use veriep_sim::costs::Cluster;
use veriep_sim::timed::{Paces, WHOLE};
use veriep_sim::{Outcome, Plan, Wakes, run};
use veriep_spread::shared::SharedSplit;
use veriep_testing::trial::preset_with;

/// Simulates two rounds of a preset, and returns the outcome.
fn run_of(name: &str, set: &[&str], cluster: &str, stage: Stage, wakes: Wakes) -> Result<Outcome, Error> {
    let (config, routing) = preset_with(name, set);
    let case = generate(config, Options { routing, ..Options::default() }, name).unwrap();
    let ranks = case.shape.ep_world_size() as usize;
    let paces = Paces { begins: vec![0; ranks], slow: vec![WHOLE; ranks], jitter: 300, seed: 3 };
    let plan = Plan {
        case,
        choices: Choices { stage, ..Choices::default() },
        schedule: "DC".to_owned(),
        rounds: 2,
        paces,
        split: SharedSplit::AllIn,
        wakes,
        events_max: u64::MAX,
    };
    run(&plan, &Cluster::read(cluster, &[], &[]).unwrap(), true, None)
}

#[test]
fn nobody_sleeps_who_could_move() {
    let hierarchy = ["h=256", "bs=2", "k=2", "aiv_num=2", "moe_expert_num=16"];
    for (name, set, cluster, stage) in [
        ("tiny", &["aiv_num=3"][..], "a3", Stage::Three),
        ("tiny", &["comm_alg=fullmesh_v2"], "a3", Stage::Three),
        ("a2-hier-16", &hierarchy, "a2", Stage::Two),
        ("a2-hier-16", &hierarchy, "a2", Stage::Three),
    ] {
        let watched = |loses| run_of(name, set, cluster, stage, Wakes { watched: true, loses });
        watched(None).unwrap();
        // Some wake-ups are in vain, and can be lost.
        let losing = |number| watched(Some(number));
        let caught = (1..400).step_by(9).find_map(|number| losing(number).err());
        let caught = caught.unwrap_or_else(|| panic!("{name} {set:?}: no loss is seen"));
        assert!(caught.to_string().contains("could move and was not woken"), "{caught}");
    }
}

#[test]
fn a_group_that_cannot_move_is_told_with_the_time() {
    let wakes = |number| Wakes { watched: false, loses: Some(number) };
    let lost = |number| run_of("tiny", &[], "a3", Stage::Three, wakes(number));
    let hung = (1..100).find_map(|number| lost(number).err()).expect("a core waits without progress");
    let told = hung.to_string();
    assert!(hung.status() == 3 && told.starts_with("no rank can move after "), "{told}");
    assert!(told.contains(" us: rank "), "{told}");
}
