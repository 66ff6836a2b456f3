/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a graph as a job file's list of layers. Every layer is named; defaults of the job file are left out.
 */
#include <inttypes.h>
#include <stdio.h>

#include "cli/onnx/internal.h"

#define LINE_BYTES 1024

struct line {
        char *text;
        size_t n, room;
};

static void say(struct line *line, const char *fmt, ...) MFL_PRINTF(2, 3);
static void say(struct line *line, const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        line->n += (size_t)mfl_vsnprintf(line->text + line->n, line->room - line->n, fmt, ap);
        va_end(ap);
}

static void say_pair(struct line *line, const char *key, const int pair[2], int otherwise)
{
        if (pair[0] != pair[1])
                say(line, ", %s: [%d, %d]", key, pair[0], pair[1]);
        else if (pair[0] != otherwise)
                say(line, ", %s: %d", key, pair[0]);
}

static void say_window(struct line *line, const struct mfl_layer *l)
{
        bool pool = l->op == MFL_OP_MAXPOOL2D || l->op == MFL_OP_AVGPOOL2D || l->op == MFL_OP_MAP;
        say_pair(line, "kernel", l->kernel, 0);
        if (pool ? memcmp(l->stride, l->kernel, sizeof l->stride) != 0
                 : l->stride[0] != 1 || l->stride[1] != 1)
                say_pair(line, "stride", l->stride, 0);
        say_pair(line, "padding", l->padding, 0);
        say_pair(line, "dilation", l->dilation, 1);
}

static void say_shape(struct line *line, const struct mfl_shape *s)
{
        say(line, ", shape: [");
        for (int d = 0; d < s->rank; d++)
                say(line, "%s%" PRId64, d ? ", " : "", s->dim[d]);
        say(line, "]");
}

static void say_bias(struct line *line, const struct mfl_layer *l)
{
        if (!l->bias)
                say(line, ", bias: false");
}

static void say_norm(struct line *line, const struct mfl_layer *l)
{
        if (l->eps != 1e-5f)
                say(line, ", eps: %.9g", (double)l->eps);
        if (l->op == MFL_OP_BATCHNORM && l->momentum != 0.1f)
                say(line, ", momentum: %.9g", (double)l->momentum);
        if (l->op == MFL_OP_LAYERNORM)
                say_bias(line, l);
}

static void say_convolution(struct line *line, const struct mfl_layer *l)
{
        say(line, ", filters: %d", l->out_channels);
        say_window(line, l);
        if (l->conv_groups > 1)
                say(line, ", groups: %d", l->conv_groups);
        say_pair(line, "output_padding", l->output_padding, 0);
        say_bias(line, l);
}

static void say_order(struct line *line, const struct mfl_layer *l, int rank)
{
        for (int d = 0; d < rank; d++)
                say(line, "%s%d", d ? ", " : ", order: [", l->order[d]);
        say(line, "]");
}

static void say_list(struct line *line, const char *key, const int64_t *v, int n)
{
        say(line, ", %s: [", key);
        for (int d = 0; d < n; d++)
                say(line, "%s%" PRId64, d ? ", " : "", v[d]);
        say(line, "]");
}

static void say_counts(struct line *line, const char *key, const int *v, int n)
{
        int64_t all[MFL_SHAPE_RANK_MAX];
        for (int d = 0; d < n; d++)
                all[d] = v[d];
        say_list(line, key, all, n);
}

static void say_view(struct line *line, const struct mfl_layer *l)
{
        const struct mfl_map_spec *v = &l->map;
        bool shifted = false;
        say_shape(line, &l->shape);
        say_list(line, "sizes", v->size, v->n_digits);
        say_list(line, "strides", v->stride, v->n_digits);
        if (v->offset)
                say(line, ", offset: %" PRId64, v->offset);
        for (int d = 0; d < v->n_digits; d++)
                shifted = shifted || v->shift[d];
        if (shifted)
                say_list(line, "shifts", v->shift, v->n_digits);
}

