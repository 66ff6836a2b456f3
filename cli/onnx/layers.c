/* SPDX-License-Identifier: Apache-2.0 */
/* Native layers as they are needed, and views of their outputs as layers. */
#include <stdio.h>

#include "cli/onnx/internal.h"

int onnx_new_value(struct onnx *o, const struct onnx_shape *shape, struct onnx_value **ret_value)
{
        struct onnx_value *v = onnx_alloc(o, 1, sizeof *v);
        if (!v)
                return onnx_memory(o);
        v->shape = *shape;
        v->node = o->node;
        *ret_value = v;
        return 0;
}

const struct mfl_shape *onnx_layer_shape(const struct onnx *o, int layer)
{
        return &o->layers[layer].layer.out;
}

static bool name_is_taken(const struct onnx *o, const char *name)
{
        for (int i = 0; i < o->n_layers; i++)
                if (!strcmp(o->layers[i].layer.name, name))
                        return true;
        return !strcmp(name, "input");
}

/* Exporters number what has no name of its own. */
bool onnx_is_generated(const char *name)
{
        static const char *const stems[] = {"onnx::", "val_", "_val_", "/", "scalar", NULL};
        for (int i = 0; stems[i]; i++)
                if (!strncmp(name, stems[i], strlen(stems[i])))
                        return true;
        return name[strspn(name, "0123456789")] == '\0'; /* "1.weight" is of a Sequential */
}

void onnx_name(struct onnx *o, struct mfl_layer *layer, const struct onnx_tensor *tensor, const char *suffix)
{
        char name[MFL_NAME_BYTES];
        if (layer->name[0] || !tensor || !tensor->origin || onnx_is_generated(tensor->origin))
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
        if (!name_is_taken(o, name))
                mfl_strcpy(layer->name, sizeof layer->name, name);
}

static bool is_uniform(const struct onnx_tensor *t)
{
        for (int64_t i = 1; i < t->count; i++)
                if (t->f[i] != t->f[0])
                        return false;
        return true;
}

/* One tensor of params in two layers would be trained as two. Exporters also merge initializers that happen
 * to be equal, which are ones and zeros: those may part. */
static int check_tied(struct onnx *o, const struct onnx_tensor *t)
{
        for (int i = 0; t && t->origin && i < o->n_layers; i++) {
                for (int k = 0; k < ONNX_TENSORS_PER_LAYER; k++) {
                        const struct onnx_tensor *u = o->layers[i].tensors[k];
                        if (u && u->origin && !strcmp(u->origin, t->origin) && u->count == t->count &&
                                !memcmp(u->f, t->f, (size_t)t->count * sizeof *t->f) && !is_uniform(t))
                                return onnx_fail(o,
                                        "%.60s is used by two layers (tied weights), which mfl can't train "
                                        "as one; give each "
                                        "its own before the export",
                                        t->origin);
                }
        }
        return 0;
}

int onnx_add_layer(struct onnx *o, const struct mfl_layer *layer, const struct onnx_tensor *const *tensors,
        int at, int *ret_layer)
{
        if (o->n_layers >= MFL_LAYERS_MAX)
                return onnx_fail(o, "the model needs more than %d layers", MFL_LAYERS_MAX);
        struct onnx_layer *made = &o->layers[o->n_layers];
        *made = (struct onnx_layer){.layer = *layer, .at = at};
        for (int k = 0; tensors && k < ONNX_TENSORS_PER_LAYER && tensors[k]; k++) {
                if (!tensors[k]->f)
                        return onnx_fail(o, "weights of whole numbers");
                int r = check_tied(o, tensors[k]);
                if (r)
                        return r;
                made->tensors[k] = tensors[k];
        }
        int n_inputs = mfl_op_inputs(layer->op);
        if (n_inputs < 2)
                made->layer.input2 = -1;
        if (n_inputs < 1)
                made->layer.input = -1;
        /* A layer stands behind those that it reads, which may have been made for its sake. */
        if (n_inputs > 0 && layer->op != MFL_OP_INPUT)
                made->at = MFL_MAX(made->at, o->layers[layer->input].at);
        if (n_inputs > 1)
                made->at = MFL_MAX(made->at, o->layers[layer->input2].at);
        *ret_layer = o->n_layers++;
        return 0;
}

int onnx_layer_value(struct onnx *o, int layer, const struct onnx_shape *shape, struct onnx_value **ret_value)
{
        struct onnx_value *v = NULL;
        int r = onnx_new_value(o, shape, &v);
        if (r)
                return r;
        v->layer = layer;
        if (onnx_count(shape) != mfl_shape_count(onnx_layer_shape(o, layer)))
                return onnx_fail(o, "gives %lld numbers where the graph has %lld",
                        (long long)mfl_shape_count(onnx_layer_shape(o, layer)), (long long)onnx_count(shape));
        *ret_value = v;
        return 0;
}

int onnx_place_of(const struct onnx *o, const struct onnx_value *constant)
{
        return constant->tensor->moved ? constant->tensor->moved - 1
               : constant->node < 0    ? o->node
                                       : constant->node;
}

