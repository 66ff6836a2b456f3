/* SPDX-License-Identifier: Apache-2.0 */
/* Creation of oneDNN convolutions, with one layout throughout where the library is fast in it. */
#include "kernels/cpu/conv.h"

#define STAGE_ALIGN ((size_t)64)

int mfl_cpu_conv_fail(dnnl_status_t status, const char *what, struct mfl_error *err)
{
        if (status == dnnl_success)
                return 0;
        if (status == dnnl_out_of_memory)
                return mfl_fail(err, -ENOMEM, "cpu: %s: out of memory", what);
        if (status == dnnl_unimplemented || status == dnnl_invalid_arguments)
                return mfl_fail(err, MFL_INVALID,
                        "cpu: oneDNN does not support this %s; use the reference backend", what);
        return mfl_fail(err, -EIO, "cpu: %s: oneDNN status %d", what, (int)status);
}

/* Scratchpads belong to the network; the primitive applies a ReLU that follows it. */
static dnnl_status_t attr_new(bool relu, dnnl_primitive_attr_t *ret_attr)
{
        dnnl_post_ops_t ops = NULL;
        dnnl_status_t s = dnnl_primitive_attr_create(ret_attr);
        if (!s)
                s = dnnl_primitive_attr_set_scratchpad_mode(*ret_attr, dnnl_scratchpad_mode_user);
        if (s || !relu)
                return s;
        s = dnnl_post_ops_create(&ops);
        if (!s)
                s = mfl_post_relu(ops);
        if (!s)
                s = dnnl_primitive_attr_set_post_ops(*ret_attr, ops);
        dnnl_post_ops_destroy(ops);
        return s;
}

static MFL_MD_IN query(const_dnnl_primitive_desc_t pd, dnnl_query_t what)
{
        return dnnl_primitive_desc_query_md(pd, what, 0);
}

/* A fallback implementation of plain loops is hundreds of times slower. For several groups in plain order,
 * matrix products of one group after another, with one or a few channels each, are tens of times slower. */
static bool is_slow(const struct mfl_cpu_conv *conv, dnnl_primitive_desc_t pd)
{
        const char *name = "";
        dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
        return !strncmp(name, "ref", 3) || (conv->window.groups > 1 && strstr(name, "gemm"));
}

enum kind { FORWARD, DATA, GRADIENT };

/* One attempt at a primitive; an `any` flag leaves the layout to the library. */
struct attempt {
        bool any_src, any_weights, any_dst;
};

struct making {
        dnnl_engine_t engine;
        enum kind kind;
        bool training;
        enum mfl_cpu_bf16 bf16; /* of this primitive */
        struct mfl_md any_src, any_weights, any_dst;
        struct mfl_dnnl_conv geometry;
        dnnl_primitive_attr_t attr;
};

static dnnl_status_t create(const struct mfl_cpu_conv *conv, const struct making *m, const struct attempt *a,
        dnnl_primitive_desc_t *ret_pd)
{
        bool low = m->bf16 == MFL_CPU_BF16_LIBRARY;
        const struct mfl_md *own_src = low && m->kind != DATA ? &conv->low_src : &conv->src;
        const struct mfl_md *own_dst = low && m->kind != FORWARD ? &conv->low_dst : &conv->dst;
        MFL_MD_IN src = mfl_md_in(a->any_src ? &m->any_src : own_src);
        MFL_MD_IN dst = mfl_md_in(a->any_dst ? &m->any_dst : own_dst);
        MFL_MD_IN weights = mfl_md_in(a->any_weights ? &m->any_weights : &conv->weights);
        MFL_MD_IN bias = conv->has_bias ? mfl_md_in(&conv->bias) : NULL;
        const struct mfl_dnnl_conv *c = &m->geometry;
        switch (m->kind) {
        case FORWARD:
                return (conv->transposed ? mfl_deconv_forward : mfl_conv_forward)(
                        ret_pd, m->engine, m->training, src, weights, bias, dst, c, m->attr);
        case DATA:
                return (conv->transposed ? mfl_deconv_backward_data : mfl_conv_backward_data)(
                        ret_pd, m->engine, src, weights, dst, c, conv->hint, m->attr);
        default:
                return (conv->transposed ? mfl_deconv_backward_weights : mfl_conv_backward_weights)(
                        ret_pd, m->engine, src, weights, bias, dst, c, conv->hint, m->attr);
        }
}

