/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions range by range: kernels/cuda/nccl/comm.h has the picture. */
#include "kernels/cuda/nccl/nccl_internal.h"

struct reduction {
        struct mfl_comm *comm;
        struct mfl_sum *own;
        uint32_t root;
        int64_t *out;
        uint64_t n_ranges, issued, done;
        struct patience patience;
        struct mfl_comm_control *control;
        struct mfl_error *err;
};

static uint64_t count_of(const struct reduction *r, uint64_t i)
{
        return MFL_MIN(r->comm->range, r->own->n - i * r->comm->range);
}

/* Before anything is in a stream: allocating may wait for the whole device. */
static int prepare_root(struct mfl_comm *comm, struct patience *p, struct mfl_error *err)
{
        size_t bytes = MFL_NCCL_SLOTS * (size_t)comm->range * sizeof(int64_t);
        void *memory = NULL;
        int rc = 0;
        if (!comm->ring) {
                rc = mfl_cuda_nccl_alloc(bytes, "a ring of partial sums", &memory, &comm->ring_library, err);
                comm->ring = memory;
        }
        if (!rc && !comm->pinned) {
                cudaError_t status = cudaMallocHost(&memory, bytes);
                rc = status == cudaErrorMemoryAllocation
                             ? mfl_fail(err, MFL_INVALID, "cannot allocate %zu bytes of pinned memory", bytes)
                             : mfl_cuda_check(status, "allocate pinned memory", err);
                if (rc == MFL_INVALID)
                        (void)cudaGetLastError(); /* it stays the thread's error until it is read */
                comm->pinned = rc ? NULL : memory;
        }
        rc = rc ? rc : mfl_nccl_enroll(comm, comm->ring, bytes, p, err);
        return rc == MFL_INVALID ? MFL_COMM_BROKEN : rc; /* the others wait */
}

static int issue(struct reduction *r)
{
        struct mfl_comm *comm = r->comm;
        uint64_t at = r->issued * comm->range, slot = r->issued % MFL_NCCL_SLOTS;
        size_t n = (size_t)count_of(r, r->issued);
        int64_t *to = r->out ? comm->ring + slot * comm->range : NULL;
        ncclResult_t result = comm->nccl->reduce(
                r->own->memory + at, to, n, ncclInt64, ncclSum, (int)r->root, comm->handle, comm->stream);
        int rc = mfl_nccl_settle(comm, result, &r->patience, "reduce", r->err);
        if (!rc)
                rc = mfl_cuda_check(
                        cudaEventRecord(comm->added[slot], comm->stream), "record an event", r->err);
        if (rc || !r->out) {
                r->issued++;
                return rc;
        }
        rc = mfl_cuda_check(
                cudaStreamWaitEvent(comm->copies, comm->added[slot], 0), "wait for an event", r->err);
        if (!rc)
                rc = mfl_cuda_check(cudaMemcpyAsync(comm->pinned + slot * comm->range, to, n * sizeof *to,
                                            cudaMemcpyDeviceToHost, comm->copies),
                        "copy a range of the sum", r->err);
        if (!rc)
                rc = mfl_cuda_check(
                        cudaEventRecord(comm->copied[slot], comm->copies), "record an event", r->err);
        r->issued++;
        return rc;
}

/* Looks after the oldest range that is under way. */
static int follow(struct reduction *r)
{
        struct mfl_comm *comm = r->comm;
        uint64_t at = r->done * comm->range, n = count_of(r, r->done), slot = r->done % MFL_NCCL_SLOTS;
        cudaError_t status = cudaEventQuery(r->out ? comm->copied[slot] : comm->added[slot]);
        if (status == cudaErrorNotReady) {
                bool busy;
                int rc = mfl_nccl_check_async(comm, "reduce", &busy, r->err);
                return rc ? rc : mfl_nccl_be_patient(&r->patience, "reduce", r->err);
        }
        if (status != cudaSuccess)
                return mfl_cuda_check(status, "reduce", r->err);
        if (r->out) {
                memcpy(r->out + at, comm->pinned + slot * comm->range, (size_t)n * sizeof *r->out);
                mfl_comm_advance(r->control, at + n);
        }
        r->patience.n_polls = 0;
        r->done++;
        return mfl_nccl_check_patience(&r->patience, "reduce", r->err);
}

/* A slot is reused when its range has been copied to `out`, so no stream has to wait for one. */
static int run(struct reduction *r)
{
        struct mfl_comm *comm = r->comm;
        uint64_t bytes = MFL_MAX(r->own->n, 1) * sizeof(int64_t);
        int rc = mfl_cuda_check(cudaSetDevice(comm->device->ordinal), "set device", r->err);
        if (!rc)
                rc = mfl_nccl_check_patience(&r->patience, "reduce", r->err);
        if (!rc)
                rc = mfl_nccl_enroll(comm, r->own->memory, bytes, &r->patience, r->err);
        if (!rc && r->out)
                rc = prepare_root(comm, &r->patience, r->err);
        while (!rc && r->done < r->n_ranges)
                rc = r->issued < MFL_MIN(r->n_ranges, r->done + MFL_NCCL_SLOTS) ? issue(r) : follow(r);
        return rc;
}

int mfl_nccl_reduce(struct mfl_comm *comm, struct mfl_sum *own, uint32_t root, int64_t *out,
        uint32_t deadline_ms, struct mfl_comm_control *control, struct mfl_error *err)
{
        struct reduction r = {.comm = comm,
                .own = own,
                .root = root,
                .out = out,
                .n_ranges = (own->n + comm->range - 1) / comm->range,
                .patience = mfl_nccl_patience(deadline_ms, control ? &control->cancel : NULL),
                .control = control,
                .err = err};
        mfl_assert(root < comm->n_ranks && (root == comm->rank) == (out != NULL));
        mfl_assert(own->device == comm->device);
        pthread_mutex_lock(&comm->busy);
        int rc = comm->handle && !comm->stuck
                         ? run(&r)
                         : mfl_fail(err, MFL_COMM_BROKEN, "NCCL: reduce: the communicator was aborted");
        if (rc)
                mfl_nccl_give_up(comm);
        pthread_mutex_unlock(&comm->busy);
        return rc;
}
