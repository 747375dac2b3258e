//! Types that C and this crate exchange.

use crate::codes::{VERIEP_FINGERPRINTS, VERIEP_TENSORS};
use core::ffi::{c_char, c_void};

/// Words of 8 bytes in a shape.
pub const VERIEP_SHAPE_WORDS: usize = 256;
/// Words of 8 bytes in a core.
pub const VERIEP_CORE_WORDS: usize = 36;
/// Words of 8 bytes in an expert map.
pub const VERIEP_EXPERT_MAP_WORDS: usize = 4;
/// Words of 8 bytes in an agent.
pub const VERIEP_AGENT_WORDS: usize = 8;
/// Words of 8 bytes in the gates of a rank.
pub const VERIEP_GATES_WORDS: usize = 4;
/// Words of 8 bytes in a ticket.
pub const VERIEP_TICKET_WORDS: usize = 2;

/// The parameters of a domain as given, by the names of the operators' documents. `veriep_config_default` fills it in.
#[repr(C)]
pub struct veriep_config {
    /// `VERIEP_ABI_VERSION`.
    pub abi_version: u32,
    /// `VERIEP_LIMITS_*`.
    pub limits: u32,
    /// `VERIEP_FULLMESH_V1`, ...: the communication layout, and so the product.
    pub comm_alg: u32,
    /// `VERIEP_OP_*`, the operator that follows dispatch. It is checked, and no part of the shape: a call's `veriep_inputs` say which
    /// combine it is.
    pub op: u32,
    /// `VERIEP_BF16` or `VERIEP_F16`.
    pub dtype: u32,
    /// `VERIEP_GIVEN_*`, those that hold.
    pub given: u32,
    /// Ranks of the EP domain, R.
    pub ep_world_size: i64,
    /// Ranks of a server (A2): 8, except in tests. A group of fewer ranks is one server.
    pub server_ranks: i64,
    /// Ranks of the TP domain; 0 and 1 mean none.
    pub tp_world_size: i64,
    /// MoE experts of the whole domain, E.
    pub moe_expert_num: i64,
    /// Shared experts, S.
    pub shared_expert_num: i64,
    /// Ranks that hold shared experts only, Rs.
    pub shared_expert_rank_num: i64,
    /// Zero experts.
    pub zero_expert_num: i64,
    /// Copy experts.
    pub copy_expert_num: i64,
    /// Const experts.
    pub const_expert_num: i64,
    /// Experts per token, K.
    pub k: i64,
    /// Elements of a token, H.
    pub h: i64,
    /// Tokens of each rank, BS, where all have as many; or of the rank `bs_rank`.
    pub bs: i64,
    /// Tokens of each rank, one entry per EP rank; null where all have `bs`.
    pub bs_per_rank: *const i64,
    /// Its entries.
    pub bs_per_rank_len: usize,
    /// Tokens of the whole domain, or 0.
    pub global_bs: i64,
    /// 0 none, 2 dynamic int8 in dispatch.
    pub quant_mode: i64,
    /// 0 none, 2 int8 blocks in combine.
    pub comm_quant_mode: i64,
    /// 0 prefix sums, 1 counts.
    pub expert_token_nums_type: i64,
    /// MiB of a rank's window.
    pub hccl_buffsize_mb: i64,
    /// Bytes added per source rank in front of its records (A3).
    pub port_offset: i64,
    /// Cores of each rank.
    pub aiv_num: i64,
    /// Epsilon of AddRmsNorm.
    pub norm_eps: f32,
    /// `VERIEP_NONE`; or the EP rank that has `bs` tokens, where of the others no more is known than that they have at most
    /// `global_bs / R`, as with an operator's call. The shape makes cores of that rank alone, and takes a round.
    pub bs_rank: u32,
}

/// A configuration that has been checked. It may be copied, and all cores of a program may read one.
#[repr(C)]
pub struct veriep_shape {
    /// Private to the library.
    pub opaque: [u64; VERIEP_SHAPE_WORDS],
}

