//! `veriep plan`, and `--port-offset` wherever it is an option, from outside.

use crate::common::{config_file, fails, json, text, veriep};
use serde_json::Value;
use std::path::Path;
use tempfile::tempdir;
use veriep_case::store::TensorFile;
use veriep_core::layout::data::dispatch_record;
use veriep_core::layout::state::Partition;
use veriep_core::placement::Home;
use veriep_core::shape::{BatchSizes, Config, Limits, Shape};
use veriep_core::units::RankId;

/// 14 ranks with blocks of exactly 2 MiB for each source, behind 2 MiB of combine rows.
const ALIGNED: &str = "ep_world_size = 14\nmoe_expert_num = 14\nk = 1\nh = 2016\nbs = 512\naiv_num = 1";

fn numbers(list: &Value, key: &str) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|item| item[key].as_u64().unwrap()).collect()
}

fn number(item: &Value, key: &str) -> u64 {
    item[key].as_u64().unwrap_or_else(|| panic!("{key} of {item}"))
}

/// A case of three ranks, one of them for a shared expert, with masks of pairs.
fn small_case(folder: &Path) -> String {
    let case = folder.join("case");
    let shape = ["ep_world_size=3", "shared_expert_rank_num=1", "aiv_num=3"];
    let set = shape.iter().flat_map(|assignment| ["--set", *assignment]);
    let mut args = vec!["gen", "--preset", "tiny", "--mask", "pairs", "--seed", "5", "--out", text(&case)];
    args.extend(set);
    json(0, &args);
    text(&case).to_owned()
}

#[test]
fn the_planned_sends_of_all_cores_are_the_rows_that_a_run_receives() {
    let folder = tempdir().unwrap();
    let case = small_case(folder.path());
    let out = folder.path().join("result");
    json(0, &["run", &case, "--out", text(&out)]);
    let mut result = TensorFile::open(&out).unwrap();
    for order in ["plain", "staggered"] {
        let mut sent = vec![Vec::new(); 3];
        let mut returned = vec![Vec::new(); 3];
        for (rank, core) in (0..3u64).flat_map(|rank| (0..3).map(move |core| (rank, core))) {
            let (rank_arg, core_arg) = (rank.to_string(), core.to_string());
            let args = ["plan", &case, "--rank", &rank_arg, "--core", &core_arg, "--order", order];
            let plan = json(0, &args);
            for send in plan["dispatch"]["sends"].as_array().unwrap() {
                let to = number(send, "to") as usize;
                let row = ["local_expert", "slot", "token", "k"].map(|key| number(send, key));
                sent[to].push((row[0], rank, row[1], [rank, row[2], row[3]]));
            }
            for send in plan["combine"]["sends"].as_array().unwrap() {
                let triple = ["to", "token", "k"].map(|key| number(send, key));
                returned[rank as usize].push((number(send, "row"), triple));
            }
        }
        for (to, (mut rows, mut back)) in sent.into_iter().zip(returned).enumerate() {
            rows.sort_unstable();
            back.sort_unstable();
            let bytes = result.read(&format!("rank{to}.assist_info_for_combine")).unwrap();
            let words = bytes.as_chunks().0.iter().map(|&word| u64::from(u32::from_le_bytes(word)));
            let received: Vec<_> = words.collect();
            assert!(!received.is_empty());
            assert_eq!(rows.iter().flat_map(|row| row.3).collect::<Vec<_>>(), received, "rank {to}, {order}");
            assert!(back.iter().map(|row| row.0).eq(0..rows.len() as u64), "each row returns once");
            assert_eq!(back.iter().flat_map(|row| row.1).collect::<Vec<_>>(), received, "rank {to}, {order}");
        }
    }
}

