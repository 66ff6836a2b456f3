/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a job's list of layers: one table of keys for each operator. */
#include "common/job/job.h"
#include "common/job/job_layers.h"
#include "common/job/job_model.h"

#define SIZE_LIMIT 65536

const char *const mfl_job_init_names[] = {"he", "glorot", "torch", "zero", "gpt2", NULL};

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

int mfl_job_read_window(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_pair(doc, node, value, 1, err);
}

static int read_padding(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_pair(doc, node, value, 0, err);
}

/* A name that is too long is not cut: no layer has it. */
static int read_layer_name(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        char name[MFL_LAYER_NAME_BYTES], struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {.kind = MFL_YAML_STRING, .size = MFL_LAYER_NAME_BYTES};
        return mfl_yaml_read_value(doc, node, &field, name, err);
}

int mfl_job_read_input(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_layer_name(doc, node, value, err);
}

static int read_input_names(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        char(*names)[MFL_LAYER_NAME_BYTES] = value;
        if (node->type != MFL_YAML_SEQUENCE || node->n_children != 2)
                return mfl_yaml_fail(doc, node, err, "expected the names of two layers: [a, b]");
        int r = read_layer_name(doc, node->first, names[0], err);
        return r ? r : read_layer_name(doc, node->first->next, names[1], err);
}

static const struct mfl_yaml_field size_field = {
        .kind = MFL_YAML_I64, .size = sizeof(int64_t), .min = 1, .max = INT32_MAX};

/* A list of 1 to 3 sizes. */
int mfl_job_read_shape(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_shape shape = {0};
        if (node->type != MFL_YAML_SEQUENCE || node->n_children < 1 || node->n_children > 3)
                return mfl_yaml_fail(doc, node, err,
                        "expected the sizes of 1 to 3 dimensions without the batch, such as [64, 128]");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                int r = mfl_yaml_read_value(doc, n, &size_field, &shape.dim[shape.rank], err);
                if (r)
                        return r;
                shape.rank++;
        }
        *(struct mfl_shape *)value = shape;
        return 0;
}

static int read_order(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .max = MFL_SHAPE_RANK_MAX - 1};
        int *order = value, i = 0;
        if (node->type != MFL_YAML_SEQUENCE || node->n_children < 1 || node->n_children > 3)
                return mfl_yaml_fail(
                        doc, node, err, "expected the input's dimensions in their new order, such as [1, 0]");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                uint32_t from;
                int r = mfl_yaml_read_value(doc, n, &field, &from, err);
                if (r)
                        return r;
                order[i++] = (int)from;
        }
        return 0;
}

#define EPS                                                                                                  \
        {                                                                                                    \
                .key = "eps", AT(F32, layer.eps), .min = 0, .min_open = true, .max = 1                       \
        }
#define WINDOW                                                                                               \
        {.key = "kernel", CALL_AT(layer.kernel, mfl_job_read_window), .required = true},                     \
                {.key = "stride", CALL_AT(layer.stride, mfl_job_read_window)},                               \
                {.key = "padding", CALL_AT(layer.padding, read_padding)},                                    \
        {                                                                                                    \
                .key = "dilation", CALL_AT(layer.dilation, mfl_job_read_window)                              \
        }
#define WEIGHTS                                                                                              \
        {.key = "bias", AT(BOOL, layer.bias)},                                                               \
        {                                                                                                    \
                .key = "init", AT(ENUM, init), .names = mfl_job_init_names                                   \
        }
#define FROZEN                                                                                               \
        {                                                                                                    \
                .key = "frozen", AT(BOOL, layer.frozen)                                                      \
        }
#define SHARES                                                                                               \
        {                                                                                                    \
                .key = "shares", CALL_AT(shares[MFL_SHARES_ALL], mfl_job_read_input)                         \
        }
#define SHARES_WEIGHT                                                                                        \
        {                                                                                                    \
                .key = "shares_weight", CALL_AT(shares[MFL_SHARES_WEIGHT], mfl_job_read_input)               \
        }
#define SHARES_TRANSPOSED                                                                                    \
        {                                                                                                    \
                .key = "shares_transposed", CALL_AT(shares[MFL_SHARES_TRANSPOSED], mfl_job_read_input)       \
        }
#define INPUTS                                                                                               \
        {                                                                                                    \
                .key = "inputs", CALL_AT(inputs, read_input_names), .required = true                         \
        }
