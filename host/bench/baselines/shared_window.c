/* Processes over one shared window; with ROWS_AHEAD the strongest we know on one machine. Counts first, then every row straight to
 * its final place, one copy; combine sums the rows where the experts left them. No flags: two barriers of all ranks
 * in dispatch, one in combine. With ONE_PLACE the experts write over the rows that they read. */
#include "common.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int32_t *counts;      /* [ranks, experts], in rank 0's part: what each rank sends to each expert */
static void **windows;       /* by rank */
static size_t y_at, scales_at;
static int32_t *recv_counts; /* [local_experts * ranks] */
static int32_t *next_row;    /* [experts]: the next row that I write there, on its rank */
static int32_t *places;      /* [bs, k]: the row of each pair on its expert's rank */
static int8_t *scratch;
static enum way way;

static char *window_of(int rank) { return windows[rank]; }

static size_t up(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

static void dispatch(const struct job *job) {
    int pairs = job->bs * job->k, experts = job->experts, local = job->local_experts;
    int32_t *mine = counts + (size_t)job->rank * experts;
    memset(mine, 0, 4 * experts);
    for (int i = 0; i < pairs; i++) mine[job->ids[i]]++;
    meet();
    place_rows(job, counts, next_row, recv_counts);

    for (int t = 0, i = 0; t < job->bs; t++) {
        const void *row = job->x + (size_t)t * job->h;
        float scale = 0;
        if (job->quantised) {
            scale = quantise(scratch, row, job->h);
            row = scratch;
        }
        for (int k = 0; k < job->k; k++, i++) {
            int expert = job->ids[i];
            char *window = window_of(expert / local);
            int32_t place = places[i] = next_row[expert]++;
            copy_row(window + (size_t)place * job->payload_bytes, row, job->payload_bytes, way);
            if (job->quantised) ((float *)(window + scales_at))[place] = scale;
        }
    }
    fence(way);
    meet();
}

static void combine(const struct job *job) {
    meet();
    for (int t = 0; t < job->bs; t++) {
        const uint16_t *rows[job->k];
        for (int k = 0; k < job->k; k++) {
            int i = t * job->k + k;
            rows[k] = (const uint16_t *)(window_of(job->ids[i] / job->local_experts) + y_at) +
                      (size_t)places[i] * job->h;
        }
        weighted_sum(job->x_out + (size_t)t * job->h, rows, job->weights + t * job->k, job->k, job->h, way);
    }
}

static struct received received(const struct job *job) {
    char *mine = window_of(job->rank);
    return (struct received){recv_counts, mine, (float *)(mine + scales_at), (uint16_t *)(mine + y_at)};
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    struct job job = read_job(argc, argv);
    int of_token = job.local_experts < job.k ? job.local_experts : job.k;
    size_t rows = (size_t)job.bs * job.ranks * of_token, pairs = (size_t)job.bs * job.k;
    scales_at = up(rows * job.payload_bytes);
    y_at = scales_at + up(rows * 4);
#ifdef ONE_PLACE
    size_t window = y_at;
    y_at = 0;
#else
    size_t window = y_at + up(rows * job.row_bytes);
#endif
    windows = calloc(job.ranks, sizeof *windows);
    void **parts = calloc(job.ranks, sizeof *parts);
    shared_pages(window, windows);
    shared_pages(job.rank ? 0 : 4ul * job.ranks * job.experts, parts);
    counts = parts[0];
    recv_counts = calloc((size_t)job.local_experts * job.ranks, 4);
    next_row = calloc(job.experts, 4);
    places = calloc(pairs, 4);
    scratch = pages(job.payload_bytes);
#ifdef ROWS_AHEAD
    way = AHEAD;
#else
    /* Streaming stores pay when what all ranks write does not stay in the cache anyway. */
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    way = cache > 0 && (double)job.ranks * pairs * job.payload_bytes > cache ? PAST : THROUGH;
#endif
    measure(&job, &(struct system){dispatch, combine, received});
    MPI_Finalize();
}
