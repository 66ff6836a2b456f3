/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses to train what an export for inference has changed and can't be undone: merged norms, dropped biases, computed weights.
 * Such a file computes the same, so that inference takes it. */
#include "cli/onnx/internal.h"

#define NEIGHBOURS 32 /* nodes around a node that may belong to the same operation of PyTorch's */

#define EXPORT_CALL                                                                                          \
        "mfl_export.save(model, x, file) (see pytorch.md), or torch.onnx.export(model, x, file, "            \
        "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=17, "           \
        "dynamo=False)"

static bool is_mask(const struct onnx_tensor *t)
{
        for (int64_t i = 0; i < t->count; i++)
                if (t->f[i] != 0 && t->f[i] != 1 && !(t->f[i] <= -1e4f))
                        return false;
        return true;
}

/* A float tensor that PyTorch's first exporter computed from others: parameters, buffers or constants, it doesn't say which. */
static bool is_computed(const struct onnx *o, const char *name, bool weights)
{
        const struct onnx_value *v = strncmp(name, "onnx::", 6) ? NULL : mfl_onnx_find(o, name);
        const struct onnx_tensor *t = v ? v->tensor : NULL;
        return t && t->f && t->count > 1 && (weights || (!mfl_onnx_is_uniform(t) && !is_mask(t)));
}

/* A number that the current exporter computed from a parameter or a buffer, which nodes may take as a setting of their own. */
static bool is_temperature(const struct onnx *o, const char *name)
{
        const struct onnx_value *v = mfl_onnx_find(o, name);
        return v && v->tensor && v->tensor->f && v->tensor->count == 1 && v->tensor->folded;
}

/* Constant folding transposes the weights of an nn.Linear and sorts those of a recurrent layer. It computes with them as well (w * mask,
 * weight norm), and the name does not tell which. A recurrent layer also reads states, which are mostly zeros. */
static const char *computed_input(const struct onnx *o, const Onnx__NodeProto *node)
{
        static const char *const weigh[] = {"Gemm", "Conv", "ConvTranspose", "Gather", "MatMul"};
        bool weights = false;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(weigh); i++)
                weights = weights || !strcmp(node->op_type, weigh[i]);
        for (size_t k = 0; k < node->n_input; k++)
                if (is_computed(o, node->input[k], weights) || is_temperature(o, node->input[k]))
                        return node->input[k];
        return NULL;
}

/* How many parameters the operation of PyTorch's graph reads: "args = (%x, %p_fc_weight, %p_fc_bias)". */
static int count_params(const char *call)
{
        int n = 0;
        for (const char *at = call; (at = strstr(at, "%p_")); at += 3) {
                size_t len = strcspn(at, ",) ]");
                const char *first; /* the same one again counts once */
                for (first = call; (first = strstr(first, "%p_")) && first < at; first += 3)
                        if (strcspn(first, ",) ]") == len && !memcmp(first, at, len))
                                break;
                n += first == at;
        }
        return n;
}

/* Whether the text has an operator of PyTorch's whose name contains `part`: "aten.lstm.input". Names of modules do not count. */
static bool has_operator(const char *text, const char *part)
{
        for (const char *at = text; (at = strstr(at, "aten.")); at++) {
                const char *name = at + 5, *found = strstr(name, part);
                if (found && (size_t)(found - name) < strcspn(name, ".])', "))
                        return true;
        }
        return false;
}

/* PyTorch's current exporter says what each node was. It leaves out biases that are zeros. */
static bool lost_a_param(const struct onnx *o, size_t i)
{
        const char *call = mfl_onnx_note_of(o->graph->node[i]), *names[8];
        int params = call ? count_params(call) : 0, n = 0;
        if (params < 2 || params > (int)MFL_ARRAY_SIZE(names) || has_operator(call, "lstm") ||
                has_operator(call, "gru") || has_operator(call, "rnn"))
                return false;
        size_t from = i > NEIGHBOURS ? i - NEIGHBOURS : 0, to = MFL_MIN(i + NEIGHBOURS, o->graph->n_node);
        for (size_t k = from; k < to; k++) {
                const Onnx__NodeProto *node = o->graph->node[k];
                const char *same = mfl_onnx_note_of(node);
                for (size_t j = 0; same && !strcmp(same, call) && j < node->n_input; j++) {
                        const struct onnx_value *v = mfl_onnx_find(o, node->input[j]);
                        int old = 0;
                        while (old < n && strcmp(names[old], node->input[j]))
                                old++;
                        if (v && v->tensor && v->tensor->f && old == n && n < params)
                                names[n++] = node->input[j];
                }
        }
        return n < params;
}

