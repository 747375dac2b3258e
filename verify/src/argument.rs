//! The argument by gates, of orders of operators and halves: which partition may be used again, and who waits for whom.
//!
//! Rank A writes into a partition of rank B for operator *m*, and B has used it last in operator *m - P* of the same kind. Nothing of
//! B is lost if there is a **gate**, an operator *j* that waits for all ranks, such that
//!
//! ```text
//! B ends m - P  ->  B begins j  ->  (the flag of B)  ->  A ends j  ->  A begins m
//! ```
//!
//! A dispatch is a gate; on A2 every operator is. With halves an operator begins with its sending half and ends with its receiving
//! half. This holds for every two ranks, so orders may differ from rank to rank, as long as each operator has one number.
//! [`Gates`](veriep_core::protocol::Gates) asks a rank the same of its own order.
//!
//! It is no search: it says nothing of a machine. `tests/explorer/halves.rs` holds it against the searches.

use crate::orders::{Orders, spread};
use core::fmt;
use veriep_core::protocol::{Flags, Operator, Receive};
use veriep_core::sim::order::{Order, Planned};

/// What of a protocol decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether both operators share the partitions, and both are gates (A2).
    pub shared: bool,
    /// Whether a rank that combines sends only when all is received (A2's hierarchy).
    pub relays: bool,
    pub receive: Receive,
    pub flags: Flags,
}

impl Rules {
    /// A3, with joint flags.
    pub const fn a3(receive: Receive) -> Self {
        Self { shared: false, relays: false, receive, flags: Flags::Joint }
    }

    /// A2's full mesh or hierarchy.
    pub const fn a2(relays: bool) -> Self {
        Self { shared: true, relays, receive: Receive::Copy, flags: Flags::Joint }
    }

    /// What has partitions of its own.
    pub fn regions(&self) -> Vec<Region> {
        match (self.shared, self.receive.is_direct()) {
            (true, _) => vec![Region::Halves],
            (false, true) => vec![Region::Dispatch, Region::Combine, Region::Areas],
            (false, false) => vec![Region::Dispatch, Region::Combine],
        }
    }
}

/// What operators use again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Dispatch's partitions.
    Dispatch,
    /// Combine's.
    Combine,
    /// Both operators' (A2).
    Halves,
    /// The areas of rows and results of direct placement.
    Areas,
}

impl Region {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dispatch => "dispatch",
            Self::Combine => "combine",
            Self::Halves => "both operators",
            Self::Areas => "areas",
        }
    }
}

/// Something that may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// No gate is between two uses of a partition.
    NoGate { region: Region, writer: usize, owner: usize, operator: Planned, before: Planned },
    /// A rank never takes an operator that others take, nor reads what they send it.
    Missing { rank: usize, operator: Planned },
    /// A rank begins a dispatch while its rows of an earlier one are in use.
    RowsInUse { rank: usize, operator: Planned, before: Planned },
    /// A rank of A2 begins an operator before it has ended the one before.
    NotAlone { rank: usize, operator: Planned, before: Planned },
    /// A rank begins a dispatch with direct placement, which clears words of the one before, before it has received that one.
    NotReceived { rank: usize, operator: Planned, before: Planned },
    /// The n-th operators of two ranks are of different batches.
    Mixed { ranks: [usize; 2], operators: [Planned; 2] },
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoGate { region, writer, owner, operator, before } => write!(
                f,
                "no gate is between {before} of rank {owner} and {operator} of rank {writer}, which use one partition of {}",
                region.name()
            ),
            Self::Missing { rank, operator } => {
                write!(f, "rank {rank} never takes {operator}, whose partition others use again")
            }
            Self::RowsInUse { rank, operator, before } => {
                write!(f, "rank {rank} begins {operator} before it has ended {before}, whose rows lie there")
            }
            Self::NotAlone { rank, operator, before } => {
                write!(
                    f,
                    "rank {rank} begins {operator} before it has ended {before}: on A2 one must end before the next begins"
                )
            }
            Self::NotReceived { rank, operator, before } => {
                write!(
                    f,
                    "rank {rank} begins {operator}, which clears the words of {before}, before it has ended that"
                )
            }
            Self::Mixed { ranks: [a, b], operators: [of_a, of_b] } => {
                write!(f, "{of_a} of rank {a} and {of_b} of rank {b} have one number, and use one partition")
            }
        }
    }
}

