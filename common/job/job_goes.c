/* SPDX-License-Identifier: Apache-2.0 */
/* The table of combinations, and its one reader. */
#include "common/job/job_goes.h"

#include "common/job/job_training.h"

struct rule {
        unsigned strategies;                      /* which have it: bits of enum mfl_strategy_kind */
        bool (*meets)(const struct mfl_job *job); /* the other half */
        const char *section, *key;                /* where it is written */
        const char *why;
};

#define ONLY(symbol) MFL_JOB_BIT(MFL_STRATEGY_##symbol)

static bool adapts(const struct mfl_job *job)
{
        return job->training.optimizer != SGD;
}

static bool fixed_mu(const struct mfl_job *job)
{
        return !job->aggregation.mu_adaptive;
}

static bool compresses(const struct mfl_job *job)
{
        return job->compression.up;
}

static bool rounds(const struct mfl_job *job)
{
        return job->compression.bits > 0;
}

static const struct rule rules[] = {
        {ONLY(FEDNOVA), adapts, "training", "optimizer",
                "fednova divides by the steps of sgd, and other optimizers' steps have no such number; write "
                "sgd, "
                "or strategy: fedavg"},
        {ONLY(MEDIAN), compresses, "compression", "up",
                "is for sums of updates, and median takes each client's by itself; remove compression"},
        {ONLY(FEDNOVA) | ONLY(QFEDAVG), rounds, "compression", "up",
                "bits need the mean of the deltas for their range, and this strategy weighs deltas "
                "otherwise; write "
                "lossless"},
        {ONLY(FEDPROX), fixed_mu, "aggregation", "mu_start", "is only used with mu: adaptive; remove it"},
        {ONLY(FEDPROX), fixed_mu, "aggregation", "mu_patience", "is only used with mu: adaptive; remove it"},
};

int mfl_job_check_goes(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rules); i++) {
                const struct rule *rule = &rules[i];
                const struct mfl_yaml_node *section = mfl_job_find_key(mfl_yaml_root(doc), rule->section);
                const struct mfl_yaml_node *node = mfl_job_find_key(section, rule->key);
                if (node && rule->strategies & MFL_JOB_BIT(job->aggregation.strategy) && rule->meets(job))
                        return mfl_yaml_fail(doc, node, err, "%s", rule->why);
        }
        return 0;
}
