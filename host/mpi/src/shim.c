/* All that VeriEP asks of an MPI, as plain C: no handle and no constant of an MPI leaves this file, so one program runs with any
 * MPI whose compiler makes a library of it. Every function returns an MPI's error code, 0 for none, and none of them ends the
 * process: errors of communicators come back. One thread at a time calls. */
#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef OPEN_MPI
#define NAME "openmpi"
#elif defined(MPICH_VERSION)
#define NAME "mpich"
#else
#define NAME "other"
#endif

/* Who reads the library's file finds which MPI it was made for. */
const char veriep_mpi_name[] = "veriep-mpi-shim:1:" NAME ":";

static MPI_Comm group = MPI_COMM_NULL;
static MPI_Message found;
static MPI_Request *requests;
static int room;

static void copy(char *to, int bytes, const char *text) {
    strncpy(to, text, (size_t)bytes - 1);
    to[bytes - 1] = 0;
}

int veriep_mpi_begin(int *process, int *processes, int *serialised, char *version, int bytes) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int level = 0, length = 0, error;
    /* UCX would ask the receiver before a chunk of this size crosses a network, which waits for it: four times as slow over TCP. */
    setenv("UCX_RNDV_THRESH", "64k", 0);
    error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (error) return error;
    *serialised = level >= MPI_THREAD_SERIALIZED;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    error = MPI_Comm_dup(MPI_COMM_WORLD, &group);
    if (error) return error;
    MPI_Comm_set_errhandler(group, MPI_ERRORS_RETURN);
    MPI_Get_library_version(text, &length);
    copy(version, bytes, text);
    error = MPI_Comm_size(group, processes);
    return error ? error : MPI_Comm_rank(group, process);
}

/* Room for a request whose number is `*ticket`. */
static int ticket_for(int *ticket) {
    int i = 0;
    while (i < room && requests[i] != MPI_REQUEST_NULL) i++;
    if (i == room) {
        int more = room ? 2 * room : 64;
        MPI_Request *grown = realloc(requests, (size_t)more * sizeof *requests);
        if (!grown) return MPI_ERR_NO_MEM;
        requests = grown;
        while (room < more) requests[room++] = MPI_REQUEST_NULL;
    }
    *ticket = i;
    return 0;
}

/* Begins to send. `bytes` must stay as they are until veriep_mpi_sent says so of the ticket. */
int veriep_mpi_send(int to, const void *bytes, int len, int *ticket) {
    int error = ticket_for(ticket);
    return error ? error : MPI_Isend(bytes, len, MPI_BYTE, to, 0, group, &requests[*ticket]);
}

/* Begins to agree with all others on the largest of each number; the same holds of both lists. */
int veriep_mpi_agree(const uint64_t *own, uint64_t *largest, int count, int *ticket) {
    int error = ticket_for(ticket);
    if (error) return error;
    return MPI_Iallreduce(own, largest, count, MPI_UINT64_T, MPI_MAX, group, &requests[*ticket]);
}

int veriep_mpi_sent(int ticket, int *done) { return MPI_Test(&requests[ticket], done, MPI_STATUS_IGNORE); }

/* A message that has come, and from whom; `*len` is -1 if none has. veriep_mpi_take takes it. */
int veriep_mpi_look(int *from, int *len) {
    MPI_Status status;
    int any = 0, error = MPI_Improbe(MPI_ANY_SOURCE, 0, group, &any, &found, &status);
    *len = -1;
    if (error || !any) return error;
    *from = status.MPI_SOURCE;
    return MPI_Get_count(&status, MPI_BYTE, len);
}

int veriep_mpi_take(void *bytes, int len) { return MPI_Mrecv(bytes, len, MPI_BYTE, &found, MPI_STATUS_IGNORE); }

/* What follows is what `veriep-bench` compares with. `each` numbers go to every process. */
int veriep_mpi_all_to_all(const int32_t *out, int32_t *in, int each) {
    return MPI_Alltoall(out, each, MPI_INT32_T, in, each, MPI_INT32_T, group);
}

/* Rows that go to every process, or come from it: how many of each, and from which on. */
struct rows {
    char *bytes;
    const int *counts, *offsets;
};

static int bare(struct rows out, struct rows in, int row, MPI_Datatype type, MPI_Request *open) {
    int size, me, n = 0, error = 0;
    MPI_Comm_size(group, &size);
    MPI_Comm_rank(group, &me);
    for (int p = 0; p < size && !error; p++)
        if (p != me && in.counts[p])
            error = MPI_Irecv(in.bytes + (size_t)in.offsets[p] * row, in.counts[p], type, p, 1, group, &open[n++]);
    for (int p = 0; p < size && !error; p++)
        if (p != me && out.counts[p])
            error = MPI_Isend(out.bytes + (size_t)out.offsets[p] * row, out.counts[p], type, p, 1, group, &open[n++]);
    return error ? error : MPI_Waitall(n, open, MPI_STATUSES_IGNORE);
}

/* Exchanges rows of `row` bytes: by MPI_Alltoallv, or by a message to and from each other process. */
int veriep_mpi_exchange(const struct rows *out, const struct rows *in, int row, int by_messages) {
    MPI_Datatype type;
    MPI_Request *open;
    int size, error = MPI_Type_contiguous(row, MPI_BYTE, &type);
    if (error) return error;
    MPI_Type_commit(&type);
    MPI_Comm_size(group, &size);
    open = malloc(2 * (size_t)size * sizeof *open);
    if (!open) error = MPI_ERR_NO_MEM;
    else if (by_messages) error = bare(*out, *in, row, type, open);
    else
        error = MPI_Alltoallv(out->bytes, out->counts, out->offsets, type, in->bytes, in->counts, in->offsets, type, group);
    free(open);
    MPI_Type_free(&type);
    return error;
}

int veriep_mpi_explain(int code, char *text, int bytes) {
    char buffer[MPI_MAX_ERROR_STRING];
    int length = 0, error = MPI_Error_string(code, buffer, &length);
    copy(text, bytes, error ? "" : buffer);
    return error;
}

int veriep_mpi_end(void) {
    MPI_Comm_free(&group);
    return MPI_Finalize();
}

int veriep_mpi_abort(int status) { return MPI_Abort(MPI_COMM_WORLD, status); }
