//! The data that each flag word covers, for generators of kernels; [maps](crate::layout::affine) give the places of both.

use super::{barrier, flag};
use crate::layout::affine::{Mode, Named};
use crate::layout::relay;
use crate::plan::counts::ShareSum;
use crate::shape::{Protocol, Shape};
use crate::units::RankId;

/// The content of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A flag and a number.
    Count,
    /// A flag alone.
    Arrived,
    /// The flag of A2's windows.
    WindowFlag,
    /// Epoch modulo 4 and two sums.
    Barrier,
    /// An epoch, which is the number of the operator, and a number.
    Mark,
    /// A number.
    Number,
}

impl Value {
    /// Returns the variables of the word, in the order of [`word`](Self::word).
    #[must_use]
    pub const fn variables(self) -> &'static [&'static str] {
        match self {
            Self::Count => &["count"],
            Self::Arrived | Self::WindowFlag => &[],
            Self::Barrier => &["epoch", "rows", "of_last_expert"],
            Self::Mark => &["epoch", "count"],
            Self::Number => &["number"],
        }
    }

    /// Returns the bit at which each variable begins, in their order.
    pub fn shifts(self) -> impl Iterator<Item = u32> {
        let constant = self.word([0; 3]);
        let with = move |n| self.word(core::array::from_fn(|i| u32::from(i == n)));
        (0..self.variables().len()).map(move |n| (with(n) ^ constant).trailing_zeros())
    }

    /// Returns the word with these variables.
    #[must_use]
    pub fn word(self, variables: [u32; 3]) -> u64 {
        let [first, second, third] = variables;
        match self {
            Self::Count => flag::status(first),
            Self::Arrived => flag::ARRIVED,
            Self::WindowFlag => flag::WINDOW_FLAG.into(),
            Self::Barrier => barrier::word(first, ShareSum { rows: second, of_last_expert: third }),
            Self::Mark => relay::mark(first.into(), second),
            Self::Number => first.into(),
        }
    }
}

named! {
    /// The mechanism by which data has landed when its word is seen.
    Order {
        /// It covers no data but itself.
        Alone = "alone",
        /// It follows the puts of its core to the same rank.
        Puts = "puts",
        /// Every core of its rank was quiet, and they have met at the core barrier.
        Barrier = "barrier",
        /// Its core was quiet.
        Quiet = "quiet",
        /// Its operator began after all cores of its rank had ended the previous work.
        Join = "join",
        /// It is the last word of a task.
        Task = "task",
        /// It is a message: all earlier messages of its core to that rank have landed; it does not cover its own message.
        Message = "message",
    }
}

/// A word and the data that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The map of the word's place.
    pub word: Named,
    /// The field of that map's slot; empty if the word is the whole slot.
    pub field: &'static str,
    /// The maps of the data that it covers.
    pub data: &'static [Named],
    /// Its content.
    pub value: Value,
    /// Its writer: `source`, `peer` (of the TP domain, of a window), `near`, `core`.
    pub writer: &'static str,
    /// The core that resets it to 0: `owner`, or `nobody` if it only grows or is overwritten.
    pub clearer: &'static str,
    /// The mechanism by which the data has landed.
    pub order: Order,
    /// Its readers: `group`, `server`, `rank`, `core`.
    pub scope: &'static str,
}

const fn event(
    word: Named,
    field: &'static str,
    data: &'static [Named],
    value: Value,
    order: Order,
) -> Event {
    Event { word, field, data, value, writer: "source", clearer: "owner", order, scope: "group" }
}

const fn own(word: Named, field: &'static str, data: &'static [Named], value: Value, order: Order) -> Event {
    let event = event(word, field, data, value, order);
    Event { writer: "core", clearer: "nobody", scope: "rank", ..event }
}

const fn private(word: Named) -> Event {
    Event { scope: "core", ..own(word, "", &[], Value::Number, Order::Alone) }
}

const fn near(event: Event) -> Event {
    Event { writer: "near", clearer: "nobody", scope: "server", ..event }
}

const fn grows(event: Event) -> Event {
    Event { clearer: "nobody", ..event }
}

const fn of_peer(event: Event) -> Event {
    Event { writer: "peer", ..event }
}

const RECORDS: &[Named] = &[Named::DispatchRecords];
const SENT: &[Named] = &[Named::Tasks, Named::WindowsOut, Named::StreamsOut];
const STREAMED: &[Named] = &[Named::TokenRecords, Named::SumRecords];

