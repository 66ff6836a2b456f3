/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated NCCL: sums and broadcasts. A rank lays what it gives in its area of the file, and takes the result when all have. */
#include "tests/emu/nccl_internal.h"

static size_t size_of(enum kind kind)
{
        return kind == BROADCAST ? sizeof(float) : sizeof(int64_t);
}

static unsigned char *area_of(const struct reduction *r, int rank)
{
        return r->comm->shared->areas + (r->number % AHEAD * RANKS_MAX + (size_t)rank) * AREA_BYTES;
}

/* True: it runs now, or has nothing left to do. A rank's area is its own again when all have ended what lay there. */
static bool reduction_ready(struct mfl_emu_work *work)
{
        const struct reduction *r = (const void *)work->args;
        struct ncclComm *comm = r->comm;
        struct seat *seats = comm->shared->seats, *seat = &seats[comm->rank];
        if (comm->aborted)
                return true;
        for (int k = 0; k < comm->n_ranks; k++)
                if (atomic_load(&seats[k].ended) + AHEAD <= r->number)
                        return false;
        if (atomic_load(&seat->begun) <= r->number) {
                if (r->kind != BROADCAST || r->root == comm->rank)
                        memcpy(area_of(r, comm->rank), r->send, r->count * size_of(r->kind));
                seat->call[r->number % AHEAD] = (struct call){r->count, r->root, r->kind};
                atomic_store(&seat->begun, r->number + 1);
        }
        for (int k = 0; k < comm->n_ranks; k++)
                if (atomic_load(&seats[k].begun) <= r->number)
                        return false;
        return true;
}

static void take_result(const struct reduction *r)
{
        const struct ncclComm *comm = r->comm;
        uint64_t *to = r->recv;
        if (r->kind == BROADCAST) {
                memcpy(to, area_of(r, r->root), r->count * size_of(r->kind));
                return;
        }
        memset(to, 0, r->count * sizeof *to);
        for (int k = 0; k < comm->n_ranks; k++) {
                const uint64_t *from = (const uint64_t *)(const void *)area_of(r, k);
                for (uint64_t i = 0; i < r->count; i++)
                        to[i] += from[i];
        }
}

static cudaError_t run_reduction(struct mfl_emu_work *work)
{
        const struct reduction *r = (const void *)work->args;
        struct ncclComm *comm = r->comm;
        if (comm->aborted)
                return cudaSuccess;
        for (int k = 0; k < comm->n_ranks; k++) {
                const struct call *call = &comm->shared->seats[k].call[r->number % AHEAD];
                if (call->count != r->count || call->root != r->root || call->kind != r->kind) {
                        mfl_emu_fault_after("NCCL: rank %d reduces %llu elements to %d, rank %d %llu to %d",
                                comm->rank, (unsigned long long)r->count, r->root, k,
                                (unsigned long long)call->count, call->root);
                        return cudaErrorLaunchFailure;
                }
        }
        if (r->kind != REDUCE || comm->rank == r->root)
                take_result(r);
        atomic_store(&comm->shared->seats[comm->rank].ended, r->number + 1);
        return cudaSuccess;
}

static void drop_reduction(struct mfl_emu_work *work)
{
        mfl_emu_nccl_unref(((struct reduction *)(void *)work->args)->comm);
}

void mfl_emu_nccl_launch(struct ncclComm *comm)
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

static ncclResult_t call(
        ncclComm_t comm, const char *name, bool supported, struct reduction reduction, cudaStream_t stream)
{
        const char *text = getenv("MFL_EMU_NCCL");
        size_t bytes = reduction.count * size_of(reduction.kind);
        ncclResult_t result = mfl_emu_nccl_enter(comm, name);
        if (result != ncclSuccess)
                return result;
        if (!supported || bytes > AREA_BYTES)
                return mfl_emu_nccl_misuse(
                        "only sums of int64 and broadcasts of float are emulated, and 16 MiB at most");
        if (text && !strcmp(text, "breaks") && comm->n_reductions)
                return mfl_emu_nccl_leave(ncclInternalError, "it was asked to break");
        bool own = reduction.root == comm->rank;
        if (reduction.root < 0 || reduction.root >= comm->n_ranks || !mfl_emu_find_stream(stream) ||
                ((reduction.kind != BROADCAST || own) && !mfl_emu_is_device(reduction.send, bytes)) ||
                ((reduction.kind != REDUCE || own) && !mfl_emu_is_device(reduction.recv, bytes)))
                return mfl_emu_nccl_leave(ncclInvalidArgument, "invalid root, stream or buffer");
        reduction.comm = comm;
        reduction.number = comm->n_reductions++;
        comm->launch = reduction;
        comm->launch_stream = stream;
        comm->phase = LAUNCHING;
        comm->looks = LOOKS_CALL;
        return mfl_emu_nccl_leave(ncclInProgress, NULL);
}

ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
        return call(comm, "ncclReduce", datatype == ncclInt64 && op == ncclSum,
                (struct reduction){
                        .kind = REDUCE, .count = count, .send = sendbuff, .recv = recvbuff, .root = root},
                stream);
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
        ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
        return call(comm, "ncclAllReduce", datatype == ncclInt64 && op == ncclSum,
                (struct reduction){.kind = ALL_REDUCE, .count = count, .send = sendbuff, .recv = recvbuff},
                stream);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
        int root, ncclComm_t comm, cudaStream_t stream)
{
        return call(comm, "ncclBroadcast", datatype == ncclFloat32,
                (struct reduction){
                        .kind = BROADCAST, .count = count, .send = sendbuff, .recv = recvbuff, .root = root},
                stream);
}
