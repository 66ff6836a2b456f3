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
 * MFL_EMU_NCCL=absent: there is none. MFL_EMU_NCCL=22703: it reports this version. MFL_EMU_NCCL=breaks: of a communicator's sums and
 * broadcasts only the first one works.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/emu/nccl_internal.h"

static struct ncclComm *comms;
static _Thread_local char last_error[256];
static struct {
        int error, looks;
} injected[RANKS_MAX];
static atomic_bool aborts_hang;
static char made[64][64]; /* the last names that this process made */
static unsigned n_made;

void mfl_emu_nccl_lock(void)
{
        (void)mfl_emu_enter(NULL);
}

ncclResult_t mfl_emu_nccl_leave(ncclResult_t result, const char *text)
{
        (void)mfl_emu_leave(cudaSuccess);
        if (text)
                snprintf(last_error, sizeof last_error, "%s", text);
        return result;
}

ncclResult_t mfl_emu_nccl_misuse(const char *text)
{
        mfl_emu_fault_after("NCCL: %s", text);
        return mfl_emu_nccl_leave(ncclInvalidUsage, text);
}

/* ---- steering ---- */

void mfl_emu_nccl_async(int rank, int error, int n)
{
        mfl_emu_nccl_lock();
        injected[rank].error = error;
        injected[rank].looks = n;
        mfl_emu_nccl_leave(ncclSuccess, NULL);
}

void mfl_emu_nccl_hang_abort(bool hang)
{
        atomic_store(&aborts_hang, hang);
}

int mfl_emu_nccl_open(void)
{
        int n = 0;
        mfl_emu_nccl_lock();
        for (struct ncclComm *c = comms; c; c = c->next)
                n++;
        mfl_emu_nccl_leave(ncclSuccess, NULL);
        return n;
}

