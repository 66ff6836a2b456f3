/* SPDX-License-Identifier: Apache-2.0 */
/* Which parts of a model are trained: frozen layers and params, low-rank adapters of dense layers (Hu et al. 2021).
 */
#include "common/job/job.h"
#include "common/job/job_model.h"

#define GLOBS_MAX 256

int mfl_job_read_globs(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_STRING, .size = sizeof *((struct mfl_job_globs *)0)->v};
        struct mfl_job_globs *globs = value;
        if (node->type != MFL_YAML_SEQUENCE || node->n_children < 1 || node->n_children > GLOBS_MAX)
                return mfl_yaml_fail(doc, node, err,
                        "expected a list of 1 to %d layer names, such as [embed, 'block*']", GLOBS_MAX);
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
                        "lora freezes everything except the adapters and lora.train; remove freeze");
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

struct selected {
        const char *with, *without; /* names of tensors */
};

static void match_tensor(struct choice *choice, const char *name, struct selected *selected)
{
        bool match = matches(choice, name);
        selected->with = match ? name : selected->with;
        selected->without = match ? selected->without : name;
}

/* A pattern selects a layer by its name, or by the names of all of its params: backends freeze whole layers. */
static int choose_layer(
        const struct mfl_graph *graph, int i, struct choice *choice, bool *ret_chosen, struct mfl_error *err)
{
        struct selected selected = {0};
        bool chosen = matches(choice, graph->layers[i].name);
        for (int t = 0; !chosen && t < graph->n_params; t++)
                if (graph->params[t].layer == i)
                        match_tensor(choice, graph->params[t].name, &selected);
        for (int k = 0; !chosen && k < graph->n_aliases; k++)
                if (graph->aliases[k].layer == i)
                        match_tensor(choice, graph->aliases[k].name, &selected);
        if (selected.with && selected.without)
                return mfl_fail(err, MFL_INVALID,
                        "model.%s: selects %.160s but not %.160s; a layer is trained or frozen as a whole",
                        choice->key, selected.with, selected.without);
        *ret_chosen = chosen || selected.with;
        return 0;
}

static int check_used(const struct choice *choice, struct mfl_error *err)
{
        for (uint32_t i = 0; i < choice->globs->n; i++)
                if (!choice->used[i])
                        return mfl_fail(err, MFL_INVALID,
                                "model.%s: '%.160s' is not a layer of this model; `mfl presets NAME` lists "
                                "the layers of a preset",
                                choice->key, choice->globs->v[i]);
        return 0;
}

/* What the job's patterns say about one layer. */
struct marked {
        bool frozen, trained, adapted;
};

/* Uses of one layer are adapted and frozen together, whichever of their names a pattern selects. */
static void join_uses(const struct mfl_layer *layers, int n, struct marked *marked)
{
        for (int pass = 0; pass < 2; pass++)
                for (int k = 1; k < n; k++) {
                        int i = pass ? k : n - k;
                        struct marked *own = &marked[i], *first = &marked[layers[i].shares];
                        if (!layers[i].shares || layers[i].sharing != MFL_SHARES_ALL)
                                continue;
                        first->frozen = own->frozen = first->frozen || own->frozen;
                        first->trained = own->trained = first->trained || own->trained;
                        first->adapted = own->adapted = first->adapted || own->adapted;
                }
}

static int choose(const struct mfl_job *job, const struct mfl_graph *graph, struct marked *marked,
        struct mfl_error *err)
{
        struct choice choices[] = {{.globs = &job->model.freeze, .key = "freeze"},
                {.globs = &job->model.lora.train, .key = "lora.train"},
                {.globs = &job->model.lora.layers, .key = "lora.layers"}};
        int r = 0;
        for (int i = 1; !r && i < graph->n_layers; i++) {
                r = choose_layer(graph, i, &choices[0], &marked[i].frozen, err);
                if (!r)
                        r = choose_layer(graph, i, &choices[1], &marked[i].trained, err);
                if (!r)
                        r = choose_layer(graph, i, &choices[2], &marked[i].adapted, err);
        }
        for (size_t k = 0; !r && k < MFL_ARRAY_SIZE(choices); k++)
                r = check_used(&choices[k], err);
        if (!r)
                join_uses(graph->layers, graph->n_layers, marked);
        return r;
}

/* Marks in `layers` what the job freezes, and where it adds adapters. */
static int mark(const struct mfl_job *job, const struct mfl_graph *graph, struct mfl_layer *layers,
        struct mfl_error *err)
{
        bool lora = job->model.lora.rank > 0, some = job->model.lora.layers.n > 0;
        struct marked marked[MFL_LAYERS_MAX] = {0};
        uint32_t n_adapted = 0;
        int r = choose(job, graph, marked, err);
        for (int i = 1; !r && i < graph->n_layers; i++) {
                struct marked m = marked[i];
                bool adapted = lora && !m.trained && (m.adapted || !some) && layers[i].op == MFL_OP_DENSE;
                layers[i].frozen = layers[i].frozen || m.frozen || (lora && !m.trained && !adapted);
                layers[i].lora_rank = adapted ? (int)job->model.lora.rank : layers[i].lora_rank;
                layers[i].lora_alpha = adapted ? job->model.lora.alpha : layers[i].lora_alpha;
                n_adapted += adapted;
        }
        if (!r && lora && !n_adapted)
                r = mfl_fail(err, MFL_INVALID, "model.lora.layers: selects no dense layer");
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