#[test]
fn what_a_core_publishes_is_what_others_await() {
    let folder = tempdir().unwrap();
    let case = small_case(folder.path());
    for shared in ["all-in", "even"] {
        let [mut told, mut awaited] = [const { Vec::new() }; 2];
        let [mut flagged, mut polled] = [const { Vec::new() }; 2];
        for (rank, core) in (0..3u64).flat_map(|rank| (0..3).map(move |core| (rank, core))) {
            let (rank_arg, core_arg) = (rank.to_string(), core.to_string());
            let args = ["plan", &case, "--rank", &rank_arg, "--core", &core_arg, "--shared", shared];
            let plan = json(0, &args);
            for p in plan["dispatch"]["publishes"].as_array().unwrap() {
                told.push((number(p, "to"), number(p, "offset"), rank, number(p, "count")));
            }
            for a in plan["dispatch"]["awaits"].as_array().unwrap() {
                awaited.push((rank, number(a, "offset"), number(a, "from"), number(a, "count")));
            }
            for s in plan["combine"]["sends"].as_array().into_iter().flatten() {
                flagged.push([number(s, "to"), number(s, "flag_offset"), rank, number(s, "k")]);
            }
            for a in plan["combine"]["awaits"].as_array().into_iter().flatten() {
                polled.push([rank, number(a, "offset"), number(a, "from"), number(a, "k")]);
            }
        }
        told.sort_unstable();
        awaited.sort_unstable();
        assert_eq!(told, awaited);
        assert_eq!(told.len(), 3 * (1 + 4), "every rank tells every destination");
        assert_eq!(flagged.is_empty(), shared == "even", "the old split has no combine");
        flagged.sort_unstable();
        polled.sort_unstable();
        assert_eq!(flagged, polled);
    }
}

/// What a core of a run writes to ranks, as `[to, offset]` with the region; not what is between the cores of a rank.
fn written(events: &[Value], rank: u64, core: u64) -> Vec<(String, u64, u64)> {
    const AMONG_CORES: [&str; 3] = ["PutSums", "ArriveWithSums", "Arrive"];
    let is_write = |event: &&Value| ["put", "publish"].contains(&event["kind"].as_str().unwrap());
    let own = events.iter().filter(|event| event["rank"] == rank && event["core"] == core).filter(is_write);
    let own = own.filter(|event| !AMONG_CORES.contains(&event["phase"].as_str().unwrap()));
    let place = |event: &Value| {
        (event["region"].as_str().unwrap().to_owned(), number(event, "peer"), number(event, "offset"))
    };
    let mut own: Vec<_> = own.map(place).collect();
    own.sort_unstable();
    own
}

