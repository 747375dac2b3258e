//! What the windows need and have (seed 003: `HCCL_BUFFSIZE`): for a person, so also of a configuration
//! that breaks rules, and for the rule that asks whether they fit.

use super::limits::{Column, meaning};
use super::sizes::{
    FLAG_STEP, HALF_TAIL, SLOT_ALIGN, WINDOW_HEAD, block_record_pitch, combine_area, combine_slots_fit,
    dispatch_area, record_pitch, relay_fits, window_record,
};
use super::{BatchSizes, CommAlg, Config, Limits};
use crate::units::{align_up, div_ceil};

const MIB: u64 = 1 << 20;
/// What seed 003 adds to the rows of A2 fullmesh, and to those of A2 hierarchy.
const FULLMESH_EXTRA: u64 = 4 * MIB;
const HIERARCHY_EXTRA: u64 = 104 * MIB;
/// No honest row is longer; a longer one could overflow when rounded up.
const ROW_MAX: u64 = 1 << 60;

/// What the windows need and have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The smallest whole MiB that holds the windows.
    pub required_mb: u64,
    /// `hccl_buffsize_mb` as given.
    pub configured_mb: i64,
    /// The largest uniform `bs` that fits `configured_mb`; 0 if none does.
    pub max_bs: u64,
    /// What `required_mb` is the sum of; unused places have no name.
    pub terms: [Term; 3],
}

/// One term of what the windows need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Term {
    /// What it is for.
    pub name: &'static str,
    /// Its bytes, all partitions together.
    pub bytes: u64,
}

impl Buffer {
    /// The sizes of a configuration, valid or not. A value that makes no sense counts as the nearest that
    /// does; a size beyond `u64` counts as the largest `u64`.
    #[must_use]
    pub fn new(config: &Config<'_>) -> Self {
        Self::with(config, Limits::Product)
    }

    /// The same under other limits.
    #[must_use]
    pub fn with(config: &Config<'_>, limits: Limits) -> Self {
        let need = Need::of(config, limits);
        let bs = match config.bs {
            BatchSizes::Uniform(bs) => bs,
            BatchSizes::PerRank(all) => all.iter().copied().max().unwrap_or(0),
        };
        let terms = need.terms(natural(bs));
        Self {
            required_mb: need.mb(&terms),
            configured_mb: config.hccl_buffsize_mb,
            max_bs: need.max_bs(natural(config.hccl_buffsize_mb)),
            terms,
        }
    }

    /// Whether the configured size suffices.
    #[must_use]
    pub fn fits(&self) -> bool {
        u64::try_from(self.configured_mb).is_ok_and(|mb| mb >= self.required_mb)
    }
}

/// The operands of the formulas, except `bs`.
struct Need {
    alg: CommAlg,
    ranks: u64,
    experts: u64,
    local: u64,
    k: u64,
    columns: u64,
    row: u64,
    quantised: bool,
    port_offset: u64,
    min_mb: u64,
    bs_max: u64,
}

impl Need {
    fn of(config: &Config<'_>, limits: Limits) -> Self {
        let (product, alg) = meaning(config);
        let column = Column::of(product, alg, limits);
        let alg = alg.unwrap_or(match product {
            Some(super::Product::A2) => CommAlg::Fullmesh,
            _ => CommAlg::FullmeshV1,
        });
        let (experts, k) = (natural(config.moe_expert_num), natural(config.k));
        let (ranks, shared_ranks) = (natural(config.ep_world_size), natural(config.shared_expert_rank_num));
        let shared = if shared_ranks == 0 { 0 } else { natural(config.shared_expert_num) };
        Self {
            alg,
            ranks,
            experts,
            local: div_ceil(experts, ranks.saturating_sub(shared_ranks).max(1)),
            k,
            columns: k.saturating_add(shared),
            row: natural(config.h).saturating_mul(2).min(ROW_MAX),
            quantised: config.quant_mode == 2,
            port_offset: natural(config.port_offset),
            min_mb: natural(column.hccl_buffsize_mb.min),
            bs_max: natural(column.bs.max),
        }
    }

