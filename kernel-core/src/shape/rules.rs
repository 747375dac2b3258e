//! Every rule of a configuration, once.
//!
//! A rule applies only if each of its operands is legal on its own: a check that finds a wrong value reports it and returns
//! `None`, so that consequences of it are not reported as well.

use super::config::CAPACITY_MAX;
use super::limits::{self, Batches, Column, EXPERT_IDS_MAX, Range};
use super::sizes::{
    COMBINE_STATUS, DISPATCH_STATUS, Derived, RELAY_AREA, SLOT_ALIGN, STATUS_SLOT, combine_slots_fit,
    dispatch_slots_fit, relay_fits,
};
use super::validate::{Validator, signed};
use super::violation::Found;
use super::{BatchSizes, Buffer, Config, Given, Limits, Op, PerRank, RowFormat};
use super::{Rule, Seen, Shape, TokenNums, Violation};
use crate::units::{RankId, div_ceil, div_floor, div_rem};
use core::iter;

pub(super) fn check<'a>(config: &'a Config<'a>, limits: Limits, found: Found<'a>) -> Option<Shape> {
    let column = Column::of(config.comm_alg, limits);
    let mut door = Validator { config, column: &column, found, is_broken: false };
    let shape = door.pass();
    if door.is_broken { None } else { build(config, shape, door.found) }
}

/// Returns whether `config` keeps every rule of a column, whether or not our machines run it.
pub(super) fn accepts(config: &Config<'_>, column: &Column, found: Found<'_>) -> bool {
    let mut door = Validator { config, column, found, is_broken: false };
    let _ = door.pass();
    !door.is_broken
}

/// Builds the shape. A shape is large, so its place on the stack is taken only after the rules have left theirs, and filled
/// in place.
#[inline(never)]
fn build(config: &Config<'_>, shape: impl FnOnce() -> Option<Shape>, found: Found<'_>) -> Option<Shape> {
    let mut built = shape();
    let shape = built.as_mut()?;
    let (capacity, ranks) = (i64::from(shape.bs_max), shape.ep_world_size as usize);
    let small = |bs: i64| u16::try_from(bs).ok();
    match config.bs {
        BatchSizes::PerRank(list) if list.iter().any(|&bs| bs != capacity) => {
            shape.bs_per_rank.set(list.iter().filter_map(|&bs| small(bs)));
        }
        BatchSizes::Uniform(bs) if bs != capacity => {
            shape.bs_per_rank.set(iter::repeat_n(small(bs).unwrap_or(0), ranks));
        }
        BatchSizes::Own { rank, bs } => {
            shape.own = Some(rank);
            if bs != capacity {
                let of = |other| if other == rank.index() { bs } else { capacity };
                shape.bs_per_rank.set((0..ranks).filter_map(|other| small(of(other))));
            }
        }
        _ => {}
    }
    shape.derive();
    if shape.is_addressable(isize::MAX as u64, found) { built } else { None }
}

/// The experts and their ranks; `None` where a number is out of its own range.
#[derive(Clone, Copy)]
struct Experts {
    ranks: Option<u32>,
    /// Ranks of a server.
    servers: Option<u32>,
    moe: Option<u32>,
    /// MoE experts of a MoE rank.
    local: Option<u32>,
    shared_ranks: Option<u32>,
    /// The shared experts that travel: none without ranks of their own.
    shared: Option<u32>,
}

/// Batch sizes, all legal.
#[derive(Clone, Copy)]
struct Batch {
    max: u32,
    /// Whether ranks differ.
    uneven: bool,
}

