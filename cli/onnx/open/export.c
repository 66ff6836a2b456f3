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

/* The weights of a MatMul are those of an nn.Linear, transposed; those of a recurrent layer are sorted. */
static const char *computed_input(const struct onnx *o, const Onnx__NodeProto *node)
{
        static const char *const taken[] = {"MatMul", "LSTM", "GRU", "RNN"}, *const weigh[] = {"Gemm", "Conv",
                                                                                     "ConvTranspose",
                                                                                     "Gather"};
        bool weights = false;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(taken); i++)
                if (!strcmp(node->op_type, taken[i]))
                        return NULL;
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
                        "batch norm was folded into its weights %.40s by an export for inference, which "
                        "`mfl model import` takes. Export for training: " EXPORT_CALL,
                        computed);
        if (computed)
                return mfl_onnx_fail(o,
                        "reads %.40s, which an export for inference computed: a parameter of it is lost. "
                        "`mfl model import` "
                        "takes it. Export for training: " EXPORT_CALL,
                        computed);
        if (weighs && was_batch_norm(node))
                return mfl_onnx_fail(o, "batch norm was folded into it; `mfl model import` "
                                        "takes it. Export for training: " EXPORT_CALL);
        if (lost_a_param(o, i))
                return mfl_onnx_fail(o, "has lost a parameter that is zeros, such as a bias, to an export "
                                        "for inference, which "
                                        "`mfl model import` takes. Export for training: " EXPORT_CALL);
        return 0;
}

int mfl_onnx_check_export(struct onnx *o)
{
        if (o->files && o->files->inference)
                return 0;
        bool has_norm = false, has_conv = false;
        for (size_t i = 0; i < o->graph->n_node; i++) {
                const char *op = o->graph->node[i]->op_type;
                has_norm = has_norm || strstr(op, "Normalization");
                has_conv = has_conv || !strcmp(op, "Conv");
                int r = check_node(o, i);
                if (r)
                        return r;
        }
        if (has_conv && !has_norm)
                mfl_onnx_note(o,
                        "the graph has convolutions and no norm; if the model has batch norm, the export "
                        "lost it: use " EXPORT_CALL);
        o->node = -1;
        return 0;
}
