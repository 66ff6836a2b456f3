/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a convolution's primitives, or the own loops that take their place. */
#include "kernels/cpu/conv.h"

#define ROUND_ALONE 65536 /* numbers: fewer are rounded before another thread is awake */

static dnnl_status_t point(dnnl_memory_t memory, const float *at)
{
        return dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)at);
}

static dnnl_status_t reorder(
        dnnl_primitive_t primitive, dnnl_stream_t stream, dnnl_memory_t from, dnnl_memory_t to)
{
        const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
        return dnnl_primitive_execute(primitive, stream, 2, args);
}

static dnnl_status_t round_tensor(dnnl_memory_t from, dnnl_memory_t to, size_t bytes)
{
        void *in = NULL, *out = NULL;
        int64_t n = (int64_t)(bytes / sizeof(float));
        dnnl_status_t s = dnnl_memory_get_data_handle(from, &in);
        s = s ? s : dnnl_memory_get_data_handle(to, &out);
        const float *restrict x = in;
        uint32_t *restrict y = out;
        if (s)
                return s;
#pragma omp parallel for schedule(static) if (n >= ROUND_ALONE)
        for (int64_t i = 0; i < n; i++)
                y[i] = mfl_bf16_bits(x[i]);
        return s;
}

static dnnl_memory_t copy_of(const struct mfl_cpu_staged *staged, dnnl_memory_t own)
{
        dnnl_memory_t same = staged->rounded ? staged->rounded : own;
        return staged->memory ? staged->memory : same;
}

/* The memory that the primitive reads a tensor from. */
static dnnl_status_t read_tensor(
        struct mfl_cpu_staged *staged, dnnl_stream_t stream, dnnl_memory_t own, dnnl_memory_t *ret_memory)
{
        dnnl_memory_t from = staged->rounded ? staged->rounded : own;
        *ret_memory = copy_of(staged, own);
        dnnl_status_t s =
                staged->rounded ? round_tensor(own, staged->rounded, staged->rounded_bytes) : dnnl_success;
        return s || !staged->memory ? s : reorder(staged->reorder, stream, from, staged->memory);
}

static dnnl_memory_t target_of(const struct mfl_cpu_staged *staged, dnnl_memory_t own)
{
        return staged->memory ? staged->memory : own;
}

static dnnl_status_t write_back(struct mfl_cpu_staged *staged, dnnl_stream_t stream, dnnl_memory_t own)
{
        return staged->memory ? reorder(staged->reorder, stream, staged->memory, own) : dnnl_success;
}

/* Executes with those arguments that exist. */
static dnnl_status_t execute(
        dnnl_primitive_t primitive, dnnl_stream_t stream, const dnnl_exec_arg_t *args, int n)
{
        dnnl_exec_arg_t present[6];
        int n_present = 0;
        for (int i = 0; i < n; i++)
                if (args[i].memory)
                        present[n_present++] = args[i];
        return dnnl_primitive_execute(primitive, stream, n_present, present);
}

static dnnl_status_t read_params(struct mfl_cpu_conv *c, dnnl_stream_t stream, const float *weights,
        const float *bias, dnnl_memory_t *ret_weights)
{
        dnnl_status_t s = point(c->m_weights, weights);
        s = s ? s : read_tensor(&c->forward_weights, stream, c->m_weights, ret_weights);
        return s || !c->m_bias ? s : point(c->m_bias, bias);
}

/* From m_src to m_dst. */
static dnnl_status_t forward(struct mfl_cpu_conv *c, dnnl_stream_t stream, dnnl_memory_t weights)
{
        dnnl_memory_t src = NULL;
        dnnl_status_t s = read_tensor(&c->forward_src, stream, c->m_src, &src);
        const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, src}, {DNNL_ARG_WEIGHTS, weights},
                {DNNL_ARG_BIAS, c->m_bias}, {DNNL_ARG_DST, target_of(&c->forward_dst, c->m_dst)},
                {DNNL_ARG_SCRATCHPAD, c->s_forward}};
        s = s ? s : execute(c->forward, stream, args, MFL_ARRAY_SIZE(args));
        return s ? s : write_back(&c->forward_dst, stream, c->m_dst);
}

static void own_forward(struct mfl_cpu_conv *c, const float *weights, const float *bias)
{
        if (c->on_tiles)
                c->loops->products.tile_forward(&c->tile, c->x, weights, bias, c->y);
        else
                c->loops->small_forward(&c->small, c->x, weights, bias, c->y);
}

int mfl_cpu_conv_run_forward(struct mfl_cpu_conv *c, dnnl_stream_t stream, const float *weights,
        const float *bias, struct mfl_error *err)
{
        dnnl_memory_t w = NULL;
        if (c->loops) {
                own_forward(c, weights, bias);
                return 0;
        }
        dnnl_status_t s = read_params(c, stream, weights, bias, &w);
        s = s ? s : forward(c, stream, w);
        return mfl_cpu_conv_fail(s, "convolution", err);
}

