//! Tensors of a case that are not what its configuration says.

use super::room::{Room, tensor};
use super::rows;
use safetensors::Dtype;
use std::process::Output;
use veriep_case::generate::Options;
use veriep_case::store::Tensor;

const NAN: [u8; 4] = f32::NAN.to_le_bytes();

fn with_all(room: &Room) -> &Room {
    let options = Options { shared_expert_x: true, ..Options::default() };
    room.case_with(
        |config| {
            config.op = "combine_add_rms_norm".to_owned();
            (config.copy_expert_num, config.const_expert_num) = (1, 2);
        },
        options,
    )
}

fn quantised(room: &Room) -> &Room {
    let options = Options { smooth_scales: true, ..Options::default() };
    room.case_with(|config| config.quant_mode = 2, options)
}

/// The same tensors without the one of that name.
fn without(room: &Room, name: &str) -> Output {
    room.with_tensors(|tensors| tensors.retain(|tensor| tensor.name != name))
}

fn added(room: &Room, name: &str, dtype: Dtype, shape: &[usize], data: &[u8]) -> Output {
    add(room.case(), name, dtype, shape, data)
}

/// The case as it is under another configuration, with one more tensor.
fn under(room: &Room, config: &str, name: &str, dtype: Dtype, shape: &[usize], data: &[u8]) -> Output {
    add(room.case().file("case/config.toml", config), name, dtype, shape, data)
}

fn add(room: &Room, name: &str, dtype: Dtype, shape: &[usize], data: &[u8]) -> Output {
    room.with_tensors(|tensors| {
        let (name, data) = (name.to_owned(), data.to_vec().into());
        tensors.push(Tensor { name, dtype, shape: shape.to_vec(), data });
    })
}

fn mask(room: &Room, shape: &[usize], bytes: &[u8]) -> Output {
    added(room, "rank1.x_active_mask", Dtype::BOOL, shape, bytes)
}

fn ids(room: &Room, ids: [i32; 2]) -> Output {
    room.case().with_words("rank1.expert_ids", 2, &ids.map(i32::to_le_bytes))
}

/// Changes one word of `elastic_info` of 6 ranks, of which 4 are left.
fn elastic(room: &Room, at: usize, word: i32) -> Output {
    room.elastic().with_words("elastic_info", at, &[word.to_le_bytes()])
}

/// The same under another configuration of 6 ranks.
fn elastic_under(room: &Room, config: &str, at: usize, word: i32) -> Output {
    let config = format!("ep_world_size = 6\nmoe_expert_num = 12\nk = 2\nh = 1024\nbs = 2\n{config}");
    room.elastic().file("case/config.toml", config).with_words("elastic_info", at, &[word.to_le_bytes()])
}

/// Redundant experts of the case, which has 4 physical ones.
fn map(room: &Room, shape: &[usize], words: &[i32]) -> Output {
    let words: Vec<_> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    added(room, "expert_map", Dtype::I32, shape, &words)
}