/* The first attempt that is fast; else the last one that exists. */
static dnnl_status_t create_best(const struct mfl_cpu_conv *conv, const struct making *m,
        const struct attempt *attempts, int n, dnnl_primitive_desc_t *ret_pd)
{
        dnnl_primitive_desc_t best = NULL;
        dnnl_status_t status = dnnl_unimplemented;
        for (int i = 0; i < n; i++) {
                dnnl_primitive_desc_t pd = NULL;
                dnnl_status_t s = create(conv, m, &attempts[i], &pd);
                if (s) {
                        status = s;
                        continue;
                }
                if (best)
                        dnnl_primitive_desc_destroy(best);
                best = pd;
                if (!is_slow(conv, pd))
                        break;
        }
        *ret_pd = best;
        return best ? dnnl_success : status;
}

static void making_deinit(struct making *m)
{
        mfl_md_free(&m->any_src);
        mfl_md_free(&m->any_weights);
        mfl_md_free(&m->any_dst);
        if (m->attr)
                dnnl_primitive_attr_destroy(m->attr);
        m->attr = NULL;
}

/* With several groups, weights have a leading dimension of groups. A transposed convolution's weights are
 * also described with outputs before inputs, however they lie. */
static int dims_of(
        const struct mfl_cpu_conv *conv, int64_t batch, dnnl_dims_t src, dnnl_dims_t weights, dnnl_dims_t dst)
{
        const struct mfl_window *v = &conv->window;
        const int64_t s[] = {batch, v->c, v->h, v->w}, d[] = {batch, v->o, v->oh, v->ow};
        const int64_t w[] = {v->groups, v->o / v->groups, v->c / v->groups, v->k[0], v->k[1]};
        int ahead = v->groups == 1;
        for (int i = 0; i < 4; i++) {
                src[i] = s[i];
                dst[i] = d[i];
        }
        for (int i = ahead; i < 5; i++)
                weights[i - ahead] = w[i];
        return 5 - ahead;
}

/* The format of the weights in the flat vector. */
static dnnl_format_tag_t flat_tag(const struct mfl_cpu_conv *conv)
{
        if (conv->transposed)
                return conv->window.groups > 1 ? dnnl_giohw : dnnl_iohw;
        return conv->window.groups > 1 ? dnnl_goihw : dnnl_oihw;
}

static dnnl_status_t making_init(struct making *m, dnnl_engine_t engine, enum kind kind,
        const struct mfl_cpu_conv *conv, int64_t batch, bool relu)
{
        const struct mfl_window *v = &conv->window;
        const int64_t in[] = {v->h, v->w}, out[] = {v->oh, v->ow};
        dnnl_dims_t src, weights, dst;
        int n_weights = dims_of(conv, batch, src, weights, dst);
        m->engine = engine;
        m->kind = kind;
        for (int a = 0; a < 2; a++) {
                int64_t whole = (in[a] - 1) * v->s[a] + v->d[a] * (v->k[a] - 1) + 1; /* without padding */
                m->geometry.strides[a] = v->s[a];
                m->geometry.dilates[a] = v->d[a] - 1;
                m->geometry.padding[a] = v->p[a];
                m->geometry.padding_r[a] = conv->transposed ? whole - v->p[a] - out[a] : v->p[a];
        }
        /* What the primitive reads is in the low precision; what it writes is float. */
        dnnl_data_type_t low = m->bf16 == MFL_CPU_BF16_LIBRARY ? dnnl_bf16 : dnnl_f32;
        dnnl_status_t s =
                mfl_md_of_type(&m->any_src, 4, src, kind == DATA ? dnnl_f32 : low, dnnl_format_tag_any);
        s = s ? s
              : mfl_md_of_type(&m->any_weights, n_weights, weights, kind == GRADIENT ? dnnl_f32 : low,
                        dnnl_format_tag_any);
        s = s ? s
              : mfl_md_of_type(&m->any_dst, 4, dst, kind == FORWARD ? dnnl_f32 : low, dnnl_format_tag_any);
        return s ? s : attr_new(relu, &m->attr);
}

/* Makes a primitive in the convolution's precision. Where the library has no fast bfloat16 one, it takes
 * rounded floats. */