#define AXIS                                                                                                 \
        {                                                                                                    \
                .key = "axis", AT(U32, layer.axis), .required = true, .max = MFL_SHAPE_RANK_MAX - 1          \
        }
#define OUTPUTS(key_)                                                                                        \
        {                                                                                                    \
                .key = key_, AT(U32, layer.out_channels), .required = true, .min = 1, .max = MFL_WIDTH_MAX   \
        }

/* The second is a key that the operator requires. */
static const struct mfl_yaml_field conv_fields[] = {NAME, OUTPUTS("filters"), WINDOW,
        {.key = "groups", AT(U32, layer.conv_groups), .min = 1, .max = SIZE_LIMIT}, WEIGHTS, FROZEN, SHARES,
        SHARES_WEIGHT, INPUT, {0}};
static const struct mfl_yaml_field convtranspose_fields[] = {NAME, OUTPUTS("filters"), WINDOW,
        {.key = "output_padding", CALL_AT(layer.output_padding, read_padding)},
        {.key = "groups", AT(U32, layer.conv_groups), .min = 1, .max = SIZE_LIMIT}, WEIGHTS, FROZEN, SHARES,
        SHARES_WEIGHT, INPUT, {0}};
static const struct mfl_yaml_field dense_fields[] = {NAME, OUTPUTS("units"), WEIGHTS, FROZEN, SHARES,
        SHARES_WEIGHT, SHARES_TRANSPOSED,
        {.key = "lora_rank", AT(U32, layer.lora_rank), .min = 1, .max = SIZE_LIMIT},
        {.key = "lora_alpha", AT(F32, layer.lora_alpha), .min = 0, .min_open = true, .max = 1e6}, INPUT, {0}};
static const struct mfl_yaml_field pool_fields[] = {NAME, WINDOW,
        {.key = "ceil_mode", AT(BOOL, layer.ceil_mode)},
        {.key = "count_include_pad", AT(BOOL, count_include_pad)}, INPUT, {0}};
static const struct mfl_yaml_field maxpool_fields[] = {
        NAME, WINDOW, {.key = "ceil_mode", AT(BOOL, layer.ceil_mode)}, INPUT, {0}};
static const struct mfl_yaml_field dropout_fields[] = {NAME,
        {.key = "rate", AT(F32, layer.rate), .required = true, .min = 0, .max = 1, .max_open = true}, INPUT,
        {0}};
static const struct mfl_yaml_field join_fields[] = {NAME, INPUTS, {0}};
static const struct mfl_yaml_field matmul_fields[] = {
        NAME, INPUTS, {.key = "transposed", AT(BOOL, layer.transposed)}, {0}};
static const struct mfl_yaml_field concat_fields[] = {NAME, INPUTS, AXIS, {0}};
static const struct mfl_yaml_field batchnorm_fields[] = {NAME, EPS,
        {.key = "momentum", AT(F32, layer.momentum), .min = 0, .min_open = true, .max = 1}, FROZEN, SHARES,
        SHARES_WEIGHT, INPUT, {0}};
static const struct mfl_yaml_field groupnorm_fields[] = {NAME,
        {.key = "norm_groups", AT(U32, layer.norm_groups), .required = true, .min = 1, .max = SIZE_LIMIT},
        EPS, FROZEN, SHARES, SHARES_WEIGHT, INPUT, {0}};
static const struct mfl_yaml_field layernorm_fields[] = {
        NAME, EPS, {.key = "bias", AT(BOOL, layer.bias)}, FROZEN, SHARES, SHARES_WEIGHT, INPUT, {0}};
static const struct mfl_yaml_field rmsnorm_fields[] = {NAME, EPS, FROZEN, SHARES, SHARES_WEIGHT, INPUT, {0}};
static const struct mfl_yaml_field gelu_fields[] = {
        NAME, {.key = "approximate", AT(BOOL, layer.approximate)}, INPUT, {0}};
static const struct mfl_yaml_field reshape_fields[] = {
        NAME, {.key = "shape", CALL_AT(layer.shape, mfl_job_read_shape), .required = true}, INPUT, {0}};
static const struct mfl_yaml_field weight_fields[] = {NAME,
        {.key = "shape", CALL_AT(layer.shape, mfl_job_read_shape), .required = true},
        {.key = "init", AT(ENUM, init), .names = mfl_job_init_names}, FROZEN, SHARES, SHARES_WEIGHT, {0}};