/// How many partitions a region needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    pub region: Region,
    /// The least number that is safe; none if no number is.
    pub partitions: Option<u32>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argued {
    /// The first thing that may be lost with the partitions that there are; none if the orders are safe.
    pub gap: Option<Gap>,
    /// By region.
    pub needs: Vec<Need>,
    /// Who waits for whom in the end, if all ranks send to all; empty if all come to an end.
    pub waits: Vec<Waits>,
}

/// A rank that goes no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    pub rank: usize,
    /// In this part.
    pub at: Planned,
    /// For these ranks.
    pub on: Vec<usize>,
    /// Whether these have taken their whole orders.
    pub is_late: bool,
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.on == [self.rank] {
            let what = if self.at.begins() { "dispatch" } else { "sending half" };
            return write!(f, "rank {} waits in {} for its own {what}", self.rank, self.at);
        }
        let on: Vec<_> = self.on.iter().map(usize::to_string).collect();
        let (plural, on) = (if on.len() == 1 { "" } else { "s" }, on.join(", "));
        write!(f, "rank {} waits in {} for rank{plural} {on}", self.rank, self.at)?;
        f.write_str(match (self.is_late, self.on.len()) {
            (false, _) => "",
            (true, 1) => ", which has ended its order",
            (true, _) => ", which have ended their orders",
        })
    }
}

/// What a region has: so many partitions or areas, of dispatch and of combine; A2's are the first number.
pub type Partitions = [u32; 2];

/// Judges the orders of so many ranks: `rounds` times round, or without end.
pub fn argue(
    rules: Rules,
    orders: &Orders,
    ranks: usize,
    partitions: Partitions,
    rounds: Option<u32>,
) -> Argued {
    let unrolled = Unrolled::new(rules, orders, ranks, rounds);
    let [dispatch, combine] = partitions;
    let has = |region| match region {
        // The flags of direct placement have the machines' two.
        Region::Dispatch if rules.receive.is_direct() => 2,
        Region::Combine => combine,
        Region::Areas => rules.receive.areas(),
        Region::Dispatch | Region::Halves => dispatch,
    };
    let regions = rules.regions();
    let gap = unrolled.fixed_gap();
    let gap = gap.or_else(|| regions.iter().find_map(|&region| unrolled.gap(region, has(region))));
    let need = |&region: &Region| {
        let enough = |number: &u32| unrolled.gap(region, *number).is_none();
        let partitions = (1..=unrolled.cap).find(enough).filter(|_| unrolled.fixed_gap().is_none());
        Need { region, partitions }
    };
    Argued { gap, needs: regions.iter().map(need).collect(), waits: unrolled.waits() }
}

/// When a rank takes an operator: the places of its first and last part.
#[derive(Clone, Copy, Debug)]
struct Span {
    planned: Planned,
    begins: usize,
    /// Never, if it is not received.
    ends: usize,
}

/// A rank's order, taken so often that every pair of uses that may lie near each other occurs.
struct Taken {
    parts: Vec<Planned>,
    /// Of each kind, or of both in the first, in the order in which they begin.
    spans: [Vec<Span>; 2],
}

struct Unrolled {
    rules: Rules,
    /// By rank.
    ranks: Vec<Taken>,
    /// More partitions than this help no order.
    cap: u32,
}

