/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators between the GPUs of one host: kernels/cuda/nccl/comm.h says how and why.
 *
 * Happy path: one rank makes a unique id and passes it on, every rank opens with it, sums are reduced range
 * by range, the communicator is finalised and destroyed.
 * Ways to fail, all MFL_COMM_BROKEN with NCCL's own text: a rank that never comes, dies or hangs (deadline),
 * the caller's cancel, an error that NCCL reports, at once or later. After any of them the communicator has
 * been aborted when the call returns. Negative: the device itself is broken.
 */
#include <stdio.h>

#include "kernels/cuda/nccl/nccl_internal.h"

_Static_assert(MFL_COMM_ID_BYTES == NCCL_UNIQUE_ID_BYTES, "a unique id");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static struct mfl_comm *comms;
static struct mfl_comm *lost; /* closed, but stuck: NCCL's threads may still use their memory */
static struct {
        uint64_t range;
        uint32_t abort_ms, finalize_ms;
} tuned;

void mfl_cuda_nccl_tune(uint64_t range, uint32_t abort_ms, uint32_t finalize_ms)
{
        tuned.range = range;
        tuned.abort_ms = abort_ms;
        tuned.finalize_ms = finalize_ms;
}

static uint32_t abort_ms(void)
{
        return tuned.abort_ms ? tuned.abort_ms : MFL_NCCL_ABORT_MS;
}

/* ---- memory and registration ---- */

int mfl_cuda_nccl_alloc(
        uint64_t bytes, const char *what, void **ret_memory, bool *ret_library, struct mfl_error *err)
{
        const struct mfl_nccl *nccl;
        size_t free_bytes = 0, total_bytes = 0;
        *ret_library = false;
        if (mfl_nccl_load(&nccl, NULL))
                return mfl_cuda_alloc(bytes, what, ret_memory, err);
        ncclResult_t result = nccl->alloc(ret_memory, (size_t)bytes);
        *ret_library = result == ncclSuccess;
        if (result == ncclSuccess)
                return 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free_bytes, &total_bytes);
        return mfl_fail(err, MFL_INVALID,
                "%s: ncclMemAlloc: %s: %llu bytes wanted, %zu free of the device's %zu", what,
                nccl->error_string(result), (unsigned long long)bytes, free_bytes, total_bytes);
}

void mfl_cuda_nccl_free(void *memory, bool library)
{
        const struct mfl_nccl *nccl;
        if (library && !mfl_nccl_load(&nccl, NULL))
                (void)nccl->free(memory);
        else
                (void)cudaFree(memory);
}

int mfl_nccl_enroll(
        struct mfl_comm *comm, void *memory, uint64_t bytes, struct patience *p, struct mfl_error *err)
{
        struct enrolled *e;
        for (e = comm->enrolled; e; e = e->next)
                if (e->memory == memory)
                        return 0;
        e = mfl_calloc(1, sizeof *e);
        if (!e)
                return mfl_fail_memory(err, sizeof *e, "a registered buffer");
        ncclResult_t result = comm->nccl->enroll(comm->handle, memory, (size_t)bytes, &e->handle);
        int rc = mfl_nccl_settle(comm, result, p, "register a buffer", err);
        if (rc) {
                free(e);
                return rc;
        }
        e->memory = memory;
        e->next = comm->enrolled;
        comm->enrolled = e;
        return 0;
}

/* memory NULL: all. After an abort NCCL has already forgotten them. */
static void expel(struct mfl_comm *comm, const void *memory)
{
        for (struct enrolled **link = &comm->enrolled, *e; (e = *link);) {
                if (memory && e->memory != memory) {
                        link = &e->next;
                        continue;
                }
                if (comm->handle && !comm->stuck)
                        (void)comm->nccl->expel(comm->handle, e->handle);
                *link = e->next;
                free(e);
        }
}

bool mfl_cuda_nccl_forget(const struct mfl_sum *sum)
{
        pthread_mutex_lock(&lock);
        for (struct mfl_comm *comm = comms; comm; comm = comm->next) {
                pthread_mutex_lock(&comm->busy);
                expel(comm, sum->memory);
                pthread_mutex_unlock(&comm->busy);
        }
        pthread_mutex_unlock(&lock);
        return !mfl_cuda_is_stuck();
}

/* ---- giving up ---- */

uint32_t mfl_nccl_lag_ms(void)
{
        return 2 * abort_ms();
}

/* What an aborted kernel leaves in the streams ends soon. */
static bool drain(const struct mfl_comm *comm)
{
        const cudaStream_t streams[] = {comm->stream, comm->copies};
        struct patience p = mfl_nccl_patience(abort_ms(), NULL);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(streams); i++)
                while (streams[i] && cudaStreamQuery(streams[i]) == cudaErrorNotReady)
                        if (mfl_nccl_be_patient(&p, "abort", NULL))
                                return false;
        return true;
}