/// A core of a rank and the operator that it runs. It may be moved between steps.
#[repr(C)]
pub struct veriep_core {
    /// Private to the library.
    pub opaque: [u64; VERIEP_CORE_WORDS],
}

/// An `expert_map` that has been checked. It leads to the caller's words, which stay where they are and as they are.
#[repr(C)]
pub struct veriep_expert_map {
    /// Private to the library.
    pub opaque: [u64; VERIEP_EXPERT_MAP_WORDS],
}

/// The agent of a rank (A2).
#[repr(C)]
pub struct veriep_agent {
    /// Private to the library.
    pub opaque: [u64; VERIEP_AGENT_WORDS],
}

/// Where in a rank's memory: `VERIEP_STATE`, ..., and bytes from there.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct veriep_place {
    /// The region.
    pub region: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes from its start.
    pub offset: u64,
}

/// Bytes to read: a tensor, little-endian. Null is one that is not given. Tensors of `int32_t` and `float` are aligned to 4
/// bytes; those of dtype may lie anywhere.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct veriep_bytes {
    /// The first.
    pub data: *const c_void,
    /// How many, in bytes.
    pub len: usize,
}

/// What does not change results, alike on all cores of all ranks. A protocol ignores what does not apply to it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct veriep_choices {
    /// `VERIEP_ORDER_*`.
    pub order: u32,
    /// `VERIEP_FLAGS_*`.
    pub flags: u32,
    /// `VERIEP_RECEIVE_*`.
    pub receive: u32,
    /// `VERIEP_STAGE_*`.
    pub stage: u32,
    /// 1: flags and counts have the number of their call beside them. 0: words as the shipped operators write them.
    pub checked: u32,
    /// `VERIEP_SLOTS_*`.
    pub slots: u32,
}

/// What the memory of a rank must hold, in bytes but for what says otherwise.
#[repr(C)]
pub struct veriep_sizes {
    /// The state region.
    pub state: u64,
    /// The window.
    pub window: u64,
    /// WindowsOut; 0 but on A2.
    pub window_out: u64,
    /// The state region of the TP domain; 0 without one.
    pub tp_state: u64,
    /// Its window; 0 without one.
    pub tp_window: u64,
    /// The output tensors, by their numbers; 0 for what the shape does not have. Only combine with AddRmsNorm writes `x`, `rstd` and
    /// `y`: a rank that calls none needs no memory for them.
    pub outputs: [u64; VERIEP_TENSORS],
    /// Of `ep_recv_counts` the bytes that are counts; the last count is the number of received rows.
    pub ep_recv_counts: u64,
    /// The most rows that the rank receives.
    pub rows_max: u64,
    /// A received row.
    pub row: u64,
    /// Words of 4 bytes that a core needs as scratch.
    pub scratch_words: usize,
    /// Bytes that a core needs as scratch besides.
    pub scratch_bytes: usize,
    /// EP ranks, of an elastic domain those that are left.
    pub ep_world_size: u32,
    /// Experts of this rank.
    pub local_experts: u32,
    /// Tokens of this rank.
    pub bs: u32,
    /// Cores of each rank.
    pub aiv_num: u32,
}

/// A row of equal slots in a region.
#[repr(C)]
pub struct veriep_area {
    /// What is there, with a zero after it.
    pub name: [c_char; 32],
    /// `VERIEP_STATE`, ...
    pub region: u32,
    /// 0, 1 or `VERIEP_NONE`.
    pub partition: u32,
    /// Bytes from the start of the region.
    pub start: u64,
    /// Slots.
    pub count: u64,
    /// Bytes between the starts of two slots.
    pub stride: u64,
    /// Bytes of a slot that are used.
    pub slot: u64,
}

