/* SPDX-License-Identifier: Apache-2.0 */
/* The first layers of an ONNX file that takes raw samples: what a contract says, before the graph's input. */
#include "cli/onnx/write.h"

#include "common/contract/contract.h"

/* `values` along one axis of the samples: {n} for the last, {n, 1, 1} for an image's channels. */
static const char *combine(struct onnx_writer *w, const char *op, const char *x, const char *what,
        const float *values, int n, bool channels)
{
        const int64_t dims[] = {n, 1, 1};
        const char *const inputs[] = {
                x, mfl_onnx_writer_numbers(w, mfl_onnx_writer_name(w, what), values, dims, channels ? 3 : 1)};
        return mfl_onnx_writer_node(w, op, mfl_onnx_writer_name(w, op), 2, inputs);
}

static const char *scale_columns(struct onnx_writer *w, const char *x)
{
        const struct mfl_contract *c = w->contract;
        size_t n = (size_t)c->n_features;
        float *mean = mfl_onnx_writer_alloc(w, n, sizeof *mean),
              *std = mfl_onnx_writer_alloc(w, n, sizeof *std);
        for (size_t i = 0; mean && std && i < n; i++) {
                mean[i] = (float)c->feature_mean[i];
                std[i] = (float)c->feature_std[i];
        }
        if (!mean || !std)
                return x;
        x = combine(w, "Sub", x, "mean", mean, (int)n, false);
        return combine(w, "Div", x, "std", std, (int)n, false);
}

const char *mfl_onnx_write_input(struct onnx_writer *w)
{
        const struct mfl_contract *c = w->contract;
        const char *x = "input";
        w->at = "input";
        if (c->dtype == MFL_U8) {
                const char *const inputs[] = {x};
                x = mfl_onnx_writer_node(w, "Cast", mfl_onnx_writer_name(w, "Cast"), 1, inputs);
                mfl_onnx_writer_int(w, "to", WRITER_TYPE_FLOAT);
        }
        if (c->feature_mean)
                x = scale_columns(w, x);
        bool channels = c->shape.rank == 3;
        if (c->n_channels) {
                x = combine(w, "Mul", x, "scale", c->scale, c->n_channels, channels);
                x = combine(w, "Add", x, "shift", c->shift, c->n_channels, channels);
        }
        if (!mfl_shape_equal(&c->shape, &w->graph->input)) {
                int64_t dims[MFL_SHAPE_RANK_MAX + 1] = {-1};
                memcpy(dims + 1, w->graph->input.dim, (size_t)w->graph->input.rank * sizeof *dims);
                const char *const inputs[] = {
                        x, mfl_onnx_writer_whole(w, "shape", dims, 1 + w->graph->input.rank)};
                x = mfl_onnx_writer_node(w, "Reshape", mfl_onnx_writer_name(w, "Reshape"), 2, inputs);
        }
        return x;
}