static dnnl_status_t make(struct making *m, dnnl_engine_t engine, enum kind kind,
        const struct mfl_cpu_conv *conv, int64_t batch, bool relu, const struct attempt *attempts, int n,
        dnnl_primitive_desc_t *ret_pd)
{
        m->bf16 = conv->bf16 == MFL_CPU_BF16_NONE || conv->bf16 == MFL_CPU_BF16_LIBRARY
                          ? conv->bf16
                          : MFL_CPU_BF16_ROUNDED;
        dnnl_status_t s = making_init(m, engine, kind, conv, batch, relu);
        s = s ? s : create_best(conv, m, attempts, n, ret_pd);
        if (m->bf16 != MFL_CPU_BF16_LIBRARY || s == dnnl_out_of_memory || (!s && !is_slow(conv, *ret_pd)))
                return s;
        if (*ret_pd)
                dnnl_primitive_desc_destroy(*ret_pd);
        *ret_pd = NULL;
        making_deinit(m);
        m->bf16 = MFL_CPU_BF16_ROUNDED;
        s = making_init(m, engine, kind, conv, batch, relu);
        return s ? s : create_best(conv, m, attempts, n, ret_pd);
}

static dnnl_status_t memory_new(dnnl_engine_t engine, MFL_MD_IN md, void *handle, dnnl_memory_t *ret_memory)
{
        return dnnl_memory_create(ret_memory, md, engine, handle);
}

static dnnl_status_t reorder_new(
        dnnl_engine_t engine, MFL_MD_IN from, MFL_MD_IN to, dnnl_primitive_t *ret_reorder)
{
        dnnl_primitive_desc_t pd = NULL;
        dnnl_status_t s = dnnl_reorder_primitive_desc_create(&pd, from, engine, to, engine, NULL);
        if (!s)
                s = dnnl_primitive_create(ret_reorder, pd);
        if (pd)
                dnnl_primitive_desc_destroy(pd);
        return s;
}

/* inward: the primitive reads the tensor, in its low precision; else it writes the tensor. */
static dnnl_status_t stage(
        struct mfl_cpu_staged *staged, const struct making *m, MFL_MD_IN own, MFL_MD_IN wanted, bool inward)
{
        bool shared = m->bf16 != MFL_CPU_BF16_NONE;
        dnnl_status_t s = dnnl_success;
        if (inward && m->bf16 == MFL_CPU_BF16_ROUNDED) {
                staged->rounded_bytes = mfl_md_bytes(own);
                s = memory_new(m->engine, own, DNNL_MEMORY_NONE, &staged->rounded);
        }
        if (s || mfl_md_same(own, wanted))
                return s;
        staged->memory_bytes = shared ? mfl_md_bytes(wanted) : 0;
        s = memory_new(m->engine, wanted, shared ? DNNL_MEMORY_NONE : DNNL_MEMORY_ALLOCATE, &staged->memory);
        return s ? s : reorder_new(m->engine, inward ? own : wanted, inward ? wanted : own, &staged->reorder);
}

/* Places a primitive's copies one after another; base NULL: only counts their bytes. Raises the convolution's
 * staging_bytes. */
