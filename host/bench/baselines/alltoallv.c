/* What a program on MPI does: permute the rows by their rank, MPI_Alltoallv, permute by expert; and back. */
#include "common.h"

#include <stdlib.h>
#include <string.h>

static MPI_Datatype row;                 /* of dispatch and combine: job.row_bytes */
static int *send_counts, *send_offsets;  /* [ranks], rows */
static int *recv_rows, *recv_offsets;    /* [ranks], rows */
static int32_t *to_experts, *from_ranks; /* [ranks, local_experts]: what I send, what I receive */
static int32_t *recv_counts;             /* [local_experts * ranks] */
static int32_t *places;                  /* [bs, k]: the row of each pair in the send buffer */
static char *send_buffer, *recv_buffer, *expand_x, *y;

/* Every stretch of rows of one expert and one source: its place in what arrived, and in `expand_x` and `y`. */
static void permute(const struct job *job, char *by_rank, char *by_expert, int back) {
    int local = job->local_experts;
    for (int r = 0; r < job->ranks; r++) {
        size_t at = recv_offsets[r];
        for (int e = 0; e < local; e++) {
            size_t n = from_ranks[r * local + e], to = recv_counts[e * job->ranks + r] - n;
            char *one = by_rank + at * job->row_bytes, *other = by_expert + to * job->row_bytes;
            if (back) memcpy(one, other, n * job->row_bytes);
            else memcpy(other, one, n * job->row_bytes);
            at += n;
        }
    }
}

static void dispatch(const struct job *job) {
    int pairs = job->bs * job->k, local = job->local_experts;
    memset(to_experts, 0, 4 * job->experts);
    for (int i = 0; i < pairs; i++) to_experts[job->ids[i]]++;
    MPI_Alltoall(to_experts, local, MPI_INT32_T, from_ranks, local, MPI_INT32_T, MPI_COMM_WORLD);

    int32_t next[job->experts];
    int sent = 0, arrived = 0;
    for (int r = 0; r < job->ranks; r++) {
        send_offsets[r] = sent;
        recv_offsets[r] = arrived;
        for (int e = 0; e < local; e++) {
            next[r * local + e] = sent;
            sent += to_experts[r * local + e];
            arrived += from_ranks[r * local + e];
        }
        send_counts[r] = sent - send_offsets[r];
        recv_rows[r] = arrived - recv_offsets[r];
    }
    int32_t sum = 0;
    for (int e = 0; e < local; e++)
        for (int r = 0; r < job->ranks; r++) recv_counts[e * job->ranks + r] = sum += from_ranks[r * local + e];

    for (int i = 0; i < pairs; i++) {
        places[i] = next[job->ids[i]]++;
        memcpy(send_buffer + places[i] * job->row_bytes, job->x + (size_t)(i / job->k) * job->h, job->row_bytes);
    }
    MPI_Alltoallv(send_buffer, send_counts, send_offsets, row, recv_buffer, recv_rows, recv_offsets, row,
                  MPI_COMM_WORLD);
    permute(job, recv_buffer, expand_x, 0);
}

static void combine(const struct job *job) {
    permute(job, recv_buffer, y, 1);
    MPI_Alltoallv(recv_buffer, recv_rows, recv_offsets, row, send_buffer, send_counts, send_offsets, row,
                  MPI_COMM_WORLD);
    /* What comes back lies where it was sent from. */
    for (int t = 0; t < job->bs; t++) {
        const uint16_t *rows[job->k];
        for (int k = 0; k < job->k; k++)
            rows[k] = (const uint16_t *)(send_buffer + places[t * job->k + k] * job->row_bytes);
        weighted_sum(job->x_out + (size_t)t * job->h, rows, job->weights + t * job->k, job->k, job->h, THROUGH);
    }
}

static struct received received(const struct job *job) {
    (void)job;
    return (struct received){recv_counts, expand_x, NULL, (uint16_t *)y};
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    struct job job = read_job(argc, argv);
    if (job.quantised) MPI_Abort(MPI_COMM_WORLD, 2);
    int of_token = job.local_experts < job.k ? job.local_experts : job.k;
    size_t rows = (size_t)job.bs * job.ranks * of_token, pairs = (size_t)job.bs * job.k;
    MPI_Type_contiguous((int)job.row_bytes, MPI_BYTE, &row);
    MPI_Type_commit(&row);
    send_counts = calloc(4 * job.ranks, sizeof(int));
    send_offsets = send_counts + job.ranks;
    recv_rows = send_counts + 2 * job.ranks;
    recv_offsets = send_counts + 3 * job.ranks;
    to_experts = calloc(job.experts, 4);
    from_ranks = calloc(job.experts, 4);
    recv_counts = calloc((size_t)job.local_experts * job.ranks, 4);
    places = calloc(pairs, 4);
    send_buffer = pages(pairs * job.row_bytes);
    recv_buffer = pages(rows * job.row_bytes);
    expand_x = pages(rows * job.row_bytes);
    y = pages(rows * job.row_bytes);
    measure(&job, &(struct system){dispatch, combine, received});
    MPI_Finalize();
}
