/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses to train a file that another program changed after PyTorch had written it. Optimisers merge parameters into others, compute
 * with them, and leave out those that are 0 or 1. Nothing in such a file says which, unless PyTorch's list of parameters is still
 * there (export.c). Inference takes the file. */
#include <stdio.h>

#include "cli/onnx/internal.h"

#define RULE "pkg.onnxscript.rewriter.rule_name"
#define REMEDY                                                                                               \
        "`mfl model import` takes it. Train the file as PyTorch wrote it, or export with "                   \
        "mfl_export.save(net, example, file)"

static bool begins_with(const char *text, const char *with)
{
        return text && !strncmp(text, with, strlen(with));
}

/* onnxruntime lists all of its own operators' domains in what it writes. */
static bool is_of_onnxruntime(const struct onnx *o)
{
        for (size_t i = 0; i < o->file->n_opset_import; i++)
                if (begins_with(o->file->opset_import[i]->domain, "com.microsoft"))
                        return true;
        return false;
}

/* The rule by which onnxscript's optimiser made the node; NULL: none. */
static const char *rule_of(const Onnx__NodeProto *node)
{
        for (size_t k = 0; k < node->n_metadata_props; k++)
                if (node->metadata_props[k]->key && !strcmp(node->metadata_props[k]->key, RULE))
                        return node->metadata_props[k]->value;
        return NULL;
}

/* PyTorch's first exporter tells nothing of initializers beside their values; onnxscript's optimiser and converter do. */
static const char *told_initializer(const struct onnx *o)
{
        for (size_t i = 0; !o->current && i < o->graph->n_value_info; i++) {
                const char *name = o->graph->value_info[i]->name;
                for (size_t k = 0; name && k < o->graph->n_initializer; k++)
                        if (o->graph->initializer[k]->name && !strcmp(o->graph->initializer[k]->name, name))
                                return name;
        }
        return NULL;
}

/* Whether the current exporter wrote the file, in a release that lists the parameters (which opsets below 18 lose), and its optimiser
 * has run: it makes initializers of all nodes of constants. */
static bool is_optimised(const struct onnx *o)
{
        int major = 0, minor = 0;
        bool named = false;
        if (!o->file->producer_name || strcmp(o->file->producer_name, "pytorch") != 0 ||
                !o->file->producer_version ||
                sscanf(o->file->producer_version, "%d.%d", &major, &minor) != 2 ||
                (major == 2 && minor < 6) || major < 2 || !o->current || o->opset >= 18)
                return false;
        for (size_t i = 0; i < o->graph->n_node; i++) {
                const char *name = o->graph->node[i]->name;
                named = named || begins_with(name, "node_");
                if (begins_with(name, "node_Constant"))
                        return false;
        }
        return named;
}

/* Whether the current exporter's notes on its operations are there, by which export.c finds what is lost. */
static bool has_notes(const struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_node; i++)
                for (size_t k = 0; k < o->graph->node[i]->n_metadata_props; k++)
                        if (begins_with(o->graph->node[i]->metadata_props[k]->key, "pkg.torch.onnx."))
                                return true;
        return false;
}

/* The operator of "/module/Exp_1_output_0", a value of PyTorch's first exporter; false: it is no such name. */
static bool operator_of(const char *value, char op[MFL_NAME_BYTES])
{
        const char *last = value && *value == '/' ? strrchr(value, '/') + 1 : "";
        const char *end = strstr(last, "_output_");
        mfl_snprintf(op, MFL_NAME_BYTES, "%.*s", end ? (int)strcspn(last, "_") : 0, last);
        return *op;
}

static bool is_zeros_and_ones(const struct onnx_tensor *t)
{
        for (int64_t i = 0; i < t->count; i++)
                if (t->f[i] != 0 && t->f[i] != 1)
                        return false;
        return true;
}

/* An initializer that was a node's output: a tool computed it, of constants or of parameters. Masks are no parameters. */
static const char *computed(const struct onnx *o)
{
        static const char *const masks =
                " Cast Equal Less LessOrEqual Greater GreaterOrEqual Not And Or Xor Where Trilu ";
        char op[MFL_NAME_BYTES], word[MFL_NAME_BYTES + 2];
        for (size_t i = 0; i < o->graph->n_initializer; i++) {
                const char *name = o->graph->initializer[i]->name;
                const struct onnx_value *v = name ? mfl_onnx_find(o, name) : NULL;
                if (!v || !v->tensor || !v->tensor->f || !operator_of(name, op) ||
                        begins_with(op, "Constant"))
                        continue;
                mfl_snprintf(word, sizeof word, " %s ", op);
                if (!strstr(masks, word) || !is_zeros_and_ones(v->tensor))
                        return name;
        }
        return NULL;
}

int mfl_onnx_check_changed(struct onnx *o)
{
        const char *name;
        o->node = -1;
        if (o->own || o->described || o->said)
                return 0;
        if (is_of_onnxruntime(o))
                return mfl_onnx_fail(o,
                        "onnxruntime's optimiser has changed the file. It merges parameters into others and "
                        "leaves out those that are 0 or 1. " REMEDY);
        if (has_notes(o))
                return 0;
        if (is_optimised(o))
                return mfl_onnx_fail(o,
                        "PyTorch's exporter optimised the file and then converted it to opset %lld, without "
                        "the list of the module's parameters, so that zero biases and merged parameters are "
                        "lost. `mfl model import` takes it. Export with mfl_export.save(net, example, file), "
                        "or with dynamo=False, or with optimize=False and opset_version=18 or newer",
                        (long long)o->opset);
        for (size_t i = 0; i < o->graph->n_node; i++) {
                const char *rule = rule_of(o->graph->node[i]);
                o->node = rule ? (int)i : -1;
                if (rule)
                        return mfl_onnx_fail(o,
                                "onnxscript's optimiser has made it (%.120s), which may leave out a bias of "
                                "zeros or merge parameters. " REMEDY,
                                rule);
        }
        if ((name = told_initializer(o)))
                return mfl_onnx_fail(o,
                        "onnxscript has changed the file (it describes %.60s). Its optimiser merges "
                        "parameters into others and leaves out those that are 0 or 1. " REMEDY,
                        name);
        if ((name = computed(o)))
                return mfl_onnx_fail(o,
                        "a tool has made a constant of the node that computed %.60s: a parameter of it may "
                        "be lost. " REMEDY,
                        name);
        return 0;
}
