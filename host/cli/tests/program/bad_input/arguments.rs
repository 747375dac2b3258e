//! Requests that do not fit together.

use super::rows;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

rows! {
    no_subcommand: |room| room.ask::<&str>([]);
    a_subcommand_that_there_is_not: |room| room.run("rum");
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
    processes_where_there_are_none: |room| room.run("run --preset tiny --processes 2");
    more_processes_than_ranks: |room| room.run("run --preset tiny --backend processes --processes 3");
    a_deadline_where_a_hang_is_seen_at_once: |room| room.run("run --preset tiny --backend weak --deadline 5");
    a_deadline_of_nothing: |room| room.run("run --preset tiny --deadline 0");
    a_deadline_that_is_no_number: |room| room.run("run --preset tiny --deadline nan");
    a_negative_seed: |room| room.run("run --preset tiny --seed -1");
    a_negative_tolerance: |room| room.run("compare case result --ulp -1");
    a_seed_that_is_no_number: |room| room.run("run --preset tiny --seed many");
    a_schedule_with_another_letter: |room| room.run("run --preset tiny --schedule DXC");
    a_schedule_with_more_combines: |room| room.run("run --preset tiny --schedule DCC");
    a_schedule_with_more_dispatches: |room| room.run("run --preset tiny --schedule DDC");
    flags_where_there_is_no_choice: |room| {
        room.run("run --preset tiny --set comm_alg=fullmesh_v2 --flags separate")
    };
    slots_of_no_size: |room| room.run("run --preset tiny --slots 48");
    slots_of_a_line_with_two_words: |room| room.run("run --preset tiny --slots 64 --flags separate");
    slots_of_a_line_where_there_are_none: |room| room.run("check --preset tiny --slots 64 --receive direct");
    slots_of_a_line_without_room: |room| {
        room.run("layout --preset tiny --slots 64 --set bs=512 --set k=16 --set moe_expert_num=16 --set hccl_buffsize_mb=400 --set shared_expert_num=0")
    };
    flags_of_a2: |room| {
        room.run("run --preset a2-hier-16 --set h=1024 --set bs=1 --flags joint")
    };
    flags_where_counts_are_ahead_of_rows: |room| {
        room.run("run --preset tiny --receive direct --flags separate")
    };
    rows_received_in_place_on_a2: |room| {
        room.run("run --preset a2-hier-16 --set h=1024 --set bs=1 --receive in-place")
    };
    rows_received_in_place_by_fullmesh_v2: |room| {
        room.run("run --preset tiny --set comm_alg=fullmesh_v2 --receive in-place")
    };
    rows_received_in_place_in_a_tp_domain: |room| {
        room.run("run --preset tiny --set release=9.1.0 --set tp_world_size=2 --set moe_expert_num=2 --receive in-place")
    };
    rows_placed_directly_whose_results_are_quantised: |room| {
        room.run("run --preset tiny --set comm_quant_mode=2 --receive direct")
    };
    rows_placed_directly_with_a_port_offset: |room| {
        room.run("run --preset tiny --port-offset 512 --receive direct")
    };
    rows_placed_directly_without_room: |room| {
        room.run("run --preset tiny --set hccl_buffsize_mb=2 --set bs=73 --receive direct --schedule DDCC")
    };
    experts_that_overwrite_copied_rows: |room| room.run("run --preset tiny --experts overwrite");
    experts_that_overwrite_quantised_rows: |room| {
        room.run("run --preset tiny --receive direct --experts overwrite --set quant_mode=2")
    };
    a_stage_where_there_are_none: |room| room.run("run --preset tiny --stage 3");
    a_death_where_there_are_no_processes: |room| room.run("run --preset tiny --inject killed=1:5");
    a_death_at_no_write: |room| room.run("run --preset tiny --backend processes --inject killed=1");
    a_death_of_a_rank_that_there_is_not: |room| {
        room.run("run --preset tiny --backend processes --inject killed=2:5")
    };
    a_rank_that_sends_twice_where_there_are_no_relays: |room| room.run("run --preset tiny --inject twice=0");
    a_token_twice_from_a_rank_that_there_is_not: |room| {
        room.run("run --preset a2-hier-16 --inject twice=16")
    };
    a_stage_that_there_is_not: |room| room.run("run --preset a2-hier-16 --stage 4");
    a_port_offset_that_is_no_multiple: |room| room.run("run --preset tiny --port-offset 100");
    a_port_offset_without_room: |room| room.run("run --preset tiny --port-offset 1073741824");
    a_fault_that_there_is_not: |room| room.run("run --preset tiny --inject dead=1");
    a_fault_of_a_rank_that_there_is_not: |room| room.run("run --preset tiny --inject silent=2");
    a_fault_of_words_that_there_are_not: |room| room.run("run --preset tiny --inject silent=1:letters");
    a_fault_of_words_that_no_actor_says: |room| room.run("run --preset tiny --inject silent=1:grants");
    a_fault_of_a_rank_that_is_gone: |room| {
        room.run("run --preset tiny --set ep_world_size=4 --dead 1 --inject silent=1")
    };
    a_mask_where_ranks_differ: |room| {
        room.run("run --preset tiny --set bs=[1,4] --set global_bs=8 --mask tokens")
    };
    const_experts_that_no_memory_holds: |room| room.run("run --preset tiny --set const_expert_num=2147483000");
    a_rank_that_there_is_not: |room| room.file("layer.toml", "k = 8").run("layout layer.toml --rank 16");
    a_core_that_there_is_not: |room| room.run("plan --preset tiny --rank 0 --core 8");
    a_plan_of_a_rank_that_there_is_not: |room| room.run("plan --preset tiny --rank 2 --core 0");
    a_plan_of_no_core: |room| room.run("plan --preset tiny --rank 0");
    a_plan_of_a_case_with_a_seed: |room| room.case().run("plan case --seed 3");
    a_dead_rank_that_there_is_not: |room| room.run("run --preset tiny --dead 2");
    dead_ranks_that_leave_too_few_experts: |room| {
        room.run("run --preset tiny --set ep_world_size=5 --set moe_expert_num=5 --set k=5 --dead 1")
    };
    all_ranks_dead: |room| room.run("run --preset tiny --dead 0,1");
    a_search_with_more_combines_than_dispatches: |room| room.run("schedule CD");
    a_search_without_a_dispatch: |room| room.ask(["schedule", ""]);
    a_search_with_another_letter: |room| room.run("schedule DCX");
    a_search_that_repeats_what_is_not_combined: |room| room.run("schedule DDC --rounds 2");
    a_search_with_three_numbers_of_partitions: |room| room.run("schedule DC --partitions 1,2,3");
    a_search_with_two_numbers_of_partitions_on_a2: |room| room.run("schedule DC --product a2 --partitions 1,2");
    a_search_with_three_areas_of_rows: |room| room.run("schedule DC --receive direct --partitions 3");
    a_search_of_a_way_to_receive_that_a2_lacks: |room| room.run("schedule DC --product a2 --receive in-place");
    a_search_of_windows_that_a3_lacks: |room| room.run("schedule DC --model windows");
    a_search_of_windows_that_the_hierarchy_lacks: |room| {
        room.run("schedule DC --product a2 --hierarchy --model windows")
    };
    a_search_of_a_hierarchy_on_a3: |room| room.run("schedule DC --hierarchy");
    a_search_of_servers_without_a_hierarchy: |room| room.run("schedule DC --product a2 --server-ranks 2");
    a_search_of_servers_that_ranks_do_not_fill: |room| {
        room.run("schedule DC --product a2 --hierarchy --ep 4 --server-ranks 3")
    };
}
