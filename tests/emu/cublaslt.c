/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated cuBLASLt: strided-batched products of column-major matrices with bias and ReLU.
 *
 * Sizes of attributes, shapes, types, alignment and workspace are checked as cublasLt.h demands. Algorithms
 * are invented; some are not what was asked for, so that filters have something to filter.
 *
 * MFL_EMU_CUBLASLT_WRONG=bias: the bias' batch stride counts as 0. =1: the last column of every result is
 * wrong.
 */
#include <cublasLt.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "kernels/cuda/base/kernel.h"

/* These lie in the library's opaque structs, or are as large. */
struct layout {
        cudaDataType type;
        int32_t batch;
        uint64_t rows, cols;
        int64_t ld, offset;
};
struct product {
        cublasComputeType_t compute;
        cudaDataType scale;
        int32_t transposed[2];
        uint32_t epilogue;
        const void *bias;
        int64_t bias_stride;
};
struct preference {
        uint64_t workspace;
        uint32_t schemes, alignment[4];
};
_Static_assert(sizeof(struct layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "layout");
_Static_assert(sizeof(struct product) <= sizeof(cublasLtMatmulDescOpaque_t), "product");
_Static_assert(sizeof(struct preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "preference");

#define FLAGS(op, input) (CUBLASLT_NUMERICAL_IMPL_FLAGS_##op | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_##input)
static const struct algorithm {
        int32_t id;
        bool floats, tf32, halves; /* computes these */
        uint64_t flags;
        uint32_t scheme;
        uint64_t workspace;
        bool refuses, rounds; /* rounds: operands, to TF32 */
} algorithms[] = {
        {1, true, true, false, FLAGS(HMMA, TF32) | CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F,
                CUBLASLT_REDUCTION_SCHEME_NONE, 0, false, true},
        {2, true, true, true, FLAGS(FMA, 32F), CUBLASLT_REDUCTION_SCHEME_NONE, (uint64_t)1 << 40, false,
                false},
        {3, true, true, true, FLAGS(FMA, 32F), CUBLASLT_REDUCTION_SCHEME_INPLACE, 64, false, false},
        {4, true, true, true, FLAGS(FMA, 32F), CUBLASLT_REDUCTION_SCHEME_NONE, 0, true, false},
        {5, false, false, true, FLAGS(HMMA, 16F) | CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F,
                CUBLASLT_REDUCTION_SCHEME_NONE, 0, false, false},
        {6, true, true, true, FLAGS(FMA, 32F) | CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F,
                CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 1024, false, false},
        {7, true, true, true, FLAGS(FMA, 32F) | CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F,
                CUBLASLT_REDUCTION_SCHEME_NONE, 0, false, false},
};
#define N_ALGORITHMS ((int)(sizeof algorithms / sizeof algorithms[0]))

struct cublasLtContext {
        int unused;
};

/* ---- descriptors ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret_handle)
{
        int n = 0;
        if (mfl_emu_fails("cublasLtCreate") || cudaGetDeviceCount(&n) || n == 0)
                return CUBLAS_STATUS_NOT_INITIALIZED;
        *ret_handle = calloc(1, sizeof(struct cublasLtContext));
        return *ret_handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
        free(handle);
        return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
        return CUBLAS_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
        return status == CUBLAS_STATUS_SUCCESS           ? "CUBLAS_STATUS_SUCCESS"
               : status == CUBLAS_STATUS_NOT_INITIALIZED ? "CUBLAS_STATUS_NOT_INITIALIZED"
               : status == CUBLAS_STATUS_NOT_SUPPORTED   ? "CUBLAS_STATUS_NOT_SUPPORTED"
               : status == CUBLAS_STATUS_INVALID_VALUE   ? "CUBLAS_STATUS_INVALID_VALUE"
                                                         : "CUBLAS_STATUS_EXECUTION_FAILED";
}

static cublasStatus_t create(const char *name, void *ret, size_t bytes, const void *value, size_t value_bytes)
{
        void *p = mfl_emu_fails(name) ? NULL : calloc(1, bytes);
        if (!p)
                return CUBLAS_STATUS_ALLOC_FAILED;
        memcpy(p, value, value_bytes);
        memcpy(ret, &p, sizeof p);
        return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t put(void *to, size_t to_bytes, const void *from, size_t bytes)
{
        if (!from || to_bytes != bytes)
                return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(to, from, bytes);
        return CUBLAS_STATUS_SUCCESS;
}
#define PUT(field) put(&(field), sizeof(field), buf, bytes)

cublasStatus_t cublasLtMatrixLayoutCreate(
        cublasLtMatrixLayout_t *ret_layout, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld)
{
        struct layout l = {type, 1, rows, cols, ld, 0};
        return create("cublasLtMatrixLayoutCreate", ret_layout, sizeof **ret_layout, &l, sizeof l);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
        free(layout);
        return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(
        cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attr, const void *buf, size_t bytes)
{
        struct layout *l = (struct layout *)layout;
        if (mfl_emu_fails("cublasLtMatrixLayoutSetAttribute"))
                return CUBLAS_STATUS_INVALID_VALUE;
        if (attr == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
                return PUT(l->batch);
        if (attr == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
                return PUT(l->offset);
        return CUBLAS_STATUS_INVALID_VALUE; /* not emulated */
}

cublasStatus_t cublasLtMatmulDescCreate(
        cublasLtMatmulDesc_t *ret_product, cublasComputeType_t compute, cudaDataType_t scale)
{
        struct product p = {.compute = compute, .scale = scale, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
        return create("cublasLtMatmulDescCreate", ret_product, sizeof **ret_product, &p, sizeof p);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product)
{
        free(product);
        return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(
        cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attr, const void *buf, size_t bytes)
{
        struct product *p = (struct product *)product;
        if (mfl_emu_fails("cublasLtMatmulDescSetAttribute"))
                return CUBLAS_STATUS_INVALID_VALUE;
        switch (attr) {
        case CUBLASLT_MATMUL_DESC_TRANSA:
                return PUT(p->transposed[0]);
        case CUBLASLT_MATMUL_DESC_TRANSB:
                return PUT(p->transposed[1]);
        case CUBLASLT_MATMUL_DESC_EPILOGUE:
                return PUT(p->epilogue);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
                return PUT(p->bias);
        case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
                return PUT(p->bias_stride);
        default:
                return CUBLAS_STATUS_INVALID_VALUE;
        }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret_preference)
{
        struct preference p = {.schemes = CUBLASLT_REDUCTION_SCHEME_MASK, .alignment = {256, 256, 256, 256}};
        return create(
                "cublasLtMatmulPreferenceCreate", ret_preference, sizeof **ret_preference, &p, sizeof p);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
        free(preference);
        return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
        cublasLtMatmulPreferenceAttributes_t attr, const void *buf, size_t bytes)
{
        struct preference *p = (struct preference *)preference;
        switch (attr) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
                return PUT(p->workspace);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
                return PUT(p->schemes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
                return PUT(p->alignment[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES]);
        default:
                return CUBLAS_STATUS_INVALID_VALUE;
        }
}

/* ---- what is supported ---- */

static uint64_t element_bytes(cudaDataType type)
{
        return type == CUDA_R_32F ? 4 : 2;
}

static cublasStatus_t check(const struct product *p, const struct layout *a, const struct layout *b,
        const struct layout *c, const struct layout *d)
{
        uint64_t m = p->transposed[0] ? a->cols : a->rows, k = p->transposed[0] ? a->rows : a->cols;
        uint64_t kb = p->transposed[1] ? b->cols : b->rows, n = p->transposed[1] ? b->rows : b->cols;
        const struct layout *all[4] = {a, b, c, d};
        if (m != d->rows || n != d->cols || k != kb || c->rows != d->rows || c->cols != d->cols)
                return CUBLAS_STATUS_INVALID_VALUE;
        for (int i = 0; i < 4; i++) {
                if (all[i]->ld < (int64_t)all[i]->rows || all[i]->batch != d->batch || all[i]->batch < 1)
                        return CUBLAS_STATUS_INVALID_VALUE;
        }
        if (a->type != b->type || c->type != d->type || p->scale != CUDA_R_32F)
                return CUBLAS_STATUS_NOT_SUPPORTED;
        if (p->compute != CUBLAS_COMPUTE_32F &&
                (p->compute != CUBLAS_COMPUTE_32F_FAST_TF32 || a->type != CUDA_R_32F))
                return CUBLAS_STATUS_NOT_SUPPORTED;
        if (d->type != a->type && d->type != CUDA_R_32F)
                return CUBLAS_STATUS_NOT_SUPPORTED;
        return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
        cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
        cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int room,
        cublasLtMatmulHeuristicResult_t results[], int *ret_count)
{
        const struct product *p = (const struct product *)product;
        const struct preference *pref = (const struct preference *)preference;
        if (mfl_emu_fails("cublasLtMatmulAlgoGetHeuristic") || !handle)
                return CUBLAS_STATUS_NOT_INITIALIZED;
        if (room < 1)
                return CUBLAS_STATUS_INVALID_VALUE;
        cublasStatus_t s = check(p, (const struct layout *)a, (const struct layout *)b,
                (const struct layout *)c, (const struct layout *)d);
        if (s)
                return s;
        bool half = ((const struct layout *)a)->type != CUDA_R_32F;
        bool tf32 = p->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
        int n = 0;
        for (int i = 0; i < N_ALGORITHMS && n < room; i++) {
                const struct algorithm *g = &algorithms[i];
                if (!(half         ? g->halves
                            : tf32 ? g->tf32
                                   : g->floats) ||
                        g->workspace > pref->workspace || (g->scheme & ~pref->schemes) ||
                        pref->alignment[0] < 16)
                        continue;
                memset(&results[n], 0, sizeof results[n]);
                results[n].algo.data[0] = (uint64_t)i + 1;
                results[n].workspaceSize = g->workspace;
                results[n++].state = g->refuses ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
        }
        *ret_count = n;
        return n ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static const struct algorithm *find(const cublasLtMatmulAlgo_t *algo)
{
        return algo && algo->data[0] >= 1 && algo->data[0] <= N_ALGORITHMS ? &algorithms[algo->data[0] - 1]
                                                                           : NULL;
}

static cublasStatus_t read_out(const void *from, size_t from_bytes, void *buf, size_t bytes, size_t *written)
{
        if (!buf || bytes != from_bytes)
                return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(buf, from, bytes);
        if (written)
                *written = bytes;
        return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algo,
        cublasLtMatmulAlgoCapAttributes_t attr, void *buf, size_t bytes, size_t *written)
{
        const struct algorithm *g = find(algo);
        if (!g || attr != CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS)
                return CUBLAS_STATUS_INVALID_VALUE;
        return read_out(&g->flags, sizeof g->flags, buf, bytes, written);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
        cublasLtMatmulAlgoConfigAttributes_t attr, void *buf, size_t bytes, size_t *written)
{
        const struct algorithm *g = find(algo);
        if (g && attr == CUBLASLT_ALGO_CONFIG_ID)
                return read_out(&g->id, sizeof g->id, buf, bytes, written);
        if (g && attr == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)
                return read_out(&g->scheme, sizeof g->scheme, buf, bytes, written);
        return CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- execution ---- */

struct call {
        struct product product;
        struct layout a, b, d;
        const char *pa, *pb;
        char *pd, *workspace;
        uint64_t workspace_bytes;
        bool rounds, wrong;
};

static enum mfl_cuda_type own_type(cudaDataType type)
{
        return type == CUDA_R_32F ? MFL_CUDA_F32 : type == CUDA_R_16F ? MFL_CUDA_F16 : MFL_CUDA_BF16;
}

static float element(const struct call *call, const char *p, const struct layout *l, int64_t g, uint64_t i,
        uint64_t j, bool transposed)
{
        int64_t at = g * l->offset + (int64_t)(transposed ? i : j) * l->ld + (int64_t)(transposed ? j : i);
        float v = mfl_load(p, at, own_type(l->type));
        return call->rounds ? mfl_bits_to_float(mfl_to_tf32(v)) : v;
}

static void run(void *data)
{
        const struct call *call = data;
        const struct product *p = &call->product;
        const struct layout *d = &call->d;
        uint64_t k = p->transposed[0] ? call->a.rows : call->a.cols;
        bool relu = (p->epilogue & CUBLASLT_EPILOGUE_RELU) != 0;
        memset(call->workspace, 0x5a, (size_t)call->workspace_bytes);
        for (int64_t g = 0; g < d->batch; g++) {
                for (uint64_t j = 0; j < d->cols; j++) {
                        for (uint64_t i = 0; i < d->rows; i++) {
                                float sum = 0.0f;
                                for (uint64_t r = 0; r < k; r++)
                                        sum += element(call, call->pa, &call->a, g, i, r, p->transposed[0]) *
                                               element(call, call->pb, &call->b, g, r, j, p->transposed[1]);
                                if (p->epilogue & CUBLASLT_EPILOGUE_BIAS)
                                        sum += ((const float *)p->bias)[g * p->bias_stride + (int64_t)i];
                                if (relu)
                                        sum = sum > 0.0f ? sum : 0.0f;
                                if (call->wrong && j == d->cols - 1)
                                        sum += 0.5f;
                                mfl_store(call->pd, g * d->offset + (int64_t)j * d->ld + (int64_t)i, sum,
                                        own_type(d->type));
                        }
                }
        }
        for (uint64_t i = 0; i < call->workspace_bytes; i++)
                mfl_assert(call->workspace[i] == 0x5a);
}

static bool in_memory(const void *p, const struct layout *l)
{
        uint64_t last =
                (uint64_t)(l->batch - 1) * (uint64_t)l->offset + (l->cols - 1) * (uint64_t)l->ld + l->rows;
        return (uintptr_t)p % 16 == 0 &&
               (l->batch == 1 || (uint64_t)l->offset * element_bytes(l->type) % 16 == 0) &&
               mfl_emu_is_device(p, (size_t)(last * element_bytes(l->type)));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void *alpha,
        const void *a, cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
        const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
        cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
        size_t workspace_bytes, cudaStream_t stream)
{
        const struct algorithm *g = find(algo);
        const char *wrong = getenv("MFL_EMU_CUBLASLT_WRONG");
        if (mfl_emu_fails("cublasLtMatmul") || !handle)
                return CUBLAS_STATUS_EXECUTION_FAILED;
        struct call call = {*(struct product *)product, *(struct layout *)a_layout,
                *(struct layout *)b_layout, *(struct layout *)d_layout, a, b, d, workspace, 0, false, false};
        const struct product *p = &call.product;
        cublasStatus_t s = check(p, &call.a, &call.b, (struct layout *)c_layout, &call.d);
        if (s)
                return s;
        if (!g || g->refuses || workspace_bytes < g->workspace || *(const float *)alpha != 1.0f ||
                *(const float *)beta != 0.0f || c != d)
                return CUBLAS_STATUS_INVALID_VALUE;
        if (g->workspace && !mfl_emu_is_device(workspace, (size_t)g->workspace))
                return CUBLAS_STATUS_INVALID_VALUE;
        if (!in_memory(a, &call.a) || !in_memory(b, &call.b) || !in_memory(d, &call.d))
                return CUBLAS_STATUS_INVALID_VALUE;
        if (p->epilogue & CUBLASLT_EPILOGUE_BIAS) {
                uint64_t last = (uint64_t)(call.d.batch - 1) * (uint64_t)p->bias_stride + call.d.rows;
                if (call.d.type != CUDA_R_32F || !mfl_emu_is_device(p->bias, (size_t)(4 * last)))
                        return CUBLAS_STATUS_INVALID_VALUE;
        }
        call.workspace_bytes = g->workspace;
        call.rounds = g->rounds;
        call.wrong = wrong && !strcmp(wrong, "1");
        if (wrong && !strcmp(wrong, "bias"))
                call.product.bias_stride = 0;
        return mfl_emu_enqueue(stream, "cublasLtMatmul", run, &call, sizeof call)
                       ? CUBLAS_STATUS_EXECUTION_FAILED
                       : CUBLAS_STATUS_SUCCESS;
}
