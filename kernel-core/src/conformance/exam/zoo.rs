//! The memories: for each its name, what it does within the contract, and how it breaks it.

use super::fault::Fault::{self, *};
use super::fault::{Animal, Kind, Late, Looks, Order, Pace, When, Which};
use crate::fabric::WORD;
use crate::place::Region;

/// Effects take some steps, in any order.
const SOME: Pace = Pace {
    rows: Late::UpTo(12),
    words: Late::UpTo(6),
    stores: Late::UpTo(12),
    pieces: 0,
    order: Order::Any,
    denials: 0,
    busy: 0,
    full: 0,
};
/// Everything lands before the next step.
const QUICK: Pace = Pace { rows: Late::UpTo(0), words: Late::UpTo(0), stores: Late::UpTo(0), ..SOME };
/// Effects of every kind take up to three steps.
const EVEN: Pace = Pace { rows: Late::UpTo(3), words: Late::UpTo(3), stores: Late::UpTo(3), ..SOME };

/// One kind takes long: rows, words, or stores and writes. The others land before the next step.
const ROWS: Pace = Pace { rows: Late::UpTo(80), words: Late::UpTo(0), ..QUICK };
const WORDS: Pace = Pace { words: Late::UpTo(80), ..QUICK };
const STORES: Pace = Pace { stores: Late::UpTo(80), ..QUICK };

const fn right(name: &'static str, pace: Pace) -> Animal {
    Animal { name, pace, fault: None, completions: false, line: WORD }
}

const fn wrong(name: &'static str, pace: Pace, fault: Fault) -> Animal {
    Animal { fault: Some(fault), ..right(name, pace) }
}

/// A memory whose publishes and stores write back lines, and that states a line.
pub(super) const fn states(line: u64, name: &'static str, written: u64) -> Animal {
    Animal { line, ..wrong(name, EVEN, Line(&[Kind::Publish, Kind::Store], written)) }
}

/// A flag does not wait for such puts, which come some steps later.
const fn loose(name: &'static str, which: Which) -> Animal {
    wrong(name, QUICK, Loose(which, When::Steps(24)))
}

/// The same until the next quiet.
const fn until_quiet(name: &'static str, which: Which) -> Animal {
    wrong(name, QUICK, Loose(which, When::Quiet))
}

/// A network without order, over which cores publish after completions.
const fn behind_completions(name: &'static str, pace: Pace, which: Which, when: When) -> Animal {
    Animal { completions: true, ..wrong(name, pace, Loose(which, when)) }
}

