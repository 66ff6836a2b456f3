/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the layers that use the tensors of an earlier layer: one initializer that several nodes read, also through a
 * Transpose. */
#include "cli/onnx/internal.h"

/* One tensor under several names, of which `first` is in the file: the names of layers that use it. */
static const char *identity(const struct onnx *o, const char *origin)
{
        for (const struct onnx_tie *tie = o->ties; tie; tie = tie->next)
                for (size_t k = 1; k < tie->n; k++)
                        if (!strcmp(tie->names[k], origin))
                                return tie->names[0];
        return origin;
}

int mfl_onnx_tie(struct onnx *o, const char *const *names, size_t n)
{
        o->knows_ties = true;
        if (!n)
                return 0;
        struct onnx_tie *tie = mfl_onnx_alloc(o, 1, sizeof *tie);
        if (!tie)
                return onnx_memory(o);
        *tie = (struct onnx_tie){.next = o->ties, .names = names, .n = n};
        o->ties = tie;
        return 0;
}

bool mfl_onnx_is_uniform(const struct onnx_tensor *t)
{
        for (int64_t i = 1; i < t->count; i++)
                if (t->f[i] != t->f[0])
                        return false;
        return true;
}

/* {1, rows, columns}, as a parameter that is a value has, are rows and columns, too. */
static bool is_matrix(const struct onnx_tensor *t, int64_t *ret_rows, int64_t *ret_columns)
{
        int rank = t->shape.rank, first = rank == 3 && t->shape.dim[0] == 1;
        if (rank - first != 2)
                return false;
        *ret_rows = t->shape.dim[first];
        *ret_columns = t->shape.dim[first + 1];
        return true;
}

static bool is_turned(const struct onnx_tensor *a, const struct onnx_tensor *b)
{
        int64_t rows, columns, other_rows, other_columns;
        if (!is_matrix(a, &rows, &columns) || !is_matrix(b, &other_rows, &other_columns) ||
                other_rows != columns || other_columns != rows)
                return false;
        for (int64_t i = 0; i < rows; i++)
                for (int64_t k = 0; k < columns; k++)
                        if (a->f[i * columns + k] != b->f[k * rows + i])
                                return false;
        return true;
}

/* Whether two layers have one tensor. *ret_turned: one of them has it transposed. */
static bool is_same(
        const struct onnx *o, const struct onnx_tensor *a, const struct onnx_tensor *b, bool *ret_turned)
{
        if (!a || !b || !a->origin || !b->origin || a->count != b->count ||
                strcmp(identity(o, a->origin), identity(o, b->origin)) != 0)
                return false;
        *ret_turned = a->turned != b->turned;
        bool alike = *ret_turned ? is_turned(a, b) : !memcmp(a->f, b->f, (size_t)a->count * sizeof *a->f);
        return alike && (strcmp(a->origin, b->origin) != 0 || mfl_onnx_same_elements(a, b, *ret_turned));
}

/* Both are constants of the model, as the scale of a norm that has none. */
static bool is_same_constant(const struct onnx_tensor *a, const struct onnx_tensor *b)
{
        return a && b && !a->origin && !b->origin && a->count == b->count &&
               !memcmp(a->f, b->f, (size_t)a->count * sizeof *a->f);
}

/* The module that the node belongs to, "block.0.norm", "" for the model itself; false: the file does not say.
 * TorchScript's exporter names nodes "/block/block.0/norm/Add", the newer one lists the modules. */
