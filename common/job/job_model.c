/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a job's model. */
#include "common/job/job_model.h"
#include "common/job/job.h"

#include <math.h>
#include <stdio.h>

static int read_preset(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        const char *names[32] = {NULL};
        static const struct mfl_yaml_field field = {.kind = MFL_YAML_ENUM, .size = sizeof(int)};
        struct mfl_yaml_field with_names = field;
        int i, r;
        const char *ending = node->type == MFL_YAML_SCALAR ? strrchr(node->text, '.') : NULL;
        if (ending && !strcmp(ending, ".onnx"))
                return mfl_yaml_fail(doc, node, err, "an ONNX file is written {onnx: %.200s}", node->text);
        if (ending && (!strcmp(ending, ".pt") || !strcmp(ending, ".pth")))
                return mfl_yaml_fail(doc, node, err,
                        "a PyTorch file is not read: export the module with mfl_export.save(net, example, "
                        "\"model.onnx\"), and write {onnx: model.onnx}");
        if (ending && !strcmp(ending, ".safetensors"))
                return mfl_yaml_fail(doc, node, err,
                        "a file of weights has no layers: write {preset: ..., initial: %.200s}, or layers or "
                        "onnx in place of preset",
                        node->text);
        for (i = 0; mfl_presets[i].name && i < 31; i++)
                names[i] = mfl_presets[i].name;
        with_names.names = names;
        if ((r = mfl_yaml_read_value(doc, node, &with_names, &i, err)))
                return r;
        mfl_strcpy(((struct mfl_job *)value)->model.preset, MFL_NAME_BYTES, names[i]);
        return 0;
}

static int read_input(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_I64, .size = sizeof(int64_t), .min = 1, .max = MFL_WIDTH_MAX};
        struct mfl_shape *shape = value;
        if (node->type != MFL_YAML_SEQUENCE || node->n_children < 1 || node->n_children > 3)
                return mfl_yaml_fail(doc, node, err,
                        "expected [features], [tokens], [positions, features] or [channels, height, width]");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                int r = mfl_yaml_read_value(doc, n, &field, &shape->dim[shape->rank], err);
                if (r)
                        return r;
                shape->rank++;
        }
        return 0;
}

/* The command line replaces it by layers before a job is parsed, so that no other program reads ONNX. */
static int read_onnx(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return mfl_yaml_fail(doc, node, err,
                "only the command line (mfl submit, check, run) reads ONNX files, and turns them into "
                "layers");
}

/* ---- tensors of a program's model ---- */

/* [NAME, SIZE, SIZE, ...] */
static int read_tensor(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_job_tensor *tensor, struct mfl_error *err)
{
        static const struct mfl_yaml_field name = {.kind = MFL_YAML_STRING, .size = sizeof tensor->name};
        static const struct mfl_yaml_field size = {
                .kind = MFL_YAML_I64, .size = sizeof(int64_t), .min = 1, .max = (double)MFL_PARAMS_MAX};
        if (node->type != MFL_YAML_SEQUENCE || node->n_children < 1 ||
                node->n_children > 1 + MFL_SHAPE_RANK_MAX)
                return mfl_yaml_fail(doc, node, err,
                        "expected [NAME, SIZE, ...] with at most %d sizes, such as [conv1.weight, 32, 1, 5, "
                        "5]",
                        MFL_SHAPE_RANK_MAX);
        int r = mfl_yaml_read_value(doc, node->first, &name, tensor->name, err);
        for (const struct mfl_yaml_node *n = node->first->next; n && !r; n = n->next)
                r = mfl_yaml_read_value(doc, n, &size, &tensor->shape.dim[tensor->shape.rank++], err);
        return r;
}

static int read_tensors(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_job *job = value;
        if (node->type != MFL_YAML_SEQUENCE || !node->n_children)
                return mfl_yaml_fail(doc, node, err, "expected a list of [NAME, SIZE, ...]");
        job->model.tensors = mfl_calloc(node->n_children, sizeof *job->model.tensors);
        if (!job->model.tensors)
                return mfl_fail_memory(err, node->n_children * sizeof *job->model.tensors, "tensors");
        int r = 0;
        for (const struct mfl_yaml_node *n = node->first; n && !r; n = n->next)
                r = read_tensor(doc, n, &job->model.tensors[job->model.n_tensors++], err);
        return r;
}

#define GLOBS(key_, member)                                                                                  \
        {                                                                                                    \
                .key = (key_), .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_job, model.from.member), \
                .read = mfl_job_read_globs                                                                   \
        }
static const struct mfl_yaml_field initial_fields[] = {
        {.key = "file", MFL_YAML_AT(TEXT, struct mfl_job, model.initial), .required = true},
        {.key = "prefix", MFL_YAML_AT(TEXT, struct mfl_job, model.from.prefix)}, GLOBS("missing", missing),
        GLOBS("unused", unused), GLOBS("transposed", transposed), {0}};

/* A path, or a mapping with the path and what is special about the file. */
static int read_initial(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field path = {MFL_YAML_AT(TEXT, struct mfl_job, model.initial)};
        if (node->type == MFL_YAML_MAPPING)
                return mfl_yaml_read(doc, node, initial_fields, value, err);
        return mfl_yaml_read_value(doc, node, &path, value, err);
}

