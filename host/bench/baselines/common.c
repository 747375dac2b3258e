/* The case, the clock and the answer. */
#define _GNU_SOURCE
#include "common.h"

#include <limits.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static _Noreturn void fail(const char *what, const char *which) {
    fprintf(stderr, "baseline: %s: %s\n", which, what);
    MPI_Abort(MPI_COMM_WORLD, 2);
    exit(2);
}

void *pages(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("no memory", "pages");
    madvise(at, bytes, MADV_HUGEPAGE);
    return at;
}

void shared_pages(size_t bytes, void **parts) {
    enum { PAGE = 4096 };
    int ranks;
    void *mine;
    MPI_Win window;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    /* Parts on pages of their own: MPI promises less, but it maps whole pages, so all ranks round alike. */
    bytes = (bytes + 2 * PAGE - 1) / PAGE * PAGE;
    MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &window);
    for (int r = 0; r < ranks; r++) {
        MPI_Aint size;
        int unit;
        MPI_Win_shared_query(window, r, &size, &unit, &parts[r]);
        parts[r] = (char *)parts[r] + (PAGE - (uintptr_t)parts[r] % PAGE) % PAGE;
        /* Where the system lets shared memory have huge pages: see README.md. */
        madvise(parts[r], bytes - PAGE, MADV_HUGEPAGE);
    }
}

/* What all ranks do next; rank 0 reads it from standard input. */
struct order {
    char what[16]; /* `check`, `single`, `chain` or `end` */
    int warm_up, count;
};

/* The meeting place: a counter and a generation, each on a line of its own; and what the ranks sleep on. */
static struct {
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_uint generation;
    _Alignas(64) struct order order;
    struct {
        _Alignas(64) sem_t told;
    } ranks[];
} *place;
static int members, spins;

static void open_meeting_place(int rank, int ranks) {
    void *parts[ranks];
    shared_pages(rank ? 0 : sizeof *place + ranks * sizeof place->ranks[0], parts);
    place = parts[0];
    members = ranks;
    if (sem_init(&place->ranks[rank].told, 1, 0)) fail("no semaphore", "open_meeting_place");
    spins = ranks <= sysconf(_SC_NPROCESSORS_ONLN) ? 100000 : 0;
    MPI_Barrier(MPI_COMM_WORLD);
}

void meet(void) {
    unsigned now = atomic_load_explicit(&place->generation, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&place->arrived, 1, memory_order_acq_rel) + 1 == members) {
        atomic_store_explicit(&place->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&place->generation, now + 1, memory_order_release);
        return;
    }
    for (int spun = 0; atomic_load_explicit(&place->generation, memory_order_acquire) == now; spun++) {
        if (spun >= spins) sched_yield();
        else {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    }
}

static void read_at(const struct job *job, off_t at, int count, void *parts[], const size_t bytes[]) {
    if (fseeko(job->file, at, SEEK_SET)) fail("cannot seek", job->path);
    for (int i = 0; i < count; i++)
        if (fread(parts[i], 1, bytes[i], job->file) != bytes[i]) fail("too short", job->path);
}

static int number(int argc, char **argv, int i, const char *name) {
    char *end = NULL;
    long value = i < argc ? strtol(argv[i], &end, 10) : -1;
    if (value < 0 || value > INT_MAX || !end || end == argv[i] || *end) fail("missing or not a number", name);
    return value;
}

