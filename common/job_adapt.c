/* SPDX-License-Identifier: Apache-2.0 */
/* What of a model is trained: frozen layers and params, low-rank adapters of dense layers (Hu et al. 2021).
 */
#include "common/job.h"
#include "common/job_model.h"

#define GLOBS_MAX 256

int mfl_job_read_globs(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_STRING, .size = sizeof *((struct mfl_job_globs *)0)->v};
        struct mfl_job_globs *globs = value;
        if (node->type != MFL_YAML_SEQUENCE || node->n_children < 1 || node->n_children > GLOBS_MAX)
                return mfl_yaml_fail(doc, node, err,
                        "expected a list of 1 to %d names of layers, such as [embed, 'block*']", GLOBS_MAX);
        globs->v = mfl_calloc(node->n_children, sizeof *globs->v);
        if (!globs->v)
                return mfl_fail_memory(err, node->n_children * sizeof *globs->v, "names of layers");
        globs->n = node->n_children;
        int r = 0;
        for (const struct mfl_yaml_node *n = node->first; n && !r; n = n->next)
                r = mfl_yaml_read_value(doc, n, &field, globs->v[n->index], err);
        return r;
}

const struct mfl_yaml_field mfl_job_lora_fields[] = {
        {.key = "rank",
                MFL_YAML_AT(U32, struct mfl_job, model.lora.rank),
                .required = true,
                .min = 1,
                .max = 65536},
        {.key = "alpha",
                MFL_YAML_AT(F32, struct mfl_job, model.lora.alpha),
                .min = 0,
                .max = 1e6,
                .min_open = true},
        {.key = "layers",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_job, model.lora.layers),
                .read = mfl_job_read_globs},
        {.key = "train",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_job, model.lora.train),
                .read = mfl_job_read_globs},
        {0}};

int mfl_job_check_adapt(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *model,
        const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *freeze = mfl_yaml_find(model, "freeze");
        if (freeze && job->model.lora.rank)
                return mfl_yaml_fail(doc, freeze, err,
                        "with lora everything is frozen but the adapters and lora.train; remove it");
        for (int i = 0; job->model.lora.rank && i < job->model.n_layers; i++)
                if (job->model.layers[i].lora_rank)
                        return mfl_yaml_fail(doc, mfl_yaml_find(model, "lora"), err,
                                "layers[%d] has a lora_rank of its own; keep one of the two", i);
        return 0;
}

/* Patterns, and which of them have matched something. */
struct choice {
        const struct mfl_job_globs *globs;
        const char *key; /* "freeze" */
        bool used[GLOBS_MAX];
};

static bool matches(struct choice *choice, const char *name)
{
        bool found = false;
        for (uint32_t i = 0; i < choice->globs->n; i++)
                if (mfl_glob(choice->globs->v[i], name))
                        found = choice->used[i] = true;
        return found;
}

/* A layer is meant by its name, or by the names of all of its params: backends freeze whole layers. */
static int choose_layer(
        const struct mfl_graph *graph, int i, struct choice *choice, bool *ret_chosen, struct mfl_error *err)
{
        const char *with = NULL, *without = NULL;
        bool chosen = matches(choice, graph->layers[i].name);
        for (int t = 0; !chosen && t < graph->n_params; t++) {
                if (graph->params[t].layer != i)
                        continue;
                bool match = matches(choice, graph->params[t].name);
                with = match ? graph->params[t].name : with;
                without = match ? without : graph->params[t].name;
        }
        if (with && without)
                return mfl_fail(err, MFL_INVALID,
                        "model.%s: %.79s is meant, %.79s is not, but a layer is trained or frozen as a whole",
                        choice->key, with, without);
        *ret_chosen = chosen || with;
        return 0;
}

static int check_used(const struct choice *choice, struct mfl_error *err)
{
        for (uint32_t i = 0; i < choice->globs->n; i++)
                if (!choice->used[i])
                        return mfl_fail(err, MFL_INVALID,
                                "model.%s: '%.80s' is no layer of this model; `mfl presets NAME` lists those "
                                "of a preset",
                                choice->key, choice->globs->v[i]);
        return 0;
}

