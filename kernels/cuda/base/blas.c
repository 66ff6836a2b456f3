/* SPDX-License-Identifier: Apache-2.0 */
/* Dense layers by cuBLASLt's strided-batched products; blas.h has the shapes. */
#include "kernels/cuda/base/blas.h"

#include <cublasLt.h>
#include <stdio.h>

#define RESULTS_MAX 16
#define ALIGNMENT 16u

struct mfl_blas {
        cublasLtHandle_t handle;
};

enum operand { A, B, D, OPERAND_COUNT_ };

struct mfl_blas_plan {
        struct mfl_blas *blas;
        struct mfl_blas_want want;
        cublasLtMatmulDesc_t product;
        cublasLtMatrixLayout_t layouts[OPERAND_COUNT_];
        cublasLtMatmulAlgo_t algorithm;
        uint64_t workspace;
        int id; /* of the algorithm */
};

/* One operand, column-major: rows x cols with the leading dimension rows. */
struct matrix {
        cudaDataType type;
        uint64_t rows, cols;
        uint64_t group; /* elements from a group's to the next's; for a weight: as if it were packed */
        cublasOperation_t transposed;
};

static int fail(struct mfl_error *err, int code, cublasStatus_t status, const char *what)
{
        return mfl_fail(err, code, "cuBLASLt: %s: %s (%d)", what, cublasLtGetStatusName(status), (int)status);
}

bool mfl_blas_can(const struct mfl_cuda_conv *v)
{
        return v->r == 1 && v->s == 1 && v->stride[0] == 1 && v->stride[1] == 1 && v->pad[0] == 0 &&
               v->pad[1] == 0 && v->oh == v->h && v->ow == v->w;
}

static cudaDataType data_type(enum mfl_precision precision)
{
        switch (mfl_cuda_type_of(precision)) {
        case MFL_CUDA_BF16:
                return CUDA_R_16BF;
        case MFL_CUDA_F16:
                return CUDA_R_16F;
        default:
                return CUDA_R_32F;
        }
}

/* The table at the top of blas.h. A packed weight's stride is rounded up so that every group's weight stays
 * aligned. */
static void describe(
        const struct mfl_cuda_conv *v, enum mfl_cuda_pass pass, struct matrix ret_matrices[OPERAND_COUNT_])
{
        cudaDataType type = data_type(v->precision);
        uint64_t m = (uint64_t)v->n * (uint64_t)v->h * (uint64_t)v->w, c = (uint64_t)v->c, k = (uint64_t)v->k,
                 packed = (c * k + 7) / 8 * 8;
        const struct matrix w = {type, c, k, packed, CUBLAS_OP_N}, x = {type, c, m, c * m, CUBLAS_OP_N},
                            y = {type, k, m, k * m, CUBLAS_OP_N};
        ret_matrices[A] = pass == MFL_CUDA_BACKWARD_WEIGHTS ? x : w;
        ret_matrices[B] = pass == MFL_CUDA_FORWARD ? x : y;
        ret_matrices[D] = pass == MFL_CUDA_FORWARD ? y : pass == MFL_CUDA_BACKWARD_DATA ? x : w;
        if (pass == MFL_CUDA_FORWARD)
                ret_matrices[A].transposed = CUBLAS_OP_T;
        if (pass == MFL_CUDA_BACKWARD_WEIGHTS) {
                ret_matrices[B].transposed = CUBLAS_OP_T;
                ret_matrices[D].type = CUDA_R_32F;
        }
}

