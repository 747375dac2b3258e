/* One-sided MPI: counts first, then each row by MPI_Put straight to its final place, then a flag; combine takes the rows by MPI_Get
 * from where the experts left them. A process that waits polls its own flags. */
#include "common.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* A rank's window: flags of all ranks by phase, counts of all ranks, rows, results. */
enum phase { COUNTED, ARRIVED, RETURNED, PHASES };
static MPI_Win win;
static char *window;
static size_t counts_at, rows_at, y_at;
static int64_t round_number;
static int32_t *mine, *recv_counts, *next_row, *places;
static uint16_t *scratch;

static size_t flag_at(const struct job *job, enum phase phase, int rank) {
    return sizeof round_number * ((size_t)phase * job->ranks + rank);
}

/* Tells all ranks of a phase, behind what was put to them, and waits until all have told so. */
static void tell(const struct job *job, enum phase phase) {
    MPI_Win_flush_all(win);
    for (int r = 0; r < job->ranks; r++)
        MPI_Put(&round_number, 8, MPI_BYTE, r, flag_at(job, phase, job->rank), 8, MPI_BYTE, win);
    MPI_Win_flush_all(win);
    for (int r = 0; r < job->ranks; r++) {
        const volatile int64_t *flag = (const volatile int64_t *)(window + flag_at(job, phase, r));
        while (*flag < round_number) {
            MPI_Win_sync(win);
            sched_yield();
        }
    }
    MPI_Win_sync(win);
}

static void dispatch(const struct job *job) {
    int pairs = job->bs * job->k, experts = job->experts, local = job->local_experts;
    round_number++;
    memset(mine, 0, 4 * experts);
    for (int i = 0; i < pairs; i++) mine[job->ids[i]]++;
    for (int r = 0; r < job->ranks; r++)
        MPI_Put(mine, experts, MPI_INT32_T, r, counts_at + 4ul * job->rank * experts, experts, MPI_INT32_T, win);
    tell(job, COUNTED);
    place_rows(job, (const int32_t *)(window + counts_at), next_row, recv_counts);

    for (int i = 0; i < pairs; i++) {
        int expert = job->ids[i];
        places[i] = next_row[expert]++;
        MPI_Put(job->x + (size_t)(i / job->k) * job->h, job->row_bytes, MPI_BYTE, expert / local,
                rows_at + places[i] * job->row_bytes, job->row_bytes, MPI_BYTE, win);
    }
    tell(job, ARRIVED);
}

static void combine(const struct job *job) {
    tell(job, RETURNED);
    const uint16_t *rows[job->k];
    for (int k = 0; k < job->k; k++) rows[k] = scratch + (size_t)k * job->h;
    for (int t = 0; t < job->bs; t++) {
        for (int k = 0; k < job->k; k++) {
            int i = t * job->k + k;
            MPI_Get(scratch + (size_t)k * job->h, job->row_bytes, MPI_BYTE, job->ids[i] / job->local_experts,
                    y_at + places[i] * job->row_bytes, job->row_bytes, MPI_BYTE, win);
        }
        MPI_Win_flush_all(win);
        weighted_sum(job->x_out + (size_t)t * job->h, rows, job->weights + t * job->k, job->k, job->h, THROUGH);
    }
}

static struct received received(const struct job *job) {
    (void)job;
    return (struct received){recv_counts, window + rows_at, NULL, (uint16_t *)(window + y_at)};
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    struct job job = read_job(argc, argv);
    int of_token = job.local_experts < job.k ? job.local_experts : job.k;
    size_t rows = (size_t)job.bs * job.ranks * of_token;
    counts_at = flag_at(&job, PHASES, 0);
    rows_at = (counts_at + 4ul * job.ranks * job.experts + 4095) / 4096 * 4096;
    y_at = rows_at + rows * job.row_bytes;
    MPI_Win_allocate(y_at + rows * job.row_bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
    memset(window, 0, counts_at);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
    MPI_Barrier(MPI_COMM_WORLD);
    mine = calloc(job.experts, 4);
    recv_counts = calloc((size_t)job.local_experts * job.ranks, 4);
    next_row = calloc(job.experts, 4);
    places = calloc((size_t)job.bs * job.k, 4);
    scratch = pages(job.k * job.row_bytes);
    measure(&job, &(struct system){dispatch, combine, received});
    MPI_Win_unlock_all(win);
    MPI_Finalize();
}
