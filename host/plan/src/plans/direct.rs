//! The plan of a core with direct placement: words for ranks in place of slots, and results that combine reads where experts
//! left them.

use super::lists::Traffic;
use super::one_core::BARRIER;
use super::{Ends, ends};
use serde::Serialize;
use veriep_core::layout::state::{Direct, Partition, results_ready};
use veriep_core::plan::{route, split};
use veriep_core::units::{CoreId, Pair, RankId, Token};

/// What a core does in dispatch, in order.
pub(super) const PHASES: [&str; 12] = [
    "clears the words of the dispatch before",
    "counts",
    "awaits counts",
    BARRIER,
    "grants",
    "awaits grants",
    "sends, each row with its scale and triple",
    "quiet",
    BARRIER,
    "token flags",
    "awaits token flags",
    "writes triples, scales and the row table",
];

/// The words that a core writes for other ranks in dispatch, and those that it awaits.
#[derive(Debug, Serialize)]
pub struct Words {
    pub ranks: Ends,
    pub tells: Vec<Word>,
    pub hears: Vec<Word>,
}

/// The words that one rank writes for another. Offsets are in the state region of the reader.
#[derive(Debug, Serialize)]
pub struct Word {
    pub rank: u32,
    /// The first of the counts, one for each local expert of the reader.
    pub counts_offset: u64,
    /// The word that covers them.
    pub counts_word: u64,
    pub counts: Option<Vec<u32>>,
    pub rows: Option<u32>,
    /// The first of the grants: rows at which those of the reader begin, one for each local expert of the writer.
    pub grants_offset: u64,
    pub grants_word: u64,
    pub grants: Option<Vec<u32>>,
    pub token_flag_offset: u64,
}

/// Returns the words of a core, or `None` unless rows are placed directly.
pub(super) fn words(traffic: &Traffic, rank: RankId, core: CoreId) -> Option<Words> {
    let ranks = split::ranks(&traffic.shape, core);
    let others = || ranks.clone().map(|other| traffic.called(rank, RankId(other)));
    let words = || Words {
        ranks: ends(&ranks),
        tells: others().map(|other| word(traffic, rank, other, other)).collect(),
        hears: others().map(|other| word(traffic, other, rank, other)).collect(),
    };
    traffic.choices.receive.is_direct().then(words)
}

/// What `from` tells `to`, one of which is `other`.
fn word(traffic: &Traffic, from: RankId, to: RankId, other: RankId) -> Word {
    let shape = &traffic.shape;
    let (source, reader) = (traffic.ep(from), traffic.ep(to));
    let word = |what: Direct| what.word(shape, Partition::P0, source).offset;
    let entry = |what: Direct| what.entry(shape, Partition::P0, source, 0).offset;
    let counts = || (0..shape.local_experts(reader)).map(|expert| traffic.rows_before(to, expert, source));
    let grants = || (0..shape.local_experts(source)).map(|expert| traffic.rows_before(from, expert, reader));
    let known = traffic.known;
    Word {
        rank: traffic.name(other),
        counts_offset: entry(Direct::Counts),
        counts_word: word(Direct::Counts),
        counts: known.then(|| counts().map(|(_, own)| own).collect()),
        rows: known.then(|| counts().map(|(_, own)| own).sum()),
        grants_offset: entry(Direct::Grants),
        grants_word: word(Direct::Grants),
        grants: known.then(|| grants().map(|(before, _)| before).collect()),
        token_flag_offset: word(Direct::TokenFlags),
    }
}

/// What a core tells in combine, that results are ready, and which results it reads.
#[derive(Debug, Serialize)]
pub struct Pull {
    /// Ranks, each with the offset of the word there.
    pub publishes: Vec<(u32, u64)>,
    pub reads: Option<Vec<Read>>,
}

#[derive(Debug, Serialize)]
pub struct Read {
    pub token: u32,
    pub k: u32,
    pub from: u32,
    pub row: u32,
    /// In the window of `from`.
    pub offset: u64,
    pub bytes: u64,
    /// Of the word that it awaits, in its rank's own state region.
    pub flag_offset: u64,
}

/// Returns what a core does in combine in place of sending rows, or `None` unless rows are placed directly.
pub(super) fn pull(traffic: &Traffic, rank: RankId, core: CoreId) -> Option<Pull> {
    let (shape, own) = (&traffic.shape, traffic.ep(rank));
    let publish =
        |to| (traffic.name(traffic.called(rank, RankId(to))), results_ready(Partition::P0, own).offset);
    let inputs = traffic.inputs(rank);
    let read = |pair: Pair| {
        let home = route::home(shape, own, &inputs, pair)?;
        let row = traffic.row(traffic.called(rank, home.rank), own, pair)?;
        Some(Read {
            token: pair.token.0,
            k: pair.k,
            from: traffic.name(traffic.called(rank, home.rank)),
            row,
            offset: traffic.parts(home.rank).result(row).offset,
            bytes: shape.row_bytes(),
            flag_offset: results_ready(Partition::P0, home.rank).offset,
        })
    };
    let columns = |token| (0..shape.combine_columns()).map(move |k| Pair { token, k });
    let reads = || split::tokens(shape, own, core).map(Token).flat_map(columns).filter_map(read).collect();
    let pull = || Pull {
        publishes: split::ranks(shape, core).map(publish).collect(),
        reads: traffic.known.then(reads),
    };
    traffic.choices.receive.is_direct().then(pull)
}
