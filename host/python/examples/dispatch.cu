// A row and the word that tells of it, in CUDA: the words of peers are atomics of the whole system, since a peer is another
// GPU. What is published releases what came before it, and who sees it acquires that.
#include <cuda/atomic>

#include "decode_plan.h"

using Word = cuda::atomic_ref<unsigned long long, cuda::thread_scope_system>;

// The threads of one block put a row into the window of a peer; then one of them says so.
extern "C" __global__ void put_row(
    const uint4 *x, unsigned char *window, unsigned char *state, uint32_t owner, uint32_t source,
    uint32_t local_expert)
{
    unsigned char *at = window + decode_dispatch_records(0, owner, source, local_expert, 0);
    auto *record = reinterpret_cast<uint4 *>(at);
    for (unsigned i = threadIdx.x; i < DECODE_PAYLOAD_BYTES / sizeof(uint4); i += blockDim.x) {
        record[i] = x[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned char *status = state + decode_dispatch_status(0, local_expert, source);
        auto *word = reinterpret_cast<unsigned long long *>(status);
        Word(*word).store(decode_dispatch_status_status_word(1), cuda::memory_order_release);
    }
}

// Waits for it and copies the row out.
extern "C" __global__ void take_row(
    uint4 *out, const unsigned char *window, unsigned char *state, uint32_t owner, uint32_t source,
    uint32_t local_expert)
{
    if (threadIdx.x == 0) {
        unsigned char *status = state + decode_dispatch_status(0, local_expert, source);
        auto *word = reinterpret_cast<unsigned long long *>(status);
        while (Word(*word).load(cuda::memory_order_acquire) != decode_dispatch_status_status_word(1)) {
        }
    }
    __syncthreads();
    const unsigned char *at = window + decode_dispatch_records(0, owner, source, local_expert, 0);
    const auto *record = reinterpret_cast<const uint4 *>(at);
    for (unsigned i = threadIdx.x; i < DECODE_PAYLOAD_BYTES / sizeof(uint4); i += blockDim.x) {
        out[i] = record[i];
    }
}