/// A row that a rank sends in dispatch.
#[repr(C)]
pub struct veriep_send {
    /// The token.
    pub token: u32,
    /// k index, or `K + j` for shared expert `j`.
    pub k: u32,
    /// The receiving rank.
    pub rank: u32,
    /// The receiving expert there.
    pub local_expert: u32,
    /// Its number among this rank's rows for that expert.
    pub slot: u32,
}

/// Received rows that are one behind the other.
#[repr(C)]
pub struct veriep_rows {
    /// Where the first lies.
    pub at: veriep_place,
    /// Bytes of all.
    pub len: u64,
}

/// A number for each parameter that all ranks must have alike, then one for each area of their memory. The same on every
/// processor; compare all words.
#[repr(C)]
pub struct veriep_fingerprints {
    /// The numbers.
    pub words: [u64; VERIEP_FINGERPRINTS],
}

/// The tensors that a rank brings to a round.
#[repr(C)]
pub struct veriep_inputs {
    /// `[bs, h]` dtype.
    pub x: veriep_bytes,
    /// `[bs, k]` int32_t.
    pub expert_ids: veriep_bytes,
    /// `[bs, k]` float.
    pub expert_scales: veriep_bytes,
    /// `[bs]` or `[bs, k]` bytes, each 0 or 1.
    pub x_active_mask: veriep_bytes,
    /// `[S + E, h]` float.
    pub scales: veriep_bytes,
    /// `[bs, h]` dtype.
    pub shared_expert_x: veriep_bytes,
    /// `[q]` dtype.
    pub const_expert_alpha_1: veriep_bytes,
    /// `[q]` dtype.
    pub const_expert_alpha_2: veriep_bytes,
    /// `[q, h]` dtype.
    pub const_expert_v: veriep_bytes,
    /// `[bs, h]` dtype, AddRmsNorm. Combine is plain where both this and `gamma` are NULL and empty. Ranks and calls may differ.
    pub residual_x: veriep_bytes,
    /// `[h]` dtype, AddRmsNorm.
    pub gamma: veriep_bytes,
    /// `VERIEP_MASK_*`. With `VERIEP_MASK_ABSTAINS` the rank takes part with no token, and no tensor is read.
    pub mask_kind: u32,
    /// The number of the call, the same on all ranks, in dispatch and in the combine of its results, such as step times
    /// layers plus layer. A rank that leaves out a call is then refused (`VERIEP_E_PROTOCOL`). `VERIEP_CALL_COUNTED` where
    /// callers have no number: each core counts, and a left-out call is not seen.
    pub call: u32,
    /// For combine what `veriep_inputs_batch` gave for the inputs of its dispatch; `veriep_inputs_check` compares it. 0: it is not
    /// compared.
    pub dispatched: u64,
}

/// What combine is given besides: what the experts returned, and outputs of the same batch's dispatch. Each protocol reads
/// some of them; an output may be given with its whole capacity, but for `ep_recv_counts`.
#[repr(C)]
pub struct veriep_operands {
    /// `[rows, h]` dtype: a result for each received row. Unused with direct placement.
    pub y: veriep_bytes,
    /// `assist_info_for_combine` (A3, hierarchy).
    pub assist_info: veriep_bytes,
    /// `expand_scales` (hierarchy).
    pub expand_scales: veriep_bytes,
    /// `ep_recv_counts`, as long as the counts are.
    pub ep_recv_counts: veriep_bytes,
    /// `expand_idx` (A2 full mesh).
    pub expand_idx: veriep_bytes,
    /// `sent_rows` (direct placement).
    pub sent_rows: veriep_bytes,
    /// `row_table` (direct placement).
    pub row_table: veriep_bytes,
}

