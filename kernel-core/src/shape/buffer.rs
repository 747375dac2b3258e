//! The required and configured sizes of the windows (V2 reference: `HCCL_BUFFSIZE`), of our layout and of the operators. They are
//! computed for people, and so also for a configuration that breaks rules, and for the rule that the windows must fit.

use super::limits::{Column, Window};
use super::sizes::{
    FLAG_STEP, HALF_TAIL, SLOT_ALIGN, WINDOW_HEAD, block_record_pitch, combine_pitch, combine_slots_fit,
    near_slot, record_pitch, relay_fits, window_record,
};
use super::{Config, Limits, RowFormat};
use crate::units::{align_up, div_ceil, div_floor};

const MIB: u64 = 1 << 20;
/// The sizes that the V2 reference adds to the rows of A2 fullmesh and of A2 hierarchy.
const FULLMESH_EXTRA: u64 = 4 * MIB;
const HIERARCHY_EXTRA: u64 = 104 * MIB;
/// What the operators' hierarchies add: of A2 from 9.0.0 on, and of A3.
const HIERARCHY_FROM_900_EXTRA: u64 = 8 * MIB;
const A3_HIERARCHY_EXTRA: u64 = 404 * MIB;
/// No valid row is longer; a longer one could overflow when rounded up.
const ROW_MAX: u64 = 1 << 60;

/// The required and configured sizes of the windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The smallest whole MiB that holds the windows: the larger of both groups, which have one size.
    pub required_mb: u64,
    /// The same of the EP group alone.
    pub required_ep_mb: u64,
    /// The same of the TP group alone; 0 without a TP domain, or where its size is not checked.
    pub required_tp_mb: u64,
    /// `hccl_buffsize_mb` as given.
    pub configured_mb: i64,
    /// The largest capacity, tokens of a rank, that fits `configured_mb`; 0 if none does.
    pub max_bs: u64,
    /// The reason why `max_bs` is not larger.
    pub max_bs_limit: Limit,
    /// The terms whose sum is `required_ep_mb`; unused places have no name.
    pub terms: [Term; 3],
    /// The window of the TP group; without a name if there is none.
    pub tp_term: Term,
    /// Whether `required_mb` is the smallest size that the product allows, and more than the terms need.
    pub is_smallest: bool,
}

named! {
    /// The bound on `max_bs`.
    Limit {
        /// The range of `bs`.
        Range = "the product's range of bs",
        /// The configured window.
        Window = "hccl_buffsize_mb",
        /// The combine status slots, one per token and column (A3).
        StatusSlots = "the combine status slots, bs * (K + S) of them",
        /// The relay area (A2 hierarchy).
        RelayArea = "the relay area",
    }
}

/// The maximum number of factors of a term.
pub const FACTORS_MAX: usize = 5;

/// One term of the required size: the product of its factors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Term {
    /// The memory that it is for.
    pub name: &'static str,
    /// The bytes in all partitions together.
    pub bytes: u64,
    /// The factors whose product is `bytes`; unused places have no symbol.
    pub factors: [Factor; FACTORS_MAX],
}

/// A factor of a term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Factor {
    /// The factor's letter or name.
    pub symbol: &'static str,
    /// The factor's value.
    pub value: u64,
    /// The meaning of the symbol.
    pub meaning: &'static str,
}

impl Term {
    const EMPTY: Self =
        Self { name: "", bytes: 0, factors: [Factor { symbol: "", value: 0, meaning: "" }; FACTORS_MAX] };

    /// In place: terms that are returned would each take a place of its own in the frame of all.
    #[inline(never)]
    fn set(&mut self, name: &'static str, factors: &[&Factor]) {
        (self.name, self.bytes) = (name, 1);
        for (place, &factor) in self.factors.iter_mut().zip(factors) {
            *place = *factor;
            self.bytes = self.bytes.saturating_mul(factor.value);
        }
    }

    /// Returns the factors in use.
    pub fn operands(&self) -> impl Iterator<Item = &Factor> {
        self.factors.iter().filter(|factor| !factor.symbol.is_empty())
    }
}

