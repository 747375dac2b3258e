/* Rows: copies, sums and int8, with the widest vectors the compiler was told of (-march=native). */
#include "common.h"

#include <math.h>
#include <string.h>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

/* 16 lanes: one register with AVX-512, two with AVX2, four with SSE or NEON. The compiler splits them. */
typedef uint16_t u16x16 __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef float f32x16 __attribute__((vector_size(64)));

enum { LANES = 16, BLOCK = 4 * LANES };
/* How far ahead lines are asked for: elements of a sum, bytes of a copy. */
enum { SUM_AHEAD = 256, COPY_AHEAD = 1024, LINE = 64 };

static inline f32x16 widen(const uint16_t *row) {
    return (f32x16)(__builtin_convertvector(*(const u16x16 *)row, u32x16) << 16);
}

/* To nearest, ties to even; a NaN becomes 0x7FC0. */
static inline void narrow(uint16_t *out, f32x16 value) {
    u32x16 bits = (u32x16)value;
    u32x16 rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    i32x16 is_nan = value != value;
    rounded = (rounded & ~(u32x16)is_nan) | (0x7FC0 & (u32x16)is_nan);
    *(u16x16 *)out = __builtin_convertvector(rounded, u16x16);
}

static float widen_one(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static uint16_t narrow_one(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return value != value ? 0x7FC0 : (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

/* Four sums stay in registers while all rows pass. */
static inline __attribute__((always_inline)) void sum_blocks(uint16_t *out, const uint16_t *const *rows,
                                                             const float *weights, int k, int blocks, int ahead) {
    for (int at = 0; at < blocks * BLOCK; at += BLOCK) {
        f32x16 a = {0}, b = {0}, c = {0}, d = {0};
        for (int i = 0; i < k; i++) {
            const uint16_t *row = rows[i] + at;
            if (ahead) {
                __builtin_prefetch(row + SUM_AHEAD);
                __builtin_prefetch(row + SUM_AHEAD + 2 * LANES);
            }
            a += weights[i] * widen(row);
            b += weights[i] * widen(row + LANES);
            c += weights[i] * widen(row + 2 * LANES);
            d += weights[i] * widen(row + 3 * LANES);
        }
        narrow(out + at, a);
        narrow(out + at + LANES, b);
        narrow(out + at + 2 * LANES, c);
        narrow(out + at + 3 * LANES, d);
    }
}

void weighted_sum(uint16_t *out, const uint16_t *const *rows, const float *weights, int k, int h,
                  enum way way) {
    /* The number of rows is a constant in the common case: the loop over them is unrolled. */
    if (k == 8 && way == AHEAD) sum_blocks(out, rows, weights, 8, h / BLOCK, 1);
    else if (k == 8) sum_blocks(out, rows, weights, 8, h / BLOCK, 0);
    else sum_blocks(out, rows, weights, k, h / BLOCK, way == AHEAD);
    for (int at = h / BLOCK * BLOCK; at < h; at++) {
        float sum = 0;
        for (int i = 0; i < k; i++) sum += weights[i] * widen_one(rows[i][at]);
        out[at] = narrow_one(sum);
    }
}

float quantise(int8_t *out, const uint16_t *x, int h) {
    /* Magnitudes are ordered like their bits. */
    uint16_t largest = 0;
    for (int i = 0; i < h; i++) {
        uint16_t magnitude = x[i] & 0x7FFF;
        largest = magnitude > largest ? magnitude : largest;
    }
    float scale = 127.0f / widen_one(largest);
    if (!isfinite(scale)) {
        memset(out, 0, h);
        return 0;
    }
    for (int i = 0; i < h; i++) out[i] = (int8_t)(int32_t)rintf(widen_one(x[i]) * scale);
    return 1.0f / scale;
}

void copy_row(void *to, const void *from, size_t bytes, enum way way) {
    if (way == AHEAD) {
        size_t at = 0;
        for (; at + LINE <= bytes; at += LINE) {
            if (at + COPY_AHEAD < bytes) {
                __builtin_prefetch((const char *)from + at + COPY_AHEAD);
                __builtin_prefetch((char *)to + at + COPY_AHEAD);
            }
            memcpy((char *)to + at, (const char *)from + at, LINE);
        }
        memcpy((char *)to + at, (const char *)from + at, bytes - at);
        return;
    }
#if defined(__AVX512F__)
    if (way == PAST && (uintptr_t)to % 64 == 0 && bytes % 64 == 0) {
        for (size_t at = 0; at < bytes; at += 64)
            _mm512_stream_si512((void *)((char *)to + at), _mm512_loadu_si512((const char *)from + at));
        return;
    }
#elif defined(__AVX2__)
    if (way == PAST && (uintptr_t)to % 32 == 0 && bytes % 32 == 0) {
        for (size_t at = 0; at < bytes; at += 32)
            _mm256_stream_si256((void *)((char *)to + at),
                                _mm256_loadu_si256((const void *)((const char *)from + at)));
        return;
    }
#endif
    memcpy(to, from, bytes);
}

void fence(enum way way) {
#if defined(__AVX512F__) || defined(__AVX2__)
    if (way == PAST) _mm_sfence();
#else
    (void)way;
#endif
}

void experts(const struct job *job, struct received r) {
    int32_t row = 0;
    for (int expert = 0; expert < job->local_experts; expert++) {
        float gain = job->gains[job->rank * job->local_experts + expert];
        for (; row < r.recv_counts[(expert + 1) * job->ranks - 1]; row++) {
            uint16_t *y = r.y + (size_t)row * job->h;
            if (job->quantised) {
                const int8_t *q = (const int8_t *)r.expand_x + (size_t)row * job->h;
                for (int i = 0; i < job->h; i++) y[i] = narrow_one(q[i] * r.scales[row] * gain);
            } else {
                const uint16_t *v = (const uint16_t *)r.expand_x + (size_t)row * job->h;
                for (int i = 0; i < job->h; i++) y[i] = narrow_one(widen_one(v[i]) * gain);
            }
        }
    }
}