static const struct mfl_yaml_field transpose_fields[] = {
        NAME, {.key = "order", CALL_AT(layer.order, read_order), .required = true}, INPUT, {0}};
static const struct mfl_yaml_field slice_fields[] = {NAME, AXIS,
        {.key = "start", AT(U32, layer.start), .max = INT32_MAX},
        {.key = "end", AT(U32, layer.end), .min = 1, .max = INT32_MAX}, INPUT, {0}};
static const struct mfl_yaml_field embedding_fields[] = {NAME, OUTPUTS("features"),
        {.key = "vocabulary", AT(U32, layer.vocabulary), .required = true, .min = 1, .max = MFL_WIDTH_MAX},
        {.key = "padding_idx",
                AT(U32, layer.padding_idx),
                .max = MFL_WIDTH_MAX - 1,
                .seen = offsetof(struct mfl_layer_reader, layer.has_padding)},
        {.key = "init", AT(ENUM, init), .names = mfl_job_init_names}, FROZEN, SHARES, SHARES_WEIGHT, INPUT,
        {0}};
static const struct mfl_yaml_field mask_fields[] = {
        NAME, {.key = "token", AT(U32, layer.padding_idx), .max = MFL_WIDTH_MAX - 1}, INPUT, {0}};
static const struct mfl_yaml_field attention_fields[] = {NAME,
        {.key = "heads", AT(U32, layer.heads), .required = true, .min = 1, .max = SIZE_LIMIT},
        {.key = "causal", AT(BOOL, layer.causal)},
        {.key = "dropout", AT(F32, layer.rate), .min = 0, .max = 1, .max_open = true},
        {.key = "mask", CALL_AT(inputs[1], mfl_job_read_input)}, INPUT, {0}};
static const struct mfl_yaml_field recurrent_fields[] = {
        NAME, OUTPUTS("units"), WEIGHTS, FROZEN, SHARES, INPUT, {0}};
static const struct mfl_yaml_field lstm_fields[] = {NAME, OUTPUTS("units"),
        {.key = "last_cell", AT(BOOL, layer.last_cell)}, WEIGHTS, FROZEN, SHARES, INPUT, {0}};
static const struct mfl_yaml_field rnn_fields[] = {
        NAME, OUTPUTS("units"), {.key = "relu", AT(BOOL, layer.relu)}, WEIGHTS, FROZEN, SHARES, INPUT, {0}};
static const struct mfl_yaml_field plain_fields[] = {NAME, INPUT, {0}};

/* Functions of one variable with parameters: unary.def. */
#define PARAM(member, name, otherwise, low, high, open)                                                      \
        {                                                                                                    \
                .key = name, AT(F32, layer.member), .min = low, .min_open = open, .max = high                \
        }
#define NEEDED(member, name, low, high, example)                                                             \
        {                                                                                                    \
                .key = name, AT(F32, layer.member), .min = low, .max = high, .required = true                \
        }
#define FIELDS_0(body, ...)
#define FIELDS_1(body, ...)                                                                                  \
        static const struct mfl_yaml_field body##_fields[] = {NAME, __VA_ARGS__, INPUT, {0}};
#define FIELDS_2(body, ...) FIELDS_1(body, __VA_ARGS__)
#define FIELDS_OF_0(symbol, body)
#define FIELDS_OF_1(symbol, body) [MFL_OP_##symbol] = body##_fields,
#define FIELDS_OF_2(symbol, body) FIELDS_OF_1(symbol, body)
#define UNARY(symbol, body, stem, reads, n, cost, since, edges, low, high, onnx, ...)                        \
        FIELDS_##n(body, __VA_ARGS__)
#include "common/model/unary.def"

