/* VeriEP: dispatch and combine of Ascend A2/A3 as state machines. Made from the sources of veriep-capi; docs/embed/c.md says
 * how to begin. Everything lives in the caller's memory: nothing allocates, blocks, or has globals. Functions answer a code;
 * below 0 they have refused. */

#ifndef VERIEP_H
#define VERIEP_H

#include <stddef.h>
#include <stdint.h>

/**
 * The version of this interface. A program that was compiled for another one is refused when it makes its configuration.
 */
#define VERIEP_ABI_VERSION 5

/**
 * All went well. Of a step: the operator, or the half that was begun, has ended on this core; what it wrote may still have to land.
 */
#define VERIEP_OK 0

/**
 * Of a step: the core has taken as many steps as it was told to.
 */
#define VERIEP_STEPPED 1

/**
 * Of a step: the core waits for others, and the last of its steps changed nothing. The status says how many moved before.
 */
#define VERIEP_PENDING 2

/**
 * A pointer is null that must not be.
 */
#define VERIEP_E_NULL -1

/**
 * The program was compiled for another version of this interface.
 */
#define VERIEP_E_VERSION -2

/**
 * A number has no meaning here: a code, a rank; an address or length is not a multiple of what it must be.
 */
#define VERIEP_E_ARGUMENT -3

/**
 * A call out of its order: the object was not made, no operator was begun, one is running, or the core has failed.
 */
#define VERIEP_E_ORDER -4

/**
 * A buffer of the caller is too short.
 */
#define VERIEP_E_SHORT -5

/**
 * The configuration or `elastic_info` breaks rules; the text has a line for each.
 */
#define VERIEP_E_CONFIG -6

/**
 * The inputs of a rank break rules; the text has a line for each.
 */
#define VERIEP_E_INPUTS -7

/**
 * The core cannot take part: the shape does not have it or what it chose, this library is built without it, or the memory
 * lacks a call that it would make; or it was made for another shape than the context's. The text says what.
 */
#define VERIEP_E_REFUSED -8

/**
 * A value of another rank, or one that combine was given, cannot be. The group is dead; the text says why.
 */
#define VERIEP_E_PROTOCOL -9

/**
 * The fabric refused a call. The group is dead; the status has the fabric's own code.
 */
#define VERIEP_E_FABRIC -10

/**
 * The rank's gates refuse the operator as long as others may still read what it would write, or this rank has not. Nothing has begun;
 * the text says what must end before.
 */
#define VERIEP_E_EARLY -11

/**
 * Only what the product takes.
 */
#define VERIEP_LIMITS_PRODUCT 0

/**
 * All that the arithmetic allows: for tests with tiny shapes.
 */
#define VERIEP_LIMITS_NONE 1

/**
 * A3, the plain layout.
 */
#define VERIEP_FULLMESH_V1 0

/**
 * A3, fullmesh_v2.
 */
#define VERIEP_FULLMESH_V2 1

/**
 * A2, the full mesh.
 */
#define VERIEP_A2_FULLMESH 2

/**
 * A2, the hierarchy.
 */
#define VERIEP_A2_HIERARCHY 3

/**
 * The operator behind dispatch is combine.
 */
#define VERIEP_OP_COMBINE 0

/**
 * The operator behind dispatch is combine with AddRmsNorm.
 */
#define VERIEP_OP_COMBINE_ADD_RMS_NORM 1

/**
 * Rows of bfloat16.
 */
#define VERIEP_BF16 0

/**
 * Rows of IEEE half precision.
 */
#define VERIEP_F16 1

/**
 * `scales` is given.
 */
#define VERIEP_GIVEN_SCALES 1

/**
 * `x_active_mask` of shape `[bs]` is given.
 */
#define VERIEP_GIVEN_MASK_1D 2

/**
 * `x_active_mask` of shape `[bs, k]` is given.
 */
#define VERIEP_GIVEN_MASK_2D 4

/**
 * `elastic_info` that is switched on is given.
 */
#define VERIEP_GIVEN_ELASTIC_INFO 8

/**
 * `shared_expert_x` is given.
 */
#define VERIEP_GIVEN_SHARED_EXPERT_X 16

/**
 * `expert_map` is given.
 */
#define VERIEP_GIVEN_EXPERT_MAP 32

/**
 * Rows go to their experts.
 */
#define VERIEP_DISPATCH 0

/**
 * Results come back and are summed.
 */
#define VERIEP_COMBINE 1

/**
 * Cores send from their first item to the last.
 */
#define VERIEP_ORDER_PLAIN 0

/**
 * Each rank begins elsewhere.
 */
#define VERIEP_ORDER_STAGGERED 1

/**
 * Each rank begins with another destination.
 */
#define VERIEP_ORDER_DESTINATIONS 2

/**
 * Each rank begins elsewhere, and consecutive items go to different ranks.
 */
#define VERIEP_ORDER_STRIDE 3

/**
 * One word with flag and count after the records.
 */
#define VERIEP_FLAGS_JOINT 0

/**
 * Counts before the records, flags behind them.
 */
#define VERIEP_FLAGS_SEPARATE 1

/**
 * Status slots are 32 bytes apart, as the shipped operators have them (A3).
 */
#define VERIEP_SLOTS_32 0

/**
 * They are 64 bytes apart, for a memory that writes back whole lines.
 */
#define VERIEP_SLOTS_64 1

/**
 * Experts find rows in `expand_x`.
 */
#define VERIEP_RECEIVE_COPY 0

/**
 * Experts find rows in the window, by the row table.
 */
#define VERIEP_RECEIVE_IN_PLACE 1

/**
 * Sources put rows where experts want them; one batch is in flight. Needs `peer_bytes`.
 */
#define VERIEP_RECEIVE_DIRECT 2

/**
 * The same with two batches in flight.
 */
#define VERIEP_RECEIVE_DIRECT_2 3

/**
 * As with direct placement of one batch, with results in the places of their rows.
 */
#define VERIEP_RECEIVE_OVERWRITE 4

/**
 * The same with two batches in flight.
 */
#define VERIEP_RECEIVE_OVERWRITE_2 5

