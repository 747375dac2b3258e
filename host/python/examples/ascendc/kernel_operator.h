// Stands in for the header of AscendC where there is none: what dispatch_record.cpp uses of it, on the memory of one
// process. Copies take multiples of 32 bytes, as they do there.
#pragma once
#include <cassert>
#include <cstdint>
#include <cstring>
#include <vector>

using GM_ADDR = uint8_t *;

namespace AscendC {

enum class TPosition { VECCALC };
enum class HardEvent { MTE2_MTE3, S_MTE3 };
enum pipe_t { PIPE_MTE3 };
constexpr int32_t EVENT_ID0 = 0;

template <HardEvent> void SetFlag(int32_t) {}
template <HardEvent> void WaitFlag(int32_t) {}
template <pipe_t> void PipeBarrier() {}

template <typename T> struct LocalTensor {
    T *data;
    void SetValue(uint32_t n, T value) { data[n] = value; }
};

template <typename T> struct GlobalTensor {
    T *data = nullptr;
    void SetGlobalBuffer(T *buffer) { data = buffer; }
};

template <TPosition> struct TBuf {
    std::vector<uint8_t> bytes;
    template <typename T> LocalTensor<T> Get() { return {reinterpret_cast<T *>(bytes.data())}; }
};

struct TPipe {
    template <TPosition position> void InitBuffer(TBuf<position> &buffer, uint32_t bytes) { buffer.bytes.resize(bytes); }
};

template <typename T> void copy(T *to, const T *from, uint32_t count)
{
    assert(count * sizeof(T) % 32 == 0);
    std::memcpy(to, from, count * sizeof(T));
}

template <typename T> void DataCopy(LocalTensor<T> to, GlobalTensor<T> from, uint32_t count)
{
    copy(to.data, from.data, count);
}

template <typename T> void DataCopy(GlobalTensor<T> to, LocalTensor<T> from, uint32_t count)
{
    copy(to.data, from.data, count);
}

} // namespace AscendC
