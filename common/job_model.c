/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a job's model and makes its graph. */
#include "common/job_model.h"
#include "common/job.h"

#include <math.h>
#include <stdio.h>

#define SIZE_LIMIT 65536

/* A layer or model that does not name its initialisation. */
#define INIT_NOT_GIVEN (-1)

static const char *const init_names[] = {"he", "glorot", "torch", "zero", NULL};

/* What a layer's mapping is read into; ints stay -1 where the key is missing, names are empty. */
struct layer_reader {
        struct mfl_layer layer;
        int init;
        char inputs[2][MFL_NAME_BYTES]; /* names of the layers that it reads */
};

static int read_pair(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, int pair[2],
        double min, struct mfl_error *err)
{
        struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .min = min, .max = SIZE_LIMIT};
        const struct mfl_yaml_node *first = node, *second = node;
        uint32_t v[2];
        int r;
        if (node->type == MFL_YAML_SEQUENCE) {
                if (node->n_children != 2)
                        return mfl_yaml_fail(doc, node, err,
                                "expected one whole number or [height, width], got a list of %u",
                                node->n_children);
                first = node->first;
                second = first->next;
        }
        if ((r = mfl_yaml_read_value(doc, first, &field, &v[0], err)) ||
                (r = mfl_yaml_read_value(doc, second, &field, &v[1], err)))
                return r;
        pair[0] = (int)v[0];
        pair[1] = (int)v[1];
        return 0;
}

static int read_window(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_pair(doc, node, value, 1, err);
}

static int read_padding(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_pair(doc, node, value, 0, err);
}

/* Cuts nothing: a name that is too long is no layer's. */
static int read_layer_name(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        char name[MFL_NAME_BYTES], struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {.kind = MFL_YAML_STRING, .size = MFL_NAME_BYTES};
        return mfl_yaml_read_value(doc, node, &field, name, err);
}

static int read_input_name(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_layer_name(doc, node, value, err);
}

static int read_input_names(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        char(*names)[MFL_NAME_BYTES] = value;
        if (node->type != MFL_YAML_SEQUENCE || node->n_children != 2)
                return mfl_yaml_fail(doc, node, err, "expected the names of two layers: [a, b]");
        int r = read_layer_name(doc, node->first, names[0], err);
        return r ? r : read_layer_name(doc, node->first->next, names[1], err);
}

#define AT(kind, member) MFL_YAML_AT(kind, struct layer_reader, member)
#define CALL_AT(member, read_)                                                                               \
        .kind = MFL_YAML_CALL, .offset = offsetof(struct layer_reader, member), .read = read_
#define NAME                                                                                                 \
        {                                                                                                    \
                .key = "name", AT(STRING, layer.name)                                                        \
        }
#define INPUT                                                                                                \
        {                                                                                                    \
                .key = "input", CALL_AT(inputs[0], read_input_name)                                          \
        }
#define EPS                                                                                                  \
        {                                                                                                    \
                .key = "eps", AT(F32, layer.eps), .min = 0, .min_open = true, .max = 1                       \
        }
#define WINDOW                                                                                               \
        {.key = "kernel", CALL_AT(layer.kernel, read_window), .required = true},                             \
                {.key = "stride", CALL_AT(layer.stride, read_window)},                                       \
                {.key = "padding", CALL_AT(layer.padding, read_padding)},                                    \
        {                                                                                                    \
                .key = "dilation", CALL_AT(layer.dilation, read_window)                                      \
        }
#define WEIGHTS                                                                                              \
        {.key = "bias", AT(BOOL, layer.bias)},                                                               \
        {                                                                                                    \
                .key = "init", AT(ENUM, init), .names = init_names                                           \
        }
#define OUTPUTS(key_)                                                                                        \
        {                                                                                                    \
                .key = key_, AT(U32, layer.out_channels), .required = true, .min = 1, .max = SIZE_LIMIT      \
        }

/* A key that an operator cannot do without is the second. */
static const struct mfl_yaml_field conv_fields[] = {NAME, OUTPUTS("filters"), WINDOW, WEIGHTS, INPUT, {0}};
static const struct mfl_yaml_field dense_fields[] = {NAME, OUTPUTS("units"), WEIGHTS, INPUT, {0}};
static const struct mfl_yaml_field pool_fields[] = {NAME, WINDOW, INPUT, {0}};
static const struct mfl_yaml_field dropout_fields[] = {NAME,
        {.key = "rate", AT(F32, layer.rate), .required = true, .min = 0, .max = 1, .max_open = true}, INPUT,
        {0}};