#[test]
fn a_directly_placed_plan_is_what_the_cores_of_a_run_write_and_read() {
    let folder = tempdir().unwrap();
    let case = small_case(folder.path());
    let file = folder.path().join("events.jsonl").display().to_string();
    for experts in ["apart", "overwrite"] {
        let mode = ["--receive", "direct", "--experts", experts];
        let run = ["run", &case, "--backend", "lockstep", "--rounds", "1", "--events", &file];
        json(0, &[&run[..], &mode].concat());
        let lines = std::fs::read_to_string(&file).unwrap();
        let events: Vec<Value> =
            lines.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
        let [mut tells, mut hears] = [const { Vec::new() }; 2];
        let [mut sent, mut read] = [const { Vec::new() }; 2];
        for (rank, core) in (0..3u64).flat_map(|rank| (0..3).map(move |core| (rank, core))) {
            let (rank_arg, core_arg) = (rank.to_string(), core.to_string());
            let args = ["plan", &case, "--rank", &rank_arg, "--core", &core_arg];
            let plan = json(0, &[&args[..], &mode].concat());
            let mut planned = Vec::new();
            for told in plan["dispatch"]["words"]["tells"].as_array().unwrap() {
                for key in
                    ["counts_offset", "counts_word", "grants_offset", "grants_word", "token_flag_offset"]
                {
                    planned.push(("state".to_owned(), number(told, "rank"), number(told, key)));
                }
                tells.push((rank, number(told, "rank"), told["counts"].clone(), told["grants"].clone()));
            }
            for told in plan["dispatch"]["words"]["hears"].as_array().unwrap() {
                hears.push((number(told, "rank"), rank, told["counts"].clone(), told["grants"].clone()));
            }
            for send in plan["dispatch"]["sends"].as_array().unwrap() {
                for key in ["offset", "info_offset"] {
                    planned.push(("window".to_owned(), number(send, "to"), number(send, key)));
                }
            }
            for publish in plan["combine"]["pull"]["publishes"].as_array().unwrap() {
                planned.push((
                    "state".to_owned(),
                    publish[0].as_u64().unwrap(),
                    publish[1].as_u64().unwrap(),
                ));
            }
            planned.sort_unstable();
            assert_eq!(planned, written(&events, rank, core), "core {core} of rank {rank}, {experts}");
            let rows = |list: &Value, other| {
                let row =
                    |of: &Value| [number(of, "token"), number(of, "k"), number(of, other), number(of, "row")];
                list.as_array().unwrap().iter().map(row).map(|row| (rank, row)).collect::<Vec<_>>()
            };
            sent.extend(rows(&plan["dispatch"]["sends"], "to"));
            read.extend(rows(&plan["combine"]["pull"]["reads"], "from"));
        }
        let in_order = |list: &mut Vec<(u64, u64, Value, Value)>| list.sort_by_key(|told| (told.0, told.1));
        sent.sort_unstable();
        read.sort_unstable();
        assert_eq!(sent, read, "each row is read back where it went");
        in_order(&mut tells);
        in_order(&mut hears);
        assert_eq!(tells, hears);
    }
}

/// 1024 experts on two ranks, each with room for 10240 tokens of every source: records reach over 170 GiB.
#[test]
fn places_of_a_plan_beyond_4_gib_are_those_of_the_layout() {
    let folder = tempdir().unwrap();
    let text_of = "ep_world_size = 2\nmoe_expert_num = 1024\nk = 1\nh = 8192\nbs = 16\nglobal_bs = 20480\naiv_num = 1\n\
                   hccl_buffsize_mb = 524288";
    let path = config_file(folder.path(), "wide.toml", text_of);
    let config = Config {
        ep_world_size: 2,
        moe_expert_num: 1024,
        k: 1,
        h: 8192,
        bs: BatchSizes::Uniform(16),
        global_bs: 20480,
        aiv_num: 1,
        hccl_buffsize_mb: 524_288,
        ..Config::default()
    };
    let shape = Shape::new(&config, Limits::Product).unwrap();
    let mut beyond = 0;
    for rank in ["0", "1"] {
        let plan = json(0, &["plan", &path, "--seed", "3", "--rank", rank, "--core", "0"]);
        let sends = plan["dispatch"]["sends"].as_array().unwrap();
        assert_eq!(sends.len(), 16);
        for send in sends {
            let [to, local_expert, slot] = ["to", "local_expert", "slot"].map(|key| number(send, key) as u32);
            let (home, source) = (Home { rank: RankId(to), local_expert }, RankId(rank.parse().unwrap()));
            let place = dispatch_record(&shape, Partition::P0, home, source, slot);
            assert_eq!(number(send, "offset"), place.offset, "{send}");
            beyond += u32::from(place.offset > 1 << 32);
        }
    }
    assert!(beyond > 16, "{beyond}");
}

#[test]
fn a_seed_chooses_the_experts_that_gen_chooses() {
    let folder = tempdir().unwrap();
    let case = folder.path().join("case");
    let tiny = ["--preset", "tiny", "--mask", "pairs", "--routing", "zipf", "--seed", "7"];
    json(0, &[&["gen", "--out", text(&case)], &tiny[..]].concat());
    for more in [&[][..], &["--rank", "1", "--core", "0"]] {
        let mut of_case = json(0, &[&["plan", text(&case)], more].concat());
        let mut of_seed = json(0, &[&["plan"], &tiny[..], more].concat());
        for plan in [&mut of_case, &mut of_seed] {
            plan.as_object_mut().unwrap().remove("source");
        }
        assert_eq!(of_case, of_seed);
    }
}