/* Whether PyTorch's operation was a batch norm. Modules and values with such a name ("patch_norm", the input of this node) do not
 * count, nor do the lines of the user's code. */
static bool was_batch_norm(const Onnx__NodeProto *node)
{
        for (size_t k = 0; k < node->n_metadata_props; k++) {
                const char *key = node->metadata_props[k]->key, *value = node->metadata_props[k]->value;
                if (key && value && !strstr(key, "stack") &&
                        (has_operator(value, "batch_norm") || strstr(value, "FuseBatchNorm")))
                        return true;
        }
        return false;
}

static int check_node(struct onnx *o, size_t i)
{
        const Onnx__NodeProto *node = o->graph->node[i];
        const char *computed = computed_input(o, node);
        bool conv = !strcmp(node->op_type, "Conv");
        bool weighs = conv || !strcmp(node->op_type, "ConvTranspose") || !strcmp(node->op_type, "Gemm") ||
                      !strcmp(node->op_type, "MatMul");
        o->node = (int)i;
        if (conv && computed)
                return mfl_onnx_fail(o,
                        "batch norm was folded into its weights %.120s by an export for inference, which "
                        "`mfl model import` takes. Export for training: " EXPORT_CALL,
                        computed);
        if (computed)
                return mfl_onnx_fail(o,
                        "reads %.120s, which an export for inference computed: a parameter of it is lost%s. "
                        "`mfl model import` "
                        "takes it. Export for training: " EXPORT_CALL,
                        computed,
                        !strncmp(computed, "onnx::", 6)
                                ? ", or it is one that constant folding has only moved, as the weights of a "
                                  "Linear; the file does not say which"
                                : "");
        if (weighs && was_batch_norm(node))
                return mfl_onnx_fail(o, "batch norm was folded into it; `mfl model import` "
                                        "takes it. Export for training: " EXPORT_CALL);
        if (lost_a_param(o, i))
                return mfl_onnx_fail(o, "has lost a parameter that is zeros, such as a bias, to an export "
                                        "for inference, which "
                                        "`mfl model import` takes. Export for training: " EXPORT_CALL);
        return 0;
}

/* ---- parameters that the file does not have ---- */

/* Whether the file has the parameter under some name, or a tensor that was computed from it. */
static bool has_param(const struct onnx *o, const char *name)
{
        char quoted[MFL_LAYER_NAME_BYTES * 4];
        const struct onnx_value *v = mfl_onnx_find(o, name);
        if (v && v->tensor)
                return true;
        mfl_snprintf(quoted, sizeof quoted, "'%.240s'", name);
        for (size_t i = 0; i < o->graph->n_initializer; i++) {
                const char *other = o->graph->initializer[i]->name;
                const char *from = other ? mfl_onnx_said_of(o, other, ONNX_FOLDED) : NULL;
                const char *was =
                        other ? mfl_onnx_said_of(o, other, "pkg.torch.onnx.original_node_name") : NULL;
                if ((from && strstr(from, quoted)) || (was && mfl_onnx_is_noted(was, strlen(was), name)))
                        return true;
        }
        return false;
}

/* A node of one of PyTorch's own layers, which reads no parameters but its own. */
static bool is_of_torch(const Onnx__NodeProto *node)
{
        static const char layer[] = "'torch.nn.modules.";
        for (size_t k = 0; k < node->n_metadata_props; k++) {
                const char *key = node->metadata_props[k]->key, *value = node->metadata_props[k]->value,
                           *last;
                if (!key || !value || strcmp(key, "pkg.torch.onnx.class_hierarchy") != 0 ||
                        !(last = strrchr(value, ',')))
                        continue;
                while (last > value && last[-1] != '[' && last[-1] != ' ') /* the class before the operator */
                        last--;
                return !strncmp(last, layer, sizeof layer - 1);
        }
        return false;
}

static bool is_of_owner(const char *name, const char *other)
{
        const char *dot = strrchr(name, '.'), *its = strrchr(other, '.');
        return dot && its && dot - name == its - other && !strncmp(name, other, (size_t)(dot - name));
}

