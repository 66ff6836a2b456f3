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
                        "expected a list of 1 to %d names of layers or params, such as [embed, 'block*', "
                        "head.bias]",
                        GLOBS_MAX);
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

/* Layers by their own names, params by "LAYER.weight"; the patterns that matched are marked. */
static bool matches(const struct mfl_job_globs *globs, const char *layer, const char *param, bool *used)
{
        bool found = false;
        for (uint32_t i = 0; i < globs->n; i++) {
                if (!mfl_glob(globs->v[i], layer) && !(param && mfl_glob(globs->v[i], param)))
                        continue;
                found = used[i] = true;
        }
        return found;
}

static int check_used(const struct mfl_job_globs *globs, const bool *used, const char *key, const char *what,
        struct mfl_error *err)
{
        for (uint32_t i = 0; i < globs->n; i++)
                if (!used[i])
                        return mfl_fail(err, MFL_INVALID,
                                "model.%s: '%.80s' is no %s of this model; `mfl presets NAME` lists a "
                                "preset's",
                                key, globs->v[i], what);
        return 0;
}

static int add_adapters(
        const struct mfl_job *job, struct mfl_graph **graph, bool *used, struct mfl_error *err)
{
        const struct mfl_graph *from = *graph;
        struct mfl_graph *adapted;
        MFL_CLEANUP_FREE struct mfl_layer *layers = mfl_calloc((size_t)from->n_layers, sizeof *layers);
        uint32_t n = 0;
        if (!layers)
                return mfl_fail_memory(err, (size_t)from->n_layers * sizeof *layers, "a job's layers");
        memcpy(layers, from->layers, (size_t)from->n_layers * sizeof *layers);
        for (int i = 1; i < from->n_layers; i++) {
                bool wanted = !job->model.lora.layers.n ||
                              matches(&job->model.lora.layers, layers[i].name, NULL, used);
                if (layers[i].op != MFL_OP_DENSE || !wanted)
                        continue;
                layers[i].lora_rank = (int)job->model.lora.rank;
                layers[i].lora_alpha = job->model.lora.alpha;
                n++;
        }
        int r = check_used(&job->model.lora.layers, used, "lora.layers", "layer", err);
        if (!r && !n)
                r = mfl_fail(err, MFL_INVALID, "model.lora.layers: no dense layer is among them");
        if (!r)
                r = mfl_graph_build(from->name, layers, from->n_layers, from->classes, &adapted, err);
        if (r)
                return r;
        mfl_graph_free(*graph);
        *graph = adapted;
        return 0;
}

static bool is_adapter(const struct mfl_graph *graph, int t)
{
        const struct mfl_layer *layer = &graph->layers[graph->params[t].layer];
        return layer->lora_rank && (t == layer->param_weight2 || t == layer->param_bias2);
}

/* A layer none of whose params is trained any more is a frozen layer. */
static void mark_frozen_layers(struct mfl_graph *graph)
{
        for (int i = 0; i < graph->n_layers; i++) {
                bool has = false, trained = false;
                for (int t = 0; t < graph->n_params; t++) {
                        has = has || graph->params[t].layer == i;
                        trained = trained || (graph->params[t].layer == i && graph->params[t].trained);
                }
                graph->layers[i].frozen = graph->layers[i].frozen || (has && !trained);
        }
}

static int freeze_params(
        const struct mfl_job *job, struct mfl_graph *graph, bool *used, struct mfl_error *err)
{
        bool lora = job->model.lora.rank > 0;
        const struct mfl_job_globs *globs = lora ? &job->model.lora.train : &job->model.freeze;
        bool any = false;
        memset(used, 0, GLOBS_MAX);
        for (int t = 0; t < graph->n_params; t++) {
                struct mfl_param *param = &graph->params[t];
                bool named = matches(globs, graph->layers[param->layer].name, param->name, used);
                param->trained = param->trained && (lora ? named || is_adapter(graph, t) : !named);
                any = any || param->trained;
        }
        mark_frozen_layers(graph);
        int r = check_used(globs, used, lora ? "lora.train" : "freeze", "layer or param", err);
        return r || any ? r : mfl_fail(err, MFL_INVALID, "model.freeze: nothing is left to train");
}

int mfl_job_adapt_graph(const struct mfl_job *job, struct mfl_graph **graph, struct mfl_error *err)
{
        bool used[GLOBS_MAX] = {false};
        int r = job->model.lora.rank ? add_adapters(job, graph, used, err) : 0;
        if (!r && (job->model.lora.rank || job->model.freeze.n))
                r = freeze_params(job, *graph, used, err);
        return r;
}