/// Unusual memories that keep the contract.
pub(super) const RIGHT: &[Animal] = &[
    right("at once", QUICK),
    right("in any order", SOME),
    right(
        "as late as may be",
        Pace { rows: Late::Forced, words: Late::UpTo(20), stores: Late::Forced, ..SOME },
    ),
    right("rows slow, words quick", Pace { rows: Late::UpTo(120), words: Late::UpTo(0), ..SOME }),
    right("words slow, rows quick", Pace { rows: Late::UpTo(0), words: Late::UpTo(120), ..SOME }),
    right("stores slow", Pace { stores: Late::UpTo(200), ..QUICK }),
    right(
        "everything very slow",
        Pace { rows: Late::UpTo(300), words: Late::UpTo(300), stores: Late::UpTo(300), ..SOME },
    ),
    right("slow by length", Pace { rows: Late::ByLength(64), ..SOME }),
    right("the farther the slower", Pace { rows: Late::ByRank(40), words: Late::ByRank(30), ..SOME }),
    right("in words", Pace { pieces: 8, ..SOME }),
    right("in pieces of 3 bytes", Pace { pieces: 3, ..SOME }),
    right("in packets of 512 bytes", Pace { pieces: 512, rows: Late::UpTo(60), ..SOME }),
    right("from the end", Pace { pieces: 64, order: Order::Backwards, ..SOME }),
    right("quiet says no twenty times", Pace { denials: 20, ..SOME }),
    right(
        "everything in batches",
        Pace { rows: Late::Batches(50), words: Late::Batches(50), stores: Late::Batches(50), ..SOME },
    ),
    right("words in batches", Pace { words: Late::Batches(64), ..SOME }),
    right("rows at once, in pieces", Pace { rows: Late::UpTo(0), pieces: 16, ..SOME }),
    right(
        "far ranks are slow, a core's own is quick",
        Pace { rows: Late::ByRank(90), words: Late::UpTo(0), stores: Late::UpTo(0), ..SOME },
    ),
    right(
        "from the end, and quiet late",
        Pace { pieces: 24, order: Order::Backwards, denials: 7, busy: 3, ..SOME },
    ),
    right("agents find every second post without room", Pace { busy: 2, ..SOME }),
    right("cores find no room for every second effect", Pace { full: 2, ..SOME }),
    right("cores find no room for every fifth effect, and rows are slow", Pace { full: 5, ..ROWS }),
    wrong(
        "a cache that every observe empties",
        SOME,
        Stale { line: 64, ahead: 1, reads: u64::MAX / 2, looks: Looks::All },
    ),
    behind_completions("no order but by completions", QUICK, Which::All, When::Quiet),
    behind_completions("no order but by completions, and rows are slow", ROWS, Which::All, When::Steps(80)),
    behind_completions(
        "two queue pairs, and publishes behind completions",
        SOME,
        Which::Nth(2),
        When::Steps(24),
    ),
    states(16, "publish and store write lines of 16 B back, which it states", 16),
    states(32, "publish and store write lines of 32 B back, which it states", 32),
    states(64, "publish and store write lines of 64 B back, which it states", 64),
    states(128, "publish and store write lines of 128 B back, which it states", 128),
];

pub(super) const WRAPS_AT_4_GIB: Animal =
    wrong("windows wrap at 4 GiB", QUICK, Wrap(Region::Window, 1 << 32, true));

