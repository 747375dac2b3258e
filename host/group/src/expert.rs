//! The stand-in expert: `y = round_to_dtype(v * gain[e])`, with TP = 2 half of that, `v` the received row in f32. A gain of
//! its own for every expert makes a misrouted row a wrong result.

use crate::backend::{Backend, Reader};
use veriep_case::batch::Batch;
use veriep_case::global_rank;
use veriep_core::fabric::{Fabric, Fault, ProtocolError};
use veriep_core::layout::outputs::ep_recv_counts_bytes;
use veriep_core::layout::row_table;
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::placement::Home;
use veriep_core::protocol::Receive;
use veriep_core::reference::numerics;
use veriep_core::shape::Shape;
use veriep_core::units::RankId;

/// Puts the expert's result for one received row behind `y`. `scale` is the row's dynamic scale.
pub fn apply(shape: &Shape, row: &[u8], scale: f32, gain: f32, y: &mut Vec<u8>) {
    // TP peers return as much each as makes the whole together.
    let share = if shape.tp_world_size() == 2 { 0.5 } else { 1.0 };
    let mut values = numerics::received(shape, row, scale);
    values.iter_mut().for_each(|value| *value = *value * gain * share);
    y.extend(numerics::rounded(shape.dtype(), &values));
}

/// Reads bytes of what dispatch has put out: of an output, as far as it goes, or of the window.
pub type Read<'r> = &'r dyn Fn(Place, u64, Reader<'_>) -> Result<(), Fault>;

/// Reads a rank's outputs of a batch, and its window through a fabric of its own.
pub fn reading<B: Backend>(
    backend: &B,
    fabric: &impl Fabric,
    rank: RankId,
    batch: usize,
) -> impl Fn(Place, u64, Reader<'_>) -> Result<(), Fault> {
    move |at, len, read| match at.region {
        Region::Output(tensor) => {
            let (start, end) = (at.offset as usize, (at.offset + len) as usize);
            backend.read_output(rank, batch, tensor, end, &mut |bytes| read(&bytes[start..]));
            Ok(())
        }
        _ => fabric.bytes(at, len).map(read),
    }
}

/// Runs all experts of a rank on what dispatch put out. Leaves one row in `y` for every row received, and tells where these
/// were: stretches of memory.
///
/// # Errors
/// `ep_recv_counts` are not prefix sums within the capacity, or a row is not in the window: the group has gone wrong.
pub fn run(
    shape: &Shape,
    batch: &Batch<'_>,
    (rank, receive): (RankId, Receive),
    read: Read<'_>,
    y: &mut Vec<u8>,
) -> Result<Vec<(Place, u64)>, ProtocolError> {
    y.clear();
    let rank = global_rank::ep_rank(shape, rank);
    let ends = expert_ends(shape, rank, read)?;
    let rows = ends.last().copied().unwrap_or(0);
    let (mut scales, mut table) = (vec![0.0; rows], Vec::new());
    if shape.row_format().scale.is_some() {
        read(Place::output(Tensor::DynamicScales, 0), rows as u64 * 4, &mut |bytes| {
            scales = bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        })?;
    }
    if receive.keeps_rows() {
        let entries = rows.max(1) as u64 * row_table::ENTRY;
        read(Place::output(Tensor::RowTable, 0), entries, &mut |bytes| table = bytes.to_vec())?;
    }
    let (mut row, mut local_expert) = (0, 0);
    let stretches: Vec<_> = receive.rows(shape, rows as u32, &table).collect();
    for &(at, len) in &stretches {
        read(at, len, &mut |bytes| {
            for bytes in bytes.chunks_exact(shape.payload_bytes() as usize) {
                while ends.get(local_expert as usize).is_some_and(|&end| row >= end) {
                    local_expert += 1;
                }
                let gain = batch.gain(shape.expert_row(Home { rank, local_expert }));
                apply(shape, bytes, scales[row], gain, y);
                row += 1;
            }
        })?;
    }
    Ok(stretches)
}

/// Leaves as many bytes in `y` as [`run`] does, all of them 0.
///
/// # Errors
/// `ep_recv_counts` are not prefix sums within the capacity: the group has gone wrong.
pub fn return_zeros(
    shape: &Shape,
    rank: RankId,
    read: Read<'_>,
    y: &mut Vec<u8>,
) -> Result<(), ProtocolError> {
    let ends = expert_ends(shape, global_rank::ep_rank(shape, rank), read)?;
    let rows = ends.last().copied().unwrap_or(0);
    y.clear();
    y.resize(rows * shape.row_bytes() as usize, 0);
    Ok(())
}

/// Puts rows that are elsewhere into `expand_x`, for code that looks at them later.
///
/// # Errors
/// They are not in the window.
pub fn keep_rows(fabric: &mut impl Fabric, stretches: &[(Place, u64)]) -> Result<(), Fault> {
    let mut to = Place::output(Tensor::ExpandX, 0);
    for &(from, len) in stretches.iter().filter(|(from, _)| from.region == Region::Window) {
        fabric.deliver(to, from, len)?;
        to.offset += len;
    }
    Ok(())
}

/// One past the last row of each local expert, from `ep_recv_counts`.
///
/// # Errors
/// They are no prefix sums within the capacity: the group has gone wrong.
pub(crate) fn expert_ends(shape: &Shape, rank: RankId, read: Read<'_>) -> Result<Vec<usize>, ProtocolError> {
    let mut counts = Vec::new();
    let len = ep_recv_counts_bytes(shape, rank);
    read(Place::output(Tensor::EpRecvCounts, 0), len, &mut |bytes| {
        counts = bytes.as_chunks().0.iter().map(|&count| i32::from_le_bytes(count)).collect();
    })?;
    let slots = shape.local_experts(rank) as usize * shape.ep_world_size() as usize;
    let of_peers = counts.chunks_exact(slots).map(|counts| ends_of(shape, rank, counts));
    // With a TP domain a rank has one expert: the peer's rows follow its own.
    let ends = of_peers.collect::<Result<Vec<_>, _>>()?;
    Ok(match ends.as_slice() {
        [own, peers] => own.iter().zip(peers).map(|(own, peers)| own + peers).collect(),
        _ => ends.concat(),
    })
}

/// The same of what one rank has received itself.
fn ends_of(shape: &Shape, rank: RankId, counts: &[i32]) -> Result<Vec<usize>, ProtocolError> {
    let (mut last, max) = (0, shape.rows_max(rank));
    for &seen in counts {
        if seen < last || seen as u64 > max {
            return Err(ProtocolError::RecvCounts { seen: seen.into(), max });
        }
        last = seen;
    }
    let of_expert = counts.chunks_exact(shape.ep_world_size() as usize);
    Ok(of_expert.filter_map(|counts| counts.last()).map(|&end| end as usize).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use veriep_case::presets::preset;
    use veriep_core::shape::{Given, Limits};

    fn tiny(set: &[&str]) -> Shape {
        let (mut config, _) = preset("tiny").expect("a preset");
        set.iter().for_each(|s| config.set(s).expect("a key"));
        Shape::new(&config.as_core(Given::empty()), Limits::Product).expect("valid")
    }

    #[test]
    fn a_row_is_multiplied_and_rounded_once() {
        let mut y = Vec::new();
        let row: Vec<u8> =
            [1.0, -2.5, f32::NAN].iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        apply(&tiny(&[]), &row, 0.0, 1.5, &mut y);
        let seen: Vec<u16> = y.as_chunks().0.iter().map(|&b| u16::from_le_bytes(b)).collect();
        assert_eq!(seen, [0x3FC0, 0xC070, 0x7FC0]);
    }

    #[test]
    fn a_quantised_row_is_dequantised_first() {
        let mut y = Vec::new();
        apply(&tiny(&["quant_mode=2", "dtype=f16"]), &[127, 0x81], 2.0, 0.5, &mut y);
        let seen: Vec<f32> = y.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect();
        assert_eq!(seen, [127.0, -127.0]);
    }
}
