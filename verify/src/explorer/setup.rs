//! A model with everything that does not change while it is explored.

use super::model::{Model, Product, Traffic};
use super::plan::{Part, Plan};
use super::protocol::RANKS;
use super::witness::Witness;
use crate::order::Order;
use crate::orders::Orders;
use core::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use veriep_core::fabric::{Capabilities, Terms};
use veriep_core::protocol::{Env, Operator, Receive, scratch_bytes, scratch_words};
use veriep_core::shape::{Elastic, RowElement, Shape};
use veriep_core::sim::Actor;
use veriep_core::sim::cluster::Planned;
use veriep_core::units::{CoreId, RankId, div_rem};
use veriep_core::vector::Portable;

/// One rank's choice for a round: the first expert of its first token, or idle. Each further column and each
/// further token goes one expert further. Where pairs are masked, after all experts follow the same with other masks.
pub(super) type Choice = Option<i32>;

/// A model with everything that does not change while it is explored.
pub(super) struct Setup<'a> {
    pub(super) model: &'a Model,
    pub(super) shape: &'a Shape,
    /// Who is left of an elastic domain.
    pub(super) left: Option<Elastic>,
    /// By core of the group, rank-major.
    pub(super) envs: Vec<Env<Portable>>,
    /// What each rank takes, or all of them.
    plans: Vec<Plan>,
    taken: Orders,
    /// Whether no operator is taken in halves.
    is_whole: bool,
    /// Their letters, where a model of all schedules asks for them.
    pub(super) word: &'static str,
    /// Batches of a unit.
    pub(super) batches: u32,
    /// Rounds are told apart modulo this.
    pub(super) tags: u32,
    /// After so many units all is as it was that depends on the time.
    pub(super) period: u32,
    pub(super) scratch_words: usize,
    pub(super) scratch_bytes: usize,
    /// Bytes of scratch that a step leaves for later ones.
    pub(super) staged_bytes: usize,
    /// Who sees the calls of a counterexample.
    witness: Option<&'a dyn Witness>,
    /// Whether one is told now.
    pub(super) telling: Cell<bool>,
    /// The orders for which anything has landed so far.
    pub(super) orders: RefCell<BTreeSet<Order>>,
}

impl<'a> Setup<'a> {
    pub(super) fn new(model: &'a Model, shape: &'a Shape, witness: Option<&'a dyn Witness>) -> Self {
        let orders = model.orders();
        let plans: Vec<_> = orders.iter().map(|order| Plan::new(order, model.units)).collect();
        let batches = orders.of(0).batches() as u32;
        let envs = (0..model.ranks).flat_map(|rank| {
            (0..model.cores)
                .map(move |core| {
                    let (ep_rank, tp_rank) = div_rem(rank, model.tp_ranks());
                    let (ep_rank, core) = (RankId(ep_rank), CoreId(core));
                    let terms = Terms::new(Capabilities::all());
                    let env = Env::new(shape, ep_rank, core, model.choices, terms, Portable);
                    env.expect("the choices of a model suit its shape").with_tp_rank(RankId(tp_rank))
                })
                .map(|env| if model.in_runs { env } else { env.one_by_one() }.telling_apart(model.calls))
        });
        let tags = match model.product {
            // A rank is at most two units ahead of another; leftovers are two partitions old.
            Product::A3 if orders.depth() == 1 => 4,
            Product::A3 => 8,
            // A rank is at most one operator ahead, and leftovers are forgotten.
            Product::A2 | Product::Hierarchy => batches.max(2),
        };
        let ([dispatch, combine], operators) = (model.partitions, plans[0].in_unit());
        // Tags, the machines' partitions and the model's; on A3 both sequences of partitions, and epochs, which a core reads.
        let repeats = |units: &u32| match model.product {
            Product::A3 => [tags, dispatch, combine, 4].iter().all(|&each| units.is_multiple_of(each)),
            Product::A2 | Product::Hierarchy => {
                let halves = [2, dispatch].iter().all(|&each| (units * operators).is_multiple_of(each));
                halves && (units * batches).is_multiple_of(tags)
            }
        };
        Self {
            model,
            shape,
            left: model.domain().1,
            envs: envs.collect(),
            plans,
            is_whole: !orders.has_halves(),
            taken: orders,
            word: if model.refined { model.schedule.clone().leak() } else { "" },
            batches,
            tags,
            period: (1..).find(repeats).unwrap_or(1),
            scratch_words: scratch_words(shape),
            scratch_bytes: scratch_bytes(shape),
            staged_bytes: match (model.product, shape.row_format().element) {
                (Product::Hierarchy, _) => scratch_bytes(shape),
                (_, RowElement::Dtype) => 0,
                _ => shape.payload_bytes() as usize,
            },
            witness,
            telling: Cell::new(false),
            orders: RefCell::default(),
        }
    }

