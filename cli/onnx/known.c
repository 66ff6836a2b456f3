/* SPDX-License-Identifier: Apache-2.0 */
/* What a file says of its initializers: names, and what PyTorch's current exporter writes beside the values: what each
 * was in the module, and which values it was computed from. */
#include <stdio.h>

#include "cli/onnx/internal.h"

static bool ends_with(const char *name, const char *end)
{
        size_t n = strlen(name), k = strlen(end);
        return n >= k && !strcmp(name + n - k, end);
}

/* ---- what current exporters write beside the values ---- */

static size_t slot_of(const struct onnx *o, const char *name)
{
        uint64_t h = 14695981039346656037u; /* FNV-1a */
        for (const char *p = name; *p; p++)
                h = (h ^ (unsigned char)*p) * 1099511628211u;
        size_t i = h & (o->n_infos - 1);
        while (o->infos[i] && strcmp(o->infos[i]->name, name))
                i = (i + 1) & (o->n_infos - 1);
        return i;
}

int mfl_onnx_read_infos(struct onnx *o)
{
        size_t n = 16;
        o->current = true;
        for (size_t i = 0; i < o->graph->n_node; i++)
                o->current = o->current && (!o->graph->node[i]->name || o->graph->node[i]->name[0] != '/');
        while (n < 2 * o->graph->n_value_info + 2)
                n *= 2;
        o->n_infos = n;
        o->infos = mfl_onnx_alloc(o, n, sizeof *o->infos);
        if (!o->infos)
                return onnx_memory(o);
        for (size_t i = 0; i < o->graph->n_value_info; i++)
                if (o->graph->value_info[i]->name && o->graph->value_info[i]->n_metadata_props)
                        o->infos[slot_of(o, o->graph->value_info[i]->name)] = o->graph->value_info[i];
        return 0;
}

const char *mfl_onnx_said_of(const struct onnx *o, const char *name, const char *key)
{
        const Onnx__ValueInfoProto *info = o->infos[slot_of(o, name)];
        for (size_t k = 0; info && k < info->n_metadata_props; k++)
                if (info->metadata_props[k]->key && !strcmp(info->metadata_props[k]->key, key))
                        return info->metadata_props[k]->value;
        return NULL;
}

/* ---- initializers that the exporter computed ---- */

static bool is_move_name(const char *name, size_t n)
{
        static const char *const stems[] = {"select", "slice", "view", "reshape", "squeeze", "unsqueeze",
                "transpose", "permute", "t", "clone", "contiguous", "alias", "detach", "_to_copy", "val",
                NULL};
        return mfl_onnx_has_stem(name, n, stems);
}

static bool is_operator_name(const char *name, size_t n)
{
        static const char *const stems[] = {"add", "sub", "rsub", "mul", "div", "pow", "exp", "log", "sqrt",
                "rsqrt", "abs", "neg", "reciprocal", "tanh", "sigmoid", "softplus", "sin", "cos", "cat",
                "stack", "expand", "arange", "full", "ones", "zeros", "tril", "triu", "where", "masked_fill",
                "matmul", "mm", "sum", "mean", "outer", "einsum", "eq", "gt", "lt", "ge", "le",
                "lift_fresh_copy", "_assert_tensor_metadata", NULL};
        return is_move_name(name, n) || mfl_onnx_has_stem(name, n, stems);
}

/* The parameter that it may be computed from: *ret_source is the only one, NULL for none. What the exporter writes is a
 * list of all values on the way, as Python does: "['p', 'tanh_1', 'val_0']". *ret_moved: all of them only move elements. */
static int read_folded(
        struct onnx *o, const char *folded, const char **ret_source, int *ret_n, bool *ret_moved)
{
        const char *alone = NULL;
        *ret_source = NULL;
        *ret_n = 0;
        *ret_moved = true;
        for (const char *at = folded; (at = strchr(at, '\''));) {
                const char *end = strchr(++at, '\'');
                size_t n = end ? (size_t)(end - at) : 0;
                char *name = mfl_onnx_alloc(o, n + 1, 1);
                if (!name)
                        return onnx_memory(o);
                memcpy(name, at, n);
                bool source = o->said ? mfl_onnx_role(o, name) == ONNX_PARAMETER
                                      : n && !is_operator_name(name, n) && !mfl_onnx_is_generated(o, name);
                *ret_moved = *ret_moved && (source || is_move_name(name, n) || !is_operator_name(name, n));
                if (source) {
                        *ret_source = name;
                        ++*ret_n;
                }
                if (n == 1 && *at == 't')
                        alone = name;
                if (!end)
                        break;
                at = end + 1;
        }
        /* "t" transposes something, which the list would have, too: so it is a parameter's name. */
        if (!o->said && !*ret_n && alone) {
                *ret_source = alone;
                *ret_n = 1;
        }
        return 0;
}

