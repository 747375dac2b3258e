//! `simulate`: what the sources say of times comes out of runs in virtual time.

use crate::common::{fails, json, text, veriep};
use serde_json::Value;
use tempfile::tempdir;
use veriep_testing::tier;

/// The A2 stages article's decode: 64 ranks, 16 tokens each, 8 experts a token, 7168 elements.
const DECODE: &str =
    "--cluster a2 --set moe_expert_num=64 --set bs=16 --set h=7168 --set k=8 --routing ideal --rows timing";

/// No costs and latencies but those of tasks.
const BARE: &str = "--link port_ns=0.0 --link near_ns=0.0 --cost step_ns=0.0 --cost word_ns=0.0 --cost effect_ns=0.0 \
                    --cost copy_gbs=1000000.0 --cost agent_word_ns=0.0 --cost poll_ns=0.0 --cost agent_poll_ns=0.0";

/// No costs but those of steps, words and copies.
const NO_WORK: &str = "--cost start_ns=0 --cost pair_ns=0 --cost quant_gbs=0 --cost vector_gbs=0";

pub(crate) fn simulate(line: &str) -> Value {
    json(0, &core::iter::once("simulate").chain(line.split_whitespace()).collect::<Vec<_>>())
}

/// The slowest rank's microseconds in dispatch and in combine.
fn slowest(line: &str) -> [f64; 2] {
    slowest_of(&simulate(line))
}

pub(crate) fn slowest_of(said: &Value) -> [f64; 2] {
    [0, 1].map(|operator| said["operators"][operator]["slowest_us"].as_f64().unwrap())
}

/// Whether cores and agents have looked at few words for each step that moved.
fn looked_at_few_words(said: &Value) -> bool {
    (0.1..=15.0).contains(&said["words_per_step"].as_f64().unwrap())
}

fn near(value: f64, expected: f64, percent: f64) -> bool {
    (value / expected - 1.0).abs() <= percent / 100.0
}

#[test]
fn free_runs_take_as_long_as_seed_001_says() {
    let full_mesh = slowest(&format!("--preset a2-64 --free {DECODE}"));
    assert!(near(full_mesh[1], 86.1, 1.0), "{full_mesh:?}");
    let hierarchy = slowest(&format!("--preset a2-hier-64 --stage 2 --free {DECODE}"));
    assert!(hierarchy.iter().all(|&us| near(us, 46.3, 4.0)), "{hierarchy:?}");
    assert!(full_mesh.iter().zip(hierarchy).all(|(mesh, hierarchy)| mesh / hierarchy >= 1.85));
    // A port that serves one destination after the other ends streams at different times, and relays overlap.
    let fifo = slowest(&format!("--preset a2-hier-64 --stage 2 --free --link egress=fifo {DECODE}"));
    assert!(!near(fifo[0], 46.3, 4.0), "{fifo:?}");
}

#[test]
fn cores_that_issue_messages_themselves_are_a_tenth_faster() {
    let mut combine = Vec::new();
    let cores: &[u32] = tier(&[8], &[8, 40]);
    for cores in cores {
        let said = [2, 3].map(|stage| {
            simulate(&format!("--preset a2-hier-64 --stage {stage} --set aiv_num={cores} {DECODE}"))
        });
        assert!(said.iter().all(looked_at_few_words), "{cores} cores: {said:?}");
        let [two, three] = said.each_ref().map(slowest_of);
        assert!(three[0] <= 0.9 * two[0], "{cores} cores: {three:?} {two:?}");
        combine.push([two[1], three[1]]);
    }
    for pair in combine.windows(2) {
        assert!(
            (0..2).all(|stage| pair[1][stage] <= pair[0][stage]),
            "more cores make combine slower: {combine:?}"
        );
    }
}

#[test]
fn jitter_does_not_hide_what_the_third_stage_gains() {
    let runs: &[(u64, u32)] = tier(&[(2, 8)], &[(1, 24), (2, 8)]);
    for (seed, cores) in runs {
        let [two, three] = [2, 3].map(|stage| {
            let set = format!("--set aiv_num={cores} --jitter 20 --seed {seed}");
            slowest(&format!("--preset a2-hier-64 --stage {stage} {set} {DECODE}"))
        });
        assert!(three[0] <= 0.9 * two[0], "seed {seed}, {cores} cores: {three:?} {two:?}");
    }
}

