//! Groups of subcommands and two examples of each, which `--help` shows beyond the options.

use super::Cli;
use clap::{Command, CommandFactory};
use core::fmt::Write;

pub const INPUT: &str = "Input";
pub const PROTOCOL: &str = "Protocol";
pub const BACKEND: &str = "Backend";
pub const FAULTS: &str = "Faults";
pub const SIMULATION: &str = "Simulation";
pub const SEARCH: &str = "Search";
pub const JUDGEMENT: &str = "Judgement";
pub const MEASUREMENT: &str = "Measurement";
pub const OUTPUT: &str = "Output";
/// Those of every subcommand, which stand last.
pub const OPTIONS: &str = "Common";

/// Groups of subcommands, in the order in which a user meets them.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Prepare a case", &["check", "gen", "golden"]),
    ("Run and judge", &["run", "compare", "conform", "schedule"]),
    ("Find why it hangs", &["diagnose"]),
    ("Size and plan", &["layout", "plan", "export", "simulate"]),
    ("More", &["mpi-shim", "completions"]),
];

const HINTS: &str = "\
`veriep COMMAND --help` prints a command's options, `veriep help COMMAND` also what each value means.

Exit status: 0 yes, or done; 1 no: a result, a record or an order is wrong; 2 the request or input is wrong;
3 no progress before the deadline; 4 unknown: no verdict within the bounds.
";

/// Two calls of each subcommand, with what they do.
const EXAMPLES: &[(&str, [(&str, &str); 2])] = &[
    (
        "gen",
        [
            ("gen tiny --seed 1 -o case", "write a small case"),
            (
                "gen deepseek-v3-decode --seed 1 --routing zipf --expected -o case",
                "skewed, with the expected result",
            ),
        ],
    ),
    (
        "run",
        [
            ("run tiny", "four rounds on threads, each compared with the reference"),
            ("run tiny --backend weak --seed 7 --events e.jsonl", "late memory, every event recorded"),
        ],
    ),
    (
        "schedule",
        [
            ("schedule DDCC", "two batches in flight, any number of rounds"),
            ("schedule DDDCCC --partitions 2", "three in two partitions: a counterexample"),
        ],
    ),
    (
        "layout",
        [
            ("layout deepseek-v3-decode", "the memory of rank 0"),
            ("layout a2-64 --rank 3 --format json", "of rank 3, as JSON"),
        ],
    ),
    (
        "export",
        [
            ("export tiny -o map", "plan.json, veriep_plan.h and a C file that checks it"),
            ("export tiny --ranks 0 --prefix moe -o map-of-0", "one rank's shares, names with a prefix"),
        ],
    ),
    (
        "plan",
        [
            ("plan tiny --seed 1", "who sends how much to whom"),
            ("plan tiny --seed 1 --rank 0 --core 0", "every step of one core"),
        ],
    ),
    (
        "simulate",
        [
            ("simulate tiny --cluster a3", "predicted times"),
            ("simulate tiny --cluster a3 --sweep bs=1,2,4 --csv times.csv", "of three batch sizes"),
        ],
    ),
    (
        "check",
        [
            ("check config.toml", "every broken rule, each with a cure"),
            ("check config.toml --release 9.1.0", "by another release of the operators"),
        ],
    ),
    (
        "compare",
        [
            ("compare case result.safetensors", "a result against the reference, bit for bit"),
            ("compare case x_out.npy --rank 0 --tensors x_out --ulp 1", "one tensor of one rank"),
        ],
    ),
    (
        "golden",
        [
            ("golden case -o expected.safetensors", "the expected result of a case"),
            ("golden tiny --seed 2 -o expected.safetensors", "of a case in memory"),
        ],
    ),
    (
        "diagnose",
        [
            ("diagnose dump", "who is missing, from the folder that run --dump wrote"),
            ("diagnose dump --config config.toml --case case", "with a configuration and the batch"),
        ],
    ),
    (
        "mpi-shim",
        [
            ("mpi-shim", "for the MPI that mpicc belongs to"),
            ("mpi-shim --mpicc mpicc.mpich", "for one of several"),
        ],
    ),
    (
        "conform",
        [
            ("conform e.jsonl", "the first event that breaks the contract"),
            ("conform e.jsonl --format json", "as JSON"),
        ],
    ),
    ("completions", [("completions bash", "print the script"), ("completions zsh", "of another shell")]),
];

/// The command line with its help complete.
#[must_use]
pub fn command() -> Command {
    let command = Cli::command();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}\nOptions:\n{{options}}{{after-help}}",
        groups(&command)
    );
    let with_examples = |command: Command, (name, calls): &(&'static str, _)| {
        if command.find_subcommand(name).is_none() {
            return command;
        }
        command.mut_subcommand(name, |verb| verb.after_help(examples(calls)))
    };
    EXAMPLES.iter().fold(command, with_examples).help_template(template)
}

fn groups(command: &Command) -> String {
    let mut text = String::new();
    for (title, names) in GROUPS {
        _ = writeln!(text, "{title}:");
        let known = names.iter().filter_map(|name| command.find_subcommand(name));
        for verb in known {
            let about = verb.get_about().map_or_else(String::new, ToString::to_string);
            _ = writeln!(text, "  {:<12} {about}", verb.get_name());
        }
        text.push('\n');
    }
    text += HINTS;
    text
}

fn examples(calls: &[(&str, &str); 2]) -> String {
    let line = |(call, does): &(&str, &str)| format!("  veriep {call}\n      {does}");
    format!("Examples:\n{}", calls.iter().map(line).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_is_in_one_group_and_has_examples_that_parse() {
        let command = command();
        let mut known: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let mut shown: Vec<_> = EXAMPLES.iter().map(|(name, _)| *name).collect();
        for names in [&mut known, &mut grouped, &mut shown] {
            names.retain(|name| command.find_subcommand(name).is_some());
            names.sort_unstable();
        }
        assert_eq!(known, grouped);
        assert_eq!(known, shown);
        for (call, _) in EXAMPLES.iter().filter(|(name, _)| known.contains(name)).flat_map(|(_, calls)| calls)
        {
            let words = core::iter::once("veriep").chain(call.split(' '));
            command.clone().try_get_matches_from(words).unwrap_or_else(|error| panic!("{call}: {error}"));
        }
    }

    #[test]
    fn help_fits_its_screens() {
        for verb in command().get_subcommands_mut() {
            let lines = verb.render_help().to_string().lines().count();
            assert!(lines <= 2 * 50, "{}: {lines} lines", verb.get_name());
        }
    }
}
