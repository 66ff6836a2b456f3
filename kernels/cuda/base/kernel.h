/* SPDX-License-Identifier: Apache-2.0 */
/* How kernels of this backend are written, so that nvcc compiles the source for the device, and the C
 * compiler compiles it for the tests' emulated device (tests/emu), which runs every thread of every block on
 * the CPU.
 *
 * A .cu file uses only what C17 and CUDA C++ share: no templates, no references, casts from void pointers,
 * and `static inline` functions with constant arguments where C++ would have a template. A kernel has one
 * argument, a struct by value, and is started by a function of the same file:
 *
 *     struct scale { float *x; int64_t n; float by; };
 *     MFL_KERNEL(scale_kernel, struct scale)
 *     {
 *             int64_t i = MFL_GLOBAL_INDEX;
 *             if (i < a.n)
 *                     a.x[i] *= a.by;
 *     }
 *     MFL_HOST cudaError_t mfl_cuda_scale(const struct scale *a, cudaStream_t stream)
 *     {
 *             return MFL_LAUNCH(scale_kernel, mfl_blocks(a->n, 256), 1, 1, 256, 0, stream, a);
 *     }
 *
 * nvcc runs with --fmad=false: a product and a sum become one rounding only where fmaf is written. So the
 * emulated device gives the device's bits, except for expf, logf, tanhf, rsqrtf and the tensor cores' sums.
 *
 * Every kernel works for any grid that covers its work. Shared memory is not zero at the start. A thread that
 * has left the kernel takes no part in later MFL_SYNCs, so leave uniformly or after the last one.
 */
#ifndef MFL_KERNELS_CUDA_BASE_KERNEL_H
#define MFL_KERNELS_CUDA_BASE_KERNEL_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/bodies.h"

#ifdef __CUDACC__

#define MFL_HOST extern "C"
#define MFL_DEVICE static __device__ __forceinline__
#define MFL_KERNEL(name, type) static __global__ void name(const __grid_constant__ type a)
/* At most `threads` per block, and few enough registers for `blocks` blocks on a multiprocessor. */
#define MFL_KERNEL_BOUNDS(name, type, threads, blocks)                                                       \
        static __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ type a)
#define MFL_SHARED(type, name, count) __shared__ __align__(16) type name[count]
/* bytes of the launch's shared memory, as unsigned char name[] */
#define MFL_SHARED_DYNAMIC(name) extern __shared__ __align__(16) unsigned char name[]
#define MFL_SYNC() __syncthreads()
#define MFL_SYNC_WARP() __syncwarp()
#define MFL_UNROLL _Pragma("unroll")

static inline cudaError_t mfl_launch(const void *kernel, uint32_t gx, uint32_t gy, uint32_t gz,
        uint32_t threads, size_t shared_bytes, cudaStream_t stream, const void *a)
{
        void *args[1] = {(void *)a};
        return cudaLaunchKernel(kernel, dim3(gx, gy, gz), dim3(threads, 1, 1), args, shared_bytes, stream);
}

MFL_DEVICE float mfl_shfl_xor(float v, int mask)
{
        return __shfl_xor_sync(0xffffffffu, v, mask);
}
MFL_DEVICE uint32_t mfl_shfl_xor_u32(uint32_t v, int mask)
{
        return __shfl_xor_sync(0xffffffffu, v, mask);
}
MFL_DEVICE void mfl_atomic_add_u64(uint64_t *at, uint64_t v)
{
        atomicAdd((unsigned long long *)at, (unsigned long long)v);
}
MFL_DEVICE void mfl_atomic_add_i64(int64_t *at, int64_t v)
{
        atomicAdd((unsigned long long *)at, (unsigned long long)v);
}
MFL_DEVICE void mfl_atomic_or_u32(uint32_t *at, uint32_t v)
{
        atomicOr(at, v);
}

/* ---- tensor cores: one warp; PTX ISA "Warp-level matrix instructions", mma.sync.m16n8k8 / .m16n8k16 ---- */

