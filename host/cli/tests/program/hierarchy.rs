//! The hierarchy of A2 through the program: stages, agents, messages sent twice.

use crate::common::{fails, json};

/// The smallest group of the product with narrow rows.
const SMALL: [&str; 8] =
    ["run", "--preset", "a2-hier-16", "--set", "h=64", "--set", "aiv_num=2", "--rounds=3"];

#[test]
fn a_run_tells_its_stage_and_how_many_tasks_an_agent_posts() {
    for (backend, stage) in [("threads", 3), ("lockstep", 3), ("weak", 3), ("threads", 2), ("weak", 2)] {
        let seen = json(0, &[&SMALL[..], &["--backend", backend, "--stage", &stage.to_string()]].concat());
        assert_eq!((&seen["rounds"], &seen["stage"]), (&3.into(), &stage.into()));
        // One namesake, one task.
        assert_eq!(seen["tasks_per_operator"].as_f64(), (stage == 2).then_some(1.0));
    }
}

#[test]
fn a_rank_that_sends_twice_changes_no_output() {
    json(0, &[&SMALL[..], &["--inject", "twice=5"]].concat());
    assert!(fails(2, &[&SMALL[..], &["--inject", "twice=16"]].concat()).contains("rank in [0, 15]"));
    let line = fails(2, &["run", "--preset", "tiny", "--inject", "twice=0"]);
    assert!(line.contains("only comm_alg = hierarchy has relays"), "{line}");
}

#[test]
fn a_silent_rank_is_named_and_stages_are_those_of_the_hierarchy() {
    let line = fails(3, &[&SMALL[..], &["--inject", "silent=5", "--backend", "weak"]].concat());
    assert!(line.contains("rank 5 "), "{line}");
    for only in [&[][..], &["--stage", "2"]] {
        let line = ["--inject", "silent=5", "--backend", "threads", "--deadline", "2"];
        let line = fails(3, &[&SMALL[..], &line, only].concat());
        assert!(line.contains("rank 5"), "{line}");
    }
    assert!(fails(2, &["run", "--preset", "tiny", "--stage", "3"]).contains("only comm_alg = hierarchy"));
}
