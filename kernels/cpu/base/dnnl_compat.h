/* SPDX-License-Identifier: Apache-2.0 */
/* oneDNN 2.6 to 3.7 behind one set of names.
 *
 * 3.0 dropped operation descriptors (a primitive descriptor is created directly) and made memory descriptors
 * opaque (https://oneapi-src.github.io/oneDNN/v3.0/dev_guide_transition_to_v3.html). Every difference that
 * this backend meets is handled here and nowhere else.
 */
#ifndef MFL_KERNELS_CPU_BASE_DNNL_COMPAT_H
#define MFL_KERNELS_CPU_BASE_DNNL_COMPAT_H

#include <stdbool.h>
#include <stddef.h>
#include <dnnl.h>

/* An owned memory descriptor, and the type that functions take. */
struct mfl_md {
        dnnl_memory_desc_t md;
};

/* Geometry of a convolution as oneDNN wants it: dilation 0 means none. */
struct mfl_dnnl_conv {
        dnnl_dims_t strides, dilates, padding, padding_r;
};

#if DNNL_VERSION_MAJOR >= 3

#define MFL_MD_IN const_dnnl_memory_desc_t

static inline MFL_MD_IN mfl_md_in(const struct mfl_md *m)
{
        return m->md;
}

static inline dnnl_status_t mfl_md_of_type(
        struct mfl_md *m, int n, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag)
{
        return dnnl_memory_desc_create_with_tag(&m->md, n, dims, type, tag);
}

static inline dnnl_status_t mfl_md_copy(struct mfl_md *m, MFL_MD_IN from)
{
        return dnnl_memory_desc_clone(&m->md, from);
}

static inline void mfl_md_free(struct mfl_md *m)
{
        if (m->md)
                dnnl_memory_desc_destroy(m->md);
        m->md = NULL;
}

static inline dnnl_status_t mfl_post_relu(dnnl_post_ops_t ops)
{
        return dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_relu, 0.0f, 0.0f);
}

static inline dnnl_status_t mfl_conv_forward(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, bool training,
        MFL_MD_IN src, MFL_MD_IN weights, MFL_MD_IN bias, MFL_MD_IN dst, const struct mfl_dnnl_conv *c,
        const_dnnl_primitive_attr_t attr)
{
        return dnnl_convolution_forward_primitive_desc_create(pd, engine,
                training ? dnnl_forward_training : dnnl_forward_inference, dnnl_convolution_direct, src,
                weights, bias, dst, c->strides, c->dilates, c->padding, c->padding_r, attr);
}

static inline dnnl_status_t mfl_conv_backward_data(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
        MFL_MD_IN src, MFL_MD_IN weights, MFL_MD_IN dst, const struct mfl_dnnl_conv *c,
        const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
        return dnnl_convolution_backward_data_primitive_desc_create(pd, engine, dnnl_convolution_direct, src,
                weights, dst, c->strides, c->dilates, c->padding, c->padding_r, hint, attr);
}

static inline dnnl_status_t mfl_conv_backward_weights(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
        MFL_MD_IN src, MFL_MD_IN weights, MFL_MD_IN bias, MFL_MD_IN dst, const struct mfl_dnnl_conv *c,
        const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
        return dnnl_convolution_backward_weights_primitive_desc_create(pd, engine, dnnl_convolution_direct,
                src, weights, bias, dst, c->strides, c->dilates, c->padding, c->padding_r, hint, attr);
}

static inline dnnl_status_t mfl_deconv_forward(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, bool training,
        MFL_MD_IN src, MFL_MD_IN weights, MFL_MD_IN bias, MFL_MD_IN dst, const struct mfl_dnnl_conv *c,
        const_dnnl_primitive_attr_t attr)
{
        return dnnl_deconvolution_forward_primitive_desc_create(pd, engine,
                training ? dnnl_forward_training : dnnl_forward_inference, dnnl_deconvolution_direct, src,
                weights, bias, dst, c->strides, c->dilates, c->padding, c->padding_r, attr);
}

static inline dnnl_status_t mfl_deconv_backward_data(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
        MFL_MD_IN src, MFL_MD_IN weights, MFL_MD_IN dst, const struct mfl_dnnl_conv *c,
        const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
        return dnnl_deconvolution_backward_data_primitive_desc_create(pd, engine, dnnl_deconvolution_direct,
                src, weights, dst, c->strides, c->dilates, c->padding, c->padding_r, hint, attr);
}

static inline dnnl_status_t mfl_deconv_backward_weights(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
        MFL_MD_IN src, MFL_MD_IN weights, MFL_MD_IN bias, MFL_MD_IN dst, const struct mfl_dnnl_conv *c,
        const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
        return dnnl_deconvolution_backward_weights_primitive_desc_create(pd, engine,
                dnnl_deconvolution_direct, src, weights, bias, dst, c->strides, c->dilates, c->padding,
                c->padding_r, hint, attr);
}

