/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated NCCL: communicators between threads and processes of one host, through a file in /dev/shm that
 * is named by the unique id. It behaves like NCCL where it matters:
 *
 * - All communicators are non-blocking. Opening, reducing and finalising return ncclInProgress and complete
 *   some queries of ncclCommGetAsyncError later; other calls before that are refused. A reduction is not in
 *   its stream before.
 * - Opening waits for all ranks. Two ranks on one card of one host are refused (host: NCCL_HOSTID, or all the
 *   same).
 * - A reduction runs when its stream reaches it and all ranks are there, and not without them: nobody notices
 *   a rank that died. ncclCommAbort ends what waits in streams, and forgets registered buffers.
 * - Misuse is a fault (emu.h): a closed communicator, a buffer that is deregistered twice or freed while it
 *   is registered, memory of ncclMemAlloc freed in another way, ranks whose calls differ.
 *
 * MFL_EMU_NCCL=absent: there is none. MFL_EMU_NCCL=22703: it reports this version.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/nccl/nccl_load.h"
#include "tests/emu/runtime.h"

enum {
        RANKS_MAX = 64,
        LOOKS_INIT = 3, /* queries until something is done */
        LOOKS_CALL = 1,
};
#define AREA_BYTES ((size_t)16 << 20) /* of a rank's contribution; unused pages cost nothing */
#define DIRECTORY "/dev/shm/"

struct seat {
        atomic_bool taken, finalized;
        uint64_t host;
        int bus;
        uint64_t count; /* of the current reduction */
        int root;
        _Atomic uint64_t begun; /* reductions that this rank's stream has reached */
};
struct shared {
        struct seat seats[RANKS_MAX];
        _Atomic uint64_t done; /* reductions */
        _Alignas(4096) unsigned char areas[];
};
#define SHARED_BYTES (sizeof(struct shared) + RANKS_MAX * AREA_BYTES)

struct registration {
        struct registration *next;
        const void *memory;
        size_t bytes;
};
enum phase { OPENING, IDLE, LAUNCHING, FINALIZING, FINALIZED };
struct reduction {
        ncclComm_t comm;
        uint64_t number, count;
        const void *send;
        void *recv;
        int root;
};
struct ncclComm {
        struct ncclComm *next;
        char name[NCCL_UNIQUE_ID_BYTES];
        int rank, n_ranks, bus, looks;
        enum phase phase;
        ncclResult_t error;
        bool aborted;
        unsigned refs; /* the caller's, and those of works in streams */
        struct shared *shared;
        struct registration *registrations;
        uint64_t n_reductions;
        struct reduction launch;
        cudaStream_t launch_stream;
};
static struct ncclComm *comms;
static _Thread_local char last_error[256];
static struct {
        int error, looks;
} injected[RANKS_MAX];
static atomic_bool aborts_hang;
static char made[64][64]; /* the last names that this process made */
static unsigned n_made;

static void take_lock(void)
{
        (void)mfl_emu_enter(NULL);
}

static ncclResult_t leave(ncclResult_t result, const char *text)
{
        (void)mfl_emu_leave(cudaSuccess);
        if (text)
                snprintf(last_error, sizeof last_error, "%s", text);
        return result;
}

static ncclResult_t misuse(const char *text)
{
        mfl_emu_fault_after("NCCL: %s", text);
        return leave(ncclInvalidUsage, text);
}

/* ---- steering ---- */

void mfl_emu_nccl_async(int rank, int error, int n)
{
        take_lock();
        injected[rank].error = error;
        injected[rank].looks = n;
        leave(ncclSuccess, NULL);
}

void mfl_emu_nccl_hang_abort(bool hang)
{
        atomic_store(&aborts_hang, hang);
}

int mfl_emu_nccl_open(void)
{
        int n = 0;
        take_lock();
        for (struct ncclComm *c = comms; c; c = c->next)
                n++;
        leave(ncclSuccess, NULL);
        return n;
}

int mfl_emu_nccl_registered(void)
{
        int n = 0;
        take_lock();
        for (struct ncclComm *c = comms; c; c = c->next)
                for (struct registration *r = c->registrations; r; r = r->next)
                        n++;
        leave(ncclSuccess, NULL);
        return n;
}

/* ---- the file ---- */

static void path_of(const char *name, char path[160])
{
        snprintf(path, 160, DIRECTORY "%.128s", name);
}

static void remove_file(const char *name)
{
        char path[160];
        path_of(name, path);
        unlink(path);
}

static void remove_made(void)
{
        for (unsigned i = 0; i < n_made && i < 64; i++)
                remove_file(made[i]);
}

