//! Requests that do not fit together.

use super::rows;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

rows! {
    no_verb: |room| room.ask::<&str>([]);
    a_verb_that_there_is_not: |room| room.run("rum");
    an_option_that_there_is_not: |room| room.run("run --preset tiny --round 3");
    an_argument_that_is_not_utf_8: |room| {
        room.ask([b"check".to_vec(), b"a\xFFb.toml".to_vec()].map(OsString::from_vec))
    };
    an_option_that_is_not_utf_8: |room| {
        room.ask([b"run".to_vec(), b"--preset".to_vec(), b"\xFF".to_vec()].map(OsString::from_vec))
    };
    neither_a_case_nor_a_preset: |room| room.run("run");
    a_case_and_a_preset: |room| room.run("run case --preset tiny");
    a_preset_that_there_is_not: |room| room.run("run --preset huge");
    a_format_that_there_is_not: |room| room.run("check layer.toml --format xml");
    set_without_a_value: |room| room.run("run --preset tiny --set k");
    set_of_a_key_that_there_is_not: |room| room.run("run --preset tiny --set kk=4");
    set_to_another_type: |room| room.run("run --preset tiny --set k=many");
    set_to_what_breaks_a_rule: |room| room.run("run --preset tiny --set k=5");
    no_rounds: |room| room.run("run --preset tiny --rounds 0");
    more_rounds_than_can_be_counted: |room| room.run("run --preset tiny --rounds 99999999999999999999");
    a_chain_that_does_not_fit_the_memory: |room| {
        room.run("run --preset deepseek-v3-decode --rounds 1000000 --chain 100000")
    };
    a_group_that_does_not_fit_the_memory: |room| {
        room.run("run --preset tiny --set hccl_buffsize_mb=4294967295 --backend weak")
    };
    no_threads: |room| room.run("run --preset tiny --threads 0");
    threads_where_there_are_none: |room| room.run("run --preset tiny --backend weak --threads 2");
    a_deadline_of_nothing: |room| room.run("run --preset tiny --deadline 0");
    a_deadline_that_is_no_number: |room| room.run("run --preset tiny --deadline nan");
    a_negative_seed: |room| room.run("run --preset tiny --seed -1");
    a_schedule_with_another_letter: |room| room.run("run --preset tiny --schedule DXC");
    a_schedule_with_more_combines: |room| room.run("run --preset tiny --schedule DCC");
    a_schedule_with_more_dispatches: |room| room.run("run --preset tiny --schedule DDC");
    flags_where_there_is_no_choice: |room| {
        room.run("run --preset tiny --set comm_alg=fullmesh_v2 --flags separate")
    };
    a_stage_where_there_are_none: |room| room.run("run --preset tiny --stage 3");
    a_row_for_nobody_where_there_are_no_relays: |room| room.run("run --preset tiny --inject astray=0");
    a_token_twice_from_a_rank_that_there_is_not: |room| {
        room.run("run --preset a2-hier-16 --inject twice=16")
    };
    a_stage_that_there_is_not: |room| room.run("run --preset a2-hier-16 --stage 4");
    a_port_offset_that_is_no_multiple: |room| room.run("run --preset tiny --port-offset 100");
    a_port_offset_without_room: |room| room.run("run --preset tiny --port-offset 1073741824");
    a_fault_that_there_is_not: |room| room.run("run --preset tiny --inject dead=1");
    a_fault_of_a_rank_that_there_is_not: |room| room.run("run --preset tiny --inject silent=2");
    a_fault_of_words_that_there_are_not: |room| room.run("run --preset tiny --inject silent=1:letters");
    a_fault_of_words_that_nobody_says: |room| room.run("run --preset tiny --inject silent=1:grants");
    a_rank_that_there_is_not: |room| room.file("layer.toml", "").run("layout layer.toml --rank 16");
    a_core_that_there_is_not: |room| room.run("plan --preset tiny --rank 0 --core 8");
    a_way_to_receive_named_twice: |room| room.run("bench --preset tiny --receive copy,direct,copy");
    a_dead_rank_that_there_is_not: |room| room.run("run --preset tiny --dead 2");
    dead_ranks_that_leave_too_few_experts: |room| {
        room.run("run --preset tiny --set ep_world_size=5 --set moe_expert_num=5 --set k=5 --dead 1")
    };
    all_ranks_dead: |room| room.run("run --preset tiny --dead 0,1");
    a_search_with_more_combines_than_dispatches: |room| room.run("schedule CD");
}