#else

#define MFL_MD_IN const dnnl_memory_desc_t *

static inline MFL_MD_IN mfl_md_in(const struct mfl_md *m)
{
        return &m->md;
}

static inline dnnl_status_t mfl_md_of_type(
        struct mfl_md *m, int n, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag)
{
        return dnnl_memory_desc_init_by_tag(&m->md, n, dims, type, tag);
}

static inline dnnl_status_t mfl_md_copy(struct mfl_md *m, MFL_MD_IN from)
{
        m->md = *from;
        return dnnl_success;
}

static inline void mfl_md_free(struct mfl_md *m)
{
}

static inline dnnl_status_t mfl_post_relu(dnnl_post_ops_t ops)
{
        return dnnl_post_ops_append_eltwise(ops, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
}

static inline dnnl_status_t mfl_conv_forward(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, bool training,
        MFL_MD_IN src, MFL_MD_IN weights, MFL_MD_IN bias, MFL_MD_IN dst, const struct mfl_dnnl_conv *c,
        const_dnnl_primitive_attr_t attr)
{
        dnnl_convolution_desc_t desc;
        dnnl_status_t s = dnnl_dilated_convolution_forward_desc_init(&desc,
                training ? dnnl_forward_training : dnnl_forward_inference, dnnl_convolution_direct, src,
                weights, bias, dst, c->strides, c->dilates, c->padding, c->padding_r);
        return s ? s : dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL);
}

static inline dnnl_status_t mfl_conv_backward_data(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
        MFL_MD_IN src, MFL_MD_IN weights, MFL_MD_IN dst, const struct mfl_dnnl_conv *c,
        const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
        dnnl_convolution_desc_t desc;
        dnnl_status_t s = dnnl_dilated_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct,
                src, weights, dst, c->strides, c->dilates, c->padding, c->padding_r);
        return s ? s : dnnl_primitive_desc_create(pd, &desc, attr, engine, hint);
}

static inline dnnl_status_t mfl_conv_backward_weights(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
        MFL_MD_IN src, MFL_MD_IN weights, MFL_MD_IN bias, MFL_MD_IN dst, const struct mfl_dnnl_conv *c,
        const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
        dnnl_convolution_desc_t desc;
        dnnl_status_t s = dnnl_dilated_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct,
                src, weights, bias, dst, c->strides, c->dilates, c->padding, c->padding_r);
        return s ? s : dnnl_primitive_desc_create(pd, &desc, attr, engine, hint);
}

static inline dnnl_status_t mfl_deconv_forward(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, bool training,
        MFL_MD_IN src, MFL_MD_IN weights, MFL_MD_IN bias, MFL_MD_IN dst, const struct mfl_dnnl_conv *c,
        const_dnnl_primitive_attr_t attr)
{
        dnnl_deconvolution_desc_t desc;
        dnnl_status_t s = dnnl_dilated_deconvolution_forward_desc_init(&desc,
                training ? dnnl_forward_training : dnnl_forward_inference, dnnl_deconvolution_direct, src,
                weights, bias, dst, c->strides, c->dilates, c->padding, c->padding_r);
        return s ? s : dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL);
}

static inline dnnl_status_t mfl_deconv_backward_data(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
        MFL_MD_IN src, MFL_MD_IN weights, MFL_MD_IN dst, const struct mfl_dnnl_conv *c,
        const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
        dnnl_deconvolution_desc_t desc;
        dnnl_status_t s = dnnl_dilated_deconvolution_backward_data_desc_init(&desc, dnnl_deconvolution_direct,
                src, weights, dst, c->strides, c->dilates, c->padding, c->padding_r);
        return s ? s : dnnl_primitive_desc_create(pd, &desc, attr, engine, hint);
}

static inline dnnl_status_t mfl_deconv_backward_weights(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
        MFL_MD_IN src, MFL_MD_IN weights, MFL_MD_IN bias, MFL_MD_IN dst, const struct mfl_dnnl_conv *c,
        const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
        dnnl_deconvolution_desc_t desc;
        dnnl_status_t s =
                dnnl_dilated_deconvolution_backward_weights_desc_init(&desc, dnnl_deconvolution_direct, src,
                        weights, bias, dst, c->strides, c->dilates, c->padding, c->padding_r);
        return s ? s : dnnl_primitive_desc_create(pd, &desc, attr, engine, hint);
}

#endif

static inline dnnl_status_t mfl_md_by_tag(
        struct mfl_md *m, int n, const dnnl_dims_t dims, dnnl_format_tag_t tag)
{
        return mfl_md_of_type(m, n, dims, dnnl_f32, tag);
}

static inline bool mfl_md_same(MFL_MD_IN a, MFL_MD_IN b)
{
        return dnnl_memory_desc_equal(a, b) != 0;
}

static inline size_t mfl_md_bytes(MFL_MD_IN m)
{
        return dnnl_memory_desc_get_size(m);
}

#endif