static void say_axes(struct line *line, const struct mfl_map_spec *v)
{
        int64_t axes[MFL_SHAPE_RANK_MAX];
        int n = 0;
        for (int d = 0; d < MFL_SHAPE_RANK_MAX; d++)
                if (v->axes >> d & 1)
                        axes[n++] = d;
        say_list(line, "axis", axes, n);
        say(line, "%s", v->keepdim ? ", keepdim: true" : "");
}

static const char *const map_modes[] = {[MFL_MAP_CONSTANT] = "constant",
        [MFL_MAP_REFLECT] = "reflect",
        [MFL_MAP_REPLICATE] = "replicate",
        [MFL_MAP_CIRCULAR] = "circular",
        [MFL_MAP_NEAREST] = "nearest",
        [MFL_MAP_NEAREST_EXACT] = "nearest-exact",
        [MFL_MAP_BILINEAR] = "bilinear",
        [MFL_MAP_BICUBIC] = "bicubic"};

static void say_map(struct line *line, const struct mfl_layer *l)
{
        const struct mfl_map_spec *v = &l->map;
        switch (v->kind) {
        case MFL_MAP_VIEW:
                say_view(line, l);
                break;
        case MFL_MAP_GATHER:
                say_shape(line, &l->shape);
                for (int e = 0; e < v->n_index; e++)
                        say(line, "%s%d", e ? ", " : ", index: [", v->index[e]);
                say(line, "]");
                break;
        case MFL_MAP_PAD:
                say_counts(line, "before", v->before, l->out.rank);
                say_counts(line, "after", v->after, l->out.rank);
                say(line, ", mode: %s", map_modes[v->mode]);
                if (v->value != 0)
                        say(line, ", value: %.9g", (double)v->value);
                break;
        case MFL_MAP_RESIZE:
                if (v->to[0])
                        say_counts(line, "size", v->to, 2);
                else
                        say(line, ", scale_factor: [%.17g, %.17g]", v->scale_factor[0], v->scale_factor[1]);
                say(line, ", mode: %s%s", map_modes[v->mode],
                        v->align_corners ? ", align_corners: true" : "");
                break;
        case MFL_MAP_AVGPOOL2D:
                say_window(line, l);
                say(line, ", count_include_pad: false%s", l->ceil_mode ? ", ceil_mode: true" : "");
                break;
        case MFL_MAP_ADAPTIVE_AVGPOOL2D:
                say_counts(line, "size", v->to, 2);
                break;
        default:
                say_axes(line, v);
        }
}

/* The bytes that the layer's line may have. */
static size_t line_bytes(const struct mfl_layer *l)
{
        return LINE_BYTES + (l->op == MFL_OP_MAP ? (size_t)l->map.n_index * 12 : 0);
}

static void say_params(struct line *line, const struct mfl_layer *l)
{
        enum mfl_curve curve = mfl_curve_of(l);
        const float values[MFL_UNARY_PARAMS_MAX] = {l->alpha, l->beta};
        for (int k = 0; curve < MFL_CURVE_COUNT_ && k < mfl_unaries[curve].n_params; k++)
                say(line, ", %s: %.9g", mfl_unaries[curve].params[k].key, (double)values[k]);
}

static void say_units(struct line *line, const struct mfl_layer *l)
{
        say(line, ", units: %d%s%s", l->out_channels, l->relu ? ", relu: true" : "",
                l->last_cell ? ", last_cell: true" : "");
        say_bias(line, l);
}

