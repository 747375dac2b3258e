//! The arguments of a call, of which some are wrong.

use super::Seen;
use super::rows::Row;
use super::structures::{Argument, Fault};
use super::world::{Outcome, Phase, World};
use crate::codes::*;
use core::ffi::c_char;
use core::ptr::null_mut;
use kernel_core::fabric::Capabilities;
use kernel_core::protocol::Operator;
use std::collections::BTreeSet;
use std::string::String;
use std::vec::Vec;

/// The arguments of a call.
pub(super) struct Args {
    pub(super) row: &'static Row,
    /// All of the row.
    pub(super) arguments: Vec<Argument>,
    /// What is wrong with which.
    pub(super) slips: Vec<(&'static str, Fault)>,
    /// The names that the call has looked for.
    pub(super) asked: BTreeSet<&'static str>,
    /// The number of the argument for which the call must be refused, and the code.
    pub(super) refused: Option<(usize, i32)>,
    /// Chooses of several alike the one that is wrong.
    pub(super) any: usize,
    /// The core that is meant, or the agent of its rank.
    pub(super) seat: usize,
    /// The ticket that is meant.
    pub(super) ticket: usize,
    /// Memory is a table of functions; or else it is mapped.
    pub(super) is_table: bool,
    /// The shape is that of the survivors.
    pub(super) uses_left: bool,
}

impl Args {
    pub(super) fn plain(row: &'static Row, world: &mut World) -> Self {
        let has_shape = !row.name.contains("step") && !row.name.contains("awaits");
        let once_in = if row.name.ends_with("_new") { 20 } else { 4 };
        let uses_left = has_shape && world.of_left.is_some() && world.dice.once_in(once_in);
        Self {
            row,
            arguments: row.arguments(),
            slips: Vec::new(),
            asked: BTreeSet::new(),
            refused: None,
            any: world.dice.below(1 << 16),
            seat: world.dice.below(world.seats.len()),
            ticket: world.dice.below(world.tickets.len()),
            is_table: row.name == "veriep_fabric_can" || world.dice.once_in(2),
            uses_left,
        }
    }

