//! Maps of memory, events and shares of work: what the core says of a shape's memory, as files for generators of kernels. No offset is worked out here.

mod header;
pub mod routing;

use crate::mode::Mode;
use crate::plans::{ends, ranges};
use core::ops::Range;
use serde_json::{Value as Json, json};
use std::io::Write as _;
use std::path::Path;
use veriep_case::atomic_file::write_atomically;
use veriep_case::config::Config;
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_case::hints;
use veriep_core::layout::affine::{self, INDICES_MAX, Index, Map, Named};
use veriep_core::layout::field::FieldName;
use veriep_core::layout::{block, map, record, state};
use veriep_core::plan::{relay, split};
use veriep_core::protocol::{Choices, Fingerprints, Stage};
use veriep_core::shape::{Given, Limits, Product, Protocol, Shape};
use veriep_core::sync::event::{Event, events};
use veriep_core::units::{CoreId, RankId};

/// Whose places `layout` and `export` write.
pub const PLACES: &str = "places of VeriEP, the same for every release of the operators";
/// What anybody may do with what is written.
const LICENSE: &str = "CC0-1.0";

/// A map, and which ranks have it.
#[derive(Debug)]
struct Owned {
    map: Map,
    owner: &'static str,
    ranks: Range<u32>,
}

/// A shape and what a group of it chooses, as generators of kernels need it.
#[derive(Debug)]
pub struct Exported {
    config: Config,
    pub shape: Shape,
    pub choices: Choices,
    maps: Vec<Owned>,
}

/// All indices of a map, the last one fastest.
pub fn indices(map: &Map) -> impl Iterator<Item = [u32; INDICES_MAX]> {
    let extents: Vec<_> = map.dims().iter().map(|dim| dim.extent).collect();
    let all: u64 = extents.iter().copied().map(u64::from).product();
    (0..all).map(move |mut number| {
        let mut indices = [0; INDICES_MAX];
        for (index, &extent) in indices.iter_mut().zip(&extents).rev() {
            *index = (number % u64::from(extent)) as u32;
            number /= u64::from(extent);
        }
        indices
    })
}

/// Every map, told apart where ranks with shared experts have another one.
fn owned(shape: &Shape, choices: Choices) -> Vec<Owned> {
    let (rs, count) = (shape.shared_expert_rank_num(), shape.ep_world_size());
    // Of uneven batches each rank has its own.
    let is_of_all =
        |map: &Map| !(shape.bs_is_uneven() && matches!(map.named, Named::SentRows | Named::SharedSentRows));
    let of = |rank| affine::maps(shape, choices.mode(), RankId(rank)).filter(is_of_all).collect::<Vec<_>>();
    let (mut all, shared) = (of(rs), if rs == 0 { Vec::new() } else { of(0) });
    let counts_owners = |map: &Map| map.dims().iter().any(|dim| dim.index == Index::Owner);
    let alike: Vec<Map> = match rs {
        0 => all.clone(),
        _ => all.iter().filter(|map| shared.contains(map) && !counts_owners(map)).copied().collect(),
    };
    all.retain(|map| !alike.contains(map));
    let owned = |maps: Vec<Map>, owner, ranks: Range<u32>| {
        maps.into_iter().map(move |map| Owned { map, owner, ranks: ranks.clone() })
    };
    let on_shared = shared.into_iter().filter(|map| !alike.contains(map)).collect();
    let mut maps: Vec<Owned> =
        owned(alike.clone(), "any", 0..count).chain(owned(on_shared, "shared", 0..rs)).collect();
    maps.extend(owned(all, "moe", rs..count));
    maps.sort_by_key(|owned| owned.map.named);
    maps
}

impl Exported {
    /// The plan of a configuration, which `place` names in errors.
    ///
    /// # Errors
    /// It breaks a rule, or leaves no such choice.
    pub fn of(config: Config, mode: &Mode, place: &str) -> Result<Self, Error> {
        let config = Config { port_offset: mode.port_offset, ..config };
        let shape = hints::shape(&config, Given::empty(), Limits::Product, place)?;
        let choices = mode.choices(&shape)?;
        Ok(Self { maps: owned(&shape, choices), config, shape, choices })
    }

    /// Returns the number of maps.
    #[must_use]
    pub fn maps(&self) -> usize {
        self.maps.len()
    }

    /// The ranks of the group, by the numbers that files have for them.
    pub fn ranks(&self) -> impl Iterator<Item = RankId> {
        global_rank::all(&self.shape)
    }

