//! Configurations that are no TOML, or break a rule.

use super::rows;

rows! {
    the_configuration_is_missing: |room| room.run("check nowhere.toml");
    the_configuration_is_not_utf_8: |room| room.check(b"k = 8\nh = \xFF1024");
    the_configuration_is_larger_than_any: |room| room.check(vec![b'#'; 5 << 20]);
    the_configuration_is_not_toml: |room| room.check("k = 8\nh = = 7168");
    a_key_is_not_known: |room| room.check("k = 8\nhccl_buffsize = 200");
    a_key_stands_twice: |room| room.check("k = 8\nk = 9");
    a_value_has_another_type: |room| room.check("k = \"8\"");
    a_number_has_a_point: |room| room.check("h = 7168.0");
    a_number_is_outside_i64: |room| room.check("k = 9223372036854775808");
    bs_is_a_word: |room| room.check("bs = \"many\"");
    a_word_is_not_one_of_those_that_there_are: |room| room.check("product = \"a5\"");
    a_number_is_out_of_range: |room| room.check("k = 20");
    a_number_is_as_small_as_can_be: |room| room.check("aiv_num = -9223372036854775808");
    a_number_is_as_large_as_can_be: |room| room.check("h = 9223372036854775807");
    experts_do_not_divide_among_ranks: |room| room.check("moe_expert_num = 250");
    the_window_is_too_small: |room| room.check("moe_expert_num = 256\nbs = 48");
    bs_has_too_few_entries: |room| room.check("ep_world_size = 4\nbs = [1, 2]");
    an_entry_of_bs_is_out_of_range: |room| room.check("ep_world_size = 2\nglobal_bs = 1200\nbs = [1, 600]");
    norm_eps_is_nan: |room| room.check("norm_eps = nan");
    special_experts_where_the_algorithm_has_none: |room| {
        room.check("product = \"a2\"\ncomm_alg = \"hierarchy\"\nmoe_expert_num = 256\ncopy_expert_num = 1")
    };
    two_rules_are_broken: |room| room.check("k = 20\nquant_mode = 1");
    layers_that_cannot_share_a_group: |room| {
        room.file("a.toml", "aiv_num = 4").file("b.toml", "").run("check a.toml b.toml")
    };
}
