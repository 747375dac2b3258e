//! Compares what a live group put out with the reference, rank by rank, byte by byte. Only `rstd` has a range, since its
//! sum may be taken in any order; `y` is then what follows from the run's own `rstd`.

use crate::backend::Backend;
use crate::expert;
use crate::world::World;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use veriep_case::batch::Batch;
use veriep_case::global_rank;
use veriep_case::parallel;
use veriep_case::store::{bytes_of, numbers_of};
use veriep_core::place::Tensor;
use veriep_core::reference::{Cluster, Normed, Range, numerics};
use veriep_core::shape::Shape;
use veriep_core::units::{RankId, Token};

/// The first difference of a rank's outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    pub rank: RankId,
    pub tensor: Tensor,
    /// Row of the tensor.
    pub row: usize,
    pub difference: Difference,
}

/// What is wrong with a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    Byte {
        /// Which of the row.
        byte: usize,
        seen: u8,
        /// What the reference says.
        expected: u8,
    },
    /// A number that the order of a sum leaves some room.
    Number { seen: f32, range: Range },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, tensor, row, difference } = self;
        write!(f, "rank{rank}.{} row {row} ", tensor.name())?;
        match difference {
            Difference::Byte { byte, seen, expected } => {
                write!(f, "byte {byte} = {seen:#04x}: must be {expected:#04x}")
            }
            Difference::Number { seen, range: Range { smallest, largest, .. } } => {
                write!(f, "= {seen:e}: must be in [{smallest:e}, {largest:e}]")
            }
        }
    }
}

/// Compares the outputs of every rank of this process for a batch with the reference, on `threads` threads.
///
/// # Errors
/// The first mismatch of the lowest rank that has one.
pub fn check<B: Backend>(
    (world, backend): (&World, &B),
    shape: &Shape,
    batch: &Batch<'_>,
    number: usize,
    threads: usize,
    done: &(dyn Fn() + Sync),
) -> Result<(), Mismatch> {
    let here = global_rank::all(shape).filter(|&rank| world.is_here(rank));
    let mut verdicts: Vec<_> = here.map(|rank| (rank, Ok(()))).collect();
    // The lowest that is known to be wrong: those after it make no difference.
    let wrong = AtomicUsize::new(usize::MAX);
    batch.with_cluster(|cluster| {
        parallel::each_on(threads, &mut verdicts, |nth, (rank, verdict)| {
            if nth > wrong.load(Ordering::Relaxed) {
                return;
            }
            *verdict = check_rank(backend, cluster, batch, number, *rank);
            match verdict {
                Ok(()) => done(),
                Err(_) => _ = wrong.fetch_min(nth, Ordering::Relaxed),
            }
        });
    });
    verdicts.into_iter().try_for_each(|(_, verdict)| verdict)
}

fn check_rank<B: Backend>(
    backend: &B,
    cluster: &Cluster<'_>,
    batch: &Batch<'_>,
    number: usize,
    rank: RankId,
) -> Result<(), Mismatch> {
    let name = batch.name(rank);
    let (mut expected, normed) = by_oracle(cluster, batch, rank);
    for tensor in ORDER {
        let must = &expected[tensor as usize];
        let (mut verdict, mut rstd) = (Ok(()), Vec::new());
        backend.read_output(rank, number, tensor, must.len(), &mut |seen| match tensor {
            Tensor::Rstd => rstd = numbers_of(seen, f32::from_le_bytes),
            _ => verdict = first_difference(name, tensor, row_len(cluster.shape, tensor), seen, must),
        });
        verdict?;
        if let Some(normed) = normed.as_ref().filter(|_| tensor == Tensor::Rstd) {
            within(name, &rstd, &normed.rstd)?;
            // What follows from the `rstd` that came out is exact again.
            expected[Tensor::Y as usize] = cluster.y(name, normed, &rstd);
        }
    }
    Ok(())
}

/// What is compared first explains what comes later. `row_table` and
/// `sent_rows` are judged by the rows that are found through them.
const ORDER: [Tensor; Tensor::ALL.len() - 2] = [
    Tensor::TpRecvCounts,
    Tensor::EpRecvCounts,
    Tensor::ExpertTokenNums,
    Tensor::ExpandIdx,
    Tensor::AssistInfo,
    Tensor::ExpandScales,
    Tensor::DynamicScales,
    Tensor::ExpandX,
    Tensor::XOut,
    Tensor::X,
    Tensor::Rstd,
    Tensor::Y,
];

/// Bytes of a row, as a mismatch counts them.
fn row_len(shape: &Shape, tensor: Tensor) -> usize {
    match tensor {
        Tensor::TpRecvCounts
        | Tensor::EpRecvCounts
        | Tensor::DynamicScales
        | Tensor::ExpandScales
        | Tensor::Rstd
        | Tensor::SentRows => 4,
        Tensor::ExpertTokenNums | Tensor::RowTable => 8,
        Tensor::ExpandIdx => 4 * shape.k() as usize,
        Tensor::AssistInfo => 12,
        Tensor::ExpandX => shape.payload_bytes() as usize,
        Tensor::XOut | Tensor::X | Tensor::Y => shape.row_bytes() as usize,
    }
}

