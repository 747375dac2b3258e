// Dispatch of one record in AscendC: the row goes through the unified buffer into the window of the expert's rank, and
// behind it the word that tells of it. Where things lie and what the word is are functions of the header that veriep
// exports.
//
// It is the smallest piece of a dispatch, of a rank with one core and one row: where there are more, all cores of the rank
// must have met before the word is written.
#include "kernel_operator.h"

#include "decode_plan.h"

using namespace AscendC;

constexpr uint32_t ROW_BYTES = DECODE_PAYLOAD_BYTES;
constexpr uint32_t TAIL_AT = DECODE_DISPATCH_RECORDS_SCALE_AT;
constexpr uint32_t TAIL_BYTES = 64; // The scale's field and the triple, as multiples of 32 bytes.

extern "C" __global__ __aicore__ void dispatch_record(
    GM_ADDR x, GM_ADDR window, GM_ADDR state, uint32_t owner, uint32_t source, uint32_t local_expert, uint32_t token,
    uint32_t k)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> row_buffer, tail_buffer, word_buffer;
    pipe.InitBuffer(row_buffer, ROW_BYTES);
    pipe.InitBuffer(tail_buffer, TAIL_BYTES);
    pipe.InitBuffer(word_buffer, 32);
    LocalTensor<uint8_t> row = row_buffer.Get<uint8_t>();
    LocalTensor<int32_t> tail = tail_buffer.Get<int32_t>();
    LocalTensor<uint32_t> word = word_buffer.Get<uint32_t>();

    GlobalTensor<uint8_t> from, record;
    GlobalTensor<int32_t> record_tail;
    GlobalTensor<uint32_t> status;
    const uint32_t slot = 0;
    const uint64_t at = decode_dispatch_records(0, owner, source, local_expert, slot);
    from.SetGlobalBuffer((__gm__ uint8_t *)(x + token * DECODE_ROW_BYTES));
    record.SetGlobalBuffer((__gm__ uint8_t *)(window + at));
    record_tail.SetGlobalBuffer((__gm__ int32_t *)(window + at + TAIL_AT));
    status.SetGlobalBuffer((__gm__ uint32_t *)(state + decode_dispatch_status(0, local_expert, source)));

    DataCopy(row, from, ROW_BYTES);
    SetFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
    DataCopy(record, row, ROW_BYTES);

    for (uint32_t n = 0; n < TAIL_BYTES / 4; n++) {
        tail.SetValue(n, 0);
    }
    tail.SetValue(8, source);
    tail.SetValue(9, token);
    tail.SetValue(10, k);
    SetFlag<HardEvent::S_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::S_MTE3>(EVENT_ID0);
    DataCopy(record_tail, tail, TAIL_BYTES / 4);

    // The data before the word.
    PipeBarrier<PIPE_MTE3>();
    const uint64_t told = decode_dispatch_status_status_word(1);
    for (uint32_t n = 0; n < 8; n++) {
        word.SetValue(n, n == 0 ? (uint32_t)told : n == 1 ? (uint32_t)(told >> 32) : 0);
    }
    SetFlag<HardEvent::S_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::S_MTE3>(EVENT_ID0);
    DataCopy(status, word, 8);
}
