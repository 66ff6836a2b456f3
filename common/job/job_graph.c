/* SPDX-License-Identifier: Apache-2.0 */
/* A job's graph: its preset or its layers, with adapters, frozen layers, and those that stay with each client (`personal`). */
#include "common/job/job.h"
#include "common/job/job_model.h"

/* ---- layers that stay with each client ---- */

const struct mfl_yaml_field mfl_job_personal_fields[] = {
        {.key = "layers",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_job, personal.layers),
                .read = mfl_job_read_globs,
                .required = true},
        {.key = "epochs", MFL_YAML_AT(U32, struct mfl_job, personal.epochs), .min = 1, .max = 1000}, {0}};

/* Whether a pattern is the name of a tensor, or of a layer that uses it. */
static bool selects(const char *pattern, const struct mfl_graph *graph, int t)
{
        const struct mfl_param *param = &graph->params[t];
        bool found = mfl_glob(pattern, param->name) || mfl_glob(pattern, graph->layers[param->layer].name);
        for (int k = 0; k < graph->n_aliases && !found; k++) {
                const struct mfl_alias *alias = &graph->aliases[k];
                found = alias->param == t && (mfl_glob(pattern, alias->name) ||
                                                     mfl_glob(pattern, graph->layers[alias->layer].name));
        }
        return found;
}

static bool is_personal(const struct mfl_job *job, const struct mfl_graph *graph, int t)
{
        for (uint32_t i = 0; i < job->personal.layers.n; i++)
                if (selects(job->personal.layers.v[i], graph, t))
                        return true;
        return false;
}

/* Each pattern selects something that moves. */
static int check_used(const struct mfl_job *job, const struct mfl_graph *graph, struct mfl_error *err)
{
        for (uint32_t i = 0; i < job->personal.layers.n; i++) {
                const char *pattern = job->personal.layers.v[i];
                bool found = false, moves = false;
                for (int t = 0; t < graph->n_params; t++)
                        if (selects(pattern, graph, t)) {
                                found = true;
                                moves |= graph->params[t].moves;
                        }
                if (!found)
                        return mfl_fail(err, MFL_INVALID,
                                "personal.layers: '%.160s' is not a layer of this model that has params; "
                                "`mfl "
                                "presets NAME` lists the layers of a preset",
                                pattern);
                if (!moves)
                        return mfl_fail(err, MFL_INVALID,
                                "personal.layers: '%.160s' selects only layers that are not trained; remove "
                                "it",
                                pattern);
        }
        return 0;
}

int mfl_job_mark_personal(const struct mfl_job *job, struct mfl_graph *graph, struct mfl_error *err)
{
        size_t bytes = 2 * (size_t)graph->n_params * sizeof *graph->personal_edges, n = 0;
        bool others = false;
        if (!job->personal.layers.n)
                return 0;
        int r = check_used(job, graph, err);
        uint64_t *edge = r ? NULL : mfl_malloc(bytes + 1);
        if (r || !edge)
                return r ? r : mfl_fail_memory(err, bytes, "the places of personal layers");
        for (int t = graph->i_moving; t < graph->n_params; t++) {
                struct mfl_param *param = &graph->params[t];
                uint64_t begin = param->offset - graph->n_frozen;
                bool personal = param->moves && is_personal(job, graph, t);
                param->personal = personal;
                others |= param->trained && !personal;
                if (!personal || !param->count)
                        continue;
                n -= n && edge[n - 1] == begin; /* neighbours are one part */
                if (n % 2 == 0)
                        edge[n++] = begin;
                edge[n++] = begin + param->count;
        }
        free(graph->personal_edges);
        graph->personal_edges = edge;
        graph->personal = (struct mfl_fixed_parts){edge, n};
        return others ? 0
                      : mfl_fail(err, MFL_INVALID,
                                "personal.layers: all layers that are trained stay with the clients, so they "
                                "learn nothing from each other; leave some out");
}

/* ---- the graph ---- */

struct mfl_layer *mfl_job_layers(const struct mfl_job *job, const struct mfl_shape *input)
{
        struct mfl_layer *layers = mfl_calloc((size_t)job->model.n_layers + 1, sizeof *layers);
        if (!layers)
                return NULL;
        layers[0] = (struct mfl_layer){.op = MFL_OP_INPUT, .input = -1, .input2 = -1, .out = *input};
        memcpy(layers + 1, job->model.layers, (size_t)job->model.n_layers * sizeof *layers);
        return layers;
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
        /* Flat samples may be used as images, and images as flat samples, but not as images of another shape. */
        bool fits = mfl_shape_count(own) == mfl_shape_count(input) && (own->rank == 1 || input->rank == 1);
        if (!fits && !mfl_shape_equal(own, input))
                return mfl_fail(err, MFL_INVALID,
                        "job %s: model.input is %s, the samples of data set %s are %s", job->name,
                        mfl_shape_text(own, want, sizeof want), job->data.name,
                        mfl_shape_text(input, have, sizeof have));
        *ret_input = *own;
        return 0;
}