#[test]
fn a_configuration_alone_gives_shares_and_what_goes_to_shared_experts() {
    let plan = json(0, &["plan", "--preset", "a3-288", "--rank", "40", "--core", "7"]);
    assert_eq!(plan["experts_known"], false);
    let dispatch = &plan["dispatch"];
    assert_eq!(
        (&dispatch["moe_pairs"], &dispatch["shared_pairs"]),
        (&Value::from([0, 0]), &Value::from([0, 48]))
    );
    let order: Vec<u64> = (40..48).chain(0..40).collect();
    assert_eq!(dispatch["shared_order"], Value::from(order));
    let sends = &dispatch["sends"];
    assert_eq!(numbers(sends, "to"), [40 % 32; 48]);
    assert!(dispatch["publishes"].as_array().unwrap().iter().all(|p| p["count"].is_null()));
    assert!(plan["combine"]["sends"].is_null() && plan["combine"]["rows"].is_null());
    let plan = json(0, &["plan", "--preset", "a3-288", "--rank", "40", "--core", "0", "--order", "plain"]);
    assert_eq!(plan["dispatch"]["moe_pairs"], Value::from([0, 55]));
    assert_eq!(plan["dispatch"]["moe_order"], Value::from((0..55).collect::<Vec<u64>>()));
    assert_eq!(plan["dispatch"]["sends"].as_array().unwrap().len(), 0);
    // Shared-expert ranks 0 to 31 come first; rank 40 sends all 48 tokens to rank 8.
    let counts = plan["dispatch"]["publishes"].as_array().unwrap()[..32].iter().map(|p| number(p, "count"));
    assert!(counts.eq((0..32).map(|to| if to == 8 { 48 } else { 0 })));
}

#[test]
fn all_in_sends_from_9_ranks_to_each_shared_one_where_the_old_split_sent_from_288() {
    let plan = json(0, &["plan", "--preset", "a3-288"]);
    let of = |i: usize| {
        let split = &plan["shared_experts"][i];
        let name = format!("{} {}", split["split"].as_str().unwrap(), split["order"].as_str().unwrap());
        (name, number(split, "sources_max"), number(split, "at_once_max"))
    };
    assert_eq!(of(0), ("even plain".to_owned(), 288, 288));
    assert_eq!(of(1), ("even staggered".to_owned(), 288, 12));
    assert_eq!(of(2), ("all-in plain".to_owned(), 9, 9));
    assert_eq!(of(3), ("all-in staggered".to_owned(), 9, 9));
    let ranks = |i: usize, key| numbers(&plan["shared_experts"][i]["ranks"], key);
    assert_eq!((ranks(0, "sources"), ranks(0, "at_once")), (vec![288; 32], vec![288; 32]));
    assert_eq!((ranks(2, "sources"), ranks(2, "at_once")), (vec![9; 32], vec![9; 32]));
    // Under the old split one receiver at a time, under all-in all 32.
    let old = json(0, &["plan", "--preset", "a3-288", "--shared", "even", "--order", "plain"]);
    assert_eq!(
        (&old["incast"][0]["max"], &old["incast"][0]["receivers"]),
        (&Value::from(288), &Value::from(1.0))
    );
    assert_eq!(plan["incast"][0]["receivers"], 32.0);
    assert_eq!(numbers(&old["dispatch"], "sources")[..32], [288; 32]);
}