int mfl_cpu_conv_run_rows(struct mfl_cpu_conv *c, dnnl_stream_t stream, const float *weights,
        const float *bias, int64_t rows, int64_t in, int64_t out, struct mfl_error *err)
{
        dnnl_memory_t w = NULL;
        if (c->loops) {
                c->small.rows = c->tile.rows = rows;
                own_forward(c, weights, bias);
                return 0;
        }
        dnnl_status_t s = read_params(c, stream, weights, bias, &w);
        for (int64_t r = 0; !s && r < rows; r++) {
                s = point(c->m_src, c->x + r * in);
                s = s ? s : point(c->m_dst, c->y + r * out);
                s = s ? s : forward(c, stream, w);
        }
        return mfl_cpu_conv_fail(s, "convolution", err);
}

int mfl_cpu_conv_run_data(
        struct mfl_cpu_conv *c, dnnl_stream_t stream, const float *weights, struct mfl_error *err)
{
        if (c->on_tiles) {
                c->loops->products.tile_data(&c->tile, weights, c->dy, c->dx);
                return 0;
        }
        if (c->loops) {
                c->loops->small_data(&c->small, weights, c->dy, c->dx);
                return 0;
        }
        dnnl_memory_t dst = NULL, w = NULL;
        dnnl_status_t s = point(c->m_weights, weights);
        s = s ? s : read_tensor(&c->data_dst, stream, c->m_diff_dst, &dst);
        s = s ? s : read_tensor(&c->data_weights, stream, c->m_weights, &w);
        const dnnl_exec_arg_t args[] = {{DNNL_ARG_DIFF_DST, dst}, {DNNL_ARG_WEIGHTS, w},
                {DNNL_ARG_DIFF_SRC, target_of(&c->data_src, c->m_diff_src)},
                {DNNL_ARG_SCRATCHPAD, c->s_data}};
        s = s ? s : execute(c->data, stream, args, MFL_ARRAY_SIZE(args));
        c->dst_copied = !s && c->shares_dst;
        s = s ? s : write_back(&c->data_src, stream, c->m_diff_src);
        return mfl_cpu_conv_fail(s, "convolution's backward", err);
}

int mfl_cpu_conv_run_gradient(
        struct mfl_cpu_conv *c, dnnl_stream_t stream, float *dweights, float *dbias, struct mfl_error *err)
{
        if (c->on_tiles) {
                c->loops->products.tile_gradient(&c->tile, c->x, c->dy, dweights, dbias);
                return 0;
        }
        if (c->loops) {
                c->loops->small_gradient(&c->small, c->x, c->dy, dweights, dbias);
                return 0;
        }
        if (c->block_loops) {
                c->block_loops->block_gradient(&c->block, c->x, c->dy, dweights, dbias);
                return 0;
        }
        dnnl_memory_t src = NULL, dst = NULL;
        dnnl_status_t s = point(c->m_dweights, dweights);
        if (c->m_dbias)
                s = s ? s : point(c->m_dbias, dbias);
        s = s ? s : read_tensor(&c->gradient_src, stream, c->m_src, &src);
        if (c->dst_copied)
                dst = copy_of(&c->gradient_dst, c->m_diff_dst);
        else
                s = s ? s : read_tensor(&c->gradient_dst, stream, c->m_diff_dst, &dst);
        c->dst_copied = false;
        const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, src}, {DNNL_ARG_DIFF_DST, dst},
                {DNNL_ARG_DIFF_WEIGHTS, target_of(&c->gradient_weights, c->m_dweights)},
                {DNNL_ARG_DIFF_BIAS, c->m_dbias}, {DNNL_ARG_SCRATCHPAD, c->s_gradient}};
        s = s ? s : execute(c->gradient, stream, args, MFL_ARRAY_SIZE(args));
        s = s ? s : write_back(&c->gradient_weights, stream, c->m_dweights);
        return mfl_cpu_conv_fail(s, "convolution's gradient", err);
}

int mfl_cpu_conv_to_flat(
        struct mfl_cpu_conv *c, dnnl_stream_t stream, const float *wide, float *flat, struct mfl_error *err)
{
        if (c->on_tiles) {
                memcpy(flat, wide, mfl_md_bytes(mfl_md_in(&c->weights)));
                return 0;
        }
        if (c->loops) {
                mfl_small_conv_to_flat(&c->window, wide, flat);
                return 0;
        }
        dnnl_status_t s = point(c->m_flat, flat);
        s = s ? s : point(c->m_weights, wide);
        s = s ? s : reorder(c->to_flat, stream, c->m_weights, c->m_flat);
        return mfl_cpu_conv_fail(s, "weights", err);
}