/**
 * In a hierarchy the agent sends to other servers, a task for each.
 */
#define VERIEP_STAGE_2 2

/**
 * In a hierarchy the cores send to other servers, a message for each token. Needs `send`.
 */
#define VERIEP_STAGE_3 3

/**
 * The fabric has `peer_bytes`.
 */
#define VERIEP_CAN_PEER_BYTES 1

/**
 * The fabric has `send`.
 */
#define VERIEP_CAN_SEND 2

/**
 * The fabric has `lend`.
 */
#define VERIEP_CAN_LEND 4

/**
 * The fabric has `prefetch`.
 */
#define VERIEP_CAN_PREFETCH 8

/**
 * The state region: flags, selectors, core words; zero when the group is made.
 */
#define VERIEP_STATE 0

/**
 * The window: rows. On A2 it is WindowsIn. Zero when the group is made.
 */
#define VERIEP_WINDOW 1

/**
 * A2's WindowsOut, which only this rank uses.
 */
#define VERIEP_WINDOW_OUT 2

/**
 * The state region of the TP domain; ranks are named by their number in it.
 */
#define VERIEP_TP_STATE 3

/**
 * The window of the TP domain; ranks are named by their number in it.
 */
#define VERIEP_TP_WINDOW 4

/**
 * Output tensor `n` is region `VERIEP_OUTPUT + n`.
 */
#define VERIEP_OUTPUT 16

/**
 * Bytes of a state region, also of the TP domain's.
 */
#define VERIEP_STATE_BYTES 1048576

/**
 * `expand_x`, received rows as they travel.
 */
#define VERIEP_EXPAND_X 0

/**
 * `dynamic_scales`, f32 per row.
 */
#define VERIEP_DYNAMIC_SCALES 1

/**
 * `assist_info_for_combine`, three i32 per row.
 */
#define VERIEP_ASSIST_INFO 2

/**
 * `expand_idx`, i32 per (token, k).
 */
#define VERIEP_EXPAND_IDX 3

/**
 * `expert_token_nums`, i64 per local expert.
 */
#define VERIEP_EXPERT_TOKEN_NUMS 4

/**
 * `ep_recv_counts`, i32 per (local expert, source rank): how many rows there are up to there.
 */
#define VERIEP_EP_RECV_COUNTS 5

/**
 * `x_out`, rows of dtype: the result.
 */
#define VERIEP_X_OUT 6

/**
 * `x` of AddRmsNorm, rows of dtype.
 */
#define VERIEP_X 7

/**
 * `rstd` of AddRmsNorm, f32 per token.
 */
#define VERIEP_RSTD 8

/**
 * `y` of AddRmsNorm, rows of dtype.
 */
#define VERIEP_Y 9

/**
 * `tp_recv_counts`, i32 per TP rank.
 */
#define VERIEP_TP_RECV_COUNTS 10

/**
 * The row table, u64 per row: where it is in the window.
 */
#define VERIEP_ROW_TABLE 11

/**
 * `sent_rows` of direct placement, i32 per pair.
 */
#define VERIEP_SENT_ROWS 12

/**
 * `expand_scales`, f32 per row (hierarchy).
 */
#define VERIEP_EXPAND_SCALES 13

/**
 * How many output tensors there are.
 */
#define VERIEP_TENSORS 14

/**
 * No `x_active_mask`.
 */
#define VERIEP_MASK_NONE 0

/**
 * `x_active_mask` has a byte for each token.
 */
#define VERIEP_MASK_TOKENS 1

/**
 * `x_active_mask` has a byte for each token and k.
 */
#define VERIEP_MASK_PAIRS 2

/**
 * A call without a number: each core counts its calls.
 */
#define VERIEP_CALL_COUNTED UINT32_MAX

/**
 * The rank has no token, and takes part: its experts serve the others.
 */
#define VERIEP_MASK_ABSTAINS 3

/**
 * A row of `dtype` times the weight.
 */
#define VERIEP_TERM_ROW 0

/**
 * int8 elements and, for each 8 of them, a scale of `dtype`: `element * scale`, rounded to `dtype`, times the weight.
 */
#define VERIEP_TERM_BLOCKS 1

/**
 * `alphas[0] * rows[0] + alphas[1] * rows[1]`, each product and the sum rounded in float, times the weight.
 */
#define VERIEP_TERM_MIX 2

/**
 * The answer of a function of `veriep_fabric` that has no room for an effect now, and has done nothing.
 */
#define VERIEP_BUSY -2147483647

/**
 * The core waits for another value of the word at a place.
 */
#define VERIEP_AWAITS_WORD 0

/**
 * The core waits for a change in so many bytes at a place.
 */
#define VERIEP_AWAITS_BYTES 1

/**
 * The core waits until `quiet` answers yes.
 */
#define VERIEP_AWAITS_QUIET 2

/**
 * The agent waits until the network interface takes another task, or the core until the memory has room for an effect.
 */
#define VERIEP_AWAITS_ROOM 3

/**
 * No rank, no partition, all cores.
 */
#define VERIEP_NONE UINT32_MAX

/**
 * Words of 8 bytes that stand for parameters and areas of a rank.
 */
#define VERIEP_FINGERPRINTS 65

/**
 * Words of 8 bytes in a shape.
 */
#define VERIEP_SHAPE_WORDS 256

/**
 * Words of 8 bytes in a core.
 */
#define VERIEP_CORE_WORDS 36

/**
 * Words of 8 bytes in an expert map.
 */
#define VERIEP_EXPERT_MAP_WORDS 4

/**
 * Words of 8 bytes in an agent.
 */
#define VERIEP_AGENT_WORDS 8

/**
 * Words of 8 bytes in the gates of a rank.
 */
#define VERIEP_GATES_WORDS 4

/**
 * Words of 8 bytes in a ticket.
 */
#define VERIEP_TICKET_WORDS 2

/**
 * The parameters of a domain as given, by the names of the operators' documents. `veriep_config_default` fills it in.
 */
