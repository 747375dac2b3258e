//! The functions by which machines compute places, by name and indices, for tests: they are code of the [table](super::table),
//! and maps are its data.

use super::affine::{INDICES_MAX, Mode, Named};
use super::state::{self, Direct, Operator, Partition};
use super::{a2_message, a2_window, block, data, direct, outputs, relay, tp};
use crate::place::{Place, Tensor};
use crate::placement::Home;
use crate::shape::Shape;
use crate::units::{CoreId, Pair, RankId, Token};

/// The partition from which on what is inside a slot is measured.
const HALF: Partition = Partition::P0;

const fn half(partition: u32) -> Partition {
    if partition == 0 { Partition::P0 } else { Partition::P1 }
}

const fn at(offset: u64) -> Place {
    Place::window(offset)
}

/// Returns where the machines of `rank` have these indices of what a group of `shape` has.
pub(super) fn place(
    named: Named,
    shape: &Shape,
    mode: Mode,
    rank: RankId,
    [a, b, c, d, e]: [u32; INDICES_MAX],
) -> Place {
    let (dispatch, combine) = (Operator::Dispatch, Operator::Combine);
    let slot = |expert, source| state::dispatch_slot(shape, expert, RankId(source));
    let pair = |token, k| state::combine_slot(shape, Token(token), k);
    let parts =
        |number| direct::Parts::of(shape, rank, direct::Area { number, overwritten: mode.overwritten });
    let table = |word: Direct, expert| {
        let record = Direct::Counts.word(shape, HALF, RankId(0)).offset;
        at(word.entry(shape, HALF, RankId(0), expert).offset - record)
    };
    // A record after the last one would begin before its stream.
    let gathered = |kind, record| {
        let stream = relay::stream_start(shape, HALF, 0);
        at(relay::gathered(shape, (HALF, kind), 0, record).wrapping_sub(stream))
    };
    let entry = |tensor, number| outputs::entry(shape, tensor, number);
    let sent = |token, k| {
        let pair = Pair { token: Token(token), k };
        entry(Tensor::SentRows, outputs::sent_row_number(shape, rank, pair))
    };
    match named {
        Named::DispatchStatus => mode.slots.dispatch_status(half(a), slot(b, c)),
        Named::DirectRecords => Direct::Counts.word(shape, half(a), RankId(b)),
        Named::CombineStatus => mode.slots.combine_status(half(a), pair(b, c)),
        Named::ResultsReady => state::results_ready(half(a), RankId(b)),
        Named::DispatchSelectors => state::selector(dispatch, CoreId(a)),
        Named::CombineSelectors => state::selector(combine, CoreId(a)),
        Named::Tasks => a2_message::task_word(half(a), RankId(b), 0),
        Named::Doorbell => a2_message::doorbell(),
        Named::CoreWords => state::core_word(CoreId(a), 0),
        Named::CoreSums => state::core_sums(shape, CoreId(a)),
        Named::CombineRows => data::combine_row(shape, half(a), Token(b), c),
        Named::DispatchRecords => {
            let rs = shape.shared_expert_rank_num();
            let owner = RankId(b + if rank.0 < rs { 0 } else { rs });
            let home = Home { rank: owner, local_expert: d };
            data::dispatch_record(shape, half(a), home, RankId(c), e)
        }
        Named::Rows | Named::OverwrittenRows => parts(a).row(b),
        Named::Infos => parts(a).info(b),
        Named::Results => parts(a).result(b),
        Named::WindowsIn => a2_window::window_in(shape, half(a), RankId(b), 0),
        Named::BufferChosen => a2_window::buffer_chosen(shape),
        Named::WindowsOut => a2_window::window_out(shape, half(a), RankId(b), 0),
        Named::TpDispatchSlots => tp::slot(dispatch, half(a), CoreId(b)),
        Named::TpCombineSlots => tp::slot(combine, half(a), CoreId(b)),
        Named::TpDispatchSelectors => tp::selector(dispatch, CoreId(a)),
        Named::TpCombineSelectors => tp::selector(combine, CoreId(a)),
        Named::TpRecords => tp::record(shape, rank, half(a), b),
        Named::TpResults => tp::result(shape, rank, half(a), b),
        Named::Epochs => relay::epoch(CoreId(a)),
        Named::Entered => relay::entered(a),
        Named::RowsDone => relay::rows_done(a, CoreId(b)),
        Named::EndFlags => relay::end_flag(half(a), b),
        Named::Counts => relay::count(shape, half(a), b, RankId(c)),
        Named::RelayRecords => relay::record(shape, half(a), b, c),
        Named::StreamsIn => at(relay::stream_start(shape, half(a), b)),
        Named::NearSlots => relay::dispatch_slot(shape, a, RankId(b), c),
        Named::StreamsOut => Place::window_out(relay::stream_start(shape, half(a), b)),
        Named::ReturnedSlots => relay::combine_slot(shape, a, Token(b), c),
        Named::Blocks => block::block(at(0), a),
        Named::BlockFlags => block::flag(at(0), a),
        Named::CountTable => table(Direct::Counts, a),
        Named::GrantTable => table(Direct::Grants, a),
        Named::SumTable | Named::WindowCounts => at(4 * u64::from(a)),
        Named::WindowRecords => at(a2_window::record(shape, a)),
        Named::DispatchFlags => at(a2_window::tail_flag(shape, dispatch, a)),
        Named::WindowRows => at(a2_window::row(shape, a)),
        Named::CombineFlags => at(a2_window::tail_flag(shape, combine, a)),
        Named::TokenRecords => gathered(dispatch, a),
        Named::SumRecords => gathered(combine, a),
        Named::ExpandX => outputs::expand_x(shape, a),
        Named::DynamicScales => entry(Tensor::DynamicScales, a),
        Named::AssistInfo => entry(Tensor::AssistInfo, a),
        Named::RowTable => entry(Tensor::RowTable, a),
        Named::ExpandScales => entry(Tensor::ExpandScales, a),
        Named::ExpandIdx => entry(Tensor::ExpandIdx, a * shape.k() + b),
        Named::ExpertTokenNums => entry(Tensor::ExpertTokenNums, a),
        Named::EpRecvCounts => entry(Tensor::EpRecvCounts, slot(a, b)),
        Named::PeerRecvCounts => entry(Tensor::EpRecvCounts, shape.ep_world_size() + a),
        Named::TpRecvCounts => entry(Tensor::TpRecvCounts, a),
        Named::SentRows => sent(a, b),
        Named::SharedSentRows => sent(a, shape.k() + b),
        Named::XOut => outputs::x_out(shape, Token(a)),
        Named::X => entry(Tensor::X, a),
        Named::Rstd => entry(Tensor::Rstd, a),
        Named::Y => entry(Tensor::Y, a),
    }
}