/// Memories that break the contract.
pub(super) const WRONG: &[Animal] = &[
    // A network without order, or with several paths.
    until_quiet("puts above 512 B land at the next quiet", Which::Above(512)),
    until_quiet("puts above 4 KiB land at the next quiet", Which::Above(4096)),
    loose("a flag overtakes puts above 512 B", Which::Above(512)),
    loose("a flag overtakes puts above 8000 B", Which::Above(8000)),
    loose("a flag overtakes puts below 64 B", Which::Below(64)),
    loose("relaxed ordering: a flag overtakes all puts", Which::All),
    loose("a flag overtakes what lies behind 4 KiB of a put", Which::Behind(4096)),
    loose("a flag overtakes what lies behind 256 B of a put", Which::Behind(256)),
    loose("rows are striped by 256 B over two queue pairs", Which::Stripe(256)),
    loose("rows are striped by 4 KiB over two queue pairs", Which::Stripe(4096)),
    loose("a flag waits for the tail of a put only", Which::Row),
    loose("a flag does not wait for the tail of a put", Which::Tail),
    loose("every second put goes another way", Which::Nth(2)),
    loose("every eighth put goes another way", Which::Nth(8)),
    wrong("a flag waits for 4 puts at most", ROWS, Loose(Which::Outstanding(4), When::Steps(80))),
    wrong("a flag waits for 16 puts at most", ROWS, Loose(Which::Outstanding(16), When::Steps(80))),
    loose("puts that begin at no line go another way", Which::Unaligned(64)),
    loose("what lies behind the page of a put is late", Which::Crossing(4096)),
    loose("what lies behind the line of a put is late", Which::Crossing(64)),
    loose("puts to a core's own rank go another way", Which::OwnRank),
    loose("puts to other ranks go another way", Which::OtherRanks),
    loose("the first put behind a quiet is late", Which::FirstAfterQuiet),
    loose("a flag waits for puts of the first core only", Which::OtherCores),
    loose("a put to a place put to before is late", Which::Again),
    wrong("rows above 2 KiB are lost", QUICK, LostPut(Which::Above(2048))),
    wrong("tails are lost", QUICK, LostPut(Which::Tail)),
    // Delivered again.
    wrong("a publish lands again after 3 calls", SOME, Echo(Kind::Publish, 3)),
    wrong("a publish lands again after 30 calls", SOME, Echo(Kind::Publish, 30)),
    wrong("a publish lands again after 300 calls", SOME, Echo(Kind::Publish, 300)),
    wrong("a publish lands again after 1000 calls", SOME, Echo(Kind::Publish, 1000)),
    wrong("a store lands again after 30 calls", SOME, Echo(Kind::Store, 30)),
    wrong("a store lands again after 300 calls", SOME, Echo(Kind::Store, 300)),
    wrong("a put lands again after 30 calls", SOME, Echo(Kind::Put, 30)),
    wrong("a put lands again after 300 calls", SOME, Echo(Kind::Put, 300)),
    wrong("a put lands again after 1000 calls", SOME, Echo(Kind::Put, 1000)),
    wrong("a write lands again after 300 calls", SOME, Echo(Kind::Write, 300)),
    wrong("a message lands again after 20 calls", SOME, Echo(Kind::Message, 20)),
    wrong("a message lands again after 500 calls", SOME, Echo(Kind::Message, 500)),
    wrong("a transfer is delivered again after 100 calls", SOME, EchoTransfer(100)),
    // Lost.
    wrong("every third store is lost", SOME, Lost(Kind::Store, 3)),
    wrong("every 16th store is lost", SOME, Lost(Kind::Store, 16)),
    wrong("every 16th publish is lost", SOME, Lost(Kind::Publish, 16)),
    wrong("every 16th put is lost", SOME, Lost(Kind::Put, 16)),
    wrong("a store beside a publish under way is lost", SOME, StoreContended(64)),
    wrong("a publish of the same word is left out", SOME, Unrepeated),
    // Lines.
    wrong("publish and store write lines of 16 B back", EVEN, Line(&[Kind::Publish, Kind::Store], 16)),
    wrong("publish and store write lines of 32 B back", EVEN, Line(&[Kind::Publish, Kind::Store], 32)),
    wrong("publish and store write lines of 64 B back", EVEN, Line(&[Kind::Publish, Kind::Store], 64)),
    wrong("publish and store write lines of 128 B back", EVEN, Line(&[Kind::Publish, Kind::Store], 128)),
    wrong("publish and store write lines of 256 B back", EVEN, Line(&[Kind::Publish, Kind::Store], 256)),
    states(16, "publish and store write lines of 32 B back, and it states 16 B", 32),
    states(64, "publish and store write lines of 128 B back, and it states 64 B", 128),
    wrong("a store writes lines of 64 B back", EVEN, Line(&[Kind::Store], 64)),
    wrong("a publish writes lines of 64 B back", EVEN, Line(&[Kind::Publish], 64)),
    wrong("a put writes lines of 64 B back at its ends", EVEN, Line(&[Kind::Put], 64)),
    wrong("a put writes whole blocks of 32 B", EVEN, Padded(32)),
    wrong("a put writes whole blocks of 512 B", EVEN, Padded(512)),
    wrong("a put is cut to blocks of 32 B", EVEN, Cut(32)),
    wrong("a put is cut to words", EVEN, Cut(8)),
    // Caches.
    wrong(
        "a core keeps lines, observe looks at its own",
        QUICK,
        Stale { line: 64, ahead: 0, reads: 400, looks: Looks::Line },
    ),
    wrong(
        "a core keeps the next line, too",
        QUICK,
        Stale { line: 64, ahead: 1, reads: 60, looks: Looks::Line },
    ),
    wrong(
        "a core keeps lines of 256 B until it is quiet",
        QUICK,
        Stale { line: 256, ahead: 0, reads: 50, looks: Looks::Quiet },
    ),
    wrong(
        "a core keeps what it observes for 8 reads",
        QUICK,
        Stale { line: 64, ahead: 0, reads: 8, looks: Looks::Quiet },
    ),
    // Quiet.
    wrong("quiet does not wait for puts", ROWS, Quiet(Kind::Put)),
    wrong("quiet does not wait for publishes", WORDS, Quiet(Kind::Publish)),
    wrong("quiet does not wait for stores", STORES, Quiet(Kind::Store)),
    wrong("quiet does not wait for writes", STORES, Quiet(Kind::Write)),
    wrong(
        "quiet does not wait for other ranks",
        Pace { rows: Late::UpTo(80), words: Late::UpTo(80), ..SOME },
        QuietOfRank { own: false },
    ),
    wrong(
        "quiet does not wait for a core's own rank",
        Pace { rows: Late::UpTo(80), stores: Late::UpTo(80), ..SOME },
        QuietOfRank { own: true },
    ),
    wrong("quiet does not wait for puts above 512 B", ROWS, QuietAbove(512)),
    wrong("quiet says yes when it is asked again", SOME, QuietAtSecondAsking),
    // Words.
    wrong("a word is torn", SOME, Torn),
    wrong("a publish adds", SOME, Adds),
    wrong("a publish sets bits", SOME, Ors),
    wrong("a publish writes the low half", SOME, Half),
    wrong("a publish waits for its core's next effect", SOME, Unflushed),
    wrong("a core sees its own publish before its puts", Pace { words: Late::UpTo(40), ..SOME }, OwnPublish),
    wrong("a core does not see its own store", SOME, OwnStore),
    wrong("stores to one word change their order", SOME, Stores),
    wrong("a word goes back for a while", SOME, Undone(4)),
    // Places.
    wrong("writers wrap windows at 64 KiB", QUICK, Wrap(Region::Window, 1 << 16, false)),
    wrong("windows wrap at 64 KiB", QUICK, Wrap(Region::Window, 1 << 16, true)),
    wrong("windows wrap at 1 MiB", QUICK, Wrap(Region::Window, 1 << 20, true)),
    // No window here is as large: a test of its own asks.
    WRAPS_AT_4_GIB,
    wrong("the state wraps at 64 KiB", QUICK, Wrap(Region::State, 1 << 16, true)),
    wrong("the state wraps at 512 KiB", QUICK, Wrap(Region::State, 1 << 19, true)),
    // Agents and messages.
    wrong("transfers come from their end", SOME, Backwards(8)),
    wrong("transfers above 512 B come from their end", SOME, Backwards(512)),
    wrong("the last word of a transfer above 1 KiB comes first", SOME, LastFirst(1024)),
    wrong("transfers above 1 KiB lose their end", SOME, CutTransfer(1024)),
    wrong("an agent remembers its sources", SOME, Remembers),
    wrong("an agent sees words before they land", WORDS, Peeks),
    wrong("messages overtake each other", SOME, Overtakes(0)),
    wrong("messages overtake those above 512 B", SOME, Overtakes(512)),
    wrong("words of messages are torn", SOME, TornMessage),
    // Added after the programs were written, which were made for those above.
    loose("a flag overtakes puts behind 16 KiB without a quiet", Which::SinceQuiet(16 << 10)),
    loose("puts without a tail go another way", Which::NoTail),
    loose("puts that end at a line go another way", Which::EndsAt(64)),
    loose("puts to the third rank and behind go another way", Which::FromRank(2)),
    loose("after 1500 calls flags overtake puts", Which::After(1500)),
    wrong("a publish takes away the one before to its line", WORDS, Merges(64)),
    wrong("the third publish under way to a rank is lost", WORDS, Incast(2)),
    wrong("quiet waits for the rank that came last", ROWS, QuietOfLast),
    wrong("a put is read from its source when it lands", ROWS, LateSource),
    wrong("every 16th publish lands at the next rank, too", SOME, Multicast(16)),
];