#[test]
#[ignore = "thorough: .ci/prove runs it"]
fn the_hierarchy_gains_more_with_more_tokens_and_less_with_more_ranks() {
    // Microseconds by which it is faster than the full mesh, bandwidth alone.
    let gains = |ranks: u32, tokens: u32| {
        let uniform = "--cluster a2 --free --rows timing --routing uniform --set moe_expert_num=64";
        let size = format!("--set ep_world_size={ranks} --set bs={tokens} --set h=7168 --set k=8");
        let of = |preset: &str| {
            slowest(&format!("--preset {preset} {uniform} {size} --set hccl_buffsize_mb=4000"))
        };
        let (mesh, hierarchy) = (of("a2-64"), of("a2-hier-64 --stage 2"));
        [0, 1].map(|operator| mesh[operator] - hierarchy[operator])
    };
    let [few, many, spread] = [gains(32, 8), gains(32, 32), gains(64, 32)];
    for operator in 0..2 {
        assert!(many[operator] > 2.0 * few[operator], "tokens: {few:?} {many:?}");
        assert!(spread[operator] < 0.9 * many[operator], "ranks: {many:?} {spread:?}");
    }
}

#[test]
fn every_protocol_agrees_with_the_oracle_in_virtual_time() {
    for line in [
        "--preset tiny --cluster a3",
        "--preset tiny --cluster a3 --schedule DDCC --rounds 3 --order plain",
        "--preset tiny --cluster a3 --flags separate --skew 30 --seed 7",
        "--preset tiny --cluster a3 --receive in-place",
        "--preset tiny --cluster a3 --receive in-place --schedule DDCC --rounds 3 --set quant_mode=2",
        "--preset tiny --cluster a3 --receive direct --jitter 30",
        "--preset tiny --cluster a3 --receive direct --schedule DDCC --rounds 3 --cost pair_ns=20 --cost vector_gbs=9",
        "--preset tiny --cluster a3 --set quant_mode=2 --cost start_ns=700 --cost quant_gbs=3",
        "--preset tiny --cluster a3 --set comm_alg=fullmesh_v2 --set quant_mode=2",
        "--preset tiny --cluster a3 --set comm_alg=fullmesh_v2 --schedule DDCC",
        "--preset tiny --cluster a3 --flags separate --schedule DDCC --cost copies=serial",
        "--preset tiny --cluster a3 --set moe_expert_num=6 --set shared_expert_rank_num=1 --set comm_quant_mode=2",
        "--preset a2-64 --set ep_world_size=16 --set moe_expert_num=16 --set h=1024 --cluster a2 --rounds 2",
        "--preset a2-64 --set ep_world_size=16 --set moe_expert_num=16 --set h=1024 --cluster a2 --schedule DDCC",
        "--preset a2-hier-16 --set h=1024 --cluster a2 --stage 2 --schedule DDCC",
        "--preset a2-hier-16 --set h=1024 --cluster a2 --stage 3 --straggler 5:40",
        "--preset a2-hier-16 --set h=1024 --cluster a2 --stage 3 --schedule DDCC",
    ] {
        let said = simulate(line);
        assert_eq!(said["checked"], true, "{line}");
        if line.contains("--skew") || tier(false, true) {
            assert_eq!(said, simulate(line), "{line}: another run of the same seed differs");
        }
        let without_rows = simulate(&format!("{line} --rows timing"));
        let [real, without_rows] = [&said, &without_rows].map(|said| said["end_us"].as_f64().unwrap());
        assert!(near(without_rows, real, 0.2), "{line}: {without_rows} us without rows, {real} us with them");
    }
}