static dnnl_status_t place(struct mfl_cpu_conv *conv, struct mfl_cpu_staged *const staged[3], char *base)
{
        size_t at = 0;
        dnnl_status_t s = dnnl_success;
        for (int i = 0; i < 3; i++) {
                const struct mfl_cpu_staged *v = staged[i];
                const struct {
                        dnnl_memory_t memory;
                        size_t bytes;
                } parts[] = {{v->rounded, v->rounded_bytes}, {v->memory, v->memory_bytes}};
                for (int k = 0; k < 2; k++) {
                        if (base && parts[k].bytes)
                                s = s ? s : dnnl_memory_set_data_handle(parts[k].memory, base + at);
                        at += (parts[k].bytes + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
                }
        }
        conv->staging_bytes = MFL_MAX(conv->staging_bytes, at);
        return s;
}

/* Both begin with the output's gradient, so that they can share it. */
static dnnl_status_t place_all(struct mfl_cpu_conv *c, char *base)
{
        struct mfl_cpu_staged *const forward[] = {&c->forward_src, &c->forward_weights, &c->forward_dst};
        struct mfl_cpu_staged *const data[] = {&c->data_dst, &c->data_weights, &c->data_src};
        struct mfl_cpu_staged *const gradient[] = {&c->gradient_dst, &c->gradient_src, &c->gradient_weights};
        dnnl_status_t s = place(c, forward, base);
        s = s ? s : place(c, data, base);
        return s ? s : place(c, gradient, base);
}

static dnnl_status_t scratch_new(
        struct mfl_cpu_conv *conv, dnnl_engine_t engine, dnnl_primitive_desc_t pd, dnnl_memory_t *ret_memory)
{
        MFL_MD_IN md = query(pd, dnnl_query_scratchpad_md);
        if (mfl_md_bytes(md) > conv->scratch_bytes)
                conv->scratch_bytes = mfl_md_bytes(md);
        return mfl_md_bytes(md) ? memory_new(engine, md, DNNL_MEMORY_NONE, ret_memory) : dnnl_success;
}

/* Takes the output's layout that forward chose, if our own loops know it; else plain order, with a reorder.
 */
static dnnl_status_t adopt_output(struct mfl_cpu_conv *conv, MFL_MD_IN chosen, const struct mfl_shape *shape,
        int64_t batch, struct mfl_layout *ret_out)
{
        dnnl_dims_t src, weights, dst;
        dnnl_format_tag_t tag = dnnl_nchw;
        dims_of(conv, batch, src, weights, dst);
        mfl_layout_tag(chosen, dst, &tag);
        *ret_out = mfl_layout_of(shape, tag);
        dnnl_status_t s = mfl_md_of_type(&conv->low_dst, 4, dst, dnnl_bf16, tag);
        return s ? s : mfl_md_by_tag(&conv->dst, 4, dst, tag);
}

static dnnl_status_t flat_new(struct mfl_cpu_conv *conv, dnnl_engine_t engine)
{
        dnnl_dims_t src, weights, dst;
        struct mfl_md flat = {0};
        int n_weights = dims_of(conv, 1, src, weights, dst);
        dnnl_status_t s = mfl_md_by_tag(&flat, n_weights, weights, flat_tag(conv));
        s = s ? s : memory_new(engine, mfl_md_in(&flat), DNNL_MEMORY_NONE, &conv->m_flat);
        s = s ? s : reorder_new(engine, mfl_md_in(&conv->weights), mfl_md_in(&flat), &conv->to_flat);
        mfl_md_free(&flat);
        return s;
}

/* Takes the weights' layout that forward chose; the flat one in a bf16 network, because the library makes bfloat16
 * weights from it fastest, and for shared weights. */
static dnnl_status_t adopt_weights(struct mfl_cpu_conv *conv)
{
        dnnl_dims_t src, weights, dst;
        if (!conv->flat)
                return mfl_md_copy(&conv->weights, query(conv->hint, dnnl_query_weights_md));
        int n_weights = dims_of(conv, 1, src, weights, dst);
        return mfl_md_by_tag(&conv->weights, n_weights, weights, flat_tag(conv));
}

static dnnl_status_t init_forward(struct mfl_cpu_conv *conv, const struct making *m,
        const struct mfl_shape *shape, int64_t batch, struct mfl_layout *ret_out)
{
        dnnl_status_t s = adopt_weights(conv);
        s = s ? s : adopt_output(conv, query(conv->hint, dnnl_query_dst_md), shape, batch, ret_out);
        s = s ? s
              : stage(&conv->forward_src, m, mfl_md_in(&conv->src), query(conv->hint, dnnl_query_src_md),
                        true);
        s = s ? s
              : stage(&conv->forward_weights, m, mfl_md_in(&conv->weights),
                        query(conv->hint, dnnl_query_weights_md), true);
        s = s ? s
              : stage(&conv->forward_dst, m, mfl_md_in(&conv->dst), query(conv->hint, dnnl_query_dst_md),
                        false);
        s = s ? s : dnnl_primitive_create(&conv->forward, conv->hint);
        s = s ? s : scratch_new(conv, m->engine, conv->hint, &conv->s_forward);
        s = s ? s : memory_new(m->engine, mfl_md_in(&conv->weights), DNNL_MEMORY_NONE, &conv->m_weights);
        s = s ? s : memory_new(m->engine, mfl_md_in(&conv->weights), DNNL_MEMORY_NONE, &conv->m_dweights);
        if (conv->has_bias) {
                s = s ? s : memory_new(m->engine, mfl_md_in(&conv->bias), DNNL_MEMORY_NONE, &conv->m_bias);
                s = s ? s : memory_new(m->engine, mfl_md_in(&conv->bias), DNNL_MEMORY_NONE, &conv->m_dbias);
        }
        return s ? s : flat_new(conv, m->engine);
}

int mfl_cpu_conv_init(struct mfl_cpu_conv *conv, dnnl_engine_t engine, const struct mfl_loops *loops,
        const struct mfl_graph *graph, int layer, const struct mfl_net_options *options,
        enum mfl_cpu_bf16 bf16, const struct mfl_layout *in, bool relu, struct mfl_layout *ret_out,
        struct mfl_error *err)
{
        static const struct attempt attempts[] = {{false, true, true}, {true, true, true}};
        struct making m = {.training = options->training};
        dnnl_dims_t src, weights, dst;
        conv->window = mfl_window_of(graph, layer);
        conv->transposed = graph->layers[layer].op == MFL_OP_CONVTRANSPOSE2D;
        conv->has_bias = graph->layers[layer].param_bias >= 0;
        conv->flat = bf16 || graph->params[graph->layers[layer].param_weight].n_uses > 1;
        if (!conv->flat && !conv->transposed && mfl_small_conv_takes(&conv->window, in, loops->lanes))
                return mfl_small_conv_init(
                        conv, loops, &graph->layers[layer].out, options, relu, ret_out, err);
        if (bf16 && !conv->transposed && mfl_tile_conv_takes(&conv->window, loops))
                return mfl_tile_conv_init(
                        conv, loops, in, &graph->layers[layer].out, options, relu, ret_out, err);
        dims_of(conv, options->batch, src, weights, dst);
        const dnnl_dims_t outputs = {conv->window.o};
        conv->bf16 = bf16;
        dnnl_status_t s = mfl_md_by_tag(&conv->src, 4, src, in->tag);
        s = s ? s : mfl_md_of_type(&conv->low_src, 4, src, dnnl_bf16, in->tag);
        s = s ? s : mfl_md_by_tag(&conv->bias, 1, outputs, dnnl_a);
        s = s ? s
              : make(&m, engine, FORWARD, conv, options->batch, relu, attempts, MFL_ARRAY_SIZE(attempts),
                        &conv->hint);
        s = s ? s : init_forward(conv, &m, &graph->layers[layer].out, options->batch, ret_out);
        s = s ? s : place_all(conv, NULL);
        making_deinit(&m);
        if (!s && options->training && mfl_block_conv_takes(conv, in, ret_out, loops->lanes)) {
                conv->block_loops = loops;
                mfl_block_conv_init(conv, ret_out, options);
        }
        return mfl_cpu_conv_fail(s, "convolution", err);
}

static dnnl_status_t init_data(struct mfl_cpu_conv *conv, dnnl_engine_t engine, int64_t batch)
{
        static const struct attempt attempts[] = {{false, true, false}, {true, true, true}};
        struct making m = {0};
        dnnl_primitive_desc_t pd = NULL;
        dnnl_status_t s = make(&m, engine, DATA, conv, batch, false, attempts, MFL_ARRAY_SIZE(attempts), &pd);
        s = s ? s : dnnl_primitive_create(&conv->data, pd);
        s = s ? s : scratch_new(conv, engine, pd, &conv->s_data);
        s = s ? s
              : stage(&conv->data_weights, &m, mfl_md_in(&conv->weights), query(pd, dnnl_query_weights_md),
                        true);
        s = s ? s
              : stage(&conv->data_src, &m, mfl_md_in(&conv->src), query(pd, dnnl_query_diff_src_md), false);
        s = s ? s
              : stage(&conv->data_dst, &m, mfl_md_in(&conv->dst), query(pd, dnnl_query_diff_dst_md), true);
        if (pd)
                dnnl_primitive_desc_destroy(pd);
        making_deinit(&m);
        return s;
}

static dnnl_status_t init_gradient(struct mfl_cpu_conv *conv, dnnl_engine_t engine, int64_t batch)
{
        static const struct attempt attempts[] = {
                {false, false, false}, {false, true, false}, {true, true, true}};
        struct making m = {0};
        dnnl_primitive_desc_t pd = NULL;
        int skipped = conv->flat && !conv->bf16; /* with flat weights the library takes a slow way */
        dnnl_status_t s = make(&m, engine, GRADIENT, conv, batch, false, attempts + skipped,
                (int)MFL_ARRAY_SIZE(attempts) - skipped, &pd);
        s = s ? s : dnnl_primitive_create(&conv->gradient, pd);
        s = s ? s : scratch_new(conv, engine, pd, &conv->s_gradient);
        s = s ? s : stage(&conv->gradient_src, &m, mfl_md_in(&conv->src), query(pd, dnnl_query_src_md), true);
        s = s ? s
              : stage(&conv->gradient_dst, &m, mfl_md_in(&conv->dst), query(pd, dnnl_query_diff_dst_md),
                        true);
        s = s ? s
              : stage(&conv->gradient_weights, &m, mfl_md_in(&conv->weights),
                        query(pd, dnnl_query_diff_weights_md), false);
        if (pd)
                dnnl_primitive_desc_destroy(pd);
        making_deinit(&m);
        return s;
}

/* Whether two primitives read identical copies of a tensor. */
static bool is_same_copy(const struct mfl_cpu_staged *a, const struct mfl_cpu_staged *b)
{
        MFL_MD_IN a_md = NULL;
        MFL_MD_IN b_md = NULL;
        if (a->rounded_bytes != b->rounded_bytes || a->memory_bytes != b->memory_bytes ||
                a->rounded_bytes + a->memory_bytes == 0)
                return false;
        if (!a->memory_bytes)
                return true;
        return !dnnl_memory_get_memory_desc(a->memory, &a_md) &&
               !dnnl_memory_get_memory_desc(b->memory, &b_md) && mfl_md_same(a_md, b_md);
}

int mfl_cpu_conv_backward(
        struct mfl_cpu_conv *conv, dnnl_engine_t engine, int64_t batch, struct mfl_error *err)
{
        if (conv->loops)
                return 0;
        dnnl_status_t s = init_data(conv, engine, batch);
        if (!conv->block_loops)
                s = s ? s : init_gradient(conv, engine, batch);
        conv->shares_dst = !s && is_same_copy(&conv->data_dst, &conv->gradient_dst);
        s = s ? s : place_all(conv, NULL);
        return mfl_cpu_conv_fail(s, "convolution's backward", err);
}

int mfl_cpu_conv_bind(struct mfl_cpu_conv *conv, dnnl_engine_t engine, void *src, void *dst, void *diff_src,
        void *diff_dst, void *scratch, char *staging, struct mfl_error *err)
{
        conv->x = src;
        conv->y = dst;
        conv->dx = diff_src;
        conv->dy = diff_dst;
        conv->small.work = conv->block.work = conv->tile.work = scratch;
        if (conv->loops)
                return 0;
        dnnl_memory_t pads[] = {conv->s_forward, conv->s_data, conv->s_gradient};
        dnnl_status_t s = memory_new(engine, mfl_md_in(&conv->src), src, &conv->m_src);
        s = s ? s : memory_new(engine, mfl_md_in(&conv->dst), dst, &conv->m_dst);
        s = s ? s : memory_new(engine, mfl_md_in(&conv->src), diff_src, &conv->m_diff_src);
        s = s ? s : memory_new(engine, mfl_md_in(&conv->dst), diff_dst, &conv->m_diff_dst);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(pads) && !s; i++)
                if (pads[i])
                        s = dnnl_memory_set_data_handle(pads[i], scratch);
        s = s ? s : place_all(conv, staging);
        return mfl_cpu_conv_fail(s, "memory", err);
}

