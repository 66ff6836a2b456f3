/* SPDX-License-Identifier: Apache-2.0 */
/* The table of combinations, and its readers. */
#include "common/job/job_goes.h"

#include "common/job/job_training.h"

struct rule {
        struct mfl_job_goes shown;
        bool (*meets)(const struct mfl_job *job);
        const char *section, *key; /* where it is written, if it must be; section "": at the top */
};

static bool nova_adapts(const struct mfl_job *job)
{
        return job->aggregation.strategy == MFL_STRATEGY_FEDNOVA && job->training.optimizer != SGD;
}

static bool fixed_mu(const struct mfl_job *job)
{
        return job->aggregation.strategy == MFL_STRATEGY_FEDPROX && !job->aggregation.mu_adaptive;
}

static bool is_local(const struct mfl_job *job)
{
        return job->data.partition == MFL_PARTITION_LOCAL;
}

static bool local_separated(const struct mfl_job *job)
{
        return is_local(job) && job->selection.kind == MFL_SELECT_SEPARATED;
}

static bool local_by_choice(const struct mfl_job *job)
{
        return is_local(job) && job->selection.kind == MFL_SELECT_POWER_OF_CHOICE;
}

static bool local_oort(const struct mfl_job *job)
{
        return is_local(job) && job->selection.kind == MFL_SELECT_OORT;
}

static bool local_virtual(const struct mfl_job *job)
{
        return is_local(job) && job->time == MFL_TIME_VIRTUAL;
}

static bool real(const struct mfl_job *job)
{
        return job->time == MFL_TIME_REAL;
}

static bool real_oort(const struct mfl_job *job)
{
        return real(job) && job->selection.kind == MFL_SELECT_OORT;
}

static bool median_compresses(const struct mfl_job *job)
{
        return job->aggregation.strategy == MFL_STRATEGY_MEDIAN && job->compression.up;
}

static bool weighs_on_grid(const struct mfl_job *job)
{
        enum mfl_strategy_kind kind = job->aggregation.strategy;
        return (kind == MFL_STRATEGY_FEDNOVA || kind == MFL_STRATEGY_QFEDAVG) && job->compression.bits > 0;
}

#define UNKNOWN_CLIENTS "needs a population that is known beforehand; with partition local, write uniform"

static const struct rule rules[] = {
        {{"strategy: fednova", "optimizer other than sgd",
                 "fednova divides by the steps of sgd, and other optimizers' steps have no such number; "
                 "write sgd, or "
                 "strategy: fedavg"},
                nova_adapts, "training", "optimizer"},
        {{"strategy: fedprox, mu: a number", "mu_start", "is only used with mu: adaptive; remove it"},
                fixed_mu, "aggregation", "mu_start"},
        {{"strategy: fedprox, mu: a number", "mu_patience", "is only used with mu: adaptive; remove it"},
                fixed_mu, "aggregation", "mu_patience"},
        {{"partition: local", "selection: separated", "separated " UNKNOWN_CLIENTS}, local_separated,
                "selection", "kind"},
        {{"partition: local", "selection: power-of-choice", "power-of-choice " UNKNOWN_CLIENTS},
                local_by_choice, "selection", "kind"},
        {{"partition: local", "selection: oort", "oort " UNKNOWN_CLIENTS}, local_oort, "selection", "kind"},
        {{"partition: local", "time: virtual",
                 "virtual time has a trace of a population that is known beforehand; with partition local, "
                 "write real"},
                local_virtual, "", "time"},
        {{"time: real", "selection: oort",
                 "oort weighs clients by their durations, which virtual time has: add time: "
                 "virtual and trace"},
                real_oort, "selection", "kind"},
        {{"time: real", "trace", "is only used with time: virtual; add that, or remove it"}, real, "",
                "trace"},
        {{"time: real", "over",
                 "is only used with time: virtual, which knows who would be late; add that, or remove it"},
                real, "selection", "over"},
        {{"time: real", "virtual_deadline", "is only used with time: virtual; add that, or write deadline"},
                real, "limits", "virtual_deadline"},
        {{"strategy: median", "compression",
                 "is for sums of updates, and median takes each client's by itself; remove compression"},
                median_compresses, "compression", "up"},
        {{"strategy: fednova or qfedavg", "compression: bits",
                 "bits need the mean of the deltas for their range, and this strategy weighs deltas "
                 "otherwise; "
                 "write lossless"},
                weighs_on_grid, "compression", "up"},
};

size_t mfl_job_goes_count(void)
{
        return MFL_ARRAY_SIZE(rules);
}

const struct mfl_job_goes *mfl_job_goes_at(size_t i)
{
        return &rules[i].shown;
}

int mfl_job_check_goes(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rules); i++) {
                const struct rule *rule = &rules[i];
                const struct mfl_yaml_node *root = mfl_yaml_root(doc);
                const struct mfl_yaml_node *section =
                        rule->section[0] ? mfl_job_find_key(root, rule->section) : root;
                const struct mfl_yaml_node *node = mfl_job_find_key(section, rule->key);
                if (node && rule->meets(job))
                        return mfl_yaml_fail(doc, node, err, "%s", rule->shown.why);
        }
        return 0;
}