static bool module_of(const struct onnx *o, int node, char name[MFL_LAYER_NAME_BYTES])
{
        const Onnx__NodeProto *n = node < 0 ? NULL : o->graph->node[node];
        size_t len = 0;
        name[0] = '\0';
        if (n && o->own && n->name && n->name[0] == '/') {
                len = strcspn(n->name + 1, "/");
                if (len >= MFL_LAYER_NAME_BYTES)
                        return false;
                memcpy(name, n->name + 1, len);
                name[len] = '\0';
                return true;
        }
        if (n && n->name && n->name[0] == '/') {
                const char *at = n->name + 1, *end;
                size_t part = 0; /* where the last part begins */
                for (; (end = strchr(at, '/')); at = end + 1) {
                        size_t size = (size_t)(end - at);
                        bool longer = size > len - part && len > part && at[len - part] == '.' &&
                                      !strncmp(at, name + part, len - part);
                        size_t from = longer ? part : len + (len > 0);
                        if (from + size >= MFL_LAYER_NAME_BYTES)
                                return false;
                        if (!longer && len)
                                name[len] = '.';
                        memcpy(name + from, at, size);
                        part = from;
                        len = from + size;
                        name[len] = '\0';
                }
                return true;
        }
        for (size_t k = 0; n && k < n->n_metadata_props; k++) {
                const char *key = n->metadata_props[k]->key, *value = n->metadata_props[k]->value;
                if (!key || !value || strcmp(key, "pkg.torch.onnx.name_scopes"))
                        continue;
                const char *last = strrchr(value, ','), *open = last;
                while (open > value && open[-1] != '[' && open[-1] != ' ')
                        open--;
                if (!last || *open != '\'' || last - open < 2 || last - open - 2 >= MFL_LAYER_NAME_BYTES)
                        return false;
                memcpy(name, open + 1, (size_t)(last - open - 2));
                name[last - open - 2] = '\0';
                name[strcspn(name, "@")] = '\0';
                return true;
        }
        return false;
}

/* "block.norm" and "block_1.norm_2": a module that is called again. */
static bool is_same_module(const char *scope, const char *module)
{
        while (*scope || *module) {
                size_t n = strcspn(module, "."), m = strcspn(scope, ".");
                if (m < n || strncmp(scope, module, n) != 0)
                        return false;
                if (m > n && (scope[n] != '_' || strspn(scope + n + 1, "0123456789") != m - n - 1))
                        return false;
                scope += m + (scope[m] == '.');
                module += n + (module[n] == '.');
        }
        return true;
}

/* The module that a parameter belongs to by its name. */
static void owner_of(const char *origin, char name[MFL_LAYER_NAME_BYTES])
{
        const char *dot = strrchr(origin, '.');
        size_t n = dot ? MFL_MIN((size_t)(dot - origin), (size_t)MFL_LAYER_NAME_BYTES - 1) : 0;
        memcpy(name, origin, n);
        name[n] = '\0';
}

bool mfl_onnx_is_of_module(const struct onnx *o, int node, const char *origin)
{
        char scope[MFL_LAYER_NAME_BYTES], owner[MFL_LAYER_NAME_BYTES];
        owner_of(origin, owner);
        return module_of(o, node, scope) && is_same_module(scope, owner);
}

/* Exporters for inference merge tensors that are equal, and ones and zeros often are. A module that uses such a tensor
 * under the name of another module has its own, unless it is the module of the earlier layer that is called again: an
 * nn.MultiheadAttention uses the weights of its part out_proj itself. */
static bool is_merged(const struct onnx *o, const struct onnx_layer *layer, const struct onnx_layer *earlier,
        const struct onnx_tensor *t)
{
        char scope[MFL_LAYER_NAME_BYTES], before[MFL_LAYER_NAME_BYTES];
        if (o->knows_ties || !mfl_onnx_is_uniform(t) || mfl_onnx_is_generated(o, t->origin) ||
                !module_of(o, layer->node, scope) || mfl_onnx_is_of_module(o, layer->node, t->origin))
                return false;
        return !module_of(o, earlier->node, before) || !strcmp(scope, before) ||
               !is_same_module(scope, before);
}

/* How many tensors of a layer are those of an earlier one, in the same places, of how many. Equal constants do not count. */
static int count_same(const struct onnx *o, const struct onnx_layer *a, const struct onnx_layer *b,
        int *ret_all, bool *ret_turned)
{
        int n = 0, all = 0;
        for (int k = 0; k < ONNX_TENSORS_PER_LAYER && a->tensors[k]; k++) {
                bool turned;
                if (is_same_constant(a->tensors[k], b->tensors[k]))
                        continue;
                all++;
                if (!is_same(o, a->tensors[k], b->tensors[k], &turned) || is_merged(o, a, b, a->tensors[k]))
                        continue;
                if (k == 0)
                        *ret_turned = turned;
                n += k == 0 || !turned;
        }
        *ret_all = all;
        return n;
}

static bool has_weight(const struct onnx *o, const struct onnx_layer *a, const struct onnx_layer *b)
{
        bool turned;
        return is_same(o, a->tensors[0], b->tensors[0], &turned) && !is_merged(o, a, b, a->tensors[0]);
}