/* Whether the missing parameter has another name in the file: a layer of PyTorch's reads as many parameters of other modules as
 * it has none of in the file. The optimiser's notes say what each operation read. */
static bool is_tied(const struct onnx *o, const char *missing)
{
        for (size_t i = 0; i < o->graph->n_node; i++) {
                int lacks = 0, reads = 0;
                if (!is_of_torch(o->graph->node[i]) || !mfl_onnx_is_of_module(o, (int)i, missing))
                        continue;
                for (size_t k = 0; k < o->n_said; k++) {
                        const char *name = mfl_onnx_said_name(o, k);
                        if (!name || mfl_onnx_role(o, name) != ONNX_PARAMETER)
                                continue;
                        bool own = is_of_owner(missing, name), has = has_param(o, name);
                        lacks += own && !has;
                        reads += !own && has && mfl_onnx_is_noted_at(o, (int)i, name);
                }
                if (reads >= lacks)
                        return true;
        }
        return false;
}

/* Sums and products, which PyTorch's optimiser leaves out if one side is the number 0 or 1. */
static bool is_sum(const char *name)
{
        static const char *const stems[] = {"add", "sub", "rsub", "mul", "div", "true_divide", NULL};
        return mfl_onnx_has_stem(name, strlen(name), stems);
}

/* A sum or a product that some node reads by its note, and that no node makes any more; NULL: there is none. */
static const char *missing_sum(const struct onnx *o, char name[MFL_LAYER_NAME_BYTES])
{
        for (size_t i = 0; i < o->graph->n_node; i++) {
                const char *note = mfl_onnx_note_of(o->graph->node[i]);
                for (const char *at = note ? strstr(note, "(args = ") : NULL; at && (at = strchr(at, '%'));) {
                        size_t n = strcspn(++at, ",)]}: ");
                        mfl_snprintf(name, MFL_LAYER_NAME_BYTES, "%.*s",
                                (int)MFL_MIN(n, (size_t)MFL_LAYER_NAME_BYTES), at);
                        if (is_sum(name) && !mfl_onnx_find(o, name))
                                return name;
                }
        }
        return NULL;
}

/* The same of a sum or a product that is an output: another node makes the value of that name. */
static const char *missing_output(const struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_node; i++) {
                const Onnx__NodeProto *node = o->graph->node[i];
                const char *note = mfl_onnx_note_of(node);
                for (size_t k = 0; note && *note == '%' && k < node->n_output; k++) {
                        const char *name = node->output[k];
                        if (is_sum(name) && (strcspn(note + 1, " ") != strlen(name) ||
                                                    strncmp(note + 1, name, strlen(name)) != 0))
                                return name;
                }
        }
        return NULL;
}

/* Whether the i-th initializer is a parameter that is the number 0 or 1: some of its uses may have been left out. */
static bool is_number(const struct onnx *o, size_t i)
{
        const char *name = o->graph->initializer[i]->name;
        const struct onnx_value *v = name ? mfl_onnx_find(o, name) : NULL;
        const struct onnx_tensor *t = v ? v->tensor : NULL;
        return t && t->param && t->f && t->count == 1 && (t->f[0] == 0 || t->f[0] == 1);
}

static const char *number_of(const struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_initializer; i++)
                if (is_number(o, i))
                        return o->graph->initializer[i]->name;
        return NULL;
}

/* Whether a node of the same operation of PyTorch's as this one reads the parameter, or what was computed from it. */
static bool is_read_near(const struct onnx *o, int node, const char *name)
{
        const char *note = mfl_onnx_note_of(o->graph->node[node]);
        char quoted[MFL_LAYER_NAME_BYTES * 4];
        mfl_snprintf(quoted, sizeof quoted, "'%.240s'", name);
        for (size_t i = 0; i < o->graph->n_node; i++) {
                const Onnx__NodeProto *other = o->graph->node[i];
                const char *its = mfl_onnx_note_of(other);
                for (size_t k = 0; its && !strcmp(its, note) && k < other->n_input; k++) {
                        const char *from = mfl_onnx_said_of(o, other->input[k], ONNX_FOLDED);
                        if (!strcmp(other->input[k], name) || (from && strstr(from, quoted)))
                                return true;
                }
        }
        return false;
}