    /// Arguments of which some are wrong, more often in a way that was not seen yet.
    pub(super) fn draw(row: &'static Row, world: &mut World, seen: &Seen) -> Self {
        let mut args = Self::plain(row, world);
        for _ in 0..world.dice.pick(&[0, 0, 1, 1, 1, 1, 1, 2]) {
            let candidates = args.candidates(world);
            let is_new =
                |(name, fault): &&(&'static str, Fault)| !seen.faults.contains(&(row.name, *name, *fault));
            let new: Vec<_> = candidates.iter().filter(is_new).copied().collect();
            let from = if new.is_empty() || world.dice.once_in(2) { &candidates } else { &new };
            if from.is_empty() {
                break;
            }
            args.slips.push(world.dice.pick(from));
        }
        args.refused = args.refusal(world);
        args
    }

    /// Whether this is an argument of the kind of memory that the call is given.
    pub(super) fn is_looked_at(&self, name: &str) -> bool {
        let unused = if self.is_table { &["mapped"][..] } else { &["fabric", "nic"] };
        !unused.contains(&name.split('.').next().unwrap_or(name))
    }

    /// The faults that these arguments can have besides.
    pub(super) fn candidates(&self, world: &World) -> Vec<(&'static str, Fault)> {
        let looked_at = self.arguments.iter().filter(|it| self.is_looked_at(it.name));
        // Faults with which the call goes on reach further: they count as three.
        let all = looked_at.flat_map(|it| {
            let times = |code| if code == VERIEP_OK { 3 } else { 1 };
            it.faults.iter().flat_map(move |(fault, code)| [(it.name, *fault)].repeat(times(*code)))
        });
        all.filter(|(name, fault)| self.applies(world, name, *fault)).collect()
    }

    pub(super) fn applies(&self, world: &World, name: &str, fault: Fault) -> bool {
        let has = |other: &str| self.slips.iter().any(|(name, _)| *name == other);
        let has_fault = |name: &str, fault| self.slip(name) == Some(fault);
        let seat = &world.seats[self.seat];
        if has(name) {
            return false;
        }
        match name {
            "core was begun" | "core is idle or done" | "core has sent" | "agent has not failed" => false,
            "cx.fabric and cx.mapped" | "cx.nic and cx.mapped" => self.is_table,
            "inputs.mask_kind" if fault == Fault::Wrong => {
                !world.tensors[seat.rank as usize].of("inputs.x_active_mask").is_empty()
                    && !has("inputs.x_active_mask")
            }
            // Without a kind no mask may be there.
            "inputs.x_active_mask" => {
                !world.tensors[seat.rank as usize].of(name).is_empty() && !has("inputs.mask_kind")
            }
            _ if name.starts_with("inputs.") && name != "inputs.mask_kind" => {
                fault == Fault::OneBeyond || !world.tensors[seat.rank as usize].of(name).is_empty()
            }
            _ if name.starts_with("operands.") => world.operand_bytes(seat.rank, name) > 0,
            // Of a list that is too short the last one is not looked at.
            "mapped.peers" | "mapped.tp" => {
                fault != Fault::OneShort || !self.slips.iter().any(|(of, _)| of.starts_with(name))
            }
            _ if name.starts_with("mapped.peers.") && has_fault("mapped.peers", Fault::OneShort) => false,
            _ if name.starts_with("mapped.tp.") && has_fault("mapped.tp", Fault::OneShort) => false,
            "mapped.peers.window_out" => world.of.window_out_bytes() > 0,
            "config.bs_per_rank" => !world.bs_per_rank.is_empty(),
            "text" => fault != Fault::OneShort || !world.text.is_empty(),
            "bytes" | "bytes_len" => {
                kernel_core::protocol::scratch_bytes(&world.of) > 0
                    && kernel_core::protocol::scratch_bytes(&world.of_other) > 0
            }
            _ => true,
        }
    }

    /// The argument for which the call must be refused, by the table and by what state its objects are in.
    pub(super) fn refusal(&self, world: &World) -> Option<(usize, i32)> {
        let seat = &world.seats[self.seat];
        let is_skipped = |name: &str| {
            let parent = name.split_once('.').map(|(parent, _)| parent);
            parent.is_some_and(|parent| self.slip(parent) == Some(Fault::Null))
        };
        for (number, argument) in self.arguments.iter().enumerate() {
            let name = argument.name;
            if !self.is_looked_at(name) || is_skipped(name) {
                continue;
            }
            let code = match self.slip(name) {
                Some(fault) => {
                    let code =
                        argument.faults.iter().find(|(of, _)| *of == fault).map(|(_, code)| *code).unwrap();
                    let is_fine = match (name, fault) {
                        // Dispatch takes none.
                        ("operands", Fault::Null) => {
                            seat.twin.as_ref().is_some_and(|twin| twin.operator == Operator::Dispatch)
                        }
                        ("fabric.peer_bytes", _) => !self.needs(world, Capabilities::PEER_BYTES),
                        ("fabric.send", _) => !self.needs(world, Capabilities::SEND),
                        _ => false,
                    };
                    if is_fine { VERIEP_OK } else { code }
                }
                None => {
                    let is_there = argument.faults.iter().all(|(fault, _)| *fault != Fault::NotMade)
                        || self.is_right(world, name);
                    if is_there { VERIEP_OK } else { VERIEP_E_ORDER }
                }
            };
            if code != VERIEP_OK {
                return Some((number, code));
            }
        }
        None
    }

    /// Whether an object is made, or in the state that is asked for.
    pub(super) fn is_right(&self, world: &World, name: &str) -> bool {
        let seat = &world.seats[self.seat];
        let agent = &world.agents[seat.rank as usize];
        match name {
            "shape" | "whole" => self.uses_left || world.shape_is_made,
            "map" => world.of_map.is_some(),
            "core" => self.row.name == "veriep_core_new" || seat.phase != Phase::None,
            "agent" => agent.phase != Phase::None,
            "gates" => world.of_gates.is_some(),
            "ticket" => self.row.name == "veriep_gates_begin" || world.tickets[self.ticket].twin.is_some(),
            "core was begun" => !matches!(seat.phase, Phase::None | Phase::Idle | Phase::Dead),
            "core has sent" => seat.phase == Phase::Sent,
            "core is idle or done" => matches!(seat.phase, Phase::Idle | Phase::Done),
            "agent has not failed" => agent.phase != Phase::Dead,
            _ => unreachable!("{name} has no state"),
        }
    }

    pub(super) fn needs(&self, world: &World, what: Capabilities) -> bool {
        let twin = &world.seats[self.seat].twin;
        self.row.name != "veriep_fabric_can" && twin.as_ref().is_some_and(|twin| twin.needs.contains(what))
    }

    pub(super) fn slip(&self, of: &str) -> Option<Fault> {
        self.slips.iter().find(|(name, _)| *name == of).map(|(_, fault)| *fault)
    }

    /// What is wrong with an argument.
    pub(super) fn fault(&mut self, name: &'static str) -> Option<Fault> {
        self.asked.insert(name);
        self.slip(name)
    }

    /// A pointer to what is right, or not.
    pub(super) fn pointer<T>(&mut self, name: &'static str, right: *mut T) -> *mut T {
        match self.fault(name) {
            Some(Fault::Null) => null_mut(),
            Some(Fault::Misaligned) => right.wrapping_byte_add(1),
            _ => right,
        }
    }

    /// A pointer to an object, or to words that are none.
    pub(super) fn object<T, U>(&mut self, name: &'static str, right: *mut T, blank: *const U) -> *mut T {
        if self.fault(name) == Some(Fault::NotMade) {
            return blank.cast_mut().cast();
        }
        self.pointer(name, right)
    }

    /// A number, or the first one that is too high.
    pub(super) fn number(&mut self, name: &'static str, right: u32, end: u32) -> u32 {
        match self.fault(name) {
            Some(Fault::OneBeyond) => end,
            Some(Fault::OneShort) => right.wrapping_sub(1),
            _ => right,
        }
    }

    pub(super) fn length(&mut self, name: &'static str, right: usize) -> usize {
        match self.fault(name) {
            Some(Fault::OneShort) => right - 1,
            Some(Fault::OneBeyond) => right + 1,
            Some(Fault::Huge) => usize::MAX,
            _ => right,
        }
    }

    pub(super) fn text(&mut self, world: &mut World) -> (*mut c_char, usize) {
        let len = self.length("text", world.text.len());
        (self.pointer("text", world.text.as_mut_ptr()), len)
    }

    /// What must have come of it.
    pub(super) fn outcome(&self, said: i32, must: impl FnOnce() -> (i32, Option<String>)) -> Outcome {
        Outcome { said, must: if self.refused.is_some() { None } else { Some(must()) } }
    }

    /// Whether an argument was looked at, and found right, before the call was refused.
    pub(super) fn has_passed(&self, name: &str) -> bool {
        let at = self.arguments.iter().position(|argument| argument.name == name);
        at.is_some_and(|at| self.refused.is_none_or(|(refused, _)| at < refused))
    }
}