impl Buffer {
    pub(super) const EMPTY: Self = Self {
        required_mb: 0,
        required_ep_mb: 0,
        required_tp_mb: 0,
        configured_mb: 0,
        max_bs: 0,
        max_bs_limit: Limit::Range,
        terms: [Term::EMPTY; 3],
        tp_term: Term::EMPTY,
        is_smallest: false,
    };

    /// Computes the sizes of a configuration, valid or not. An invalid value counts as the nearest valid one; a size beyond
    /// `u64` counts as the largest `u64`.
    #[must_use]
    pub fn new(config: &Config<'_>) -> Self {
        Self::with(config, Limits::Product)
    }

    /// Computes the sizes under other limits than the product's.
    #[must_use]
    pub fn with(config: &Config<'_>, limits: Limits) -> Self {
        Self::of(config, &Column::of(config.comm_alg, limits))
    }

    pub(super) fn of(config: &Config<'_>, column: &Column) -> Self {
        let mut buffer = Self::EMPTY;
        buffer.fill(config, column);
        buffer
    }

    /// Fills in the sizes. A buffer that is returned would have a place in the frame of this function and one in its
    /// caller's, and the rules ask deep in the stack.
    #[inline(never)]
    pub(super) fn fill(&mut self, config: &Config<'_>, column: &Column) {
        let need = Need::of(config, column);
        self.configured_mb = config.hccl_buffsize_mb;
        (self.max_bs, self.max_bs_limit) = need.max_bs(natural(self.configured_mb));
        let capacity = natural(config.capacity_for(config.largest_bs()));
        need.terms(capacity, &mut self.terms);
        need.tp_term(capacity, &mut self.tp_term);
        self.required_ep_mb = need.mb(&self.terms);
        self.required_tp_mb = div_ceil(need.tp_bytes(capacity), MIB);
        self.required_mb = self.required_ep_mb.max(self.required_tp_mb);
        self.is_smallest = div_ceil(self.bytes(), MIB) < need.min_mb && self.required_tp_mb <= need.min_mb;
    }

    /// Returns the sum of the terms.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        sum(&self.terms)
    }

    /// Returns whether the configured size suffices.
    #[must_use]
    pub fn fits(&self) -> bool {
        u64::try_from(self.configured_mb).is_ok_and(|mb| mb >= self.required_mb)
    }
}

/// The operands of the window of a TP domain, of both partitions.
struct TpWindow {
    /// Rows that a MoE rank can receive.
    rows: u64,
    /// Bytes of a record and a result.
    row: u64,
}

/// The operands of the formulas, except the capacity.
struct Need {
    window: Window,
    /// Whether there is a TP domain whose window counts.
    has_tp: bool,
    status_slots: bool,
    has_relay: bool,
    ranks: u64,
    servers: u64,
    experts: u64,
    local: u64,
    k: u64,
    columns: u64,
    row: u64,
    row_format: RowFormat,
    port_offset: u64,
    min_mb: u64,
    bs_max: u64,
}

impl Need {
    fn of(config: &Config<'_>, column: &Column) -> Self {
        let (experts, k) = (natural(config.moe_expert_num), natural(config.k));
        let (ranks, shared_ranks) = (natural(config.ep_world_size), natural(config.shared_expert_rank_num));
        let shared = if shared_ranks == 0 { 0 } else { natural(config.shared_expert_num) };
        Self {
            window: column.window,
            has_tp: column.tp_window && config.tp_world_size == 2 && column.tp_world_size.holds(2),
            status_slots: column.status_slots,
            has_relay: column.relay,
            ranks,
            servers: div_ceil(ranks, natural(config.server_ranks).max(1)),
            experts,
            local: div_ceil(experts, ranks.saturating_sub(shared_ranks).max(1)),
            k,
            columns: k.saturating_add(shared),
            row: natural(config.h).saturating_mul(2).min(ROW_MAX),
            row_format: RowFormat::of_tokens(config.quant_mode, natural(config.h).min(ROW_MAX >> 1)),
            port_offset: if column.port_offset.min == 0 { natural(config.port_offset) } else { 0 },
            min_mb: natural(column.hccl_buffsize_mb.min),
            bs_max: natural(column.bs.max),
        }
    }

