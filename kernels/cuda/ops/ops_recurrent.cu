/* SPDX-License-Identifier: Apache-2.0 */
/* The host side of ops_recurrent.h: sizes, the form, launches; and the kernel that packs the weights. */
#include "kernels/cuda/ops/ops_common.h"
#include "kernels/cuda/ops/ops_recurrent.h"
#include "kernels/cuda/recurrent/recurrent.h"

/* ---- sizes ---- */

struct sizes {
        int gates, panels, tiles, chunks, slice, slices;
        int pitch;             /* bytes of a row of the state */
        int64_t packed, state; /* bytes of one group */
};

static struct sizes sizes_of(
        int batch, int hidden, enum mfl_cell kind, enum mfl_precision precision, bool backward)
{
        int64_t bytes = mfl_cuda_type_bytes(mfl_cuda_type_of(precision));
        struct sizes z;
        z.gates = mfl_cell_gates(kind);
        z.panels = mfl_recurrent_panels(kind, backward);
        z.tiles = (int)mfl_blocks(hidden, MFL_RECURRENT_UNITS);
        z.chunks = (int)mfl_blocks((backward ? z.gates : 1) * hidden * bytes, MFL_RECURRENT_CHUNK);
        z.slice = (int)mfl_blocks(z.chunks, MFL_RECURRENT_SLICES);
        z.slices = (int)mfl_blocks(z.chunks, z.slice);
        z.pitch = z.chunks * MFL_RECURRENT_CHUNK;
        z.packed = (int64_t)z.tiles * z.panels * z.chunks * MFL_RECURRENT_LOAD;
        z.state = (int64_t)batch * z.pitch;
        return z;
}

/* In shared memory, rows begin 64 bytes apart modulo 128, so that two rows' 64 bytes lie in different banks.
 */
static int whole_pitch(const struct sizes *z)
{
        return z->pitch | MFL_RECURRENT_CHUNK;
}

static int64_t whole_shared(const struct sizes *z)
{
        int64_t sums = (int64_t)z->tiles * z->panels * MFL_RECURRENT_ITEMS * (int64_t)sizeof(float);
        return z->packed + (int64_t)MFL_RECURRENT_ROWS * whole_pitch(z) + sums;
}

MFL_HOST bool mfl_cuda_recurrent_is_whole(
        int hidden, enum mfl_cell kind, enum mfl_precision precision, bool backward)
{
        struct sizes z = sizes_of(1, hidden, kind, precision, backward);
        bool is_float = mfl_cuda_type_of(precision) == MFL_CUDA_F32;
        return z.tiles <= (is_float ? MFL_RECURRENT_WARPS_FLOAT : MFL_RECURRENT_WARPS_HALF) &&
               whole_shared(&z) <= MFL_RECURRENT_SHARED;
}

static int64_t aligned(int64_t bytes)
{
        return (bytes + 255) / 256 * 256;
}

static int64_t workspace_of(const struct sizes *z, int groups, int batch, int hidden, bool backward)
{
        int64_t carry = backward ? (int64_t)groups * batch * hidden * (int64_t)sizeof(float) : 0;
        return aligned(groups * z->packed) + aligned(2 * groups * z->state) + carry;
}

MFL_HOST uint64_t mfl_cuda_recurrent_workspace(
        int groups, int batch, int hidden, enum mfl_cell kind, enum mfl_precision precision)
{
        struct sizes forward = sizes_of(batch, hidden, kind, precision, false);
        struct sizes backward = sizes_of(batch, hidden, kind, precision, true);
        int64_t one = workspace_of(&forward, groups, batch, hidden, false);
        int64_t two = workspace_of(&backward, groups, batch, hidden, true);
        return (uint64_t)(one > two ? one : two);
}

/* ---- packing ---- */

