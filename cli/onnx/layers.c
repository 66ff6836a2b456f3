/* SPDX-License-Identifier: Apache-2.0 */
/* The list of native layers, their names, and values of their outputs. */
#include <stdio.h>

#include "cli/onnx/internal.h"

int mfl_onnx_new_value(struct onnx *o, const struct onnx_shape *shape, struct onnx_value **ret_value)
{
        struct onnx_value *v = mfl_onnx_alloc(o, 1, sizeof *v);
        if (!v)
                return onnx_memory(o);
        v->shape = *shape;
        v->node = o->node;
        *ret_value = v;
        return 0;
}

const struct mfl_shape *mfl_onnx_layer_shape(const struct onnx *o, int layer)
{
        return &o->layers[layer].layer.out;
}

bool mfl_onnx_name_is_taken(const struct onnx *o, const char *name)
{
        for (int i = 0; i < o->n_layers; i++)
                if (!strcmp(o->layers[i].layer.name, name))
                        return true;
        return !strcmp(name, "input");
}

bool mfl_onnx_has_stem(const char *name, size_t n, const char *const *stems)
{
        for (size_t digits = 1; digits;) { /* "val_1_1" is a second "val_1" */
                for (digits = 0; digits < n && name[n - digits - 1] >= '0' && name[n - digits - 1] <= '9';)
                        digits++;
                n -= digits;
                n -= digits && n && name[n - 1] == '_';
                for (int i = 0; stems[i]; i++)
                        if (strlen(stems[i]) == n && !memcmp(stems[i], name, n))
                                return true;
        }
        return false;
}

/* Exporters number values that have no name. What the current one makes, a module may have, too: "scalar", "val_1". */
bool mfl_onnx_is_generated(const struct onnx *o, const char *name)
{
        static const char *const stems[] = {"val", "_val", "scalar", "scalar_tensor", "scalar_tensor_default",
                "lifted_tensor", "c_lifted_tensor", "_tensor_constant", NULL};
        if (!strncmp(name, "onnx::", 6) || name[0] == '/' ||
                !name[strspn(name, "0123456789")]) /* "1.weight" comes from a Sequential */
                return true;
        return o->current && !mfl_onnx_role(o, name) && mfl_onnx_has_stem(name, strlen(name), stems);
}

void mfl_onnx_name(
        struct onnx *o, struct mfl_layer *layer, const struct onnx_tensor *tensor, const char *suffix)
{
        char name[MFL_LAYER_NAME_BYTES];
        if (layer->name[0] || !tensor || !tensor->origin || mfl_onnx_is_generated(o, tensor->origin))
                return;
        size_t n = strlen(tensor->origin), cut = strlen(suffix);
        if (cut && (n <= cut + 1 || strcmp(tensor->origin + n - cut, suffix)))
                return;
        n -= cut ? cut + 1 : 0;
        if (!n || n >= sizeof name)
                return;
        for (size_t i = 0; i < n; i++) {
                char c = tensor->origin[i];
                bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                             c == '.' || c == '-';
                name[i] = plain ? c : '_';
        }
        name[n] = '\0';
        if (!mfl_onnx_name_is_taken(o, name))
                mfl_strcpy(layer->name, sizeof layer->name, name);
}

int64_t mfl_onnx_element(const struct onnx_tensor *t, int64_t i)
{
        if (!t->param && !t->generated)
                return -1;
        return t->ids ? t->ids[i] : t->first + (t->order ? t->order[i] : i);
}

bool mfl_onnx_same_elements(const struct onnx_tensor *a, const struct onnx_tensor *b, bool turned)
{
        int64_t rows = turned ? a->shape.dim[0] : a->count, columns = a->count / MFL_MAX(rows, (int64_t)1);
        for (int64_t i = 0; i < rows; i++)
                for (int64_t k = 0; k < columns; k++) {
                        int64_t at = i * columns + k, to = k * rows + i;
                        if (a->f[at] != b->f[to] || mfl_onnx_element(a, at) != mfl_onnx_element(b, to))
                                return false;
                }
        return true;
}