#[test]
fn few_words_are_looked_at_for_each_step_that_moves() {
    let decode = "--preset deepseek-v3-decode --cluster a3 --set aiv_num=48 --rows timing";
    let lines = [
        decode,
        &format!("{decode} --receive direct"),
        &format!("{decode} --flags separate"),
        &format!("{decode} --receive in-place"),
        &format!("{decode} --set comm_alg=fullmesh_v2"),
        &format!("--preset a2-64 --set aiv_num=40 {DECODE}"),
        "--preset a3-288 --set bs=4 --set aiv_num=24 --cluster a3 --rows timing",
    ];
    for line in &lines[..tier(2, lines.len())] {
        let said = simulate(line);
        assert!(looked_at_few_words(&said), "{line}: {}", said["words_per_step"]);
    }
}

#[test]
fn a_plan_takes_as_long_as_its_accesses() {
    let line = "--preset deepseek-v3-decode --set bs=48 --set h=1024 --cluster a3 --rows timing";
    let dispatch = |pair_ns: f64| slowest(&format!("{line} --cost pair_ns={pair_ns}"))[0];
    // Of 8.33 ns each, for 48 * 8 pairs: 5 by the walk of before, 2 by the table.
    let [none, table, walk] = [0.0, 2.0 * 8.33, 5.0 * 8.33].map(dispatch);
    assert!(near(walk - none, 16.0, 1.0) && near(table - none, 6.4, 1.0), "{none} {table} {walk}");
}

#[test]
fn vector_units_quantise_what_is_sent_and_sum_what_is_read() {
    let line = "--preset deepseek-v3-decode --set bs=48 --set h=1024 --cluster a3 --rows timing";
    let line = format!("{line} {NO_WORK}");
    let plain = slowest(&line);
    // Nothing is quantised.
    let summed = slowest(&format!("{line} --cost vector_gbs=100 --cost quant_gbs=1"));
    assert!(summed[0] == plain[0] && summed[1] > plain[1] + 0.5, "{summed:?} {plain:?}");
    let line = format!("{line} --set quant_mode=2");
    let (plain, quantised) = (slowest(&line), slowest(&format!("{line} --cost quant_gbs=1")));
    // 48 rows of a core, of 1024 bytes and their scale each, and not once more where they are received.
    let (rows, took) = (48.0 * 1.056, quantised[0] - plain[0]);
    assert!((0.8 * rows..=1.05 * rows).contains(&took), "{took} us: {quantised:?} {plain:?}");
    assert!(near(quantised[1], plain[1], 1.0), "{quantised:?} {plain:?}");
}

#[test]
fn an_operator_takes_its_start_once_on_each_rank() {
    let line = "--preset tiny --cluster a3 --schedule DDCC --rounds 2";
    let [none, some] = [0, 9000].map(|ns| slowest(&format!("{line} {NO_WORK} --cost start_ns={ns}")));
    assert!((0..2).all(|operator| near(some[operator], none[operator] + 9.0, 1.0)), "{some:?} {none:?}");
}

#[test]
fn rows_that_are_copied_serially_take_twice_as_long_on_a_core() {
    let line =
        format!("--preset deepseek-v3-decode --set h=7168 --cluster a3 --rows timing {NO_WORK} --cost");
    let [pipelined, slow, serial] =
        ["copies=pipelined", "copy_gbs=25.0", "copies=serial"].map(|cost| slowest(&format!("{line} {cost}")));
    // Dispatch does nothing with rows but copy them; what combine sums is read once.
    assert!(serial[0] > 1.1 * pipelined[0] && near(serial[0], slow[0], 1.0), "{serial:?} {slow:?}");
    assert!(pipelined[1] < serial[1] && serial[1] < slow[1], "{pipelined:?} {serial:?} {slow:?}");
}

#[test]
fn wire_and_agent_cross_where_a_window_takes_as_long_as_its_task() {
    // Without other costs and latencies: 63 windows of 16 tokens take 86 us, 1.37 us each.
    let wire = |tokens: u32| 86.1 / 16.0 * f64::from(tokens);
    let tasks: &[(f64, u32)] = tier(&[(1.0, 12)], &[(1.0, 12), (1.5, 18), (2.0, 24)]);
    for &(task, crossing) in tasks {
        let combine = |tokens: u32| {
            let set = format!("{DECODE} --set bs={tokens} --cost agent_task_ns={}", 1000.0 * task);
            slowest(&format!("--preset a2-64 {set} {BARE}"))[1]
        };
        // Tasks alone, as long as they are longer; then windows alone.
        assert!(near(combine(crossing - 8), 63.0 * task, 5.0), "{task}: {}", combine(crossing - 8));
        assert!(near(combine(crossing + 8), wire(crossing + 8), 5.0), "{task}: {}", combine(crossing + 8));
    }
}