int mfl_emu_nccl_registered(void)
{
        int n = 0;
        mfl_emu_nccl_lock();
        for (struct ncclComm *c = comms; c; c = c->next)
                for (struct registration *r = c->registrations; r; r = r->next)
                        n++;
        mfl_emu_nccl_leave(ncclSuccess, NULL);
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

void mfl_emu_nccl_unref(struct ncclComm *comm)
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

static void go_on(struct ncclComm *comm)
{
        if (comm->looks > 0) {
                comm->looks--;
                return;
        }
        if (comm->phase == OPENING)
                go_on_opening(comm);
        else if (comm->phase == LAUNCHING)
                mfl_emu_nccl_launch(comm);
        else if (comm->phase == FINALIZING) {
                bool all = true;
                for (int r = 0; r < comm->n_ranks; r++)
                        all = all && atomic_load(&comm->shared->seats[r].finalized);
                comm->phase = all ? FINALIZED : FINALIZING;
        }
}

/* The start of every call with a communicator. */
ncclResult_t mfl_emu_nccl_enter(ncclComm_t comm, const char *name)
{
        mfl_emu_nccl_lock();
        if (mfl_emu_fails(name))
                return mfl_emu_nccl_leave(ncclInternalError, "it was asked to fail");
        if (!known(comm))
                return mfl_emu_nccl_misuse("a call on a communicator that is gone");
        if (comm->error)
                return mfl_emu_nccl_leave(comm->error, NULL);
        if (comm->phase != IDLE)
                return mfl_emu_nccl_leave(ncclInvalidArgument,
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
        mfl_emu_nccl_lock();
        if (mfl_emu_fails("ncclGetUniqueId"))
                return mfl_emu_nccl_leave(ncclSystemError, "it was asked to fail");
        clock_gettime(CLOCK_MONOTONIC, &now);
        snprintf(name, sizeof name, "emu-nccl-%d-%u-%lld", (int)getpid(), number++,
                (long long)now.tv_sec * 1000000000 + now.tv_nsec);
        path_of(name, path);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        bool ok = fd >= 0 && !ftruncate(fd, (off_t)SHARED_BYTES);
        if (fd >= 0)
                close(fd);
        if (!ok)
                return mfl_emu_nccl_leave(ncclSystemError, "no file in " DIRECTORY);
        if (!n_made)
                atexit(remove_made);
        if (n_made >= 64)
                remove_file(made[n_made % 64]);
        snprintf(made[n_made++ % 64], sizeof made[0], "%s", name);
        memset(uniqueId, 0, sizeof *uniqueId);
        memcpy(uniqueId->internal, name, strlen(name));
        return mfl_emu_nccl_leave(ncclSuccess, NULL);
}

ncclResult_t ncclCommInitRankConfig(
        ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config)
{
        int device, bus = 0;
        mfl_emu_nccl_lock();
        if (mfl_emu_fails("ncclCommInitRankConfig"))
                return mfl_emu_nccl_leave(ncclInternalError, "it was asked to fail");
        if (config->size != sizeof *config || config->magic != 0xcafebeef || config->blocking != 0)
                return mfl_emu_nccl_misuse("a configuration that is not initialised, or blocks");
        if (nranks < 1 || nranks > RANKS_MAX || rank < 0 || rank >= nranks ||
                cudaGetDevice(&device) != cudaSuccess ||
                cudaDeviceGetAttribute(&bus, cudaDevAttrPciBusId, device) != cudaSuccess)
                return mfl_emu_nccl_leave(ncclInvalidArgument, "invalid rank or device");
        struct ncclComm *c = calloc(1, sizeof *c);
        if (!c)
                return mfl_emu_nccl_leave(ncclSystemError, "no memory");
        *c = (struct ncclComm){
                .rank = rank, .n_ranks = nranks, .bus = bus, .looks = LOOKS_INIT, .refs = 1, .next = comms};
        memcpy(c->name, commId.internal, sizeof c->name - 1);
        *comm = comms = c;
        return mfl_emu_nccl_leave(ncclInProgress, NULL);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
        mfl_emu_nccl_lock();
        if (mfl_emu_fails("ncclCommGetAsyncError"))
                return mfl_emu_nccl_leave(ncclInternalError, "it was asked to fail");
        if (!known(comm))
                return mfl_emu_nccl_misuse("ncclCommGetAsyncError on a communicator that is gone");
        if (injected[comm->rank].error && injected[comm->rank].looks-- <= 0) {
                comm->error = (ncclResult_t)injected[comm->rank].error;
                snprintf(last_error, sizeof last_error, "an error that was asked for");
        }
        if (!comm->error && comm->phase != IDLE && comm->phase != FINALIZED)
                go_on(comm);
        *asyncError = comm->error                                       ? comm->error
                      : comm->phase == IDLE || comm->phase == FINALIZED ? ncclSuccess
                                                                        : ncclInProgress;
        return mfl_emu_nccl_leave(ncclSuccess, NULL);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
        ncclResult_t result = mfl_emu_nccl_enter(comm, "ncclCommFinalize");
        if (result != ncclSuccess)
                return result;
        atomic_store(&comm->shared->seats[comm->rank].finalized, true);
        comm->phase = FINALIZING;
        comm->looks = LOOKS_CALL;
        return mfl_emu_nccl_leave(ncclInProgress, NULL);
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
        mfl_emu_nccl_unref(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
        mfl_emu_nccl_lock();
        if (!known(comm))
                return mfl_emu_nccl_misuse("ncclCommDestroy of a communicator that is gone");
        if (comm->phase != FINALIZED)
                return mfl_emu_nccl_misuse(
                        "ncclCommDestroy of a communicator that is not finalised: it would wait for others");
        take_out(comm);
        return mfl_emu_nccl_leave(ncclSuccess, NULL);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
        struct timespec nap = {.tv_nsec = 1000000};
        while (atomic_load(&aborts_hang))
                nanosleep(&nap, NULL);
        mfl_emu_nccl_lock();
        if (!known(comm))
                return mfl_emu_nccl_misuse("ncclCommAbort of a communicator that is gone");
        comm->aborted = true;
        take_out(comm);
        return mfl_emu_nccl_leave(ncclSuccess, NULL);
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
        ncclResult_t result = mfl_emu_nccl_enter(comm, "ncclCommRegister");
        if (result != ncclSuccess)
                return result;
        struct registration *r = calloc(1, sizeof *r);
        if (!r || !mfl_emu_is_device(buff, size)) {
                free(r);
                return mfl_emu_nccl_leave(ncclInvalidArgument, "not the device's memory");
        }
        *r = (struct registration){comm->registrations, buff, size};
        *handle = comm->registrations = r;
        return mfl_emu_nccl_leave(ncclSuccess, NULL);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
        mfl_emu_nccl_lock();
        if (!known(comm))
                return mfl_emu_nccl_misuse("ncclCommDeregister on a communicator that is gone");
        struct registration **link = &comm->registrations, *r;
        while ((r = *link) && r != handle)
                link = &r->next;
        if (!r)
                return mfl_emu_nccl_misuse("ncclCommDeregister of what is not registered");
        *link = r->next;
        free(r);
        return mfl_emu_nccl_leave(ncclSuccess, NULL);
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
        mfl_emu_nccl_lock();
        if (mfl_emu_fails("ncclMemAlloc") || mfl_emu_library_alloc(ptr, size) != cudaSuccess)
                return mfl_emu_nccl_leave(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'");
        return mfl_emu_nccl_leave(ncclSuccess, NULL);
}

ncclResult_t ncclMemFree(void *ptr)
{
        mfl_emu_nccl_lock();
        for (struct ncclComm *c = comms; c; c = c->next)
                for (struct registration *r = c->registrations; r; r = r->next)
                        if (r->memory == ptr)
                                return mfl_emu_nccl_misuse("ncclMemFree of a buffer that is registered");
        if (mfl_emu_sticky())
                return mfl_emu_nccl_leave(ncclUnhandledCudaError, "Cuda failure");
        if (mfl_emu_library_free(ptr) != cudaSuccess)
                return mfl_emu_nccl_misuse("ncclMemFree of what is not ncclMemAlloc's");
        return mfl_emu_nccl_leave(ncclSuccess, NULL);
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
        mfl_emu_nccl_lock();
        (void)ncclGetVersion(&table.version);
        mfl_emu_nccl_leave(ncclSuccess, NULL);
        *ret_nccl = &table;
        return 0;
}