/* Leaves no kernel and no thread behind, or marks the communicator as stuck. */
void mfl_nccl_give_up(struct mfl_comm *comm)
{
        ncclComm_t handle = mfl_nccl_handle(comm);
        if (!handle || comm->stuck)
                return;
        if (!mfl_nccl_call_in_time(comm->nccl->abort, handle, abort_ms()) || !drain(comm)) {
                comm->stuck = true;
                mfl_cuda_set_stuck();
                return;
        }
        comm->handle = NULL;
        expel(comm, NULL);
}

/* True: it was finalised properly. That takes all ranks, so it does not wait long. */
static bool finish(struct mfl_comm *comm)
{
        struct patience p =
                mfl_nccl_patience(tuned.finalize_ms ? tuned.finalize_ms : MFL_NCCL_FINALIZE_MS, NULL);
        expel(comm, NULL);
        if (mfl_nccl_settle(comm, comm->nccl->finalize(comm->handle), &p, "finalize", NULL))
                return false;
        if (!mfl_nccl_call_in_time(comm->nccl->destroy, comm->handle, abort_ms())) {
                comm->stuck = true;
                mfl_cuda_set_stuck();
                return true;
        }
        comm->handle = NULL;
        return true;
}

static void free_comm(struct mfl_comm *comm)
{
        if (comm->ring)
                mfl_cuda_nccl_free(comm->ring, comm->ring_library);
        if (comm->pinned)
                (void)cudaFreeHost(comm->pinned);
        if (comm->scratch)
                (void)cudaFree(comm->scratch);
        for (int i = 0; i < MFL_NCCL_SLOTS; i++) {
                if (comm->added[i])
                        (void)cudaEventDestroy(comm->added[i]);
                if (comm->copied[i])
                        (void)cudaEventDestroy(comm->copied[i]);
        }
        if (comm->stream)
                (void)cudaStreamDestroy(comm->stream);
        if (comm->copies)
                (void)cudaStreamDestroy(comm->copies);
        pthread_mutex_destroy(&comm->busy);
        free(comm);
}

void mfl_nccl_close(struct mfl_comm *comm)
{
        if (!comm)
                return;
        (void)cudaSetDevice(comm->device->ordinal);
        pthread_mutex_lock(&lock);
        expel(comm, NULL); /* while a sum that is freed still finds it here; afterwards nobody would do it */
        for (struct mfl_comm **link = &comms; *link; link = &(*link)->next)
                if (*link == comm) {
                        *link = comm->next;
                        break;
                }
        pthread_mutex_unlock(&lock);
        if (comm->handle && !comm->stuck && !finish(comm))
                mfl_nccl_give_up(comm);
        if (!comm->stuck) {
                free_comm(comm);
                return;
        }
        pthread_mutex_lock(&lock);
        comm->next = lost;
        lost = comm;
        pthread_mutex_unlock(&lock);
}

/* ---- opening ---- */

static int find_nccl(const struct mfl_device *device, const struct mfl_nccl **ret_nccl, struct mfl_error *err)
{
        if (mfl_cuda_is_stuck())
                return mfl_fail(err, MFL_INVALID,
                        "NCCL: a communicator of this process could not be aborted: restart the daemon");
        if (!strncmp(device->info.uuid, "MIG", 3))
                return mfl_fail(err, MFL_INVALID, "NCCL: %s is a MIG instance, which NCCL does not support",
                        device->info.uuid);
        return mfl_nccl_load(ret_nccl, err);
}

int mfl_nccl_version(struct mfl_device *device, char text[64], uint32_t *ret_version, struct mfl_error *err)
{
        const struct mfl_nccl *nccl;
        int rc = find_nccl(device, &nccl, err);
        if (rc)
                return rc;
        *ret_version = (uint32_t)nccl->version;
        snprintf(text, 64, "NCCL %d.%d.%d", nccl->version / 10000, nccl->version / 100 % 100,
                nccl->version % 100);
        return 0;
}

int mfl_nccl_id(struct mfl_device *device, uint8_t id[MFL_COMM_ID_BYTES], struct mfl_error *err)
{
        ncclUniqueId unique;
        struct mfl_comm none = {.device = device};
        int rc = find_nccl(device, &none.nccl, err);
        if (!rc)
                rc = mfl_cuda_check(cudaSetDevice(device->ordinal), "set device", err);
        if (rc)
                return rc;
        ncclResult_t result = none.nccl->get_unique_id(&unique);
        if (result != ncclSuccess)
                return mfl_nccl_fail(&none, result, "make a unique id", err);
        memcpy(id, unique.internal, MFL_COMM_ID_BYTES);
        return 0;
}