static const struct mfl_yaml_field add_fields[] = {
        NAME, {.key = "inputs", CALL_AT(inputs, read_input_names), .required = true}, {0}};
static const struct mfl_yaml_field batchnorm_fields[] = {NAME, EPS,
        {.key = "momentum", AT(F32, layer.momentum), .min = 0, .min_open = true, .max = 1}, INPUT, {0}};
static const struct mfl_yaml_field groupnorm_fields[] = {NAME,
        {.key = "norm_groups", AT(U32, layer.norm_groups), .required = true, .min = 1, .max = SIZE_LIMIT},
        EPS, INPUT, {0}};
static const struct mfl_yaml_field plain_fields[] = {NAME, INPUT, {0}};

static const struct mfl_yaml_field *op_fields(enum mfl_op op)
{
        switch (op) {
        case MFL_OP_CONV2D:
                return conv_fields;
        case MFL_OP_DENSE:
                return dense_fields;
        case MFL_OP_MAXPOOL2D:
        case MFL_OP_AVGPOOL2D:
                return pool_fields;
        case MFL_OP_DROPOUT:
                return dropout_fields;
        case MFL_OP_ADD:
                return add_fields;
        case MFL_OP_BATCHNORM:
                return batchnorm_fields;
        case MFL_OP_GROUPNORM:
                return groupnorm_fields;
        default:
                return plain_fields;
        }
}

static int read_op(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, const char *name,
        enum mfl_op *ret_op, struct mfl_error *err)
{
        const char *names[MFL_OP_COUNT_] = {NULL};
        char list[256] = "";
        size_t len = 0;
        for (int op = MFL_OP_INPUT + 1; op < MFL_OP_COUNT_; op++) {
                names[op - 1] = mfl_op_name(op);
                len += (size_t)snprintf(
                        list + len, sizeof list - len, "%s%s", op > 1 ? ", " : "", names[op - 1]);
                if (!strcmp(names[op - 1], name)) {
                        *ret_op = op;
                        return 0;
                }
        }
        const char *nearest = mfl_yaml_nearest(name, names);
        if (nearest)
                return mfl_yaml_fail(
                        doc, node, err, "there is no layer '%.64s'; did you mean '%s'?", name, nearest);
        return mfl_yaml_fail(doc, node, err, "there is no layer '%.64s'; there are %s", name, list);
}

static int read_layer(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct layer_reader *reader, struct mfl_error *err)
{
        struct mfl_layer *layer = &reader->layer;
        const struct mfl_yaml_node *value = NULL;
        const char *op_name = node->text;
        int r;
        if (node->type == MFL_YAML_MAPPING && node->n_children == 1) {
                value = node->first;
                op_name = value->key;
        }
        if (!op_name)
                return mfl_yaml_fail(doc, node, err, "a layer is a name, or one name with its settings");
        if ((r = read_op(doc, node, op_name, &layer->op, err)))
                return r;
        layer->bias = layer->op == MFL_OP_CONV2D || layer->op == MFL_OP_DENSE;
        if (!value && op_fields(layer->op)[1].required)
                return mfl_yaml_fail(doc, node, err, "%s needs settings: {%s: {%s: ...}}", op_name, op_name,
                        op_fields(layer->op)[1].key);
        if (value && (r = mfl_yaml_read(doc, value, op_fields(layer->op), reader, err)))
                return r;
        bool is_pool = layer->op == MFL_OP_MAXPOOL2D || layer->op == MFL_OP_AVGPOOL2D;
        if (is_pool && !layer->stride[0])
                memcpy(layer->stride, layer->kernel, sizeof layer->stride);
        return 0;
}

/* The layer of that name before the next one, -1 for none; "input" is the model's input, in the numbers of a
 * graph. */
static int find_layer(const struct mfl_job *job, const char *name)
{
        if (!strcmp(name, "input"))
                return 0;
        for (int i = 0; i < job->model.n_layers; i++)
                if (!strcmp(job->model.layers[i].name, name))
                        return i + 1;
        return -1;
}