const EVENTS: &[Event] = &[
    event(Named::DispatchStatus, "status", RECORDS, Value::Count, Order::Barrier),
    event(Named::DispatchStatus, "token flag", RECORDS, Value::Arrived, Order::Barrier),
    event(Named::BlockFlags, "word", &[Named::Blocks], Value::Arrived, Order::Puts),
    event(Named::CombineStatus, "word", &[Named::CombineRows], Value::Arrived, Order::Puts),
    event(Named::DirectRecords, "counts told", &[Named::CountTable], Value::Arrived, Order::Puts),
    event(Named::DirectRecords, "grants told", &[Named::GrantTable], Value::Arrived, Order::Puts),
    event(Named::DirectRecords, "rows landed", &[Named::Rows, Named::Infos], Value::Arrived, Order::Barrier),
    event(
        Named::DirectRecords,
        "rows landed",
        &[Named::OverwrittenRows, Named::Infos],
        Value::Arrived,
        Order::Barrier,
    ),
    event(Named::ResultsReady, "word", &[Named::Results], Value::Arrived, Order::Join),
    event(Named::ResultsReady, "word", &[Named::OverwrittenRows], Value::Arrived, Order::Join),
    of_peer(event(Named::TpDispatchSlots, "rows", &[Named::TpRecords], Value::Count, Order::Puts)),
    of_peer(event(Named::TpCombineSlots, "rows", &[Named::TpResults], Value::Count, Order::Puts)),
    of_peer(event(Named::WindowsIn, "flag 1", &[Named::WindowCounts], Value::WindowFlag, Order::Task)),
    of_peer(event(Named::DispatchFlags, "", &[Named::WindowRecords], Value::WindowFlag, Order::Task)),
    of_peer(event(Named::CombineFlags, "", &[Named::WindowRows], Value::WindowFlag, Order::Task)),
    own(Named::CoreWords, "even epochs", &[Named::CoreSums], Value::Barrier, Order::Puts),
    own(Named::CoreWords, "odd epochs", &[Named::CoreSums], Value::Barrier, Order::Puts),
    own(Named::Doorbell, "", SENT, Value::Number, Order::Barrier),
    private(Named::DispatchSelectors),
    private(Named::CombineSelectors),
    private(Named::TpDispatchSelectors),
    private(Named::TpCombineSelectors),
    private(Named::BufferChosen),
    private(Named::Epochs),
    near(event(Named::Entered, "word", &[], Value::Number, Order::Join)),
    near(event(Named::RowsDone, "word", &[Named::ReturnedSlots], Value::Number, Order::Quiet)),
    near(event(Named::Counts, "word", &[Named::NearSlots], Value::Mark, Order::Puts)),
    near(event(Named::ReturnedSlots, "flag", &[Named::ReturnedSlots], Value::Mark, Order::Puts)),
    grows(event(Named::EndFlags, "word", &[Named::RelayRecords], Value::Mark, Order::Message)),
    grows(event(Named::RelayRecords, "front flag", &[Named::RelayRecords], Value::Number, Order::Message)),
    grows(event(Named::StreamsIn, "end flag", STREAMED, Value::Mark, Order::Task)),
    // Counts alone: token flags or the flags of blocks cover the rows.
    event(Named::DispatchStatus, "status", &[], Value::Count, Order::Alone),
    event(Named::DispatchStatus, "status", &[], Value::Count, Order::Barrier),
];

/// Returns the words of a group of `shape`.
pub fn events(shape: &Shape, mode: Mode) -> impl Iterator<Item = Event> {
    let last = RankId(shape.ep_world_size().saturating_sub(1));
    let is_there = move |named: Named| named.map(shape, mode, last).is_some();
    let in_blocks = shape.protocol() == Protocol::FullmeshV2;
    EVENTS.iter().copied().filter(move |event| {
        let status = match (event.word, event.field, event.data, event.order) {
            (Named::DispatchStatus, "status", [], order) => {
                if in_blocks {
                    order == Order::Barrier
                } else {
                    mode.separate && order == Order::Alone
                }
            }
            (Named::DispatchStatus, "status", ..) => !in_blocks && !mode.separate,
            // Only the kind of rows that the mode has: separate or overwritten ones.
            (Named::DirectRecords | Named::ResultsReady, _, [first, ..], _) => is_there(*first),
            _ => true,
        };
        let field = || event.word.fields(shape, mode).any(|field| field.name == event.field);
        status && is_there(event.word) && (event.field.is_empty() || field())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Choices, Flags, Receive};
    use crate::shape::Config;
    use crate::testing::domain::{PAIR, shape};
    use alloc::vec::Vec;

    #[test]
    fn every_word_is_its_constant_and_its_variables_at_their_bits() {
        for value in
            [Value::Count, Value::Arrived, Value::WindowFlag, Value::Barrier, Value::Mark, Value::Number]
        {
            let terms = [2, 3, 1].into_iter().zip(value.shifts());
            let sum = terms.fold(value.word([0; 3]), |sum, (variable, shift)| sum | variable << shift);
            assert_eq!(value.word([2, 3, 1]), sum, "{value:?}");
        }
        assert_eq!((Value::Count.word([5, 0, 0]), Value::Mark.word([2, 3, 0])), (0x5_3F80_0000, 0x2_0003));
    }

    #[test]
    fn one_word_covers_records_with_any_flags() {
        let tells = |config: &Config<'_>, choices: Choices| {
            let all: Vec<_> = events(&shape(config), choices.mode()).collect();
            let records = all.iter().filter(|event| event.data.contains(&Named::DispatchRecords));
            let status =
                all.iter().filter(|event| (event.word, event.field) == (Named::DispatchStatus, "status"));
            (records.map(|event| event.field).collect::<Vec<_>>(), status.count())
        };
        let (plain, separate) =
            (Choices::default(), Choices { flags: Flags::Separate, ..Choices::default() });
        let config = PAIR.config();
        assert_eq!(tells(&config, plain), (alloc::vec!["status"], 1));
        assert_eq!(tells(&config, separate), (alloc::vec!["token flag"], 1));
        let blocks = Config { comm_alg: Protocol::FullmeshV2, ..config };
        assert_eq!(tells(&blocks, plain), (Vec::new(), 1));
        let direct = Choices { receive: Receive::Direct { areas: 1 }, ..plain };
        assert_eq!(tells(&config, direct), (Vec::new(), 0));
    }
}