typedef struct veriep_config {
  /**
   * `VERIEP_ABI_VERSION`.
   */
  uint32_t abi_version;
  /**
   * `VERIEP_LIMITS_*`.
   */
  uint32_t limits;
  /**
   * `VERIEP_FULLMESH_V1`, ...: the communication layout, and so the product.
   */
  uint32_t comm_alg;
  /**
   * `VERIEP_OP_*`, the operator that follows dispatch. It is checked, and no part of the shape: a call's `veriep_inputs` say which
   * combine it is.
   */
  uint32_t op;
  /**
   * `VERIEP_BF16` or `VERIEP_F16`.
   */
  uint32_t dtype;
  /**
   * `VERIEP_GIVEN_*`, those that hold.
   */
  uint32_t given;
  /**
   * Ranks of the EP domain, R.
   */
  int64_t ep_world_size;
  /**
   * Ranks of a server (A2): 8, except in tests. A group of fewer ranks is one server.
   */
  int64_t server_ranks;
  /**
   * Ranks of the TP domain; 0 and 1 mean none.
   */
  int64_t tp_world_size;
  /**
   * MoE experts of the whole domain, E.
   */
  int64_t moe_expert_num;
  /**
   * Shared experts, S.
   */
  int64_t shared_expert_num;
  /**
   * Ranks that hold shared experts only, Rs.
   */
  int64_t shared_expert_rank_num;
  /**
   * Zero experts.
   */
  int64_t zero_expert_num;
  /**
   * Copy experts.
   */
  int64_t copy_expert_num;
  /**
   * Const experts.
   */
  int64_t const_expert_num;
  /**
   * Experts per token, K.
   */
  int64_t k;
  /**
   * Elements of a token, H.
   */
  int64_t h;
  /**
   * Tokens of each rank, BS, where all have as many; or of the rank `bs_rank`.
   */
  int64_t bs;
  /**
   * Tokens of each rank, one entry per EP rank; null where all have `bs`.
   */
  const int64_t *bs_per_rank;
  /**
   * Its entries.
   */
  size_t bs_per_rank_len;
  /**
   * Tokens of the whole domain, or 0.
   */
  int64_t global_bs;
  /**
   * 0 none, 2 dynamic int8 in dispatch.
   */
  int64_t quant_mode;
  /**
   * 0 none, 2 int8 blocks in combine.
   */
  int64_t comm_quant_mode;
  /**
   * 0 prefix sums, 1 counts.
   */
  int64_t expert_token_nums_type;
  /**
   * MiB of a rank's window.
   */
  int64_t hccl_buffsize_mb;
  /**
   * Bytes added per source rank in front of its records (A3).
   */
  int64_t port_offset;
  /**
   * Cores of each rank.
   */
  int64_t aiv_num;
  /**
   * Epsilon of AddRmsNorm.
   */
  float norm_eps;
  /**
   * `VERIEP_NONE`; or the EP rank that has `bs` tokens, where of the others no more is known than that they have at most
   * `global_bs / R`, as with an operator's call. The shape makes cores of that rank alone, and takes a round.
   */
  uint32_t bs_rank;
} veriep_config;

/**
 * A configuration that has been checked. It may be copied, and all cores of a program may read one.
 */
typedef struct veriep_shape {
  /**
   * Private to the library.
   */
  uint64_t opaque[VERIEP_SHAPE_WORDS];
} veriep_shape;

/**
 * What the memory of a rank must hold, in bytes but for what says otherwise.
 */
typedef struct veriep_sizes {
  /**
   * The state region.
   */
  uint64_t state;
  /**
   * The window.
   */
  uint64_t window;
  /**
   * WindowsOut; 0 but on A2.
   */
  uint64_t window_out;
  /**
   * The state region of the TP domain; 0 without one.
   */
  uint64_t tp_state;
  /**
   * Its window; 0 without one.
   */
  uint64_t tp_window;
  /**
   * The output tensors, by their numbers; 0 for what the shape does not have. Only combine with AddRmsNorm writes `x`, `rstd` and
   * `y`: a rank that calls none needs no memory for them.
   */
  uint64_t outputs[VERIEP_TENSORS];
  /**
   * Of `ep_recv_counts` the bytes that are counts; the last count is the number of received rows.
   */
  uint64_t ep_recv_counts;
  /**
   * The most rows that the rank receives.
   */
  uint64_t rows_max;
  /**
   * A received row.
   */
  uint64_t row;
  /**
   * Words of 4 bytes that a core needs as scratch.
   */
  size_t scratch_words;
  /**
   * Bytes that a core needs as scratch besides.
   */
  size_t scratch_bytes;
  /**
   * EP ranks, of an elastic domain those that are left.
   */
  uint32_t ep_world_size;
  /**
   * Experts of this rank.
   */
  uint32_t local_experts;
  /**
   * Tokens of this rank.
   */
  uint32_t bs;
  /**
   * Cores of each rank.
   */
  uint32_t aiv_num;
} veriep_sizes;

/**
 * What does not change results, alike on all cores of all ranks. A protocol ignores what does not apply to it.
 */
typedef struct veriep_choices {
  /**
   * `VERIEP_ORDER_*`.
   */
  uint32_t order;
  /**
   * `VERIEP_FLAGS_*`.
   */
  uint32_t flags;
  /**
   * `VERIEP_RECEIVE_*`.
   */
  uint32_t receive;
  /**
   * `VERIEP_STAGE_*`.
   */
  uint32_t stage;
  /**
   * 1: flags and counts have the number of their call beside them. 0: words as the shipped operators write them.
   */
  uint32_t checked;
  /**
   * `VERIEP_SLOTS_*`.
   */
  uint32_t slots;
} veriep_choices;

/**
 * A row of equal slots in a region.
 */
typedef struct veriep_area {
  /**
   * What is there, with a zero after it.
   */
  char name[32];
  /**
   * `VERIEP_STATE`, ...
   */
  uint32_t region;
  /**
   * 0, 1 or `VERIEP_NONE`.
   */
  uint32_t partition;
  /**
   * Bytes from the start of the region.
   */
  uint64_t start;
  /**
   * Slots.
   */
  uint64_t count;
  /**
   * Bytes between the starts of two slots.
   */
  uint64_t stride;
  /**
   * Bytes of a slot that are used.
   */
  uint64_t slot;
} veriep_area;