/// The memory of all ranks as one core sees it, as a table of functions. Each is given `context` first and answers 0, or a
/// code of its own other than 0 for what the memory does not hold. Those at the end may be null. None of them blocks.
///
/// `put`, `publish`, `store`, `write`, `deliver` and `send` may answer `VERIEP_BUSY` and do nothing: there is no room now. The
/// step is then `VERIEP_PENDING`, and a later one asks again for what is left.
///
/// `to` names a rank of the domain that the region belongs to: an EP rank, or for the TP regions a number in the TP domain.
#[repr(C)]
pub struct veriep_fabric {
    /// Handed to each function.
    pub context: *mut c_void,
    /// Writes a row and right after it a tail. It may land late and in pieces.
    pub put: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            to: u32,
            at: veriep_place,
            row: *const u8,
            row_len: usize,
            tail: *const u8,
            tail_len: usize,
        ) -> i32,
    >,
    /// Writes an aligned word. Who observes it sees all earlier puts of this core to that rank.
    pub publish:
        Option<unsafe extern "C" fn(context: *mut c_void, to: u32, at: veriep_place, word: u64) -> i32>,
    /// Writes to `landed` whether all that this core did has landed: 1 or 0.
    pub quiet: Option<unsafe extern "C" fn(context: *mut c_void, landed: *mut u32) -> i32>,
    /// Reads an aligned word of this rank, with acquire semantics.
    pub observe: Option<unsafe extern "C" fn(context: *mut c_void, at: veriep_place, word: *mut u64) -> i32>,
    /// Writes an aligned word of this rank.
    pub store: Option<unsafe extern "C" fn(context: *mut c_void, at: veriep_place, word: u64) -> i32>,
    /// Tells where bytes of this rank lie. They may be at any address, and stay as they are until a call
    /// that writes.
    pub bytes: Option<
        unsafe extern "C" fn(context: *mut c_void, at: veriep_place, len: u64, bytes: *mut *const u8) -> i32,
    >,
    /// Writes bytes into an output or WindowsOut of this rank.
    pub write: Option<
        unsafe extern "C" fn(context: *mut c_void, at: veriep_place, bytes: *const u8, len: usize) -> i32,
    >,
    /// Copies bytes of its own window or TP window into an output.
    pub deliver: Option<
        unsafe extern "C" fn(context: *mut c_void, output: veriep_place, from: veriep_place, len: u64) -> i32,
    >,
    /// Optional: tells where bytes of any rank's window lie.
    pub peer_bytes: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            rank: u32,
            at: veriep_place,
            len: u64,
            bytes: *mut *const u8,
        ) -> i32,
    >,
    /// Optional: writes whole words to a rank of another server as one message.
    pub send: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            to: u32,
            at: veriep_place,
            message: *const u8,
            len: usize,
        ) -> i32,
    >,
    /// Optional: where an output lies, to be written there; null for what is not lent.
    pub lend: Option<unsafe extern "C" fn(context: *mut c_void, output: veriep_place, len: u64) -> *mut u8>,
    /// Optional: these bytes are read soon.
    pub prefetch: Option<unsafe extern "C" fn(context: *mut c_void, bytes: *const u8, len: usize)>,
    /// The aligned line in bytes, a power of two, of which `publish` and `store` may write back the bytes around their word as they
    /// were at any moment since the call. 0 is the word alone. A step answers `VERIEP_E_ARGUMENT` to a line of another length, and
    /// `VERIEP_E_REFUSED` if the core's choices do not keep words as far apart; `VERIEP_SLOTS_64` keeps lines of 64 bytes apart.
    pub line: u64,
}

/// The network interface of an agent, as a table of functions.
#[repr(C)]
pub struct veriep_nic {
    /// Handed to each function.
    pub context: *mut c_void,
    /// Reads an aligned word of this rank's state region, with acquire semantics.
    pub observe: Option<unsafe extern "C" fn(context: *mut c_void, at: veriep_place, word: *mut u64) -> i32>,
    /// Carries `len` bytes from its own WindowsOut to the window of rank `to`, word by word in the order of addresses. Writes
    /// to `posted` whether it will: 1, or 0 if there is no room now. Transfers may overtake each other. What
    /// is at `from` stays as it is until the last word of this one has landed.
    pub post: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            to: u32,
            from: veriep_place,
            at: veriep_place,
            len: u64,
            posted: *mut u32,
        ) -> i32,
    >,
}