static int make_layout(
        const struct matrix *m, int groups, cublasLtMatrixLayout_t *ret_layout, struct mfl_error *err)
{
        int32_t count = groups;
        int64_t offset = (int64_t)m->group;
        cublasStatus_t s =
                cublasLtMatrixLayoutCreate(ret_layout, m->type, m->rows, m->cols, (int64_t)m->rows);
        if (!s)
                s = cublasLtMatrixLayoutSetAttribute(
                        *ret_layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
        if (!s)
                s = cublasLtMatrixLayoutSetAttribute(
                        *ret_layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset, sizeof offset);
        return s ? fail(err, MFL_NOT_FOUND, s, "matrix layout") : 0;
}

static cublasStatus_t set(
        cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, const void *v, size_t bytes)
{
        return cublasLtMatmulDescSetAttribute(product, attribute, v, bytes);
}

static cublasStatus_t set_bias(struct mfl_blas_plan *plan, const float *bias, uint64_t stride)
{
        int64_t batch_stride = (int64_t)stride;
        cublasStatus_t s = set(plan->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
        return s ? s
                 : set(plan->product, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, &batch_stride,
                           sizeof batch_stride);
}

static int make_product(struct mfl_blas_plan *plan, const struct mfl_cuda_conv *v,
        const struct matrix matrices[OPERAND_COUNT_], struct mfl_error *err)
{
        const struct mfl_blas_want *want = &plan->want;
        int32_t ta = (int32_t)matrices[A].transposed, tb = (int32_t)matrices[B].transposed;
        uint32_t epilogue = want->bias && want->relu ? CUBLASLT_EPILOGUE_RELU_BIAS
                            : want->bias             ? CUBLASLT_EPILOGUE_BIAS
                            : want->relu             ? CUBLASLT_EPILOGUE_RELU
                                                     : CUBLASLT_EPILOGUE_DEFAULT;
        cublasComputeType_t compute =
                v->precision == MFL_PRECISION_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
        cublasStatus_t s = cublasLtMatmulDescCreate(&plan->product, compute, CUDA_R_32F);
        if (!s)
                s = set(plan->product, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
        if (!s)
                s = set(plan->product, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
        if (!s)
                s = set(plan->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        /* The heuristics do not read it but check its alignment. */
        if (!s && want->bias)
                s = set_bias(plan, (const float *)(uintptr_t)ALIGNMENT, ((uint64_t)v->k + 3) / 4 * 4);
        return s ? fail(err, MFL_NOT_FOUND, s, "matmul descriptor") : 0;
}

/* ---- algorithms ---- */

static cublasStatus_t set_preference(cublasLtMatmulPreference_t preference)
{
        static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
        uint64_t workspace = MFL_BLAS_WORKSPACE_MAX;
        uint32_t alignment = ALIGNMENT, schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        cublasStatus_t s = cublasLtMatmulPreferenceSetAttribute(
                preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
        if (!s)
                s = cublasLtMatmulPreferenceSetAttribute(
                        preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(aligned) && !s; i++)
                s = cublasLtMatmulPreferenceSetAttribute(
                        preference, aligned[i], &alignment, sizeof alignment);
        return s;
}

/* What the algorithm reports about itself agrees with the precision. */
static bool algorithm_fits(const cublasLtMatmulAlgo_t *algorithm, enum mfl_precision precision)
{
        uint64_t flags = 0;
        size_t n;
        uint32_t scheme = 0;
        if (cublasLtMatmulAlgoCapGetAttribute(
                    algorithm, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &flags, sizeof flags, &n))
                return false;
        if (cublasLtMatmulAlgoConfigGetAttribute(
                    algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &n))
                return false;
        if (scheme & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
                return false;
        if (flags & (CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F | CUBLASLT_NUMERICAL_IMPL_FLAGS_GAUSSIAN))
                return false;
        if (precision == MFL_PRECISION_FP32)
                return !(flags & (CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK |
                                         CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32 |
                                         CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F |
                                         CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF));
        if (precision == MFL_PRECISION_TF32)
                return !(flags & (CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F |
                                         CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF));
        return true;
}

static int choose(struct mfl_blas_plan *plan, enum mfl_precision precision,
        const cublasLtMatmulHeuristicResult_t *results, int n, struct mfl_error *err)
{
        int skip = plan->want.rank;
        for (int i = 0; i < n; i++) {
                const cublasLtMatmulHeuristicResult_t *result = &results[i];
                int32_t id = -1;
                size_t bytes;
                if (result->state || result->workspaceSize > MFL_BLAS_WORKSPACE_MAX ||
                        !algorithm_fits(&result->algo, precision) || skip-- > 0)
                        continue;
                cublasLtMatmulAlgoConfigGetAttribute(
                        &result->algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &bytes);
                plan->algorithm = result->algo;
                plan->workspace = result->workspaceSize;
                plan->id = id;
                return 0;
        }
        return mfl_fail(err, MFL_NOT_FOUND, "cuBLASLt: of %d algorithms named, %d or fewer fit the precision",
                n, plan->want.rank);
}

static int search(struct mfl_blas_plan *plan, enum mfl_precision precision, struct mfl_error *err)
{
        cublasLtMatmulHeuristicResult_t results[RESULTS_MAX];
        cublasLtMatmulPreference_t preference = NULL;
        int n = 0;
        cublasStatus_t s = cublasLtMatmulPreferenceCreate(&preference);
        if (s)
                return fail(err, -EIO, s, "matmul preference");
        s = set_preference(preference);
        if (!s)
                s = cublasLtMatmulAlgoGetHeuristic(plan->blas->handle, plan->product, plan->layouts[A],
                        plan->layouts[B], plan->layouts[D], plan->layouts[D], preference, RESULTS_MAX,
                        results, &n);
        int r = s ? fail(err, MFL_NOT_FOUND, s, "heuristics") : choose(plan, precision, results, n, err);
        cublasLtMatmulPreferenceDestroy(preference);
        return r;
}

/* ---- the public functions ---- */

int mfl_blas_open(struct mfl_blas **ret_blas, struct mfl_error *err)
{
        struct mfl_blas *blas = mfl_calloc(1, sizeof(*blas));
        if (!blas)
                return mfl_fail_memory(err, sizeof(*blas), "a cuBLASLt handle");
        cublasStatus_t s = cublasLtCreate(&blas->handle);
        if (s) {
                free(blas);
                return fail(err, -EIO, s, "cublasLtCreate");
        }
        *ret_blas = blas;
        return 0;
}

void mfl_blas_close(struct mfl_blas *blas)
{
        if (!blas)
                return;
        cublasLtDestroy(blas->handle);
        free(blas);
}

int mfl_blas_plan_new(struct mfl_blas *blas, const struct mfl_cuda_conv *conv,
        const struct mfl_blas_want *want, struct mfl_blas_plan **ret_plan, struct mfl_error *err)
{
        struct matrix matrices[OPERAND_COUNT_];
        mfl_assert(mfl_blas_can(conv));
        mfl_assert(want->pass == MFL_CUDA_FORWARD || (!want->bias && !want->relu));
        if (want->bias && mfl_cuda_type_of(conv->precision) != MFL_CUDA_F32)
                return mfl_fail(err, MFL_NOT_FOUND, "cuBLASLt: a float bias on a 16-bit result");
        struct mfl_blas_plan *plan = mfl_calloc(1, sizeof(*plan));
        if (!plan)
                return mfl_fail_memory(err, sizeof(*plan), "a cuBLASLt plan");
        plan->blas = blas;
        plan->want = *want;
        describe(conv, want->pass, matrices);
        int r = make_product(plan, conv, matrices, err);
        for (int i = 0; i < OPERAND_COUNT_ && !r; i++)
                r = make_layout(&matrices[i], conv->groups, &plan->layouts[i], err);
        if (!r)
                r = search(plan, conv->precision, err);
        if (r) {
                mfl_blas_plan_free(plan);
                return r;
        }
        *ret_plan = plan;
        return 0;
}

void mfl_blas_plan_free(struct mfl_blas_plan *plan)
{
        if (!plan)
                return;
        for (int i = 0; i < OPERAND_COUNT_; i++) {
                if (plan->layouts[i])
                        cublasLtMatrixLayoutDestroy(plan->layouts[i]);
        }
        if (plan->product)
                cublasLtMatmulDescDestroy(plan->product);
        free(plan);
}

uint64_t mfl_blas_plan_workspace(const struct mfl_blas_plan *plan)
{
        return plan->workspace;
}

int mfl_blas_plan_algorithm(const struct mfl_blas_plan *plan)
{
        return plan->id;
}

int mfl_blas_plan_run(struct mfl_blas_plan *plan, const void *x_or_dy, const void *w_or_x, const float *bias,
        void *out, uint64_t w_stride, uint64_t p_stride, void *workspace, cudaStream_t stream,
        struct mfl_error *err)
{
        enum operand weights = plan->want.pass == MFL_CUDA_BACKWARD_WEIGHTS ? D : A;
        int64_t offset = (int64_t)w_stride;
        float alpha = 1.0f, beta = 0.0f;
        mfl_assert(x_or_dy && w_or_x && out);
        mfl_assert(
                ((uintptr_t)x_or_dy | (uintptr_t)w_or_x | (uintptr_t)out | (uintptr_t)bias) % ALIGNMENT == 0);
        cublasStatus_t s = cublasLtMatrixLayoutSetAttribute(
                plan->layouts[weights], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset, sizeof offset);
        if (!s && plan->want.bias)
                s = set_bias(plan, bias, p_stride);
        /* A is w or x, B the other tensor: x or dy */
        if (!s)
                s = cublasLtMatmul(plan->blas->handle, plan->product, &alpha, w_or_x, plan->layouts[A],
                        x_or_dy, plan->layouts[B], &beta, out, plan->layouts[D], out, plan->layouts[D],
                        &plan->algorithm, workspace, plan->workspace, stream);
        return s ? fail(err, -EIO, s, "cublasLtMatmul") : 0;
}
