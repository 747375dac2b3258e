//! Words and triples that no correct rank can have written. A state machine that has seen one must refuse it and name the rank
//! that writes there. The list follows from the definition of the protocol and does not use the checks of the state machines.

use crate::guard::Guard;
use veriep_core::layout::affine::{Index, Named};
use veriep_core::layout::locate::Spot;
use veriep_core::layout::relay;
use veriep_core::layout::state::Operator;
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::RankId;

/// The flag, 1.0f.
const FLAG: u32 = 0x3F80_0000;
const TWO_FLAGS: u64 = (FLAG as u64) << 32 | FLAG as u64;

/// What cannot be, and who writes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impossible {
    pub what: &'static str,
    /// Whose word it is, if the place tells.
    pub source: Option<RankId>,
}

/// When a machine looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    pub dispatch: bool,
    /// The operator of a hierarchy, counted from 1; `None` if that is not known.
    pub epoch: Option<u64>,
}

/// What is wrong about `word`, seen by an observation.
pub fn of_word(guard: &Guard, spot: &Spot, word: u64, when: When) -> Option<Impossible> {
    // Where words have the numbers of calls, all ranks are honest, and the reference judges what they bring about.
    if guard.checked {
        return None;
    }
    let shape = &guard.shape;
    let (low, high) = (word as u32, (word >> 32) as u32);
    let impossible =
        |is_one: bool, what, source: Option<RankId>| is_one.then_some(Impossible { what, source });
    let is_no_flag = word != 0 && word != TWO_FLAGS;
    let source = spot.index(Index::Source).map(RankId);
    match (spot.map.named, spot.inside) {
        (Named::DispatchStatus, 0) => {
            let most = rows_from(shape, source?.0, guard.rank);
            let is_impossible = word != 0 && (low != FLAG || high > most);
            impossible(is_impossible, "a count that cannot be", source)
        }
        (Named::DispatchStatus, 8) => impossible(is_no_flag, "no token flag", source),
        (Named::DirectRecords, 0 | 8 | 16) => impossible(is_no_flag, "no word of direct placement", source),
        // Whose expert a column is for, the inputs tell.
        (Named::CombineStatus, 0) => impossible(is_no_flag, "no combine flag", None),
        (Named::ResultsReady, 0) => impossible(is_no_flag, "no word of results", source),
        (Named::DispatchRecords, at) if at % 512 == 480 => impossible(is_no_flag, "no block flag", source),
        (
            Named::DispatchSelectors
            | Named::CombineSelectors
            | Named::TpDispatchSelectors
            | Named::TpCombineSelectors,
            0,
        ) => impossible(word > 1, "no selector", None),
        (Named::TpDispatchSlots | Named::TpCombineSlots, 0) => {
            let is_impossible = word != 0 && (low != FLAG || u64::from(high) > room(shape, guard.rank));
            impossible(is_impossible, "no slot of a peer", None)
        }
        (Named::WindowsIn, at) if when.dispatch && at < 96 => {
            let peer = spot.index(Index::Peer).map(RankId);
            let most = shape.bs(peer?);
            let counts = [low, high].into_iter().zip(at / 4..).filter(|&(_, i)| i < local_experts(shape));
            let is_impossible = counts.map(|(count, _)| count).any(|count| count > most);
            impossible(is_impossible, "a count that cannot be", peer)
        }
        (Named::Counts | Named::EndFlags | Named::RelayRecords | Named::StreamsIn | Named::NearSlots, _) => {
            of_epochs(guard, spot, word, when)
        }
        _ => None,
    }
}

/// Words of a hierarchy that speak for data: of no later operator than its own, with numbers that can be.
fn of_epochs(guard: &Guard, spot: &Spot, word: u64, when: When) -> Option<Impossible> {
    let (shape, own) = (&guard.shape, when.epoch?);
    let (epoch, number) = (word >> 16, word & 0xFFFF);
    let source = spot.index(Index::Source).map(RankId);
    let is_no_end = epoch > own || epoch == own && number > shape.bs_max().into();
    let namesake = spot.index(Index::Server).map(|server| shape.relay(guard.rank, server));
    let record =
        relay::record_bytes(shape, if when.dispatch { Operator::Dispatch } else { Operator::Combine });
    let (is_impossible, source) = match (spot.map.named, spot.inside) {
        (Named::Counts, 0) => {
            let most = u64::from(shape.bs(source?));
            (epoch > own || epoch == own && number > most, source)
        }
        (Named::EndFlags, 0) => (is_no_end, None),
        (Named::RelayRecords, 0) => (word > own, None),
        (Named::StreamsIn, at) if at + 8 == spot.map.bytes => (is_no_end, namesake),
        // The fronts of records, which end where the end flag begins.
        (Named::StreamsIn, at) if (spot.map.bytes - 8 - at).is_multiple_of(record) => (word > own, namesake),
        (Named::NearSlots, 0) if !when.dispatch => (epoch > own, None),
        _ => return None,
    };
    is_impossible.then_some(Impossible { what: "a word that no rank can have written yet", source })
}

