/* SPDX-License-Identifier: Apache-2.0 */
/* A convolution on the emulated device, and the same in double. */
#include "tests/unit/cuda/conv/conv_test.h"

#include "tests/lib/test.h"

#include <math.h>

struct mfl_cuda_conv conv_test_problem(
        enum mfl_precision precision, int groups, int n, int h, int w, int c, int k, int r, int s, int stride)
{
        return (struct mfl_cuda_conv){.groups = groups,
                .n = n,
                .h = h,
                .w = w,
                .c = c,
                .k = k,
                .r = r,
                .s = s,
                .oh = (h + r / 2 * 2 - r) / stride + 1,
                .ow = (w + s / 2 * 2 - s) / stride + 1,
                .stride = {stride, stride},
                .pad = {r / 2, s / 2},
                .dilation = {1, 1},
                .precision = precision};
}

/* The same numbers for a client, whatever G is. */
static void *fill(struct conv_test *test, uint64_t n, enum mfl_cuda_type type, uint32_t seed)
{
        size_t bytes = (size_t)n * (size_t)mfl_cuda_type_bytes(type), groups = (size_t)test->conv.groups;
        void *memory = NULL, *host = malloc(groups * bytes);
        assert_int_equal(cudaMalloc(&memory, groups * bytes), cudaSuccess);
        for (uint64_t i = 0; i < n * groups; i++) {
                uint32_t u = (uint32_t)i * 0x9e3779b9u + seed * 0x85ebca6bu;
                u = (u ^ u >> 15) * 0x2c1b3c6du;
                u = (u ^ u >> 12) * 0x297a2d39u;
                mfl_store(host, (int64_t)i, (float)((int32_t)(u >> 8) - 0x800000) * 0x1p-23f, type);
        }
        assert_int_equal(cudaMemcpy(memory, host, groups * bytes, cudaMemcpyHostToDevice), cudaSuccess);
        free(host);
        return memory;
}