#[test]
fn staggered_combine_has_no_receiver_that_most_ranks_begin_with() {
    let plan = json(0, &["plan", "--preset", "a3-288", "--seed", "1"]);
    let of = |operator, order| {
        let all = plan["incast"].as_array().unwrap();
        let found = all.iter().find(|i| i["operator"] == operator && i["order"] == order).unwrap();
        assert_eq!(found["per_step"].as_array().unwrap().len() as u64, number(found, "steps"));
        (number(&found["per_step"][0], "max"), number(found, "max"))
    };
    let (plain, staggered) = (of("combine", "plain"), of("combine", "staggered"));
    assert!(plain.0 > 100 && staggered.1 < 30, "plain {plain:?}, staggered {staggered:?}");
    assert!(of("dispatch", "plain").1 < 30, "pairs of one token differ in their experts");
}

#[test]
fn blocks_at_2_mib_crowd_on_one_port_and_the_offset_spreads_them_over_seven() {
    let folder = tempdir().unwrap();
    let config = config_file(folder.path(), "c.toml", ALIGNED);
    let args = ["plan", &config, "--order", "plain", "--seed", "1", "--port-offset", "512"];
    let ports = &json(0, &args)["ports"];
    let heads = |list: &Value| -> Vec<u64> {
        list.as_array().unwrap().iter().map(|port| number(&port["at_step"], "heads")).collect()
    };
    assert_eq!(heads(&ports["without_offset"]), [14, 0, 0, 0, 0, 0, 0]);
    // By source and owner, and owners are drawn.
    assert_eq!(heads(&ports["with_offset"]), [2, 5, 1, 2, 1, 2, 1]);
    assert_eq!(numbers(&ports["without_offset"], "block_starts"), [14 * 14, 0, 0, 0, 0, 0, 0]);
    assert_eq!(numbers(&ports["with_offset"], "block_starts"), [28; 7]);
    for list in [&ports["without_offset"], &ports["with_offset"]] {
        // Flags are at the same place of every state region, which no offset moves.
        assert_eq!(numbers(list, "flags"), [14 * 14, 0, 0, 0, 0, 0, 0]);
        let all = list.as_array().unwrap().iter().map(|port| &port["all_steps"]);
        // 4032 B of data, 32 of scale, 12 of triple are 8 packets.
        let sum = |key| all.clone().map(|packets| number(packets, key)).sum::<u64>();
        let rows = 14 * 512;
        assert_eq!((sum("heads"), sum("packets"), sum("bytes")), (rows, 8 * rows, 4076 * rows));
    }
    assert!(json(0, &["plan", &config])["ports"]["with_offset"].is_null());
}

#[test]
fn a_port_offset_moves_records_and_leaves_results_as_they_are() {
    let folder = tempdir().unwrap();
    let case = small_case(folder.path());
    let results = [&[][..], &["--port-offset", "1536"]].map(|more| {
        let out = folder.path().join("result");
        json(0, &[&["run", &case, "--out", text(&out), "--backend", "weak"], more].concat());
        std::fs::read(out).unwrap()
    });
    assert!(results[0] == results[1]);
    let records = |more: &[&str]| -> Vec<(u64, u64)> {
        let layout = json(0, &[&["layout", &case, "--rank", "1"], more].concat());
        let areas = layout["areas"].as_array().unwrap().clone();
        let records = areas.into_iter().filter(|a| a["name"] == "dispatch records" && a["partition"] == 0);
        records.map(|area| (number(&area, "offset"), number(&area, "size"))).collect()
    };
    let ([(start, size)], moved) =
        (records(&[])[..].try_into().unwrap(), records(&["--port-offset", "1536"]));
    let block = size / 3;
    // The layout is of rank 1: one offset more for each source.
    assert_eq!(moved, [0, 1, 2].map(|source| (start + source * (block + 1536) + 1536, block)));
    // The same places as in the plan: rank 2 sends to rank 1.
    let args = ["plan", &case, "--rank", "2", "--port-offset", "1536", "--core"];
    let offsets = ["0", "1", "2"].map(|core| {
        let plan = json(0, &[&args[..], &[core]].concat());
        let sends = plan["dispatch"]["sends"].as_array().unwrap().clone();
        let to_1 = sends.into_iter().filter(|send| send["to"] == 1);
        to_1.map(|send| number(&send, "offset")).collect::<Vec<_>>()
    });
    let (from, len) = moved[2];
    let offsets = offsets.concat();
    assert!(!offsets.is_empty() && offsets.iter().all(|at| (from..from + len).contains(at)), "{offsets:?}");
}

