//! Words that cover data: the columns of the [table](super::table) that say, for each word, who writes, reads and clears it, what
//! it covers, and why that has landed. The encoding of words is that of [`sync`](crate::sync::event).

use super::affine::{Mode, Named};
use super::field::{FieldName, When};
use super::quantity::Kind;
use crate::shape::Shape;
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

named! {
    /// The part that the writer of a word has.
    Party {
        /// A core of the rank whose data it covers.
        Source = "source",
        /// The other rank of the TP domain, or of a window.
        Peer = "peer",
        /// A rank of the same server.
        Near = "near",
        /// A core of the rank that has the word.
        Core = "core",
    }
}

named! {
    /// The core that resets a word to 0.
    Clearer {
        /// The one that waits for it.
        Owner = "owner",
        /// None: the word only grows, or is overwritten.
        NoCore = "nobody",
    }
}

named! {
    /// The readers of a word.
    Readers {
        /// Ranks of the group.
        Group = "group",
        /// Ranks of the server.
        Server = "server",
        /// Cores of the rank.
        Rank = "rank",
        /// The core that writes it.
        Core = "core",
    }
}

/// A word and the data that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The map of the word's place.
    pub word: Named,
    /// The field of that map's slot; `None` if the word is the whole slot.
    pub field: Option<FieldName>,
    /// The maps of the data that it covers.
    pub data: &'static [Named],
    /// Its content.
    pub value: Value,
    /// Its writer.
    pub writer: Party,
    /// Its clearer.
    pub clearer: Clearer,
    /// The mechanism by which the data has landed.
    pub order: Order,
    /// Its readers.
    pub readers: Readers,
    /// The groups that have it.
    when: When,
}

/// Declares words: place and content, the writer and the readers, who clears it, what it covers and why, and which groups have it if
/// not all that have the place.
macro_rules! events {
    ($($word:ident $(. $field:ident)?: $value:ident, $writer:ident -> $readers:ident, $clearer:ident,
       [$($data:ident),*] by $order:ident $(if $when:ident)?;)*) => {
        /// All words, in the order in which files have them.
        pub const EVENTS: &[Event] = &[$(Event {
            word: Named::$word,
            field: events!(@field $($field)?),
            data: &[$(Named::$data),*],
            value: Value::$value,
            writer: Party::$writer,
            clearer: Clearer::$clearer,
            order: Order::$order,
            readers: Readers::$readers,
            when: events!(@when $($when)?),
        }),*];
    };
    (@field) => { None };
    (@field $field:ident) => { Some(FieldName::$field) };
    (@when) => { When::Always };
    (@when $when:ident) => { When::$when };
}

events! {
    DispatchStatus.Status: Count, Source -> Group, Owner, [DispatchRecords] by Barrier if Together;
    DispatchStatus.TokenFlag: Arrived, Source -> Group, Owner, [DispatchRecords] by Barrier if Separate;
    BlockFlags.Word: Arrived, Source -> Group, Owner, [Blocks] by Puts;
    CombineStatus.Word: Arrived, Source -> Group, Owner, [CombineRows] by Puts;
    DirectRecords.CountsTold: Arrived, Source -> Group, Owner, [CountTable] by Puts;
    DirectRecords.GrantsTold: Arrived, Source -> Group, Owner, [GrantTable] by Puts;
    DirectRecords.RowsLanded: Arrived, Source -> Group, Owner, [Rows, Infos] by Barrier if Kept;
    DirectRecords.RowsLanded: Arrived, Source -> Group, Owner, [OverwrittenRows, Infos] by Barrier if Overwritten;
    ResultsReady.Word: Arrived, Source -> Group, Owner, [Results] by Join if Kept;
    ResultsReady.Word: Arrived, Source -> Group, Owner, [OverwrittenRows] by Join if Overwritten;
    TpDispatchSlots.Rows: Count, Peer -> Group, Owner, [TpRecords] by Puts;
    TpCombineSlots.Rows: Count, Peer -> Group, Owner, [TpResults] by Puts;
    WindowsIn.Flag1: WindowFlag, Peer -> Group, Owner, [WindowCounts] by Task;
    DispatchFlags: WindowFlag, Peer -> Group, Owner, [WindowRecords] by Task;
    CombineFlags: WindowFlag, Peer -> Group, Owner, [WindowRows] by Task;
    CoreWords.EvenEpochs: Barrier, Core -> Rank, NoCore, [CoreSums] by Puts;
    CoreWords.OddEpochs: Barrier, Core -> Rank, NoCore, [CoreSums] by Puts;
    Doorbell: Number, Core -> Rank, NoCore, [Tasks, WindowsOut, StreamsOut] by Barrier;
    DispatchSelectors: Number, Core -> Core, NoCore, [] by Alone;
    CombineSelectors: Number, Core -> Core, NoCore, [] by Alone;
    TpDispatchSelectors: Number, Core -> Core, NoCore, [] by Alone;
    TpCombineSelectors: Number, Core -> Core, NoCore, [] by Alone;
    BufferChosen: Number, Core -> Core, NoCore, [] by Alone;
    Epochs: Number, Core -> Core, NoCore, [] by Alone;
    Entered.Word: Number, Near -> Server, NoCore, [] by Join;
    RowsDone.Word: Number, Near -> Server, NoCore, [ReturnedSlots] by Quiet;
    Counts.Word: Mark, Near -> Server, NoCore, [NearSlots] by Puts;
    ReturnedSlots.Flag: Mark, Near -> Server, NoCore, [ReturnedSlots] by Puts;
    EndFlags.Word: Mark, Source -> Group, NoCore, [RelayRecords] by Message;
    RelayRecords.FrontFlag: Number, Source -> Group, NoCore, [RelayRecords] by Message;
    StreamsIn.EndFlag: Mark, Source -> Group, NoCore, [TokenRecords, SumRecords] by Task;
    // Counts alone: token flags or the flags of blocks cover the rows.
    DispatchStatus.Status: Count, Source -> Group, Owner, [] by Alone if CountsAlone;
    DispatchStatus.Status: Count, Source -> Group, Owner, [] by Barrier if Blocks;
}

/// Returns the words of a group of `shape`.
pub fn events(shape: &Shape, mode: Mode) -> impl Iterator<Item = Event> {
    let last = RankId(shape.ep_world_size().saturating_sub(1));
    let kind = Kind::of(shape, mode);
    EVENTS.iter().copied().filter(move |event| {
        let has_field = |name| event.word.fields(shape, mode).any(|field| field.name == name);
        event.when.may_hold(kind)
            && event.word.map(shape, mode, last).is_some()
            && event.field.is_none_or(has_field)
    })
}
