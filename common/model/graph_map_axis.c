/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse linear maps of one dimension: what padding, interpolation, pools and sums read along it. */
#include "common/model/graph_map_internal.h"

#include <math.h>

#define CUBIC_TAPS 4
#define CUBIC_A (-0.75) /* Keys 1981, with PyTorch's constant */

static bool is_reduction(const struct mfl_layer *layer)
{
        return layer->map.kind == MFL_MAP_SUM || layer->map.kind == MFL_MAP_MEAN;
}

static bool is_selected(const struct mfl_layer *layer, int d)
{
        return layer->map.axes >> d & 1;
}

int64_t mfl_map_size(const struct mfl_layer *layer, const struct mfl_shape *in, int d)
{
        const struct mfl_map_spec *v = &layer->map;
        switch (v->kind) {
        case MFL_MAP_PAD:
                return in->dim[d] + v->before[d] + v->after[d];
        case MFL_MAP_RESIZE:
                if (d == 0 || v->to[d - 1])
                        return d == 0 ? in->dim[d] : v->to[d - 1];
                return (int64_t)floor((double)in->dim[d] * v->scale_factor[d - 1]);
        case MFL_MAP_AVGPOOL2D:
                return layer->out.dim[d];
        case MFL_MAP_ADAPTIVE_AVGPOOL2D:
                return d == 0 ? in->dim[d] : v->to[d - 1];
        default:
                return is_reduction(layer) && is_selected(layer, d) ? 1 : in->dim[d];
        }
}

bool mfl_map_keeps(const struct mfl_layer *layer, const struct mfl_shape *in, int d)
{
        const struct mfl_map_spec *v = &layer->map;
        bool same = mfl_map_size(layer, in, d) == in->dim[d];
        switch (v->kind) {
        case MFL_MAP_RESIZE: /* the same size by another scale still moves */
                return d == 0 || (same && (v->scale_factor[d - 1] == 0 || v->scale_factor[d - 1] == 1 ||
                                                  v->align_corners));
        case MFL_MAP_AVGPOOL2D:
                return d == 0 || (layer->kernel[d - 1] == 1 && layer->stride[d - 1] == 1 && same);
        case MFL_MAP_CUMSUM:
                return !is_selected(layer, d) || in->dim[d] == 1;
        default:
                return same;
        }
}

/* ---- terms ---- */

static void add_term(struct mfl_map_axis *axis, int64_t row, int64_t index, double weight)
{
        int32_t *n = &axis->first[row + 1];
        for (int32_t t = axis->first[row]; t < *n; t++)
                if (axis->index[t] == index) { /* clamped neighbours of an interpolation */
                        axis->weight[t] += weight;
                        return;
                }
        axis->index[*n] = (int32_t)index;
        axis->weight[*n] = weight;
        (*n)++;
}

/* The mean of inputs [from, to). */
static void add_mean(struct mfl_map_axis *axis, int64_t row, int64_t from, int64_t to)
{
        for (int64_t k = from; k < to; k++) {
                int32_t *n = &axis->first[row + 1];
                axis->index[*n] = (int32_t)k;
                axis->weight[*n] = 1.0 / (double)(to - from);
                (*n)++;
        }
}

/* ---- pad ---- */

static void pad_row(const struct mfl_map_spec *v, int d, struct mfl_map_axis *axis, int64_t row)
{
        int64_t n = axis->n_in, at = row - v->before[d];
        bool inside = at >= 0 && at < n;
        if (!inside && v->mode == MFL_MAP_CONSTANT)
                return;
        if (v->mode == MFL_MAP_REPLICATE)
                at = MFL_MIN(MFL_MAX(at, 0), n - 1);
        else if (v->mode == MFL_MAP_CIRCULAR)
                at = (at + n) % n;
        else if (!inside)
                at = at < 0 ? -at : 2 * (n - 1) - at;
        add_term(axis, row, at, 1);
}

/* ---- resize: ATen/native/UpSample.h ---- */

/* In float, as PyTorch computes it: the element that nearest reads depends on the rounding. */
static float scale_of(const struct mfl_map_spec *v, int k, int64_t in, int64_t out)
{
        return v->scale_factor[k] > 0 ? (float)(1.0 / v->scale_factor[k]) : (float)in / (float)out;
}

static double cubic_near(double x)
{
        return ((CUBIC_A + 2) * x - (CUBIC_A + 3)) * x * x + 1;
}

static double cubic_far(double x)
{
        return ((CUBIC_A * x - 5 * CUBIC_A) * x + 8 * CUBIC_A) * x - 4 * CUBIC_A;
}

static void cubic_row(struct mfl_map_axis *axis, int64_t row, double at)
{
        double base = floor(at), t = at - base;
        double weight[CUBIC_TAPS] = {cubic_far(t + 1), cubic_near(t), cubic_near(1 - t), cubic_far(2 - t)};
        for (int64_t k = 0; k < CUBIC_TAPS; k++)
                add_term(axis, row, MFL_MIN(MFL_MAX((int64_t)base - 1 + k, 0), axis->n_in - 1), weight[k]);
}

static void linear_row(struct mfl_map_axis *axis, int64_t row, double at)
{
        int64_t low = MFL_MIN((int64_t)at, axis->n_in - 1), high = MFL_MIN(low + 1, axis->n_in - 1);
        double part = at - (double)low;
        add_term(axis, row, low, 1 - part);
        if (part > 0)
                add_term(axis, row, high, part);
}