/**
 * A number for each parameter that all ranks must have alike, then one for each area of their memory. The same on every
 * processor; compare all words.
 */
typedef struct veriep_fingerprints {
  /**
   * The numbers.
   */
  uint64_t words[VERIEP_FINGERPRINTS];
} veriep_fingerprints;

/**
 * Bytes to read: a tensor, little-endian. Null is one that is not given. Tensors of `int32_t` and `float` are aligned to 4
 * bytes; those of dtype may lie anywhere.
 */
typedef struct veriep_bytes {
  /**
   * The first.
   */
  const void *data;
  /**
   * How many, in bytes.
   */
  size_t len;
} veriep_bytes;

/**
 * The tensors that a rank brings to a round.
 */
typedef struct veriep_inputs {
  /**
   * `[bs, h]` dtype.
   */
  struct veriep_bytes x;
  /**
   * `[bs, k]` int32_t.
   */
  struct veriep_bytes expert_ids;
  /**
   * `[bs, k]` float.
   */
  struct veriep_bytes expert_scales;
  /**
   * `[bs]` or `[bs, k]` bytes, each 0 or 1.
   */
  struct veriep_bytes x_active_mask;
  /**
   * `[S + E, h]` float.
   */
  struct veriep_bytes scales;
  /**
   * `[bs, h]` dtype.
   */
  struct veriep_bytes shared_expert_x;
  /**
   * `[q]` dtype.
   */
  struct veriep_bytes const_expert_alpha_1;
  /**
   * `[q]` dtype.
   */
  struct veriep_bytes const_expert_alpha_2;
  /**
   * `[q, h]` dtype.
   */
  struct veriep_bytes const_expert_v;
  /**
   * `[bs, h]` dtype, AddRmsNorm. Combine is plain where both this and `gamma` are NULL and empty. Ranks and calls may differ.
   */
  struct veriep_bytes residual_x;
  /**
   * `[h]` dtype, AddRmsNorm.
   */
  struct veriep_bytes gamma;
  /**
   * `VERIEP_MASK_*`. With `VERIEP_MASK_ABSTAINS` the rank takes part with no token, and no tensor is read.
   */
  uint32_t mask_kind;
  /**
   * The number of the call, the same on all ranks, in dispatch and in the combine of its results, such as step times
   * layers plus layer. A rank that leaves out a call is then refused (`VERIEP_E_PROTOCOL`). `VERIEP_CALL_COUNTED` where
   * callers have no number: each core counts, and a left-out call is not seen.
   */
  uint32_t call;
  /**
   * For combine what `veriep_inputs_batch` gave for the inputs of its dispatch; `veriep_inputs_check` compares it. 0: it is not
   * compared.
   */
  uint64_t dispatched;
} veriep_inputs;

/**
 * An `expert_map` that has been checked. It leads to the caller's words, which stay where they are and as they are.
 */
typedef struct veriep_expert_map {
  /**
   * Private to the library.
   */
  uint64_t opaque[VERIEP_EXPERT_MAP_WORDS];
} veriep_expert_map;

/**
 * A row that a rank sends in dispatch.
 */
typedef struct veriep_send {
  /**
   * The token.
   */
  uint32_t token;
  /**
   * k index, or `K + j` for shared expert `j`.
   */
  uint32_t k;
  /**
   * The receiving rank.
   */
  uint32_t rank;
  /**
   * The receiving expert there.
   */
  uint32_t local_expert;
  /**
   * Its number among this rank's rows for that expert.
   */
  uint32_t slot;
} veriep_send;

/**
 * Where in a rank's memory: `VERIEP_STATE`, ..., and bytes from there.
 */
typedef struct veriep_place {
  /**
   * The region.
   */
  uint32_t region;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Bytes from its start.
   */
  uint64_t offset;
} veriep_place;

/**
 * Received rows that are one behind the other.
 */
typedef struct veriep_rows {
  /**
   * Where the first lies.
   */
  struct veriep_place at;
  /**
   * Bytes of all.
   */
  uint64_t len;
} veriep_rows;

/**
 * The memory of all ranks as one core sees it, as a table of functions. Each is given `context` first and answers 0, or a
 * code of its own other than 0 for what the memory does not hold. Those at the end may be null. None of them blocks.
 *
 * `put`, `publish`, `store`, `write`, `deliver` and `send` may answer `VERIEP_BUSY` and do nothing: there is no room now. The
 * step is then `VERIEP_PENDING`, and a later one asks again for what is left.
 *
 * `to` names a rank of the domain that the region belongs to: an EP rank, or for the TP regions a number in the TP domain.
 */
typedef struct veriep_fabric {
  /**
   * Handed to each function.
   */
  void *context;
  /**
   * Writes a row and right after it a tail. It may land late and in pieces.
   */
  int32_t (*put)(void *context,
                 uint32_t to,
                 struct veriep_place at,
                 const uint8_t *row,
                 size_t row_len,
                 const uint8_t *tail,
                 size_t tail_len);
  /**
   * Writes an aligned word. Who observes it sees all earlier puts of this core to that rank.
   */
  int32_t (*publish)(void *context, uint32_t to, struct veriep_place at, uint64_t word);
  /**
   * Writes to `landed` whether all that this core did has landed: 1 or 0.
   */
  int32_t (*quiet)(void *context, uint32_t *landed);
  /**
   * Reads an aligned word of this rank, with acquire semantics.
   */
  int32_t (*observe)(void *context, struct veriep_place at, uint64_t *word);
  /**
   * Writes an aligned word of this rank.
   */
  int32_t (*store)(void *context, struct veriep_place at, uint64_t word);
  /**
   * Tells where bytes of this rank lie. They may be at any address, and stay as they are until a call
   * that writes.
   */
  int32_t (*bytes)(void *context, struct veriep_place at, uint64_t len, const uint8_t **bytes);
  /**
   * Writes bytes into an output or WindowsOut of this rank.
   */
  int32_t (*write)(void *context, struct veriep_place at, const uint8_t *bytes, size_t len);
  /**
   * Copies bytes of its own window or TP window into an output.
   */
  int32_t (*deliver)(void *context, struct veriep_place output, struct veriep_place from, uint64_t len);
  /**
   * Optional: tells where bytes of any rank's window lie.
   */
  int32_t (*peer_bytes)(void *context, uint32_t rank, struct veriep_place at, uint64_t len, const uint8_t **bytes);
  /**
   * Optional: writes whole words to a rank of another server as one message.
   */
  int32_t (*send)(void *context, uint32_t to, struct veriep_place at, const uint8_t *message, size_t len);
  /**
   * Optional: where an output lies, to be written there; null for what is not lent.
   */
  uint8_t *(*lend)(void *context, struct veriep_place output, uint64_t len);
  /**
   * Optional: these bytes are read soon.
   */
  void (*prefetch)(void *context, const uint8_t *bytes, size_t len);
  /**
   * The aligned line in bytes, a power of two, of which `publish` and `store` may write back the bytes around their word as they
   * were at any moment since the call. 0 is the word alone. A step answers `VERIEP_E_ARGUMENT` to a line of another length, and
   * `VERIEP_E_REFUSED` if the core's choices do not keep words as far apart; `VERIEP_SLOTS_64` keeps lines of 64 bytes apart.
   */
  uint64_t line;
} veriep_fabric;