/* Marks in `layers` what the job wants frozen, and adapters. */
static int mark(const struct mfl_job *job, const struct mfl_graph *graph, struct mfl_layer *layers,
        struct mfl_error *err)
{
        bool lora = job->model.lora.rank > 0;
        struct choice freeze = {.globs = &job->model.freeze, .key = "freeze"};
        struct choice adapt = {.globs = &job->model.lora.layers, .key = "lora.layers"};
        struct choice train = {.globs = &job->model.lora.train, .key = "lora.train"};
        uint32_t n_adapted = 0;
        int r = 0;
        for (int i = 1; !r && i < graph->n_layers; i++) {
                bool frozen = false, trained = false, adapted = false;
                r = choose_layer(graph, i, &freeze, &frozen, err);
                if (!r)
                        r = choose_layer(graph, i, &train, &trained, err);
                if (!r && adapt.globs->n)
                        r = choose_layer(graph, i, &adapt, &adapted, err);
                adapted = lora && !trained && (adapted || !adapt.globs->n) && layers[i].op == MFL_OP_DENSE;
                layers[i].frozen = layers[i].frozen || frozen || (lora && !trained && !adapted);
                layers[i].lora_rank = adapted ? (int)job->model.lora.rank : layers[i].lora_rank;
                layers[i].lora_alpha = adapted ? job->model.lora.alpha : layers[i].lora_alpha;
                n_adapted += adapted;
        }
        if (!r)
                r = check_used(&freeze, err);
        if (!r)
                r = check_used(&adapt, err);
        if (!r)
                r = check_used(&train, err);
        if (!r && lora && !n_adapted)
                r = mfl_fail(err, MFL_INVALID, "model.lora.layers: no dense layer is among them");
        return r;
}

int mfl_job_check_trained(const struct mfl_job *job, const struct mfl_graph *graph, struct mfl_error *err)
{
        for (int t = 0; t < graph->n_params; t++)
                if (graph->params[t].trained)
                        return 0;
        return mfl_fail(
                err, MFL_INVALID, "model%s: nothing is left to train", job->model.freeze.n ? ".freeze" : "");
}

int mfl_job_adapt_graph(const struct mfl_job *job, struct mfl_graph **graph, struct mfl_error *err)
{
        const struct mfl_graph *from = *graph;
        struct mfl_graph *adapted;
        if (!job->model.lora.rank && !job->model.freeze.n)
                return 0;
        size_t bytes = (size_t)from->n_layers * sizeof *from->layers;
        MFL_CLEANUP_FREE struct mfl_layer *layers = mfl_malloc(bytes);
        if (!layers)
                return mfl_fail_memory(err, bytes, "a job's layers");
        memcpy(layers, from->layers, bytes);
        int r = mark(job, from, layers, err);
        if (!r)
                r = mfl_graph_build(from->name, layers, from->n_layers, from->classes, &adapted, err);
        if (r)
                return r;
        mfl_graph_free(*graph);
        *graph = adapted;
        return 0;
}

/* Names and what is frozen don't depend on the samples: a preset whose input is not told is looked at with
 * one that it takes. NULL: there is none, or layers of which the shapes are not known. */
static int graph_of_any(const struct mfl_job *job, struct mfl_graph **ret_graph, struct mfl_error *err)
{
        static const struct mfl_shape shapes[] = {{3, {3, 32, 32}}, {3, {1, 28, 28}}, {1, {64}}};
        int r = MFL_INVALID, classes = job->model.classes ? job->model.classes : 10;
        *ret_graph = NULL;
        if (job->model.input.rank)
                return mfl_job_build_graph(job, &job->model.input, classes, ret_graph, err);
        for (size_t i = 0; job->model.preset[0] && r > 0 && i < MFL_ARRAY_SIZE(shapes); i++)
                r = mfl_job_build_graph(job, &shapes[i], classes, ret_graph, NULL);
        return MFL_MIN(r, 0);
}

/* Whether all layers say by themselves that they are frozen, or have no params. */
static bool is_all_frozen(const struct mfl_job *job)
{
        bool some = false;
        for (int i = 0; i < job->model.n_layers; i++) {
                const struct mfl_layer *layer = &job->model.layers[i];
                bool has = layer->op == MFL_OP_CONV2D || layer->op == MFL_OP_CONVTRANSPOSE2D ||
                           layer->op == MFL_OP_DENSE || layer->op == MFL_OP_EMBEDDING ||
                           layer->op == MFL_OP_WEIGHT || layer->op == MFL_OP_LSTM ||
                           layer->op == MFL_OP_GRU || layer->op == MFL_OP_BATCHNORM ||
                           layer->op == MFL_OP_GROUPNORM || layer->op == MFL_OP_LAYERNORM ||
                           layer->op == MFL_OP_RMSNORM;
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
        if (!job->model.lora.rank && !job->model.freeze.n)
                return 0;
        int r = graph_of_any(job, &graph, &why);
        if (!r && graph)
                r = mfl_job_adapt_graph(job, &graph, &why);
        if (!r && graph)
                r = mfl_job_check_trained(job, graph, &why);
        mfl_graph_free(graph);
        return r ? mfl_fail(err, r, "job %s: %.430s", job->name, why.text) : 0;
}