static int make_streams(struct mfl_comm *comm, struct mfl_error *err)
{
        cudaStream_t *streams[] = {&comm->stream, &comm->copies};
        int rc = mfl_cuda_check(cudaSetDevice(comm->device->ordinal), "set device", err);
        for (size_t i = 0; !rc && i < MFL_ARRAY_SIZE(streams); i++)
                rc = mfl_cuda_check(
                        cudaStreamCreateWithFlags(streams[i], cudaStreamNonBlocking), "create a stream", err);
        for (int i = 0; !rc && i < MFL_NCCL_SLOTS; i++) {
                rc = mfl_cuda_check(cudaEventCreateWithFlags(&comm->added[i], cudaEventDisableTiming),
                        "create an event", err);
                if (!rc)
                        rc = mfl_cuda_check(
                                cudaEventCreateWithFlags(&comm->copied[i], cudaEventDisableTiming),
                                "create an event", err);
        }
        return rc;
}

static int init(
        struct mfl_comm *comm, const uint8_t id[MFL_COMM_ID_BYTES], struct patience *p, struct mfl_error *err)
{
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        ncclUniqueId unique;
        config.blocking = 0;
        memcpy(unique.internal, id, MFL_COMM_ID_BYTES);
        int rc = mfl_nccl_check_patience(p, "open a communicator", err);
        if (rc)
                return rc;
        ncclResult_t result =
                comm->nccl->init(&comm->handle, (int)comm->n_ranks, unique, (int)comm->rank, &config);
        rc = mfl_nccl_settle(comm, result, p, "open a communicator", err);
        if (rc)
                mfl_nccl_give_up(comm);
        return rc;
}

/* Reduces one element. The first reduction makes connections and kernels, which takes as long as opening, and
 * so belongs beside the training too. */
static int warm_up(struct mfl_comm *comm, struct patience *p, struct mfl_error *err)
{
        int rc = mfl_cuda_alloc(2 * sizeof(int64_t), "a first reduction", &comm->scratch, err);
        if (!rc)
                rc = mfl_cuda_check(cudaMemsetAsync(comm->scratch, 0, 2 * sizeof(int64_t), comm->stream),
                        "a first reduction", err);
        if (!rc) {
                int64_t *one = comm->scratch;
                ncclResult_t result = comm->nccl->reduce(one, comm->rank == 0 ? one + 1 : NULL, 1, ncclInt64,
                        ncclSum, 0, comm->handle, comm->stream);
                rc = mfl_nccl_settle(comm, result, p, "reduce for the first time", err);
        }
        cudaError_t status = cudaSuccess;
        while (!rc && (status = cudaStreamQuery(comm->stream)) == cudaErrorNotReady) {
                bool busy;
                rc = mfl_nccl_check_async(comm, "reduce for the first time", &busy, err);
                if (!rc)
                        rc = mfl_nccl_be_patient(p, "reduce for the first time", err);
        }
        if (!rc)
                rc = mfl_cuda_check(status, "reduce for the first time", err);
        if (rc)
                mfl_nccl_give_up(comm);
        return rc == MFL_INVALID ? MFL_COMM_BROKEN : rc;
}

int mfl_nccl_open(struct mfl_device *device, const uint8_t id[MFL_COMM_ID_BYTES], uint32_t rank,
        uint32_t n_ranks, struct patience *p, struct mfl_comm **ret_comm, struct mfl_error *err)
{
        const struct mfl_nccl *nccl;
        mfl_assert(rank < n_ranks);
        int rc = find_nccl(device, &nccl, err);
        if (rc)
                return rc;
        struct mfl_comm *comm = mfl_calloc(1, sizeof *comm);
        if (!comm)
                return mfl_fail_memory(err, sizeof *comm, "a communicator");
        *comm = (struct mfl_comm){.device = device,
                .nccl = nccl,
                .rank = rank,
                .n_ranks = n_ranks,
                .range = tuned.range ? tuned.range : MFL_NCCL_RANGE};
        pthread_mutex_init(&comm->busy, NULL);
        rc = make_streams(comm, err);
        if (!rc)
                rc = init(comm, id, p, err);
        if (!rc)
                rc = warm_up(comm, p, err);
        if (rc) {
                mfl_nccl_close(comm);
                return rc;
        }
        pthread_mutex_lock(&lock);
        comm->next = comms;
        comms = comm;
        pthread_mutex_unlock(&lock);
        *ret_comm = comm;
        return 0;
}