struct job read_job(int argc, char **argv) {
    struct job job = {.path = argc > 1 ? argv[1] : NULL};
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.ranks);
    if (!job.path) fail("usage: FILE EXPERTS K H BS QUANTISED SLOT", argv[0]);
    job.file = fopen(job.path, "r+b");
    if (!job.file) fail("cannot open", job.path);
    job.experts = number(argc, argv, 2, "EXPERTS");
    job.k = number(argc, argv, 3, "K");
    job.h = number(argc, argv, 4, "H");
    job.bs = number(argc, argv, 5, "BS");
    job.quantised = number(argc, argv, 6, "QUANTISED");
    job.slot = argc > 7 ? strtoull(argv[7], NULL, 10) : 0;
    if (job.experts % job.ranks) fail("must be a multiple of the ranks", "EXPERTS");
    job.local_experts = job.experts / job.ranks;
    job.row_bytes = 2 * (size_t)job.h;
    job.payload_bytes = job.quantised ? (size_t)job.h : job.row_bytes;
    /* A rank keeps its processor, as its peers keep theirs. */
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(job.rank % sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof set, &set);

    size_t pairs = (size_t)job.bs * job.k;
    job.x = pages(job.bs * job.row_bytes);
    job.x_out = pages(job.bs * job.row_bytes);
    job.ids = pages(pairs * 4);
    job.weights = pages(pairs * 4);
    job.gains = pages(job.experts * 4);
    off_t gains = job.experts * 4l, inputs = job.bs * job.row_bytes + pairs * 8;
    read_at(&job, 0, 1, (void *[]){job.gains}, (size_t[]){gains});
    read_at(&job, gains + job.rank * inputs, 3, (void *[]){job.x, job.ids, job.weights},
            (size_t[]){job.bs * job.row_bytes, pairs * 4, pairs * 4});
    job.outputs_at = gains + job.ranks * inputs + job.rank * (off_t)job.slot;
    for (size_t i = 0; i < pairs; i++)
        if (job.ids[i] < 0 || job.ids[i] >= job.experts) fail("expert out of range", job.path);
    open_meeting_place(job.rank, job.ranks);
    return job;
}

