/* What all baselines share: the case as `veriep bench` writes it, rows in registers, the clock, the answer. */
#ifndef COMMON_H
#define COMMON_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* One case and this rank's part of it. Sizes are in elements or rows unless they say bytes. */
struct job {
    const char *path; /* of the file: gains, then x, ids and weights by rank, then a slot of outputs by rank */
    FILE *file;
    off_t outputs_at; /* where this rank's slot begins: the bytes that follow as 64 bits, then those */
    size_t slot;      /* its size */
    int rank, ranks, experts, local_experts, k, h, bs;
    int quantised; /* rows travel as int8 with a scale */
    size_t row_bytes, payload_bytes; /* of a row of bf16; of a row as it travels */
    uint16_t *x;                     /* [bs, h] bf16 */
    int32_t *ids;                    /* [bs, k] */
    float *weights;                  /* [bs, k] */
    float *gains;                    /* [experts], of the stand-in experts */
    uint16_t *x_out;                 /* [bs, h] */
};

/* One system: its operators over memory of its own. `received` gives what dispatch put out. */
struct received {
    int32_t *recv_counts;          /* [local_experts * ranks], inclusive prefix sums */
    void *expand_x;                /* [n, payload_bytes] */
    float *scales;                 /* [n], quantised only */
    uint16_t *y;                   /* [n, h], what the experts return */
};
struct system {
    void (*dispatch)(const struct job *job);
    void (*combine)(const struct job *job);
    struct received (*received)(const struct job *job);
};

/* Reads arguments and the file; ends the program with a line if it cannot. MPI must be up. */
struct job read_job(int argc, char **argv);
/* Does what standard input says until it ends, one JSON object on a line for each order:
 *   check                 an iteration whose outputs every rank writes to its slot
 *   single WARM_UP COUNT  iterations with a meeting before each operator; their times
 *   chain COUNT           iterations back to back; the time of one
 * Ranks sleep between orders. */
void measure(const struct job *job, const struct system *system);

/* All ranks of this machine meet. Spins only while every rank has a processor. */
void meet(void);
/* Zeroed pages. */
void *pages(size_t bytes);
/* The memory of all ranks, `bytes` of each on pages of their own; their addresses go into `parts`. */
void shared_pages(size_t bytes, void **parts);

/* Of what each rank sends to each expert, `counts` [ranks, experts]: the first of my rows for each expert, on its rank, where
 * experts lie in order and within each the sources in order; and what my experts receive, as `struct received` has it. */
void place_rows(const struct job *job, const int32_t *counts, int32_t *next_row, int32_t *recv_counts);

/* How rows go: through the caches, past them, or through them with their lines asked for ahead. */
enum way { THROUGH, PAST, AHEAD };

/* out[i] = bf16(sum over k ascending of weight[k] * rows[k][i]), from +0, product and sum rounded each. */
void weighted_sum(uint16_t *out, const uint16_t *const *rows, const float *weights, int k, int h, enum way way);
/* Dynamic int8: out = rint(x * 127 / max|x|). Returns the scale 1 / (127 / max|x|), 0 for a row of zeros. */
float quantise(int8_t *out, const uint16_t *x, int h);
/* The stand-in experts: y = bf16(v * gain), v the received row in f32. */
void experts(const struct job *job, struct received received);
/* A row copied. */
void copy_row(void *to, const void *from, size_t bytes, enum way way);
/* Makes rows that went past the caches visible before what is stored next. */
void fence(enum way way);

#endif