/* To the nearest value with 10 bits of mantissa, ties away from zero: cvt.rna.tf32.f32. */
MFL_DEVICE uint32_t mfl_to_tf32(float v)
{
        uint32_t r;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
        return r;
}
/* d[16x8] += a[16x8] (row) * b[8x8] (col) */
MFL_DEVICE void mfl_mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2])
{
        asm volatile(
                "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                "{%0,%1,%2,%3};"
                : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* d[16x8] += a[16x16] (row) * b[16x8] (col) */
MFL_DEVICE void mfl_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                     "{%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
MFL_DEVICE void mfl_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
        asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                "{%0,%1,%2,%3};"
                : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8 (16 bytes). */
MFL_DEVICE void mfl_ldmatrix_x4(uint32_t r[4], const void *shared)
{
        uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
}
MFL_DEVICE void mfl_ldmatrix_x4_trans(uint32_t r[4], const void *shared)
{
        uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
}

/* ---- asynchronous copies from global to shared memory (sm_80) ---- */

/* Copies `valid` of the bytes; the rest become zero (valid 0: the source is not read). */
MFL_DEVICE void mfl_cp_async_16(void *shared, const void *global, int valid)
{
        uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(global), "r"(valid)
                     : "memory");
}
MFL_DEVICE void mfl_cp_async_4(void *shared, const void *global, int valid)
{
        uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(global), "r"(valid)
                     : "memory");
}
MFL_DEVICE void mfl_cp_async_commit(void)
{
        asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most `pending` (a constant) of this thread's groups are under way; MFL_SYNC after it. */
#define mfl_cp_async_wait(pending) asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory")

/* 16 bytes at once; both aligned to 16. */
MFL_DEVICE void mfl_copy_16(void *to, const void *from)
{
        *(uint4 *)to = *(const uint4 *)from;
}

#elif defined(MFL_CUDA_EMULATED)
#include MFL_CUDA_EMULATED /* a header with the same names for the tests' emulated device */
#endif
/* Otherwise the host's own files, which see only the types below. */

#define MFL_LAUNCH(kernel, gx, gy, gz, threads, shared_bytes, stream, a)                                     \
        mfl_launch((const void *)(kernel), (uint32_t)(gx), (uint32_t)(gy), (uint32_t)(gz),                   \
                (uint32_t)(threads), (size_t)(shared_bytes), stream, a)
#define MFL_GLOBAL_INDEX ((int64_t)blockIdx.x * blockDim.x + threadIdx.x)

static inline int64_t mfl_blocks(int64_t n, int64_t threads)
{
        return (n + threads - 1) / threads;
}

/* ---- element types ---- */

enum mfl_cuda_type {
        MFL_CUDA_F32,
        MFL_CUDA_BF16,
        MFL_CUDA_F16,
};
static inline MFL_HD int mfl_cuda_type_bytes(enum mfl_cuda_type type)
{
        return type == MFL_CUDA_F32 ? 4 : 2;
}
static inline MFL_HD enum mfl_cuda_type mfl_cuda_type_of(enum mfl_precision precision)
{
        return precision == MFL_PRECISION_BF16   ? MFL_CUDA_BF16
               : precision == MFL_PRECISION_FP16 ? MFL_CUDA_F16
                                                 : MFL_CUDA_F32;
}

static inline MFL_HD float mfl_bits_to_float(uint32_t bits)
{
        union {
                uint32_t u;
                float f;
        } v;
        v.u = bits;
        return v.f;
}
static inline MFL_HD uint32_t mfl_float_to_bits(float f)
{
        union {
                uint32_t u;
                float f;
        } v;
        v.f = f;
        return v.u;
}
static inline MFL_HD float mfl_bf16_to_float(uint16_t v)
{
        return mfl_bits_to_float((uint32_t)v << 16);
}
/* To nearest, ties to even; a NaN stays a NaN. The device has an instruction for each of these three, with
 * the same bits except for those of a NaN. */
static inline MFL_HD uint16_t mfl_float_to_bf16(float f)
{
#ifdef __CUDA_ARCH__
        uint16_t r;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(f));
        return r;
#else
        uint32_t u = mfl_float_to_bits(f);
        if ((u & 0x7fffffffu) > 0x7f800000u)
                return (uint16_t)(u >> 16 | 0x40u);
        return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
#endif
}
/* IEEE half: values of a subnormal half are exact in float. */
static inline MFL_HD float mfl_f16_to_float(uint16_t v)
{
#ifdef __CUDA_ARCH__
        float r;
        asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
        return r;
#else
        uint32_t sign = (uint32_t)(v & 0x8000u) << 16, e = v >> 10 & 31u, m = v & 0x3ffu;
        if (e == 31)
                return mfl_bits_to_float(sign | 0x7f800000u | m << 13);
        if (e == 0) {
                float f = (float)m * 0x1p-24f;
                return sign ? -f : f;
        }
        return mfl_bits_to_float(sign | (e + 112u) << 23 | m << 13);
#endif
}
/* To nearest, ties to even; overflow becomes infinity; a NaN stays a NaN. */
static inline MFL_HD uint16_t mfl_float_to_f16(float f)
{
#ifdef __CUDA_ARCH__
        uint16_t r;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(f));
        return r;