/// A stretch of memory; its address is a multiple of 8.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct veriep_segment {
    /// The first byte; may be null if there is none.
    pub base: *mut u8,
    /// Bytes.
    pub len: u64,
}

/// The memory of a rank that others reach; of a number in the TP domain its TP regions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct veriep_peer {
    /// The state region.
    pub state: veriep_segment,
    /// The window.
    pub window: veriep_segment,
    /// WindowsOut, of this rank on A2; else empty.
    pub window_out: veriep_segment,
}

/// The memory of all ranks, mapped into this program. Nothing else writes it while an operator runs, and no two segments
/// overlap.
#[repr(C)]
pub struct veriep_mapped {
    /// One for each EP rank; in an elastic domain for each that is left, by its new id.
    pub peers: *const veriep_peer,
    /// Their number.
    pub peers_len: usize,
    /// Both ranks of the TP domain; null without one.
    pub tp: *const veriep_peer,
    /// Their number.
    pub tp_len: usize,
    /// The output tensors of this rank, by their numbers.
    pub outputs: [veriep_segment; VERIEP_TENSORS],
    /// Handed to both of the following.
    pub cache_context: *mut c_void,
    /// Optional: makes what this core wrote there visible to others, before it tells them. **It must write back only bytes that
    /// this core has changed**: words of other ranks and cores may be in the same line, and are lost where a whole line is
    /// written.
    pub clean: Option<unsafe extern "C" fn(context: *mut c_void, address: *const c_void, len: usize)>,
    /// Optional: forgets what this core has kept from there, before it reads what others wrote.
    pub invalidate: Option<unsafe extern "C" fn(context: *mut c_void, address: *const c_void, len: usize)>,
}

/// A term of a token's sum.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct veriep_term {
    /// The factor; the product is rounded before it is added.
    pub weight: f32,
    /// `VERIEP_TERM_*`.
    pub kind: u32,
    /// The factors of a mix.
    pub alphas: [f32; 2],
    /// A row; or int8 elements and their scales; or the rows of a mix.
    pub rows: [*const u8; 2],
}

/// A vector unit as a table of functions; each may be null, and the portable unit is used in its place. Each is given `context`
/// first. Rows are little-endian, have `len` elements and begin at any address: of `dtype` (`VERIEP_BF16`, `VERIEP_F16`), of
/// float where they are called sums, or int8. All arithmetic is that of float with every operation rounded once, and results
/// must be the portable unit's in every bit, but for the order in which `rstd` adds.
#[repr(C)]
pub struct veriep_vector {
    /// Handed to each function.
    pub context: *mut c_void,
    /// Dynamic int8: `f = row * smooth` (null is 1), `s = 127 / max|f|`, `out = rint(f * s)`, `scale = 1 / s`; zeros and scale 0
    /// where `s` is infinite. Returns `VERIEP_NONE`, or the first element that is not finite, and then writes nothing.
    pub quantise: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            dtype: u32,
            len: usize,
            row: *const u8,
            smooth: *const f32,
            out: *mut i8,
            scale: *mut f32,
        ) -> u32,
    >,
    /// int8 in blocks of 8: `s = max|f| * (1 / 127)`, `data = rint(f / s)`, and `s` rounded to `dtype` in `scales`; a block of
    /// zeros is zeros, and one that is not finite has NaN as its scale.
    pub quantise_blocks: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            dtype: u32,
            len: usize,
            row: *const u8,
            data: *mut i8,
            scales: *mut u8,
        ),
    >,
    /// The same of a row of float.
    pub quantise_sums: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            dtype: u32,
            len: usize,
            sums: *const u8,
            data: *mut i8,
            scales: *mut u8,
        ),
    >,
    /// `out`: from 0, all terms in their order, rounded once to `dtype`.
    pub weighted_sum: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            dtype: u32,
            len: usize,
            terms: *const veriep_term,
            terms_len: usize,
            out: *mut u8,
        ),
    >,
    /// Adds all terms in their order to `sums`.
    pub accumulate: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            dtype: u32,
            len: usize,
            terms: *const veriep_term,
            terms_len: usize,
            sums: *mut u8,
        ),
    >,
    /// `out = sums`, rounded to `dtype`.
    pub narrow: Option<
        unsafe extern "C" fn(context: *mut c_void, dtype: u32, len: usize, sums: *const u8, out: *mut u8),
    >,
    /// `1 / sqrt(sum + eps)`, where `sum` is that of all `r * r * (1 / len)`.
    pub rstd:
        Option<unsafe extern "C" fn(context: *mut c_void, len: usize, sums: *const u8, eps: f32) -> f32>,
    /// `out = sums * rstd`, rounded to `dtype`, then `* gamma`, rounded again.
    pub normalise: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            dtype: u32,
            len: usize,
            sums: *const u8,
            rstd: f32,
            gamma: *const u8,
            out: *mut u8,
        ),
    >,
    /// `out = a + b`, rounded to `dtype`.
    pub add: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            dtype: u32,
            len: usize,
            a: *const u8,
            b: *const u8,
            out: *mut u8,
        ),
    >,
}

