//! Files that are missing, are something else, or lie about themselves.

use super::room::skipped;
use super::rows;
use std::fs::File;
use std::path::Path;

rows! {
    the_case_is_missing: |room| room.run("run nowhere");
    the_case_is_a_file: |room| room.file("case", "no TOML").run("run case");
    config_toml_is_missing: |room| room.case().remove("case/config.toml").run("run case");
    config_toml_is_a_folder: |room| {
        room.case().remove("case/config.toml").folder("case/config.toml").run("run case")
    };
    inputs_safetensors_is_missing: |room| room.case().remove("case/inputs.safetensors").run("run case");
    inputs_safetensors_is_a_folder: |room| {
        room.case().remove("case/inputs.safetensors").folder("case/inputs.safetensors").run("run case")
    };
    inputs_safetensors_is_a_link_to_nothing: |room| {
        room.case().remove("case/inputs.safetensors").link("nothing", "case/inputs.safetensors").run("run case")
    };
    inputs_safetensors_is_a_device: |room| {
        room.case().remove("case/inputs.safetensors").link("/dev/zero", "case/inputs.safetensors").run("run case")
    };
    the_configuration_is_a_device: |room| room.run("check /dev/zero");
    the_configuration_cannot_be_read: |room| room.link("/proc/self/mem", "layer.toml").run("check layer.toml");
    the_configuration_must_not_be_read: |room| room.closed("layer.toml", "").plain("check layer.toml");
    the_tensors_must_not_be_read: |room| room.closed("result", "").plain("compare result result");
    the_tensors_cannot_be_read: |room| {
        // There to be read, of 4096 bytes, and it has no speed to tell.
        let speed = Path::new("/sys/class/net/lo/speed");
        if !speed.is_file() {
            return skipped("no file here that is there and cannot be read");
        }
        Some(room.link(speed, "result").run("compare result result"))
    };
    the_tensors_are_a_file_that_tells_no_size: |room| {
        room.link("/proc/self/mem", "result").run("compare result result")
    };
    the_file_is_empty: |room| room.with_bytes(Vec::clear);
    the_file_ends_within_the_length_of_its_header: |room| room.with_bytes(|bytes| bytes.truncate(7));
    the_file_ends_within_its_header: |room| room.with_bytes(|bytes| bytes.truncate(100));
    the_header_is_said_to_have_2_to_the_64_bytes: |room| room.with_bytes(|bytes| bytes[..8].fill(0xFF));
    the_header_is_larger_than_any_case_needs: |room| {
        room.with_bytes(|bytes| {
            *bytes = [&(9_u64 << 20).to_le_bytes()[..], &vec![b' '; 10 << 20]].concat();
        })
    };
    the_header_is_not_json: |room| room.with_bytes(|bytes| bytes[8] = b'x');
    the_header_is_not_utf_8: |room| room.with_bytes(|bytes| bytes[10] = 0xFF);
    the_header_is_a_list: |room| room.with_header(|_| "[1, 2]".to_owned());
    the_header_is_nested_a_thousand_times: |room| {
        room.with_header(|_| ["{\"a\":".repeat(1000), "}".repeat(1000)].concat())
    };
    a_tensor_has_no_dtype: |room| room.with_header(|header| header.replacen("\"dtype\"", "\"type\"", 1));
    a_tensor_has_a_dtype_that_there_is_not: |room| {
        room.with_header(|header| header.replacen("\"F32\"", "\"F33\"", 1))
    };
    a_dimension_is_negative: |room| room.with_header(|header| header.replacen("[4]", "[-4]", 1));
    a_shape_has_more_elements_than_a_number_holds: |room| {
        room.with_header(|header| header.replacen("[4]", "[18446744073709551615,9]", 1))
    };
    a_shape_does_not_agree_with_its_offsets: |room| room.with_header(|header| header.replacen("[4]", "[5]", 1));
    offsets_overlap: |room| {
        room.with_header(|header| header.replacen("\"data_offsets\":[16,", "\"data_offsets\":[15,", 1))
    };
    offsets_leave_a_hole: |room| {
        room.with_header(|header| header.replacen("\"data_offsets\":[16,", "\"data_offsets\":[17,", 1))
    };
    a_header_with_metadata_of_another_type: |room| {
        room.with_header(|header| header.replacen('{', "{\"__metadata__\":7,", 1))
    };
    a_name_stands_twice_in_the_header: |room| {
        room.with_header(|header| header.replacen("rank0.expert_ids", "rank1.expert_ids", 1))
    };
    the_tensors_are_a_text: |room| room.file("result", "k = 8\nh = 7168\n").run("compare result result");
    data_is_missing_at_the_end: |room| room.with_bytes(|bytes| _ = bytes.pop());
    data_is_left_over_at_the_end: |room| room.with_bytes(|bytes| bytes.push(0));
    a_tensor_is_larger_than_the_memory: |room| {
        // A file may be as large without taking any room on the disk.
        let bytes = 8_u64 << 30;
        let header = format!(r#"{{"rank0.x":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
        room.file("result", [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat());
        let file = File::options().write(true).open(room.at("result")).unwrap();
        file.set_len(8 + header.len() as u64 + bytes).unwrap();
        room.limited("ulimit -v 4000000", "compare result result")
    };
}