#[test]
#[ignore = "thorough: .ci/prove runs it"]
fn the_baseline_takes_longer_and_grows_with_the_number_of_ranks() {
    let old = |line: &str| {
        let said = simulate(&format!("{line} --cluster a2 --rows timing --against baseline"));
        said["against"]["operators"].clone()
    };
    let us = |operators: &Value, operator: usize| operators[operator]["slowest_us"].as_f64().unwrap();
    let size = |ranks: u32| {
        format!(
            "--preset a2-64 --set ep_world_size={ranks} --set moe_expert_num=64 --set bs=4 --routing uniform"
        )
    };
    let [few, more, most] = [16, 32, 64].map(|ranks| us(&old(&size(ranks)), 0));
    // Of the 100 us that two exchanges of 32 more ranks take the host 96 are for their tasks.
    assert!(most - more > 90.0 && near(most - more, 2.0 * (more - few), 15.0), "{few} {more} {most}");
    let flat = |ranks| us(&old(&format!("{} --cost peer_ns=0", size(ranks))), 0);
    assert!(flat(64) - flat(32) < 20.0, "without tasks for peers");
    let mut ratios = Vec::new();
    for preset in ["a2-64", "a2-hier-64 --stage 2", "a2-hier-64 --stage 3"] {
        let operators = old(&format!("--preset {preset} {DECODE}")
            .replace("--cluster a2 ", "")
            .replace("--rows timing", ""));
        ratios.push(operators[0]["ratio"].as_f64().unwrap());
        let parts = operators[0]["parts"].as_array().unwrap();
        let sum: f64 = parts.iter().map(|part| part["us"].as_f64().unwrap()).sum();
        assert!(near(sum, us(&operators, 0), 0.001), "{operators}");
    }
    assert!(ratios.is_sorted() && ratios[0] > 2.0, "dispatch is not faster from stage to stage: {ratios:?}");
}

#[test]
fn what_a_rank_reads_at_its_peers_goes_by_their_ports() {
    let line = "--preset deepseek-v3-decode --set h=1024 --cluster a3 --rows timing --receive";
    let [direct, copied] = ["direct", "copy"].map(|receive| simulate(&format!("{line} {receive}")));
    let sent = |said: &Value, operator: &str| -> u64 {
        let links = said["links"].as_array().unwrap().iter();
        let of = links.filter(|link| link["operator"] == operator && link["dir"] == "out");
        of.map(|link| link["bytes"].as_u64().unwrap()).sum()
    };
    // The same rows, but for what is after them.
    let (pulled, pushed) = (sent(&direct, "combine"), sent(&copied, "combine"));
    assert!(near(pulled as f64, pushed as f64, 5.0), "{pulled} {pushed}");
    let combine = |line: &str| slowest(&format!("{line} direct"))[1];
    let slow = combine(&line.replace("--receive", "--link port_ns=10000 --receive"));
    // The word that results lie ready, then of each of two tokens of a core a request and its answer.
    assert!(near(slow - combine(line), 5.0 * 9.3, 1.0), "{slow} {}", combine(line));
}

#[test]
fn a_late_rank_is_waited_for_and_formula_and_free_run_are_bounds() {
    let line = "--preset a2-hier-16 --cluster a2 --rows timing";
    let operator =
        |line: &str, operator: usize, key: &str| simulate(line)["operators"][operator][key].as_f64().unwrap();
    let late = format!("{line} --straggler 3:500");
    assert!(operator(&late, 0, "median_us") >= 500.0 && operator(line, 0, "median_us") < 100.0);
    for number in [0, 1] {
        assert!(operator(line, number, "free_us") <= operator(line, number, "slowest_us"));
        assert!(operator(line, number, "formula_us") > 0.0);
    }
}

