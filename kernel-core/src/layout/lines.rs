//! Words with a neighbour in their line: every such line of a rank's memory, with the writers, from the [table](super::table) alone.
//!
//! A memory whose publishes and stores write back whole [lines](crate::fabric::Fabric::line) keeps a word apart from what is in other
//! lines only. So a layout keeps lines of a length apart if no such line has a word and anything else.

use super::affine::{INDICES_MAX, Index, Map, Named, maps};
use super::event::events;
use super::quantity::Memory;
use super::table::Writer;
use crate::fabric::WORD;
use crate::place::{Place, Region};
use crate::protocol::{Choices, Receive};
use crate::shape::{Config, Protocol, Shape};
use crate::testing::domain::{Domain, PAIR, shape as shape_of};
use crate::testing::golden;
use crate::units::RankId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write;

/// A field of a slot, or a slot without fields.
#[derive(Clone, Debug)]
struct Piece {
    at: Place,
    bytes: u64,
    /// Its name, with the writer.
    name: String,
    /// Whether it is published or stored; the others are put or written.
    is_word: bool,
}

/// The indices of every slot of a map in `memory`.
fn every_index(memory: &Memory<'_>, map: &Map) -> Vec<[u32; INDICES_MAX]> {
    let mut all = vec![[0; INDICES_MAX]];
    for (n, dim) in map.dims().iter().enumerate() {
        let values =
            if dim.index == Index::Owner { memory.owner()..memory.owner() + 1 } else { 0..dim.extent };
        all = all
            .iter()
            .flat_map(|indices| values.clone().map(move |value| with(*indices, n, value)))
            .collect();
    }
    all
}

fn with(mut indices: [u32; INDICES_MAX], n: usize, value: u32) -> [u32; INDICES_MAX] {
    indices[n] = value;
    indices
}

/// The slots of a map as places: of a map that is inside others, those in each slot of these.
fn slots(memory: &Memory<'_>, map: &Map) -> Vec<Place> {
    let offsets = every_index(memory, map).into_iter().map(|indices| map.offset(indices));
    if map.named.inside().is_empty() {
        return offsets.map(|offset| Place { region: map.region, offset }).collect();
    }
    let outer = map.named.inside().iter().filter_map(|outer| outer.map_in(memory));
    let starts: Vec<_> = outer.flat_map(|outer| slots(memory, &outer)).collect();
    offsets
        .flat_map(|inside| starts.iter().map(move |start| Place { offset: start.offset + inside, ..*start }))
        .collect()
}

fn writer(named: Named) -> String {
    match named.row().expect("a row for each name").writer {
        Writer::By(index) => index.name().to_string(),
        writer => format!("{writer:?}").to_lowercase(),
    }
}

/// Everything in the memory that other ranks or cores share, but slots that have others inside.
fn pieces(memory: &Memory<'_>) -> Vec<Piece> {
    let Memory { shape, mode, rank } = *memory;
    let all: Vec<_> =
        maps(shape, mode, rank).filter(|map| !matches!(map.region, Region::Output(_))).collect();
    let has_inner = |outer: Named| all.iter().any(|map| map.named.inside().contains(&outer));
    let words: Vec<_> = events(shape, mode).map(|event| (event.word, event.field)).collect();
    let mut pieces = Vec::new();
    for map in &all {
        let places = slots(memory, map);
        let mut add = |name: Option<_>, inside: u64, bytes: u64| {
            let is_word = words.contains(&(map.named, name));
            let field =
                name.map(|name: super::field::FieldName| format!(".{}", name.name())).unwrap_or_default();
            let name = format!("{}{field} by {}", map.named.name(), writer(map.named));
            let piece = |at: &Place| Place { offset: at.offset + inside, ..*at };
            pieces.extend(places.iter().map(|at| Piece {
                at: piece(at),
                bytes,
                name: name.clone(),
                is_word,
            }));
        };
        // A record in blocks has its fields in the stream that the blocks carry.
        let is_in_blocks = map.named == Named::DispatchRecords && has_inner(map.named);
        let fields: Vec<_> = map.named.fields(shape, mode).filter(|_| !is_in_blocks).collect();
        for field in &fields {
            add(Some(field.name), field.offset, field.size);
        }
        if fields.is_empty() && !has_inner(map.named) {
            add(None, 0, map.bytes);
        }
    }
    pieces
}