#else
        uint32_t u = mfl_float_to_bits(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
        if (a > 0x7f800000u)
                return (uint16_t)(sign | 0x7e00u);
        if (a >= 0x477ff000u) /* 65520: rounds to infinity */
                return (uint16_t)(sign | 0x7c00u);
        if (a < 0x38800000u) { /* below 2^-14: adding 1/2 puts the last bit of a subnormal half at 2^-24 */
                uint32_t r = mfl_float_to_bits(mfl_bits_to_float(a) + 0.5f) - 0x3f000000u;
                return (uint16_t)(sign | r);
        }
        return (uint16_t)(sign | (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13);
#endif
}

/* Element i of a tensor; `type` is a constant wherever speed matters. */
static inline MFL_HD float mfl_load(const void *p, int64_t i, enum mfl_cuda_type type)
{
        return type == MFL_CUDA_F32    ? ((const float *)p)[i]
               : type == MFL_CUDA_BF16 ? mfl_bf16_to_float(((const uint16_t *)p)[i])
                                       : mfl_f16_to_float(((const uint16_t *)p)[i]);
}
static inline MFL_HD void mfl_store(void *p, int64_t i, float v, enum mfl_cuda_type type)
{
        if (type == MFL_CUDA_F32)
                ((float *)p)[i] = v;
        else
                ((uint16_t *)p)[i] = type == MFL_CUDA_BF16 ? mfl_float_to_bf16(v) : mfl_float_to_f16(v);
}

/* ---- activations that other operators carry ---- */

enum mfl_cuda_act {
        MFL_CUDA_ACT_NONE,
        MFL_CUDA_ACT_RELU,
        MFL_CUDA_ACT_TANH,
        MFL_CUDA_ACT_SIGMOID,
};
static inline MFL_HD float mfl_act(enum mfl_cuda_act act, float x)
{
        switch (act) {
        case MFL_CUDA_ACT_RELU:
                return mfl_unary_relu(x);
        case MFL_CUDA_ACT_TANH:
                return tanhf(x);
        case MFL_CUDA_ACT_SIGMOID:
                return mfl_unary_sigmoid(x);
        default:
                return x;
        }
}
static inline MFL_HD float mfl_act_grad(enum mfl_cuda_act act, float y, float dy)
{
        switch (act) {
        case MFL_CUDA_ACT_RELU:
                return mfl_unary_relu_grad(y, dy);
        case MFL_CUDA_ACT_TANH:
                return mfl_unary_tanh_grad(y, dy);
        case MFL_CUDA_ACT_SIGMOID:
                return mfl_unary_sigmoid_grad(y, dy);
        default:
                return dy;
        }
}

/* ---- what all operators of a training step know ---- */

/* The steps of one call, in device memory, and which rows count: the first count[g * steps_max + *step] of a
 * group's batch. Rules for every operator: it skips a group whose count is 0. Forward operators write all
 * `batch` rows (rows beyond count come from zero inputs, so nothing stale is ever read). The loss gives rows
 * beyond count a gradient of zero, and every backward operator keeps it zero (batch normalisation must do so
 * itself), so sums over rows may include all of them. */
struct mfl_cuda_steps {
        const uint32_t *step;       /* number of the current step, from 0; mfl_cuda_next_step increments it */
        const uint32_t *step_first; /* [G] number of step 0 within the local training */
        const uint32_t *index;      /* [G][steps_max][batch] sample numbers */
        const uint32_t *count;      /* [G][steps_max]; NULL: all rows always (then step may be NULL too) */
        const struct mfl_rng_key *dropout, *augment; /* [G] */
        uint32_t steps_max, batch;
        uint32_t accumulate; /* batches per step of the optimizer; 0: 1. `step` counts batches, and the
                                tables are by batch */
};
/* The current batch's number within its step. */
static inline MFL_HD uint32_t mfl_cuda_part(const struct mfl_cuda_steps *steps)
{
        return steps->accumulate > 1 && steps->step ? *steps->step % steps->accumulate : 0;
}
/* The step's number within the group's local training. */
static inline MFL_HD uint32_t mfl_cuda_step_number(const struct mfl_cuda_steps *steps, uint32_t group)
{
        uint32_t first = steps->step_first ? steps->step_first[group] : 0,
                 at = steps->step ? *steps->step : 0;
        return first + (steps->accumulate > 1 ? at / steps->accumulate : at);
}
static inline MFL_HD uint32_t mfl_cuda_rows(const struct mfl_cuda_steps *steps, uint32_t group)
{
        return steps->count ? steps->count[group * steps->steps_max + *steps->step] : steps->batch;
}
/* Whether the optimizer steps after this batch: it is the last of its step, and the step has rows. */
static inline MFL_HD bool mfl_cuda_updates(const struct mfl_cuda_steps *steps, uint32_t group)
{
        uint32_t part = mfl_cuda_part(steps);
        if (steps->accumulate > 1 && part + 1 < steps->accumulate)
                return false;
        return !steps->count || steps->count[group * steps->steps_max + *steps->step - part] > 0;
}

#endif