#[test]
fn the_critical_path_begins_at_the_rank_that_was_late() {
    for (preset, stage) in [("a2-hier-16 --stage 3", "3"), ("a2-hier-16 --stage 2", "2")] {
        for rank in (0..16).step_by(tier(11, 1)) {
            let said = simulate(&format!(
                "--preset {preset} --set h=1024 --cluster a2 --rows timing --straggler {rank}:40"
            ));
            assert_eq!(said["root"]["rank"], rank, "stage {stage}");
            let parts = said["critical_path"].as_array().unwrap();
            let sum: f64 = parts.iter().map(|part| part["us"].as_f64().unwrap()).sum();
            let end = said["end_us"].as_f64().unwrap();
            assert!((sum - end).abs() < 1e-6, "{sum} {end}");
            assert_eq!(parts.last().unwrap()["what"], "begins late");
        }
    }
}

#[test]
fn with_all_in_nine_ranks_send_to_a_shared_expert() {
    let said = simulate("--preset a3-288 --set bs=4 --cluster a3 --rows timing");
    // The rank's own rows do not pass its port.
    assert_eq!(said["incast"]["dispatch"]["shared"], 8);
}

#[test]
fn staggered_cores_send_to_fewer_receivers_at_once() {
    let line = "--preset a3-288 --set bs=16 --cluster a3 --rows timing --free";
    let incast = |order: &str| {
        let said = simulate(&format!("{line} --order {order}"));
        said["incast"]["combine"]["all"].as_u64().unwrap()
    };
    let (staggered, plain) = (incast("staggered"), incast("plain"));
    assert!(2 * staggered < plain, "{staggered} {plain}");
}

#[test]
#[ignore = "thorough: .ci/prove runs it"]
fn the_split_and_the_order_of_before_are_slower() {
    let [before, now] = ["--shared even --order plain", "--shared all-in --order staggered"]
        .map(|split| simulate(&format!("--preset a3-288 --set bs=16 --cluster a3 --rows timing {split}")));
    let (was, is) = (slowest_of(&before), slowest_of(&now));
    assert!(is[0] <= 0.85 * was[0] && is[1] <= 0.8 * was[1], "{before} {now}");
    // Nearly all ranks at once, against eight: one's own rows go by no port.
    assert!(before["incast"]["dispatch"]["shared"].as_u64().unwrap() >= 256, "{}", before["incast"]);
    assert_eq!(now["incast"]["dispatch"]["shared"], 8);
}

#[test]
#[ignore = "thorough: .ci/prove runs it"]
fn an_offset_spreads_writes_over_ports() {
    let of = |preset: &str, by: &str| {
        let line = format!("--preset {preset} --set aiv_num=24 --cluster a3 --free --rows timing");
        slowest(&format!("{line} --link port_by={by}"))
    };
    let [crowded, spread, even] = ["write", "write --port-offset 512", "even"].map(|by| of("a3-288", by));
    assert!(crowded[0] >= 2.0 * spread[0] && crowded[1] >= 1.9 * spread[1], "{crowded:?} {spread:?}");
    assert!(near(spread[0], even[0], 10.0), "{spread:?} {even:?}");
    // Packets of one record take all ports anyway.
    let [even, packets] = ["even", "packet"].map(|by| of("deepseek-v3-decode", by));
    assert!((0..2).all(|i| near(packets[i], even[i], 10.0)), "{packets:?} {even:?}");
}

#[test]
fn a_report_says_which_numbers_and_times_are_assumed() {
    let full_mesh = "--preset a2-64 --set ep_world_size=16 --set moe_expert_num=16 --set h=1024 --cluster a2";
    let said = simulate(&format!("{full_mesh} --cost word_ns=5"));
    let marks = &said["marks"];
    assert_eq!((&marks["port_gbs"], &marks["near_gbs"]), (&"measured".into(), &"derived".into()));
    assert_eq!((&marks["poll_ns"], &marks["word_ns"]), (&"assumed".into(), &"given".into()));
    let mark = |said: &Value| said["operators"][0]["mark"].as_str().unwrap().to_owned();
    assert_eq!(mark(&said), "calibrated");
    // Another rate is not the one that was found.
    assert_eq!(mark(&simulate(&format!("{full_mesh} --link port_gbs=25.0"))), "predicted");
    assert_eq!(mark(&simulate("--preset a2-hier-16 --set h=1024 --cluster a2 --rows timing")), "predicted");
}