/* Whether the exporter made other initializers of the same parameter: then the parts may overlap. */
static bool has_others(const struct onnx *o, const char *own, const char *source)
{
        char quoted[MFL_LAYER_NAME_BYTES * 4];
        mfl_snprintf(quoted, sizeof quoted, "'%.240s'", source);
        for (size_t i = 0; i < o->graph->n_initializer; i++) {
                const char *name = o->graph->initializer[i]->name;
                const char *from = name && strcmp(name, own) ? mfl_onnx_said_of(o, name, ONNX_FOLDED) : NULL;
                if (name && (!strcmp(name, source) || (from && strstr(from, quoted))))
                        return true;
        }
        return false;
}

/* The weights of a recurrent layer, with their gates in ONNX's order. */
static bool is_recurrent(const struct onnx *o, const char *folded)
{
        static const char *const stems[] = {"weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l", NULL};
        bool any = false;
        for (const char *at = folded; (at = strchr(at, '\''));) {
                const char *end = strchr(++at, '\'');
                char name[MFL_LAYER_NAME_BYTES * 4];
                bool found = false;
                mfl_snprintf(name, sizeof name, "%.*s", end ? (int)(end - at) : 0, at);
                for (int i = 0; !found && stems[i]; i++)
                        found = strstr(name, stems[i]);
                any = any || found;
                if (!found &&
                        (mfl_onnx_role(o, name) || (strncmp(name, "val_", 4) && strncmp(name, "zeros", 5))))
                        return false;
                if (!end)
                        break;
                at = end + 1;
        }
        return any;
}

/* Whether an argument in a note is the value: "%p_fc_weight" and "%b_fc_weight" are "fc.weight", others have the value's name. */
bool mfl_onnx_is_noted(const char *arg, size_t n, const char *value)
{
        size_t skip = n > 2 && (arg[0] == 'p' || arg[0] == 'b' || arg[0] == 'c') && arg[1] == '_' ? 2 : 0;
        if (strlen(value) == n && !memcmp(arg, value, n))
                return true;
        if (!skip || strlen(value) != n - skip)
                return false;
        for (size_t i = 0; i < n - skip; i++)
                if (arg[skip + i] != '_' && (arg[skip + i] | 0x20) != (value[i] | 0x20))
                        return false;
        return true;
}

/* Computed from samples, or it would have been folded: what was computed from its shape alone is a number. */
static bool is_of_samples(const struct onnx *o, const char *arg, size_t n)
{
        for (size_t i = 0; i < o->graph->n_input; i++)
                if (o->graph->input[i]->name && mfl_onnx_is_noted(arg, n, o->graph->input[i]->name))
                        return true;
        for (size_t i = 0; i < o->graph->n_node; i++)
                for (size_t k = 0; k < o->graph->node[i]->n_output; k++)
                        if (mfl_onnx_is_noted(arg, n, o->graph->node[i]->output[k]))
                                return true;
        return false;
}

static bool is_kept(const struct onnx *o, const char *arg, size_t n)
{
        for (size_t i = 0; i < o->graph->n_initializer; i++)
                if (o->graph->initializer[i]->name &&
                        mfl_onnx_is_noted(arg, n, o->graph->initializer[i]->name))
                        return true;
        return false;
}

/* "['const_3', 'weight_0']" */
static bool is_listed(const char *arg, size_t n, const char *list)
{
        for (const char *at = list; (at = strchr(at, '\''));) {
                const char *end = strchr(++at, '\'');
                char name[MFL_LAYER_NAME_BYTES * 4];
                if (!end)
                        break;
                mfl_snprintf(name, sizeof name, "%.*s", (int)(end - at), at);
                if (mfl_onnx_is_noted(arg, n, name))
                        return true;
                at = end + 1;
        }
        return false;
}

/* Whether the operation of PyTorch's that the note tells made the initializer of its own numbers: all parameters and constants that
 * the operation takes are still in the graph, and none is in the list of what the initializer was computed from. */
static bool is_own_number(const struct onnx *o, const char *note, const char *name, const char *folded)
{
        const char *at = note ? strstr(note, "(args = ") : NULL;
        if (!at)
                return false;
        while ((at = strchr(at, '%'))) {
                size_t n = strcspn(++at, ",)]}: ");
                if (!is_of_samples(o, at, n) &&
                        (mfl_onnx_is_noted(at, n, name) || is_listed(at, n, folded) || !is_kept(o, at, n)))
                        return false;
                at += n;
        }
        return true;
}

