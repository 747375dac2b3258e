//! Results that cannot be written where they shall.

use super::room::{Room, is_root, skipped, tensor};
use super::rows;
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::process::{Output, Stdio};
use veriep_case::store::Tensor;

/// Runs a request into a device that is always full.
fn into_full(room: &Room, request: &str) -> Output {
    let full = File::options().write(true).open("/dev/full").unwrap();
    room.command(request.split(' ')).stdout(full).stderr(Stdio::piped()).output().unwrap()
}

/// Runs a request whose reader has gone.
fn into_closed(room: &Room, request: &str) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    room.command(request.split(' ')).stdout(writer).stderr(Stdio::piped()).output().unwrap()
}

/// Files of 16 KiB at most.
const LITTLE_ROOM: &str = "ulimit -f 16";

/// All that is in the case.
fn files(room: &Room) -> BTreeMap<OsString, Vec<u8>> {
    let entries = fs::read_dir(room.at("case")).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap())).collect()
}

/// Holds a changed result against its case.
fn compared(room: &Room, edit: impl FnOnce(&mut Vec<Tensor<'_>>)) -> Output {
    room.case().run("run case --out result");
    room.edited("result", edit).run("compare case result")
}

rows! {
    out_in_a_folder_that_there_is_not: |room| room.run("run --preset tiny --out none/result");
    out_is_a_folder: |room| room.folder("result").run("run --preset tiny --out result");
    out_in_a_file: |room| room.file("file", "").run("run --preset tiny --out file/result");
    out_is_a_device: |room| room.run("run --preset tiny --out /dev/null");
    out_is_standard_output: |room| room.run("run --preset tiny --out /dev/stdout");
    out_in_a_folder_that_cannot_be_written: |room| room.run("run --preset tiny --out /proc/result");
    out_is_a_link_to_nothing: |room| {
        // Written where it points to: no mistake.
        let output = room.folder("far").link("far/result", "result").run("run --preset tiny --out result");
        assert!(room.at("result").is_symlink() && room.at("far/result").is_file());
        output
    };
    out_is_a_link_to_itself: |room| room.link("result", "result").run("run --preset tiny --out result");
    out_is_an_input: |room| room.case().run("run case --out case/config.toml");
    out_has_an_empty_name: |room| room.ask(["run", "--preset", "tiny", "--out", ""]);
    // Told before anything else, not after an hour of running: what is wrong with k is not told.
    out_ends_in_a_slash: |room| room.run("run --preset tiny --set k=5 --out result/");
    out_has_too_long_a_name: |room| room.ask(["run", "--preset", "tiny", "--set", "k=5", "--out", &"a".repeat(256)]);
    out_in_a_folder_that_must_not_be_written: |room| {
        room.folder("home").mode("home", 0o555).plain("run --preset tiny --out home/result")
    };
    out_on_a_file_system_that_is_read_only: |room| room.mounted("ro", "$veriep run --preset tiny --out disk/result");
    the_disk_is_full: |room| {
        room.file("result", "old");
        room.mounted("size=16k", "cp result disk; $veriep run --preset tiny --out disk/result; it=$?; cmp result disk/result >&2; exit $it")
    };
    the_disk_is_full_when_a_case_is_made: |room| {
        room.mounted("size=16k", "$veriep gen --preset tiny --seed 1 --out disk/case; it=$?; ls disk >&2; exit $it")
    };
    the_disk_is_full_when_a_case_is_made_again: |room| {
        assert!(room.run("gen --preset tiny --seed 1 --expected --out case").status.success());
        room.mounted("size=128k", "cp -r case disk; $veriep gen --preset tiny --set h=8192 --seed 2 --force --out disk/case; it=$?; diff -r case disk/case >&2; exit $it")
    };
    a_file_may_be_no_larger: |room| {
        let output = room.file("result", "old").limited(LITTLE_ROOM, "run --preset tiny --out result");
        assert_eq!(fs::read(room.at("result")).unwrap(), b"old");
        assert_eq!(fs::read_dir(room.at("")).unwrap().count(), 1, "something is left behind");
        output
    };
    a_file_may_be_no_larger_when_a_case_is_made: |room| {
        let output = room.limited(LITTLE_ROOM, "gen --preset tiny --seed 1 --out case");
        assert!(!room.at("case").exists(), "something is left behind");
        output
    };
    a_file_may_be_no_larger_when_a_case_is_made_again: |room| {
        assert!(room.run("gen --preset tiny --seed 1 --expected --out case").status.success());
        let old = files(room);
        let output = room.limited(LITTLE_ROOM, "gen --preset tiny --seed 2 --force --out case");
        assert!(files(room) == old, "the old case is lost");
        output
    };
    a_case_that_must_not_be_replaced: |room| {
        if !is_root() {
            return skipped("only root makes files that others must not replace");
        }
        assert!(room.run("gen --preset tiny --seed 1 --expected --out case").status.success());
        let old = files(room);
        let output = room.mode("case", 0o1777).plain("gen --preset tiny --seed 2 --force --out case");
        assert!(files(room) == old, "the old case is lost");
        output
    };
    a_folder_where_the_expected_result_shall_be: |room| {
        room.case().folder("case/expected.safetensors").run("gen --preset tiny --seed 1 --force --out case")
    };
    a_case_in_a_file: |room| room.file("file", "").run("gen --preset tiny --seed 1 --out file");
    a_case_in_a_folder_of_other_files: |room| {
        room.folder("home").file("home/letter", "").run("gen --preset tiny --seed 1 --out home")
    };
    a_case_that_is_there: |room| room.case().run("gen --preset tiny --seed 1 --out case");
    a_case_below_a_file: |room| room.file("file", "").run("gen --preset tiny --seed 1 --out file/case");
    stdout_is_full: |room| into_full(room, "run --preset tiny");
    stdout_is_full_in_json: |room| into_full(room, "run --preset tiny --format json");
    stdout_is_full_and_help_is_asked_for: |room| into_full(room, "--help");
    stdout_without_a_reader: |room| into_closed(room, "run --preset tiny");
    help_without_a_reader: |room| into_closed(room, "run --help");
    the_result_to_compare_is_missing: |room| room.case().run("compare case nowhere");
    the_result_to_compare_is_another_file: |room| room.case().run("compare case case/config.toml");
    there_is_nothing_to_compare_with: |room| {
        let nothing = [&2u64.to_le_bytes()[..], b"{}"].concat();
        room.file("nothing", nothing).run("compare nothing nothing")
    };
    one_bit_of_a_result_is_wrong: |room| {
        room.case().run("run case --out result");
        let mut bytes = fs::read(room.at("result")).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        room.file("result", bytes).run("compare case result")
    };
    a_result_has_another_dtype: |room| compared(room, |tensors| tensor(tensors, "rank0.x_out").dtype = Dtype::F16);
    a_result_has_another_shape: |room| {
        compared(room, |tensors| tensor(tensors, "rank1.expand_idx").shape = vec![2, 4])
    };
    padding_is_of_no_such_value: |room| {
        room.case().run("run case --out result");
        room.run("compare case result --padded-with many")
    };
    a_case_of_combine_alone_lacks_rows: |room| {
        room.case().run("run case --out result");
        let nothing = [&2u64.to_le_bytes()[..], b"{}"].concat();
        room.file("case/returned.safetensors", nothing).run("compare case result --tensors x_out")
    };
    a_result_lacks_a_tensor: |room| {
        compared(room, |tensors| tensors.retain(|tensor| tensor.name != "rank1.ep_recv_counts"))
    };
    a_result_has_a_tensor_more: |room| {
        compared(room, |tensors| {
            let like = tensor(tensors, "rank1.x_out").clone();
            tensors.push(Tensor { name: "rank2.x_out".to_owned(), ..like });
        })
    };
    expected_and_result_are_both_missing: |room| room.run("compare nowhere result");
    out_is_the_configuration_in_a_folder: |room| {
        room.case().run("run --config case --rounds 1 --out case/config.toml")
    };
    out_is_beside_the_configuration_in_a_folder: |room| {
        room.case().run("run --config case --rounds 1 --out case/inputs.safetensors")
    };
    out_has_control_characters_in_its_name: |room| {
        room.ask(["run", "--preset", "tiny", "--rounds", "1", "--out", "x\x1b[31m\ny"])
    };
    a_result_is_wrong_and_stdout_is_full: |room| {
        room.case().run("run case --out result");
        let mut bytes = fs::read(room.at("result")).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        into_full(room.file("other", bytes), "compare result other")
    };
    a_schedule_is_unsafe_and_stdout_is_full: |room| into_full(room, "schedule DDDCCC");
}