static void share_weight(struct onnx *o, int i, int with, bool turned)
{
        struct onnx_layer *layer = &o->layers[i];
        char scope[MFL_LAYER_NAME_BYTES];
        layer->layer.shares = with;
        layer->layer.sharing = turned ? MFL_SHARES_TRANSPOSED : MFL_SHARES_WEIGHT;
        if (!layer->layer.name[0] && module_of(o, layer->node, scope) && *scope &&
                !mfl_onnx_name_is_taken(o, scope))
                mfl_strcpy(layer->layer.name, sizeof layer->layer.name, scope);
        mfl_onnx_note(o, "%.120s uses the tensor %.120s again: it is trained as one tensor",
                layer->layer.name[0] ? layer->layer.name : mfl_layer_kind(&layer->layer),
                layer->tensors[0]->origin);
}

/* An export with constant folding transposes tied weights into a tensor of their own. */
static bool is_computed_copy(
        const struct onnx *o, const struct onnx_tensor *t, const struct onnx_tensor *earlier)
{
        if (o->knows_ties || !t->origin || !earlier || !earlier->origin || t->count != earlier->count ||
                !mfl_onnx_is_generated(o, t->origin) || mfl_onnx_is_generated(o, earlier->origin) ||
                mfl_onnx_is_uniform(t))
                return false;
        return !memcmp(t->f, earlier->f, (size_t)t->count * sizeof *t->f) || is_turned(t, earlier);
}

int mfl_onnx_fail_equal(struct onnx *o, const struct onnx_tensor *t)
{
        return mfl_onnx_fail(o,
                "reads %.120s, which an earlier layer has, and all its numbers are %g: the model ties both, "
                "or a tool (onnx-simplifier, "
                "onnxruntime) made one of equal tensors, which part in training; the file does not say "
                "which. Take the file as PyTorch wrote "
                "it, or export with mfl_export.save(net, example, file)",
                t->origin ? t->origin : "a tensor", t->count ? (double)t->f[0] : 0.0);
}

/* Of a layer that has some tensors of an earlier one: such a tensor whose numbers are all the same; NULL: none is. */
static const struct onnx_tensor *equal_part(const struct onnx *o, int i)
{
        const struct onnx_layer *layer = &o->layers[i];
        bool turned;
        for (int j = 1; j < i && !o->described; j++)
                for (int k = 0; k < ONNX_TENSORS_PER_LAYER && layer->tensors[k]; k++)
                        for (int n = 0; n < ONNX_TENSORS_PER_LAYER && o->layers[j].tensors[n]; n++)
                                if (mfl_onnx_is_uniform(layer->tensors[k]) &&
                                        is_same(o, layer->tensors[k], o->layers[j].tensors[n], &turned))
                                        return layer->tensors[k];
        return NULL;
}

/* Whether tensors of one number may be two that a tool made one of: the file does not say which are tied. */
static bool may_be_merged(const struct onnx *o, const struct onnx_tensor *t)
{
        return !o->described && !o->knows_ties && !o->own && t && t->origin && t->param &&
               mfl_onnx_is_uniform(t) && !mfl_onnx_is_generated(o, t->origin);
}

/* Of two places: whether one is the other module's, by the tensor's name, and no other call of the same. */
static bool parts(const struct onnx *o, int a, int b, const struct onnx_tensor *t)
{
        char of_a[MFL_LAYER_NAME_BYTES], of_b[MFL_LAYER_NAME_BYTES];
        if (!module_of(o, a, of_a) || !module_of(o, b, of_b) || is_same_module(of_a, of_b) ||
                is_same_module(of_b, of_a))
                return false;
        return !mfl_onnx_is_of_module(o, a, t->origin) || !mfl_onnx_is_of_module(o, b, t->origin);
}

static bool reads(const Onnx__NodeProto *node, const char *name)
{
        for (size_t k = 0; k < node->n_input; k++)
                if (!strcmp(node->input[k], name))
                        return true;
        return false;
}

/* An Identity by which PyTorch parts equal tensors: its output is a parameter of its own (mfl_onnx_read_copies). */
static bool is_own(const struct onnx *o, const Onnx__NodeProto *node)
{
        const struct onnx_value *v = !strcmp(node->op_type, "Identity") && node->n_output
                                             ? mfl_onnx_find(o, node->output[0])
                                             : NULL;
        return v && v->tensor && v->tensor->origin && !strcmp(v->tensor->origin, node->output[0]);
}