/// Replicas that rank 1 chooses, of two logical experts with two each.
fn replicas(room: &Room, chosen: &[i32]) -> Output {
    let bytes = |words: &[i32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let (map, chosen, len) = (bytes(&[0, 1, 3, 2]), bytes(chosen), chosen.len());
    room.case().with_tensors(|tensors| {
        let words = |name: &str, shape, data: Vec<u8>| Tensor {
            name: name.to_owned(),
            dtype: Dtype::I32,
            shape,
            data: data.into(),
        };
        for name in ["rank0.expert_ids", "rank1.expert_ids"] {
            let ids = tensor(tensors, name);
            let both: Vec<_> = (0..ids.data.len() as i32 / 4).map(|pair| pair % 2).collect();
            ids.data = bytes(&both).into();
        }
        tensors.push(words("expert_map", vec![2, 2], map));
        tensors.push(words("rank1.replicas", vec![len], chosen));
    })
}

/// `elastic_info` that is switched on; it says no more.
const ON: [u8; 4] = 1_i32.to_le_bytes();

rows! {
    a_tensor_is_missing: |room| without(room.case(), "rank1.x");
    a_tensor_has_another_dtype: |room| {
        room.case().with_tensors(|tensors| tensor(tensors, "rank0.x").dtype = Dtype::F16)
    };
    a_tensor_has_another_shape: |room| {
        room.case().with_tensors(|tensors| tensor(tensors, "rank0.expert_ids").shape = vec![2, 4])
    };
    a_tensor_of_a_rank_that_there_is_not: |room| added(room, "rank2.x", Dtype::U8, &[0], &[]);
    a_tensor_of_an_unknown_name: |room| added(room, "rank0.weights", Dtype::U8, &[0], &[]);
    a_tensor_whose_name_has_control_characters: |room| added(room, "a\u{1b}[31m\nb", Dtype::U8, &[0], &[]);
    a_tensor_whose_name_turns_what_follows: |room| added(room, "rank0.\u{202e}x", Dtype::U8, &[0], &[]);
    a_tensor_without_a_name: |room| added(room, "", Dtype::U8, &[0], &[]);
    a_tensor_that_the_algorithm_does_not_take: |room| {
        let config = "release = \"seed\"\nproduct = \"a2\"\ncomm_alg = \"hierarchy\"";
        under(room, config, "rank0.x_active_mask", Dtype::BOOL, &[1], &[1])
    };
    a_mask_on_fullmesh_v2: |room| {
        under(room, "release = \"seed\"\ncomm_alg = \"fullmesh_v2\"", "rank0.x_active_mask", Dtype::BOOL, &[1], &[1])
    };
    a_mask_of_pairs_where_only_tokens_have_flags: |room| {
        let config = "release = \"8.5.0\"\ncomm_alg = \"fullmesh_v2\"";
        under(room, config, "rank0.x_active_mask", Dtype::BOOL, &[1, 8], &[1; 8])
    };
    a_mask_beside_a_capacity: |room| {
        under(room, "global_bs = 272", "rank0.x_active_mask", Dtype::BOOL, &[1], &[1])
    };
    elastic_info_on_fullmesh_v2: |room| {
        under(room, "release = \"seed\"\ncomm_alg = \"fullmesh_v2\"", "elastic_info", Dtype::I32, &[1], &ON)
    };
    elastic_info_of_a_tp_domain: |room| {
        under(room, "release = \"9.1.0\"\ntp_world_size = 2\nmoe_expert_num = 16", "elastic_info", Dtype::I32, &[1], &ON)
    };
    shared_expert_x_where_ranks_hold_shared_experts: |room| {
        let config = "shared_expert_rank_num = 4\nmoe_expert_num = 48";
        under(room, config, "rank0.shared_expert_x", Dtype::BF16, &[0], &[])
    };
    an_expert_id_is_too_large: |room| ids(room, [4, 1]);
    an_expert_id_is_negative: |room| ids(room, [-1, 1]);
    an_expert_id_stands_twice_in_a_row: |room| ids(room, [1, 1]);
    eight_expert_ids_are_wrong: |room| {
        room.case().with_words("rank0.expert_ids", 0, &[9_i32.to_le_bytes(); 8])
    };
    an_expert_scale_is_nan: |room| room.case().with_words("rank0.expert_scales", 3, &[NAN]);
    an_expert_gain_is_infinite: |room| {
        room.case().with_words("expert_gain", 2, &[f32::INFINITY.to_le_bytes()])
    };
    a_mask_of_tokens_is_true_after_a_false: |room| mask(room, &[4], &[1, 0, 1, 0]);
    a_byte_of_a_mask_is_2: |room| mask(room, &[4, 2], &[1, 1, 1, 1, 1, 2, 0, 0]);
    a_mask_has_another_shape: |room| mask(room, &[3], &[1, 0, 0]);
    a_mask_has_another_dtype: |room| added(room, "rank1.x_active_mask", Dtype::U8, &[4], &[1, 1, 0, 0]);
    scales_without_quantisation: |room| added(room, "scales", Dtype::F32, &[4, 1024], &[0; 4 * 4096]);
    one_of_scales_is_nan: |room| quantised(room).with_words("scales", 1024 + 5, &[NAN]);
    one_of_scales_makes_a_token_infinite: |room| {
        let huge: Vec<_> = [f32::MAX.to_le_bytes()].repeat(4 * 1024);
        quantised(room).with_tensors(|tensors| {
            tensor(tensors, "rank0.x").data.to_mut()[..2048].copy_from_slice(&0x4000_u16.to_le_bytes().repeat(1024));
            tensor(tensors, "rank0.x").data.to_mut()[2048..].fill(0);
            tensor(tensors, "rank1.x").data.to_mut().fill(0);
            tensor(tensors, "rank0.expert_ids").data.to_mut()[..4].fill(0);
            tensor(tensors, "rank0.expert_ids").data.to_mut()[4] = 1;
            tensor(tensors, "scales").data.to_mut().copy_from_slice(huge.as_flattened());
        })
    };
    an_element_of_x_is_nan_and_must_be_quantised: |room| {
        quantised(room).with_words("rank1.x", 512 + 3, &[0x7FC0_3F80_u32.to_le_bytes()])
    };
    shared_expert_x_of_one_rank_only: |room| without(with_all(room), "rank1.shared_expert_x");
    a_tensor_of_const_experts_is_missing: |room| without(with_all(room), "const_expert_alpha_1");
    one_of_const_expert_v_is_nan: |room| {
        with_all(room).with_words("const_expert_v", 0, &[0x7FC0_3F80_u32.to_le_bytes()])
    };
    gamma_is_missing: |room| without(with_all(room), "gamma");
    residual_x_is_missing: |room| without(with_all(room), "rank0.residual_x");
    elastic_info_has_another_shape: |room| {
        room.elastic().with_tensors(|tensors| {
            let info = tensor(tensors, "elastic_info");
            (info.shape, info.data) = (vec![4], info.data[..16].to_vec().into());
        })
    };
    elastic_info_has_another_dtype: |room| {
        room.elastic().with_tensors(|tensors| tensor(tensors, "elastic_info").dtype = Dtype::F32)
    };
    elastic_info_is_too_short: |room| {
        added(room, "elastic_info", Dtype::I32, &[1], &ON);
        room.run("layout case")
    };
    elastic_info_leaves_no_rank: |room| elastic(room, 1, 0);
    elastic_info_leaves_more_ranks_than_there_are: |room| elastic(room, 1, 7);
    elastic_info_leaves_shared_ranks_that_there_were_not: |room| elastic(room, 2, 1);
    elastic_info_leaves_shared_ranks_that_do_not_divide: |room| {
        elastic_under(room, "shared_expert_num = 2\nshared_expert_rank_num = 2", 2, 1)
    };
    elastic_info_leaves_no_expert: |room| elastic(room, 3, 0);
    elastic_info_leaves_more_experts_than_ids_can_name: |room| {
        elastic_under(room, "shared_expert_rank_num = 2\nzero_expert_num = 2147483635", 3, 16)
    };
    elastic_info_leaves_more_experts_than_there_is_room_for: |room| elastic(room, 3, 16);
    elastic_info_leaves_experts_that_do_not_divide: |room| elastic(room, 3, 7);
    elastic_info_names_a_new_id_that_there_is_not: |room| elastic(room, 4, 4);
    elastic_info_gives_a_dead_rank_a_name: |room| elastic(room, 5, 0);
    elastic_info_takes_a_rank_its_name: |room| elastic(room, 4, -1);
    elastic_info_names_a_physical_rank_that_there_is_not: |room| elastic(room, 10, 6);
    elastic_info_has_an_entry_behind_the_last_new_id: |room| elastic(room, 15, 0);
    expert_map_with_elastic_info: |room| {
        add(room.elastic(), "expert_map", Dtype::I32, &[12, 1], &[0; 48])
    };
    expert_map_has_another_shape: |room| map(room, &[4], &[0, 1, 2, 3]);
    expert_map_has_another_dtype: |room| added(room, "expert_map", Dtype::F32, &[4, 1], &[0; 16]);
    expert_map_has_more_rows_than_there_are_experts: |room| map(room, &[5, 1], &[0, 1, 2, 3, 0]);
    expert_map_leaves_too_few_ids: |room| map(room, &[1, 4], &[3, 2, 1, 0]);
    expert_map_names_an_expert_that_there_is_not: |room| map(room, &[3, 2], &[0, 4, 1, -1, 2, -1]);
    expert_map_names_an_expert_twice: |room| map(room, &[3, 2], &[0, 2, 1, -1, 2, -1]);
    expert_map_names_an_expert_behind_a_gap: |room| map(room, &[2, 3], &[0, -1, 3, 1, 2, -1]);
    expert_map_has_a_logical_expert_without_a_replica: |room| map(room, &[3, 2], &[0, 1, -1, -1, 2, 3]);
    expert_map_leaves_experts_out: |room| map(room, &[2, 2], &[0, 1, 3, -1]);
    replicas_without_expert_map: |room| added(room, "rank1.replicas", Dtype::I32, &[4], &[0; 16]);
    replicas_have_another_shape: |room| replicas(room, &[0]);
    replicas_name_an_expert_that_is_no_replica: |room| replicas(room, &[0, 1]);
    expert_ids_that_are_no_logical_experts: |room| map(room, &[2, 2], &[0, 1, 3, 2]);
    a_tensor_of_a_rank_that_is_gone: |room| {
        room.elastic().with_tensors(|tensors| {
            let like = tensor(tensors, "rank0.expert_ids").clone();
            tensors.push(Tensor { name: "rank1.expert_ids".to_owned(), ..like });
        })
    };
}
