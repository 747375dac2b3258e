//! Results that cannot be written where they shall.

use super::room::Room;
use super::rows;
use std::fs::File;
use std::process::{Output, Stdio};

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

/// Files of 16 KiB at most, as on a disk with as much left.
const LITTLE_ROOM: &str = "ulimit -f 16";

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
    the_disk_is_full: |room| {
        let output = room.file("result", "old").limited(LITTLE_ROOM, "run --preset tiny --out result");
        assert_eq!(std::fs::read(room.at("result")).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(room.at("")).unwrap().count(), 1, "something is left behind");
        output
    };
    the_disk_is_full_when_a_case_is_made: |room| {
        let output = room.limited(LITTLE_ROOM, "gen --preset tiny --seed 1 --out case");
        assert!(!room.at("case").exists(), "something is left behind");
        output
    };
    a_case_in_a_file: |room| room.file("file", "").run("gen --preset tiny --seed 1 --out file");
    a_case_in_a_folder_of_other_files: |room| {
        room.folder("home").file("home/letter", "").run("gen --preset tiny --seed 1 --out home")
    };
    a_case_below_a_file: |room| room.file("file", "").run("gen --preset tiny --seed 1 --out file/case");
    stdout_is_full: |room| into_full(room, "run --preset tiny");
    stdout_is_full_in_json: |room| into_full(room, "run --preset tiny --format json");
    stdout_is_full_and_help_is_asked_for: |room| into_full(room, "--help");
    nobody_reads_stdout: |room| into_closed(room, "run --preset tiny");
    nobody_reads_help: |room| into_closed(room, "run --help");
    the_result_to_compare_is_missing: |room| room.case().run("compare case nowhere");
    the_result_to_compare_is_another_file: |room| room.case().run("compare case case/config.toml");
    one_bit_of_a_result_is_wrong: |room| {
        room.case().run("run case --out result");
        let mut bytes = std::fs::read(room.at("result")).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        room.file("result", bytes).run("compare case result")
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
        let mut bytes = std::fs::read(room.at("result")).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        into_full(room.file("other", bytes), "compare result other")
    };
    a_schedule_is_unsafe_and_stdout_is_full: |room| into_full(room, "schedule DDDCCC");
}
