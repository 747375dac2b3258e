//! The table of codes in `docs/embed/c.md` is the model's.

use super::rows::{Check, ROWS, Row, WITHOUT_ARGUMENTS};
use super::structures::{Argument, Fault, STRUCTURES};
use crate::codes::*;
use snapbox::Data;
use snapbox::data::DataFormat;
use std::path::Path;
use std::string::String;
use std::vec::Vec;
use std::{env, format, fs};

const FROM: &str = "<!-- codes: made of the model, SNAPSHOTS=overwrite writes them -->\n";
const TO: &str = "<!-- codes end -->\n";

fn name_of(code: i32) -> &'static str {
    match code {
        VERIEP_OK => "OK",
        VERIEP_STEPPED => "STEPPED",
        VERIEP_PENDING => "PENDING",
        VERIEP_E_NULL => "NULL",
        VERIEP_E_VERSION => "VERSION",
        VERIEP_E_ARGUMENT => "ARGUMENT",
        VERIEP_E_ORDER => "ORDER",
        VERIEP_E_SHORT => "SHORT",
        VERIEP_E_CONFIG => "CONFIG",
        VERIEP_E_INPUTS => "INPUTS",
        VERIEP_E_REFUSED => "REFUSED",
        VERIEP_E_PROTOCOL => "PROTOCOL",
        VERIEP_E_FABRIC => "FABRIC",
        VERIEP_E_EARLY => "EARLY",
        _ => unreachable!("{code} has no name"),
    }
}

/// An argument with its codes; one that is never refused is left out.
fn argument(it: &Argument) -> Option<String> {
    let mut codes: Vec<_> =
        it.faults.iter().map(|(_, code)| *code).filter(|code| *code != VERIEP_OK).collect();
    codes.sort_unstable_by(|a, b| b.cmp(a));
    codes.dedup();
    let names: Vec<_> = codes.into_iter().map(name_of).collect();
    // Fields are named without their structure, of which their row speaks.
    let name = it.name.split_once('.').map_or(it.name, |(_, field)| field);
    let is_state = it.faults.iter().all(|(fault, _)| *fault == Fault::NotMade);
    let name = if is_state || it.name.contains(' ') { it.name.into() } else { format!("`{name}`") };
    (!names.is_empty()).then(|| format!("{name} {}", names.join(" ")))
}

fn checks(of: &[Check]) -> Vec<String> {
    let all = of.iter().flat_map(|check| match check {
        Check::One(one) => argument(one).into_iter().collect(),
        Check::All(structure) => Vec::from([format!("fields of `{}`", structure.name)]),
        Check::Same(call, _) => Vec::from([format!("as `{call}`")]),
    });
    all.collect()
}

/// What a call answers once its arguments hold.
fn answers(of: &Row) -> String {
    match of.name {
        "veriep_fabric_can" => return "`VERIEP_CAN_*`".into(),
        "veriep_has_agents" => return "0, 1".into(),
        _ => {}
    }
    let names: Vec<_> = of.answers.iter().map(|code| name_of(*code)).collect();
    names.join(", ")
}

fn table() -> String {
    let mut text = String::from("| call | refuses, in this order | then answers |\n|---|---|---|\n");
    for row in ROWS {
        text += &format!("| `{}` | {} | {} |\n", row.name, checks(row.checks).join(", "), answers(row));
    }
    text += "\n| structure | refuses, in this order |\n|---|---|\n";
    for structure in STRUCTURES {
        let fields: Vec<_> = structure.fields.iter().filter_map(argument).collect();
        text += &format!("| `{}` | {} |\n", structure.name, fields.join(", "));
    }
    text
}

/// `SNAPSHOTS=overwrite` writes it.
#[test]
fn the_page_has_the_codes_of_the_model() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/embed/c.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(FROM).unwrap();
    let (_, after) = rest.split_once(TO).unwrap();
    let made = [before, FROM, &table(), TO, after].concat();
    snapbox::assert_data_eq!(made, Data::read_from(&path, Some(DataFormat::Text)).raw());
}

/// What the page shows in C is run as part of the example.
#[test]
fn the_page_shows_lines_of_the_example() {
    let page = include_str!("../../../../../docs/embed/c.md");
    let example = include_str!("../../../examples/two_ranks.c");
    let blocks: Vec<_> = page.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        assert!(example.contains(block), "docs/embed/c.md shows what two_ranks.c does not have:\n{block}");
    }
}

/// A function without a row would be in no model.
#[test]
fn each_function_of_the_header_has_a_row() {
    let header = include_str!("../../../include/veriep.h");
    let mut functions: Vec<_> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '*', '/', '#']))
        .filter_map(|line| {
            line.split_once('(').map(|(before, _)| before.rsplit([' ', '*']).next().unwrap_or(""))
        })
        .filter(|name| name.starts_with("veriep_"))
        .collect();
    let mut modelled: Vec<_> = ROWS.iter().map(|row| row.name).chain(WITHOUT_ARGUMENTS).collect();
    functions.sort_unstable();
    modelled.sort_unstable();
    assert_eq!(functions, modelled, "the functions of the header, and those of the model");
}
