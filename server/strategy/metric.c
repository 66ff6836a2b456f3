/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics that are plug-ins.
 *
 *   - a job's metrics are found among the server's plug-ins, and their numbers put in order;
 *   - after an evaluation each one is called with the exact sums.
 * Fails: a metric that is not there, does not take its numbers, or needs labels where the loss has targets; one that crashes. */
#include "server/strategy/metric.h"

#include <math.h>

#include "common/job/job.h"
#include "include/mfl/metric.h"
#include "server/strategy/mark.h"

static const char *fault_of(const void *table)
{
        const struct mfl_metric_plugin *t = table;
        if (!t->measure)
                return "it has no function measure";
        if (!t->answers || t->answers & ~(MFL_METRIC_LABELS | MFL_METRIC_TARGETS))
                return "its `answers` is not MFL_METRIC_LABELS, MFL_METRIC_TARGETS, or both";
        return mfl_plugin_fault_of_numbers(t->settings, t->n_settings);
}

const struct mfl_plugin_kind mfl_metric_kind = {
        .symbol = "mfl_metric_plugin", .header = "mfl/metric.h", .abi = MFL_METRIC_ABI, .fault = fault_of};

static const struct mfl_metric_plugin *table_of(const struct mfl_metric_spec *metric)
{
        return (const void *)metric->object->table;
}

/* ---- jobs ---- */

static int resolve(const struct mfl_plugin_objects *objects, const struct mfl_job *spec,
        struct mfl_metric_spec *metric, struct mfl_error *err)
{
        char names[512];
        bool labels = mfl_loss_answers(spec->training.loss) == MFL_ANSWERS_LABELS;
        metric->object = mfl_plugin_object_find(objects, &mfl_metric_kind, metric->name);
        if (!metric->object)
                return mfl_fail(err, MFL_NOT_FOUND,
                        "evaluation.metrics: this server has no metric %s; it has %s (`plugins` in "
                        "server.yaml)",
                        metric->name,
                        mfl_plugin_object_names(objects, &mfl_metric_kind, names, sizeof names));
        const struct mfl_metric_plugin *table = table_of(metric);
        if (!(table->answers & (labels ? MFL_METRIC_LABELS : MFL_METRIC_TARGETS)))
                return mfl_fail(err, MFL_INVALID,
                        "evaluation.metrics: %s is made of %s, and the job's loss has %s", metric->name,
                        labels ? "target values" : "class labels", labels ? "class labels" : "target values");
        for (uint32_t i = 0; i < table->n_settings; i++)
                metric->values[i] = table->settings[i].standard;
        int r = 0;
        for (uint32_t i = 0; i < metric->settings.n && !r; i++)
                r = mfl_plugin_set_number(table->settings, table->n_settings, table->name,
                        "evaluation.metrics.settings", metric->settings.v[i].name,
                        metric->settings.v[i].value, metric->values, err);
        return r;
}

int mfl_metrics_resolve(const struct mfl_plugin_objects *objects, struct mfl_job *spec, struct mfl_error *err)
{
        int r = 0;
        for (uint32_t k = 0; k < spec->evaluation.n_metrics && !r; k++)
                r = resolve(objects, spec, &spec->evaluation.metrics[k], err);
        return r;
}

void mfl_metrics_describe(const struct mfl_job *spec, uint32_t k, char *text, size_t bytes)
{
        const struct mfl_metric_spec *metric = &spec->evaluation.metrics[k];
        const struct mfl_metric_plugin *table = table_of(metric);
        size_t at = (size_t)mfl_snprintf(text, bytes, "metric %s %.40s", table->name, table->version);
        for (uint32_t i = 0; i < table->n_settings && at < bytes; i++)
                at += (size_t)mfl_snprintf(text + at, bytes - at, "%s%s %g", i ? ", " : " (",
                        table->settings[i].name, metric->values[i]);
        if (at < bytes)
                mfl_snprintf(text + at, bytes - at, "%s, sha256 %s", table->n_settings ? ")" : "",
                        metric->object->digest);
}

/* ---- an evaluation ---- */

int mfl_metrics_measure(const struct mfl_job *spec, const char *mark, const struct mfl_round_record *record,
        const uint64_t *sums, uint32_t answers, struct mfl_metrics *ret_metrics, struct mfl_error *err)
{
        struct mfl_tally_target of[MFL_TALLY_TARGETS_MAX];
        struct mfl_metric_target target[MFL_TALLY_TARGETS_MAX];
        bool labels = mfl_loss_answers(spec->training.loss) == MFL_ANSWERS_LABELS;
        struct mfl_metric_call call = {.size = sizeof call,
                .round = record->round,
                .scored = record->eval_samples,
                .loss = record->loss};
        struct mfl_metrics metrics = {.n = spec->evaluation.n_metrics};
        bool known = record->eval_samples > 0 &&
                     (labels || mfl_tally_targets(sums, answers, record->eval_samples, of));
        for (uint32_t i = 0; known && !labels && i < answers; i++)
                target[i] = (struct mfl_metric_target){
                        of[i].absolute, of[i].square, of[i].value, of[i].value_square};
        if (labels) {
                call.classes = answers;
                call.confusion = sums;
        } else {
                call.targets = answers;
                call.target = target;
        }
        int r = mfl_plugin_mark(mark, 0, spec->evaluation.metrics[0].name, err);
        if (r)
                return r;
        for (uint32_t k = 0, at = 0; k < metrics.n; k++) {
                const struct mfl_metric_spec *metric = &spec->evaluation.metrics[k];
                at += (uint32_t)mfl_snprintf(
                        metrics.names + at, sizeof metrics.names - at, "%s%s", k ? "," : "", metric->name);
                call.settings = metric->values;
                if (k && known)
                        mfl_plugin_mark_next(mark, 0, metric->name);
                double value = known ? table_of(metric)->measure(&call) : (double)NAN;
                metrics.v[k] = isfinite(value) ? value : (double)NAN;
        }
        mfl_plugin_unmark(mark);
        *ret_metrics = metrics;
        return 0;
}