#[test]
fn sweeps_and_seeds_tell_each_point_and_its_quartiles() {
    let folder = tempdir().unwrap();
    let csv = folder.path().join("times.csv");
    let line = "--preset tiny --cluster a3 --jitter 20 --sweep bs=1,4 --sweep port_ns=100.0,5000.0 --seeds 3";
    let said = simulate(&format!("{line} --against free --csv {}", text(&csv)));
    let grid = said["grid"].as_array().unwrap();
    assert_eq!(grid.len(), 2 * 2 * 2);
    let median = |bs: &str, port_ns: &str| {
        let point = grid.iter().find(|point| {
            point["values"]["bs"] == bs
                && point["values"]["port_ns"] == port_ns
                && point["operator"] == "dispatch"
        });
        point.unwrap()["median_us"].as_f64().unwrap()
    };
    assert!(median("1", "5000.0") > median("1", "100.0") + 4.0);
    for point in grid {
        assert_eq!(point["seeds"], 3);
        let of = |key: &str| point[key].as_f64().unwrap();
        let keys = ["least_us", "first_quartile_us", "median_us", "third_quartile_us", "most_us"];
        assert!(keys.map(of).is_sorted() && of("least_us") < of("most_us"), "{point}");
    }
    assert!(said["against"]["operators"][0]["ratio"].as_f64().unwrap() < 0.5, "{said}");
    let lines = std::fs::read_to_string(&csv).unwrap();
    assert_eq!(lines.lines().count(), 1 + 4 * 3 * 2 * 2, "{lines}");
    // Lines are in the order of points and seeds, whatever ran at the same time.
    let mut runs: Vec<_> =
        lines.lines().skip(1).map(|line| line.split(",dispatch").next().unwrap()).collect();
    runs.retain(|run| !run.contains("combine"));
    runs.dedup();
    let points = ["bs=1 port_ns=100.0", "bs=1 port_ns=5000.0", "bs=4 port_ns=100.0", "bs=4 port_ns=5000.0"];
    let in_order = points.iter().flat_map(|point| (1..4).map(move |seed| format!("{point},{seed}")));
    assert_eq!(runs, in_order.collect::<Vec<_>>());
    // A simulation that fails ends the grid, and the table has what was before it.
    let line = format!("--preset tiny --cluster a3 --sweep bs=1,2,64,128 --limit 2000 --csv {}", text(&csv));
    let said = fails(2, &core::iter::once("simulate").chain(line.split_whitespace()).collect::<Vec<_>>());
    assert!(said.contains("--limit 2000: there are more"), "{said}");
    let lines = std::fs::read_to_string(csv).unwrap();
    let points = lines.lines().skip(1).map(|line| line.split(',').next().unwrap());
    assert_eq!(points.collect::<Vec<_>>(), [["bs=1"; 4], ["bs=2"; 4]].concat());
}

#[test]
fn a_slow_rank_is_waited_for_and_stopped_senders_take_longer() {
    let line = "--preset deepseek-v3-decode --set h=1024 --cluster a3 --rows timing";
    let plain = simulate(line);
    let end = |said: &Value| said["end_us"].as_f64().unwrap();
    let slow = simulate(&format!("{line} --slow 3:10"));
    assert_eq!(slow["waits"][0]["rank"], 3, "{}", slow["waits"]);
    assert!(end(&slow) > 2.0 * end(&plain));
    let stopped = simulate(&format!("{line} --link chunk=1024 --link buffer=1024"));
    let open = simulate(&format!("{line} --link chunk=1024"));
    assert!(end(&stopped) > end(&open), "{} {}", end(&stopped), end(&open));
    assert!(plain["waits_by_kind"].as_array().unwrap().iter().any(|kind| kind["what"] == "combine_flag"));
}