static const struct mfl_yaml_field *const fields_of[MFL_OP_COUNT_] = {
        [MFL_OP_CONV2D] = conv_fields,
        [MFL_OP_CONVTRANSPOSE2D] = convtranspose_fields,
        [MFL_OP_DENSE] = dense_fields,
        [MFL_OP_MAXPOOL2D] = maxpool_fields,
        [MFL_OP_AVGPOOL2D] = pool_fields,
        [MFL_OP_DROPOUT] = dropout_fields,
        [MFL_OP_ADD] = join_fields,
        [MFL_OP_MULTIPLY] = join_fields,
        [MFL_OP_GATE] = join_fields,
        [MFL_OP_MATMUL] = matmul_fields,
        [MFL_OP_CONCAT] = concat_fields,
        [MFL_OP_BATCHNORM] = batchnorm_fields,
        [MFL_OP_GROUPNORM] = groupnorm_fields,
        [MFL_OP_LAYERNORM] = layernorm_fields,
        [MFL_OP_RMSNORM] = rmsnorm_fields,
        [MFL_OP_GELU] = gelu_fields,
        [MFL_OP_RESHAPE] = reshape_fields,
        [MFL_OP_WEIGHT] = weight_fields,
        [MFL_OP_TRANSPOSE] = transpose_fields,
        [MFL_OP_SLICE] = slice_fields,
        [MFL_OP_MEAN] = mfl_job_mean_fields,
        [MFL_OP_EMBEDDING] = embedding_fields,
        [MFL_OP_PADDING_MASK] = mask_fields,
        [MFL_OP_ATTENTION] = attention_fields,
        [MFL_OP_LSTM] = lstm_fields,
        [MFL_OP_GRU] = recurrent_fields,
        [MFL_OP_RNN] = rnn_fields,
#define UNARY(symbol, body, stem, reads, n, ...) FIELDS_OF_##n(symbol, body)
#include "common/model/unary.def"
};

static const struct mfl_yaml_field *layer_fields(const struct mfl_layer *layer)
{
        if (layer->op == MFL_OP_MAP)
                return mfl_job_map_fields[layer->map.kind];
        return fields_of[layer->op] ? fields_of[layer->op] : plain_fields;
}

/* The operators whose `bias` is true by default. */
static bool has_bias(enum mfl_op op)
{
        return op == MFL_OP_CONV2D || op == MFL_OP_CONVTRANSPOSE2D || op == MFL_OP_DENSE ||
               op == MFL_OP_LAYERNORM || mfl_op_is_recurrent(op);
}

#define KINDS_MAX (MFL_OP_COUNT_ + MFL_MAP_COUNT_)

/* The words for layers: operators, and the kinds of maps that are layers of their own. */
static int list_kinds(const char *names[KINDS_MAX], struct mfl_layer kinds[KINDS_MAX])
{
        int n = 0;
        for (int op = MFL_OP_INPUT + 1; op < MFL_OP_COUNT_; op++)
                if (op != MFL_OP_MAP)
                        kinds[n++].op = (enum mfl_op)op;
        for (int kind = 0; kind < MFL_MAP_COUNT_; kind++)
                if (mfl_job_map_fields[kind])
                        kinds[n++] =
                                (struct mfl_layer){.op = MFL_OP_MAP, .map.kind = (enum mfl_map_kind)kind};
        for (int i = 0; i < n; i++)
                names[i] = mfl_layer_kind(&kinds[i]);
        return n;
}

static int read_op(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, const char *name,
        struct mfl_layer *layer, struct mfl_error *err)
{
        const char *names[KINDS_MAX + 1] = {NULL};
        struct mfl_layer kinds[KINDS_MAX] = {{0}};
        for (int i = 0, n = list_kinds(names, kinds); i < n; i++) {
                if (!strcmp(names[i], name)) {
                        layer->op = kinds[i].op;
                        layer->map.kind = kinds[i].map.kind;
                        return 0;
                }
        }
        const char *nearest = mfl_yaml_nearest(name, names);
        if (nearest)
                return mfl_yaml_fail(
                        doc, node, err, "there is no layer '%.120s'; did you mean '%s'?", name, nearest);
        return mfl_yaml_fail(
                doc, node, err, "there is no layer '%.120s'; `mfl help job` lists the layers", name);
}

static int read_layer(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_layer_reader *reader, struct mfl_error *err)
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
        if ((r = read_op(doc, node, op_name, layer, err)))
                return r;
        layer->bias = has_bias(layer->op);
        if (!value && layer_fields(layer)[1].required)
                return mfl_yaml_fail(doc, node, err, "%s needs settings: {%s: {%s: ...}}", op_name, op_name,
                        layer_fields(layer)[1].key);
        if (value && (r = mfl_yaml_read(doc, value, layer_fields(layer), reader, err)))
                return r;
        bool is_pool = layer->op == MFL_OP_MAXPOOL2D || layer->op == MFL_OP_AVGPOOL2D;
        if (is_pool && !layer->stride[0])
                memcpy(layer->stride, layer->kernel, sizeof layer->stride);
        return mfl_job_finish_map(doc, node, reader, err);
}

