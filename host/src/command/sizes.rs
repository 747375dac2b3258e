//! What a configuration needs, in the form of the report: the window term by term, and what follows from it.

use crate::dump;
use crate::report::columns;
use serde::Serialize;
use veriep_core::layout::direct;
use veriep_core::protocol::Receive;
use veriep_core::shape::{Buffer, Product, Shape, Term};
use veriep_core::units::RankId;

const MIB: u64 = 1 << 20;

/// Of a number that may be anything.
fn configured_bytes(mb: i64) -> i64 {
    mb.saturating_mul(MIB as i64)
}

#[derive(Serialize)]
pub(super) struct BufferSizes {
    /// What the operators of the release ask for: the larger of both groups.
    pub(super) required_mb: u64,
    /// Of the EP and the TP group alone; absent without a TP group that they check.
    #[serde(skip_serializing_if = "Option::is_none")]
    required_ep_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    required_tp_mb: Option<u64>,
    /// What our own layout needs, with the areas of direct placement; absent without such a layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    layout_mb: Option<u64>,
    /// The largest capacity that our layout has room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    layout_max_bs: Option<u64>,
    pub(super) configured_mb: i64,
    pub(super) max_bs: u64,
    /// No product takes a smaller window.
    #[serde(skip)]
    is_smallest: bool,
    /// Why it is not larger.
    max_bs_limit: &'static str,
    required_bytes: u64,
    /// Negative if it does not suffice.
    left_bytes: i64,
    /// What `required_bytes` is the sum of; with a TP group, the larger of its term and the sum of the others.
    terms: Vec<TermSizes>,
}

#[derive(Serialize)]
struct TermSizes {
    name: &'static str,
    formula: String,
    operands: Vec<Operand>,
    bytes: u64,
}

#[derive(Serialize)]
struct Operand {
    symbol: &'static str,
    value: u64,
    meaning: &'static str,
}

/// The areas of direct placement, on the rank that can receive most.
#[derive(Serialize)]
pub(super) struct Placed {
    experts: &'static str,
    areas: u32,
    required_bytes: u64,
    required_mb: u64,
}

impl Placed {
    pub(super) fn of(shape: &Shape, receive: Receive) -> Option<Self> {
        let required_bytes = direct::required_bytes(shape, receive.areas(), receive.overwrites());
        let required_mb = required_bytes.div_ceil(MIB);
        let experts = dump::experts(receive);
        receive.is_direct().then_some(Self { experts, areas: receive.areas(), required_bytes, required_mb })
    }

    pub(super) fn row(&self) -> (&'static str, String) {
        let Self { experts, areas, required_bytes, required_mb } = self;
        ("placed", format!("areas {areas}, experts {experts}: {required_bytes} bytes, {required_mb} MB"))
    }
}

impl BufferSizes {
    /// What the operators ask for, and what our layout needs beside its areas of direct placement.
    pub(super) fn new(asked: &Buffer, layout: Option<&Buffer>, placed: Option<&Placed>) -> Self {
        let placed_mb = placed.map_or(0, |placed| placed.required_mb);
        let bytes = asked.bytes().max(asked.tp_term.bytes);
        let terms = asked.terms.iter().chain([&asked.tp_term]).filter(|term| !term.name.is_empty());
        let has_tp = asked.required_tp_mb > 0;
        Self {
            required_mb: asked.required_mb,
            required_ep_mb: has_tp.then_some(asked.required_ep_mb),
            required_tp_mb: has_tp.then_some(asked.required_tp_mb),
            layout_mb: layout.map(|layout| layout.required_mb.max(placed_mb)),
            layout_max_bs: layout.map(|layout| layout.max_bs),
            configured_mb: asked.configured_mb,
            max_bs: asked.max_bs,
            is_smallest: asked.is_smallest,
            max_bs_limit: asked.max_bs_limit.name(),
            required_bytes: bytes,
            left_bytes: i64::try_from(bytes)
                .map_or(i64::MIN, |bytes| configured_bytes(asked.configured_mb).saturating_sub(bytes)),
            terms: terms.map(TermSizes::from).collect(),
        }
    }
}