static const struct mfl_yaml_field model_fields[] = {
        {.key = "onnx", .kind = MFL_YAML_CALL, .read = read_onnx},
        {.key = "preset", .kind = MFL_YAML_CALL, .read = read_preset},
        {.key = "layers", .kind = MFL_YAML_CALL, .read = mfl_job_read_layers},
        {.key = "tensors", .kind = MFL_YAML_CALL, .read = read_tensors},
        {.key = "init", MFL_YAML_AT(ENUM, struct mfl_job, model.init), .names = mfl_job_init_names},
        {.key = "input",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_job, model.input),
                .read = read_input},
        {.key = "classes", MFL_YAML_AT(U32, struct mfl_job, model.classes), .min = 1, .max = MFL_WIDTH_MAX},
        {.key = "freeze",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_job, model.freeze),
                .read = mfl_job_read_globs},
        {.key = "lora", .kind = MFL_YAML_FIELDS, .fields = mfl_job_lora_fields},
        {.key = "initial", .kind = MFL_YAML_CALL, .read = read_initial}, {0}};

const struct mfl_yaml_field *const mfl_job_model_tables[] = {
        model_fields, mfl_job_lora_fields, initial_fields, NULL};

/* The message carries the line of the layer that fails. */
static int check_layers(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *list,
        const struct mfl_job *job, struct mfl_error *err)
{
        MFL_CLEANUP_FREE struct mfl_layer *layers = mfl_job_layers(job, &job->model.input);
        struct mfl_error why;
        int n = job->model.n_layers + 1, at = 0;
        if (!layers)
                return mfl_fail_memory(err, (size_t)n * sizeof *layers, "a job's layers");
        int r = mfl_graph_check(layers, n, job->model.classes, &at, &why);
        if (r <= 0)
                return r ? mfl_fail(err, r, "%s", why.text) : 0;
        const struct mfl_yaml_node *node = list->first;
        for (int i = 1; i < at && node->next; i++)
                node = node->next;
        return mfl_yaml_fail(doc, at ? node : list, err, "%.400s", why.text);
}

static int check_preset(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_job *job, struct mfl_error *err)
{
        struct mfl_graph *graph;
        struct mfl_error why;
        int classes = job->model.classes ? job->model.classes : 2;
        int r = mfl_graph_preset(job->model.preset, &job->model.input, classes, &graph, &why);
        if (r > 0)
                return mfl_yaml_fail(doc, mfl_yaml_find(node, "input"), err, "%.400s", why.text);
        if (r)
                return mfl_fail(err, r, "%s", why.text);
        mfl_graph_free(graph);
        return 0;
}

/* Finds duplicate names even if no shape is known. */
static int check_names(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *list,
        const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *node = list->first;
        for (int i = 0; i < job->model.n_layers; i++, node = node->next) {
                const char *name = job->model.layers[i].name;
                if (!strcmp(name, "input"))
                        return mfl_yaml_fail(
                                doc, node, err, "the name input is reserved for the model's input");
                for (int j = 0; *name && j < i; j++) {
                        if (!strcmp(job->model.layers[j].name, name))
                                return mfl_yaml_fail(
                                        doc, node, err, "layers[%d] already has the name %.120s", j, name);
                }
        }
        return 0;
}

static void set_init(struct mfl_job *job)
{
        enum mfl_init own = job->model.init < 0 ? MFL_INIT_TORCH : (enum mfl_init)job->model.init;
        for (int i = 0; i < job->model.n_layers; i++) {
                struct mfl_layer *layer = &job->model.layers[i];
                if ((int)layer->init == MFL_JOB_INIT_NOT_GIVEN)
                        layer->init = own;
        }
}

/* Everything else about a model is about its layers. */
static int check_tensors(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, struct mfl_error *err)
{
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next)
                if (strcmp(n->key, "tensors") && strcmp(n->key, "initial"))
                        return mfl_yaml_fail(doc, n, err,
                                "needs layers, and a model of tensors has none that mfl knows: its program "
                                "does that; remove it");
        return 0;
}

int mfl_job_read_model(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_job *job = value;
        int r;
        if (node->type == MFL_YAML_SCALAR)
                return read_preset(doc, node, job, err);
        if ((r = mfl_yaml_read(doc, node, model_fields, job, err)))
                return r;
        const struct mfl_yaml_node *list = mfl_yaml_find(node, "layers");
        if (job->model.tensors)
                return check_tensors(doc, node, err);
        if (!list == !job->model.preset[0])
                return mfl_yaml_fail(doc, node, err,
                        job->model.initial ? "initial gives start values, not layers: give one of preset, "
                                             "layers and onnx beside it, or "
                                             "training.program"
                                           : "give one of preset, layers and onnx, or, with "
                                             "training.program, only initial");
        set_init(job);
        if ((r = mfl_job_check_adapt(doc, node, job, err)))
                return r;
        if (list && (r = check_names(doc, list, job, err)))
                return r;
        if (!job->model.input.rank)
                return 0;
        return list ? check_layers(doc, list, job, err) : check_preset(doc, node, job, err);
}