impl Unrolled {
    fn new(rules: Rules, orders: &Orders, ranks: usize, rounds: Option<u32>) -> Self {
        let apart =
            orders.iter().map(|order| (spread(order) + 1) * order.batches().max(1)).max().unwrap_or(1);
        let cap = 4 * apart + 2;
        let times = |order: &Order| match rounds {
            Some(rounds) => (rounds as usize).min(2 * cap),
            None => (2 * cap).div_ceil(order.batches().max(1)) + spread(order),
        };
        let of = |rank| {
            let parts = orders.of(rank).times(times(orders.of(rank)));
            let spans = |operators: &[Operator]| spans(&parts, operators);
            let spans = if rules.shared {
                [spans(&[Operator::Dispatch, Operator::Combine]), Vec::new()]
            } else {
                [spans(&[Operator::Dispatch]), spans(&[Operator::Combine])]
            };
            Taken { parts, spans }
        };
        Self { rules, ranks: (0..ranks).map(of).collect(), cap: cap as u32 }
    }

    /// What no number of partitions cures.
    fn fixed_gap(&self) -> Option<Gap> {
        let first = self.ranks.first()?;
        for (rank, taken) in self.ranks.iter().enumerate() {
            for (own, others) in taken.spans.iter().zip(&first.spans) {
                let mixed = own.iter().zip(others).find(|(a, b)| {
                    (a.planned.operator, a.planned.round) != (b.planned.operator, b.planned.round)
                });
                if let Some((a, b)) = mixed {
                    return Some(Gap::Mixed { ranks: [0, rank], operators: [b.planned, a.planned] });
                }
            }
            let two = taken.spans[0].array_windows().find(|[before, next]| next.begins < before.ends);
            let Some([before, next]) = two else { continue };
            let (operator, before) = (whole(next.planned), whole(before.planned));
            if self.rules.shared {
                return Some(Gap::NotAlone { rank, operator, before });
            }
            if self.rules.receive.is_direct() {
                return Some(Gap::NotReceived { rank, operator, before });
            }
        }
        None
    }

    /// The first gap of a region that has so many partitions.
    fn gap(&self, region: Region, partitions: u32) -> Option<Gap> {
        let partitions = partitions as usize;
        let rows = match region {
            // A rank writes over the rows that it sent, and awaits their results.
            Region::Dispatch => self.rules.receive.keeps_rows() && !self.rules.receive.is_direct(),
            Region::Areas => true,
            Region::Combine | Region::Halves => false,
        };
        if rows && let Some(gap) = (0..self.ranks.len()).find_map(|rank| self.rows_in_use(rank, partitions)) {
            return Some(gap);
        }
        let kind = match region {
            Region::Areas => return None,
            Region::Combine => 1,
            Region::Dispatch | Region::Halves => 0,
        };
        let most = self.ranks.iter().map(|taken| taken.spans[kind].len()).max().unwrap_or(0);
        let all = || 0..self.ranks.len();
        (partitions..most).find_map(|m| {
            all().find_map(|writer| {
                all().find_map(|owner| self.gap_between(region, kind, [writer, owner], [m, m - partitions]))
            })
        })
    }

    /// Whether rank `writer` may write for operator `m` where rank `owner` was in operator `last`.
    fn gap_between(
        &self,
        region: Region,
        kind: usize,
        ranks: [usize; 2],
        [m, last]: [usize; 2],
    ) -> Option<Gap> {
        let [writer, owner] = ranks.map(|rank| &self.ranks[rank]);
        let next = writer.spans[kind].get(m)?;
        let Some(former) = owner.spans[kind].get(last) else {
            let operator = writer.spans[kind][last].planned;
            return Some(Gap::Missing { rank: ranks[1], operator: whole(operator) });
        };
        // Of its own a rank knows without a flag.
        let knows = ranks[0] == ranks[1] && former.ends < next.begins;
        // After the newest gate that the writer has ended the others are no better.
        let gates = || owner.spans[0].iter().zip(&writer.spans[0]);
        let is_gate = |(of_owner, of_writer): (&Span, &Span)| {
            former.ends < of_owner.begins && of_writer.ends < next.begins
        };
        let [operator, before] = [next, former].map(|span| whole(span.planned));
        (!knows && !gates().any(is_gate)).then_some(Gap::NoGate {
            region,
            writer: ranks[0],
            owner: ranks[1],
            operator,
            before,
        })
    }

