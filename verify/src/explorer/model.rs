//! The model of a search: a tiny group, its schedule, its memory, and its defect.

use crate::defects::Defect;
use crate::orders::{Orders, begun};
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::{Choices, Flags, Operator, Receive, Stage};
use veriep_core::shape::{BatchSizes, Config, Elastic, Limits, Protocol, Shape};
use veriep_core::sim::order::Order;

/// Whose protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Dispatch and combine have partitions of their own; combine waits for its own tokens' experts only.
    A3,
    /// The full mesh: both operators share one sequence of halves, wait for all ranks, and agents send.
    A2,
    /// A2's hierarchy: both operators wait for all ranks; messages go between servers. No masks.
    Hierarchy,
}

/// How effects land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// At once: sequential consistency.
    Strong,
    /// Late and in any order that the fabric's contract leaves open; every landing is a move of its own.
    WeakExplicit,
    /// The same memory, reduced: an effect lands when a core depends on it. See [`explorer`](super).
    Weak,
}

/// Which traffic the ranks may choose, each anew in every round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Every token goes to any expert or nowhere: self traffic and idle ranks included.
    All,
    /// Every token goes to any expert.
    NoIdle,
    /// Every token goes to an expert of another rank.
    NoSelf,
    /// One of these: the first expert of each rank's first token (hierarchy).
    Given(&'static [&'static [i32]]),
}

impl Traffic {
    /// Returns what it is called in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::NoIdle => "no rank idle",
            Self::NoSelf => "to others",
            Self::Given(_) => "given",
        }
    }
}

/// A group to explore.
#[derive(Clone, Debug)]
pub struct Model {
    /// Whose protocol. On A2: one expert, one token a rank, two cores at most.
    pub product: Product,
    pub ranks: u32,
    /// Ranks of a server (hierarchy).
    pub server_ranks: u32,
    /// Cores of each rank.
    pub cores: u32,
    /// Experts of each rank.
    pub experts: u32,
    /// Tokens of each rank, or the most.
    pub tokens: u32,
    /// Tokens of each EP rank where they differ; else empty.
    pub bs: &'static [u32],
    /// Experts of each token.
    pub k: u32,
    /// Whether each pair may be masked by itself; else tokens are.
    pub pair_masks: bool,
    /// Ranks that hold a shared expert, the first ones; `experts` are those of each other rank.
    pub shared_ranks: u32,
    /// Whether ranks are pairs of TP peers: 2e and 2e + 1 are EP rank e.
    pub tp: bool,
    /// Whether one more rank, the middle one, has left the domain, and the others have changed places.
    pub elastic: bool,
    /// Whether dispatch quantises.
    pub quantised: bool,
    /// Whether a step may have several effects in a row, as the host takes them (A3). Else one at most, so that all orders
    /// of effects are explored.
    pub in_runs: bool,
    /// Whether the memory may have no room for an effect and answer busy, at any effect of any step (A3).
    pub busy: bool,
    /// Blocks of a record, 1 to 3, with fullmesh_v2; 0 in the plain layout.
    pub blocks: u32,
    /// The orders of the ranks, as text; units, their time round, repeat.
    pub schedule: String,
    /// Units to run; `None` for any number.
    pub units: Option<u32>,
    /// Partitions of dispatch and of combine. The protocol has two of each; A2 looks at the first only.
    pub partitions: [u32; 2],
    /// How effects land.
    pub memory: Memory,
    /// What ranks may send.
    pub traffic: Traffic,
    /// The choices that all cores make.
    pub choices: Choices,
    /// The calls that words tell apart, where they have numbers.
    pub calls: u32,
    pub defect: Defect,
    /// Whether every move must be a step of the model for any number of ranks: for some rounds of A3 whose rows are copied or
    /// placed directly, or of A2.
    pub refined: bool,
    /// Give up beyond so many states.
    pub states_max: usize,
    /// Give up when this says so.
    pub stop: fn() -> bool,
}