#[test]
fn what_cannot_be_simulated_is_one_line() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("cluster.toml");
    let preset = veriep_sim::costs::PRESETS[1].1;
    let says = |cluster: &str, line: &str, words: &str| {
        std::fs::write(&file, cluster).unwrap();
        let line = line.replace("FILE", text(&file));
        let said = fails(2, &core::iter::once("simulate").chain(line.split_whitespace()).collect::<Vec<_>>());
        assert!(said.contains(words), "{said}");
    };
    let tiny = "--preset tiny --cluster FILE";
    says(
        &preset.replace("port_gbs", "prot_gbs"),
        tiny,
        "cluster.toml: links: unknown key `prot_gbs`: did you mean `port_gbs`?",
    );
    says(
        &preset.replace("port_gbs = 24.286", "port_gbs = -1.0"),
        tiny,
        "port_gbs = -1: must be in [0.001, 1000000000]",
    );
    says(
        &preset.replace("port_ns = 700.0", "port_ns = inf"),
        tiny,
        "port_ns = inf: must be in [0, 1000000000]",
    );
    let rates_and_times = preset
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .filter(|(_, value)| value.parse::<f64>().is_ok() && value.contains('.'));
    for (key, value) in rates_and_times {
        let wrong = preset.replace(&format!("\n{key} = {value}"), &format!("\n{key} = -1.0"));
        says(&wrong, tiny, &format!("{key} = -1: must be in [0"));
    }
    says(&preset.replace("ports = 7", "ports = 0"), tiny, "ports = 0: must be in [1, 64]");
    says(&preset.replace("chunk = 16384", "chunk = 0"), tiny, "chunk = 0: must be in [64, 16777216]");
    says(&format!("{preset}\n[link]\n"), tiny, "cluster.toml: unknown key `link`: did you mean `links`?");
    says(
        &format!("{preset}\nword_gbs = 1.0\n"),
        tiny,
        "costs: unknown key `word_gbs`: did you mean `word_ns`?",
    );
    says(&preset.replace("port_gbs = 24.286", "port_gbs = nan"), tiny, "port_gbs = NaN: must be in [0.001, ");
    says(&preset.replace("step_ns = 20.0", "step_ns = 1e300"), tiny, "must be in [0, 1000000000]");
    says(&preset.replace("pipelined", "twice"), tiny, "unknown variant `twice`");
    says("", tiny, "missing field `links`");
    says(preset, "--preset tiny --cluster nowhere", "nowhere: cannot read");
    says(preset, "--preset tiny --cluster a2", "--cluster a2: the configuration is of the other product");
    says(
        preset,
        "--preset tiny --cluster a3 --link port=1",
        "--link port=1: unknown key `port`: did you mean `ports`?",
    );
    says(preset, "--preset tiny --cluster a3 --link port_gbs", "missing '=': must be KEY=VALUE");
    says(preset, "--preset tiny --cluster a3 --cost word_ns=x", "--cost word_ns=x: must be a number");
    says(preset, "--preset tiny --cluster a3 --schedule CD", "--schedule CD: must be DC or DDCC");
    for straggler in ["4:1", "1", "x:1", "1:x", "1:-1", "1:1e9"] {
        says(
            preset,
            &format!("--preset tiny --cluster a3 --straggler {straggler}"),
            "must be RANK:US with RANK in [0, ",
        );
    }
    for slow in ["4:1", "1", "x:1", "1:x", "1:0", "1:-1", "1:1e9"] {
        says(
            preset,
            &format!("--preset tiny --cluster a3 --slow {slow}"),
            "must be RANK:FACTOR with RANK in [0, ",
        );
    }
    says(preset, "--preset tiny --cluster a3 --link buffer=100", "buffer = 100: must be 0 or at least chunk");
    let by_write = "--preset tiny --cluster a3 --link port_by=write --link ports=4";
    says(preset, by_write, "ports = 4: must be 7, the ways of the hash");
    says(preset, "--preset tiny --cluster a3 --sweep bs", "missing '=': must be KEY=A,B,C");
    says(preset, "--preset tiny --cluster a3 --limit 100", "--limit 100: there are more; after ");
    // Rows of 103 GB, which a machine could have.
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
    if kib.unwrap_or(u64::MAX) > 90 << 20 {
        return;
    }
    let large = "ep_world_size=768 moe_expert_num=768 bs=512 h=8192 k=16 hccl_buffsize_mb=1000000";
    let set = large.replace(' ', " --set ");
    let real = format!("--preset tiny --set {set} --cluster a3 --rows real");
    says(preset, &real, "must fit the memory that is free; hint: --rows timing");
    says(preset, "--preset tiny --cluster a3 --sweep bs=1,,2", "missing value");
    says(preset, "--preset tiny --cluster a3 --sweep bz=1,2", "unknown key `bz`");
    says(preset, "--preset tiny --cluster a3 --against nowhere", "nowhere: cannot read");
    let tier = "[[tier]]\nsource = \"\"\nranks = 0\nns = 1.0\noversubscription = 1.0\n";
    says(&format!("{preset}\n{tier}"), tiny, "tier.ranks = 0: must be at least 1");
    says(
        &preset.replace("measured = []", "measured = [\"port\"]"),
        tiny,
        "measured, derived, fitted: port: must be one of",
    );
    says(preset, "--preset tiny --cluster a3 --stage 2", "--stage");
    says(preset, "--preset a2-64 --cluster a3", "--cluster a3: the configuration is of the other product");
    says(preset, "--preset tiny --cluster a3 --jitter=-1", "--jitter");
    says(
        preset,
        "--preset tiny --cluster a3 --set release=9.1.0 --set tp_world_size=2 --set k=2 --set moe_expert_num=4",
        "tp_world_size = 2",
    );
}

