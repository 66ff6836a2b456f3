/* SPDX-License-Identifier: Apache-2.0 */
/* What a job says of plug-ins: aggregation.plugin, evaluation.metrics, and the sites' filters. Whether there is such a plug-in, and what numbers
 * it takes, only a server or a site knows. */
#include "common/job/job_keys.h"

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