static bool map_file(struct ncclComm *comm)
{
        char path[160];
        path_of(comm->name, path);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0)
                return false;
        void *p = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        close(fd);
        if (p == MAP_FAILED)
                return false;
        comm->shared = p;
        return true;
}

static unsigned char *area_of(const struct ncclComm *comm, int rank)
{
        return comm->shared->areas + (size_t)rank * AREA_BYTES;
}

static void unref(struct ncclComm *comm)
{
        if (--comm->refs)
                return;
        if (comm->shared)
                munmap(comm->shared, SHARED_BYTES);
        free(comm);
}

/* ---- life of a communicator; the lock is held ---- */

static struct ncclComm *known(ncclComm_t comm)
{
        struct ncclComm *c = comms;
        while (c && c != comm)
                c = c->next;
        return c;
}

static uint64_t host_of(void)
{
        const char *name = getenv("NCCL_HOSTID");
        uint64_t hash = 14695981039346656037u;
        for (name = name ? name : "here"; *name; name++)
                hash = (hash ^ (unsigned char)*name) * 1099511628211u;
        return hash;
}

static void take_seat(struct ncclComm *comm)
{
        struct seat *seat = &comm->shared->seats[comm->rank];
        seat->host = host_of();
        seat->bus = comm->bus;
        atomic_store(&seat->taken, true);
}

/* The result of opening. */
static void go_on_opening(struct ncclComm *comm)
{
        if (!comm->shared) {
                if (!map_file(comm))
                        return; /* all others are gone: it waits */
                take_seat(comm);
        }
        const struct seat *own = &comm->shared->seats[comm->rank];
        for (int r = 0; r < comm->n_ranks; r++)
                if (!atomic_load(&comm->shared->seats[r].taken))
                        return;
        comm->phase = IDLE;
        for (int r = 0; r < comm->n_ranks; r++) {
                const struct seat *seat = &comm->shared->seats[r];
                if (r == comm->rank || seat->host != own->host || seat->bus != own->bus)
                        continue;
                comm->error = ncclInvalidUsage;
                snprintf(last_error, sizeof last_error,
                        "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x", comm->rank, r,
                        (unsigned)own->bus << 12);
        }
        if (comm->rank == 0)
                remove_file(comm->name);
}

/* True: it runs now, or has nothing left to do. */
static bool reduction_ready(struct mfl_emu_work *work)
{
        const struct reduction *r = (const void *)work->args;
        struct ncclComm *comm = r->comm;
        struct shared *shared = comm->shared;
        struct seat *seat = &shared->seats[comm->rank];
        if (comm->aborted)
                return true;
        if (atomic_load(&seat->begun) <= r->number) {
                memcpy(area_of(comm, comm->rank), r->send, r->count * sizeof(int64_t));
                seat->count = r->count;
                seat->root = r->root;
                atomic_store(&seat->begun, r->number + 1);
        }
        if (comm->rank != r->root)
                return atomic_load(&shared->done) > r->number;
        for (int k = 0; k < comm->n_ranks; k++)
                if (atomic_load(&shared->seats[k].begun) <= r->number)
                        return false;
        return true;
}

static cudaError_t run_reduction(struct mfl_emu_work *work)
{
        const struct reduction *r = (const void *)work->args;
        struct ncclComm *comm = r->comm;
        uint64_t *to = r->recv;
        if (comm->aborted || comm->rank != r->root)
                return cudaSuccess;
        memset(to, 0, r->count * sizeof *to);
        for (int k = 0; k < comm->n_ranks; k++) {
                const struct seat *seat = &comm->shared->seats[k];
                const uint64_t *from = (const uint64_t *)(const void *)area_of(comm, k);
                if (seat->count != r->count || seat->root != r->root) {
                        mfl_emu_fault_after("NCCL: rank %d reduces %llu elements to %d, rank %d %llu to %d",
                                comm->rank, (unsigned long long)r->count, r->root, k,
                                (unsigned long long)seat->count, seat->root);
                        return cudaErrorLaunchFailure;
                }
                for (uint64_t i = 0; i < r->count; i++)
                        to[i] += from[i];
        }
        atomic_store(&comm->shared->done, r->number + 1);
        return cudaSuccess;
}

static void drop_reduction(struct mfl_emu_work *work)
{
        unref(((struct reduction *)(void *)work->args)->comm);
}

static void launch(struct ncclComm *comm)
{
        struct CUstream_st *stream = mfl_emu_find_stream(comm->launch_stream);
        struct mfl_emu_work *work =
                mfl_emu_work_new("ncclReduce", run_reduction, &comm->launch, sizeof comm->launch);
        if (work) {
                comm->refs++;
                work->ready = reduction_ready;
                work->drop = drop_reduction;
        }
        if (mfl_emu_submit(stream, work) != cudaSuccess)
                comm->error = ncclUnhandledCudaError;
        comm->phase = IDLE;
}

