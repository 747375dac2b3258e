//! What the plan of a core has with direct placement: words for ranks in place of slots, and results that are read where
//! experts left them.

use super::ends;
use super::lists::Traffic;
use super::one_core::BARRIER;
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

/// What a core tells other ranks in dispatch, and what it awaits of them.
#[derive(Serialize)]
pub(super) struct Words {
    /// The core's share of the ranks.
    pub(super) ranks: [u32; 2],
    pub(super) tells: Vec<Told>,
    pub(super) hears: Vec<Told>,
}

/// What one rank tells another. Offsets are in the state region of who is told.
#[derive(Serialize)]
pub(super) struct Told {
    /// The other rank.
    rank: u32,
    /// Of the first of the counts, one for each local expert of who is told.
    counts_offset: u64,
    /// Of the word that covers them.
    counts_word: u64,
    /// `null`: not known.
    counts: Option<Vec<u32>>,
    /// Their sum.
    rows: Option<u32>,
    /// Of the first of the grants: rows at which those of who is told begin, one for each local expert of who tells.
    grants_offset: u64,
    grants_word: u64,
    grants: Option<Vec<u32>>,
    /// Of the word that covers the rows.
    token_flag_offset: u64,
}

/// What a core does in combine.
#[derive(Serialize)]
pub(super) struct Pull {
    /// Whom it tells that results are ready, and the offset of that word there.
    pub(super) publishes: Vec<(u32, u64)>,
    /// `null` unless experts are known.
    pub(super) reads: Option<Vec<Read>>,
}

/// A result that the owner of a token reads.
#[derive(Serialize)]
pub(super) struct Read {
    token: u32,
    k: u32,
    from: u32,
    row: u32,
    /// In the window of `from`.
    offset: u64,
    bytes: u64,
    /// Of the word that it awaits, in the own state region.
    flag_offset: u64,
}

/// Nothing unless rows are placed directly.
pub(super) fn words(traffic: &Traffic, rank: RankId, core: CoreId) -> Option<Words> {
    let ranks = split::ranks(&traffic.shape, core);
    let others = || ranks.clone().map(|other| traffic.called(rank, RankId(other)));
    traffic.choices.receive.is_direct().then(|| Words {
        ranks: ends(&ranks),
        tells: others().map(|other| told(traffic, rank, other, other)).collect(),
        hears: others().map(|other| told(traffic, other, rank, other)).collect(),
    })
}

/// What `from` tells `to`, one of which is `other`.
fn told(traffic: &Traffic, from: RankId, to: RankId, other: RankId) -> Told {
    let shape = &traffic.shape;
    let (source, reader) = (traffic.ep(from), traffic.ep(to));
    let word = |what: Direct| what.word(shape, Partition::P0, source).offset;
    let entry = |what: Direct| what.entry(shape, Partition::P0, source, 0).offset;
    let counts = || (0..shape.local_experts(reader)).map(|expert| traffic.rows_before(to, expert, source));
    let grants = || (0..shape.local_experts(source)).map(|expert| traffic.rows_before(from, expert, reader));
    Told {
        rank: traffic.name(other),
        counts_offset: entry(Direct::Counts),
        counts_word: word(Direct::Counts),
        counts: traffic.known.then(|| counts().map(|(_, own)| own).collect()),
        rows: traffic.known.then(|| counts().map(|(_, own)| own).sum()),
        grants_offset: entry(Direct::Grants),
        grants_word: word(Direct::Grants),
        grants: traffic.known.then(|| grants().map(|(before, _)| before).collect()),
        token_flag_offset: word(Direct::TokenFlags),
    }
}

/// Nothing unless rows are placed directly.
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
    traffic.choices.receive.is_direct().then(|| Pull {
        publishes: split::ranks(shape, core).map(publish).collect(),
        reads: traffic.known.then(reads),
    })
}