static void staged_free(struct mfl_cpu_staged *staged)
{
        if (staged->memory)
                dnnl_memory_destroy(staged->memory);
        if (staged->rounded)
                dnnl_memory_destroy(staged->rounded);
        if (staged->reorder)
                dnnl_primitive_destroy(staged->reorder);
}

void mfl_cpu_conv_deinit(struct mfl_cpu_conv *c)
{
        struct mfl_cpu_staged *staged[] = {&c->forward_src, &c->forward_weights, &c->forward_dst,
                &c->data_weights, &c->data_src, &c->data_dst, &c->gradient_src, &c->gradient_dst,
                &c->gradient_weights};
        dnnl_primitive_t primitives[] = {c->forward, c->data, c->gradient, c->to_flat};
        dnnl_memory_t memories[] = {c->m_src, c->m_dst, c->m_diff_src, c->m_diff_dst, c->m_weights, c->m_bias,
                c->m_dweights, c->m_dbias, c->m_flat, c->s_forward, c->s_data, c->s_gradient};
        struct mfl_md *mds[] = {&c->src, &c->dst, &c->weights, &c->bias, &c->low_src, &c->low_dst};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(staged); i++)
                staged_free(staged[i]);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(primitives); i++)
                if (primitives[i])
                        dnnl_primitive_destroy(primitives[i]);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(memories); i++)
                if (memories[i])
                        dnnl_memory_destroy(memories[i]);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(mds); i++)
                mfl_md_free(mds[i]);
        if (c->hint)
                dnnl_primitive_desc_destroy(c->hint);
        *c = (struct mfl_cpu_conv){0};
}