static double *read_back(const void *memory, uint64_t n, enum mfl_cuda_type type)
{
        size_t bytes = (size_t)n * (size_t)mfl_cuda_type_bytes(type);
        void *host = malloc(bytes);
        double *values = malloc((size_t)n * sizeof *values);
        assert_int_equal(cudaMemcpy(host, memory, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
        for (uint64_t i = 0; i < n; i++)
                values[i] = (double)mfl_load(host, (int64_t)i, type);
        free(host);
        return values;
}

static void *output_of(const struct conv_test *test)
{
        return test->pass == MFL_CUDA_FORWARD         ? test->args.y
               : test->pass == MFL_CUDA_BACKWARD_DATA ? test->args.dx
                                                      : test->args.dw;
}

static uint64_t output_n(const struct conv_test *test)
{
        return test->pass == MFL_CUDA_FORWARD         ? test->y_n
               : test->pass == MFL_CUDA_BACKWARD_DATA ? test->x_n
                                                      : test->stride;
}

static enum mfl_cuda_type output_type(const struct conv_test *test)
{
        return test->pass == MFL_CUDA_BACKWARD_WEIGHTS ? MFL_CUDA_F32
                                                       : mfl_cuda_type_of(test->conv.precision);
}

struct operands {
        double *x, *y, *w, *bias, *act_y, *old;
};

/* All products of one client, in whatever role. */
static void multiply(const struct conv_test *test, const struct operands *o, int g, double *result)
{
        const struct mfl_cuda_conv *v = &test->conv;
        const double *x = o->x ? o->x + (uint64_t)g * test->x_n : NULL,
                     *y = o->y ? o->y + (uint64_t)g * test->y_n : NULL,
                     *w = o->w ? o->w + (uint64_t)g * test->stride : NULL;
        for (int n = 0; n < v->n; n++)
                for (int p = 0; p < v->oh; p++)
                        for (int q = 0; q < v->ow; q++)
                                for (int r = 0; r < v->r; r++)
                                        for (int s = 0; s < v->s; s++) {
                                                int h = p * v->stride[0] - v->pad[0] + r * v->dilation[0];
                                                int b = q * v->stride[1] - v->pad[1] + s * v->dilation[1];
                                                if (h < 0 || h >= v->h || b < 0 || b >= v->w)
                                                        continue;
                                                for (int k = 0; k < v->k; k++)
                                                        for (int c = 0; c < v->c; c++) {
                                                                int64_t at_x =
                                                                        (((int64_t)n * v->h + h) * v->w + b) *
                                                                                v->c +
                                                                        c;
                                                                int64_t at_y =
                                                                        (((int64_t)n * v->oh + p) * v->ow +
                                                                                q) *
                                                                                v->k +
                                                                        k;
                                                                int64_t at_w =
                                                                        (((int64_t)k * v->r + r) * v->s + s) *
                                                                                v->c +
                                                                        c;
                                                                if (test->pass == MFL_CUDA_FORWARD)
                                                                        result[at_y] += x[at_x] * w[at_w];
                                                                else if (test->pass == MFL_CUDA_BACKWARD_DATA)
                                                                        result[at_x] += y[at_y] * w[at_w];
                                                                else
                                                                        result[at_w] += y[at_y] * x[at_x];
                                                        }
                                        }
}

static void compute(struct conv_test *test, const struct operands *o)
{
        const struct mfl_cuda_conv *v = &test->conv;
        uint64_t n = output_n(test);
        test->want = calloc((size_t)v->groups * n, sizeof(double));
        test->want_db = calloc((size_t)v->groups * test->stride, sizeof(double));
        for (int g = 0; g < v->groups; g++) {
                double *want = test->want + (uint64_t)g * n;
                multiply(test, o, g, want);
                for (uint64_t i = 0; i < n && test->pass == MFL_CUDA_FORWARD; i++) {
                        want[i] += o->bias ? o->bias[(uint64_t)g * test->stride + i % (uint64_t)v->k] : 0.0;
                        want[i] = (double)mfl_act(test->args.act, (float)want[i]);
                }
                for (uint64_t i = 0; i < n && test->pass == MFL_CUDA_BACKWARD_DATA; i++) {
                        want[i] += o->old ? o->old[(uint64_t)g * n + i] : 0.0;
                        if (o->act_y)
                                want[i] = (double)mfl_act_grad(
                                        test->args.act, (float)o->act_y[(uint64_t)g * n + i], (float)want[i]);
                }
                for (uint64_t i = 0; i < test->y_n && test->pass == MFL_CUDA_BACKWARD_WEIGHTS; i++)
                        test->want_db[(uint64_t)g * test->stride + i % (uint64_t)v->k] +=
                                o->y[(uint64_t)g * test->y_n + i];
        }
}

void conv_test_open(struct conv_test *test, const struct mfl_cuda_conv *v, enum mfl_cuda_pass pass, bool bias,
        enum mfl_cuda_act act, bool add)
{
        enum mfl_cuda_type type = mfl_cuda_type_of(v->precision);
        uint64_t groups = (uint64_t)v->groups;
        struct operands o = {.x = NULL};
        *test = (struct conv_test){.conv = *v, .pass = pass};
        test->x_n = (uint64_t)(v->n * v->h * v->w * v->c);
        test->y_n = (uint64_t)(v->n * v->oh * v->ow * v->k);
        test->w_n = (uint64_t)(v->k * v->r * v->s * v->c);
        test->stride = (test->w_n + (uint64_t)v->k + 63) / 64 * 64;
        test->args = (struct mfl_cuda_conv_args){.act = act,
                .add = add,
                .w_stride = test->stride,
                .p_stride = test->stride,
                .steps.batch = (uint32_t)v->n};
        if (pass != MFL_CUDA_BACKWARD_DATA) {
                test->args.x = fill(test, test->x_n, type, 1);
                o.x = read_back(test->args.x, groups * test->x_n, type);
        }
        if (pass != MFL_CUDA_FORWARD) {
                test->args.dy = fill(test, test->y_n, type, 2);
                o.y = read_back(test->args.dy, groups * test->y_n, type);
        }
        if (pass != MFL_CUDA_BACKWARD_WEIGHTS) {
                test->args.w = fill(test, test->stride, type, 3);
                o.w = read_back(test->args.w, groups * test->stride, type);
        }
        if (pass == MFL_CUDA_FORWARD && bias) {
                test->args.bias = fill(test, test->stride, MFL_CUDA_F32, 4);
                o.bias = read_back(test->args.bias, groups * test->stride, MFL_CUDA_F32);
        }
        if (pass == MFL_CUDA_BACKWARD_WEIGHTS && bias)
                test->args.db = fill(test, test->stride, MFL_CUDA_F32, 5);
        if (pass == MFL_CUDA_BACKWARD_DATA && act != MFL_CUDA_ACT_NONE) {
                test->args.act_y = fill(test, test->x_n, type, 6);
                o.act_y = read_back(test->args.act_y, groups * test->x_n, type);
        }
        void *output = fill(test, output_n(test), output_type(test), 7);
        if (add)
                o.old = read_back(output, groups * output_n(test), output_type(test));
        test->args.y = pass == MFL_CUDA_FORWARD ? output : NULL;
        test->args.dx = pass == MFL_CUDA_BACKWARD_DATA ? output : NULL;
        test->args.dw = pass == MFL_CUDA_BACKWARD_WEIGHTS ? output : NULL;
        compute(test, &o);
        free(o.x);
        free(o.y);
        free(o.w);
        free(o.bias);
        free(o.act_y);
        free(o.old);
        conv_test_reset(test);
}

void conv_test_reset(struct conv_test *test)
{
        size_t bytes = (size_t)test->conv.groups * (size_t)output_n(test) *
                       (size_t)mfl_cuda_type_bytes(output_type(test));
        if (test->args.add) {
                void *old = fill(test, output_n(test), output_type(test), 7);
                assert_int_equal(
                        cudaMemcpy(output_of(test), old, bytes, cudaMemcpyDeviceToDevice), cudaSuccess);
                assert_int_equal(cudaFree(old), cudaSuccess);
        } else {
                assert_int_equal(cudaMemset(output_of(test), 0xff, bytes), cudaSuccess);
        }
        /* Streams that do not wait for the default one must find it done. */
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

static double error_of(const struct conv_test *test, const void *memory, enum mfl_cuda_type type,
        const double *want, uint64_t n, uint64_t n_used)
{
        double *got = read_back(memory, (uint64_t)test->conv.groups * n, type), error = 0.0, sum = 0.0;
        for (uint64_t i = 0; i < (uint64_t)test->conv.groups * n; i++) {
                if (i % n >= n_used) { /* between params: nobody writes there */
                        continue;
                }
                error += (got[i] - want[i]) * (got[i] - want[i]);
                sum += want[i] * want[i];
        }
        free(got);
        return sqrt(error / sum);
}

double conv_test_error(const struct conv_test *test)
{
        uint64_t n = output_n(test);
        return error_of(test, output_of(test), output_type(test), test->want, n,
                test->pass == MFL_CUDA_BACKWARD_WEIGHTS ? test->w_n : n);
}

double conv_test_db_error(const struct conv_test *test)
{
        return error_of(
                test, test->args.db, MFL_CUDA_F32, test->want_db, test->stride, (uint64_t)test->conv.k);
}

void *conv_test_result(const struct conv_test *test, int g, uint64_t *ret_bytes)
{
        uint64_t element = (uint64_t)mfl_cuda_type_bytes(output_type(test)), n = output_n(test);
        uint64_t bytes = element * (test->pass == MFL_CUDA_BACKWARD_WEIGHTS ? test->w_n : n);
        void *host = malloc((size_t)bytes);
        assert_int_equal(cudaMemcpy(host, (const char *)output_of(test) + (uint64_t)g * n * element,
                                 (size_t)bytes, cudaMemcpyDeviceToHost),
                cudaSuccess);
        *ret_bytes = bytes;
        return host;
}

void conv_test_close(struct conv_test *test)
{
        void *const all[] = {(void *)(uintptr_t)test->args.x, (void *)(uintptr_t)test->args.dy,
                (void *)(uintptr_t)test->args.w, (void *)(uintptr_t)test->args.bias, test->args.db,
                (void *)(uintptr_t)test->args.act_y, output_of(test)};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
                assert_int_equal(cudaFree(all[i]), cudaSuccess);
        free(test->want);
        free(test->want_db);
}

double conv_test_bound(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, bool low_weights)
{
        bool result_float = pass == MFL_CUDA_BACKWARD_WEIGHTS && !low_weights;
        switch (conv->precision) {
        case MFL_PRECISION_FP32:
                return 2e-6; /* 2^-24 * sqrt(1000), and room */
        case MFL_PRECISION_TF32:
                return 5e-4; /* both operands rounded to 11 bits: 2^-11.7 */
        case MFL_PRECISION_BF16:
                return result_float ? 2e-6 : 4e-3; /* 2^-9, twice where something is not fused */
        default:
                return result_float ? 2e-6 : 5e-4;
        }
}