/**
 * A core of a rank and the operator that it runs. It may be moved between steps.
 */
typedef struct veriep_core {
  /**
   * Private to the library.
   */
  uint64_t opaque[VERIEP_CORE_WORDS];
} veriep_core;

/**
 * A stretch of memory; its address is a multiple of 8.
 */
typedef struct veriep_segment {
  /**
   * The first byte; may be null if there is none.
   */
  uint8_t *base;
  /**
   * Bytes.
   */
  uint64_t len;
} veriep_segment;

/**
 * The memory of a rank that others reach; of a number in the TP domain its TP regions.
 */
typedef struct veriep_peer {
  /**
   * The state region.
   */
  struct veriep_segment state;
  /**
   * The window.
   */
  struct veriep_segment window;
  /**
   * WindowsOut, of this rank on A2; else empty.
   */
  struct veriep_segment window_out;
} veriep_peer;

/**
 * The memory of all ranks, mapped into this program. Nothing else writes it while an operator runs, and no two segments
 * overlap.
 */
typedef struct veriep_mapped {
  /**
   * One for each EP rank; in an elastic domain for each that is left, by its new id.
   */
  const struct veriep_peer *peers;
  /**
   * Their number.
   */
  size_t peers_len;
  /**
   * Both ranks of the TP domain; null without one.
   */
  const struct veriep_peer *tp;
  /**
   * Their number.
   */
  size_t tp_len;
  /**
   * The output tensors of this rank, by their numbers.
   */
  struct veriep_segment outputs[VERIEP_TENSORS];
  /**
   * Handed to both of the following.
   */
  void *cache_context;
  /**
   * Optional: makes what this core wrote there visible to others, before it tells them. **It must write back only bytes that
   * this core has changed**: words of other ranks and cores may be in the same line, and are lost where a whole line is
   * written.
   */
  void (*clean)(void *context, const void *address, size_t len);
  /**
   * Optional: forgets what this core has kept from there, before it reads what others wrote.
   */
  void (*invalidate)(void *context, const void *address, size_t len);
} veriep_mapped;

/**
 * What combine is given besides: what the experts returned, and outputs of the same batch's dispatch. Each protocol reads
 * some of them; an output may be given with its whole capacity, but for `ep_recv_counts`.
 */
typedef struct veriep_operands {
  /**
   * `[rows, h]` dtype: a result for each received row. Unused with direct placement.
   */
  struct veriep_bytes y;
  /**
   * `assist_info_for_combine` (A3, hierarchy).
   */
  struct veriep_bytes assist_info;
  /**
   * `expand_scales` (hierarchy).
   */
  struct veriep_bytes expand_scales;
  /**
   * `ep_recv_counts`, as long as the counts are.
   */
  struct veriep_bytes ep_recv_counts;
  /**
   * `expand_idx` (A2 full mesh).
   */
  struct veriep_bytes expand_idx;
  /**
   * `sent_rows` (direct placement).
   */
  struct veriep_bytes sent_rows;
  /**
   * `row_table` (direct placement).
   */
  struct veriep_bytes row_table;
} veriep_operands;

/**
 * The network interface of an agent, as a table of functions.
 */
typedef struct veriep_nic {
  /**
   * Handed to each function.
   */
  void *context;
  /**
   * Reads an aligned word of this rank's state region, with acquire semantics.
   */
  int32_t (*observe)(void *context, struct veriep_place at, uint64_t *word);
  /**
   * Carries `len` bytes from its own WindowsOut to the window of rank `to`, word by word in the order of addresses. Writes
   * to `posted` whether it will: 1, or 0 if there is no room now. Transfers may overtake each other. What
   * is at `from` stays as it is until the last word of this one has landed.
   */
  int32_t (*post)(void *context,
                  uint32_t to,
                  struct veriep_place from,
                  struct veriep_place at,
                  uint64_t len,
                  uint32_t *posted);
} veriep_nic;

/**
 * A term of a token's sum.
 */
typedef struct veriep_term {
  /**
   * The factor; the product is rounded before it is added.
   */
  float weight;
  /**
   * `VERIEP_TERM_*`.
   */
  uint32_t kind;
  /**
   * The factors of a mix.
   */
  float alphas[2];
  /**
   * A row; or int8 elements and their scales; or the rows of a mix.
   */
  const uint8_t *rows[2];
} veriep_term;

/**
 * A vector unit as a table of functions; each may be null, and the portable unit is used in its place. Each is given `context`
 * first. Rows are little-endian, have `len` elements and begin at any address: of `dtype` (`VERIEP_BF16`, `VERIEP_F16`), of
 * float where they are called sums, or int8. All arithmetic is that of float with every operation rounded once, and results
 * must be the portable unit's in every bit, but for the order in which `rstd` adds.
 */
