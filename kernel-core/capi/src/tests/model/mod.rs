//! A model of the interface: what state each object is in, and for each call the code that must come of its arguments, of which
//! some are null, misaligned, too short, too long, or beyond what there is. [`rows`] has it as data.
//!
//! Cores and agents go in lockstep with machines that the test calls itself, over a second memory which must stay like the first.
//! A call that is refused has changed nothing: all of the caller's memory is compared byte by byte.

mod args;
mod caches;
mod calls;
mod dice;
mod memory;
pub(crate) mod mood;
mod page;
mod rows;
mod structures;
pub(crate) mod tables;
mod tensors;
mod world;

use args::Args;

use crate::codes::*;
use core::time::Duration;
use dice::{Dice, number_from};
use rows::{ROWS, Row};
use std::collections::BTreeSet;
use std::string::String;
use std::time::Instant;
use std::vec::Vec;
use std::{eprintln, format, println, thread, vec};
use structures::Fault;
use world::{Phase, World};

/// Each fault that was the reason for a code, or was none; and each answer to a call without one.
#[derive(Default)]
struct Seen {
    faults: BTreeSet<(&'static str, &'static str, Fault)>,
    answers: BTreeSet<(&'static str, i32)>,
    calls: u64,
}

impl Seen {
    /// Whether a fault or an answer of a row was never seen.
    fn lacks(&self, row: &'static Row) -> bool {
        self.missing(row).next().is_some()
    }

    fn missing(&self, row: &'static Row) -> impl Iterator<Item = String> {
        let faults = row.arguments().into_iter().flat_map(move |argument| {
            argument.faults.iter().map(move |(fault, _)| (row.name, argument.name, *fault))
        });
        let faults = faults.filter(|fault| !self.faults.contains(fault)).map(|fault| format!("{fault:?}"));
        let answers = row.answers.iter().map(|code| (row.name, *code));
        let answers = answers.filter(|answer| !self.answers.contains(answer));
        faults.chain(answers.map(|answer| format!("{answer:?}")))
    }
}

/// Makes a call, and compares all that came of it with what must.
fn perform(world: &mut World, mut args: Args, seen: &mut Seen) {
    let copy = |watched: &[(&'static str, *const u8, usize)]| -> Vec<Vec<u8>> {
        // SAFETY: of the world.
        let of = |it: &(&str, *const u8, usize)| unsafe { core::slice::from_raw_parts(it.1, it.2) }.to_vec();
        watched.iter().map(of).collect()
    };
    let row = args.row;
    let watched = world.watched(&args);
    let before = copy(&watched);
    let outcome = (row.call)(world, &mut args);
    let after = copy(&watched);
    let (must, text) = match (args.refused, &outcome.must) {
        (Some((_, code)), _) => (code, None),
        (None, Some((code, text))) => (*code, text.clone()),
        (None, None) => unreachable!("a call whose arguments hold has an answer"),
    };
    assert_eq!(outcome.said, must, "the code");
    for ((name, ..), (before, after)) in watched.iter().zip(before.iter().zip(&after)) {
        let mut expected = None;
        match *name {
            "text" => {
                let len = args.length("text", before.len());
                if args.has_passed("text") && args.slip("text") != Some(Fault::Null) && len > 0 {
                    let said = text.clone().unwrap_or_default();
                    let cut = said.len().min(len - 1);
                    expected = Some([&said.as_bytes()[..cut], &[0], &before[cut + 1..]].concat());
                }
            }
            "status"
                if args.refused.is_some()
                    && args.has_passed("status")
                    && args.slip("status") != Some(Fault::Null) =>
            {
                let words = [0, VERIEP_NONE, 0].map(u32::to_ne_bytes);
                expected = Some(words.concat());
            }
            _ if args.refused.is_none() && row.writes.contains(name) => continue,
            _ => {}
        }
        let expected = expected.as_ref().unwrap_or(before);
        let differs = || after.iter().zip(expected).position(|(is, must)| is != must);
        assert!(after == expected, "{name} is not what it must be, from byte {:?} on: {after:?}", differs());
    }
    // The table is exact.
    seen.calls += 1;
    let note = |name, seen: &mut Seen| {
        if let Some(fault) = args.slip(name) {
            seen.faults.insert((row.name, name, fault));
        }
    };
    match args.refused {
        Some((number, _)) => {
            let argument = args.arguments[number];
            note(argument.name, seen);
            if argument.faults.iter().any(|(fault, _)| *fault == Fault::NotMade) && must == VERIEP_E_ORDER {
                seen.faults.insert((row.name, argument.name, Fault::NotMade));
            }
        }
        None => {
            args.slips.iter().for_each(|(name, _)| note(name, seen));
            seen.answers.insert((row.name, must));
            assert!(
                row.answers.is_empty() || row.answers.contains(&must),
                "{must} is none of the answers of {}",
                row.name
            );
        }
    }
    let unasked: Vec<_> = args.slips.iter().filter(|(name, _)| !args.asked.contains(name)).collect();
    assert!(unasked.is_empty(), "the call does not look at {unasked:?}");
}

/// Tells what was called when an assertion fails.
struct Trail {
    group: u64,
    calls: Vec<String>,
}

impl Drop for Trail {
    fn drop(&mut self) {
        if thread::panicking() {
            let last = self.calls.len().saturating_sub(12);
            eprintln!("group {}, its last calls:\n{}", self.group, self.calls[last..].join("\n"));
        }
    }
}

fn row(name: &str) -> &'static Row {
    ROWS.iter().find(|row| row.name == name).unwrap()
}

/// How cores begin: with all of an operator, or with its sending half.
fn begins(world: &mut World) -> &'static str {
    world.dice.pick(&["veriep_core_begin", "veriep_core_send"])
}