/// The gates of a rank: which operators and halves its own order lets it begin.
#[repr(C)]
pub struct veriep_gates {
    /// The library's alone.
    pub opaque: [u64; VERIEP_GATES_WORDS],
}

/// An operator that gates have begun. Of several copies only one may be ended.
#[repr(C)]
pub struct veriep_ticket {
    /// The library's alone.
    pub opaque: [u64; VERIEP_TICKET_WORDS],
}

/// What a step works with. All of it stays as it is from an operator's first step to its last.
#[repr(C)]
pub struct veriep_context {
    /// The shape that the core was made for.
    pub shape: *const veriep_shape,
    /// The memory as functions; or null, and then it is `mapped`.
    pub fabric: *const veriep_fabric,
    /// The memory as addresses; or null, and then it is `fabric`. Refused by `VERIEP_E_REFUSED` on processors without atomic
    /// words of 8 bytes.
    pub mapped: *const veriep_mapped,
    /// What the rank brings to the round, checked by `veriep_inputs_check`.
    pub inputs: *const veriep_inputs,
    /// What combine is given besides; may be null for dispatch.
    pub operands: *const veriep_operands,
    /// `scratch_words` words of this core's own.
    pub words: *mut u32,
    /// Their number.
    pub words_len: usize,
    /// `scratch_bytes` bytes of this core's own.
    pub bytes: *mut u8,
    /// Their number.
    pub bytes_len: usize,
    /// Of an agent: its network interface as functions; or null, and then it is that of `mapped`.
    pub nic: *const veriep_nic,
    /// A vector unit; null is the portable one.
    pub vector: *const veriep_vector,
    /// Where to say what went wrong, with a zero at the end; may be null.
    pub text: *mut c_char,
    /// Bytes there.
    pub text_len: usize,
}

/// What became of a call that steps.
#[repr(C)]
pub struct veriep_status {
    /// Steps that moved.
    pub steps: u32,
    /// Of `VERIEP_PENDING` the rank that is waited for, of `VERIEP_E_PROTOCOL` the rank that wrote what cannot be, if it is
    /// another one; else `VERIEP_NONE`.
    pub rank: u32,
    /// Of `VERIEP_E_FABRIC` the fabric's own code.
    pub code: i32,
}

/// Something that a pending core awaits: only when it changes can the core move.
#[repr(C)]
pub struct veriep_awaited {
    /// `VERIEP_AWAITS_*`.
    pub kind: u32,
    /// The region, of words and bytes.
    pub region: u32,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}