typedef struct veriep_vector {
  /**
   * Handed to each function.
   */
  void *context;
  /**
   * Dynamic int8: `f = row * smooth` (null is 1), `s = 127 / max|f|`, `out = rint(f * s)`, `scale = 1 / s`; zeros and scale 0
   * where `s` is infinite. Returns `VERIEP_NONE`, or the first element that is not finite, and then writes nothing.
   */
  uint32_t (*quantise)(void *context,
                       uint32_t dtype,
                       size_t len,
                       const uint8_t *row,
                       const float *smooth,
                       int8_t *out,
                       float *scale);
  /**
   * int8 in blocks of 8: `s = max|f| * (1 / 127)`, `data = rint(f / s)`, and `s` rounded to `dtype` in `scales`; a block of
   * zeros is zeros, and one that is not finite has NaN as its scale.
   */
  void (*quantise_blocks)(void *context, uint32_t dtype, size_t len, const uint8_t *row, int8_t *data, uint8_t *scales);
  /**
   * The same of a row of float.
   */
  void (*quantise_sums)(void *context, uint32_t dtype, size_t len, const uint8_t *sums, int8_t *data, uint8_t *scales);
  /**
   * `out`: from 0, all terms in their order, rounded once to `dtype`.
   */
  void (*weighted_sum)(void *context,
                       uint32_t dtype,
                       size_t len,
                       const struct veriep_term *terms,
                       size_t terms_len,
                       uint8_t *out);
  /**
   * Adds all terms in their order to `sums`.
   */
  void (*accumulate)(void *context,
                     uint32_t dtype,
                     size_t len,
                     const struct veriep_term *terms,
                     size_t terms_len,
                     uint8_t *sums);
  /**
   * `out = sums`, rounded to `dtype`.
   */
  void (*narrow)(void *context, uint32_t dtype, size_t len, const uint8_t *sums, uint8_t *out);
  /**
   * `1 / sqrt(sum + eps)`, where `sum` is that of all `r * r * (1 / len)`.
   */
  float (*rstd)(void *context, size_t len, const uint8_t *sums, float eps);
  /**
   * `out = sums * rstd`, rounded to `dtype`, then `* gamma`, rounded again.
   */
  void (*normalise)(void *context,
                    uint32_t dtype,
                    size_t len,
                    const uint8_t *sums,
                    float rstd,
                    const uint8_t *gamma,
                    uint8_t *out);
  /**
   * `out = a + b`, rounded to `dtype`.
   */
  void (*add)(void *context, uint32_t dtype, size_t len, const uint8_t *a, const uint8_t *b, uint8_t *out);
} veriep_vector;

/**
 * What a step works with. All of it stays as it is from an operator's first step to its last.
 */
typedef struct veriep_context {
  /**
   * The shape that the core was made for.
   */
  const struct veriep_shape *shape;
  /**
   * The memory as functions; or null, and then it is `mapped`.
   */
  const struct veriep_fabric *fabric;
  /**
   * The memory as addresses; or null, and then it is `fabric`. Refused by `VERIEP_E_REFUSED` on processors without atomic
   * words of 8 bytes.
   */
  const struct veriep_mapped *mapped;
  /**
   * What the rank brings to the round, checked by `veriep_inputs_check`.
   */
  const struct veriep_inputs *inputs;
  /**
   * What combine is given besides; may be null for dispatch.
   */
  const struct veriep_operands *operands;
  /**
   * `scratch_words` words of this core's own.
   */
  uint32_t *words;
  /**
   * Their number.
   */
  size_t words_len;
  /**
   * `scratch_bytes` bytes of this core's own.
   */
  uint8_t *bytes;
  /**
   * Their number.
   */
  size_t bytes_len;
  /**
   * Of an agent: its network interface as functions; or null, and then it is that of `mapped`.
   */
  const struct veriep_nic *nic;
  /**
   * A vector unit; null is the portable one.
   */
  const struct veriep_vector *vector;
  /**
   * Where to say what went wrong, with a zero at the end; may be null.
   */
  char *text;
  /**
   * Bytes there.
   */
  size_t text_len;
} veriep_context;

/**
 * What became of a call that steps.
 */
typedef struct veriep_status {
  /**
   * Steps that moved.
   */
  uint32_t steps;
  /**
   * Of `VERIEP_PENDING` the rank that is waited for, of `VERIEP_E_PROTOCOL` the rank that wrote what cannot be, if it is
   * another one; else `VERIEP_NONE`.
   */
  uint32_t rank;
  /**
   * Of `VERIEP_E_FABRIC` the fabric's own code.
   */
  int32_t code;
} veriep_status;

/**
 * Something that a pending core awaits: only when it changes can the core move.
 */
typedef struct veriep_awaited {
  /**
   * `VERIEP_AWAITS_*`.
   */
  uint32_t kind;
  /**
   * The region, of words and bytes.
   */
  uint32_t region;
  /**
   * Bytes from its start.
   */
  uint64_t offset;
  /**
   * Bytes.
   */
  uint64_t len;
} veriep_awaited;

/**
 * The gates of a rank: which operators and halves its own order lets it begin.
 */
typedef struct veriep_gates {
  /**
   * The library's alone.
   */
  uint64_t opaque[VERIEP_GATES_WORDS];
} veriep_gates;

/**
 * An operator that gates have begun. Of several copies only one may be ended.
 */
typedef struct veriep_ticket {
  /**
   * The library's alone.
   */
  uint64_t opaque[VERIEP_TICKET_WORDS];
} veriep_ticket;

/**
 * The agent of a rank (A2).
 */
typedef struct veriep_agent {
  /**
   * Private to the library.
   */
  uint64_t opaque[VERIEP_AGENT_WORDS];
} veriep_agent;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library's interface: `VERIEP_ABI_VERSION` of the header that belongs to it.
 */
uint32_t veriep_abi_version(void);

/**
 * Fills in a configuration. `abi_version` is `VERIEP_ABI_VERSION`; with another one nothing is written.
 */
int32_t veriep_config_default(struct veriep_config *out, uint32_t abi_version);

/**
 * Checks a configuration and makes a shape of it. The text has a line for each rule that is broken.
 */
int32_t veriep_shape_new(struct veriep_shape *out, const struct veriep_config *config, char *text, size_t text_len);

