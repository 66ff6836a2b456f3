/* SPDX-License-Identifier: Apache-2.0 */
/* How a sample lies in memory: plain (NCHW, or a vector), or in the layout that convolutions of this machine
 * prefer.
 *
 * Element (c, h, w) of a sample is at (c / block) * stride_block + h * stride_h + w * stride_w + c % block.
 * Samples follow each other at `count` floats. Lanes of a block past the last channel are always zero. NHWC
 * is one block of all channels.
 */
#ifndef MFL_KERNELS_CPU_BASE_LAYOUT_H
#define MFL_KERNELS_CPU_BASE_LAYOUT_H

#include "common/base/base.h"
#include "common/model/graph.h"
#include "kernels/cpu/base/dnnl_compat.h"

struct mfl_layout {
        dnnl_format_tag_t tag; /* of a 4-dimensional tensor; nchw for vectors too */
        int64_t c, h, w, block, n_blocks;
        int64_t stride_block, stride_h, stride_w;
        int64_t count;   /* floats of a sample, padding included */
        int64_t logical; /* c * h * w */
        bool identity;   /* element k of the NCHW sample is float k */
};

/* tag is nchw, nhwc, or nChw{4,8,16}c. */
struct mfl_layout mfl_layout_of(const struct mfl_shape *shape, dnnl_format_tag_t tag);

/* The tag of a 4-dimensional descriptor; false where it has none of these tags. */
bool mfl_layout_tag(MFL_MD_IN md, const dnnl_dims_t dims, dnnl_format_tag_t *ret_tag);

/* Where NCHW element k of a sample lies. */
static inline int64_t mfl_layout_at(const struct mfl_layout *l, int64_t k)
{
        int64_t w = k % l->w, h = k / l->w % l->h, c = k / (l->w * l->h);
        return c / l->block * l->stride_block + h * l->stride_h + w * l->stride_w + c % l->block;
}

/* Converts `rows` samples from NCHW into the layout (padding becomes zero), and back. */
void mfl_layout_from_plain(const struct mfl_layout *l, int64_t rows, const float *plain, float *x);
void mfl_layout_to_plain(const struct mfl_layout *l, int64_t rows, const float *x, float *plain);

/* Zeroes the lanes past the last channel. */
void mfl_layout_clear_padding(const struct mfl_layout *l, int64_t rows, float *x);

#endif