static void resize_row(const struct mfl_map_spec *v, int k, struct mfl_map_axis *axis, int64_t row)
{
        float scale = scale_of(v, k, axis->n_in, axis->n_out);
        double at;
        if (v->mode == MFL_MAP_NEAREST || v->mode == MFL_MAP_NEAREST_EXACT) {
                float half = v->mode == MFL_MAP_NEAREST_EXACT ? 0.5f : 0.0f;
                int64_t from = (int64_t)floorf(((float)row + half) * scale);
                add_term(axis, row, MFL_MIN(from, axis->n_in - 1), 1);
                return;
        }
        if (v->align_corners)
                at = axis->n_out > 1 ? (double)row * (double)(axis->n_in - 1) / (double)(axis->n_out - 1) : 0;
        else
                at = (double)scale * ((double)row + 0.5) - 0.5;
        if (v->mode == MFL_MAP_BICUBIC)
                cubic_row(axis, row, at);
        else
                linear_row(axis, row, MFL_MAX(at, 0));
}

/* ---- pools ---- */

/* Padding does not count. The part inside is contiguous: pools have dilation 1 here. */
static void pool_row(const struct mfl_layer *layer, int k, struct mfl_map_axis *axis, int64_t row)
{
        int64_t start = row * layer->stride[k] - layer->padding[k], end = start + layer->kernel[k];
        add_mean(axis, row, MFL_MAX(start, 0), MFL_MIN(end, axis->n_in));
}

static void adaptive_row(struct mfl_map_axis *axis, int64_t row)
{
        int64_t in = axis->n_in, out = axis->n_out;
        add_mean(axis, row, row * in / out, ((row + 1) * in + out - 1) / out);
}

static void fill_row(const struct mfl_layer *layer, int d, struct mfl_map_axis *axis, int64_t row)
{
        switch (layer->map.kind) {
        case MFL_MAP_PAD:
                pad_row(&layer->map, d, axis, row);
                break;
        case MFL_MAP_RESIZE:
                resize_row(&layer->map, d - 1, axis, row);
                break;
        case MFL_MAP_AVGPOOL2D:
                pool_row(layer, d - 1, axis, row);
                break;
        case MFL_MAP_ADAPTIVE_AVGPOOL2D:
                adaptive_row(axis, row);
                break;
        case MFL_MAP_MEAN:
                add_mean(axis, row, 0, axis->n_in);
                break;
        default: /* sum, cumsum */
                add_mean(axis, row, 0, layer->map.kind == MFL_MAP_CUMSUM ? row + 1 : axis->n_in);
                for (int32_t t = axis->first[row]; t < axis->first[row + 1]; t++)
                        axis->weight[t] = 1;
        }
}

uint64_t mfl_map_axis_terms(const struct mfl_layer *layer, const struct mfl_shape *in, int d)
{
        uint64_t n = (uint64_t)in->dim[d], out = (uint64_t)mfl_map_size(layer, in, d);
        if (mfl_map_keeps(layer, in, d))
                return n;
        switch (layer->map.kind) {
        case MFL_MAP_PAD:
                return out;
        case MFL_MAP_RESIZE:
                return out * CUBIC_TAPS;
        case MFL_MAP_AVGPOOL2D:
                return mfl_graph_multiply(out, MFL_MIN((uint64_t)layer->kernel[d - 1], n));
        case MFL_MAP_ADAPTIVE_AVGPOOL2D:
                return n + 2 * out;
        case MFL_MAP_CUMSUM:
                return n * (n + 1) / 2;
        default:
                return n;
        }
}

int mfl_map_axis_empty(
        int64_t n_in, int64_t n_out, int64_t n_terms, struct mfl_map_axis **ret_axis, struct mfl_error *err)
{
        struct mfl_map_axis *axis = mfl_calloc(1, sizeof *axis);
        size_t terms = (size_t)n_terms + 1;
        if (axis) {
                axis->n_in = n_in;
                axis->n_out = n_out;
                axis->first = mfl_calloc((size_t)n_out + 1, sizeof *axis->first);
                axis->index = mfl_malloc(terms * sizeof *axis->index);
                axis->weight = mfl_malloc(terms * sizeof *axis->weight);
        }
        if (!axis || !axis->first || !axis->index || !axis->weight) {
                mfl_map_axis_free(axis);
                return mfl_fail_memory(err, terms * sizeof *axis->weight, "the table of a layer");
        }
        *ret_axis = axis;
        return 0;
}

int mfl_map_axis_new(const struct mfl_layer *layer, const struct mfl_shape *in, int d,
        struct mfl_map_axis **ret_axis, struct mfl_error *err)
{
        struct mfl_map_axis *axis;
        bool keeps = mfl_map_keeps(layer, in, d);
        int r = mfl_map_axis_empty(in->dim[d], mfl_map_size(layer, in, d),
                (int64_t)mfl_map_axis_terms(layer, in, d), &axis, err);
        if (r)
                return r;
        for (int64_t row = 0; row < axis->n_out; row++) {
                axis->first[row + 1] = axis->first[row];
                if (keeps)
                        add_term(axis, row, row, 1);
                else
                        fill_row(layer, d, axis, row);
        }
        *ret_axis = axis;
        return 0;
}

void mfl_map_axis_free(struct mfl_map_axis *axis)
{
        if (!axis)
                return;
        free(axis->first);
        free(axis->index);
        free(axis->weight);
        free(axis);
}