void place_rows(const struct job *job, const int32_t *counts, int32_t *next_row, int32_t *recv_counts) {
    int experts = job->experts, local = job->local_experts;
    int32_t total[experts];
    memset(total, 0, sizeof total);
    for (int r = 0; r < job->ranks; r++) {
        const int32_t *row = counts + (size_t)r * experts;
        if (r == job->rank) memcpy(next_row, total, sizeof total);
        for (int e = 0; e < experts; e++) total[e] += row[e];
    }
    for (int e = 0, before = 0; e < experts; e++) {
        if (e % local == 0) before = 0;
        next_row[e] += before;
        before += total[e];
    }
    int32_t sum = 0;
    for (int e = 0; e < local; e++)
        for (int r = 0; r < job->ranks; r++)
            recv_counts[e * job->ranks + r] = sum += counts[(size_t)r * experts + job->rank * local + e];
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

/* What the experts returned in the last check, put back where it lies over the rows that came since. */
static void *returned;
static size_t returned_bytes;

static void put_back(const struct job *job, const struct system *system) {
    struct received r = system->received(job);
    if ((void *)r.y == r.expand_x && returned) memcpy(r.y, returned, returned_bytes);
}

/* One iteration of which the outputs are kept, in memory that nothing of an earlier one is left in. */
static void check(const struct job *job, const struct system *system) {
    struct received r = system->received(job);
    size_t had = r.recv_counts[job->local_experts * job->ranks - 1];
    memset(r.expand_x, 0xAA, had * job->payload_bytes);
    memset(r.y, 0xAA, had * job->row_bytes);
    memset(job->x_out, 0xAA, job->bs * job->row_bytes);
    if (r.scales) memset(r.scales, 0xAA, had * sizeof *r.scales);
    memset(r.recv_counts, 0xAA, (size_t)job->local_experts * job->ranks * sizeof *r.recv_counts);
    meet();
    system->dispatch(job);
    r = system->received(job);
    size_t n = r.recv_counts[job->local_experts * job->ranks - 1];
    char *expand_x = r.expand_x;
    if ((void *)r.y == r.expand_x) {
        expand_x = malloc(n * job->payload_bytes + 1);
        memcpy(expand_x, r.expand_x, n * job->payload_bytes);
    }
    experts(job, r);
    returned_bytes = n * job->row_bytes;
    returned = memcpy(realloc(returned, returned_bytes + 1), r.y, returned_bytes);
    system->combine(job);
    size_t counts = (size_t)job->local_experts * job->ranks;
    uint64_t bytes = 4 * counts + n * (job->payload_bytes + (job->quantised ? 4 : 0)) + job->bs * job->row_bytes;
    if (sizeof bytes + bytes > job->slot) fail("more rows than there is room for", job->path);
    int bad = fseeko(job->file, job->outputs_at, SEEK_SET);
    size_t written = fwrite(&bytes, sizeof bytes, 1, job->file);
    written += fwrite(r.recv_counts, 4, counts, job->file);
    written += fwrite(expand_x, job->payload_bytes, n, job->file);
    if (job->quantised) written += fwrite(r.scales, 4, n, job->file);
    written += fwrite(job->x_out, job->row_bytes, job->bs, job->file);
    if (bad || fflush(job->file) || written != 1 + counts + n * (1 + !!job->quantised) + job->bs)
        fail("cannot write", job->path);
    if (expand_x != r.expand_x) free(expand_x);
    meet();
}

struct span {
    int64_t begin, end;
};

/* From the first rank's begin to the last rank's end: ranks that share a processor do not begin at once. */
static void print(const char *name, const struct job *job, const struct span *mine, int count, int rounds) {
    struct span *all = job->rank ? NULL : calloc((size_t)job->ranks * count + 1, sizeof *all);
    int bytes = count * (int)sizeof *mine;
    MPI_Gather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (job->rank) return;
    printf("\"%s\":", name);
    for (int i = 0; i < count; i++) {
        struct span whole = {INT64_MAX, INT64_MIN};
        for (int r = 0; r < job->ranks; r++) {
            struct span span = all[(size_t)r * count + i];
            whole.begin = span.begin < whole.begin ? span.begin : whole.begin;
            whole.end = span.end > whole.end ? span.end : whole.end;
        }
        printf("%s%lld", i ? "," : "[", (long long)((whole.end - whole.begin) / rounds));
    }
    printf("]");
    free(all);
}

/* All ranks begin an operator together. The experts have returned their rows already: they are the same each time. What rows
 * have come over is put back, outside of the times. */
static void single(const struct job *job, const struct system *system, int warm_up, int iterations) {
    struct span *dispatch = calloc(2 * iterations + 1, sizeof *dispatch), *combine = dispatch + iterations;
    for (int i = -warm_up; i < iterations; i++) {
        struct span d, c;
        meet();
        d.begin = now();
        system->dispatch(job);
        d.end = now();
        meet();
        put_back(job, system);
        meet();
        c.begin = now();
        system->combine(job);
        c.end = now();
        if (i >= 0) dispatch[i] = d, combine[i] = c;
    }
    print("dispatch_ns", job, dispatch, iterations, 1);
    if (job->rank == 0) printf(",");
    print("combine_ns", job, combine, iterations, 1);
    free(dispatch);
}

/* Rounds back to back. */
static void chain(const struct job *job, const struct system *system, int rounds) {
    struct span span;
    meet();
    span.begin = now();
    for (int i = 0; i < rounds; i++) {
        system->dispatch(job);
        put_back(job, system);
        system->combine(job);
    }
    span.end = now();
    meet();
    print("round_ns", job, &span, 1, rounds);
}

/* The next order. Until it comes every rank sleeps: other systems are measured meanwhile. */
static struct order next_order(const struct job *job) {
    if (job->rank == 0) {
        char line[64];
        struct order order = {.what = "end"};
        if (fgets(line, sizeof line, stdin)) {
            if (!strcmp(line, "check\n")) strcpy(order.what, "check");
            else if (sscanf(line, "single %d %d", &order.warm_up, &order.count) == 2) strcpy(order.what, "single");
            else if (sscanf(line, "chain %d", &order.count) == 1) strcpy(order.what, "chain");
            else fail("no such order", line);
        }
        place->order = order;
        for (int r = 0; r < job->ranks; r++) sem_post(&place->ranks[r].told);
    }
    while (sem_wait(&place->ranks[job->rank].told)) {}
    return place->order;
}

void measure(const struct job *job, const struct system *system) {
    /* Memory is committed by the first iteration, not by the one that is checked. */
    meet();
    system->dispatch(job);
    experts(job, system->received(job));
    system->combine(job);
    for (;;) {
        struct order order = next_order(job);
        if (!strcmp(order.what, "end")) break;
        if (job->rank == 0) printf("{");
        if (!strcmp(order.what, "check")) check(job, system);
        else if (!strcmp(order.what, "single")) single(job, system, order.warm_up, order.count);
        else chain(job, system, order.count);
        /* No process reads the next order into `place` before all have read this one. */
        meet();
        if (job->rank == 0) {
            printf("}\n");
            fflush(stdout);
        }
    }
}