    fn terms(&self, bs: u64) -> [Term; 3] {
        let term = |name, bytes| Term { name, bytes };
        match self.alg {
            CommAlg::FullmeshV1 | CommAlg::FullmeshV2 => {
                // Sized for unquantised rows, whatever quant_mode is: one group may serve both.
                let pitch = match self.alg {
                    CommAlg::FullmeshV2 => block_record_pitch(self.row),
                    _ => record_pitch(self.row),
                };
                let dispatch = dispatch_area(self.local.saturating_mul(self.ranks), bs, pitch);
                let combine = combine_area(bs, self.columns, self.row);
                let offsets = product(&[2, self.ranks, self.port_offset]);
                [
                    term("dispatch areas of both partitions", dispatch.saturating_mul(2)),
                    term("combine areas of both partitions", combine.saturating_mul(2)),
                    if offsets == 0 {
                        Term::default()
                    } else {
                        term("port offsets of both partitions", offsets)
                    },
                ]
            }
            CommAlg::Fullmesh => {
                let rows = product(&[2, bs, self.ranks, self.local.min(self.k), self.row]);
                let extra = self.fullmesh_windows(bs).saturating_sub(rows).max(FULLMESH_EXTRA);
                [
                    term("rows of both halves", rows),
                    term("counts, flags and selector of both halves", extra),
                    Term::default(),
                ]
            }
            CommAlg::Hierarchy => {
                let ids_and_weights = align_up(self.k.min(ROW_MAX), 8).saturating_mul(16);
                let near = product(&[self.experts, bs, self.row.saturating_add(ids_and_weights)]);
                [term("near area", near), term("words and relay areas", HIERARCHY_EXTRA), Term::default()]
            }
        }
    }

    /// What both halves really take on A2 fullmesh. The formula covers it, except for rows that are tiny
    /// beside their flags, which only models have.
    fn fullmesh_windows(&self, bs: u64) -> u64 {
        let rows = bs.saturating_mul(self.local.min(self.k));
        let payload = if self.quantised { self.row >> 1 } else { self.row };
        let record = window_record(payload, self.quantised);
        // Head of counts and FLAG1, records, gap, FLAG2; combine's rows, gap and FLAG need less than that.
        let flags = 2 * WINDOW_HEAD + FLAG_STEP;
        let window = rows.saturating_mul(record.max(self.row)).saturating_add(flags);
        let windows = self.ranks.saturating_mul(align_up(window.min(ROW_MAX), SLOT_ALIGN));
        let half = HALF_TAIL.saturating_add(windows);
        half.saturating_mul(2)
    }

    /// The smallest whole MiB that holds `terms`.
    fn mb(&self, terms: &[Term; 3]) -> u64 {
        let bytes = terms.iter().fold(0u64, |sum, term| sum.saturating_add(term.bytes));
        div_ceil(bytes, MIB).max(self.min_mb)
    }

    /// The largest `bs` for which everything that grows with it fits; by halving, so that no formula is
    /// written a second time, solved for `bs`.
    fn max_bs(&self, configured_mb: u64) -> u64 {
        let fits = |bs| {
            let slots_fit = match self.alg {
                CommAlg::FullmeshV1 | CommAlg::FullmeshV2 => combine_slots_fit(bs, self.columns),
                CommAlg::Fullmesh => true,
                CommAlg::Hierarchy => relay_fits(self.ranks, bs, self.row, self.k.min(ROW_MAX)),
            };
            slots_fit && self.mb(&self.terms(bs)) <= configured_mb
        };
        let (mut good, mut bad) = (0, self.bs_max + 1);
        while bad - good > 1 {
            let middle = good + ((bad - good) >> 1);
            if fits(middle) {
                good = middle;
            } else {
                bad = middle;
            }
        }
        good
    }
}

fn natural(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |product, &factor| product.saturating_mul(factor))
}