/* A parameter that the model computes with: the nodes where it stands. Those of one call of a module may have read two. */
static int check_value(struct onnx *o, int i)
{
        const struct onnx_tensor *t = o->layers[i].tensors[0];
        char scope[MFL_LAYER_NAME_BYTES], of_first[MFL_LAYER_NAME_BYTES];
        int first = -1, n = 1;
        if (o->layers[i].layer.op != MFL_OP_WEIGHT || o->layers[i].layer.frozen || !may_be_merged(o, t))
                return 0;
        for (int k = 0; k < (int)o->graph->n_node; k++) {
                if (!reads(o->graph->node[k], t->origin) || is_own(o, o->graph->node[k]))
                        continue;
                if (first >= 0 && parts(o, first, k, t)) {
                        o->node = k;
                        return mfl_onnx_fail_equal(o, t);
                }
                n += first >= 0 &&
                     (!module_of(o, first, of_first) || !module_of(o, k, scope) || !strcmp(scope, of_first));
                first = first < 0 ? k : first;
        }
        if (n > 1 && !o->said)
                mfl_onnx_note(o,
                        "%.60s, whose numbers are all %g, stands in %d places: it is trained as one "
                        "parameter. The file does not say whether a tool made one of several that are equal; "
                        "mfl_export.save tells",
                        t->origin, (double)t->f[0], n);
        return 0;
}

/* Finds the earlier layer that is this one, or has its weight. */
static int share_layer(struct onnx *o, int i)
{
        struct onnx_layer *layer = &o->layers[i];
        int with = 0, all;
        bool turned = false, other = false;
        for (int j = 1; j < i; j++) {
                const struct onnx_layer *earlier = &o->layers[j];
                if (is_computed_copy(o, layer->tensors[0], earlier->tensors[0]))
                        return mfl_onnx_fail(o,
                                "its weight %.120s, which the export computed, equals %.120s. If the model "
                                "ties them, the "
                                "export has untied them: export with do_constant_folding=False",
                                layer->tensors[0]->origin, earlier->tensors[0]->origin);
                char scope[MFL_LAYER_NAME_BYTES], owner[MFL_LAYER_NAME_BYTES];
                int n = count_same(o, layer, earlier, &all, &turned);
                bool again = n > 0 && n == all && !turned && layer->layer.op == earlier->layer.op;
                if (again && module_of(o, layer->node, scope) && all == 1 && layer->tensors[0]->origin) {
                        if (!module_of(o, earlier->node, owner))
                                owner_of(layer->tensors[0]->origin, owner);
                        again = is_same_module(scope, owner) || !*scope;
                }
                if (again) {
                        layer->layer.shares = j;
                        return 0;
                }
                if (!with && has_weight(o, layer, earlier)) {
                        with = j;
                        if (may_be_merged(o, layer->tensors[0]) &&
                                parts(o, layer->node, earlier->node, layer->tensors[0]))
                                return mfl_onnx_fail_equal(o, layer->tensors[0]);
                }
                other = other || (n > 0 && !has_weight(o, layer, earlier));
                other = other || (n > 1);
        }
        const struct onnx_tensor *equal = other ? equal_part(o, i) : NULL;
        if (equal)
                return mfl_onnx_fail_equal(o, equal);
        if (other)
                return mfl_onnx_fail(o,
                        "shares some of its tensors with an earlier layer, such as %.120s; a layer shares "
                        "all "
                        "of "
                        "its tensors, or its weight alone",
                        layer->tensors[0]->origin ? layer->tensors[0]->origin : "?");
        if (!with)
                return 0;
        count_same(o, layer, &o->layers[with], &all, &turned);
        if (turned && layer->layer.op != MFL_OP_DENSE)
                return mfl_onnx_fail(o,
                        "uses the parameter %.120s as it is, but %.120s uses it transposed, as x @ w does: "
                        "store it "
                        "as {outputs, inputs} and write F.linear(x, w)",
                        layer->tensors[0]->origin,
                        o->layers[with].layer.name[0] ? o->layers[with].layer.name : "a dense layer");
        share_weight(o, i, with, turned);
        return 0;
}

int mfl_onnx_share(struct onnx *o)
{
        int r = 0;
        for (int i = 1; !r && i < o->n_layers; i++) {
                o->node = o->layers[i].node;
                if (o->layers[i].tensors[0] && o->layers[i].layer.op != MFL_OP_INPUT)
                        r = share_layer(o, i);
                if (!r)
                        r = check_value(o, i);
        }
        o->node = -1;
        return r;
}
