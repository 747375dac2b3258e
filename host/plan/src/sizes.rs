//! The sizes that a configuration needs: the window term by term, and what follows from it.

use serde::Serialize;
use veriep_case::experts::Experts;
use veriep_core::layout::direct;
use veriep_core::protocol::outstanding::Outstanding;
use veriep_core::protocol::{Choices, Receive};
use veriep_core::shape::{Buffer, Product, Shape, Term};
use veriep_core::units::RankId;

pub const MIB: u64 = 1 << 20;

/// Returns the bytes of a configured window, whose number may be anything.
#[must_use]
pub fn configured_bytes(mb: i64) -> i64 {
    mb.saturating_mul(MIB as i64)
}

#[derive(Serialize)]
pub struct BufferSizes {
    /// What the operators of the release ask for: the larger of both groups.
    pub required_mb: u64,
    /// Of the EP and the TP group alone; absent without a TP group that they check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_ep_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_tp_mb: Option<u64>,
    /// What our own layout needs, with the areas of direct placement; absent without such a layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout_mb: Option<u64>,
    /// The largest capacity that our layout has room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout_max_bs: Option<u64>,
    pub configured_mb: i64,
    pub max_bs: u64,
    /// No product takes a smaller window.
    #[serde(skip)]
    pub is_smallest: bool,
    /// Why it is not larger.
    pub max_bs_limit: &'static str,
    pub required_bytes: u64,
    /// Negative if it does not suffice.
    pub left_bytes: i64,
    /// What `required_bytes` is the sum of; with a TP group, the larger of its term and the sum of the others.
    pub terms: Vec<TermSizes>,
}

#[derive(Serialize)]
pub struct TermSizes {
    pub name: &'static str,
    pub formula: String,
    pub operands: Vec<Operand>,
    pub bytes: u64,
}

#[derive(Serialize)]
pub struct Operand {
    pub symbol: &'static str,
    pub value: u64,
    pub meaning: &'static str,
}

/// The areas of direct placement, on the rank that can receive most.
#[derive(Serialize)]
pub struct Placed {
    pub experts: &'static str,
    pub areas: u32,
    pub required_bytes: u64,
    pub required_mb: u64,
}

impl Placed {
    pub fn of(shape: &Shape, receive: Receive) -> Option<Self> {
        let required_bytes = direct::required_bytes(shape, receive.areas(), receive.overwrites());
        let required_mb = required_bytes.div_ceil(MIB);
        let experts = Experts::under(receive).name();
        receive.is_direct().then_some(Self { experts, areas: receive.areas(), required_bytes, required_mb })
    }
}

impl BufferSizes {
    /// What the operators ask for, and what our layout needs beside its areas of direct placement.
    pub fn new(asked: &Buffer, layout: Option<&Buffer>, placed: Option<&Placed>) -> Self {
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

/// What follows from a valid configuration, with these choices, where there is such a thing.
pub fn sizes(shape: &Shape, choices: Choices) -> Vec<(&'static str, Option<u64>)> {
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
            // Puts and publishes of a core: the queue that a network needs for it.
            ("outstanding_max", Outstanding::most_of_any(shape, choices)),
        ]);
    }
    sizes
}