static int build_tensors(const struct mfl_job *job, struct mfl_graph **ret_graph, struct mfl_error *err)
{
        size_t n = (size_t)job->model.n_tensors;
        MFL_CLEANUP_FREE const char **names = mfl_calloc(n, sizeof *names);
        MFL_CLEANUP_FREE struct mfl_shape *shapes = mfl_calloc(n, sizeof *shapes);
        if (!names || !shapes)
                return mfl_fail_memory(err, n * sizeof *shapes, "a job's tensors");
        for (size_t i = 0; i < n; i++) {
                names[i] = job->model.tensors[i].name;
                shapes[i] = job->model.tensors[i].shape;
        }
        return mfl_graph_of_tensors(job->name, names, shapes, (int)n, ret_graph, err);
}

/* Before adapters are added and layers are frozen. */
static int build_graph(const struct mfl_job *job, const struct mfl_shape *input, int classes,
        struct mfl_graph **ret_graph, struct mfl_error *err)
{
        struct mfl_graph *graph;
        int r;
        if (job->model.tensors)
                return build_tensors(job, ret_graph, err);
        if (job->model.preset[0]) {
                r = mfl_graph_preset(job->model.preset, input, classes, &graph, err);
                mfl_assert(r != MFL_NOT_FOUND); /* the job's reader knows the names */
                if (r)
                        return r;
                for (int i = 0; i < graph->n_layers && job->model.init >= 0; i++)
                        graph->layers[i].init = (enum mfl_init)job->model.init;
        } else {
                MFL_CLEANUP_FREE struct mfl_layer *layers = mfl_job_layers(job, input);
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
        int r = job->model.tensors ? 0 : resolve_input(job, input, &shape, err);
        if (r)
                return r;
        if (job->model.classes && job->model.classes < classes)
                return mfl_fail(err, MFL_INVALID, "job %s: model.classes is %d, data set %s has %d classes",
                        job->name, job->model.classes, job->data.name, classes);
        r = build_graph(job, &shape, job->model.classes ? job->model.classes : classes, &graph, &why);
        if (!r && (r = mfl_job_adapt_graph(job, &graph, &why)))
                mfl_graph_free(graph);
        if (r)
                return mfl_fail(err, r, "job %s: %.430s", job->name, why.text);
        if (!graph->n) {
                mfl_graph_free(graph);
                return mfl_fail(err, MFL_INVALID, "job %s: the model has no parameters to train", job->name);
        }
        r = mfl_job_check_trained(job, graph, &why);
        if (!r)
                r = mfl_job_mark_personal(job, graph, &why);
        if (!r)
                r = mfl_job_check_outputs(job, graph, &why);
        if (!r)
                r = mfl_job_check_tally(job, graph, &why);
        if (r) {
                mfl_graph_free(graph);
                return mfl_fail(err, r, "job %s: %.430s", job->name, why.text);
        }
        r = job->by_layers ? mfl_graph_by_layers(graph, err) : 0;
        if (r) {
                mfl_graph_free(graph);
                return r;
        }
        *ret_graph = graph;
        return 0;
}
/* Names and what is frozen do not depend on the samples: a preset without a given input is built with one that it
 * accepts. NULL: there is none, or the shapes of the layers are unknown. */
static int graph_of_any(const struct mfl_job *job, struct mfl_graph **ret_graph, struct mfl_error *err)
{
        static const struct mfl_shape shapes[] = {{3, {3, 32, 32}}, {3, {1, 28, 28}}, {1, {64}}};
        int r = MFL_INVALID, classes = job->model.classes ? job->model.classes : 10;
        *ret_graph = NULL;
        if (job->model.input.rank)
                return build_graph(job, &job->model.input, classes, ret_graph, err);
        for (size_t i = 0; job->model.preset[0] && r > 0 && i < MFL_ARRAY_SIZE(shapes); i++)
                r = build_graph(job, &shapes[i], classes, ret_graph, NULL);
        return MFL_MIN(r, 0);
}

/* Whether each layer is marked as frozen, or has no params. */
static bool is_all_frozen(const struct mfl_job *job)
{
        bool some = false;
        for (int i = 0; i < job->model.n_layers; i++) {
                const struct mfl_layer *layer = &job->model.layers[i];
                bool has = layer->op == MFL_OP_CONV2D || layer->op == MFL_OP_CONVTRANSPOSE2D ||
                           layer->op == MFL_OP_DENSE || layer->op == MFL_OP_EMBEDDING ||
                           layer->op == MFL_OP_WEIGHT || mfl_op_is_recurrent(layer->op) ||
                           layer->op == MFL_OP_BATCHNORM || layer->op == MFL_OP_GROUPNORM ||
                           layer->op == MFL_OP_LAYERNORM || layer->op == MFL_OP_RMSNORM;
                if (has && (!layer->frozen || layer->lora_rank))
                        return false;
                some = some || has;
        }
        return some;
}

int mfl_job_check_moves(const struct mfl_job *job, struct mfl_error *err)
{
        struct mfl_graph *graph;
        struct mfl_error why;
        if (is_all_frozen(job))
                return mfl_fail(err, MFL_INVALID,
                        "job %s: model: all layers are frozen: nothing is left to train", job->name);
        if (!job->model.lora.rank && !job->model.freeze.n && !job->personal.layers.n)
                return 0;
        int r = graph_of_any(job, &graph, &why);
        if (!r && graph)
                r = mfl_job_adapt_graph(job, &graph, &why);
        if (!r && graph)
                r = mfl_job_check_trained(job, graph, &why);
        if (!r && graph)
                r = mfl_job_mark_personal(job, graph, &why);
        mfl_graph_free(graph);
        return r ? mfl_fail(err, r, "job %s: %.430s", job->name, why.text) : 0;
}