int onnx_ones(struct onnx *o, int64_t n, float v, const struct onnx_tensor **ret_tensor)
{
        struct onnx_tensor *t = onnx_alloc(o, 1, sizeof *t);
        float *f = t ? onnx_alloc(o, (size_t)n, sizeof *f) : NULL;
        if (!f)
                return onnx_memory(o);
        for (int64_t i = 0; i < n; i++)
                f[i] = v;
        *t = (struct onnx_tensor){.shape = {1, {n}}, .count = n, .f = f};
        *ret_tensor = t;
        return 0;
}

bool onnx_same_map(const struct onnx_value *a, const struct onnx_value *b)
{
        int64_t n = onnx_count(&a->shape);
        if (n != onnx_count(&b->shape))
                return false;
        if (a->map == b->map)
                return true;
        return a->map && b->map && !memcmp(a->map, b->map, (size_t)n * sizeof *a->map);
}

bool onnx_same_view(const struct onnx_value *a, const struct onnx_value *b)
{
        return !a->tensor && !b->tensor && a->layer == b->layer && onnx_same_map(a, b);
}

int onnx_settle(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        int r = 0;
        if (v->tensor)
                return onnx_fail(o, "takes a constant where data of the samples are expected");
        if (v->pending == ONNX_NONE) {
                *ret_view = v;
                return 0;
        }
        if (!v->made) {
                int node = o->node;
                o->node = v->node;
                if (v->pending == ONNX_PRODUCT)
                        r = onnx_make_product(o, v, NULL, &v->made);
                else if (v->pending == ONNX_SCORES || v->pending == ONNX_WEIGHTS)
                        r = onnx_fail(o,
                                "is part of an attention that mfl does not recognise: softmax(q k^T / "
                                "sqrt(d)) v "
                                "with heads of equal width, with a causal mask or none, is supported");
                else if (v->pending == ONNX_UNIFORM || v->pending == ONNX_KEPT || v->pending == ONNX_NOISE)
                        r = onnx_fail(o, ONNX_RANDOM);
                else if (v->pending == ONNX_GROUPS || v->pending == ONNX_SCALED_GROUPS)
                        r = onnx_make_groupnorm(o, v, &v->made);
                else
                        r = onnx_make_norm(o, v, &v->made);
                o->node = node;
        }
        if (!r)
                *ret_view = v->made;
        return r;
}

int onnx_resolve(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        struct onnx_value *view = NULL;
        int r = onnx_settle(o, v, &view);
        if (r)
                return r;
        if (view->samples) {
                int node = o->node;
                o->node = view->node;
                if (!view->made)
                        r = onnx_make_function(o, view, &view->made);
                o->node = node;
                view = view->made;
        }
        if (!r)
                *ret_view = view;
        return r;
}

int onnx_sample_shape(struct onnx *o, const struct onnx_value *v, struct mfl_shape *ret_shape)
{
        int drop = -1;
        struct mfl_shape s = {0};
        for (int d = v->shape.rank - 1; d >= 0; d--)
                if (v->shape.dim[d] == 1)
                        drop = d;
        if (v->shape.rank == 1)
                drop = -1;
        if (v->shape.rank - (drop >= 0) > 3 || v->shape.rank < 1)
                return onnx_fail(
                        o, "a value of %d dimensions; mfl has at most 3 besides the batch", v->shape.rank);
        for (int d = 0; d < v->shape.rank; d++)
                if (d != drop)
                        s.dim[s.rank++] = v->shape.dim[d];
        *ret_shape = s;
        return 0;
}

void onnx_rows_shape(const struct onnx_value *v, struct mfl_shape *ret_shape)
{
        int64_t features = v->shape.dim[v->shape.rank - 1],
                rows = features ? onnx_count(&v->shape) / features : 0;
        bool vector = rows == 1 && v->shape.rank <= 2;
        *ret_shape = vector ? (struct mfl_shape){1, {features}} : (struct mfl_shape){2, {rows, features}};
}

int onnx_derive(struct onnx *o, const struct mfl_layer *layer, int at, int *ret_layer)
{
        for (int i = 1; i < o->n_layers; i++) {
                const struct mfl_layer *have = &o->layers[i].layer;
                bool same = have->op == layer->op && have->input == layer->input &&
                            mfl_shape_equal(&have->out, &layer->out) &&
                            have->approximate == layer->approximate && have->alpha == layer->alpha;
                if (same && layer->op == MFL_OP_SLICE)
                        same = have->axis == layer->axis && have->start == layer->start &&
                               have->end == layer->end;
                if (same && layer->op == MFL_OP_CONCAT)
                        same = have->input2 == layer->input2 && have->axis == layer->axis;
                if (same && layer->op == MFL_OP_TRANSPOSE)
                        same = !memcmp(have->order, layer->order, sizeof have->order);
                if (same) {
                        *ret_layer = i;
                        return 0;
                }
        }
        return onnx_add_layer(o, layer, NULL, at, ret_layer);
}