bool mfl_onnx_same_tensor(const struct onnx_tensor *a, const struct onnx_tensor *b)
{
        return a && b && a->origin && b->origin && !strcmp(a->origin, b->origin) && a->count == b->count &&
               mfl_onnx_same_elements(a, b, false);
}

/* A tensor that several nodes read in the same shape is one layer. */
static bool find_weight(
        const struct onnx *o, const struct mfl_layer *layer, const struct onnx_tensor *t, int *ret_layer)
{
        for (int i = 1; i < o->n_layers; i++) {
                const struct onnx_layer *have = &o->layers[i];
                if (have->layer.op != MFL_OP_WEIGHT || !t->f || !mfl_onnx_same_tensor(have->tensors[0], t) ||
                        !mfl_shape_equal(&have->layer.shape, &layer->shape))
                        continue;
                *ret_layer = i;
                return true;
        }
        return false;
}

/* Operators whose weights are parameters even under a name that the exporter made, as when it turned them. */
static bool owns_weights(enum mfl_op op)
{
        return op == MFL_OP_CONV2D || op == MFL_OP_CONVTRANSPOSE2D || op == MFL_OP_DENSE ||
               op == MFL_OP_EMBEDDING || mfl_op_is_recurrent(op);
}

static int fail_moved(struct onnx *o, const struct onnx_tensor *t)
{
        if (mfl_onnx_role(o, t->origin) == ONNX_PARAMETER)
                return mfl_onnx_fail(o,
                        "the exporter took a part of the parameter %.120s, or moved its elements, and the "
                        "file does not "
                        "have it as it was. Export with mfl_export.save(net, example, file)",
                        t->origin);
        return mfl_onnx_fail(o,
                "the exporter moved elements of %.120s, and the file does not say whether that is a "
                "parameter, which is "
                "trained, or a buffer. Export with mfl_export.save(net, example, file)",
                t->origin);
}

/* A layer is trained or frozen as a whole: frozen if all its tensors are constants. */
static int set_frozen(struct onnx *o, struct onnx_layer *l)
{
        const struct onnx_tensor *trained = NULL, *constant = NULL;
        const bool trains_later = !o->files || !o->files->inference;
        int n = l->layer.op == MFL_OP_BATCHNORM ? 2 : ONNX_TENSORS_PER_LAYER; /* without the statistics */
        for (int k = 0; k < n && l->tensors[k]; k++) {
                if (l->tensors[k]->folded && trains_later)
                        return mfl_onnx_fail(o,
                                "the exporter computed %.120s from %.120s, so what PyTorch trains is lost. "
                                "Export with mfl_export.save(net, example, file)",
                                l->tensors[k]->origin ? l->tensors[k]->origin : "?", l->tensors[k]->folded);
                if (l->tensors[k]->unsure && l->layer.op == MFL_OP_WEIGHT && trains_later)
                        return fail_moved(o, l->tensors[k]);
                bool trains = l->tensors[k]->param || (l->tensors[k]->generated && owns_weights(l->layer.op));
                if (!trains && trains_later && l->tensors[k]->generated && l->tensors[k]->count > 1 &&
                        !strncmp(l->tensors[k]->origin, "onnx::", 6))
                        return mfl_onnx_fail(o,
                                "the exporter computed %.120s, and the file does not say from what: a "
                                "parameter of it would not be trained. Export with "
                                "mfl_export.save(net, example, file), or with do_constant_folding=False",
                                l->tensors[k]->origin);
                *(trains ? &trained : &constant) = l->tensors[k];
        }
        if (trained && constant && trains_later)
                return mfl_onnx_fail(o,
                        "%.120s is a parameter, but %.120s is a constant; mfl trains all tensors of a layer "
                        "or "
                        "none. Make both parameters, or both buffers, before the export",
                        trained->origin, constant->origin ? constant->origin : "the other tensor");
        l->layer.frozen = constant && !trained;
        return 0;
}

