/* SPDX-License-Identifier: Apache-2.0 */
/* Sample layouts and the conversion from and to NCHW. */
#include "kernels/cpu/base/layout.h"

static const struct {
        dnnl_format_tag_t tag;
        int block; /* 0: all channels */
} tags[] = {{dnnl_nchw, 1}, {dnnl_nChw16c, 16}, {dnnl_nChw8c, 8}, {dnnl_nChw4c, 4}, {dnnl_nhwc, 0}};

struct mfl_layout mfl_layout_of(const struct mfl_shape *shape, dnnl_format_tag_t tag)
{
        bool image = shape->rank == 3;
        struct mfl_layout l = {.tag = tag,
                .c = image ? shape->dim[0] : mfl_shape_count(shape),
                .h = image ? shape->dim[1] : 1,
                .w = image ? shape->dim[2] : 1,
                .block = 1};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(tags); i++)
                if (tags[i].tag == tag)
                        l.block = tags[i].block ? tags[i].block : l.c;
        l.n_blocks = (l.c + l.block - 1) / l.block;
        l.stride_w = l.block;
        l.stride_h = l.w * l.block;
        l.stride_block = l.h * l.w * l.block;
        l.count = l.n_blocks * l.stride_block;
        l.logical = l.c * l.h * l.w;
        l.identity = l.block == 1 || (l.h * l.w == 1 && l.count == l.logical);
        return l;
}

bool mfl_layout_tag(MFL_MD_IN md, const dnnl_dims_t dims, dnnl_format_tag_t *ret_tag)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(tags); i++) {
                struct mfl_md tagged = {0};
                if (mfl_md_by_tag(&tagged, 4, dims, tags[i].tag))
                        continue;
                bool same = mfl_md_same(md, mfl_md_in(&tagged));
                mfl_md_free(&tagged);
                if (same) {
                        *ret_tag = tags[i].tag;
                        return true;
                }
        }
        return false;
}

/* The place of channel c's plane. */
static int64_t plane_at(const struct mfl_layout *l, int64_t c)
{
        return c / l->block * l->stride_block + c % l->block;
}

void mfl_layout_clear_padding(const struct mfl_layout *l, int64_t rows, float *x)
{
        for (int64_t n = 0; n < rows && l->count > l->logical; n++, x += l->count)
                for (int64_t c = l->c; c < l->n_blocks * l->block; c++)
                        for (int64_t i = 0; i < l->h * l->w; i++)
                                x[plane_at(l, c) + i * l->block] = 0.0f;
}

void mfl_layout_from_plain(const struct mfl_layout *l, int64_t rows, const float *plain, float *x)
{
        if (l->identity) {
                memcpy(x, plain, (size_t)(rows * l->count) * sizeof *x);
                return;
        }
        mfl_layout_clear_padding(l, rows, x);
        for (int64_t n = 0; n < rows; n++, x += l->count)
                for (int64_t c = 0; c < l->c; c++)
                        for (int64_t i = 0; i < l->h * l->w; i++)
                                x[plane_at(l, c) + i * l->block] = *plain++;
}

void mfl_layout_to_plain(const struct mfl_layout *l, int64_t rows, const float *x, float *plain)
{
        if (l->identity) {
                memcpy(plain, x, (size_t)(rows * l->count) * sizeof *x);
                return;
        }
        for (int64_t n = 0; n < rows; n++, x += l->count)
                for (int64_t c = 0; c < l->c; c++)
                        for (int64_t i = 0; i < l->h * l->w; i++)
                                *plain++ = x[plane_at(l, c) + i * l->block];
}