impl From<&Term> for TermSizes {
    fn from(term: &Term) -> Self {
        let symbols: Vec<_> = term.operands().map(|factor| factor.symbol).collect();
        let operand = |factor: &veriep_core::shape::Factor| Operand {
            symbol: factor.symbol,
            value: factor.value,
            meaning: factor.meaning,
        };
        Self {
            name: term.name,
            formula: symbols.join(" * "),
            operands: term.operands().map(operand).collect(),
            bytes: term.bytes,
        }
    }
}

impl BufferSizes {
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let smallest = if self.is_smallest { " (the smallest window)" } else { "" };
        let groups = match (self.required_ep_mb, self.required_tp_mb) {
            (Some(ep), Some(tp)) => format!(" (EP group {ep}, TP group {tp})"),
            _ => smallest.to_owned(),
        };
        let no_layout = || "none: VeriEP does not run this".to_owned();
        vec![
            ("required_mb", format!("{}{groups}", self.required_mb)),
            ("layout_mb", self.layout_mb.map_or_else(no_layout, |mb| mb.to_string())),
            ("configured_mb", self.configured_mb.to_string()),
            ("max_bs", format!("{} (limit: {})", self.max_bs, self.max_bs_limit)),
        ]
    }

    /// The sum term by term, what is left, and what the letters mean.
    pub(super) fn arithmetic(&self) -> String {
        let line = |name: &str, numbers: String, bytes: i128| {
            let mib = bytes as f64 / MIB as f64;
            vec![name.to_owned(), numbers, bytes.to_string(), format!("{mib:.2}")]
        };
        let mut rows: Vec<_> = self
            .terms
            .iter()
            .map(|term| {
                let factors: Vec<_> = term
                    .operands
                    .iter()
                    .map(|Operand { symbol, value, .. }| format!("{symbol} {value}"))
                    .collect();
                line(term.name, factors.join(" x "), term.bytes.into())
            })
            .collect();
        let sum = if self.required_tp_mb.is_some() { "the larger group" } else { "sum" };
        rows.push(line(sum, String::new(), self.required_bytes.into()));
        let configured = configured_bytes(self.configured_mb);
        rows.push(line("configured", format!("hccl_buffsize_mb {}", self.configured_mb), configured.into()));
        let left = i128::from(self.left_bytes);
        rows.push(line(if left < 0 { "missing" } else { "left" }, String::new(), left.abs()));
        let mut text = columns(&["window", "", "bytes", "MiB"], &rows);
        let mut told = Vec::new();
        for Operand { symbol, meaning, .. } in self.terms.iter().flat_map(|term| &term.operands) {
            if !told.contains(symbol) {
                told.push(symbol);
                text += &format!("\n {symbol}: {meaning}");
            }
        }
        text
    }
}

/// What follows from a valid configuration, where there is such a thing.
pub(super) fn sizes(shape: &Shape) -> Vec<(&'static str, Option<u64>)> {
    let shared_ranks = shape.shared_expert_rank_num();
    // TP peers gather each other's rows.
    let rows_max = |rank| shape.rows_max(RankId(rank)) * u64::from(shape.tp_world_size());
    let mut sizes = vec![
        ("local_expert_num", Some(shape.local_expert_num().into())),
        ("rows_max_moe", Some(rows_max(shared_ranks))),
        ("rows_max_shared", (shared_ranks > 0).then(|| rows_max(0))),
        ("row_bytes", Some(shape.row_bytes())),
        ("payload_bytes", Some(shape.payload_bytes())),
    ];
    if shape.product() == Product::A3 {
        sizes.extend([
            ("record_pitch", Some(shape.record_pitch())),
            ("combine_pitch", Some(shape.combine_pitch())),
            ("combine_area_bytes", Some(shape.combine_area())),
        ]);
    }
    sizes
}