#[test]
fn nonsense_is_one_line_and_status_2() {
    let folder = tempdir().unwrap();
    let case = small_case(folder.path());
    let broken = config_file(folder.path(), "b.toml", "k = 17");
    let tiny = |more: &[&str]| fails(2, &[&["plan", "--preset", "tiny"], more].concat());
    for (more, says) in [
        (&["--rank", "2", "--core", "0"][..], "--rank 2: must be in [0, 1]"),
        (&["--rank", "0", "--core", "8"], "--core 8: must be in [0, 7]"),
        (&["--rank", "4294967295", "--core", "0"], "--rank 4294967295"),
        (&["--rank=-1", "--core", "0"], "--rank"),
        (&["--rank", "0"], "missing argument: --core"),
        (&["--core", "0"], "missing argument: --rank"),
        (&["--order", "random"], "staggered"),
        (&["--shared", "none"], "all-in"),
        (&["--routing", "hot"], "missing argument: --seed"),
        (&["--mask", "pairs"], "missing argument: --seed"),
        (&["--port-offset", "100"], "port_offset = 100: must be a multiple of 512"),
        (&["--port-offset", "-512"], "port_offset = -512: must be in [0, 1073741824]"),
        (&["--port-offset", "99999999999999999999"], "--port-offset"),
        (
            &["--port-offset", "1073741824"],
            "hccl_buffsize_mb = 200: must hold the windows (required_mb = 8193",
        ),
        (&["--set", "port_offset=512"], "unknown key `port_offset`"),
        (&["--set", "k=0"], "k = 0"),
        (
            &["--set", "comm_alg=fullmesh_v2", "--rank", "0", "--core", "0", "--flags", "separate"],
            "--flags: comm_alg = fullmesh_v2 has a flag in every block",
        ),
        (&["--receive", "direct", "--shared", "even"], "--shared even: only --receive copy and in-place"),
        (
            &[
                "--set",
                "release=9.1.0",
                "--set",
                "tp_world_size=2",
                "--set",
                "moe_expert_num=2",
                "--rank",
                "4",
                "--core",
                "0",
            ],
            "[0, 3]",
        ),
    ] {
        let line = tiny(more);
        assert!(line.contains(says), "{more:?}: {line}");
    }
    assert!(fails(2, &["plan"]).contains("missing argument"));
    assert!(fails(2, &["plan", "/nowhere/c.toml"]).ends_with("/nowhere/c.toml: missing"));
    assert!(fails(2, &["plan", &broken]).contains("b.toml: k = 17"));
    assert!(fails(2, &["plan", &broken, "--preset", "tiny"]).contains("--preset"));
    assert!(fails(2, &["plan", &case, "--seed", "1"]).contains("has its own experts"));
    for verb in ["run", "layout", "check", "plan"] {
        let line = fails(2, &[verb, &case, "--port-offset", "8"]);
        assert!(line.contains("config.toml: port_offset = 8: must be a multiple of 512"), "{verb}: {line}");
    }
    std::fs::remove_file(Path::new(&case).join("inputs.safetensors")).unwrap();
    assert!(fails(2, &["plan", &case]).ends_with("inputs.safetensors: missing"));
    let run = fails(2, &["run", "--preset", "tiny", "--port-offset", "8"]);
    assert!(run.contains("preset tiny: port_offset = 8: must be a multiple of 512"), "{run}");
}