static void go_on(struct ncclComm *comm)
{
        if (comm->looks > 0) {
                comm->looks--;
                return;
        }
        if (comm->phase == OPENING)
                go_on_opening(comm);
        else if (comm->phase == LAUNCHING)
                launch(comm);
        else if (comm->phase == FINALIZING) {
                bool all = true;
                for (int r = 0; r < comm->n_ranks; r++)
                        all = all && atomic_load(&comm->shared->seats[r].finalized);
                comm->phase = all ? FINALIZED : FINALIZING;
        }
}

/* The start of every call with a communicator. */
static ncclResult_t enter(ncclComm_t comm, const char *name)
{
        take_lock();
        if (mfl_emu_fails(name))
                return leave(ncclInternalError, "it was asked to fail");
        if (!known(comm))
                return misuse("a call on a communicator that is gone");
        if (comm->error)
                return leave(comm->error, NULL);
        if (comm->phase != IDLE)
                return leave(ncclInvalidArgument,
                        "Attempt to use communicator before the previous operation returned ncclSuccess");
        return ncclSuccess;
}

/* ---- the library ---- */

ncclResult_t ncclGetVersion(int *version)
{
        const char *text = getenv("MFL_EMU_NCCL");
        *version = text && atoi(text) ? atoi(text) : NCCL_VERSION_CODE;
        return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
        static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error",
                "internal error", "invalid argument", "invalid usage", "remote process exited",
                "NCCL operation in progress"};
        return (unsigned)result < ncclNumResults ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
        return last_error;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
        static unsigned number;
        char name[64], path[160];
        struct timespec now;
        take_lock();
        if (mfl_emu_fails("ncclGetUniqueId"))
                return leave(ncclSystemError, "it was asked to fail");
        clock_gettime(CLOCK_MONOTONIC, &now);
        snprintf(name, sizeof name, "emu-nccl-%d-%u-%lld", (int)getpid(), number++,
                (long long)now.tv_sec * 1000000000 + now.tv_nsec);
        path_of(name, path);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        bool ok = fd >= 0 && !ftruncate(fd, (off_t)SHARED_BYTES);
        if (fd >= 0)
                close(fd);
        if (!ok)
                return leave(ncclSystemError, "no file in " DIRECTORY);
        if (!n_made)
                atexit(remove_made);
        if (n_made >= 64)
                remove_file(made[n_made % 64]);
        snprintf(made[n_made++ % 64], sizeof made[0], "%s", name);
        memset(uniqueId, 0, sizeof *uniqueId);
        memcpy(uniqueId->internal, name, strlen(name));
        return leave(ncclSuccess, NULL);
}

ncclResult_t ncclCommInitRankConfig(
        ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config)
{
        int device, bus = 0;
        take_lock();
        if (mfl_emu_fails("ncclCommInitRankConfig"))
                return leave(ncclInternalError, "it was asked to fail");
        if (config->size != sizeof *config || config->magic != 0xcafebeef || config->blocking != 0)
                return misuse("a configuration that is not initialised, or blocks");
        if (nranks < 1 || nranks > RANKS_MAX || rank < 0 || rank >= nranks ||
                cudaGetDevice(&device) != cudaSuccess ||
                cudaDeviceGetAttribute(&bus, cudaDevAttrPciBusId, device) != cudaSuccess)
                return leave(ncclInvalidArgument, "invalid rank or device");
        struct ncclComm *c = calloc(1, sizeof *c);
        if (!c)
                return leave(ncclSystemError, "no memory");
        *c = (struct ncclComm){
                .rank = rank, .n_ranks = nranks, .bus = bus, .looks = LOOKS_INIT, .refs = 1, .next = comms};
        memcpy(c->name, commId.internal, sizeof c->name - 1);
        *comm = comms = c;
        return leave(ncclInProgress, NULL);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
        take_lock();
        if (mfl_emu_fails("ncclCommGetAsyncError"))
                return leave(ncclInternalError, "it was asked to fail");
        if (!known(comm))
                return misuse("ncclCommGetAsyncError on a communicator that is gone");
        if (injected[comm->rank].error && injected[comm->rank].looks-- <= 0) {
                comm->error = (ncclResult_t)injected[comm->rank].error;
                snprintf(last_error, sizeof last_error, "an error that was asked for");
        }
        if (!comm->error && comm->phase != IDLE && comm->phase != FINALIZED)
                go_on(comm);
        *asyncError = comm->error                                       ? comm->error
                      : comm->phase == IDLE || comm->phase == FINALIZED ? ncclSuccess
                                                                        : ncclInProgress;
        return leave(ncclSuccess, NULL);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
        ncclResult_t result = enter(comm, "ncclCommFinalize");
        if (result != ncclSuccess)
                return result;
        atomic_store(&comm->shared->seats[comm->rank].finalized, true);
        comm->phase = FINALIZING;
        comm->looks = LOOKS_CALL;
        return leave(ncclInProgress, NULL);
}

