//! Numbers and their meanings.

use crate::given::read;
use crate::types::veriep_choices;
use kernel_core::fabric::{Capabilities, Fault};
use kernel_core::layout::state::{Operator, STATE_BYTES, Slots};
use kernel_core::layout::tp::TP_STATE_BYTES;
use kernel_core::place::{Region, Tensor};
use kernel_core::plan::order::SendOrder;
use kernel_core::protocol::{Choices, Fingerprints, Flags, Receive, Stage};
use kernel_core::shape::{Dtype, Given, Limits, Op, Protocol};

/// The version of this interface. A program that was compiled for another one is refused when it makes its configuration.
pub const VERIEP_ABI_VERSION: u32 = 5;

/// All went well. Of a step: the operator, or the half that was begun, has ended on this core; what it wrote may still have to land.
pub const VERIEP_OK: i32 = 0;
/// Of a step: the core has taken as many steps as it was told to.
pub const VERIEP_STEPPED: i32 = 1;
/// Of a step: the core waits for others, and the last of its steps changed nothing. The status says how many moved before.
pub const VERIEP_PENDING: i32 = 2;
/// A pointer is null that must not be.
pub const VERIEP_E_NULL: i32 = -1;
/// The program was compiled for another version of this interface.
pub const VERIEP_E_VERSION: i32 = -2;
/// A number has no meaning here: a code, a rank; an address or length is not a multiple of what it must be.
pub const VERIEP_E_ARGUMENT: i32 = -3;
/// A call out of its order: the object was not made, no operator was begun, one is running, or the core has failed.
pub const VERIEP_E_ORDER: i32 = -4;
/// A buffer of the caller is too short.
pub const VERIEP_E_SHORT: i32 = -5;
/// The configuration or `elastic_info` breaks rules; the text has a line for each.
pub const VERIEP_E_CONFIG: i32 = -6;
/// The inputs of a rank break rules; the text has a line for each.
pub const VERIEP_E_INPUTS: i32 = -7;
/// The core cannot take part: the shape does not have it or what it chose, this library is built without it, or the memory
/// lacks a call that it would make; or it was made for another shape than the context's. The text says what.
pub const VERIEP_E_REFUSED: i32 = -8;
/// A value of another rank, or one that combine was given, cannot be. The group is dead; the text says why.
pub const VERIEP_E_PROTOCOL: i32 = -9;
/// The fabric refused a call. The group is dead; the status has the fabric's own code.
pub const VERIEP_E_FABRIC: i32 = -10;
/// The rank's gates refuse the operator as long as others may still read what it would write, or this rank has not. Nothing has begun;
/// the text says what must end before.
pub const VERIEP_E_EARLY: i32 = -11;

/// Only what the product takes.
pub const VERIEP_LIMITS_PRODUCT: u32 = 0;
/// All that the arithmetic allows: for tests with tiny shapes.
pub const VERIEP_LIMITS_NONE: u32 = 1;

/// A3, the plain layout.
pub const VERIEP_FULLMESH_V1: u32 = 0;
/// A3, fullmesh_v2.
pub const VERIEP_FULLMESH_V2: u32 = 1;
/// A2, the full mesh.
pub const VERIEP_A2_FULLMESH: u32 = 2;
/// A2, the hierarchy.
pub const VERIEP_A2_HIERARCHY: u32 = 3;

/// The operator behind dispatch is combine.
pub const VERIEP_OP_COMBINE: u32 = 0;
/// The operator behind dispatch is combine with AddRmsNorm.
pub const VERIEP_OP_COMBINE_ADD_RMS_NORM: u32 = 1;

/// Rows of bfloat16.
pub const VERIEP_BF16: u32 = 0;
/// Rows of IEEE half precision.
pub const VERIEP_F16: u32 = 1;

/// `scales` is given.
pub const VERIEP_GIVEN_SCALES: u32 = 1;
/// `x_active_mask` of shape `[bs]` is given.
pub const VERIEP_GIVEN_MASK_1D: u32 = 2;
/// `x_active_mask` of shape `[bs, k]` is given.
pub const VERIEP_GIVEN_MASK_2D: u32 = 4;
/// `elastic_info` that is switched on is given.
pub const VERIEP_GIVEN_ELASTIC_INFO: u32 = 8;
/// `shared_expert_x` is given.
pub const VERIEP_GIVEN_SHARED_EXPERT_X: u32 = 16;
/// `expert_map` is given.
pub const VERIEP_GIVEN_EXPERT_MAP: u32 = 32;