/* The layer of that name before the next one, -1 for none; "input" is the model's input, in a graph's numbering. */
static int find_layer(const struct mfl_job *job, const char *name)
{
        if (!strcmp(name, "input"))
                return 0;
        for (int i = 0; i < job->model.n_layers; i++)
                if (!strcmp(job->model.layers[i].name, name))
                        return i + 1;
        return -1;
}

/* Turns names into numbers; a layer that names no input reads the one before it. */
static int find_inputs(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_job *job, struct mfl_layer_reader *reader, struct mfl_error *err)
{
        int *const found[] = {&reader->layer.input, &reader->layer.input2};
        for (int k = 0; k < 2; k++) {
                const char *name = reader->inputs[k];
                if (!*name)
                        continue;
                *found[k] = find_layer(job, name);
                if (*found[k] < 0)
                        return mfl_yaml_fail(doc, node, err,
                                "%s: no layer before this one has the name '%.120s'; name the layer that "
                                "should be read",
                                mfl_op_inputs(reader->layer.op) == 2 ? "inputs" : "input", name);
        }
        return 0;
}

static int find_shared(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_job *job, struct mfl_layer_reader *reader, struct mfl_error *err)
{
        static const char *const keys[] = {[MFL_SHARES_ALL] = "shares",
                [MFL_SHARES_WEIGHT] = "shares_weight",
                [MFL_SHARES_TRANSPOSED] = "shares_transposed"};
        const char *key = NULL;
        for (size_t k = 0; k < MFL_ARRAY_SIZE(keys); k++) {
                const char *name = reader->shares[k];
                if (!*name)
                        continue;
                if (key)
                        return mfl_yaml_fail(doc, node, err, "%s and %s: give one of them", key, keys[k]);
                key = keys[k];
                reader->layer.sharing = (enum mfl_sharing)k;
                reader->layer.shares = find_layer(job, name);
                if (reader->layer.shares <= 0)
                        return mfl_yaml_fail(doc, node, err,
                                "%s: no layer before this one has the name '%.120s'; the later layer names "
                                "the "
                                "earlier one",
                                key, name);
        }
        return 0;
}

int mfl_job_read_layers(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_job *job = value;
        if (node->type != MFL_YAML_SEQUENCE || node->n_children < 1 || node->n_children >= MFL_LAYERS_MAX)
                return mfl_yaml_fail(doc, node, err, "expected a list of 1 to %d layers", MFL_LAYERS_MAX - 1);
        job->model.layers = mfl_calloc(node->n_children, sizeof *job->model.layers);
        if (!job->model.layers)
                return mfl_fail_memory(err, node->n_children * sizeof *job->model.layers, "a job's layers");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                struct mfl_layer_reader reader = {.layer = {.input = job->model.n_layers, .input2 = -1},
                        .init = MFL_JOB_INIT_NOT_GIVEN,
                        .count_include_pad = true};
                int r;
                if ((r = read_layer(doc, n, &reader, err)) || (r = find_inputs(doc, n, job, &reader, err)) ||
                        (r = find_shared(doc, n, job, &reader, err))) {
                        free((void *)reader.layer.map.index);
                        return r;
                }
                reader.layer.init = (enum mfl_init)reader.init;
                job->model.layers[job->model.n_layers++] = reader.layer;
        }
        return 0;
}

const struct mfl_yaml_field *const mfl_job_layer_tables[] = {conv_fields, dense_fields, convtranspose_fields,
        pool_fields, maxpool_fields, dropout_fields, join_fields, matmul_fields, concat_fields,
        batchnorm_fields, groupnorm_fields, layernorm_fields, rmsnorm_fields, gelu_fields,
#define TABLE_0(body)
#define TABLE_1(body) body##_fields,
#define TABLE_2(body) TABLE_1(body)
#define UNARY(symbol, body, stem, reads, n, ...) TABLE_##n(body)
#include "common/model/unary.def"
        reshape_fields, weight_fields, transpose_fields, slice_fields, mfl_job_mean_fields, embedding_fields,
        mask_fields, attention_fields, recurrent_fields, lstm_fields, rnn_fields, plain_fields, NULL};
