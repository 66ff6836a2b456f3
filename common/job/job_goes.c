/* SPDX-License-Identifier: Apache-2.0 */
/* The table of combinations, and its one reader. */
#include "common/job/job_goes.h"

#include "common/job/job_training.h"

struct rule {
        unsigned strategies;                      /* which have it: bits of enum mfl_strategy_kind */
        bool (*meets)(const struct mfl_job *job); /* the other half */
        const char *section,
                *key; /* where it is written; section NULL: at the top, key NULL: the section itself */
        const char *why;
};

#define ONLY(symbol) MFL_JOB_BIT(MFL_STRATEGY_##symbol)
#define STATEFUL (ONLY(SCAFFOLD) | ONLY(FEDDYN))

static bool adapts(const struct mfl_job *job)
{
        return job->training.optimizer != SGD;
}

static bool always(const struct mfl_job *job)
{
        return true;
}

static bool has_momentum(const struct mfl_job *job)
{
        return job->training.momentum != 0;
}

static bool clips(const struct mfl_job *job)
{
        return job->training.clip_norm != 0;
}

static bool skips_steps(const struct mfl_job *job)
{
        return job->training.precision == FP16;
}

static bool decays_apart(const struct mfl_job *job)
{
        return job->training.optimizer == ADAMW;
}

static bool first_option(const struct mfl_job *job)
{
        return job->aggregation.option == MFL_SCAFFOLD_I;
}

static bool kept_by_daemons(const struct mfl_job *job)
{
        return job->client_state == MFL_CLIENT_STATE_DAEMON;
}

static bool stateless(const struct mfl_job *job)
{
        return !mfl_job_keeps_state(job);
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
        {ONLY(SCAFFOLD), adapts, "training", "optimizer",
                "scaffold finds a client's mean gradient from how far it went, which only sgd's steps tell; "
                "write "
                "sgd, or another strategy"},
        {ONLY(SCAFFOLD), has_momentum, "training", "momentum",
                "scaffold finds a client's mean gradient from how far it went, which momentum changes; "
                "remove it"},
        {ONLY(SCAFFOLD), clips, "training", "clip_norm",
                "scaffold finds a client's mean gradient from how far it went, which clipping changes; "
                "remove it"},
        {ONLY(SCAFFOLD), skips_steps, "training", "precision",
                "fp16 may skip steps, which scaffold divides by; write bf16 or fp32"},
        {ONLY(SCAFFOLD), first_option, "aggregation", "option", "I is not supported yet; write II"},
        {ONLY(FEDDYN), decays_apart, "training", "optimizer",
                "adamw's weight decay is no part of the gradient that feddyn's clients remember; write adam"},
        {STATEFUL, always, "parallel", NULL,
                "clients that keep a state can't be trained by several workers together yet; remove "
                "`parallel`"},
        {STATEFUL, kept_by_daemons, NULL, "client_state", "daemon is not supported yet; write server"},
        {~0u, stateless, NULL, "client_state",
                "is only used with strategies whose clients keep a state: scaffold, feddyn"},
        {~0u, stateless, "limits", "state",
                "is only used with strategies whose clients keep a state: scaffold, feddyn"},
        {STATEFUL, compresses, "compression", "up",
                "is for sums of updates, and the server takes those of clients that keep a state one by one; "
                "remove "
                "compression"},
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
                const struct mfl_yaml_node *root = mfl_yaml_root(doc);
                const struct mfl_yaml_node *section =
                        rule->section ? mfl_job_find_key(root, rule->section) : root;
                const struct mfl_yaml_node *node = rule->key ? mfl_job_find_key(section, rule->key) : section;
                if (node && rule->strategies & MFL_JOB_BIT(job->aggregation.strategy) && rule->meets(job))
                        return mfl_yaml_fail(doc, node, err, "%s", rule->why);
        }
        return 0;
}