/**
 * Checks `elastic_info` of `len` words and makes the shape of those that are left of `whole`. Ranks are then named by their
 * new ids: rank `i` is the physical rank `elastic_info[4 + R + i]`, and `to` in a fabric is such an `i`. `out` may be `whole`.
 */
int32_t veriep_shape_survivors(struct veriep_shape *out,
                               const struct veriep_shape *whole,
                               const int32_t *elastic_info,
                               size_t len,
                               char *text,
                               size_t text_len);

/**
 * What the memory of EP rank `rank` must hold.
 */
int32_t veriep_shape_sizes(const struct veriep_shape *shape, uint32_t rank, struct veriep_sizes *out);

/**
 * Every area of the memory of EP rank `rank` with these choices, or the default ones: writes at most `room` of them, and to `count` how many there are.
 */
int32_t veriep_shape_areas(const struct veriep_shape *shape,
                           const struct veriep_choices *choices,
                           uint32_t rank,
                           struct veriep_area *out,
                           size_t room,
                           size_t *count);

/**
 * What all ranks must have alike, as numbers that they can compare before the first operator. `group_ep` and `group_tp` are the
 * names of the two groups, which must be alike, too; null where there is none.
 */
int32_t veriep_fingerprints_new(struct veriep_fingerprints *out,
                                const struct veriep_shape *shape,
                                const struct veriep_choices *choices,
                                const char *group_ep,
                                const char *group_tp);

/**
 * Compares what two ranks have: `VERIEP_OK`, or `VERIEP_E_CONFIG` and in the text the first parameter or area that differs.
 * Writes to `whole`, unless it is null, one number for all of the first.
 */
int32_t veriep_fingerprints_compare(const struct veriep_fingerprints *own,
                                    const struct veriep_fingerprints *other,
                                    uint64_t *whole,
                                    char *text,
                                    size_t text_len);

/**
 * Checks what `rank` brings to an operator, `VERIEP_DISPATCH` or `VERIEP_COMBINE`. Tensors that it does not read may be null. The
 * text has a line for each rule that is broken.
 */
int32_t veriep_inputs_check(const struct veriep_shape *shape,
                            uint32_t rank,
                            uint32_t which,
                            const struct veriep_inputs *inputs,
                            char *text,
                            size_t text_len);

/**
 * Writes a number of the active pairs that `rank` brings to dispatch, and of their experts. Combine must have the same pairs: keep
 * the number with the batch, and give it to the check of combine in `veriep_inputs.dispatched`. It is never 0.
 */
int32_t veriep_inputs_batch(const struct veriep_shape *shape,
                            uint32_t rank,
                            const struct veriep_inputs *inputs,
                            uint64_t *batch);

/**
 * Checks an `expert_map` of `len` words in `rows` rows, one for each logical expert: its physical experts, and -1 after them.
 * The text has a line for each rule that is broken.
 */
int32_t veriep_expert_map_new(struct veriep_expert_map *out,
                              const struct veriep_shape *shape,
                              const int32_t *words,
                              size_t len,
                              size_t rows,
                              char *text,
                              size_t text_len);

/**
 * Makes of logical ids, the `expert_ids` that a router gave the tokens of `rank`, physical ones for `veriep_inputs`: `len` of
 * both. Each token has its replica of an expert; a token that follows it, or of the next rank, has the next replica. Of `logical`,
 * the rank's inputs with logical ids, only these and the mask are read. `physical` is other memory than they. The text has a line
 * for each active pair whose id is wrong.
 */
int32_t veriep_expert_map_translate(const struct veriep_expert_map *map,
                                    const struct veriep_shape *shape,
                                    uint32_t rank,
                                    const struct veriep_inputs *logical,
                                    int32_t *physical,
                                    size_t len,
                                    char *text,
                                    size_t text_len);

/**
 * The rows that core `core` of `rank` sends in dispatch of the plain layout, in its order, or with `VERIEP_NONE` those that
 * the rank sends, in any protocol. Takes `scratch_words` words as scratch, with `VERIEP_NONE` `bs * (K + S)` more; writes at most `room` rows, and to `count` how
 * many there are.
 */
int32_t veriep_plan_sends(const struct veriep_shape *shape,
                          uint32_t rank,
                          uint32_t core,
                          uint32_t order,
                          const struct veriep_inputs *inputs,
                          uint32_t *words,
                          size_t words_len,
                          struct veriep_send *out,
                          size_t room,
                          size_t *count);

/**
 * Where the first `rows` received rows are under these choices: stretches in the order of the rows, of which at most `room`
 * are written. `row_table` is that output, where rows stay in the window; one that is too short is `VERIEP_E_SHORT`, and one
 * that names places outside of the window `VERIEP_E_ARGUMENT`, as are more rows than any rank can receive. With direct
 * placement `results`, unless it is null, becomes where experts leave what they return, and a table that does not name that is
 * too short; else it is left as it is.
 */
int32_t veriep_received_rows(const struct veriep_shape *shape,
                             const struct veriep_choices *choices,
                             uint32_t rows,
                             struct veriep_bytes row_table,
                             struct veriep_rows *out,
                             size_t room,
                             size_t *count,
                             struct veriep_rows *results);

/**
 * What is chosen by default: `VERIEP_ORDER_STAGGERED`, `VERIEP_FLAGS_JOINT`, `VERIEP_RECEIVE_COPY`, `VERIEP_STAGE_3`,
 * `VERIEP_SLOTS_32`, and calls are checked.
 */
struct veriep_choices veriep_choices_default(void);

/**
 * 1 if each rank has an agent beside its cores under these choices (null: by default), 0 if not, or a code below 0.
 */
int32_t veriep_has_agents(const struct veriep_shape *shape, const struct veriep_choices *choices);

/**
 * `VERIEP_CAN_*` of a table; a code below 0 for a table without one of the functions that all have.
 */
int32_t veriep_fabric_can(const struct veriep_fabric *fabric);

/**
 * Makes core `core` of EP rank `rank`, in an elastic domain by its new id, which is number `tp_rank` of its TP domain (0
 * without one), for a fabric that can do `can` (`VERIEP_CAN_*`; mapped memory can do all four). `choices` may be null.
 */