static void take_out(struct ncclComm *comm)
{
        struct ncclComm **link = &comms;
        while (*link != comm)
                link = &(*link)->next;
        *link = comm->next;
        for (struct registration *r; (r = comm->registrations);) {
                comm->registrations = r->next;
                free(r);
        }
        remove_file(comm->name);
        unref(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
        take_lock();
        if (!known(comm))
                return misuse("ncclCommDestroy of a communicator that is gone");
        if (comm->phase != FINALIZED)
                return misuse(
                        "ncclCommDestroy of a communicator that is not finalised: it would wait for others");
        take_out(comm);
        return leave(ncclSuccess, NULL);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
        struct timespec nap = {.tv_nsec = 1000000};
        while (atomic_load(&aborts_hang))
                nanosleep(&nap, NULL);
        take_lock();
        if (!known(comm))
                return misuse("ncclCommAbort of a communicator that is gone");
        comm->aborted = true;
        take_out(comm);
        return leave(ncclSuccess, NULL);
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
        ncclResult_t result = enter(comm, "ncclCommRegister");
        if (result != ncclSuccess)
                return result;
        struct registration *r = calloc(1, sizeof *r);
        if (!r || !mfl_emu_is_device(buff, size)) {
                free(r);
                return leave(ncclInvalidArgument, "not the device's memory");
        }
        *r = (struct registration){comm->registrations, buff, size};
        *handle = comm->registrations = r;
        return leave(ncclSuccess, NULL);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
        take_lock();
        if (!known(comm))
                return misuse("ncclCommDeregister on a communicator that is gone");
        struct registration **link = &comm->registrations, *r;
        while ((r = *link) && r != handle)
                link = &r->next;
        if (!r)
                return misuse("ncclCommDeregister of what is not registered");
        *link = r->next;
        free(r);
        return leave(ncclSuccess, NULL);
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
        take_lock();
        if (mfl_emu_fails("ncclMemAlloc") || mfl_emu_library_alloc(ptr, size) != cudaSuccess)
                return leave(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'");
        return leave(ncclSuccess, NULL);
}

ncclResult_t ncclMemFree(void *ptr)
{
        take_lock();
        for (struct ncclComm *c = comms; c; c = c->next)
                for (struct registration *r = c->registrations; r; r = r->next)
                        if (r->memory == ptr)
                                return misuse("ncclMemFree of a buffer that is registered");
        if (mfl_emu_sticky())
                return leave(ncclUnhandledCudaError, "Cuda failure");
        if (mfl_emu_library_free(ptr) != cudaSuccess)
                return misuse("ncclMemFree of what is not ncclMemAlloc's");
        return leave(ncclSuccess, NULL);
}

ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
        size_t bytes = count * sizeof(int64_t);
        ncclResult_t result = enter(comm, "ncclReduce");
        if (result != ncclSuccess)
                return result;
        if (datatype != ncclInt64 || op != ncclSum || bytes > AREA_BYTES)
                return misuse("only sums of int64 are emulated, and 16 MiB at most");
        if (root < 0 || root >= comm->n_ranks || !mfl_emu_find_stream(stream) ||
                !mfl_emu_is_device(sendbuff, bytes) ||
                (root == comm->rank && !mfl_emu_is_device(recvbuff, bytes)))
                return leave(ncclInvalidArgument, "invalid root, stream or buffer");
        comm->launch = (struct reduction){comm, comm->n_reductions++, count, sendbuff, recvbuff, root};
        comm->launch_stream = stream;
        comm->phase = LAUNCHING;
        comm->looks = LOOKS_CALL;
        return leave(ncclInProgress, NULL);
}

/* ---- in nccl_load.c's place ---- */

int mfl_nccl_load(const struct mfl_nccl **ret_nccl, struct mfl_error *err)
{
        static struct mfl_nccl table = {
#define FIELD(field, Name) .field = nccl##Name,
                MFL_NCCL_FUNCTIONS(FIELD)
#undef FIELD
        };
        const char *text = getenv("MFL_EMU_NCCL");
        if (text && !strcmp(text, "absent"))
                return mfl_fail(err, MFL_INVALID, "NCCL: libnccl.so.2: it is not there");
        take_lock();
        (void)ncclGetVersion(&table.version);
        leave(ncclSuccess, NULL);
        *ret_nccl = &table;
        return 0;
}