/// Rows go to their experts.
pub const VERIEP_DISPATCH: u32 = 0;
/// Results come back and are summed.
pub const VERIEP_COMBINE: u32 = 1;

/// Cores send from their first item to the last.
pub const VERIEP_ORDER_PLAIN: u32 = 0;
/// Each rank begins elsewhere.
pub const VERIEP_ORDER_STAGGERED: u32 = 1;
/// Each rank begins with another destination.
pub const VERIEP_ORDER_DESTINATIONS: u32 = 2;
/// Each rank begins elsewhere, and consecutive items go to different ranks.
pub const VERIEP_ORDER_STRIDE: u32 = 3;

/// One word with flag and count after the records.
pub const VERIEP_FLAGS_JOINT: u32 = 0;
/// Counts before the records, flags behind them.
pub const VERIEP_FLAGS_SEPARATE: u32 = 1;

/// Status slots are 32 bytes apart, as the shipped operators have them (A3).
pub const VERIEP_SLOTS_32: u32 = 0;
/// They are 64 bytes apart, for a memory that writes back whole lines.
pub const VERIEP_SLOTS_64: u32 = 1;

/// Experts find rows in `expand_x`.
pub const VERIEP_RECEIVE_COPY: u32 = 0;
/// Experts find rows in the window, by the row table.
pub const VERIEP_RECEIVE_IN_PLACE: u32 = 1;
/// Sources put rows where experts want them; one batch is in flight. Needs `peer_bytes`.
pub const VERIEP_RECEIVE_DIRECT: u32 = 2;
/// The same with two batches in flight.
pub const VERIEP_RECEIVE_DIRECT_2: u32 = 3;
/// As with direct placement of one batch, with results in the places of their rows.
pub const VERIEP_RECEIVE_OVERWRITE: u32 = 4;
/// The same with two batches in flight.
pub const VERIEP_RECEIVE_OVERWRITE_2: u32 = 5;

/// In a hierarchy the agent sends to other servers, a task for each.
pub const VERIEP_STAGE_2: u32 = 2;
/// In a hierarchy the cores send to other servers, a message for each token. Needs `send`.
pub const VERIEP_STAGE_3: u32 = 3;

/// The fabric has `peer_bytes`.
pub const VERIEP_CAN_PEER_BYTES: u32 = 1;
/// The fabric has `send`.
pub const VERIEP_CAN_SEND: u32 = 2;
/// The fabric has `lend`.
pub const VERIEP_CAN_LEND: u32 = 4;
/// The fabric has `prefetch`.
pub const VERIEP_CAN_PREFETCH: u32 = 8;

/// The state region: flags, selectors, core words; zero when the group is made.
pub const VERIEP_STATE: u32 = 0;
/// The window: rows. On A2 it is WindowsIn. Zero when the group is made.
pub const VERIEP_WINDOW: u32 = 1;
/// A2's WindowsOut, which only this rank uses.
pub const VERIEP_WINDOW_OUT: u32 = 2;
/// The state region of the TP domain; ranks are named by their number in it.
pub const VERIEP_TP_STATE: u32 = 3;
/// The window of the TP domain; ranks are named by their number in it.
pub const VERIEP_TP_WINDOW: u32 = 4;
/// Output tensor `n` is region `VERIEP_OUTPUT + n`.
pub const VERIEP_OUTPUT: u32 = 16;

/// Bytes of a state region, also of the TP domain's.
pub const VERIEP_STATE_BYTES: u64 = 1_048_576;

