//! The slots of A2's hierarchy.
//!
//! | flag | carries | used before by | its sender has taken, in the same operator |
//! |---|---|---|---|
//! | entered, by near rank | nothing | no rank: it counts on | nothing |
//! | rows done, by near rank and core | nothing | no rank | entered of all near ranks |
//! | of a record, by server and number | the record | its partition | nothing |
//! | end flag, by server | nothing | its partition | in combine rows done of all, and the flags of all rows that the stream sums |
//! | count, by local expert and source | nothing | its partition | entered of all, and the end flag of the source, if that is far |
//! | the same word again, for the rows | the rows | every operator | entered of all |
//! | of a returned row, by its place in the near area | the row | every operator | entered of all |
//!
//! A record's flag is what tells that it is complete: the front flag of the next one or the end flag, in stage 2 the end flag.
//! Rows leave before the end flag has come and are in the near area, which has no partitions. No flag is cleared. Rows done are behind a
//! quiet of their core alone, which the model, where the cores of a rank are one, does not know: it has what follows from it.

use super::trace::{Expected, Reuse};
use veriep_core::layout::relay::pairs_max;
use veriep_core::placement::Home;
use veriep_core::plan::relay::{across, inside};
use veriep_core::protocol::Operator;
use veriep_core::shape::Shape;
use veriep_core::units::RankId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Entered,
    RowsDone,
    Record,
    End,
    Count,
    /// Rows of a dispatch.
    Rows,
    /// Rows of a combine.
    Returned,
}

impl Class {
    const ALL: [Self; 7] =
        [Self::Entered, Self::RowsDone, Self::Record, Self::End, Self::Count, Self::Rows, Self::Returned];

    /// Slots of the class on each rank.
    fn len(self, shape: &Shape) -> u32 {
        let records = shape.servers() * shape.bs_max();
        match self {
            Self::Entered => shape.server_ranks(),
            Self::RowsDone => shape.server_ranks() * shape.aiv_num(),
            Self::Record => records,
            Self::End => shape.servers(),
            Self::Count | Self::Rows => shape.local_expert_num() * shape.ep_world_size(),
            Self::Returned => records * pairs_max(shape),
        }
    }

    /// All of them, as bits.
    fn all(self, shape: &Shape) -> u64 {
        (0..self.len(shape)).fold(0, |all, number| all | 1 << slot(shape, self, number))
    }
}

/// The slot with that number in its class.
pub fn slot(shape: &Shape, class: Class, number: u32) -> usize {
    let before = Class::ALL.iter().take_while(|&&other| other != class).map(|other| other.len(shape));
    (before.sum::<u32>() + number) as usize
}

/// The rows that a relay gets back: the number of the slot, the server of their token, and who returns them.
fn returned(shape: &Shape, relay: RankId, ids: &[&[i32]]) -> Vec<(u32, u32, RankId)> {
    let (own, _) = shape.server_of(relay);
    let of = |server: u32| {
        let source = shape.relay(relay, server);
        let here = inside(shape, ids[source.index()]).filter(move |&(_, on, _)| on == own);
        here.map(move |(token, _, row)| {
            let token = server * shape.bs_max() + token.0;
            (token * pairs_max(shape) + row.part.position, server, row.home.rank)
        })
    };
    (0..shape.servers()).flat_map(of).collect()
}

/// What `rank` expects in an operator, by slot; `ids` are the expert ids of all tokens, by rank.
pub fn expected(shape: &Shape, kind: Operator, rank: RankId, ids: &[&[i32]]) -> Vec<Option<Expected>> {
    let (own, _) = shape.server_of(rank);
    let entered = Class::Entered.all(shape);
    let from = |source: RankId| Expected { source: source.index(), ..Expected::default() };
    let records = |from: RankId, to: u32| {
        across(shape, from, ids[from.index()]).filter(|crossing| crossing.server == to).count() as u32
    };
    let mut slots = vec![None; slot(shape, Class::Returned, Class::Returned.len(shape))];
    let mut set = |class, number, flag| slots[slot(shape, class, number)] = Some(flag);
    for near in 0..shape.server_ranks() {
        let flag = Expected { reuse: Reuse::Never, ..from(shape.rank_on(own, near)) };
        set(Class::Entered, near, flag);
        for number in (near * shape.aiv_num()..).take(shape.aiv_num() as usize) {
            if kind == Operator::Combine {
                set(Class::RowsDone, number, Expected { behind: entered, ..flag });
            }
        }
    }
    for server in (0..shape.servers()).filter(|&server| server != own) {
        let namesake = shape.relay(rank, server);
        let (records, behind) = match kind {
            Operator::Dispatch => (records(namesake, own), 0),
            Operator::Combine => {
                let summed = returned(shape, namesake, ids).into_iter().filter(|row| row.1 == own);
                let done = Class::RowsDone.all(shape);
                let behind = summed.fold(done, |all, row| all | 1 << slot(shape, Class::Returned, row.0));
                (records(rank, server), behind)
            }
        };
        for number in (server * shape.bs_max()..).take(records as usize) {
            set(Class::Record, number, Expected { carries: true, ..from(namesake) });
        }
        set(Class::End, server, Expected { behind, ..from(namesake) });
    }
    let near = |source, carries| Expected { carries, behind: entered, reuse: Reuse::Every, ..from(source) };
    if kind == Operator::Combine {
        for (number, _, source) in returned(shape, rank, ids) {
            set(Class::Returned, number, near(source, true));
        }
        return slots;
    }
    for number in 0..Class::Count.len(shape) {
        let (local_expert, source) = (number / shape.ep_world_size(), RankId(number % shape.ep_world_size()));
        let home = Home { rank, local_expert };
        let carries = inside(shape, ids[source.index()]).any(|(_, _, row)| row.home == home);
        let (server, _) = shape.server_of(source);
        let end = if server == own { 0 } else { 1 << slot(shape, Class::End, server) };
        let relay = shape.relay(source, own);
        set(Class::Count, number, Expected { behind: entered | end, ..from(relay) });
        set(Class::Rows, number, near(relay, carries));
    }
    slots
}