static bool is_of_numbers(const struct onnx *o, const char *name, const char *folded)
{
        bool is_read = false;
        for (size_t i = 0; i < o->graph->n_node; i++) {
                const Onnx__NodeProto *node = o->graph->node[i];
                for (size_t k = 0; k < node->n_input; k++) {
                        if (strcmp(node->input[k], name))
                                continue;
                        if (!is_own_number(o, mfl_onnx_note_of(node), name, folded))
                                return false;
                        is_read = true;
                }
        }
        return is_read;
}

/* "fc.weight" is "%p_fc_weight", a buffer "%b_fc_weight". */
bool mfl_onnx_is_noted_at(const struct onnx *o, int node, const char *source)
{
        const char *note = mfl_onnx_note_of(o->graph->node[node]);
        for (const char *at = note; at && (at = strstr(at, "%p_")); at++)
                if (mfl_onnx_is_noted(at + 1, strcspn(at + 1, ",) ]"), source))
                        return true;
        const char *was = note ? mfl_onnx_said_of(o, source, "pkg.torch.onnx.original_node_name") : NULL;
        const char *at = was ? strstr(note, was) : NULL;
        return at && at > note && at[-1] == '%' && strchr(",) ]", at[strlen(was)]);
}

int mfl_onnx_noted_at(const struct onnx *o, const char *source)
{
        for (size_t i = 0; i < o->graph->n_node; i++)
                if (mfl_onnx_is_noted_at(o, (int)i, source))
                        return (int)i;
        return -1;
}

/* The parameter that the node reads and its note does not tell: the exporter makes one of tensors and numbers that are equal.
 * *ret_apart: those of ones and of zeros that belong to layers are told apart by their modules (share.c); where a node computes with
 * one, mfl_onnx_lift refuses it. */
const char *mfl_onnx_merged_at(const struct onnx *o, int node, bool *ret_apart)
{
        static const char *const layers =
                " LayerNormalization BatchNormalization GroupNormalization InstanceNormalization "
                "RMSNormalization Gemm Conv ConvTranspose Mul Add ";
        const Onnx__NodeProto *at = o->graph->node[node];
        char op[80];
        mfl_snprintf(op, sizeof op, " %.70s ", at->op_type);
        *ret_apart = false;
        for (size_t k = 0; mfl_onnx_note_of(at) && k < at->n_input; k++) {
                const struct onnx_value *v = *at->input[k] ? mfl_onnx_find(o, at->input[k]) : NULL;
                const struct onnx_tensor *t = v ? v->tensor : NULL;
                if (!t || !t->f || !t->param ||
                        !mfl_onnx_said_of(o, at->input[k], "pkg.torch.onnx.original_node_name") ||
                        mfl_onnx_is_noted_at(o, node, at->input[k]))
                        continue;
                *ret_apart = mfl_onnx_is_uniform(t) && strstr(layers, op) &&
                             !mfl_onnx_is_of_module(o, node, t->origin);
                return at->input[k];
        }
        return NULL;
}

int mfl_onnx_fail_merged(struct onnx *o, const char *name)
{
        return mfl_onnx_fail(o,
                "reads the parameter %.120s in place of another tensor or number with the same value: "
                "PyTorch's optimiser made one of "
                "both. Export with mfl_export.save(net, example, file), or with optimize=False",
                name);
}

static int mark_folded(struct onnx *o, struct onnx_tensor *t, const char *folded)
{
        const char *source;
        bool moved;
        int n, r = read_folded(o, folded, &source, &n, &moved);
        t->known = !r && !n && o->said; /* a constant */
        if (r || !n)
                return r;
        if (is_of_numbers(o, t->origin, folded)) {
                t->known = true; /* a constant */
        } else if (is_recurrent(o, folded)) {
                t->param = true;
                t->origin = source;
        } else if (n == 1 && moved && is_move_name(t->origin, strlen(t->origin)) &&
                   !has_others(o, t->origin, source)) {
                t->param = true;
                t->unsure = mfl_onnx_noted_at(o, source) < 0;
                t->origin = source;
        } else {
                t->folded = folded;
        }
        return 0;
}

/* Exports for inference make one of initializers that are equal, and PyTorch's first exporter writes "b.weight = Identity(a.weight)" for the
 * others. Tied ones have one name, and no such node. */
bool mfl_onnx_is_copy(const struct onnx *o, const Onnx__NodeProto *node)
{
        const struct onnx_value *v =
                node->n_input == 1 && *node->input[0] ? mfl_onnx_find(o, node->input[0]) : NULL;
        return !o->own && !o->current && !strcmp(node->op_type, "Identity") && node->n_output == 1 &&
               node->name && node->name[0] != '/' && v && v->tensor && v->tensor->f && v->tensor->origin &&
               v->node < 0 && !mfl_onnx_is_generated(o, v->tensor->origin) &&
               !mfl_onnx_is_generated(o, node->output[0]);
}