    /// Fills in the terms.
    fn terms(&self, bs: u64, [first, second, third]: &mut [Term; 3]) {
        let factor = |symbol, value, meaning| Factor { symbol, value, meaning };
        let partitions = factor("partitions", 2, "a dispatch or combine uses them in turn");
        let ranks = factor("R", self.ranks, "ep_world_size");
        let max_bs = factor("max_bs", bs, "the largest bs of any rank, or global_bs / ep_world_size");
        match self.window {
            Window::A3 { blocks } => {
                let local = factor("L", self.local, "experts of a MoE rank");
                let columns = factor("(K + S)", self.columns, "results per token");
                let pitch = self.record(blocks);
                let row = combine_pitch(self.row, self.port_offset);
                let meaning = match combine_pitch(self.row, 0) == row {
                    true => "bytes of a result, align(2H, 512)",
                    false => "bytes of a result, align(2H, 512) + 512, so that rows begin at all ports",
                };
                let row = factor("row", row, meaning);
                let offset = factor("offset", self.port_offset, "port offset in bytes");
                first.set(
                    "dispatch areas of both partitions",
                    &[&partitions, &local, &ranks, &max_bs, &pitch],
                );
                second.set("combine areas of both partitions", &[&partitions, &columns, &max_bs, &row]);
                if self.port_offset > 0 {
                    let both = factor("both", 2, "source and owner");
                    third.set("port offsets of both partitions", &[&partitions, &both, &ranks, &offset]);
                }
            }
            Window::A2Fullmesh => {
                let halves = factor("halves", 2, "operators use them in turn");
                let local = factor("min(L, K)", self.local.min(self.k), "rows of a token on one rank");
                let row = factor("2H", self.row, "bytes of a row");
                first.set("rows of both halves", &[&halves, &max_bs, &ranks, &local, &row]);
                let extra = self.fullmesh_windows(bs).saturating_sub(first.bytes).max(FULLMESH_EXTRA);
                let extra = factor("fixed", extra, "bytes");
                second.set("counts, flags and selector of both halves", &[&extra]);
            }
            Window::A2Hierarchy => {
                let experts = factor("E", self.experts, "moe_expert_num");
                let fixed = factor("fixed", HIERARCHY_EXTRA, "bytes");
                first.set("near area", &[&experts, &max_bs, &self.slot()]);
                second.set("words and relay areas", &[&fixed]);
            }
            Window::A2HierarchyFrom900 => {
                let meaning = "moe_expert_num + ep_world_size / 4";
                let blocks =
                    factor("(E + R / 4)", self.experts.saturating_add(div_floor(self.ranks, 4)), meaning);
                let bytes = align_up(bs.saturating_mul(self.slot().value).min(ROW_MAX), SLOT_ALIGN);
                let meaning = "bytes of all tokens of a rank, align(max_bs * (2H + 16 * align(K, 8)), 512)";
                let tokens = factor("tokens", bytes, meaning);
                first.set("rows", &[&blocks, &tokens]);
                second.set("fixed areas", &[&factor("fixed", HIERARCHY_FROM_900_EXTRA, "bytes")]);
            }
            Window::A3Hierarchy => {
                // The operator divides before it multiplies, from left to right.
                let words = div_floor(self.k.min(ROW_MAX >> 8).saturating_add(7) * 3, 8) * 8;
                let slot = self.row.saturating_add(4 * words + 64);
                let meaning = "bytes of a row and what goes with it, 2H + 4 * (3 * (K + 7) / 8 * 8) + 64";
                let slot = factor("slot", slot, meaning);
                first.set("rows", &[&factor("E", self.experts, "moe_expert_num"), &max_bs, &slot]);
                second.set("fixed areas", &[&factor("fixed", A3_HIERARCHY_EXTRA, "bytes")]);
            }
        }
    }

    /// Returns the operands of the window of the TP domain, whose ranks have one expert each; `None` if there is none.
    fn tp_window(&self, bs: u64) -> Option<TpWindow> {
        let Window::A3 { blocks } = self.window else { return None };
        let row = self.record(blocks).value.saturating_add(combine_pitch(self.row, self.port_offset));
        self.has_tp.then(|| TpWindow { rows: bs.saturating_mul(self.ranks), row })
    }

    /// Returns the bytes of that window, without a term, which takes much of the stack.
    fn tp_bytes(&self, bs: u64) -> u64 {
        self.tp_window(bs).map_or(0, |window| window.rows.saturating_mul(window.row).saturating_mul(2))
    }