    /// The first dispatch of a rank that begins before the combine of the rows that lay there has ended.
    fn rows_in_use(&self, rank: usize, areas: usize) -> Option<Gap> {
        let Taken { spans: [dispatches, combines], .. } = &self.ranks[rank];
        dispatches.iter().zip(dispatches.get(areas..)?).find_map(|(former, next)| {
            let combine = combines.iter().find(|combine| combine.planned.round == former.planned.round);
            let is_over = combine.is_some_and(|combine| combine.ends < next.begins);
            let before = Planned::whole(Operator::Combine, former.planned.round);
            (!is_over).then_some(Gap::RowsInUse { rank, operator: whole(next.planned), before })
        })
    }

    /// Who waits for whom when none goes further, if all ranks send to all. With less traffic ranks wait for fewer.
    fn waits(&self) -> Vec<Waits> {
        let mut at = vec![0; self.ranks.len()];
        loop {
            let waits: Vec<_> = (0..at.len()).filter_map(|rank| self.wait_of(rank, &at)).collect();
            let can = |rank: usize| {
                at[rank] < self.ranks[rank].parts.len() && waits.iter().all(|wait| wait.rank != rank)
            };
            let able: Vec<_> = (0..at.len()).filter(|&rank| can(rank)).collect();
            if able.is_empty() {
                return waits;
            }
            able.into_iter().for_each(|rank| at[rank] += 1);
        }
    }

    /// What keeps a rank at the part that it has come to.
    fn wait_of(&self, rank: usize, at: &[usize]) -> Option<Waits> {
        let part = *self.ranks[rank].parts.get(at[rank])?;
        let Planned { operator, round, .. } = part;
        let taken = &self.ranks[rank].parts[..at[rank]];
        let has = |which: fn(&Planned) -> bool, operator| {
            taken.iter().any(|other| (other.operator, other.round) == (operator, round) && which(other))
        };
        let lacks_dispatch =
            operator == Operator::Combine && part.begins() && !has(Planned::ends, Operator::Dispatch);
        if lacks_dispatch || !part.begins() && !has(Planned::begins, operator) {
            return Some(Waits { rank, at: part, on: vec![rank], is_late: false });
        }
        let hears = part.ends() || self.hears_before_it_has_sent(operator);
        let others = (0..at.len()).filter(|&other| hears && other != rank);
        let on: Vec<_> = others.filter(|&other| !self.has_begun(other, at[other], operator, round)).collect();
        let is_late = on.iter().all(|&other| at[other] == self.ranks[other].parts.len());
        (!on.is_empty()).then_some(Waits { rank, at: part, on, is_late })
    }

    /// Whether a sending half of the operator waits for what others send when they begin it.
    fn hears_before_it_has_sent(&self, operator: Operator) -> bool {
        let by_counts = self.rules.receive.is_direct() || self.rules.flags == Flags::Separate;
        self.rules.relays || operator == Operator::Dispatch && by_counts
    }

    /// Whether a rank that is at part number `at` has begun an operator. Then others get what they await of it some time: a sending half
    /// awaits no more of others than that they have begun it, and so does who waits for this rank.
    fn has_begun(&self, rank: usize, at: usize, operator: Operator, round: usize) -> bool {
        let begun = self.ranks[rank].parts.iter().take(at + 1);
        begun.filter(|other| other.begins()).any(|other| (other.operator, other.round) == (operator, round))
    }
}

/// The same, of the whole operator.
const fn whole(planned: Planned) -> Planned {
    Planned::whole(planned.operator, planned.round)
}

/// When the operators of some kinds begin and end.
fn spans(parts: &[Planned], operators: &[Operator]) -> Vec<Span> {
    let begun =
        parts.iter().enumerate().filter(|(_, part)| operators.contains(&part.operator) && part.begins());
    let span = |(begins, part): (usize, &Planned)| {
        let is_end =
            |other: &Planned| (other.operator, other.round) == (part.operator, part.round) && other.ends();
        let ends = parts.iter().position(is_end).unwrap_or(usize::MAX);
        Span { planned: *part, begins, ends }
    };
    begun.map(span).collect()
}