/// Whether every `rstd` is one that some order of additions leads to.
fn within(rank: RankId, rstd: &[f32], ranges: &[Range]) -> Result<(), Mismatch> {
    let wrong = rstd.iter().zip(ranges).position(|(&seen, range)| !range.holds(seen));
    wrong.map_or(Ok(()), |row| {
        let difference = Difference::Number { seen: rstd[row], range: ranges[row] };
        Err(Mismatch { rank, tensor: Tensor::Rstd, row, difference })
    })
}

/// All outputs of `rank` by the reference, by their numbers, without spare capacity. `rstd` is that of a sum without
/// rounding, and `y` follows from it.
pub fn expected(cluster: &Cluster<'_>, batch: &Batch<'_>, rank: RankId) -> [Vec<u8>; Tensor::ALL.len()] {
    by_oracle(cluster, batch, rank).0
}

/// The same, and what leaves `rstd` some room.
fn by_oracle(
    cluster: &Cluster<'_>,
    batch: &Batch<'_>,
    rank: RankId,
) -> ([Vec<u8>; Tensor::ALL.len()], Option<Normed>) {
    let name = batch.name(rank);
    let mut sent = Vec::new();
    let (mut outputs, normed) = combined(cluster, name, &mut |token, k, row: &mut Vec<u8>| {
        expert_row(cluster, batch, name, token, k, &mut sent, row);
    });
    let dispatched = cluster.dispatch(name);
    for tensor in Tensor::ALL.into_iter().filter(|tensor| !tensor.is_of_combine()) {
        outputs[tensor as usize] = dispatched.bytes(tensor);
    }
    (outputs, normed)
}

/// What combine puts out on `rank`, by the reference, of the rows that `returned` hands over as [`Cluster::combine`] asks for
/// them; nothing in the places of dispatch.
pub(crate) fn combined(
    cluster: &Cluster<'_>,
    name: RankId,
    returned: &mut dyn FnMut(Token, u32, &mut Vec<u8>),
) -> ([Vec<u8>; Tensor::ALL.len()], Option<Normed>) {
    let (mut normed, mut x_out) = (None, Vec::new());
    match cluster.ranks[name.index()].add_rms_norm {
        None => x_out = cluster.combine(name, returned),
        Some(_) => normed = Some(cluster.combine_add_rms_norm(name, returned)),
    }
    let of_norm = |bytes: &dyn Fn(&Normed) -> Vec<u8>| normed.as_ref().map(bytes);
    let exact = |normed: &Normed| normed.rstd.iter().map(|range| range.exact).collect::<Vec<_>>();
    let outputs = Tensor::ALL.map(|tensor| match tensor {
        Tensor::XOut => of_norm(&|normed| normed.x_out.clone()).unwrap_or_else(|| x_out.clone()),
        Tensor::X => of_norm(&|normed| normed.x.clone()).unwrap_or_default(),
        Tensor::Rstd => of_norm(&|normed| bytes_of(&exact(normed), f32::to_le_bytes)).unwrap_or_default(),
        Tensor::Y => of_norm(&|normed| cluster.y(name, normed, &exact(normed))).unwrap_or_default(),
        _ => Vec::new(),
    });
    (outputs, normed)
}

/// What the stand-in expert of a pair returns, into `row`; `sent` is scratch.
fn expert_row(
    cluster: &Cluster<'_>,
    batch: &Batch<'_>,
    rank: RankId,
    token: Token,
    k: u32,
    sent: &mut Vec<u8>,
    row: &mut Vec<u8>,
) {
    let (k_num, s) = (cluster.shape.k(), cluster.shape.shared_expert_num());
    let expert_row = match k.checked_sub(k_num) {
        Some(j) => j,
        None => s + cluster.id(rank, token, k).cast_unsigned(),
    };
    let scale = cluster.sent_row(rank, token, expert_row, sent);
    row.clear();
    expert::apply(cluster.shape, sent, scale, batch.gain(expert_row), row);
    if cluster.shape.tp_world_size() == 2 {
        // The peer's expert returns the same.
        *row = numerics::add_rows(cluster.shape.dtype(), row, row);
    }
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
    // An output is as long as its capacity: what is behind the reference's last byte belongs to no row.
    let at = seen.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(seen.len());
    Err(Mismatch {
        rank,
        tensor,
        row: at / row_len,
        difference: Difference::Byte {
            byte: at % row_len,
            seen: seen.get(at).copied().unwrap_or(0),
            expected: expected.get(at).copied().unwrap_or(0),
        },
    })
}
