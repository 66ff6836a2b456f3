/* SPDX-License-Identifier: Apache-2.0 */
/* The `personal` key, and which params of a model it means. */
#include "common/job/job_personal.h"
#include "common/job/job_model.h"

const struct mfl_yaml_field mfl_job_personal_fields[] = {
        {.key = "layers",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_job, personal.layers),
                .read = mfl_job_read_globs,
                .required = true},
        {0}};

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
                                "personal.layers: '%.80s' is not a layer of this model that has params; `mfl "
                                "presets NAME` lists the layers of a preset",
                                pattern);
                if (!moves)
                        return mfl_fail(err, MFL_INVALID,
                                "personal.layers: '%.80s' selects only layers that are not trained; remove "
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
                const struct mfl_param *param = &graph->params[t];
                uint64_t begin = param->offset - graph->n_frozen;
                bool personal = param->moves && is_personal(job, graph, t);
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
