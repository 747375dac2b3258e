//! Compares what a live group put out with the oracle, rank by rank, byte by byte.

use crate::backend::Backend;
use crate::batch::Batch;
use crate::expert;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use kernel_core::place::Tensor;
use kernel_core::reference::Cluster;
use kernel_core::shape::Shape;
use kernel_core::units::{RankId, Token};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The first difference of a rank's outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Whose.
    pub rank: RankId,
    /// Which tensor.
    pub tensor: Tensor,
    /// Row of the tensor.
    pub row: usize,
    /// Byte of the row.
    pub byte: usize,
    /// What is there.
    pub seen: u8,
    /// What the oracle says.
    pub expected: u8,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, tensor, row, byte, seen, expected } = self;
        write!(f, "rank{rank}.{} row {row} byte {byte} = {seen:#04x}: must be {expected:#04x}", tensor.name())
    }
}

/// Compares every rank's outputs of a batch with the oracle, on `threads` threads.
///
/// # Errors
/// The first mismatch of the lowest rank that has one.
pub fn check<B: Backend>(
    backend: &B,
    shape: &Shape,
    batch: &Batch<'_>,
    number: usize,
    threads: usize,
    done: &(impl Fn() + Sync),
) -> Result<(), Mismatch> {
    let next = AtomicU32::new(0);
    let found: Mutex<Option<Mismatch>> = Mutex::new(None);
    batch.with_cluster(|cluster| {
        let work = || {
            loop {
                let rank = next.fetch_add(1, Ordering::Relaxed);
                if rank >= shape.ep_world_size() {
                    break;
                }
                if let Err(mismatch) = check_rank(backend, cluster, batch, number, RankId(rank)) {
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    if found.as_ref().is_none_or(|other| mismatch.rank < other.rank) {
                        *found = Some(mismatch);
                    }
                    break;
                }
                done();
            }
        };
        thread::scope(|scope| {
            // Whoever cannot be started is not needed: this thread does what is left.
            (1..threads).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, work)));
            work();
        });
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

fn check_rank<B: Backend>(
    backend: &B,
    cluster: &Cluster<'_>,
    batch: &Batch<'_>,
    number: usize,
    rank: RankId,
) -> Result<(), Mismatch> {
    let shape = cluster.shape;
    let row_bytes = shape.row_bytes() as usize;
    let name = batch.name(rank);
    let compare = |tensor, row_len, expected: &[u8]| {
        let mut verdict = Ok(());
        backend.read_output(rank, number, tensor, expected.len(), &mut |seen| {
            verdict = first_difference(name, tensor, row_len, seen, expected);
        });
        verdict
    };
    let expected = cluster.dispatch(name);
    let bytes = |words: &mut dyn Iterator<Item = u32>| words.flat_map(u32::to_le_bytes).collect::<Vec<_>>();
    let counts = bytes(&mut expected.ep_recv_counts.iter().map(|&n| n.cast_unsigned()));
    compare(Tensor::EpRecvCounts, 4, &counts)?;
    let nums: Vec<u8> = expected.expert_token_nums.iter().flat_map(|n| n.to_le_bytes()).collect();
    compare(Tensor::ExpertTokenNums, 8, &nums)?;
    let slots = bytes(&mut expected.expand_idx.iter().map(|&n| n.cast_unsigned()));
    compare(Tensor::ExpandIdx, 4 * shape.k() as usize, &slots)?;
    let triples = bytes(&mut expected.assist_info_for_combine.iter().flatten().map(|&n| n.cast_unsigned()));
    compare(Tensor::AssistInfo, 12, &triples)?;
    let scales = bytes(&mut expected.dynamic_scales.iter().map(|s| s.to_bits()));
    compare(Tensor::DynamicScales, 4, &scales)?;
    compare(Tensor::ExpandX, shape.payload_bytes() as usize, &expected.expand_x)?;
    compare(Tensor::XOut, row_bytes, &expected_x_out(cluster, batch, name))
}

/// `x_out` by the oracle, the experts' results computed pair by pair.
fn expected_x_out(cluster: &Cluster<'_>, batch: &Batch<'_>, rank: RankId) -> Vec<u8> {
    let (k_num, s) = (cluster.shape.k(), cluster.shape.shared_expert_num());
    let ids = cluster.ranks[rank.index()].expert_ids;
    let mut sent = Vec::new();
    cluster.combine(rank, &mut |token: Token, k, row| {
        let expert_row = match k.checked_sub(k_num) {
            Some(j) => j,
            None => s + ids[(token.0 * k_num + k) as usize].cast_unsigned(),
        };
        let scale = cluster.sent_row(rank, token, expert_row, &mut sent);
        row.clear();
        expert::apply(cluster.shape, &sent, scale, batch.gain(expert_row), row);
    })
}

fn first_difference(
    rank: RankId,
    tensor: Tensor,
    row_len: usize,
    seen: &[u8],
    expected: &[u8],
) -> Result<(), Mismatch> {
    if seen == expected {
        return Ok(());
    }
    // An output is as long as its capacity: what is behind the oracle's last byte belongs to no row.
    let at = seen.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(seen.len());
    Err(Mismatch {
        rank,
        tensor,
        row: at / row_len,
        byte: at % row_len,
        seen: seen.get(at).copied().unwrap_or(0),
        expected: expected.get(at).copied().unwrap_or(0),
    })
}
