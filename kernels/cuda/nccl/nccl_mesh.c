/* SPDX-License-Identifier: Apache-2.0 */
/* A mesh between GPUs of one host (kernels/mesh/mesh.h), over vectors in their memory: all-reduce and reduce-scatter of integers,
 * all-gather of floats.
 *
 * Slices are whole blocks of the gradient and differ in size, which ncclReduceScatter and ncclAllGather do not take; so each slice is
 * an ncclReduce to its owner, or an ncclBroadcast from it. Over a ring either sends as many bytes as the whole would: every link
 * carries each slice once. Calls follow one another in the stream; between two of them this thread polls, as for every call of NCCL.
 *
 * Errors are those of mesh.h: MFL_MESH_BROKEN, with NCCL's text; the communicator has been aborted then. NCCL does not say which
 * rank is lost: the ranks' other mesh does.
 */
#include <sched.h>
#include <time.h>

#include "kernels/check.h"
#include "kernels/cuda/nccl/nccl_internal.h"
#include "kernels/mesh/mesh.h"

#define YIELDS 50u
#define NAP_NS 20000

enum state { IDLE, CALLED, QUEUED };

struct nccl_mesh {
        struct mfl_mesh base;
        struct mfl_comm *comm;
        struct mfl_mesh_op op; /* under way */
        uint64_t edge[MFL_MESH_RANKS_MAX + 1];
        enum state state;
        uint32_t turn, n_turns;
        pthread_mutex_t lock; /* guards the reason */
        atomic_bool aborted;
        char reason[160];
};

static struct nccl_mesh *mesh_of(struct mfl_mesh *base)
{
        return MFL_CONTAINER_OF(base, struct nccl_mesh, base);
}

static int give_up(struct nccl_mesh *mesh, int rc, struct mfl_error *err)
{
        mfl_nccl_give_up(mesh->comm);
        mesh->state = IDLE;
        return rc == MFL_COMM_BROKEN ? MFL_MESH_BROKEN : rc;
}

static int check_aborted(struct nccl_mesh *mesh, struct mfl_error *err)
{
        if (mfl_nccl_handle(mesh->comm) && !mesh->comm->stuck && !atomic_load(&mesh->aborted))
                return 0;
        pthread_mutex_lock(&mesh->lock);
        mfl_fail(err, MFL_COMM_BROKEN, "NCCL: %s",
                *mesh->reason ? mesh->reason : "the communicator was aborted");
        pthread_mutex_unlock(&mesh->lock);
        return give_up(mesh, MFL_COMM_BROKEN, err);
}

/* The next turn's call. */
static ncclResult_t call(const struct nccl_mesh *mesh)
{
        const struct mfl_comm *comm = mesh->comm;
        const struct mfl_mesh_op *op = &mesh->op;
        uint64_t first = mesh->edge[mesh->turn], n = mesh->edge[mesh->turn + 1] - first;
        int root = (int)mesh->turn;
        bool own = mesh->turn == comm->rank;
        switch (op->kind) {
        case MFL_MESH_ALL_REDUCE:
                return comm->nccl->all_reduce(
                        op->in, op->out, op->n, ncclInt64, ncclSum, comm->handle, comm->stream);
        case MFL_MESH_REDUCE_SCATTER:
                return comm->nccl->reduce((const int64_t *)op->in + first, own ? op->out : NULL, n, ncclInt64,
                        ncclSum, root, comm->handle, comm->stream);
        default: {
                float *to = (float *)op->out + first;
                return comm->nccl->broadcast(
                        own ? op->in : to, to, n, ncclFloat32, root, comm->handle, comm->stream);
        }
        }
}

/* Turns without elements are none. */
static int take_turn(struct nccl_mesh *mesh, struct mfl_error *err)
{
        while (mesh->turn < mesh->n_turns && mesh->edge[mesh->turn] == mesh->edge[mesh->turn + 1])
                mesh->turn++;
        if (mesh->turn == mesh->n_turns) {
                mesh->state = QUEUED;
                return 0;
        }
        ncclResult_t result = call(mesh);
        mesh->state = CALLED;
        if (result == ncclSuccess || result == ncclInProgress)
                return 0;
        return give_up(mesh, mfl_nccl_fail(mesh->comm, result, "add a gradient", err), err);
}

/* One look at what is under way. */
static int look(struct nccl_mesh *mesh, struct mfl_error *err)
{
        bool busy;
        int rc = check_aborted(mesh, err);
        if (rc)
                return rc;
        rc = mfl_nccl_check_async(mesh->comm, "add a gradient", &busy, err);
        if (rc)
                return give_up(mesh, rc, err);
        if (busy)
                return MFL_MESH_PENDING;
        if (mesh->state == CALLED) {
                mesh->turn++;
                rc = take_turn(mesh, err);
                return rc ? rc : MFL_MESH_PENDING;
        }
        cudaError_t status = cudaStreamQuery(mesh->comm->stream);
        if (status == cudaErrorNotReady)
                return MFL_MESH_PENDING;
        mesh->state = IDLE;
        return mfl_cuda_check(status, "add a gradient", err);
}

