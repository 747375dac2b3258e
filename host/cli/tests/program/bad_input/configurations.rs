//! Configurations that are no TOML, or break a rule.

use super::rows;

const A2: &str = "product = \"a2\"\nhccl_buffsize_mb = 900\n";
const TP: &str = "release = \"9.1.0\"\ntp_world_size = 2\nmoe_expert_num = 16\n";
const V2: &str = "release = \"8.5.0\"\ncomm_alg = \"fullmesh_v2\"\nk = 8\n";

rows! {
    the_configuration_is_missing: |room| room.run("check nowhere.toml");
    the_configuration_is_not_utf_8: |room| room.check(b"k = 8\nh = \xFF1024");
    the_configuration_is_larger_than_any: |room| room.check(vec![b'#'; 5 << 20]);
    the_configuration_is_not_toml: |room| room.check("k = 8\nh = = 7168");
    the_configuration_is_broken_json: |room| room.check("{\"k\": 8,\n\"h\": }");
    the_configuration_is_a_call_without_its_end: |room| {
        room.check("torch_npu.npu_moe_distribute_dispatch_v2(x=x, ep_world_size=16,\n")
    };
    the_configuration_is_a_call_of_another_operator: |room| {
        room.check("torch_npu.npu_moe_distribute_combine_teardown(ep_world_size=16, moe_expert_num=64)")
    };
    the_configuration_states_nothing: |room| room.file("layer.toml", "").run("layout layer.toml");
    a_key_is_not_known: |room| room.check("k = 8\nhccl_buffsize = 200");
    several_keys_are_not_known: |room| room.check("zeta = 1\nalpha = 2\nk = 99");
    a_tensor_stands_among_the_keys: |room| room.check("x_active_mask = true");
    a_key_is_the_name_of_a_derived_number: |room| room.check("localMoeExpertNum = 16\nmaxBs = 8");
    a_key_stands_twice: |room| room.check("k = 8\nk = 9");
    a_value_has_another_type: |room| room.check("k = \"8\"");
    a_number_has_a_point: |room| room.check("h = 7168.0");
    a_number_is_outside_i64: |room| room.check("k = 9223372036854775808");
    bs_is_a_word: |room| room.check("bs = \"many\"");
    a_word_is_not_one_of_those_that_there_are: |room| room.check("product = \"a5\"");
    a_type_that_the_operators_lack: |room| room.check("dtype = \"fp8\"");
    static_quantisation: |room| room.check("quantMode = 1");
    a_number_format_of_a5: |room| room.check("quant_mode = 4");
    a_number_is_out_of_range: |room| room.check("k = 20");
    a_number_is_as_small_as_can_be: |room| room.check("aiv_num = -9223372036854775808");
    a_number_is_as_large_as_can_be: |room| room.check("h = 9223372036854775807");
    experts_do_not_divide_among_ranks: |room| room.check("moe_expert_num = 250");
    the_window_is_too_small: |room| room.check("moe_expert_num = 256\nbs = 48");
    bs_has_too_few_entries: |room| room.check("ep_world_size = 4\nbs = [1, 2]");
    an_entry_of_bs_is_out_of_range: |room| room.check("ep_world_size = 2\nglobal_bs = 1200\nbs = [1, 600]");
    groups_of_one_name: |room| room.check(format!("{TP}groupEp = \"all\"\ngroupTp = \"all\""));
    a_group_without_a_name: |room| room.check("groupEp = \"\"\nk = 8");
    a_capacity_where_batches_must_be_equal: |room| room.check(format!("{V2}global_bs = 272"));
    experts_that_do_not_add_up: |room| {
        room.check("moe_expert_num = 64\nlogical_experts = 56\nredundant_experts = 9")
    };
    fewer_logical_experts_than_a_token_has: |room| room.check("k = 8\nmoe_expert_num = 64\nlogical_experts = 7");
    a_chip_that_there_is_not: |room| room.check("product = \"910bfoo\"");
    ids_that_mean_nothing: |room| room.check("ids = \"-1\"");
    a_release_that_there_is_not: |room| room.check("release = \"8\"");
    a_relay_area_that_is_full: |room| {
        room.run("layout --preset a2-hier-64 --set bs=512 --set hccl_buffsize_mb=4000")
    };
    a_limit_of_ours_where_the_operators_accept: |room| {
        room.run("layout --preset a2-64 --set ep_world_size=8 --set h=1024")
    };
    a_rank_id_that_there_is_not: |room| room.check("epRankId = 16\nk = 8");
    a_rank_id_stands_twice: |room| room.check("ep_world_size = 2\nepRankId = [1, 1]");
    a_tp_rank_id_without_a_tp_domain: |room| room.check("tpRankId = 1\nk = 8");
    shared_experts_elsewhere: |room| room.check("expertShardType = 1");
    a_switch_that_is_neither_off_nor_on: |room| room.check("HCCL_INTRA_PCIE_ENABLE = 2");
    a_scale_of_the_first_version: |room| room.check("weightScale = 0.5");
    groups_of_experts_of_the_first_version: |room| room.check("groupList = [3, 4]");
    another_dtype_of_results: |room| room.check("outDtype = \"fp16\"");
    norm_eps_is_nan: |room| room.check("norm_eps = nan");
    special_experts_where_the_algorithm_has_none: |room| {
        room.run("layout --preset a2-hier-16 --set copy_expert_num=1")
    };
    shared_experts_without_a_rank: |room| room.check("shared_expert_num = 2\nk = 8");
    ranks_without_a_shared_expert: |room| {
        room.check("shared_expert_num = 0\nshared_expert_rank_num = 4\nmoe_expert_num = 48")
    };
    shared_ranks_do_not_divide_among_shared_experts: |room| {
        room.check("shared_expert_num = 3\nshared_expert_rank_num = 4\nmoe_expert_num = 48")
    };
    more_experts_of_a_rank_than_a2_takes: |room| {
        room.check(format!("release = \"8.5.0\"\n{A2}moe_expert_num = 400"))
    };
    h_is_no_multiple_on_a2: |room| room.check(format!("{A2}h = 1000"));
    more_special_experts_than_ids_can_name: |room| room.check("zero_expert_num = 2147483640\nk = 8");
    no_rank_has_tokens: |room| room.run("layout --preset tiny --set bs=[0,0]");
    global_bs_is_another_number: |room| room.check("global_bs = 100\nk = 8");
    global_bs_of_ranks_that_differ: |room| room.check("ep_world_size = 2\nbs = [1, 2]\nglobal_bs = 3");
    a_tp_domain_of_ranks_with_several_experts: |room| room.check("release = \"9.1.0\"\ntp_world_size = 2\nk = 8");
    results_quantised_in_a_tp_domain: |room| room.check(format!("{TP}comm_quant_mode = 2"));
    fullmesh_v2_with_a_tp_domain: |room| room.check(format!("{V2}tp_world_size = 2\nmoe_expert_num = 16"));
    fullmesh_v2_with_ranks_that_differ: |room| {
        room.check(format!("{V2}ep_world_size = 2\nbs = [1, 2]\nglobal_bs = 4"))
    };
    fullmesh_v2_with_special_experts: |room| room.check(format!("{V2}copy_expert_num = 1"));
    more_counts_than_status_slots: |room| {
        room.check("hccl_buffsize_mb = 8000\nep_world_size = 17\nshared_expert_rank_num = 16\nmoe_expert_num = 1024")
    };
    two_rules_are_broken: |room| room.check("k = 20\nquant_mode = 1");
    layers_that_cannot_share_a_group: |room| {
        room.file("a.toml", "k = 8\naiv_num = 4").file("b.toml", "k = 8").run("check a.toml b.toml")
    };
    layers_of_which_one_is_elastic: |room| {
        let config = std::fs::read(room.elastic().at("case/config.toml")).unwrap();
        room.file("b.toml", config).run("check case b.toml")
    };
    layers_whose_flags_lie_in_the_data_of_others: |room| {
        room.file("a.toml", format!("{A2}h = 2048")).file("b.toml", A2).run("check a.toml b.toml")
    };
    layers_that_overlap_with_two_batches_in_flight: |room| {
        room.file("a.toml", "h = 2048").file("b.toml", "k = 8").run("check a.toml b.toml --in-flight 2")
    };
}
