//! Tables of the routing of a case, which no map contains: the destination of each pair. The core's plan supplies destinations,
//! slots and counts, the reference supplies rows; this file computes nothing.

use safetensors::Dtype;
use std::collections::HashMap;
use std::path::Path;
use veriep_case::batch::Batch;
use veriep_case::case::Case;
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_case::store::{Tensor as Stored, bytes_of, write_tensors};
use veriep_core::place::Tensor;
use veriep_core::plan::route::{self, NO_SLOT};
use veriep_core::plan::split::DispatchShare;
use veriep_core::units::{Pair, RankId, Token};

/// The name of the file.
pub(super) const FILE_NAME: &str = "routing.safetensors";
/// A pair that is not sent.
const ABSENT: i32 = -1;

/// Rows of received pairs, by receiver, EP rank of the source, and pair.
type Rows = HashMap<(RankId, RankId, Token, u32), i32>;

/// Writes the tables of the ranks that `is_asked`.
pub fn write(folder: &Path, case: &Case, is_asked: &dyn Fn(RankId) -> bool) -> Result<&'static str, Error> {
    let shape = &case.shape;
    let tensors = Batch::new(case).with_cluster(|cluster| {
        let numbered = |receiver| {
            let pairs = cluster.received(case.name(receiver)).into_iter();
            (0..).zip(pairs).map(move |(row, (source, token, k))| ((receiver, source, token, k), row))
        };
        let rows: Rows = global_rank::all(shape).flat_map(numbered).collect();
        let mut tensors = Vec::new();
        for rank in global_rank::all(shape).filter(|&rank| is_asked(case.name(rank))) {
            tensors.extend(of_rank(case, rank, &rows));
            let received = cluster.dispatch(case.name(rank));
            for (tensor, dtype, size) in
                [(Tensor::EpRecvCounts, Dtype::I32, 4), (Tensor::ExpertTokenNums, Dtype::I64, 8)]
            {
                let data = received.bytes(tensor);
                tensors.push(stored(case, (rank, tensor.name()), dtype, (vec![data.len() / size], data)));
            }
        }
        tensors
    });
    write_tensors(&folder.join(FILE_NAME), tensors)?;
    Ok(FILE_NAME)
}

fn stored<'a>(
    case: &Case,
    (rank, name): (RankId, &str),
    dtype: Dtype,
    (shape, data): (Vec<usize>, Vec<u8>),
) -> Stored<'a> {
    Stored { name: format!("rank{}.{name}", case.name(rank)), dtype, shape, data: data.into() }
}

/// Tables of what a rank sends.
fn of_rank(case: &Case, rank: RankId, rows: &Rows) -> Vec<Stored<'static>> {
    let (shape, inputs) = (&case.shape, case.inputs(rank));
    let ep_rank = global_rank::ep_rank(shape, rank);
    let (bs, columns) = (shape.bs(ep_rank), shape.combine_columns());
    let (send_counts, slots) = walked(case, rank);
    let [mut to, mut local_expert, mut slot, mut row] = [(); 4].map(|()| Vec::new());
    for token in (0..bs).map(Token) {
        for k in 0..columns {
            let pair = Pair { token, k };
            let home = route::home(shape, ep_rank, &inputs, pair);
            let receiver = home.map(|home| global_rank::named(shape.tp_world_size(), rank, home.rank, false));
            let row_of = |receiver| rows.get(&(receiver, ep_rank, token, k)).copied();
            to.push(receiver.map_or(ABSENT, |receiver| case.name(receiver).0 as i32));
            local_expert.push(home.map_or(ABSENT, |home| home.local_expert as i32));
            slot.push(home.map_or(ABSENT, |_| slots(pair)));
            row.push(receiver.and_then(row_of).unwrap_or(ABSENT));
        }
    }
    let of_pairs = vec![bs as usize, columns as usize];
    let tables = [
        ("destination", of_pairs.clone(), to),
        ("local_expert", of_pairs.clone(), local_expert),
        ("slot", of_pairs.clone(), slot),
        ("row", of_pairs, row),
        ("send_counts", vec![send_counts.len()], send_counts),
    ];
    let table = |(name, dims, values): (&str, Vec<usize>, Vec<i32>)| {
        stored(case, (rank, name), Dtype::I32, (dims, bytes_of(&values, i32::to_le_bytes)))
    };
    tables.into_iter().map(table).collect()
}

/// Rows for each destination, and the slot of each pair.
fn walked(case: &Case, rank: RankId) -> (Vec<i32>, impl Fn(Pair) -> i32) {
    let (shape, inputs) = (&case.shape, case.inputs(rank));
    let ep_rank = global_rank::ep_rank(shape, rank);
    let (k, s) = (shape.k(), shape.shared_expert_num());
    let moe = shape.bs(ep_rank) * k;
    let all = DispatchShare { moe: 0..moe, shared: 0..shape.bs(ep_rank) * s };
    let mut counts = vec![0; route::destinations(shape) as usize];
    let mut slots = vec![NO_SLOT; (all.moe.end + all.shared.end) as usize];
    route::walk(shape, ep_rank, &inputs, &all, &mut counts, &mut slots);
    let slot = move |Pair { token, k: column }: Pair| {
        let at = if column < k { token.0 * k + column } else { moe + token.0 * s + (column - k) };
        slots.get(at as usize).map_or(ABSENT, |slot| slot.cast_signed())
    };
    (counts.into_iter().map(u32::cast_signed).collect(), slot)
}