static void say_settings(struct line *line, const struct mfl_layer *l, const struct mfl_shape *in)
{
        say_params(line, l);
        switch (l->op) {
        case MFL_OP_CONV2D:
        case MFL_OP_CONVTRANSPOSE2D:
                say_convolution(line, l);
                break;
        case MFL_OP_DENSE:
        case MFL_OP_LSTM:
        case MFL_OP_GRU:
        case MFL_OP_RNN:
                say_units(line, l);
                break;
        case MFL_OP_MAXPOOL2D:
        case MFL_OP_AVGPOOL2D:
                say_window(line, l);
                say(line, "%s", l->ceil_mode ? ", ceil_mode: true" : "");
                break;
        case MFL_OP_DROPOUT:
                say(line, ", rate: %.9g", (double)l->rate);
                break;
        case MFL_OP_GROUPNORM:
                say(line, ", norm_groups: %d", l->norm_groups);
                say_norm(line, l);
                break;
        case MFL_OP_BATCHNORM:
        case MFL_OP_LAYERNORM:
        case MFL_OP_RMSNORM:
                say_norm(line, l);
                break;
        case MFL_OP_GELU:
                say(line, "%s", l->approximate ? ", approximate: true" : "");
                break;
        case MFL_OP_CONCAT:
        case MFL_OP_MEAN:
                say(line, ", axis: %d", l->axis);
                break;
        case MFL_OP_SLICE:
                say(line, ", axis: %d, start: %d, end: %d", l->axis, l->start, l->end);
                break;
        case MFL_OP_RESHAPE:
        case MFL_OP_WEIGHT:
                say_shape(line, &l->shape);
                break;
        case MFL_OP_TRANSPOSE:
                say_order(line, l, in->rank);
                break;
        case MFL_OP_EMBEDDING:
                say(line, ", features: %d, vocabulary: %d", l->out_channels, l->vocabulary);
                if (l->has_padding)
                        say(line, ", padding_idx: %d", l->padding_idx);
                break;
        case MFL_OP_ATTENTION:
                say(line, ", heads: %d%s", l->heads, l->causal ? ", causal: true" : "");
                if (l->rate > 0)
                        say(line, ", dropout: %.9g", (double)l->rate);
                break;
        case MFL_OP_PADDING_MASK:
                say(line, ", token: %d", l->padding_idx);
                break;
        case MFL_OP_MATMUL:
                say(line, "%s", l->transposed ? ", transposed: true" : "");
                break;
        default:
                break;
        }
        if (l->frozen)
                say(line, ", frozen: true");
}

static void say_shared(struct line *line, const struct mfl_graph *graph, const struct mfl_layer *l)
{
        static const char *const keys[] = {[MFL_SHARES_ALL] = "shares",
                [MFL_SHARES_WEIGHT] = "shares_weight",
                [MFL_SHARES_TRANSPOSED] = "shares_transposed"};
        if (l->shares)
                say(line, ", %s: '%s'", keys[l->sharing], graph->layers[l->shares].name);
}

int mfl_onnx_text(struct onnx *o, const struct mfl_graph *graph, char **ret_text)
{
        size_t n = 0, room = 1;
        for (int i = 1; i < graph->n_layers; i++)
                room += line_bytes(&graph->layers[i]);
        char *text = mfl_onnx_alloc(o, room, 1);
        if (!text)
                return onnx_memory(o);
        for (int i = 1; i < graph->n_layers; i++) {
                const struct mfl_layer *l = &graph->layers[i];
                struct line line = {text + n, 0, line_bytes(l)};
                say(&line, "    - %s: {name: '%s'", mfl_layer_kind(l), l->name);
                if (l->op == MFL_OP_MAP)
                        say_map(&line, l);
                else
                        say_settings(&line, l, l->input < 0 ? NULL : &graph->layers[l->input].out);
                say_shared(&line, graph, l);
                if (l->op == MFL_OP_ATTENTION && l->input2 > 0)
                        say(&line, ", mask: '%s'", graph->layers[l->input2].name);
                if (mfl_op_inputs(l->op) == 2)
                        say(&line, ", inputs: ['%s', '%s']", graph->layers[l->input].name,
                                graph->layers[l->input2].name);
                else if (mfl_op_inputs(l->op) == 1 && l->input != i - 1)
                        say(&line, ", input: '%s'", graph->layers[l->input].name);
                say(&line, "}\n");
                n += line.n;
        }
        *ret_text = mfl_strdup(text);
        return *ret_text ? 0 : mfl_fail_memory(o->err, n, "a list of layers");
}