/* Names become numbers; a layer that names none reads the one before. */
static int find_inputs(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_job *job, struct layer_reader *reader, struct mfl_error *err)
{
        int *const found[] = {&reader->layer.input, &reader->layer.input2};
        for (int k = 0; k < 2; k++) {
                const char *name = reader->inputs[k];
                if (!*name)
                        continue;
                *found[k] = find_layer(job, name);
                if (*found[k] < 0)
                        return mfl_yaml_fail(doc, node, err,
                                "%s: no layer before this one has the name '%.64s'; give the layer that is "
                                "meant a name",
                                reader->layer.op == MFL_OP_ADD ? "inputs" : "input", name);
        }
        return 0;
}

static int read_layers(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_job *job = value;
        if (node->type != MFL_YAML_SEQUENCE || node->n_children < 1 || node->n_children >= MFL_LAYERS_MAX)
                return mfl_yaml_fail(doc, node, err, "expected a list of 1 to %d layers", MFL_LAYERS_MAX - 1);
        job->model.layers = mfl_calloc(node->n_children, sizeof *job->model.layers);
        if (!job->model.layers)
                return mfl_fail_memory(err, node->n_children * sizeof *job->model.layers, "a job's layers");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                struct layer_reader reader = {
                        .layer = {.input = job->model.n_layers, .input2 = -1}, .init = INIT_NOT_GIVEN};
                int r;
                if ((r = read_layer(doc, n, &reader, err)) || (r = find_inputs(doc, n, job, &reader, err)))
                        return r;
                reader.layer.init = (enum mfl_init)reader.init;
                job->model.layers[job->model.n_layers++] = reader.layer;
        }
        return 0;
}

static int read_preset(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        const char *names[16] = {NULL};
        static const struct mfl_yaml_field field = {.kind = MFL_YAML_ENUM, .size = sizeof(int)};
        struct mfl_yaml_field with_names = field;
        int i, r;
        for (i = 0; mfl_presets[i].name && i < 15; i++)
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
                .kind = MFL_YAML_I64, .size = sizeof(int64_t), .min = 1, .max = SIZE_LIMIT};
        struct mfl_shape *shape = value;
        if (node->type != MFL_YAML_SEQUENCE || (node->n_children != 1 && node->n_children != 3))
                return mfl_yaml_fail(doc, node, err, "expected [features] or [channels, height, width]");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                int r = mfl_yaml_read_value(doc, n, &field, &shape->dim[shape->rank], err);
                if (r)
                        return r;
                shape->rank++;
        }
        return 0;
}

static const struct mfl_yaml_field model_fields[] = {
        {.key = "preset", .kind = MFL_YAML_CALL, .read = read_preset},
        {.key = "layers", .kind = MFL_YAML_CALL, .read = read_layers},
        {.key = "init", MFL_YAML_AT(ENUM, struct mfl_job, model.init), .names = init_names},
        {.key = "input",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_job, model.input),
                .read = read_input},
        {.key = "classes", MFL_YAML_AT(U32, struct mfl_job, model.classes), .min = 1, .max = SIZE_LIMIT},
        {.key = "initial", MFL_YAML_AT(TEXT, struct mfl_job, model.initial)}, {0}};

const struct mfl_yaml_field *const mfl_job_model_tables[] = {model_fields, conv_fields, dense_fields,
        pool_fields, dropout_fields, add_fields, batchnorm_fields, groupnorm_fields, plain_fields, NULL};

/* The job's layers behind an input layer, as mfl_graph_build takes them; heap, NULL when memory is out. */
static struct mfl_layer *with_input(const struct mfl_job *job, const struct mfl_shape *input)
{
        struct mfl_layer *layers = mfl_calloc((size_t)job->model.n_layers + 1, sizeof *layers);
        if (!layers)
                return NULL;
        layers[0] = (struct mfl_layer){.op = MFL_OP_INPUT, .input = -1, .input2 = -1, .out = *input};
        memcpy(layers + 1, job->model.layers, (size_t)job->model.n_layers * sizeof *layers);
        return layers;
}