int32_t veriep_core_new(struct veriep_core *out,
                        const struct veriep_shape *shape,
                        uint32_t rank,
                        uint32_t tp_rank,
                        uint32_t core,
                        const struct veriep_choices *choices,
                        uint32_t can,
                        char *text,
                        size_t text_len);

/**
 * Begins an operator, `VERIEP_DISPATCH` or `VERIEP_COMBINE`. All cores of this rank must have ended the one before.
 */
int32_t veriep_core_begin(struct veriep_core *core, uint32_t which);

/**
 * Begins the sending half of an operator: a step answers `VERIEP_OK` once everything is sent. Then other operators may run, each by
 * another `veriep_core` of this core with scratch of its own, before `veriep_core_resume`. All cores of this rank must have ended the
 * operator or half before. `VERIEP_E_REFUSED` in a TP domain.
 */
int32_t veriep_core_send(struct veriep_core *core,
                         uint32_t which);

/**
 * Begins the other half of an operator that has been sent: a step answers `VERIEP_OK` when the operator has ended. All cores of this
 * rank must have ended the operator or half before.
 */
int32_t veriep_core_resume(struct veriep_core *core);

/**
 * Goes on with the operator, or the half that was begun, by at most `steps` steps: `VERIEP_STEPPED`, `VERIEP_PENDING`, `VERIEP_OK`
 * when it has ended, or a code below 0. `status` may be null.
 */
int32_t veriep_core_step(struct veriep_core *core,
                         const struct veriep_context *cx,
                         uint32_t steps,
                         struct veriep_status *status);

/**
 * Takes one more step of a core that is pending, which changes nothing if it still is, and tells all that it awaits: only a
 * change of one of these lets it move, so until then its driver may sleep. Writes at most `room` of them to `out`, their
 * number to `count`, and what is missing to the context's text. `VERIEP_PENDING`, or another code if it has moved or failed:
 * then `count` is 0, and what it wrote to `out` means nothing. `VERIEP_E_SHORT` if there are more than `room`: `count` is then
 * right, and the core as pending as before.
 */
int32_t veriep_core_awaits(struct veriep_core *core,
                           const struct veriep_context *cx,
                           struct veriep_awaited *out,
                           size_t room,
                           size_t *count,
                           struct veriep_status *status);

/**
 * Makes the gates of a rank in a new group, whose cores are made with these choices, or the default ones. They hold for a group whose
 * ranks all take their operators and halves in one order. `VERIEP_E_REFUSED` if no core can have these choices.
 */
int32_t veriep_gates_new(struct veriep_gates *out,
                         const struct veriep_shape *shape,
                         const struct veriep_choices *choices);

/**
 * Asks before `veriep_core_begin` or `veriep_core_send` of the rank's first core whether the rank may begin the operator,
 * `VERIEP_DISPATCH` or `VERIEP_COMBINE`: `VERIEP_OK` and a ticket; or `VERIEP_E_EARLY`, and the text says what must end before. A
 * combine is of the older one of the last two dispatches that is not combined, which must have ended.
 */
int32_t veriep_gates_begin(struct veriep_gates *gates,
                           uint32_t which,
                           struct veriep_ticket *ticket,
                           char *text,
                           size_t text_len);

/**
 * Ends an operator that the gates have begun, once all cores of the rank have ended it, with its other half if it has two. The ticket
 * is none any more.
 */
int32_t veriep_gates_end(struct veriep_gates *gates,
                         struct veriep_ticket *ticket);

/**
 * Makes the agent of `rank`, which issues tasks in this order (`VERIEP_ORDER_*`). It lives as long as the group.
 * `VERIEP_E_REFUSED` where no rank of the shape has an agent, whatever is chosen.
 */
int32_t veriep_agent_new(struct veriep_agent *out, const struct veriep_shape *shape, uint32_t rank, uint32_t order);

/**
 * Lets the agent post at most `steps` tasks: `VERIEP_STEPPED`, `VERIEP_PENDING` when no task is to be posted, or a code below
 * 0. Of the context it takes the shape, the text, and `nic` or `mapped`. `status` may be null.
 */
int32_t veriep_agent_step(struct veriep_agent *agent,
                          const struct veriep_context *cx,
                          uint32_t steps,
                          struct veriep_status *status);

/**
 * As `veriep_core_awaits`, of an agent.
 */
int32_t veriep_agent_awaits(struct veriep_agent *agent,
                            const struct veriep_context *cx,
                            struct veriep_awaited *out,
                            size_t room,
                            size_t *count,
                            struct veriep_status *status);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* VERIEP_H */


#ifdef __cplusplus
#define VERIEP_ASSERT static_assert
#else
#define VERIEP_ASSERT _Static_assert
#endif
VERIEP_ASSERT(sizeof(veriep_shape) == 2048, "veriep_shape");
VERIEP_ASSERT(sizeof(veriep_core) == 288, "veriep_core");
VERIEP_ASSERT(sizeof(veriep_expert_map) == 32, "veriep_expert_map");
VERIEP_ASSERT(sizeof(veriep_agent) == 64, "veriep_agent");
VERIEP_ASSERT(sizeof(veriep_gates) == 32, "veriep_gates");
VERIEP_ASSERT(sizeof(veriep_ticket) == 16, "veriep_ticket");
VERIEP_ASSERT(sizeof(veriep_place) == 16, "veriep_place");
VERIEP_ASSERT(sizeof(veriep_choices) == 24, "veriep_choices");
VERIEP_ASSERT(sizeof(veriep_area) == 72, "veriep_area");
VERIEP_ASSERT(sizeof(veriep_send) == 20, "veriep_send");
VERIEP_ASSERT(sizeof(veriep_rows) == 24, "veriep_rows");
VERIEP_ASSERT(sizeof(veriep_fingerprints) == 520, "veriep_fingerprints");
VERIEP_ASSERT(sizeof(veriep_status) == 12, "veriep_status");
VERIEP_ASSERT(sizeof(veriep_awaited) == 24, "veriep_awaited");
#undef VERIEP_ASSERT