static int start(struct mfl_mesh *base, const struct mfl_mesh_op *op, struct mfl_error *err)
{
        struct nccl_mesh *mesh = mesh_of(base);
        bool whole = op->kind == MFL_MESH_ALL_REDUCE;
        uint64_t first, n, size = mfl_mesh_type_bytes(op->type);
        mfl_assert(mesh->state == IDLE && op->reduction == MFL_MESH_SUM);
        mfl_assert(op->kind == MFL_MESH_ALL_GATHER
                           ? op->type == MFL_MESH_F32
                           : op->type == MFL_MESH_I64 && (whole || op->kind == MFL_MESH_REDUCE_SCATTER));
        int rc = check_aborted(mesh, err);
        if (!rc)
                rc = mfl_cuda_check(cudaSetDevice(mesh->comm->device->ordinal), "set device", err);
        if (rc)
                return rc;
        mesh->op = *op;
        mesh->turn = 0;
        mesh->n_turns = whole ? 1 : base->n_ranks;
        mesh->edge[mesh->n_turns] = op->n;
        for (uint32_t r = 0; r < mesh->n_turns; r++) {
                mfl_mesh_op_slice(op, base->n_ranks, r, &first, &n);
                mesh->edge[r] = whole ? 0 : first;
        }
        mfl_mesh_op_slice(op, base->n_ranks, base->rank, &first, &n);
        base->sent_bytes += (op->kind == MFL_MESH_ALL_GATHER ? n : op->n - n) * size;
        base->received_bytes += (op->kind == MFL_MESH_ALL_GATHER ? op->n - n : n) * size;
        return take_turn(mesh, err);
}

static int progress(struct mfl_mesh *base, uint64_t wait_ns, struct mfl_error *err)
{
        const struct timespec nap = {.tv_nsec = NAP_NS};
        uint64_t end_ns = mfl_now_ns() + wait_ns;
        for (uint32_t n_polls = 0;; n_polls++) {
                int rc = look(mesh_of(base), err);
                if (rc != MFL_MESH_PENDING || mfl_now_ns() >= end_ns)
                        return rc;
                if (n_polls < YIELDS)
                        sched_yield();
                else
                        nanosleep(&nap, NULL);
        }
}

static void abort_mesh(struct mfl_mesh *base, const char *reason)
{
        struct nccl_mesh *mesh = mesh_of(base);
        pthread_mutex_lock(&mesh->lock);
        if (!*mesh->reason)
                mfl_strcpy(mesh->reason, sizeof mesh->reason, reason);
        pthread_mutex_unlock(&mesh->lock);
        atomic_store(&mesh->aborted, true);
}

static void close_mesh(struct mfl_mesh *base)
{
        struct nccl_mesh *mesh = mesh_of(base);
        if (mesh->state != IDLE || atomic_load(&mesh->aborted))
                mfl_nccl_give_up(mesh->comm);
        mfl_nccl_close(mesh->comm);
        pthread_mutex_destroy(&mesh->lock);
        free(mesh);
}

static const struct mfl_mesh_ops nccl_mesh_ops = {
        .name = "nccl", .start = start, .progress = progress, .abort = abort_mesh, .close = close_mesh};

int mfl_cuda_nccl_mesh(struct mfl_device *device, const uint8_t id[MFL_COMM_ID_BYTES], uint32_t rank,
        uint32_t n_ranks, uint32_t deadline_ms, const atomic_bool *cancel, struct mfl_mesh **ret_mesh,
        struct mfl_error *err)
{
        struct patience patience = mfl_nccl_patience(deadline_ms, cancel);
        struct nccl_mesh *mesh = mfl_calloc(1, sizeof *mesh);
        if (!mesh)
                return mfl_fail_memory(err, sizeof *mesh, "a mesh of devices");
        mfl_assert(n_ranks <= MFL_MESH_RANKS_MAX);
        mesh->base = (struct mfl_mesh){
                .ops = &nccl_mesh_ops, .rank = rank, .n_ranks = n_ranks, .lag_ms = mfl_nccl_lag_ms()};
        pthread_mutex_init(&mesh->lock, NULL);
        int rc = mfl_nccl_open(device, id, rank, n_ranks, &patience, &mesh->comm, err);
        if (rc) {
                pthread_mutex_destroy(&mesh->lock);
                free(mesh);
                return rc == MFL_COMM_BROKEN ? MFL_MESH_BROKEN : rc;
        }
        *ret_mesh = &mesh->base;
        return 0;
}