/// Declares methods that set fields of a model. One without a comment sets what its field says.
macro_rules! with {
    ($(
        $(#[$about:meta])*
        fn $name:ident($($given:ident: $type:ty),*) { $($($field:ident).+ = $value:expr),* }
    )*) => {
        impl Model {
            $(
                $(#[$about])*
                #[must_use]
                pub fn $name(mut self $(, $given: $type)*) -> Self {
                    $(self.$($field).+ = $value;)*
                    self
                }
            )*
        }
    };
}

with! {
    fn a2() { product = Product::A2 }
    /// A2's hierarchy, in servers of `server_ranks` ranks.
    fn hierarchy(server_ranks: u32) {
        product = Product::Hierarchy, server_ranks = server_ranks, traffic = Traffic::NoIdle
    }
    /// With an agent that sends (hierarchy).
    fn stage_two() { choices.stage = Stage::Two }
    fn weak_explicit() { memory = Memory::WeakExplicit }
    fn cores(cores: u32) { cores = cores }
    /// With two tokens of two experts each on every rank, and two experts there: several pairs for each core,
    /// several slots for each expert.
    fn wide() { experts = 2, tokens = 2, k = 2 }
    /// With so many tokens on each EP rank.
    fn bs(bs: &'static [u32]) { bs = bs, tokens = bs.iter().copied().max().unwrap_or(1) }
    /// With two experts a token, of which each may be masked by itself.
    fn pair_masks() { k = 2, pair_masks = true }
    fn shared_ranks(ranks: u32) { shared_ranks = ranks }
    fn tp() { tp = true }
    fn elastic() { elastic = true }
    fn quantised() { quantised = true }
    fn in_runs() { in_runs = true }
    fn busy() { busy = true }
    /// Uses fullmesh_v2, where each record has `blocks` blocks (1 to 3).
    fn blocks(blocks: u32) { blocks = blocks }
    fn weak() { memory = Memory::Weak }
    /// The schedule runs `units` times.
    fn units(units: u32) { units = Some(units) }
    fn partitions(dispatch: u32, combine: u32) { partitions = [dispatch, combine] }
    fn traffic(traffic: Traffic) { traffic = traffic }
    /// With counts ahead of the records.
    fn separate() { choices.flags = Flags::Separate }
    /// With experts that read rows in the window.
    fn in_place() { choices.receive = Receive::InPlace }
    /// Uses direct placement, where combine pulls results, with 1 or 2 areas.
    fn direct(areas: u32) { choices.receive = Receive::Direct { areas } }
    /// The same, and experts overwrite.
    fn overwrite(areas: u32) { choices.receive = Receive::Overwrite { areas } }
    /// With cores that send in this order.
    fn order(order: SendOrder) { choices.order = order }
    /// With words that have the numbers of calls, modulo `calls`, which cores count.
    fn numbered(calls: u32) { choices.checked = true, calls = calls }
    fn refined() { refined = true }
    fn defect(defect: Defect) { defect = defect }
}

impl Model {
    /// The protocol as it is: `schedule` any number of times on `ranks` ranks of one core each.
    pub fn new(ranks: u32, schedule: &str) -> Self {
        Self {
            product: Product::A3,
            ranks,
            server_ranks: ranks,
            cores: 1,
            experts: 1,
            tokens: 1,
            bs: &[],
            k: 1,
            pair_masks: false,
            shared_ranks: 0,
            tp: false,
            elastic: false,
            quantised: false,
            in_runs: false,
            busy: false,
            blocks: 0,
            schedule: schedule.to_owned(),
            units: None,
            partitions: [2, 2],
            memory: Memory::Strong,
            traffic: Traffic::All,
            choices: Choices { order: SendOrder::Plain, ..Choices::default() },
            defect: Defect::None,
            calls: 0,
            refined: false,
            states_max: 20_000_000,
            stop: || false,
        }
    }

    /// Whether an operator N + 2 occurs: one that uses a partition again which operator N used, of either kind. A2's
    /// operators share one sequence of partitions.
    pub fn reuses_partitions(&self) -> bool {
        let operators = |operator, units| {
            let of = |order: &Order| begun(&order.times(units as usize), operator).count() as u32;
            self.orders().iter().map(of).max().unwrap_or(0)
        };
        let [dispatch, combine] = self.partitions;
        self.units.is_none_or(|units| {
            let [dispatches, combines] =
                [Operator::Dispatch, Operator::Combine].map(|each| operators(each, units));
            match self.product {
                Product::A3 => dispatches > dispatch && combines > combine,
                Product::A2 | Product::Hierarchy => dispatches + combines > dispatch,
            }
        })
    }

    /// The orders of its ranks.
    ///
    /// # Panics
    /// The text is no [`Orders`], or of another number of ranks.
    pub fn orders(&self) -> Orders {
        let orders = Orders::parse(&self.schedule).unwrap_or_else(|why| panic!("{}: {why}", self.schedule));
        assert!(
            orders.is_one() || orders.len() == self.ranks as usize,
            "{}: {} ranks",
            self.schedule,
            self.ranks
        );
        orders
    }

    /// What a search of this model is about, as cells of a table: protocol, ranks and cores, operators, memory, traffic, whether
    /// an operator N + 2 occurs, and what is broken.
    pub fn cells(&self) -> String {
        let protocol = match (self.product, self.choices.flags, self.choices.receive) {
            (Product::A2, ..) => "A2 full mesh".to_owned(),
            (Product::Hierarchy, ..) => {
                let stage = if self.choices.stage == Stage::Two { " stage 2" } else { "" };
                format!("A2 hierarchy{stage}, servers of {}", self.server_ranks)
            }
            _ if self.tp => "A3 TP = 2".to_owned(),
            _ if self.blocks > 0 => format!("A3 fullmesh_v2, {} a record", self.blocks),
            (_, Flags::Separate, _) => "A3 separate flags".to_owned(),
            (.., Receive::InPlace) => "A3 rows in place".to_owned(),
            (.., Receive::Direct { areas }) => format!("A3 direct, areas: {areas}"),
            (.., Receive::Overwrite { areas }) => format!("A3 experts overwrite, areas: {areas}"),
            _ => "A3 joint flags".to_owned(),
        };
        let [dispatch, combine] = self.partitions;
        let partitions = if [dispatch, combine] == [2, 2] {
            String::new()
        } else {
            format!(", partitions {dispatch}, {combine}")
        };
        let (wide, runs) = (self.tokens * self.k * self.experts > 1, self.in_runs);
        let shared = format!(", shared experts on {}", self.shared_ranks);
        let bs = format!(", bs {:?}", self.bs);
        let size = [
            (wide, ", several pairs"),
            (!self.bs.is_empty(), &bs),
            (self.pair_masks, ", masks of pairs"),
            (self.shared_ranks > 0, &shared),
            (self.elastic, ", one rank gone"),
            (self.refined, ", against the theorem's model"),
            (self.calls > 0, ", calls numbered"),
            (self.quantised, ", int8"),
            (runs, ", several effects a step"),
            (self.busy, ", memory that is busy at any effect"),
        ];
        let size: String = size.iter().filter(|(is, _)| *is).map(|(_, text)| *text).collect();
        let times = self.units.map_or("for any number of rounds".to_owned(), |units| format!("x {units}"));
        let memory = match self.memory {
            Memory::Strong => "strong",
            Memory::WeakExplicit => "weak, every landing a move",
            Memory::Weak => "weak",
        };
        // A bar would end the cell.
        let (traffic, orders) = (self.traffic.name(), self.schedule.replace('|', " and "));
        let reuse = if self.reuses_partitions() { "yes" } else { "no" };
        format!(
            "{protocol}{partitions} | {} x {} | {orders} {times}{size} | {memory} | {traffic} | {reuse} | {:?}",
            self.ranks, self.cores, self.defect
        )
    }

    /// Ranks of a TP domain.
    pub(super) const fn tp_ranks(&self) -> u32 {
        if self.tp { 2 } else { 1 }
    }

    /// Tokens of a rank.
    pub(super) fn tokens_of(&self, rank: u32) -> u32 {
        self.bs.get((rank / self.tp_ranks()) as usize).copied().unwrap_or(self.tokens)
    }

    /// How many traffic matrices there are if each rank sends to any expert or to none.
    pub fn traffic_max(&self) -> usize {
        let experts = (self.ranks / self.tp_ranks() - self.shared_ranks) * self.experts;
        let masks =
            |tokens| if self.pair_masks { (1_u32 << (tokens * self.k)) - 1 } else { u32::from(tokens > 0) };
        (0..self.ranks).map(|rank| (experts * masks(self.tokens_of(rank)) + 1) as usize).product()
    }

    /// The shape that the machines see.
    ///
    /// # Panics
    /// If there are more ranks or cores than a model can have.
    pub fn shape(&self) -> Shape {
        self.domain().0
    }

    /// That shape, and who is left of an elastic domain.
    pub(super) fn domain(&self) -> (Shape, Option<Elastic>) {
        let gone = u32::from(self.elastic);
        let ranks = self.ranks / self.tp_ranks() + gone;
        let bs: Vec<_> = self.bs.iter().copied().map(i64::from).collect();
        let config = Config {
            ep_world_size: ranks.into(),
            tp_world_size: self.tp_ranks().into(),
            moe_expert_num: ((ranks - self.shared_ranks) * self.experts).into(),
            shared_expert_num: i64::from(self.shared_ranks > 0),
            shared_expert_rank_num: self.shared_ranks.into(),
            k: self.k.into(),
            // Of 210 elements the data fill the first block, and the triple begins a second; of 450 a third.
            // On A2 a combine row covers the place of the flag behind none.
            h: match (self.product, self.blocks) {
                (Product::A2, _) => 24,
                (Product::Hierarchy, _) => 8,
                (Product::A3, 0 | 1) => 1,
                (Product::A3, 2) => 210,
                (Product::A3, _) => 450,
            },
            comm_alg: match (self.product, self.blocks) {
                (Product::Hierarchy, _) => Protocol::Hierarchy,
                (Product::A2, _) => Protocol::Fullmesh,
                (Product::A3, 0) => Protocol::FullmeshV1,
                (Product::A3, _) => Protocol::FullmeshV2,
            },
            server_ranks: if self.product == Product::Hierarchy { self.server_ranks.into() } else { 8 },
            bs: if bs.is_empty() {
                BatchSizes::Uniform(self.tokens.into())
            } else {
                BatchSizes::PerRank(&bs)
            },
            global_bs: if bs.is_empty() { 0 } else { (self.tokens * ranks).into() },
            quant_mode: if self.quantised { 2 } else { 0 },
            hccl_buffsize_mb: match self.product {
                Product::A3 => 1,
                Product::A2 => 8,
                Product::Hierarchy => 105,
            },
            aiv_num: self.cores.into(),
            ..Config::default()
        };
        let whole = match Shape::new(&config, Limits::None) {
            Ok(shape) => shape,
            Err(violations) => panic!("a model of {} ranks: {violations:?}", self.ranks),
        };
        if !self.elastic {
            return (whole, None);
        }
        let (gone, last) = (self.ranks as i32 / 2, self.ranks as i32);
        let left: Vec<i32> = (0..=last).rev().filter(|&rank| rank != gone).collect();
        let new = |rank| left.iter().position(|&physical| physical == rank).map_or(-1, |new| new as i32);
        let experts = (self.ranks - self.shared_ranks) * self.experts;
        let head = [1, last, self.shared_ranks as i32, experts as i32];
        let info = [&head[..], &(0..=last).map(new).collect::<Vec<_>>(), &left, &[-1]].concat();
        let left = Elastic::check(&whole, &info, &mut |violation| panic!("{violation:?}"));
        (left.as_ref().map_or(whole.clone(), |left| whole.survivors(left)), left)
    }
}
