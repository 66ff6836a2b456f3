/* SPDX-License-Identifier: Apache-2.0 */
/* What all meshes share: slices, reductions, waiting. */
#include "kernels/mesh/mesh.h"

#include <math.h>
#include <stdio.h>

#define CHUNK_BYTES 16384u
/* Elements do not depend on each other, whatever overlaps. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
#define TURN_NS ((uint64_t)20000000) /* how often a wait looks at its deadline and its caller */

uint64_t mfl_mesh_type_bytes(enum mfl_mesh_type type)
{
        static const uint8_t bytes[] = {
                [MFL_MESH_I64] = 8, [MFL_MESH_F32] = 4, [MFL_MESH_BF16] = 2, [MFL_MESH_U8] = 1};
        mfl_assert((size_t)type < MFL_ARRAY_SIZE(bytes));
        return bytes[type];
}

uint64_t mfl_mesh_slice(uint64_t n, uint64_t unit, uint32_t n_ranks, uint32_t rank)
{
        mfl_assert(unit && rank <= n_ranks);
        uint64_t units = (n + unit - 1) / unit, each = units / n_ranks, more = units % n_ranks;
        return MFL_MIN(n, unit * (each * rank + MFL_MIN((uint64_t)rank, more)));
}

void mfl_mesh_op_slice(
        const struct mfl_mesh_op *op, uint32_t n_ranks, uint32_t rank, uint64_t *ret_first, uint64_t *ret_n)
{
        mfl_assert(rank < n_ranks);
        uint64_t first = op->edge ? op->edge[rank] : mfl_mesh_slice(op->n, 1, n_ranks, rank);
        uint64_t end = op->edge ? op->edge[rank + 1] : mfl_mesh_slice(op->n, 1, n_ranks, rank + 1);
        mfl_assert(first <= end && end <= op->n);
        *ret_first = first;
        *ret_n = end - first;
}

static void sum_i64(uint64_t *restrict to, const uint64_t *restrict from, uint64_t n)
{
        for (uint64_t i = 0; i < n; i++)
                to[i] += from[i];
}

static void max_i64(int64_t *restrict to, const int64_t *restrict from, uint64_t n)
{
        for (uint64_t i = 0; i < n; i++)
                to[i] = MFL_MAX(to[i], from[i]);
}

static void sum_f32(float *restrict to, const float *restrict from, uint64_t n)
{
        for (uint64_t i = 0; i < n; i++)
                to[i] += from[i];
}

static void max_f32(float *restrict to, const float *restrict from, uint64_t n)
{
        for (uint64_t i = 0; i < n; i++) {
                float a = isnan(to[i]) ? INFINITY : to[i], b = isnan(from[i]) ? INFINITY : from[i];
                to[i] = MFL_MAX(a, b);
        }
}

static float of_bf16(uint16_t half)
{
        uint32_t bits = (uint32_t)half << 16;
        float x;
        memcpy(&x, &bits, sizeof x);
        return x;
}

