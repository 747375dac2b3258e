//! The orders of a group's ranks, as text: one for all of them, or one for each rank behind the one before and a `|`.

use veriep_core::protocol::Operator;
use veriep_core::sim::order::{Order, Planned};

/// The orders in which the ranks of a group take their operators and halves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orders {
    /// By rank; one if all ranks have the same.
    each: Vec<Order>,
    /// How many the text has.
    given: usize,
}

impl Orders {
    /// Reads them. A rank of several may have a combine before its dispatch: it waits for itself.
    ///
    /// # Errors
    /// What is wrong with a text as an [`Order`], with its rank if there are several.
    pub fn parse(text: &str) -> Result<Self, String> {
        let texts: Vec<&str> = text.split('|').map(str::trim).collect();
        if let [one] = texts[..] {
            return Ok(Self { each: vec![Order::parse(one)?], given: 1 });
        }
        let read = |(rank, text): (usize, &&str)| {
            Order::read(text).map_err(|why| format!("order {text:?} of rank {rank}: {why}"))
        };
        let mut each = texts.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        if each.iter().all(|order| *order == each[0]) {
            each.truncate(1);
            each[0].check()?;
        }
        Ok(Self { each, given: texts.len() })
    }

    /// Whether all ranks have one order.
    pub fn is_one(&self) -> bool {
        self.each.len() == 1
    }

    /// How many orders there are: one, or one for each rank.
    pub fn len(&self) -> usize {
        self.each.len()
    }

    /// How many orders the text has, also if they are alike.
    pub const fn given(&self) -> usize {
        self.given
    }

    /// Whether there is no order.
    pub fn is_empty(&self) -> bool {
        self.each.iter().all(|order| order.body().is_empty())
    }

    /// The order of a rank.
    pub fn of(&self, rank: usize) -> &Order {
        &self.each[if self.is_one() { 0 } else { rank }]
    }

    /// All orders.
    pub fn iter(&self) -> impl Iterator<Item = &Order> {
        self.each.iter()
    }

    /// Whether one of them is the body of a loop.
    pub fn has_loop(&self) -> bool {
        self.iter().any(Order::is_loop)
    }

    pub fn has_halves(&self) -> bool {
        self.iter().any(Order::has_halves)
    }

    /// Whether they can be repeated: each has as many of each part, and all begin as many batches.
    pub fn repeat(&self) -> bool {
        self.iter().all(|order| order.is_balanced() && order.batches() == self.each[0].batches())
    }

    /// Whether a rank comes to a part before what must precede it.
    pub fn has_self_wait(&self) -> bool {
        self.iter().any(|order| order.check().is_err())
    }

    /// Whether some rank begins an operator while another one of its own is open.
    pub fn overlaps(&self) -> bool {
        self.most_open() > 0
    }

    /// The most operators that a rank has sent and not received when it begins or goes on with another one.
    pub fn most_open(&self) -> usize {
        let of = |order: &Order| {
            let taken = settled(order);
            let mut open: Vec<(Operator, usize)> = Vec::new();
            let mut most = 0;
            for planned in &taken {
                let this = (planned.operator, planned.round);
                open.retain(|other| *other != this);
                most = most.max(open.len());
                if !planned.ends() {
                    open.push(this);
                }
            }
            most
        };
        self.iter().map(of).max().unwrap_or(0)
    }

    /// Whether the operators of each kind begin in the order of their batches.
    pub fn are_in_order(&self) -> bool {
        let of = |order: &Order| {
            let taken = settled(order);
            [Operator::Dispatch, Operator::Combine].iter().all(|&operator| {
                let rounds: Vec<_> = begun(&taken, operator).map(|planned| planned.round).collect();
                rounds.is_sorted()
            })
        };
        self.iter().all(of)
    }

    /// The most batches that are in flight at once: dispatched, and not combined.
    pub fn depth(&self) -> u32 {
        let of = |order: &Order| {
            let (mut now, mut most) = (0_u32, 0);
            for planned in settled(order) {
                match planned.operator {
                    Operator::Dispatch if planned.begins() => now += 1,
                    Operator::Combine if planned.ends() => now = now.saturating_sub(1),
                    _ => {}
                }
                most = most.max(now);
            }
            most
        };
        self.iter().map(of).max().unwrap_or(0)
    }
}

/// An order, taken so often that it goes on in the same way, or once if it cannot be repeated.
fn settled(order: &Order) -> Vec<Planned> {
    order.times(if order.is_balanced() { 2 + spread(order) } else { 1 })
}

/// How many times round a batch can be apart in an order.
pub(crate) fn spread(order: &Order) -> usize {
    let last = order.body().iter().map(|planned| planned.round + 1).max().unwrap_or(0);
    last.div_ceil(order.batches().max(1))
}

/// The parts with which operators of a kind begin.
pub(crate) fn begun(taken: &[Planned], operator: Operator) -> impl Iterator<Item = &Planned> {
    taken.iter().filter(move |planned| planned.operator == operator && planned.begins())
}