/// `expand_x`, received rows as they travel.
pub const VERIEP_EXPAND_X: u32 = 0;
/// `dynamic_scales`, f32 per row.
pub const VERIEP_DYNAMIC_SCALES: u32 = 1;
/// `assist_info_for_combine`, three i32 per row.
pub const VERIEP_ASSIST_INFO: u32 = 2;
/// `expand_idx`, i32 per (token, k).
pub const VERIEP_EXPAND_IDX: u32 = 3;
/// `expert_token_nums`, i64 per local expert.
pub const VERIEP_EXPERT_TOKEN_NUMS: u32 = 4;
/// `ep_recv_counts`, i32 per (local expert, source rank): how many rows there are up to there.
pub const VERIEP_EP_RECV_COUNTS: u32 = 5;
/// `x_out`, rows of dtype: the result.
pub const VERIEP_X_OUT: u32 = 6;
/// `x` of AddRmsNorm, rows of dtype.
pub const VERIEP_X: u32 = 7;
/// `rstd` of AddRmsNorm, f32 per token.
pub const VERIEP_RSTD: u32 = 8;
/// `y` of AddRmsNorm, rows of dtype.
pub const VERIEP_Y: u32 = 9;
/// `tp_recv_counts`, i32 per TP rank.
pub const VERIEP_TP_RECV_COUNTS: u32 = 10;
/// The row table, u64 per row: where it is in the window.
pub const VERIEP_ROW_TABLE: u32 = 11;
/// `sent_rows` of direct placement, i32 per pair.
pub const VERIEP_SENT_ROWS: u32 = 12;
/// `expand_scales`, f32 per row (hierarchy).
pub const VERIEP_EXPAND_SCALES: u32 = 13;
/// How many output tensors there are.
pub const VERIEP_TENSORS: usize = 14;

/// No `x_active_mask`.
pub const VERIEP_MASK_NONE: u32 = 0;
/// `x_active_mask` has a byte for each token.
pub const VERIEP_MASK_TOKENS: u32 = 1;
/// `x_active_mask` has a byte for each token and k.
pub const VERIEP_MASK_PAIRS: u32 = 2;
/// A call without a number: each core counts its calls.
pub const VERIEP_CALL_COUNTED: u32 = u32::MAX;
/// The rank has no token, and takes part: its experts serve the others.
pub const VERIEP_MASK_ABSTAINS: u32 = 3;

/// A row of `dtype` times the weight.
pub const VERIEP_TERM_ROW: u32 = 0;
/// int8 elements and, for each 8 of them, a scale of `dtype`: `element * scale`, rounded to `dtype`, times the weight.
pub const VERIEP_TERM_BLOCKS: u32 = 1;
/// `alphas[0] * rows[0] + alphas[1] * rows[1]`, each product and the sum rounded in float, times the weight.
pub const VERIEP_TERM_MIX: u32 = 2;

/// The answer of a function of `veriep_fabric` that has no room for an effect now, and has done nothing.
pub const VERIEP_BUSY: i32 = -2147483647;

/// The core waits for another value of the word at a place.
pub const VERIEP_AWAITS_WORD: u32 = 0;
/// The core waits for a change in so many bytes at a place.
pub const VERIEP_AWAITS_BYTES: u32 = 1;
/// The core waits until `quiet` answers yes.
pub const VERIEP_AWAITS_QUIET: u32 = 2;
/// The agent waits until the network interface takes another task, or the core until the memory has room for an effect.
pub const VERIEP_AWAITS_ROOM: u32 = 3;

/// No rank, no partition, all cores.
pub const VERIEP_NONE: u32 = u32::MAX;

/// Words of 8 bytes that stand for parameters and areas of a rank.
pub const VERIEP_FINGERPRINTS: usize = 65;

/// Refuses an argument.
pub(crate) type Said<T = i32> = Result<T, i32>;

/// The code that says what became of a call.
pub(crate) fn code(said: Said) -> i32 {
    said.unwrap_or_else(|error| error)
}

fn nth<T: Copy>(all: &[T], code: u32) -> Said<T> {
    all.get(code as usize).copied().ok_or(VERIEP_E_ARGUMENT)
}

/// Of a code, in the order of the codes.
pub(crate) fn protocol(code: u32) -> Said<Protocol> {
    nth(&[Protocol::FullmeshV1, Protocol::FullmeshV2, Protocol::Fullmesh, Protocol::Hierarchy], code)
}

pub(crate) fn op(code: u32) -> Said<Op> {
    nth(&[Op::Combine, Op::CombineAddRmsNorm], code)
}

pub(crate) fn dtype(code: u32) -> Said<Dtype> {
    nth(&[Dtype::Bf16, Dtype::F16], code)
}

pub(crate) fn limits(code: u32) -> Said<Limits> {
    nth(&[Limits::Product, Limits::None], code)
}

pub(crate) fn operator(code: u32) -> Said<Operator> {
    nth(&[Operator::Dispatch, Operator::Combine], code)
}