/// What is wrong about bytes that were read: those that are a triple, or the first row that a TP peer tells of.
pub fn of_bytes(guard: &Guard, spot: &Spot, bytes: &[u8]) -> Option<Impossible> {
    let shape = &guard.shape;
    if let (Named::TpDispatchSlots | Named::TpCombineSlots, 8) = (spot.map.named, spot.inside) {
        let first = u64::from(u32::from_le_bytes(*bytes.first_chunk()?));
        let is_impossible = first > room(shape, guard.rank);
        return is_impossible.then_some(Impossible { what: "a first row that no peer has", source: None });
    }
    let source = spot.index(Index::Source).map(RankId);
    if let (Named::DirectRecords, 24) = (spot.map.named, spot.inside) {
        let most = rows_from(shape, source?.0, guard.rank);
        let is_impossible = bytes.as_chunks().0.iter().any(|&count| u32::from_le_bytes(count) > most);
        return is_impossible.then_some(Impossible { what: "a count that cannot be", source });
    }
    let words: &[u8; 12] = bytes.try_into().ok()?;
    let mut triple = [0; 3];
    for (word, bytes) in triple.iter_mut().zip(words.as_chunks::<4>().0) {
        *word = i64::from(i32::from_le_bytes(*bytes));
    }
    let quantised = shape.payload_bytes() < shape.row_bytes();
    let row = u64::from(shape.h()) * if quantised { 1 } else { 2 };
    let behind_scale = row.next_multiple_of(32) + 32;
    let in_record = match shape.protocol() {
        Protocol::FullmeshV2 => behind_scale / 480 * 512 + behind_scale % 480,
        _ => behind_scale,
    };
    let is_triple = match (spot.map.named, spot.inside) {
        (Named::DispatchRecords | Named::TpRecords, at) => at == in_record,
        (Named::NearSlots, at) => at == 32 + row + 4,
        (Named::Infos, at) => at == 4,
        _ => false,
    };
    if !is_triple {
        return None;
    }
    // Source and number among its rows, where the place tells: tokens rise, so none is below its number.
    let place = spot.index(Index::Source).zip(spot.index(Index::Slot));
    let [source, token, k] = triple;
    let source_is = (0..i64::from(shape.ep_world_size())).contains(&source);
    let token_is = source_is && (0..shape.bs(RankId(source as u32)).into()).contains(&token);
    let k_is = match shape.protocol() {
        // Pairs of the token here, and which of them: at most K.
        Protocol::Hierarchy => (0..=i64::from(shape.k())).contains(&(k >> 16)) && (k & 0xFFFF) < k >> 16,
        _ => has_column(shape, guard.rank, source as u32, k),
    };
    let is_here = place.is_none_or(|(from, index)| source == i64::from(from) && token >= i64::from(index));
    let source = place.map(|(source, _)| RankId(source));
    let can_be = source_is && token_is && k_is && is_here;
    (!can_be).then_some(Impossible { what: "a triple that cannot be", source })
}

/// Whether a rank can have a row of `source` that is of column `k` there.
pub(crate) fn has_column(shape: &Shape, rank: RankId, source: u32, k: i64) -> bool {
    match shared_expert(shape, rank) {
        Some(j) => k == i64::from(shape.k() + j) && rows_from(shape, source, rank) > 0,
        None => (0..shape.k().into()).contains(&k),
    }
}

/// Experts of a rank that holds no shared one.
pub(crate) const fn local_experts(shape: &Shape) -> u64 {
    (shape.moe_expert_num() / (shape.ep_world_size() - shape.shared_expert_rank_num())) as u64
}

/// The shared expert that a rank holds.
const fn shared_expert(shape: &Shape, rank: RankId) -> Option<u32> {
    if rank.0 < shape.shared_expert_rank_num() {
        Some(rank.0 / (shape.shared_expert_rank_num() / shape.shared_expert_num()))
    } else {
        None
    }
}

/// The most rows that one expert of `to` can get from `source`.
fn rows_from(shape: &Shape, source: u32, to: RankId) -> u32 {
    let replicas = shape.shared_expert_rank_num().checked_div(shape.shared_expert_num()).unwrap_or(0);
    let is_shared = to.0 < shape.shared_expert_rank_num();
    if is_shared && to.0 % replicas != source % replicas { 0 } else { shape.bs(RankId(source)) }
}

/// Rows for which a rank has room that holds one expert, as all do in a TP domain: its own, and as many of its peer.
const fn room(shape: &Shape, rank: RankId) -> u64 {
    let sources = match shared_expert(shape, rank) {
        Some(_) => {
            let replicas = shape.shared_expert_rank_num() / shape.shared_expert_num();
            shape.ep_world_size().div_ceil(replicas)
        }
        None => shape.ep_world_size(),
    };
    shape.bs_max() as u64 * sources as u64
}
