//! The group as JSON. All texts are this project's own, without quotes or control characters.

use super::{End, Lab};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use veriep_core::layout::map::areas;
use veriep_core::place::{Place, Region};
use veriep_core::sim::chooser::AGENT;
use veriep_core::sim::storage::Spot;
use veriep_core::sim::{Actor, Choice, Flight};
use veriep_core::units::RankId;

/// Bytes of a token's row.
const ROW: usize = 2 * super::H as usize;

/// What the simulated group's scratch holds before a core fills it; a record may carry it where nothing is written.
const UNFILLED: u8 = 0xab;

pub(crate) fn list(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(","))
}

fn quoted(text: impl core::fmt::Display) -> String {
    format!("\"{text}\"")
}

/// Returns what kind of effect is on its way, without its number.
fn kind(flight: &Flight) -> String {
    format!("{:?}", flight.kind).split('(').next().unwrap_or_default().to_lowercase()
}

impl Lab {
    /// Describes the group: what each rank does and waits for, its memory, what is on its way, and what can happen next.
    pub fn state(&self) -> String {
        let (verdict, what) = match self.end() {
            None => ("", ""),
            Some(End::Right) => ("right", ""),
            Some(End::Wrong(what)) => ("wrong", what.as_str()),
            Some(End::Refused(what)) => ("refused", what.as_str()),
            Some(End::Hang(what)) => ("hang", what.as_str()),
        };
        let ranks = list((0..self.cluster.members.len()).map(|i| self.rank(i)));
        let flights = list(self.cluster.memory.flights().map(|(id, flight)| {
            let offer = self
                .offers()
                .iter()
                .position(|offer| matches!(offer, Choice::Land(other, _) if *other == id));
            format!(
                "{{\"from\":{},\"who\":{},\"to\":{},\"kind\":{},\"at\":{},\"bytes\":{},\"offer\":{}}}",
                flight.from.member.0,
                quoted(self.name(flight.from)),
                flight.to.0,
                quoted(kind(flight)),
                quoted(flight.at),
                flight.left,
                offer.map_or(-1, |offer| offer as i32),
            )
        }));
        let offers = list(self.offers().iter().map(|&choice| {
            // An agent is the core of number -1.
            let (rank, core) = match choice {
                Choice::Step(actor) if actor.core == AGENT => (actor.member.0 as i32, -1),
                Choice::Step(actor) => (actor.member.0 as i32, actor.core.0 as i32),
                Choice::Land(..) => (-1, -1),
            };
            format!("{{\"steps\":{rank},\"core\":{core},\"text\":{}}}", quoted(self.told(choice)))
        }));
        format!(
            "{{\"choices\":{},\"verdict\":{},\"what\":{},\"story\":{},\"ranks\":{ranks},\"flights\":{flights},\"offers\":{offers}}}",
            self.choices,
            quoted(verdict),
            quoted(what),
            list(self.story.iter().map(quoted)),
        )
    }

    fn name(&self, actor: Actor) -> String {
        let rank = actor.member.0;
        match (actor.core, self.cluster.shape.aiv_num()) {
            (AGENT, _) => format!("the agent of rank {rank}"),
            (_, 1) => format!("the core of rank {rank}"),
            (core, _) => format!("core {} of rank {rank}", core.0),
        }
    }

    pub(crate) fn told(&self, choice: Choice) -> String {
        match choice {
            Choice::Step(actor) => format!("{} takes a step", self.name(actor)),
            Choice::Land(flight, bytes) => match self.cluster.memory.flight(flight) {
                Some(what) => {
                    let (kind, from) = (kind(what), self.name(what.from));
                    format!("a {kind} of {from} lands at {} of rank {}, {bytes} B", what.at, what.to.0)
                }
                None => "nothing".to_string(),
            },
        }
    }