    /// Fills in the term of that window.
    fn tp_term(&self, bs: u64, term: &mut Term) {
        let Some(TpWindow { rows, row }) = self.tp_window(bs) else { return };
        let factors = [
            Factor { symbol: "partitions", value: 2, meaning: "a dispatch or combine uses them in turn" },
            Factor { symbol: "A", value: rows, meaning: "rows that a MoE rank can receive, max_bs * R" },
            Factor {
                symbol: "(pitch + row)",
                value: row,
                meaning: "bytes reserved for a record and a result",
            },
        ];
        term.set("window of the TP group", &[&factors[0], &factors[1], &factors[2]]);
    }

    /// Returns the bytes between two records. They are sized for unquantised rows even with `quant_mode`: one group may serve
    /// both.
    fn record(&self, blocks: bool) -> Factor {
        let (value, meaning) = if blocks {
            let meaning =
                "bytes reserved for a record, quantised or not, ceil((align(2H, 32) + 64) / 480) * 512";
            (block_record_pitch(self.longest()), meaning)
        } else {
            let meaning = "bytes reserved for a record, quantised or not, align(align(2H, 32) + 64, 512)";
            (record_pitch(self.longest()), meaning)
        };
        Factor { symbol: "pitch", value, meaning }
    }

    /// Returns the bytes of a row with its ids and weights (A2 hierarchy).
    fn slot(&self) -> Factor {
        let value = near_slot(self.longest(), self.k.min(ROW_MAX));
        Factor { symbol: "slot", value, meaning: "bytes of a row, ids and weights, 2H + 16 * align(K, 8)" }
    }

    /// Returns the actual size of both halves on A2 fullmesh. The formula covers it, except for rows that are tiny compared
    /// with their flags, which only models have.
    fn fullmesh_windows(&self, bs: u64) -> u64 {
        let rows = bs.saturating_mul(self.local.min(self.k));
        let record = window_record(&self.row_format);
        // Head of counts and FLAG1, records, gap, FLAG2; combine's rows, gap and FLAG need less than that.
        let flags = 2 * WINDOW_HEAD + FLAG_STEP;
        let window = rows.saturating_mul(record.max(self.row)).saturating_add(flags);
        let windows = self.ranks.saturating_mul(align_up(window.min(ROW_MAX), SLOT_ALIGN));
        let half = HALF_TAIL.saturating_add(windows);
        half.saturating_mul(2)
    }

    /// Returns the bytes of the longest row that is sent.
    const fn longest(&self) -> u64 {
        self.row_format.or_longer(self.row)
    }

    /// Returns the smallest whole MiB that holds `terms`.
    fn mb(&self, terms: &[Term; 3]) -> u64 {
        div_ceil(sum(terms), MIB).max(self.min_mb)
    }

    /// Returns the bound that `bs` exceeds; `None` if everything that grows with it fits.
    fn limit(&self, bs: u64, configured_mb: u64) -> Option<Limit> {
        if self.status_slots && !combine_slots_fit(bs, self.columns) {
            return Some(Limit::StatusSlots);
        }
        if self.has_relay && !relay_fits(self.servers, bs, self.longest(), self.k.min(ROW_MAX)) {
            return Some(Limit::RelayArea);
        }
        let mut terms = [Term::default(); 3];
        self.terms(bs, &mut terms);
        let fits = self.mb(&terms).max(div_ceil(self.tp_bytes(bs), MIB)) <= configured_mb;
        if fits { None } else { Some(Limit::Window) }
    }

    /// Returns the largest `bs` that fits, and the bound on a larger one. It bisects, so that no formula has to be solved
    /// for `bs`.
    fn max_bs(&self, configured_mb: u64) -> (u64, Limit) {
        let (mut good, mut bad, mut limit) = (0, self.bs_max + 1, Limit::Range);
        while bad - good > 1 {
            let middle = good + ((bad - good) >> 1);
            match self.limit(middle, configured_mb) {
                None => good = middle,
                Some(why) => (bad, limit) = (middle, why),
            }
        }
        (good, limit)
    }
}

fn sum(terms: &[Term; 3]) -> u64 {
    terms.iter().fold(0, |sum, term| sum.saturating_add(term.bytes))
}

fn natural(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
