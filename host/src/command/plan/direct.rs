//! What the plan of a core has with direct placement: words for ranks in place of slots, and results that are read where
//! experts left them.

use super::ends;
use super::lists::Traffic;
use super::one_core::BARRIER;
use serde_json::{Value, json};
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

/// What a core tells other ranks in dispatch, and what it awaits of them; nothing unless rows are placed directly.
pub(super) fn words(traffic: &Traffic, rank: RankId, core: CoreId) -> Option<Value> {
    let ranks = split::ranks(&traffic.shape, core);
    let others = || ranks.clone().map(|other| traffic.called(rank, RankId(other)));
    let tells = || others().map(|other| told(traffic, rank, other, other)).collect::<Vec<_>>();
    let hears = || others().map(|other| told(traffic, other, rank, other)).collect::<Vec<_>>();
    let words = || json!({"ranks": ends(&ranks), "tells": tells(), "hears": hears()});
    traffic.choices.receive.is_direct().then(words)
}

/// What `from` tells `to`, one of which is `other`. Offsets are in the state region of who is told.
fn told(traffic: &Traffic, from: RankId, to: RankId, other: RankId) -> Value {
    let shape = &traffic.shape;
    let (source, reader) = (traffic.ep(from), traffic.ep(to));
    let word = |what: Direct| what.word(shape, Partition::P0, source).offset;
    let entry = |what: Direct| what.entry(shape, Partition::P0, source, 0).offset;
    let counts = || (0..shape.local_experts(reader)).map(|expert| traffic.rows_before(to, expert, source));
    let grants = || (0..shape.local_experts(source)).map(|expert| traffic.rows_before(from, expert, reader));
    let known = traffic.known;
    json!({
        "rank": traffic.name(other),
        // Of the first of the counts, one for each local expert of who is told, and of the word that covers them.
        "counts_offset": entry(Direct::Counts),
        "counts_word": word(Direct::Counts),
        "counts": known.then(|| counts().map(|(_, own)| own).collect::<Vec<_>>()),
        "rows": known.then(|| counts().map(|(_, own)| own).sum::<u32>()),
        // The same of the grants: rows at which those of who is told begin, one for each local expert of who tells.
        "grants_offset": entry(Direct::Grants),
        "grants_word": word(Direct::Grants),
        "grants": known.then(|| grants().map(|(before, _)| before).collect::<Vec<_>>()),
        "token_flag_offset": word(Direct::TokenFlags),
    })
}

/// Whom a core tells in combine that results are ready, and which it reads; nothing unless rows are placed directly.
pub(super) fn pull(traffic: &Traffic, rank: RankId, core: CoreId) -> Option<Value> {
    let (shape, own) = (&traffic.shape, traffic.ep(rank));
    let publish =
        |to| (traffic.name(traffic.called(rank, RankId(to))), results_ready(Partition::P0, own).offset);
    let inputs = traffic.inputs(rank);
    let read = |pair: Pair| {
        let home = route::home(shape, own, &inputs, pair)?;
        let row = traffic.row(traffic.called(rank, home.rank), own, pair)?;
        Some(json!({
            "token": pair.token.0,
            "k": pair.k,
            "from": traffic.name(traffic.called(rank, home.rank)),
            "row": row,
            // In the window of `from`.
            "offset": traffic.parts(home.rank).result(row).offset,
            "bytes": shape.row_bytes(),
            // Of the word that it awaits, in the own state region.
            "flag_offset": results_ready(Partition::P0, home.rank).offset,
        }))
    };
    let columns = |token| (0..shape.combine_columns()).map(move |k| Pair { token, k });
    let reads =
        || split::tokens(shape, own, core).map(Token).flat_map(columns).filter_map(read).collect::<Vec<_>>();
    let publishes = || split::ranks(shape, core).map(publish).collect::<Vec<_>>();
    let pull = || json!({"publishes": publishes(), "reads": traffic.known.then(reads)});
    traffic.choices.receive.is_direct().then(pull)
}