/// Calls of one program, in any order.
fn group(number: u64, seen: &mut Seen) {
    let mut world = World::new(Dice::new(number));
    let mut trail = Trail { group: number, calls: vec![format!("{:?}", world.rust_config())] };
    let mut call = |world: &mut World, args: Args, seen: &mut Seen| {
        trail.calls.push(format!(
            "{} with {:?} at {}, by table: {}, must be refused: {:?}",
            args.row.name, args.slips, args.seat, args.is_table, args.refused
        ));
        perform(world, args, seen);
    };
    let right = |world: &mut World, name, seat| {
        let mut args = Args::plain(row(name), world);
        (args.seat, args.uses_left) = (seat, false);
        args.refused = args.refusal(world);
        args
    };
    let seats = world.seats.len();
    // Mostly all is made first.
    if !world.dice.once_in(5) {
        let begins = begins(&mut world);
        for name in ["veriep_shape_new", "veriep_core_new", "veriep_agent_new", "veriep_gates_new", begins] {
            for seat in 0..seats {
                let args = right(&mut world, name, seat);
                call(&mut world, args, seen);
            }
        }
    }
    let drives = ["veriep_core_step", "veriep_core_awaits", "veriep_agent_step", "veriep_agent_awaits"];
    for _ in 0..70 {
        match world.dice.below(12) {
            // All of the group go on.
            0 => {
                for seat in 0..3 * seats {
                    for name in [drives[0], drives[2]] {
                        let args = right(&mut world, name, seat % seats);
                        call(&mut world, args, seen);
                    }
                }
            }
            1 => {
                let begins = begins(&mut world);
                for seat in 0..seats {
                    let name = match world.seats[seat].phase {
                        Phase::Idle | Phase::Done => begins,
                        Phase::Sent => "veriep_core_resume",
                        _ => continue,
                    };
                    let args = right(&mut world, name, seat);
                    call(&mut world, args, seen);
                }
            }
            2 if world.dice.once_in(2) => world.move_objects(),
            2 => world.poke(),
            3..=5 => {
                let args = Args::draw(row(world.dice.pick(&drives)), &mut world, seen);
                call(&mut world, args, seen);
            }
            _ => {
                // Rather one of which not all was seen yet.
                let numbers = [world.dice.below(ROWS.len()), world.dice.below(ROWS.len())];
                let is_first = world.dice.once_in(2) || seen.lacks(&ROWS[numbers[0]]);
                let of = numbers[usize::from(!is_first)];
                let args = Args::draw(&ROWS[of], &mut world, seen);
                call(&mut world, args, seen);
            }
        }
    }
    let difference = world.memories[0].difference(&world.memories[1]);
    assert_eq!(
        difference, None,
        "the region and the place where the memory of C differs from that of its twin"
    );
}

/// `VERIEP_SECONDS` says for how long besides.
#[test]
fn each_call_answers_as_the_model_has_it_and_a_refused_one_changes_nothing() {
    let end = Instant::now() + Duration::from_secs(number_from("VERIEP_SECONDS", 0));
    let mut seen = Seen::default();
    for number in 0.. {
        let is_enough = number >= GROUPS && ROWS.iter().all(|row| !seen.lacks(row)) || number >= GROUPS_MAX;
        if is_enough && Instant::now() >= end {
            break;
        }
        group(number, &mut seen);
    }
    let missing: Vec<_> = ROWS.iter().flat_map(|row| seen.missing(row)).collect();
    println!("{} calls, {} faults, {} answers", seen.calls, seen.faults.len(), seen.answers.len());
    assert!(missing.is_empty(), "never seen: {}", missing.join("\n"));
}

/// At least so many programs, and so many at most until each fault of the table was the reason for its code.
const GROUPS: u64 = 600;
const GROUPS_MAX: u64 = 1500;