/* Sums, products and moves: what is not exact before them is not exact behind them. */
static bool keeps_quotients(enum mfl_op op)
{
        switch (op) {
        case MFL_OP_ADD:
        case MFL_OP_MULTIPLY:
        case MFL_OP_GATE:
        case MFL_OP_CONCAT:
        case MFL_OP_NEG:
        case MFL_OP_ABS:
        case MFL_OP_DIVIDE:
        case MFL_OP_MAP:
        case MFL_OP_RESHAPE:
        case MFL_OP_FLATTEN:
        case MFL_OP_TRANSPOSE:
        case MFL_OP_SLICE:
                return true;
        default:
                return false;
        }
}

int mfl_onnx_add_layer(struct onnx *o, const struct mfl_layer *layer,
        const struct onnx_tensor *const *tensors, int at, int *ret_layer)
{
        if (layer->op == MFL_OP_WEIGHT && find_weight(o, layer, tensors[0], ret_layer))
                return 0;
        if (o->n_layers >= MFL_LAYERS_MAX)
                return mfl_onnx_fail(o, "the model needs more than %d layers", MFL_LAYERS_MAX);
        struct onnx_layer *made = &o->layers[o->n_layers];
        *made = (struct onnx_layer){.layer = *layer, .at = at, .node = o->node};
        for (int k = 0; tensors && k < ONNX_TENSORS_PER_LAYER && tensors[k]; k++) {
                if (!tensors[k]->f)
                        return mfl_onnx_fail(o, "constant whole numbers are not supported here; put constant "
                                                "tokens into the data, or join their embeddings");
                made->tensors[k] = tensors[k];
        }
        int n_inputs = mfl_op_inputs(layer->op), r = tensors ? set_frozen(o, made) : 0;
        if (r)
                return r;
        bool masked = layer->op == MFL_OP_ATTENTION && layer->input2 > 0;
        if (n_inputs < 2 && !masked)
                made->layer.input2 = -1;
        if (n_inputs < 1)
                made->layer.input = -1;
        /* A layer comes after the layers that it reads, which may be newer than its own place. */
        if (n_inputs > 0 && layer->op != MFL_OP_INPUT)
                made->at = MFL_MAX(made->at, o->layers[layer->input].at);
        if (n_inputs > 1 || masked)
                made->at = MFL_MAX(made->at, o->layers[layer->input2].at);
        made->of_params = layer->op != MFL_OP_INPUT && (n_inputs < 1 || o->layers[layer->input].of_params) &&
                          (n_inputs < 2 || o->layers[layer->input2].of_params);
        made->quotient =
                keeps_quotients(layer->op) &&
                (o->layers[layer->input].quotient || (n_inputs > 1 && o->layers[layer->input2].quotient));
        *ret_layer = o->n_layers++;
        return 0;
}

int mfl_onnx_layer_value(
        struct onnx *o, int layer, const struct onnx_shape *shape, struct onnx_value **ret_value)
{
        struct onnx_value *v = NULL;
        int r = mfl_onnx_new_value(o, shape, &v);
        if (r)
                return r;
        v->layer = layer;
        if (mfl_onnx_count(shape) != mfl_shape_count(mfl_onnx_layer_shape(o, layer)))
                return mfl_onnx_fail(o, "gives %lld numbers, but the graph expects %lld",
                        (long long)mfl_shape_count(mfl_onnx_layer_shape(o, layer)),
                        (long long)mfl_onnx_count(shape));
        *ret_value = v;
        return 0;
}