/* The message carries the line of the layer that fails. */
static int check_layers(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *list,
        const struct mfl_job *job, struct mfl_error *err)
{
        MFL_CLEANUP_FREE struct mfl_layer *layers = with_input(job, &job->model.input);
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

/* Names that occur twice are found here even where no shape is known. */
static int check_names(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *list,
        const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *node = list->first;
        for (int i = 0; i < job->model.n_layers; i++, node = node->next) {
                const char *name = job->model.layers[i].name;
                if (!strcmp(name, "input"))
                        return mfl_yaml_fail(doc, node, err, "the name input is the model's input");
                for (int j = 0; *name && j < i; j++) {
                        if (!strcmp(job->model.layers[j].name, name))
                                return mfl_yaml_fail(
                                        doc, node, err, "layers[%d] has the name %.64s already", j, name);
                }
        }
        return 0;
}

static void set_init(struct mfl_job *job)
{
        enum mfl_init own = job->model.init < 0 ? MFL_INIT_TORCH : (enum mfl_init)job->model.init;
        for (int i = 0; i < job->model.n_layers; i++) {
                struct mfl_layer *layer = &job->model.layers[i];
                if ((int)layer->init == INIT_NOT_GIVEN)
                        layer->init = own;
        }
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
        if (!list == !job->model.preset[0])
                return mfl_yaml_fail(doc, node, err, "give either preset or layers");
        set_init(job);
        if (list && (r = check_names(doc, list, job, err)))
                return r;
        if (!job->model.input.rank)
                return 0;
        return list ? check_layers(doc, list, job, err) : check_preset(doc, node, job, err);
}

static int resolve_input(const struct mfl_job *job, const struct mfl_shape *input,
        struct mfl_shape *ret_input, struct mfl_error *err)
{
        const struct mfl_shape *own = &job->model.input;
        char have[96], want[96];
        if (!own->rank) {
                *ret_input = *input;
                return 0;
        }
        /* Flat samples may be looked at as images and the other way round, images not as other images. */
        bool fits = mfl_shape_count(own) == mfl_shape_count(input) && (own->rank == 1 || input->rank == 1);
        if (!fits && !mfl_shape_equal(own, input))
                return mfl_fail(err, MFL_INVALID,
                        "job %s: model.input is %s, the samples of data set %s are %s", job->name,
                        mfl_shape_text(own, want, sizeof want), job->data.name,
                        mfl_shape_text(input, have, sizeof have));
        *ret_input = *own;
        return 0;
}

static int build_graph(const struct mfl_job *job, const struct mfl_shape *input, int classes,
        struct mfl_graph **ret_graph, struct mfl_error *err)
{
        struct mfl_graph *graph;
        int r;
        if (job->model.preset[0]) {
                if ((r = mfl_graph_preset(job->model.preset, input, classes, &graph, err)))
                        return r;
                for (int i = 0; i < graph->n_layers && job->model.init >= 0; i++)
                        graph->layers[i].init = (enum mfl_init)job->model.init;
        } else {
                MFL_CLEANUP_FREE struct mfl_layer *layers = with_input(job, input);
                if (!layers)
                        return mfl_fail_memory(
                                err, sizeof *layers * (size_t)job->model.n_layers, "a job's layers");
                if ((r = mfl_graph_build(job->name, layers, job->model.n_layers + 1, classes, &graph, err)))
                        return r;
        }
        *ret_graph = graph;
        return 0;
}

int mfl_job_graph(const struct mfl_job *job, const struct mfl_shape *input, int classes,
        struct mfl_graph **ret_graph, struct mfl_error *err)
{
        struct mfl_graph *graph = NULL;
        struct mfl_shape shape;
        struct mfl_error why;
        int r = resolve_input(job, input, &shape, err);
        if (r)
                return r;
        if (job->model.classes && job->model.classes < classes)
                return mfl_fail(err, MFL_INVALID, "job %s: model.classes is %d, data set %s has %d classes",
                        job->name, job->model.classes, job->data.name, classes);
        r = build_graph(job, &shape, job->model.classes ? job->model.classes : classes, &graph, &why);
        if (r)
                return mfl_fail(err, r, "job %s: %.430s", job->name, why.text);
        if (!graph->n) {
                mfl_graph_free(graph);
                return mfl_fail(err, MFL_INVALID, "job %s: the model has no parameters to train", job->name);
        }
        *ret_graph = graph;
        return 0;
}