struct pack {
        const void *weight;
        uint64_t stride;
        unsigned char *packed, *state;
        int64_t packed_group, state_group, state_half; /* bytes */
        int64_t weights, states; /* 16 bytes each, of a group and of one of two copies */
        int hidden, gates, panels, chunks;
        enum mfl_precision precision;
        bool backward;
        struct mfl_cuda_steps steps;
};

/* Element k of the reduction of unit u and panel p, as the bits that products read. */
MFL_DEVICE uint32_t weight_bits(const struct pack *a, int64_t group, int p, int u, int k)
{
        int n = a->hidden, row = a->backward ? k : p * n + u, column = a->backward ? u : k;
        if (u >= n || k >= (a->backward ? a->gates : 1) * n)
                return 0;
        int64_t at = group * (int64_t)a->stride + (int64_t)row * n + column;
        if (a->precision == MFL_PRECISION_BF16 || a->precision == MFL_PRECISION_FP16)
                return ((const uint16_t *)a->weight)[at];
        float v = ((const float *)a->weight)[at];
        return a->precision == MFL_PRECISION_TF32 ? mfl_to_tf32(v) : mfl_float_to_bits(v);
}

/* A thread packs 16 bytes; threads beyond the weights clear the states. */
MFL_KERNEL(pack_weights, struct pack)
{
        int64_t group = blockIdx.y, i = MFL_GLOBAL_INDEX;
        if (mfl_cuda_rows(&a.steps, (uint32_t)group) == 0)
                return;
        uint4 q = {0, 0, 0, 0};
        if (i >= a.weights) {
                i -= a.weights;
                if (i >= 2 * a.states)
                        return;
                unsigned char *state = a.state + (i >= a.states ? a.state_half - a.states * 16 : 0);
                mfl_copy_16(state + group * a.state_group + i * 16, &q);
                return;
        }
        int lane = (int)(i % 32), chunk = (int)(i / 32 % a.chunks), p = (int)(i / 32 / a.chunks % a.panels);
        int u = (int)(i / 32 / a.chunks / a.panels) * MFL_RECURRENT_UNITS + lane / 4;
        bool half = a.precision == MFL_PRECISION_BF16 || a.precision == MFL_PRECISION_FP16;
        int each = half ? 2 : 1, k = chunk * 16 * each + lane % 4 * 4 * each;
        uint32_t word[4];
        MFL_UNROLL
        for (int e = 0; e < 4; e++) {
                word[e] = weight_bits(&a, group, p, u, k + e * each);
                if (half)
                        word[e] |= weight_bits(&a, group, p, u, k + 2 * e + 1) << 16;
        }
        q.x = word[0];
        q.y = word[1];
        q.z = word[2];
        q.w = word[3];
        mfl_copy_16(a.packed + group * a.packed_group + i * 16, &q);
}

static cudaError_t launch_pack(const struct mfl_cuda_recurrent *a, const struct sizes *z, bool backward,
        const struct mfl_recurrent_args *args, cudaStream_t stream)
{
        struct pack v = {0};
        v.weight = a->weight;
        v.stride = a->stride;
        v.packed = args->packed;
        v.state = args->state;
        v.packed_group = args->packed_group;
        v.state_group = args->state_group;
        v.state_half = args->state_half;
        v.weights = z->packed / 16;
        v.states = a->whole ? 0 : z->state / 16;
        v.hidden = a->hidden;
        v.gates = z->gates;
        v.panels = z->panels;
        v.chunks = z->chunks;
        v.precision = a->precision;
        v.backward = backward;
        v.steps = a->steps;
        return mfl_ops_launch_flat(
                (const void *)(pack_weights), v.weights + 2 * v.states, a->groups, stream, &v);
}

/* ---- launches ---- */