#[test]
fn a_cluster_file_of_version_0_1_0_means_what_it_meant() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("cluster.toml");
    let now = include_str!("../../../sim/src/a3.toml");
    let is_new = |line: &&str| ["start_ns", "quant_gbs", "fitted ="].iter().any(|key| line.starts_with(key));
    assert_eq!(now.lines().filter(is_new).count(), 3);
    let old: String = now.lines().filter(|line| !is_new(line)).map(|line| format!("{line}\n")).collect();
    std::fs::write(&path, old).unwrap();
    let line = "--preset tiny --set quant_mode=2 --cost vector_gbs=1 --cluster";
    let old = simulate(&format!("{line} {} --cost start_ns=0 --cost quant_gbs=11.9", text(&path)));
    let new = simulate(&format!("{line} a3 --cost start_ns=0 --cost quant_gbs=11.9"));
    assert_eq!(old["operators"], new["operators"]);
    // Operators began at once, and one rate was that of all vector work.
    assert_eq!(simulate(&format!("{line} {}", text(&path)))["operators"], old["operators"]);
    assert_eq!(old["marks"]["pair_ns"], "derived");
    assert_eq!((&new["marks"]["vector_gbs"], &old["marks"]["chunk"]), (&"given".into(), &"assumed".into()));
}

#[test]
fn the_known_bias_is_in_both_reports() {
    let arguments = "simulate --preset tiny --rows timing --cluster";
    for (cluster, set, line) in [
        (
            "a3",
            "product=a3",
            "bias on A3 real dispatch took 0.73 to 1.14 times as long as predicted, combine 0.77 to 1.06",
        ),
        ("a2", "product=a2", "bias not known on A2; on A3 real dispatch took 0.73 to 1.14 times as long"),
    ] {
        let sizes = ["--set", "ep_world_size=16", "--set", "moe_expert_num=16", "--set", set];
        let arguments = [&arguments.split(' ').collect::<Vec<_>>()[..], &[cluster], &sizes].concat();
        let bias = &json(0, &arguments)["bias"];
        assert_eq!(bias["applies"], cluster == "a3");
        assert_eq!(bias["measured_over_predicted"]["combine"], serde_json::json!([0.77, 1.06]));
        let table = String::from_utf8(veriep(&arguments).stdout).unwrap();
        let mut lines = table.lines().map(|found| found.split_whitespace().collect::<Vec<_>>().join(" "));
        assert!(lines.any(|found| found.starts_with(line)), "{table}");
    }
}