    fn rank(&self, i: usize) -> String {
        let member = &self.cluster.members[i];
        let planned = |ended: usize| self.cluster.operators.get(ended);
        let has_agents = self.cluster.choices.has_agents(self.cluster.shape);
        let first = member.cores[0].ended;
        let round = planned(first).map_or(super::ROUNDS - 1, |planned| planned.round);
        // Each kind of operator takes turns in A3, and all operators in A2.
        let turn = if has_agents { first } else { round } % 2;
        let cores = list(member.cores.iter().map(|core| {
            format!(
                "{{\"operator\":{},\"phase\":{},\"wait\":{}}}",
                quoted(planned(core.ended).map_or_else(|| "done".to_string(), ToString::to_string)),
                quoted(core.machine.as_ref().map_or("", |machine| machine.phase())),
                quoted(core.wait.map(|wait| wait.to_string()).unwrap_or_default())
            )
        }));
        let agent = member.agent_wait.map_or_else(|| "works".to_string(), |wait| wait.to_string());
        format!(
            "{{\"cores\":{cores},\"agent\":{},\"turn\":{turn},\"tokens\":{},\"areas\":{}}}",
            quoted(if has_agents { &agent } else { "" }),
            list(self.judge.experts(round, member.number).iter().map(ToString::to_string)),
            self.areas(member.number)
        )
    }

    /// Returns the areas of a rank's memory, with every slot: a word as it is, a row by its first element.
    fn areas(&self, rank: RankId) -> String {
        let shape = self.cluster.shape;
        let mode = self.cluster.choices.mode();
        list(areas(shape, mode, rank).filter(|area| area.count <= 16).map(|area| {
            let slots = (0..area.count).map(|slot| {
                let at = Place { offset: area.start.offset + slot * area.stride, ..area.start };
                let bytes = self
                    .cluster
                    .memory
                    .read(Spot { member: rank, batch: 0, at }, area.slot.min(super::MESSAGE as u64))
                    .unwrap_or(&[]);
                quoted(shown(at.region, bytes))
            });
            let region = match area.start.region {
                Region::State => "state",
                Region::WindowOut => "window out",
                _ => "window",
            };
            format!(
                "{{\"name\":{},\"region\":{},\"partition\":{},\"slots\":{}}}",
                quoted(area.named.name()),
                quoted(region),
                area.partition.map_or(-1, |partition| partition.index() as i32),
                list(slots)
            )
        }))
    }
}

/// Returns what a slot holds: the words of a state slot, the number that fills a row, or the pieces of a window that are not
/// zero, each after its offset.
fn shown(region: Region, bytes: &[u8]) -> String {
    if region == Region::State {
        let words =
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let words: Vec<u32> = words.collect();
        let used = words.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
        return words[..used].iter().map(|word| format!("{word:x}")).collect::<Vec<_>>().join(" ");
    }
    if bytes.len() <= 4 * ROW {
        return if bytes.iter().any(|&byte| byte != 0) {
            piece(&bytes[..ROW.min(bytes.len())])
        } else {
            String::new()
        };
    }
    let empty = |bytes: &[u8]| [0, UNFILLED].iter().any(|none| bytes.iter().all(|byte| byte == none));
    let pieces = bytes.chunks(ROW).zip((0..).step_by(ROW)).filter(|(bytes, _)| !empty(bytes));
    pieces.map(|(bytes, at)| format!("+{at:x}: {}", piece(bytes))).collect::<Vec<_>>().join(", ")
}

/// Returns the number that fills a row, or the words of what is none.
fn piece(bytes: &[u8]) -> String {
    if bytes.len() == ROW && bytes.chunks_exact(2).all(|element| element == &bytes[..2]) {
        return format!("{}", f32::from_bits(u32::from_le_bytes([0, 0, bytes[0], bytes[1]])));
    }
    let words = bytes.chunks(4).map(|word| {
        if word.iter().all(|&byte| byte == UNFILLED) {
            return "·".to_string();
        }
        format!("{:x}", word.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte)))
    });
    words.collect::<Vec<_>>().join(" ")
}