int mfl_onnx_read_copies(struct onnx *o)
{
        int r = 0;
        for (size_t i = 0; !r && i < o->graph->n_node; i++) {
                const Onnx__NodeProto *node = o->graph->node[i];
                struct onnx_value *v;
                if (!node->op_type || !mfl_onnx_is_copy(o, node))
                        continue;
                const struct onnx_tensor *of = mfl_onnx_find(o, node->input[0])->tensor;
                struct onnx_tensor *t = mfl_onnx_alloc(o, 1, sizeof *t);
                if (!t || (r = mfl_onnx_new_value(o, &of->shape, &v)))
                        return t ? r : onnx_memory(o);
                *t = (struct onnx_tensor){
                        .shape = of->shape, .count = of->count, .f = of->f, .origin = node->output[0]};
                v->tensor = t;
                v->node = -1;
                r = mfl_onnx_set(o, t->origin, v);
                if (!r)
                        r = mfl_onnx_mark_param(o, t);
        }
        return r;
}

/* 1: t is the matrix transposed; 0: it is not; -1: it may also be the matrix itself. */
static int turns(const struct onnx_tensor *t, const struct onnx_tensor *of)
{
        int64_t rows = of->shape.dim[0], columns = of->shape.dim[1];
        if (t->shape.rank != 2 || of->shape.rank != 2 || t->shape.dim[0] != columns ||
                t->shape.dim[1] != rows)
                return 0;
        for (int64_t i = 0; i < rows; i++)
                for (int64_t k = 0; k < columns; k++)
                        if (t->f[k * rows + i] != of->f[i * columns + k])
                                return 0;
        return rows == columns && !memcmp(t->f, of->f, (size_t)t->count * sizeof *t->f) ? -1 : 1;
}

/* A head that is tied to an embedding: the optimiser transposes the weight, and the embedding reads it as it is. */
int mfl_onnx_read_turned(struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_initializer; i++) {
                const char *name = o->graph->initializer[i]->name, *source = NULL;
                struct onnx_value *v = name ? mfl_onnx_find(o, name) : NULL;
                struct onnx_tensor *t = v ? v->tensor : NULL;
                bool moved = false;
                int n = 0, r = t && t->f && t->folded ? read_folded(o, t->folded, &source, &n, &moved) : 0;
                if (r)
                        return r;
                const struct onnx_value *whole =
                        n == 1 && moved && is_move_name(name, strlen(name)) ? mfl_onnx_find(o, source) : NULL;
                const struct onnx_tensor *of = whole ? whole->tensor : NULL;
                if (!of || !of->f || of->order || of->ids || turns(t, of) != 1)
                        continue;
                int64_t rows = of->shape.dim[0], columns = of->shape.dim[1];
                int32_t *order = mfl_onnx_alloc(o, (size_t)t->count + 1, sizeof *order);
                if (!order)
                        return onnx_memory(o);
                for (int64_t k = 0; k < t->count; k++)
                        order[k] = (int32_t)(k % rows * columns + k / rows);
                t->folded = NULL;
                t->origin = of->origin;
                t->param = of->param;
                t->known = of->known;
                t->first = of->first;
                t->order = order;
                t->turned = true;
                t->shared = true;
        }
        return 0;
}

/* PyTorch's current exporter says what an initializer was, and what it computed it from. */
int mfl_onnx_mark_param(struct onnx *o, struct onnx_tensor *t)
{
        if (!t->f)
                return 0;
        const char *name = t->origin,
                   *kind = mfl_onnx_said_of(o, name, "pkg.torch.export.graph_signature.InputSpec.kind"),
                   *folded = mfl_onnx_said_of(o, name, ONNX_FOLDED);
        bool statistics = ends_with(name, "running_mean") || ends_with(name, "running_var");
        bool generated = mfl_onnx_is_generated(o, name);
        enum onnx_role role;
        int r = 0;
        t->first = o->n_elements;
        o->n_elements += t->count;
        if (o->described) {
                t->known = true;
                t->param = mfl_described_has(o->described, name);
                return 0;
        }
        t->known = kind;
        if (kind) {
                t->param = !strcmp(kind, "PARAMETER");
        } else if (folded) {
                r = mark_folded(o, t, folded);
        } else if ((role = mfl_onnx_role(o, name)) != ONNX_NOT_SAID) {
                t->known = true;
                t->param = role == ONNX_PARAMETER;
        } else {
                t->param = !generated && !statistics;
        }
        t->generated = generated && !t->param && !folded && !kind;
        return r;
}
