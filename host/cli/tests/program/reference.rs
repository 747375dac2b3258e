//! docs/reference/cli.md is what the program itself says of its subcommands and options.
#![cfg(all(target_os = "linux", feature = "schedule"))]

use clap::{Arg, Command, CommandFactory};
use core::fmt::Write;
use snapbox::Data;
use snapbox::data::DataFormat;
use std::collections::BTreeMap;
use veriep::cli::Cli;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");

const INTRODUCTION: &str = "\
# The command line

Every subcommand of `veriep` with its options, their defaults and their values. `cargo test -p veriep --test program command_line`
generates this page from the program's own help and fails when it is stale; `SNAPSHOTS=overwrite` before it writes the page.

Every subcommand takes `--help`; `--format table` (the default) or `--format json`; `-v`, which prints the whole report; and `-q`, which
prints errors alone. JSON has a `schema`, and a `verdict`, which is null where nothing is judged. The subcommands that judge, `check`,
`compare`, `run`, `diagnose`, `conform` and `schedule`, print their verdict first:

| exit status | means |
|---|---|
| 0 | yes, or nothing to judge |
| 1 | no: a result, a record or an order is wrong |
| 2 | the input is wrong; one line on standard error says how |
| 3 | no progress before the deadline; the line names who is missing |
| 4 | unknown: no verdict within the bounds that the report names |
";

/// The table of values of each option that has one, with the subcommands that have it so.
type Values = BTreeMap<(String, String), Vec<String>>;

fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// The option as it is typed.
fn typed(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let value = names.first().map_or_else(String::new, ToString::to_string);
    let Some(long) = arg.get_long() else { return value };
    let short = arg.get_short().map_or_else(String::new, |short| format!("-{short}, "));
    if arg.get_action().takes_values() {
        format!("{short}--{long} {value}")
    } else {
        format!("{short}--{long}")
    }
}

fn row(page: &mut String, verb: &str, arg: &Arg, values: &mut Values) {
    let about = arg.get_long_help().or_else(|| arg.get_help()).unwrap().to_string();
    let is_flag = !arg.get_action().takes_values();
    let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_str().unwrap()).collect();
    let default = match (arg.is_required_set(), is_flag || default.is_empty()) {
        (true, _) => "required".to_owned(),
        (_, true) => String::new(),
        _ => format!("`{}`", default.join(",")),
    };
    writeln!(page, "| `{}` | {default} | {} |", cell(&typed(arg)), cell(&about)).unwrap();
    let possible: Vec<_> = if is_flag { Vec::new() } else { arg.get_possible_values() };
    if possible.iter().any(|value| value.get_help().is_some()) {
        let mut table = "| value | |\n|---|---|\n".to_owned();
        for value in possible {
            let help = value.get_help().map_or_else(String::new, ToString::to_string);
            writeln!(table, "| `{}` | {} |", value.get_name(), cell(&help)).unwrap();
        }
        let name = format!("--{}", arg.get_long().unwrap());
        values.entry((name, table)).or_default().push(verb.to_owned());
    }
}

fn page() -> String {
    let mut command: Command = Cli::command();
    command.build();
    let (mut page, mut values) = (INTRODUCTION.to_owned(), Values::new());
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        let about = verb.get_long_about().or_else(|| verb.get_about()).unwrap();
        writeln!(page, "\n## veriep {}\n\n{about}\n", verb.get_name()).unwrap();
        page += "| option | default | |\n|---|---|---|\n";
        let own = |arg: &&Arg| !arg.is_global_set();
        verb.get_arguments().filter(own).for_each(|arg| row(&mut page, verb.get_name(), arg, &mut values));
    }
    page += "\n## Values\n";
    for ((option, table), verbs) in values {
        write!(page, "\n### {option} of {}\n\n{table}", verbs.join(", ")).unwrap();
    }
    page
}

#[test]
fn the_page_of_the_command_line_is_what_the_program_says() {
    let page = page();
    snapbox::assert_data_eq!(page, Data::read_from(PAGE.as_ref(), Some(DataFormat::Text)).raw());
}