    /// Something has landed, or was found to have landed, for this reason.
    pub(super) fn relies_on(&self, order: Order) {
        self.orders.borrow_mut().insert(order);
    }

    /// Who sees the calls of the step that is taken now.
    pub(super) fn witness(&self) -> Option<&'a dyn Witness> {
        self.witness.filter(|_| self.telling.get())
    }

    /// Core number `core` of the group.
    pub(super) fn actor(&self, core: usize) -> Actor {
        let (rank, core) = div_rem(core as u32, self.model.cores);
        Actor { member: RankId(rank), core: CoreId(core) }
    }

    /// The rank of core number `core` of the group.
    pub(super) fn rank_of_core(&self, core: usize) -> usize {
        core / self.model.cores as usize
    }

    /// Part number `at` of the rank of core number `core` of the group.
    pub(super) fn part_at(&self, core: usize, at: u32) -> Part {
        self.part(self.rank_of_core(core), at)
    }

    /// All cores of the rank of core number `core`, as bits.
    pub(super) fn cores_beside(&self, core: usize) -> u32 {
        let all = self.model.cores as usize;
        ((1 << all) - 1) << (core / all * all)
    }

    /// What a rank may choose for a round.
    pub(super) fn choices(&self, rank: u32) -> Vec<Choice> {
        let tokens = self.model.tokens_of(rank);
        let (with_own, with_none) = match self.model.traffic {
            Traffic::Given(matrices) => {
                let first = |firsts: &&[i32]| firsts.get(rank as usize).copied().filter(|_| tokens > 0);
                return matrices.iter().map(first).collect();
            }
            _ if tokens == 0 => return vec![None],
            Traffic::All => (true, true),
            Traffic::NoIdle => (true, false),
            Traffic::NoSelf => (false, false),
        };
        let experts = self.shape.moe_expert_num();
        let masks = if self.model.pair_masks { 1..1 << (tokens * self.model.k) } else { 0..1 };
        let all = masks.flat_map(|masked| (0..experts).map(move |e| masked * experts + e));
        let is_own = |e: u32| self.rank_of(e % experts) == RankId(rank / self.model.tp_ranks());
        let all = all.filter(|&e| with_own || !is_own(e));
        let none = with_none.then_some(None);
        all.map(|e| Some(e as i32)).chain(none).collect()
    }

    /// The EP rank that holds an expert. After all others comes the shared one, with one replica in the models that ask.
    pub(super) fn rank_of(&self, e: u32) -> RankId {
        let is_shared = e >= self.shape.moe_expert_num();
        RankId(if is_shared { 0 } else { self.model.shared_ranks + e / self.model.experts })
    }

    /// All traffic that a round can have.
    pub(super) fn matrices(&self) -> Vec<Vec<Choice>> {
        if let Traffic::Given(matrices) = self.model.traffic {
            let choice = |(rank, &first): (u32, &i32)| (self.model.tokens_of(rank) > 0).then_some(first);
            return matrices.iter().map(|firsts| (0..).zip(*firsts).map(choice).collect()).collect();
        }
        (0..self.model.ranks).fold(vec![Vec::new()], |matrices, rank| {
            let choices = self.choices(rank);
            let with =
                |matrix: Vec<Choice>| choices.iter().map(move |&choice| [&matrix[..], &[choice]].concat());
            matrices.into_iter().flat_map(with).collect()
        })
    }

    /// Whether no operator is taken in halves.
    pub(super) const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether the search has such orders. A core sets few operators aside; experts that read rows in the window combine them in
    /// the order in which they came; on A2 operators are numbered as if all ranks took the same, one after the other.
    pub(super) fn is_searchable(&self) -> bool {
        searches(self.model.product, self.model.choices.receive, &self.taken)
    }

    fn plan(&self, rank: usize) -> &Plan {
        self.plans.get(rank).unwrap_or(&self.plans[0])
    }

    /// Part number `at` of a rank, which has one.
    pub(super) fn part(&self, rank: usize, at: u32) -> Part {
        self.plan(rank).part(at).unwrap_or_else(|| unreachable!("rank {rank} has no part {at}"))
    }

    /// The first part of operator `number`, if all ranks take the same.
    pub(super) fn part_of(&self, number: u32) -> Part {
        self.plan(0).operator(number).unwrap_or_else(|| unreachable!("there is no operator {number}"))
    }

    /// The operator `number` if all ranks take the same: kind, batch, number among its kind, all from the beginning.
    pub(super) fn operator(&self, number: u32) -> (Operator, u32, u32) {
        let part = self.part_of(number);
        (part.operator(), part.batch(), part.nth)
    }

    /// An operator as it is told.
    pub(super) fn named(&self, number: u32) -> Planned {
        self.part_of(number).named()
    }

    /// By rank: the number of the operator that it is in, from the numbers of parts.
    pub(super) fn numbers(&self, mut parts: [u32; RANKS]) -> [u32; RANKS] {
        if !self.is_whole() {
            for (rank, at) in parts.iter_mut().enumerate().take(self.model.ranks as usize) {
                let plan = self.plan(rank);
                *at = plan.part(*at).map_or(plan.operators(), |part| part.number);
            }
        }
        parts
    }

    /// Whether experts are a step of a rank before this part: they read rows where they lie.
    pub(super) fn has_experts(&self, part: Part) -> bool {
        self.model.choices.receive.keeps_rows()
            && part.operator() == Operator::Combine
            && part.planned.begins()
    }

    /// Whether part number `at` of a rank is behind the last one.
    pub(super) fn ended(&self, rank: usize, at: u32) -> bool {
        self.plan(rank).ended(at)
    }

    /// All operators of a group that ends.
    pub(super) fn operators(&self) -> u32 {
        self.plan(0).operators()
    }

    /// The time round of a part.
    pub(super) fn unit_of(&self, rank: usize, at: u32) -> u32 {
        self.plan(rank).unit_of(at)
    }

    /// The first part of a time round, and the number of its operator if all ranks take the same.
    pub(super) fn unit(&self, rank: usize, times: u32) -> (u32, u32) {
        let at = self.plan(rank).unit(times);
        (at, if self.is_whole() { at } else { self.plan(rank).part(at).map_or(0, |part| part.number) })
    }

    /// All batches before this one have been combined by a rank before part number `at`.
    pub(super) fn over(&self, rank: usize, at: u32) -> u32 {
        self.plan(rank).over(at)
    }
}

/// Operators that a core can have set aside at once.
pub(super) const OPEN: usize = 4;

/// Whether searches of a protocol have such orders.
pub(crate) fn searches(product: Product, receive: Receive, orders: &Orders) -> bool {
    let in_turn = orders.are_in_order() || !receive.keeps_rows();
    let alone = product == Product::A3 || orders.is_one() && !orders.overlaps();
    in_turn && alone && orders.most_open() < OPEN && !orders.has_self_wait()
}