// Functions that use much of the stack have frames of their own, which end before the next one begins.
impl<'a> Validator<'a, '_> {
    /// Checks all rules in their order. The result makes the shape, without batch sizes by rank and derived numbers.
    fn pass(&mut self) -> impl FnOnce() -> Option<Shape> + use<'a> {
        let config = self.config;
        if config.op == Op::CombineAddRmsNorm && !self.column.norm {
            let seen = Seen::Word("combine_add_rms_norm");
            self.broken(Violation::new("op", seen, Rule::Word("combine")));
        }
        let experts = self.experts();
        let specials = self.specials(experts.moe);
        let k = self.k(experts.moe, specials);
        let h = self.range("h", config.h, self.column.h);
        let h = self.multiple("h", h, self.column.h_step);
        let batch = self.batch(experts.ranks);
        let batch = self.global_bs(experts.ranks, batch);
        let tp = self.tp(experts.local);
        self.quantisation();
        let token_nums =
            self.range("expert_token_nums_type", config.expert_token_nums_type, limits::TOKEN_NUMS_TYPE);
        let aiv_num = self.range("aiv_num", config.aiv_num, limits::AIV_NUM);
        let port_offset = self.port_offset();
        let norm_eps = self.norm_eps();
        self.optional_inputs(experts.shared_ranks);
        self.slots(experts, k, batch);
        self.relay(experts, k, h, batch);
        let buffsize = self.windows();
        move || {
            let [zero_expert_num, copy_expert_num, const_expert_num] = specials?;
            Some(Shape {
                comm_alg: config.comm_alg,
                dtype: config.dtype,
                row_format: RowFormat::of_tokens(config.quant_mode, h?.into()),
                result_format: RowFormat::of_results(config.comm_quant_mode, h?.into()),
                token_nums: if token_nums? == 0 { TokenNums::PrefixSums } else { TokenNums::Counts },
                ep_world_size: experts.ranks?,
                server_ranks: experts.servers?,
                tp_world_size: tp?.max(1),
                moe_expert_num: experts.moe?,
                local_expert_num: experts.local?,
                shared_expert_num: experts.shared?,
                shared_expert_rank_num: experts.shared_ranks?,
                zero_expert_num,
                copy_expert_num,
                const_expert_num,
                k: k?,
                h: h?,
                bs_max: batch?.max,
                bs_per_rank: PerRank::NONE,
                own: None,
                aiv_num: aiv_num?,
                hccl_buffsize_mb: buffsize?,
                port_offset: port_offset?,
                norm_eps_bits: norm_eps?.to_bits(),
                kept: None,
                derived: Derived::default(),
            })
        }
    }

    fn experts(&mut self) -> Experts {
        let (config, column) = (self.config, self.column);
        let ranks = self.range("ep_world_size", config.ep_world_size, column.ep_world_size);
        let servers = self.range("server_ranks", config.server_ranks, column.server_ranks);
        // The hierarchy is made of full servers.
        let step = match servers {
            Some(_) if column.relay => config.server_ranks,
            _ if config.ep_world_size <= column.small_world => 1,
            _ => column.ep_world_size_step,
        };
        let ranks = self.multiple("ep_world_size", ranks, step);
        let moe = self.range("moe_expert_num", config.moe_expert_num, column.moe_expert_num);
        let shared = self.range("shared_expert_num", config.shared_expert_num, column.shared_expert_num);
        let ranks_end = ranks.map_or(column.ep_world_size.max, i64::from);
        let shared_ranks = Range { min: 0, max: if column.shared_ranks { ranks_end - 1 } else { 0 } };
        let shared_ranks = self.range("shared_expert_rank_num", config.shared_expert_rank_num, shared_ranks);
        if let (Some(shared), Some(shared_ranks)) = (shared, shared_ranks) {
            self.shared_experts(shared, shared_ranks);
        }
        let mut local = None;
        if let (Some(ranks), Some(moe), Some(shared_ranks)) = (ranks, moe, shared_ranks) {
            local = self.local_experts(moe, ranks, shared_ranks);
        }
        let shared = shared.zip(shared_ranks).map(|(shared, on)| if on == 0 { 0 } else { shared });
        Experts { ranks, servers, moe, local, shared_ranks, shared }
    }

    fn shared_experts(&mut self, shared: u32, shared_ranks: u32) {
        let words = if shared_ranks == 0 && shared > 1 {
            "must be above 0 when shared_expert_num is above 1"
        } else if shared_ranks > 0 && shared == 0 {
            "must be 0 when shared_expert_num is 0"
        } else if div_rem(shared_ranks, shared).1 != 0 {
            "must be a multiple of shared_expert_num"
        } else {
            return;
        };
        let numbers = [("shared_expert_num", shared.into())];
        self.wrong("shared_expert_rank_num", shared_ranks.into(), words, &numbers);
    }

    /// Returns L, if experts divide evenly over the MoE ranks.
    fn local_experts(&mut self, moe: u32, ranks: u32, shared_ranks: u32) -> Option<u32> {
        let (per_rank, rest) = div_rem(moe, ranks - shared_ranks);
        if i64::from(per_rank) > self.column.experts_per_rank_max {
            let words = "must leave no rank more MoE experts than the limit";
            let numbers = [
                ("ep_world_size", ranks.into()),
                ("moe_expert_num / ep_world_size", per_rank.into()),
                ("limit", self.column.experts_per_rank_max),
            ];
            self.wrong("moe_expert_num", moe.into(), words, &numbers);
        }
        if rest == 0 {
            return Some(per_rank);
        }
        let words = "must be a multiple of ep_world_size - shared_expert_rank_num";
        let numbers = [
            ("ep_world_size", ranks.into()),
            ("shared_expert_rank_num", shared_ranks.into()),
            ("remainder", rest.into()),
        ];
        self.wrong("moe_expert_num", moe.into(), words, &numbers);
        None
    }

    /// Checks zero, copy and const experts.
    fn specials(&mut self, moe: Option<u32>) -> Option<[u32; 3]> {
        let (config, column) = (self.config, self.column);
        let zero = self.range("zero_expert_num", config.zero_expert_num, column.zero_or_copy);
        let copy = self.range("copy_expert_num", config.copy_expert_num, column.zero_or_copy);
        let constant = self.range("const_expert_num", config.const_expert_num, column.const_expert_num);
        let all = [zero?, copy?, constant?];
        let sum = i64::from(moe?) + all.iter().map(|&n| i64::from(n)).sum::<i64>();
        if sum <= EXPERT_IDS_MAX {
            return Some(all);
        }
        // The largest of the three is the one to shrink.
        let names = ["zero_expert_num", "copy_expert_num", "const_expert_num"];
        let (most, name) = all.into_iter().zip(names).max()?;
        let words = "must leave moe_expert_num and all special experts together within the limit";
        self.wrong(name, most.into(), words, &[("sum", sum), ("limit", EXPERT_IDS_MAX)]);
        None
    }

    fn k(&mut self, moe: Option<u32>, specials: Option<[u32; 3]>) -> Option<u32> {
        let k = self.range("k", self.config.k, self.column.k)?;
        if let (Some(moe), Some([zero, copy, constant])) = (moe, specials)
            && k > moe + zero + copy + constant
        {
            let words = "must not exceed the number of MoE and special experts";
            let specials = zero + copy + constant;
            let numbers = [("moe_expert_num", moe.into()), ("special experts", specials.into())];
            self.wrong("k", k.into(), words, &numbers);
        }
        Some(k)
    }

    #[inline(never)]
    fn batch(&mut self, ranks: Option<u32>) -> Option<Batch> {
        let range = self.column.bs;
        let list = match self.config.bs {
            BatchSizes::Uniform(bs) => {
                return self.range("bs", bs, range).map(|max| Batch { max, uneven: false });
            }
            BatchSizes::Own { rank, bs } => return self.own_batch(ranks, rank, bs),
            BatchSizes::PerRank(list) => list,
        };
        let range = self.column.listed_bs();
        let length_is_right = ranks.is_none_or(|ranks| ranks as usize == list.len());
        if !length_is_right {
            let rule = Rule::Words("must have one entry per EP rank");
            let numbers = [("ep_world_size", self.config.ep_world_size)];
            self.broken(Violation::new("bs", Seen::List(list.len()), rule).with(&numbers));
        }
        let mut wrong = list.iter().enumerate().filter(|(_, bs)| !range.holds(**bs));
        if let Some((rank, &bs)) = wrong.next() {
            let also = i64::try_from(wrong.count()).unwrap_or(i64::MAX);
            let rank = i64::try_from(rank).unwrap_or(i64::MAX);
            let rule = Rule::Range { min: range.min, max: range.max };
            let numbers = [("rank", rank), ("other ranks out of range", also)];
            self.broken(Violation::new("bs", Seen::Number(bs), rule).with(&numbers));
            return None;
        }
        if ranks.is_none() || !length_is_right {
            return None;
        }
        let (max, min) = (list.iter().max()?, list.iter().min()?);
        if *max == 0 {
            self.wrong("bs", 0, "must be above 0 on some rank", &[]);
            return None;
        }
        Some(Batch { max: u32::try_from(*max).ok()?, uneven: max != min })
    }

    /// Checks the batch of one rank, which knows no other's.
    fn own_batch(&mut self, ranks: Option<u32>, rank: RankId, bs: i64) -> Option<Batch> {
        let max = self.range("bs", bs, self.column.listed_bs())?;
        if max == 0 && self.config.global_bs == 0 {
            self.wrong("bs", bs, "must be above 0 on some rank", &[]);
            return None;
        }
        let rank = ("rank", i64::from(rank.0));
        if self.has_tp() {
            // Peers are one rank of the EP domain, with one batch size.
            self.wrong("bs", bs, "must be given for every rank in a TP domain", &[rank]);
            return None;
        }
        if ranks.is_some_and(|ranks| rank.1 >= i64::from(ranks)) {
            let numbers = [rank, ("ep_world_size", self.config.ep_world_size)];
            self.wrong("bs", bs, "must be that of a rank below ep_world_size", &numbers);
            return None;
        }
        Some(Batch { max, uneven: false })
    }

    /// Returns the batch with its capacity, if that is legal.
    #[inline(never)]
    fn global_bs(&mut self, ranks: Option<u32>, batch: Option<Batch>) -> Option<Batch> {
        let (seen, column) = (self.config.global_bs, self.column);
        let (Some(ranks), Some(batch)) = (ranks, batch) else {
            let max = column.ep_world_size.max * column.bs.max;
            // A capacity may be larger than any batch.
            let max =
                if column.batches == Batches::Equal { max } else { CAPACITY_MAX * column.ep_world_size.max };
            self.range("global_bs", seen, Range { min: 0, max });
            return batch;
        };
        let product = i64::from(ranks) * i64::from(batch.max);
        let is_masked = self.config.given.intersects(Given::MASK_1D | Given::MASK_2D);
        let is_exact = match column.batches {
            Batches::Equal => true,
            Batches::Capacity => false,
            Batches::CapacityUnlessMasked => is_masked,
        };
        let numbers = [("bs", batch.max.into()), ("ep_world_size", ranks.into()), ("product", product)];
        if batch.uneven && column.batches == Batches::Equal {
            self.wrong(
                "bs",
                batch.max.into(),
                "must be the same on every rank",
                &[("largest bs", batch.max.into())],
            );
            return None;
        }
        if batch.uneven && is_exact {
            let rule = Rule::Words("must be absent when ranks differ in bs");
            self.broken(Violation::new("x_active_mask", Seen::Present, rule));
            return None;
        }
        if seen == 0 && !batch.uneven || seen == product {
            return Some(batch);
        }
        let words = match (is_exact, batch.uneven) {
            (true, _) if is_masked && column.batches != Batches::Equal => {
                "must be 0 or bs * ep_world_size with x_active_mask"
            }
            (true, _) => "must be 0 or bs * ep_world_size",
            (false, true) => {
                "must be a multiple of ep_world_size from (largest bs) * ep_world_size on when ranks differ in bs"
            }
            (false, false) => "must be 0 or a multiple of ep_world_size from bs * ep_world_size on",
        };
        let capacity = u32::try_from(seen).ok().map(|seen| div_rem(seen, ranks));
        match capacity {
            Some((capacity, 0))
                if !is_exact && capacity >= batch.max && i64::from(capacity) <= CAPACITY_MAX =>
            {
                Some(Batch { max: capacity, ..batch })
            }
            _ => {
                self.wrong("global_bs", seen, words, &numbers);
                None
            }
        }
    }

    fn tp(&mut self, local: Option<u32>) -> Option<u32> {
        let tp = self.range("tp_world_size", self.config.tp_world_size, self.column.tp_world_size)?;
        if tp == 2
            && let Some(local) = local
            && local != 1
        {
            let words = "must be 0 or 1 unless every rank has one expert";
            self.wrong("tp_world_size", tp.into(), words, &[("local experts", local.into())]);
        }
        Some(tp)
    }

    fn quantisation(&mut self) {
        let config = self.config;
        self.one_of("quant_mode", config.quant_mode, RowFormat::QUANT_MODES);
        let seen = config.comm_quant_mode;
        let legal = self.one_of("comm_quant_mode", seen, self.column.comm_quant_mode);
        if legal && seen != 0 && self.has_tp() {
            let words = "must be 0 with a TP domain";
            self.wrong("comm_quant_mode", seen, words, &[("tp_world_size", config.tp_world_size)]);
        }
    }

    /// Whether rows travel to experts without scales.
    fn is_unscaled(&self) -> bool {
        let mode = self.config.quant_mode;
        RowFormat::QUANT_MODES.contains(&mode) && RowFormat::of_tokens(mode, 0).scale.is_none()
    }

    /// Port offsets must keep records aligned.
    fn port_offset(&mut self) -> Option<u32> {
        let bytes = self.range("port_offset", self.config.port_offset, self.column.port_offset);
        self.multiple("port_offset", bytes, signed(SLOT_ALIGN))
    }

    fn norm_eps(&mut self) -> Option<f32> {
        let seen = self.config.norm_eps;
        if seen.is_finite() {
            return Some(seen);
        }
        self.broken(Violation::new("norm_eps", Seen::NotFinite(seen), Rule::Words("must be finite as f32")));
        None
    }

    #[inline(never)]
    fn optional_inputs(&mut self, shared_ranks: Option<u32>) {
        let (given, column) = (self.config.given, self.column);
        let absent = |words| Rule::Words(words);
        let kinds = [
            ("scales", Given::SCALES),
            ("x_active_mask", Given::MASK_1D | Given::MASK_2D),
            ("elastic_info", Given::ELASTIC_INFO),
            ("shared_expert_x", Given::SHARED_EXPERT_X),
            ("expert_map", Given::EXPERT_MAP),
        ];
        for (name, flags) in kinds {
            if !given.intersects(flags) {
                continue;
            }
            let lacking = (given & flags) - column.given;
            let broken = if lacking == Given::MASK_2D && column.given.contains(Given::MASK_1D) {
                (absent("must have one flag a token, not one a pair"), ("", 0))
            } else if !lacking.is_empty() {
                (Rule::AbsentOn(column.name), ("", 0))
            } else if flags == Given::SCALES && self.is_unscaled() {
                (absent("must be absent unless quant_mode is 2"), ("quant_mode", self.config.quant_mode))
            } else if flags == Given::ELASTIC_INFO && self.has_tp() {
                let tp = self.config.tp_world_size;
                (absent("must be absent with a TP domain"), ("tp_world_size", tp))
            } else if flags == Given::SHARED_EXPERT_X && shared_ranks.is_some_and(|ranks| ranks > 0) {
                let ranks = self.config.shared_expert_rank_num;
                (absent("must be absent when ranks hold shared experts"), ("shared_expert_rank_num", ranks))
            } else if flags == Given::EXPERT_MAP && given.contains(Given::ELASTIC_INFO) {
                (absent("must be absent with elastic_info"), ("", 0))
            } else {
                continue;
            };
            self.broken(Violation::new(name, Seen::Present, broken.0).with(&[broken.1]));
        }
    }

    /// Checks the status slots of A3, one partition.
    #[inline(never)]
    fn slots(&mut self, experts: Experts, k: Option<u32>, batch: Option<Batch>) {
        if !self.column.status_slots {
            return;
        }
        if let (Some(local), Some(ranks)) = (experts.local, experts.ranks) {
            let slots = u64::from(local) * u64::from(ranks);
            if !dispatch_slots_fit(slots) {
                let words = "must leave a dispatch status slot per (local expert, source rank)";
                let factors = [("local experts", local), ("ep_world_size", ranks)];
                let numbers = slot_numbers(slots, DISPATCH_STATUS, factors);
                self.wrong("moe_expert_num", self.config.moe_expert_num, words, &numbers);
            }
        }
        if let (Some(k), Some(shared), Some(batch)) = (k, experts.shared, batch) {
            let (bs, columns) = (u64::from(batch.max), u64::from(k + shared));
            if !combine_slots_fit(bs, columns) {
                let words = "must leave a combine status slot per (token, k or shared expert)";
                let factors = [("k", k), ("shared experts", shared)];
                let numbers = slot_numbers(bs * columns, COMBINE_STATUS, factors);
                self.wrong("bs", batch.max.into(), words, &numbers);
            }
        }
    }

    /// The relay area of the hierarchy has a fixed size, which the product's ranges cannot fill.
    fn relay(&mut self, experts: Experts, k: Option<u32>, h: Option<u32>, batch: Option<Batch>) {
        if let (true, Some(ranks), Some(servers), Some(k), Some(h), Some(batch)) =
            (self.column.relay, experts.ranks, experts.servers, k, h, batch)
            && !relay_fits(
                div_ceil(ranks.into(), servers.into()),
                batch.max.into(),
                RowFormat::of_tokens(self.config.quant_mode, h.into()).or_longer(2 * u64::from(h)),
                k.into(),
            )
        {
            let words = "must leave the tokens of all servers room in the relay area";
            let numbers =
                [("ep_world_size", ranks.into()), ("h", h.into()), ("bytes of the area", signed(RELAY_AREA))];
            self.wrong("bs", batch.max.into(), words, &numbers);
        }
    }

    /// Checks that the windows fit, even if other parameters are wrong: a number out of its range counts as the smallest in
    /// it, so that no legal one needs less.
    #[inline(never)]
    fn windows(&mut self) -> Option<u32> {
        let (config, column) = (self.config, self.column);
        let bs = match config.bs {
            BatchSizes::Uniform(bs) | BatchSizes::Own { bs, .. } => bs,
            BatchSizes::PerRank(list) => {
                list.iter().copied().filter(|&bs| column.bs.holds(bs)).max().unwrap_or(column.bs.min)
            }
        };
        // A batch out of its range says nothing of the capacity either.
        let all_hold = match config.bs {
            BatchSizes::Uniform(bs) => column.bs.holds(bs),
            BatchSizes::Own { bs, .. } => column.listed_bs().holds(bs),
            BatchSizes::PerRank(list) => list.iter().all(|&bs| column.listed_bs().holds(bs)),
        };
        let ranks = column.ep_world_size.legal(config.ep_world_size);
        let shared_ranks = Range { min: 0, max: if column.shared_ranks { ranks - 1 } else { 0 } };
        let mut buffer = Buffer::EMPTY;
        buffer.fill(
            &Config {
                ep_world_size: ranks,
                moe_expert_num: column.moe_expert_num.legal(config.moe_expert_num),
                shared_expert_num: column.shared_expert_num.legal(config.shared_expert_num),
                shared_expert_rank_num: shared_ranks.legal(config.shared_expert_rank_num),
                k: column.k.legal(config.k),
                h: column.h.legal(config.h),
                bs: BatchSizes::Uniform(column.bs.legal(bs)),
                global_bs: if all_hold { config.global_bs } else { 0 },
                port_offset: column.port_offset.legal(config.port_offset),
                ..*config
            },
            column,
        );
        let seen = config.hccl_buffsize_mb;
        // The smallest window of all is a range, and reported as one.
        if buffer.fits() || buffer.is_smallest {
            return self.range("hccl_buffsize_mb", seen, column.hccl_buffsize_mb);
        }
        let mut numbers = [("required_mb", signed(buffer.required_mb)), ("", 0), ("", 0), ("", 0)];
        let terms = buffer.terms.iter().chain([&buffer.tp_term]).filter(|term| !term.name.is_empty());
        for (place, term) in numbers.iter_mut().skip(1).zip(terms) {
            *place = (term.name, signed(term.bytes));
        }
        self.wrong("hccl_buffsize_mb", seen, "must hold the windows", &numbers);
        None
    }
}

fn slot_numbers(slots: u64, area: u64, factors: [(&'static str, u32); 2]) -> [(&'static str, i64); 4] {
    let [a, b] = factors;
    let limit = signed(div_floor(area, STATUS_SLOT));
    [("slots", signed(slots)), ("limit", limit), (a.0, a.1.into()), (b.0, b.1.into())]
}