#[test]
fn a_long_list_is_cut_and_says_how_much_and_lines_stay_short() {
    for args in [
        &["plan", "--preset", "deepseek-v3-decode", "--seed", "1", "--rank", "3", "--core", "2"][..],
        &["plan", "--preset", "a3-288", "--port-offset", "512"],
    ] {
        let output = veriep(args);
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        assert!(stdout.contains("and 16 more; --format json has all"), "{stdout}");
        assert!(stdout.lines().all(|line| line.chars().count() <= 80), "{stdout}");
    }
}

/// What the experts of a case ask for, by hand: servers of 8 ranks.
#[test]
fn lists_of_a_hierarchy_are_what_its_experts_ask_for() {
    let folder = tempdir().unwrap();
    let case = folder.path().join("case").to_str().unwrap().to_owned();
    let seed = ["--seed", "3", "--set", "h=32", "--set", "moe_expert_num=64", "--set", "bs=3"];
    json(0, &[&["gen", "--preset", "a2-hier-64", "--out", &case], &seed[..]].concat());
    let file = std::fs::read(Path::new(&case).join("inputs.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    // An expert for each rank.
    let experts = |rank: u64, token: u64| {
        let ids = tensors.tensor(&format!("rank{rank}.expert_ids")).unwrap();
        let words = ids.data()[token as usize * 32..][..32].as_chunks::<4>().0.iter();
        words.map(|&word| u64::from(u32::from_le_bytes(word))).collect::<Vec<_>>()
    };
    let rank = 9;
    for stage in ["2", "3"] {
        let plan = json(0, &["plan", &case, "--rank", "9", "--stage", stage]);
        let list = |of: &str, name: &str| plan[of][name].as_array().unwrap().clone();
        let numbers = |entry: &Value, names: &[&str]| {
            names.iter().map(|&name| entry[name].as_u64().unwrap()).collect::<Vec<_>>()
        };
        let all = |of: &str, name: &str, names: &[&str]| {
            let mut all: Vec<_> = list(of, name).iter().map(|entry| numbers(entry, names)).collect();
            all.sort_unstable();
            all
        };
        let (mut sends, mut forwards, mut totals, mut returns) = (vec![], vec![], vec![], vec![]);
        for token in 0..3 {
            let ids = experts(rank, token);
            let servers: Vec<u64> = (0..8).filter(|s| ids.iter().any(|id| id / 8 == *s)).collect();
            for &server in servers.iter().filter(|&&server| server != 1) {
                let pairs = ids.iter().filter(|&&id| id / 8 == server).count() as u64;
                sends.push(vec![token, server, 8 * server + 1, pairs]);
            }
            totals.push((token, servers));
            for source in (0..8).map(|server| 8 * server + 1) {
                let here = experts(source, token).into_iter().enumerate().filter(|(_, id)| id / 8 == 1);
                forwards.extend(here.map(|(k, id)| vec![source, token, k as u64, id]));
            }
            for source in (0..64).filter(|&source| experts(source, token).contains(&rank)) {
                returns.push(vec![source, token, 8 + source % 8]);
            }
        }
        forwards.sort_unstable();
        returns.sort_unstable();
        assert_eq!(all("dispatch", "sends", &["token", "server", "to", "pairs"]), sends);
        assert_eq!(all("dispatch", "forwards", &["source", "token", "k", "to"]), forwards);
        assert_eq!(all("combine", "returns", &["source", "token", "to"]), returns);
        for (entry, (token, servers)) in list("combine", "tokens").iter().zip(totals) {
            assert_eq!((&entry["token"], &entry["servers"]), (&token.into(), &servers.into()));
        }
        // Rows that are summed here are those that were forwarded.
        let rows: usize =
            list("combine", "sums").iter().map(|sum| sum["from"].as_array().unwrap().len()).sum();
        assert_eq!(forwards.len(), rows);
        let tasks = plan["dispatch"]["tasks"].as_array().map_or(0, Vec::len);
        assert_eq!(tasks, if stage == "2" { 7 } else { 0 });
    }
    let all = json(0, &["plan", &case]);
    assert_eq!(all["traffic"].as_array().unwrap().len(), 64);
}