int mfl_onnx_layer_output(struct onnx *o, const struct mfl_layer *layer,
        const struct onnx_tensor *const *tensors, const struct onnx_shape *shape)
{
        int i, r = mfl_onnx_add_layer(o, layer, tensors, o->node, &i);
        struct onnx_value *v;
        if (!r)
                r = mfl_onnx_layer_value(o, i, shape, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

int mfl_onnx_place_of(const struct onnx *o, const struct onnx_value *constant)
{
        return constant->tensor->moved ? constant->tensor->moved - 1
               : constant->node < 0    ? o->node
                                       : constant->node;
}

int mfl_onnx_ones(struct onnx *o, int64_t n, float v, const struct onnx_tensor **ret_tensor)
{
        struct onnx_tensor *t = mfl_onnx_alloc(o, 1, sizeof *t);
        float *f = t ? mfl_onnx_alloc(o, (size_t)n, sizeof *f) : NULL;
        if (!f)
                return onnx_memory(o);
        for (int64_t i = 0; i < n; i++)
                f[i] = v;
        *t = (struct onnx_tensor){.shape = {1, {n}}, .count = n, .f = f};
        *ret_tensor = t;
        return 0;
}

static bool is_same_map(const struct onnx_value *a, const struct onnx_value *b)
{
        int64_t n = mfl_onnx_count(&a->shape);
        if (n != mfl_onnx_count(&b->shape))
                return false;
        if (a->map == b->map)
                return true;
        return a->map && b->map && !memcmp(a->map, b->map, (size_t)n * sizeof *a->map);
}

bool mfl_onnx_same_view(const struct onnx_value *a, const struct onnx_value *b)
{
        return !a->tensor && !b->tensor && a->layer == b->layer && is_same_map(a, b);
}

int mfl_onnx_sample_shape(struct onnx *o, const struct onnx_value *v, struct mfl_shape *ret_shape)
{
        int drop = -1;
        struct mfl_shape s = {0};
        for (int d = v->shape.rank - 1; d >= 0; d--)
                if (v->shape.dim[d] == 1)
                        drop = d;
        if (v->shape.rank == 1)
                drop = -1;
        if (v->shape.rank < 1) { /* a number */
                *ret_shape = (struct mfl_shape){1, {1}};
                return 0;
        }
        if (v->shape.rank - (drop >= 0) > 3)
                return mfl_onnx_fail(o,
                        "a %d-dimensional value is not supported; the limit is 3 dimensions and the batch",
                        v->shape.rank);
        for (int d = 0; d < v->shape.rank; d++)
                if (d != drop)
                        s.dim[s.rank++] = v->shape.dim[d];
        *ret_shape = s;
        return 0;
}

int mfl_onnx_flat_shape(struct onnx *o, const struct onnx_value *v, struct mfl_shape *ret_shape)
{
        int64_t n = mfl_onnx_count(&v->shape);
        int rank = v->shape.rank;
        bool drops = false;
        for (int d = 0; d < rank; d++)
                drops = drops || v->shape.dim[d] == 1;
        if (rank - drops <= 3)
                return mfl_onnx_sample_shape(o, v, ret_shape);
        struct mfl_shape s = {3, {1, v->shape.dim[rank - 2], v->shape.dim[rank - 1]}};
        s.dim[0] = n ? n / (s.dim[1] * s.dim[2]) : 0;
        *ret_shape = s;
        return 0;
}

void mfl_onnx_rows_shape(const struct onnx_value *v, struct mfl_shape *ret_shape)
{
        int64_t features = v->shape.dim[v->shape.rank - 1],
                rows = features ? mfl_onnx_count(&v->shape) / features : 0;
        bool vector = rows == 1 && v->shape.rank <= 2;
        *ret_shape = vector ? (struct mfl_shape){1, {features}} : (struct mfl_shape){2, {rows, features}};
}

int mfl_onnx_derive(struct onnx *o, const struct mfl_layer *layer, int at, int *ret_layer)
{
        for (int i = 1; i < o->n_layers; i++) {
                const struct mfl_layer *have = &o->layers[i].layer;
                bool same = have->op == layer->op && have->input == layer->input &&
                            mfl_shape_equal(&have->out, &layer->out) &&
                            have->approximate == layer->approximate && have->alpha == layer->alpha &&
                            have->beta == layer->beta && have->padding_idx == layer->padding_idx;
                if (same && layer->op == MFL_OP_SLICE)
                        same = have->axis == layer->axis && have->start == layer->start &&
                               have->end == layer->end;
                if (same && layer->op == MFL_OP_CONCAT)
                        same = have->input2 == layer->input2 && have->axis == layer->axis;
                if (same && layer->op == MFL_OP_MAP)
                        same = !memcmp(&have->map, &layer->map, sizeof have->map);
                if (same && layer->op == MFL_OP_TRANSPOSE)
                        same = !memcmp(have->order, layer->order, sizeof have->order);
                if (same) {
                        *ret_layer = i;
                        return 0;
                }
        }
        return mfl_onnx_add_layer(o, layer, NULL, at, ret_layer);
}