pub(crate) fn order(code: u32) -> Said<SendOrder> {
    nth(&SendOrder::ALL, code)
}

/// Choices; null are those by default.
///
/// # Safety
/// As of [`read`].
pub(crate) unsafe fn choices(given: *const veriep_choices) -> Said<Choices> {
    if given.is_null() {
        return Ok(Choices { checked: true, ..Choices::default() });
    }
    // SAFETY: the caller's.
    let given = unsafe { read(given) }?;
    let (direct, overwrite) = (|areas| Receive::Direct { areas }, |areas| Receive::Overwrite { areas });
    let received = [Receive::Copy, Receive::InPlace, direct(1), direct(2), overwrite(1), overwrite(2)];
    Ok(Choices {
        order: order(given.order)?,
        flags: nth(&[Flags::Joint, Flags::Separate], given.flags)?,
        receive: nth(&received, given.receive)?,
        stage: match given.stage {
            VERIEP_STAGE_2 => Stage::Two,
            VERIEP_STAGE_3 => Stage::Three,
            _ => return Err(VERIEP_E_ARGUMENT),
        },
        checked: nth(&[false, true], given.checked)?,
        slots: nth(&[Slots::Shipped, Slots::Lines], given.slots)?,
    })
}

pub(crate) const fn region(region: Region) -> u32 {
    match region {
        Region::State => VERIEP_STATE,
        Region::Window => VERIEP_WINDOW,
        Region::WindowOut => VERIEP_WINDOW_OUT,
        Region::TpState => VERIEP_TP_STATE,
        Region::TpWindow => VERIEP_TP_WINDOW,
        Region::Output(tensor) => VERIEP_OUTPUT + tensor as u32,
    }
}

const _: () = {
    assert!(VERIEP_STATE_BYTES == STATE_BYTES && VERIEP_STATE_BYTES == TP_STATE_BYTES);
    assert!(VERIEP_BUSY == Fault::BUSY);
    assert!(VERIEP_TENSORS == Tensor::ALL.len());
    assert!(VERIEP_FINGERPRINTS * 8 == size_of::<Fingerprints>());
    assert!(
        VERIEP_EXPAND_X == Tensor::ExpandX as u32 && VERIEP_DYNAMIC_SCALES == Tensor::DynamicScales as u32
    );
    assert!(VERIEP_ASSIST_INFO == Tensor::AssistInfo as u32 && VERIEP_EXPAND_IDX == Tensor::ExpandIdx as u32);
    assert!(VERIEP_EXPERT_TOKEN_NUMS == Tensor::ExpertTokenNums as u32);
    assert!(VERIEP_EP_RECV_COUNTS == Tensor::EpRecvCounts as u32 && VERIEP_X_OUT == Tensor::XOut as u32);
    assert!(
        VERIEP_X == Tensor::X as u32 && VERIEP_RSTD == Tensor::Rstd as u32 && VERIEP_Y == Tensor::Y as u32
    );
    assert!(
        VERIEP_TP_RECV_COUNTS == Tensor::TpRecvCounts as u32 && VERIEP_ROW_TABLE == Tensor::RowTable as u32
    );
    assert!(
        VERIEP_SENT_ROWS == Tensor::SentRows as u32 && VERIEP_EXPAND_SCALES == Tensor::ExpandScales as u32
    );
    assert!(
        VERIEP_CAN_PEER_BYTES == Capabilities::PEER_BYTES.bits()
            && VERIEP_CAN_LEND == Capabilities::LEND.bits()
    );
    assert!(
        VERIEP_CAN_SEND == Capabilities::SEND.bits() && VERIEP_CAN_PREFETCH == Capabilities::PREFETCH.bits()
    );
    assert!(VERIEP_GIVEN_SCALES == Given::SCALES.bits() && VERIEP_GIVEN_MASK_1D == Given::MASK_1D.bits());
    assert!(VERIEP_GIVEN_MASK_2D == Given::MASK_2D.bits());
    assert!(VERIEP_GIVEN_ELASTIC_INFO == Given::ELASTIC_INFO.bits());
    assert!(VERIEP_GIVEN_SHARED_EXPERT_X == Given::SHARED_EXPERT_X.bits());
    assert!(VERIEP_GIVEN_EXPERT_MAP == Given::EXPERT_MAP.bits());
};
