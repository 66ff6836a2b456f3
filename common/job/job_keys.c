/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that only some kinds use; and selection.without: clients that are drawn as all others, and then left out, as if they had never had
 * samples; and what a job says of plug-ins: aggregation.plugin, evaluation.metrics, and the sites' filters. Whether there is such a plug-in,
 * and what numbers it takes, only a server or a site knows. */
#include "common/job/job_keys.h"

const struct mfl_yaml_node *mfl_job_find_key(const struct mfl_yaml_node *parent, const char *key)
{
        return parent ? mfl_yaml_find(parent, key) : NULL;
}

int mfl_job_check_usage(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *parent,
        const struct mfl_job_usage *usage, size_t n, unsigned kind, const char *kind_name,
        struct mfl_error *err)
{
        for (size_t i = 0; i < n; i++) {
                const struct mfl_yaml_node *node = mfl_job_find_key(parent, usage[i].key);
                if (node && !(usage[i].used_by & MFL_JOB_BIT(kind)))
                        return mfl_yaml_fail(doc, node, err, "is not used by %s; remove it", kind_name);
        }
        return 0;
}

static int compare(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
        return (x > y) - (x < y);
}

int mfl_job_read_without(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .min = 0, .max = UINT32_MAX};
        struct mfl_job *job = value;
        if (node->type != MFL_YAML_SEQUENCE || !node->n_children)
                return mfl_yaml_fail(doc, node, err, "expected a list of clients' numbers, such as [3, 7]");
        uint32_t *v = job->selection.without = mfl_calloc(node->n_children, sizeof *v);
        if (!v)
                return mfl_fail_memory(err, node->n_children * sizeof *v, "selection.without");
        job->selection.n_without = node->n_children;
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                int r = mfl_yaml_read_value(doc, n, &field, &v[n->index], err);
                if (r)
                        return r;
        }
        qsort(v, node->n_children, sizeof *v, compare);
        for (uint32_t i = 1; i < node->n_children; i++)
                if (v[i] == v[i - 1])
                        return mfl_yaml_fail(doc, node, err, "client %u is there twice", v[i]);
        return 0;
}

int mfl_job_check_without(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *selection = mfl_job_find_key(mfl_yaml_root(doc), "selection"),
                                   *node = mfl_job_find_key(selection, "without");
        uint32_t n = job->selection.n_without;
        if (!n)
                return 0;
        if (job->selection.without[n - 1] >= job->data.clients)
                return mfl_yaml_fail(doc, node, err, "there is no client %u: the clients are 0 to %u",
                        job->selection.without[n - 1], job->data.clients - 1);
        return n < job->data.clients ? 0 : mfl_yaml_fail(doc, node, err, "no client is left");
}

bool mfl_job_is_without(const struct mfl_job *job, uint64_t client)
{
        const struct mfl_job *j = job;
        uint32_t key = (uint32_t)client;
        return j->selection.n_without && client == key &&
               bsearch(&key, j->selection.without, j->selection.n_without, sizeof key, compare);
}

/* ---- aggregation.plugin ---- */

#define AT(member, read_)                                                                                    \
        .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_job, aggregation.plugin member), .read = read_
const struct mfl_yaml_field mfl_job_plugin_fields[] = {
        {.key = "name", AT(.name, mfl_plugin_read_name), .required = true},
        {.key = "settings", AT(.settings, mfl_plugin_read_numbers)}, {0}};

int mfl_job_check_plugin(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *aggregation = mfl_job_find_key(mfl_yaml_root(doc), "aggregation");
        const struct mfl_yaml_node *plugin = mfl_job_find_key(aggregation, "plugin");
        bool wants = job->aggregation.strategy == MFL_STRATEGY_PLUGIN;
        if (wants && !plugin)
                return mfl_yaml_fail(doc, aggregation, err,
                        "strategy: plugin needs plugin: {name: NAME}, one of those that the server has "
                        "(docs/plugins.md)");
        if (!wants && plugin)
                return mfl_yaml_fail(doc, plugin, err, "goes with strategy: plugin, and the strategy is %s",
                        mfl_strategy_name(job->aggregation.strategy));
        return 0;
}

/* ---- metrics ---- */

#define METRIC_AT(member, read_)                                                                             \
        .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_metric_spec, member), .read = read_
static const struct mfl_yaml_field metric_fields[] = {
        {.key = "name", METRIC_AT(name, mfl_plugin_read_name), .required = true},
        {.key = "settings", METRIC_AT(settings, mfl_plugin_read_numbers)}, {0}};

int mfl_job_read_metrics(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_job *job = value;
        if (node->type != MFL_YAML_SEQUENCE || !node->n_children || node->n_children > MFL_METRICS_MAX)
                return mfl_yaml_fail(doc, node, err,
                        "expected a list of 1 to %d names of plug-ins, or {name, settings}", MFL_METRICS_MAX);
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                struct mfl_metric_spec *metric = &job->evaluation.metrics[job->evaluation.n_metrics];
                int r = n->type == MFL_YAML_SCALAR ? mfl_plugin_read_name(doc, n, metric->name, err)
                                                   : mfl_yaml_read(doc, n, metric_fields, metric, err);
                for (uint32_t i = 0; i < job->evaluation.n_metrics && !r; i++)
                        if (!strcmp(job->evaluation.metrics[i].name, metric->name))
                                r = mfl_yaml_fail(doc, n, err, "%s appears twice", metric->name);
                if (r)
                        return r;
                job->evaluation.n_metrics++;
        }
        return 0;
}

/* ---- filters ---- */

int mfl_job_read_filters(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_job *job = value;
        if (node->type != MFL_YAML_SEQUENCE || !node->n_children || node->n_children > MFL_JOB_FILTERS_MAX)
                return mfl_yaml_fail(doc, node, err, "expected a list of 1 to %d names of the sites' filters",
                        MFL_JOB_FILTERS_MAX);
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                char *name = job->filters[job->n_filters];
                int r = mfl_plugin_read_name(doc, n, name, err);
                if (!r && strlen(name) >= MFL_FILTER_NAME_BYTES)
                        r = mfl_yaml_fail(doc, n, err, "a filter that jobs can name has at most %d letters",
                                MFL_FILTER_NAME_BYTES - 1);
                if (!r && mfl_job_has_filter(job, name))
                        r = mfl_yaml_fail(doc, n, err, "%s appears twice", name);
                if (r)
                        return r;
                job->n_filters++;
        }
        return 0;
}