/* An operation of several nodes, as addcmul, of which the optimiser left out the one that reads a parameter that is 0 or 1. */
static int check_numbers(struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_initializer; i++) {
                const char *name = o->graph->initializer[i]->name;
                for (size_t k = 0; is_number(o, i) && k < o->graph->n_node; k++) {
                        if (!mfl_onnx_is_noted_at(o, (int)k, name) || is_read_near(o, (int)k, name))
                                continue;
                        o->node = (int)k;
                        return mfl_onnx_fail(o,
                                "has lost the parameter %.120s, which is 0 or 1: PyTorch's optimiser left it "
                                "out. Export with "
                                "mfl_export.save(net, example, file), or with optimize=False",
                                name);
                }
        }
        return 0;
}

static void list(char *names, size_t room, const char *name, int n)
{
        size_t used = strlen(names);
        if (n < 4)
                mfl_snprintf(names + used, room - used, "%s%.120s", n ? ", " : "", name);
        else if (n == 4)
                mfl_snprintf(names + used, room - used, " and others");
}

static int check_merged(struct onnx *o)
{
        bool apart;
        for (size_t i = 0; i < o->graph->n_node; i++) {
                const char *name = mfl_onnx_merged_at(o, (int)i, &apart);
                o->node = (int)i;
                if (name && !apart)
                        return mfl_onnx_fail_merged(o, name);
        }
        return 0;
}

static bool is_symmetric(const struct onnx_tensor *t)
{
        int64_t n =
                t && t->f && t->shape.rank == 2 && t->shape.dim[0] == t->shape.dim[1] ? t->shape.dim[0] : 0;
        for (int64_t i = 0; i < n; i++)
                for (int64_t k = 0; k < i; k++)
                        if (t->f[i * n + k] != t->f[k * n + i])
                                return false;
        return n > 1;
}

/* Whether PyTorch's operation takes the matrix transposed, where the node has it as it is. */
static bool takes_turned(const Onnx__NodeProto *node)
{
        const char *note = mfl_onnx_note_of(node);
        return note && !strcmp(node->op_type, "MatMul") && has_operator(note, "linear");
}

/* A matrix that is its own transpose, such as an identity, of which one operation takes the parameter and another its transpose: the
 * optimiser makes one of both, and in training they part. */
static int check_symmetric(struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_initializer; i++) {
                const char *name = o->graph->initializer[i]->name;
                const struct onnx_value *v = name ? mfl_onnx_find(o, name) : NULL;
                int plain = 0, turned = 0;
                if (!v || v->uses < 2 || !v->tensor || !(v->tensor->param || v->tensor->folded) ||
                        !is_symmetric(v->tensor))
                        continue;
                for (size_t k = 0; k < o->graph->n_node; k++)
                        for (size_t j = 0; j < o->graph->node[k]->n_input; j++)
                                if (!strcmp(o->graph->node[k]->input[j], name)) {
                                        *(takes_turned(o->graph->node[k]) ? &turned : &plain) += 1;
                                        o->node = (int)k;
                                }
                if (plain && turned)
                        return mfl_onnx_fail_merged(o, v->tensor->origin);
        }
        o->node = -1;
        return 0;
}

/* Tied parameters have several names in the list and one in the file; those that the module does not use are only in the list. */
static int check_lost(struct onnx *o)
{
        char names[240] = "", lost[240] = "", gone[MFL_LAYER_NAME_BYTES];
        bool apart;
        int n = 0, n_lost = 0, r = check_merged(o);
        if (!r && o->current)
                r = check_symmetric(o);
        if (!r && o->said)
                r = check_numbers(o);
        if (r)
                return r;
        for (size_t i = 0; i < o->n_said; i++) {
                const char *name = mfl_onnx_said_name(o, i);
                if (!name || mfl_onnx_role(o, name) != ONNX_PARAMETER || has_param(o, name))
                        continue;
                if ((o->node = mfl_onnx_noted_at(o, name)) < 0) {
                        list(names, sizeof names, name, n++);
                        if (!is_tied(o, name))
                                list(lost, sizeof lost, name, n_lost++);
                } else if (!mfl_onnx_merged_at(o, o->node, &apart))
                        return mfl_onnx_fail(o,
                                "has lost the parameter %.120s to an export for inference, which "
                                "`mfl model import` takes. Export for training: " EXPORT_CALL,
                                name);
        }
        o->node = -1;
        const char *sum = missing_sum(o, gone), *number = number_of(o);
        sum = sum ? sum : missing_output(o);
        if (n_lost && sum)
                return mfl_onnx_fail(o,
                        "the file lacks the module's parameters %s, and the operation %.120s: PyTorch's "
                        "optimiser left it out, "
                        "since one side is 0 or 1. Export with mfl_export.save(net, example, file), or with "
                        "optimize=False",
                        lost, sum);
        if (sum && number)
                return mfl_onnx_fail(o,
                        "PyTorch's optimiser left out the operation %.120s, one side of which is 0 or 1, as "
                        "the parameter %.120s is. "
                        "Export with mfl_export.save(net, example, file), or with optimize=False",
                        sum, number);
        if (n)
                mfl_onnx_note(o,
                        "the file lacks the module's parameters %s: they are tied to others, or the module "
                        "does not use them",
                        names);
        return 0;
}