/// What shares a line of this length with a word: for each such line the names in it, each set once.
fn shared(memory: &Memory<'_>, line: u64) -> BTreeSet<Vec<String>> {
    let mut lines: BTreeMap<Place, Vec<&Piece>> = BTreeMap::new();
    let pieces = pieces(memory);
    for piece in pieces.iter().filter(|piece| piece.bytes > 0) {
        let (first, last) = (piece.at.offset / line, (piece.at.offset + piece.bytes - 1) / line);
        for n in first..=last {
            lines.entry(Place { offset: n * line, ..piece.at }).or_default().push(piece);
        }
    }
    let is_shared = |pieces: &&Vec<&Piece>| pieces.len() > 1 && pieces.iter().any(|piece| piece.is_word);
    let names = |pieces: &Vec<&Piece>| {
        let mut names: Vec<_> = pieces.iter().map(|piece| piece.name.clone()).collect();
        names.sort_unstable();
        let all = names.clone();
        names.dedup();
        let many = |name: &String| all.iter().filter(|other| *other == name).count() > 1;
        names.into_iter().map(|name| if many(&name) { format!("several {name}") } else { name }).collect()
    };
    lines.values().filter(is_shared).map(names).collect()
}

/// A group of every protocol. Ranks are three, or four of two servers, so that neighbours have different writers.
fn groups() -> Vec<(&'static str, Shape)> {
    let plain = Domain { r: 3, e: 6, k: 2, h: 16, bs: 2, cores: 2, ..PAIR };
    let servers = Domain { r: 4, e: 8, ..plain };
    let of = |comm_alg| Config { comm_alg, ..plain.config() };
    let tp = Config { tp_world_size: 2, ..Domain { e: 3, ..plain }.config() };
    [
        ("fullmesh_v1", plain.config()),
        ("fullmesh_v1, int8", Config { quant_mode: 2, comm_quant_mode: 2, ..plain.config() }),
        ("fullmesh_v1 with a TP domain", tp),
        ("fullmesh_v2", of(Protocol::FullmeshV2)),
        ("a2", of(Protocol::Fullmesh)),
        ("hierarchy", Config { comm_alg: Protocol::Hierarchy, server_ranks: 2, ..servers.config() }),
    ]
    .map(|(name, config)| (name, shape_of(&config)))
    .into()
}

fn each_memory(mut look: impl FnMut(&str, Choices, Memory<'_>)) {
    for (name, shape) in groups() {
        let order = Choices::default().order;
        for choices in Choices::all(&shape).filter(|choices| choices.order == order) {
            for rank in [0, shape.ep_world_size() - 1].map(RankId) {
                look(name, choices, Memory { shape: &shape, mode: choices.mode(), rank });
            }
        }
    }
}

#[test]
fn a_layout_keeps_words_apart_in_lines_as_long_as_it_says() {
    let mut longest = BTreeSet::new();
    each_memory(|name, choices, memory| {
        let apart = choices.keeps_apart(memory.shape);
        // A word by itself is apart from all else that is there at the time, as other tests say.
        let found = if apart > WORD { shared(&memory, apart) } else { BTreeSet::new() };
        assert!(found.is_empty(), "{name}, {choices:?}: lines of {apart} bytes: {found:#?}");
        longest.insert(apart);
    });
    assert_eq!(longest, BTreeSet::from([8, 32, 64]));
}

/// So the door refuses no memory that the layout could carry.
#[test]
fn a_layout_of_status_slots_keeps_no_longer_lines_apart() {
    each_memory(|name, choices, memory| {
        if memory.shape.protocol() == Protocol::FullmeshV1 {
            let apart = choices.keeps_apart(memory.shape);
            assert!(!shared(&memory, 2 * apart).is_empty(), "{name}, {choices:?}: {apart} bytes");
        }
    });
}

#[test]
fn the_words_that_share_a_line_of_64_bytes_are_as_listed() {
    let mut text =
        String::from("What shares a line of 64 bytes with a word, and who writes it, in every layout.\n");
    let mut seen = BTreeMap::<String, BTreeSet<Vec<String>>>::new();
    each_memory(|name, Choices { flags, receive, stage, slots, .. }, memory| {
        let receive = match receive {
            Receive::Copy | Receive::InPlace => receive.name().to_string(),
            _ => format!("{receive:?}"),
        };
        let stage = if memory.shape.protocol() == Protocol::Hierarchy {
            format!(", {stage:?}")
        } else {
            String::new()
        };
        let title = format!("{name}, {}, {receive}{stage}, slots {}", flags.name(), slots.name());
        seen.entry(title).or_default().extend(shared(&memory, 64));
    });
    for (title, lines) in seen {
        _ = writeln!(text, "\n{title}");
        lines.iter().for_each(|names| _ = writeln!(text, "    {}", names.join("; ")));
        if lines.is_empty() {
            text.push_str("    nothing\n");
        }
    }
    golden::check("lines.txt", &text);
}