    /// Writes the plan with the work of `ranks`, the header, and the program that checks it, and returns the files' names.
    pub fn write(&self, folder: &Path, prefix: &str, ranks: &[RankId]) -> Result<[String; 3], Error> {
        std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, "create", &e))?;
        let files = ["plan.json".to_owned(), format!("{prefix}_plan.h"), format!("{prefix}_check.c")];
        let texts = [self.plan(ranks).to_string(), self.header(prefix), self.check(prefix)];
        for (file, text) in files.iter().zip(texts) {
            write_atomically(&folder.join(file), |file| file.write_all(text.as_bytes()))?;
        }
        Ok(files)
    }

    /// What a core does of the work of its rank; nothing if there is no such core.
    pub fn share(&self, rank: RankId, core: CoreId) -> Option<Json> {
        let is_there = rank.0 < global_rank::count(&self.shape) && core.0 < self.shape.aiv_num();
        is_there.then(|| share(&self.shape, rank, core))
    }

    /// The text of `plan.json`, with the work of `ranks`.
    pub fn plan(&self, ranks: &[RankId]) -> Json {
        let Self { config, shape, choices, .. } = self;
        let mode = choices.mode();
        let options = json!({
            "receive": choices.receive.name(),
            "flags": choices.flags.name(),
            "stage": if choices.stage == Stage::Two { 2 } else { 3 },
            "slots": choices.slots.bytes(),
            "port_offset": shape.port_offset(),
        });
        let constants: serde_json::Map<_, _> =
            self.constants().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        let sends = ranks
            .iter()
            .flat_map(|&rank| (0..shape.aiv_num()).map(move |core| share(shape, rank, CoreId(core))));
        json!({
            "schema": "veriep.plan/1",
            "license": LICENSE,
            "places": PLACES,
            "config": config,
            "options": options,
            // Larger than what all readers of JSON take for a number.
            "fingerprint": format!("{:016x}", Fingerprints::new(shape, *choices).whole()),
            "partitions": 2,
            "ranks": ranks.iter().map(|rank| rank.0).collect::<Vec<_>>(),
            "constants": constants,
            "maps": self.maps.iter().map(|owned| self.map(owned)).collect::<Vec<_>>(),
            "events": events(shape, mode).map(|event| self.event(&event)).collect::<Vec<_>>(),
            // Of one batch; no map tells them.
            "tables": ["slot", "position", "record", "row"],
            "sends": sends.collect::<Vec<_>>(),
        })
    }

    fn map(&self, owned: &Owned) -> Json {
        let Owned { map, owner, ranks } = owned;
        let dim = |dim: &affine::Dim| json!({"index": dim.index.name(), "extent": dim.extent, "stride": dim.stride});
        let field = |field: map::Field| json!({"name": field.name.name(), "offset": field.offset, "size": field.size});
        json!({
            "name": map.named.name(),
            "region": if map.named.inside().is_empty() { Some(map.region.name()) } else { None },
            "inside": map.named.inside().iter().map(|named| named.name()).collect::<Vec<_>>(),
            "owner": owner,
            "owners": [ranks.start, ranks.end],
            "is_area": map.named.is_area(),
            "base": map.base,
            "bytes": map.bytes,
            "dims": map.dims().iter().map(dim).collect::<Vec<_>>(),
            "fields": map.named.fields(&self.shape, self.choices.mode()).map(field).collect::<Vec<_>>(),
        })
    }

    /// What a kernel needs to know beside the maps.
    fn constants(&self) -> Vec<(&'static str, u64)> {
        let shape = &self.shape;
        let mut all: Vec<(&str, u64)> = vec![
            ("ep_world_size", shape.ep_world_size().into()),
            ("tp_world_size", shape.tp_world_size().into()),
            ("server_ranks", shape.server_ranks().into()),
            ("moe_expert_num", shape.moe_expert_num().into()),
            ("local_expert_num", shape.local_expert_num().into()),
            ("shared_expert_num", shape.shared_expert_num().into()),
            ("shared_expert_rank_num", shape.shared_expert_rank_num().into()),
            ("k", shape.k().into()),
            ("h", shape.h().into()),
            ("bs_max", shape.bs_max().into()),
            ("aiv_num", shape.aiv_num().into()),
            ("row_bytes", shape.row_bytes()),
            ("payload_bytes", shape.payload_bytes()),
            ("result_bytes", shape.result_bytes()),
            ("window_bytes", shape.window_bytes()),
            ("state_bytes", state::STATE_BYTES),
        ];
        if shape.product() == Product::A3 {
            // The stream of a record of fullmesh_v2; its blocks take more memory.
            all.push(("record_stream_bytes", record::sent_bytes(shape)));
        }
        if shape.protocol() == Protocol::FullmeshV2 {
            let stream = block::stream(block::count(shape) - 1, record::sent_bytes(shape));
            all.push(("last_block_bytes", stream.end - stream.start));
        }
        all
    }

    fn event(&self, event: &Event) -> Json {
        let Event { word, field, data, value, writer, clearer, order, readers, .. } = event;
        let field = field.map(FieldName::name);
        let is_there = |named: &&Named| self.maps.iter().any(|owned| owned.map.named == **named);
        let term = |(shift, name): (u32, &&str)| json!({"variable": name, "shift": shift});
        let name = field.map_or_else(|| word.name().to_owned(), |field| format!("{}: {field}", word.name()));
        json!({
            "name": name,
            "map": word.name(),
            "field": field,
            "data": data.iter().filter(|named| is_there(named)).map(|named| named.name()).collect::<Vec<_>>(),
            "value": {
                "constant": format!("{:#x}", value.word([0; 3])),
                "terms": value.shifts().zip(value.variables()).map(term).collect::<Vec<_>>(),
            },
            "writer": writer.name(),
            "clearer": clearer.name(),
            "order": order.name(),
            "scope": readers.name(),
        })
    }
}

/// What a core does of the work of its rank; ranges are `[start, end)`.
fn share(shape: &Shape, rank: RankId, core: CoreId) -> Json {
    let ep = global_rank::ep_rank(shape, rank);
    let more = match shape.protocol() {
        Protocol::Fullmesh => json!({"ranks": ends(&split::ranks(shape, core))}),
        Protocol::Hierarchy => json!({
            "slots": ends(&split::slots(shape, ep, core)),
            "streams": ends(&relay::streams(shape, core)),
        }),
        _ => json!(ranges(shape, &split::work(shape, ep, core))),
    };
    let tokens = ends(&split::tokens(shape, ep, core));
    with(json!({"rank": rank.0, "core": core.0, "tokens": tokens}), more)
}

/// The fields of both objects.
fn with(mut object: Json, more: Json) -> Json {
    if let (Some(object), Json::Object(mut more)) = (object.as_object_mut(), more) {
        object.append(&mut more);
    }
    object
}