/* A random mask that PyTorch's optimiser drew itself: it computes a Bernoulli of constants, and the file has its numbers. */
static int check_drawn(struct onnx *o)
{
        static const char *const drawn[] = {"bernoulli", NULL};
        for (size_t i = 0; i < o->graph->n_initializer; i++) {
                const char *name = o->graph->initializer[i]->name;
                const char *from = name ? mfl_onnx_said_of(o, name, ONNX_FOLDED) : NULL;
                bool found = from && mfl_onnx_has_stem(name, strlen(name), drawn);
                for (const char *at = from; at && !found && (at = strchr(at, '\''));) {
                        size_t n = strcspn(++at, "'");
                        found = mfl_onnx_has_stem(at, n, drawn);
                        at += n + (at[n] == '\'');
                }
                if (found)
                        return mfl_onnx_fail(o,
                                "%.60s was random, and PyTorch's optimiser drew it once, for all steps of "
                                "the "
                                "training. Export with mfl_export.save(net, example, file), or with "
                                "optimize=False",
                                name);
        }
        return 0;
}

/* Whether the node's note names the buffer, "%b_1_running_mean" of "1.running_mean". */
static bool reads_buffer(const Onnx__NodeProto *node, const char *name)
{
        const char *note = mfl_onnx_note_of(node);
        for (const char *at = note; at && (at = strstr(at, "%b_")); at++)
                if (mfl_onnx_is_noted(at + 1, strcspn(at + 1, ",) ]"), name))
                        return true;
        return false;
}

/* A norm of each sample that keeps running statistics for evaluation: ONNX's InstanceNormalization has none. */
static int check_statistics(struct onnx *o)
{
        for (size_t k = 0; k < o->n_said; k++) {
                const char *name = mfl_onnx_said_name(o, k);
                if (!name || mfl_onnx_role(o, name) != ONNX_BUFFER || has_param(o, name))
                        continue;
                for (size_t i = 0; i < o->graph->n_node; i++) {
                        o->node = (int)i;
                        if (!strcmp(o->graph->node[i]->op_type, "InstanceNormalization") &&
                                reads_buffer(o->graph->node[i], name))
                                return mfl_onnx_fail(o,
                                        "has lost %.120s, with which the module evaluates: use an "
                                        "InstanceNorm with track_running_stats=False",
                                        name);
                }
        }
        o->node = -1;
        return 0;
}

int mfl_onnx_check_export(struct onnx *o)
{
        if (o->files && o->files->inference)
                return 0;
        bool has_norm = false, has_conv = false;
        int rc = mfl_onnx_check_changed(o);
        rc = rc ? rc : check_drawn(o);
        if (rc)
                return rc;
        for (size_t i = 0; i < o->graph->n_node; i++) {
                const char *op = o->graph->node[i]->op_type;
                has_norm = has_norm || strstr(op, "Normalization");
                has_conv = has_conv || !strcmp(op, "Conv");
                int r = check_node(o, i);
                if (r)
                        return r;
        }
        if (has_conv && !has_norm && !o->described && !o->said)
                mfl_onnx_note(o,
                        "the graph has convolutions and no norm; if the model has batch norm, the export "
                        "lost it: use " EXPORT_CALL);
        o->node = -1;
        rc = o->described ? 0 : check_statistics(o);
        return rc || o->described ? rc : check_lost(o);
}