/* To nearest, ties to even; a NaN stays one. */
static uint16_t to_bf16(float x)
{
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (isnan(x))
                return (uint16_t)(bits >> 16 | 0x40);
        return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void reduce_bf16(
        enum mfl_mesh_reduction reduction, uint16_t *restrict to, const uint16_t *restrict from, uint64_t n)
{
        for (uint64_t i = 0; i < n; i++) {
                float a = of_bf16(to[i]), b = of_bf16(from[i]);
                if (reduction == MFL_MESH_MAX)
                        max_f32(&a, &b, 1);
                else
                        a += b;
                to[i] = to_bf16(a);
        }
}

static void reduce_u8(
        enum mfl_mesh_reduction reduction, uint8_t *restrict to, const uint8_t *restrict from, uint64_t n)
{
        for (uint64_t i = 0; i < n; i++)
                to[i] = reduction == MFL_MESH_MAX ? MFL_MAX(to[i], from[i]) : (uint8_t)(to[i] + from[i]);
}

void mfl_mesh_reduce(
        enum mfl_mesh_type type, enum mfl_mesh_reduction reduction, void *to, const void *from, uint64_t n)
{
        bool max = reduction == MFL_MESH_MAX;
        switch (type) {
        case MFL_MESH_I64:
                if (max)
                        max_i64(to, from, n);
                else
                        sum_i64(to, from, n);
                return;
        case MFL_MESH_F32:
                if (max)
                        max_f32(to, from, n);
                else
                        sum_f32(to, from, n);
                return;
        case MFL_MESH_BF16:
                reduce_bf16(reduction, to, from, n);
                return;
        case MFL_MESH_U8:
                reduce_u8(reduction, to, from, n);
                return;
        case MFL_MESH_TYPE_COUNT_:
                break;
        }
        mfl_assert(false);
}

/* out = a + b; out may be one of them. False: that is no plain sum. */
static bool sum_two(const struct mfl_mesh_op *op, const void *a, const void *b, uint64_t n, void *out)
{
        if (op->reduction != MFL_MESH_SUM || (op->type != MFL_MESH_I64 && op->type != MFL_MESH_F32))
                return false;
        if (op->type == MFL_MESH_I64) {
                const uint64_t *x = a, *y = b;
                uint64_t *sum = out;
                INDEPENDENT for (uint64_t i = 0; i < n; i++) sum[i] = x[i] + y[i];
        } else {
                const float *x = a, *y = b;
                float *sum = out;
                INDEPENDENT for (uint64_t i = 0; i < n; i++) sum[i] = x[i] + y[i];
        }
        return true;
}

/* A chunk at a time, so that it is in the cache for each of the parts. */
static void reduce_chunk(const struct mfl_mesh_op *op, const void *const *part, uint32_t n_ranks, uint64_t at,
        uint64_t done, uint64_t n, char *out)
{
        uint64_t size = mfl_mesh_type_bytes(op->type);
        _Alignas(64) char chunk[CHUNK_BYTES];
        for (uint32_t r = 0; r < n_ranks; r++) {
                const char *in = (const char *)part[r] + done * size;
                if (op->reduction == MFL_MESH_SUM_ROUNDED)
                        op->rounding->add(op->rounding->user, at + done, n, (const float *)in, !r,
                                (int64_t *)(void *)out + done);
                else if (r)
                        mfl_mesh_reduce(op->type, op->reduction, chunk, in, n);
                else
                        memcpy(chunk, in, n * size);
        }
        if (op->reduction != MFL_MESH_SUM_ROUNDED)
                memcpy(out + done * size, chunk, n * size);
}

void mfl_mesh_reduce_parts(const struct mfl_mesh_op *op, const void *const *part, uint32_t n_ranks,
        uint64_t at, uint64_t n, void *out)
{
        if (n_ranks == 2 && sum_two(op, part[0], part[1], n, out))
                return;
        for (uint64_t done = 0, count; done < n; done += count) {
                count = MFL_MIN(CHUNK_BYTES / sizeof(int64_t), n - done);
                reduce_chunk(op, part, n_ranks, at, done, count, out);
        }
}

bool mfl_mesh_any_order(enum mfl_mesh_type type, enum mfl_mesh_reduction reduction)
{
        return reduction == MFL_MESH_MAX || type == MFL_MESH_I64 || type == MFL_MESH_U8;
}

/* Whether a rank that has failed, or has found its devices' mesh broken, says so at the other mesh. */
static bool is_told(const struct mfl_mesh *mesh, const struct mfl_mesh_op *op, char reason[128])
{
        const struct mfl_mesh_op question = {
                .kind = MFL_MESH_BARRIER, .step = op->step, .sequence = MFL_MESH_SEQUENCE_LOST};
        struct mfl_mesh *beside = mesh->beside;
        struct mfl_error err;
        bool begun = false;
        if (!beside || !beside->ops->look)
                return false;
        if (beside->ops->look(beside, &question, &begun, &err))
                mfl_strcpy(reason, 128, err.text);
        else if (begun)
                mfl_strcpy(reason, 128, "another rank has found it broken");
        else
                return false;
        return true;
}

int mfl_mesh_run(struct mfl_mesh *mesh, const struct mfl_mesh_op *op, uint32_t deadline_ms,
        const atomic_bool *cancel, struct mfl_error *err)
{
        uint64_t start_ns = mfl_now_ns(), end_ns = start_ns + (uint64_t)deadline_ms * 1000000;
        int r = mesh->ops->start(mesh, op, err);
        if (r)
                return r;
        for (;;) {
                r = mesh->ops->progress(mesh, TURN_NS, err);
                if (r != MFL_MESH_PENDING)
                        break;
                char reason[128];
                if (cancel && atomic_load(cancel))
                        mfl_strcpy(reason, sizeof(reason), "it was cancelled");
                else if (mfl_now_ns() > end_ns) {
                        snprintf(reason, sizeof(reason),
                                "rank %u waited %u ms for the others in step %u, operation %u", mesh->rank,
                                deadline_ms, op->step, op->sequence);
                        mesh->late = true;
                        mesh->loss = MFL_MESH_LATE;
                } else if (!is_told(mesh, op, reason))
                        continue;
                mesh->ops->abort(mesh, reason);
        }
        mesh->run_ns += mfl_now_ns() - start_ns;
        return r;
}

void mfl_mesh_close(struct mfl_mesh *mesh)
{
        if (mesh)
                mesh->ops->close(mesh);
}