static const void *kernel_of(const struct mfl_cuda_recurrent *a, bool backward)
{
        switch (a->precision) {
        case MFL_PRECISION_TF32:
                return mfl_recurrent_kernel_tf32(a->kind, backward, a->whole);
        case MFL_PRECISION_BF16:
                return mfl_recurrent_kernel_bf16(a->kind, backward, a->whole);
        case MFL_PRECISION_FP16:
                return mfl_recurrent_kernel_f16(a->kind, backward, a->whole);
        default:
                return mfl_recurrent_kernel_f32(a->kind, backward, a->whole);
        }
}

static struct mfl_recurrent_args args_of(const struct mfl_cuda_recurrent *a, const struct sizes *z)
{
        struct mfl_recurrent_args v = {0};
        v.batch = a->batch;
        v.positions = a->positions;
        v.hidden = a->hidden;
        v.relu = a->kind == MFL_CELL_RELU;
        v.last_cell = a->last_cell;
        v.rests_early = a->groups > MFL_RECURRENT_LATENCY;
        v.tiles = z->tiles;
        v.chunks = z->chunks;
        v.slice = z->slice;
        v.slices = z->slices;
        v.pitch = a->whole ? whole_pitch(z) : z->pitch;
        v.gates = a->gates;
        v.hidden_gates = a->hidden_gates;
        v.out = a->out;
        v.dout = a->dout;
        v.cell = a->cell;
        v.bias = a->bias;
        v.stride = a->stride;
        v.packed = (unsigned char *)a->workspace;
        v.packed_group = z->packed;
        v.state = v.packed + aligned(a->groups * z->packed);
        v.state_group = z->state;
        v.state_half = a->groups * z->state;
        v.carry = (float *)(v.state + aligned(2 * v.state_half));
        v.steps = a->steps;
        return v;
}

static cudaError_t launch_whole(const struct mfl_cuda_recurrent *a, const struct sizes *z, const void *kernel,
        const struct mfl_recurrent_args *args, cudaStream_t stream)
{
        int64_t shared = whole_shared(z), blocks = mfl_blocks(a->batch, MFL_RECURRENT_ROWS);
        if (shared > 48 << 10) { /* the limit of a launch unless the kernel was told */
                cudaError_t e = cudaFuncSetAttribute(
                        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
                if (e != cudaSuccess)
                        return e;
        }
        return MFL_LAUNCH(kernel, blocks, 1, a->groups, z->tiles * 32, shared, stream, args);
}

static cudaError_t run(const struct mfl_cuda_recurrent *a, bool backward, cudaStream_t stream)
{
        int64_t blocks = mfl_blocks(a->batch, MFL_RECURRENT_ROWS);
        if (a->groups < 1 || a->groups > 65535 || a->batch < 1 || a->positions < 1 || a->hidden < 1 ||
                a->hidden > INT32_MAX / 16 / 16 || blocks > 65535 ||
                (a->whole && !mfl_cuda_recurrent_is_whole(a->hidden, a->kind, a->precision, backward)))
                return cudaErrorInvalidValue;
        struct sizes z = sizes_of(a->batch, a->hidden, a->kind, a->precision, backward);
        struct mfl_recurrent_args args = args_of(a, &z);
        const void *kernel = kernel_of(a, backward);
        cudaError_t r = launch_pack(a, &z, backward, &args, stream);
        if (r == cudaSuccess && a->whole)
                return launch_whole(a, &z, kernel, &args, stream);
        for (int done = 0; r == cudaSuccess && done < a->positions; done++) {
                args.position = backward ? a->positions - 1 - done : done;
                r = MFL_LAUNCH(
                        kernel, z.tiles, blocks, a->groups, MFL_RECURRENT_SLICES * 32, 0, stream, &args);
        }
        return r;
}

MFL_HOST cudaError_t mfl_cuda_recurrent_forward(const struct mfl_cuda_recurrent *a, cudaStream_t stream)
{
        return run(a, false, stream);
}

MFL_HOST cudaError_t mfl_cuda_recurrent_backward(const struct mfl_cuda_recurrent *a, cudaStream_t stream)
{
        return run(a, true, stream);
}
