/* SPDX-License-Identifier: Apache-2.0 */
/* The table of job_goes.h: its rows, and what rows of both of its files ask. Private to them. */
#ifndef MFL_COMMON_JOB_JOB_RULES_H
#define MFL_COMMON_JOB_JOB_RULES_H

#include "common/job/job_goes.h"
#include "common/job/job_keys.h"

/* A row of the table, whose halves are in two files. */
struct mfl_job_rule {
        struct mfl_job_goes shown;
        unsigned strategies;                      /* which have it: bits of enum mfl_strategy_kind */
        bool (*meets)(const struct mfl_job *job); /* the rest */
        const char *section, *key; /* where it is written, if it must be; section "": at the top */
};

/* job_rules_more.c: programs, privacy, secure sums. */
extern const struct mfl_job_rule mfl_job_rules_more[];
extern const size_t mfl_job_rules_more_count;

#define ANY (~0u)
#define ONLY(symbol) MFL_JOB_BIT(MFL_STRATEGY_##symbol)
#define STATEFUL (ONLY(SCAFFOLD) | ONLY(FEDDYN))
#define ASYNC (ONLY(FEDBUFF) | ONLY(FEDASYNC))
#define MODELS (ONLY(DITTO) | ONLY(PFEDME) | ONLY(APFL))
#define GUIDED (ONLY(MIMELITE) | ONLY(MIME))
#define PROBES (GUIDED | ONLY(APFL))
#define TRAINS_APART                                                                                         \
        (STATEFUL | MODELS | GUIDED | ASYNC | ONLY(FEDPROX) | ONLY(FEDNOVA) | ONLY(QFEDAVG) | ONLY(FLTRUST))
#define AVERAGES                                                                                             \
        (ONLY(FEDAVG) | ONLY(FEDAVGM) | ONLY(FEDADAGRAD) | ONLY(FEDADAM) | ONLY(FEDYOGI) | ONLY(FEDPROX))

static inline bool is_personal(const struct mfl_job *job)
{
        return job->personal.layers.n;
}

static inline bool real(const struct mfl_job *job)
{
        return job->time == MFL_TIME_REAL;
}

static inline bool attacks_rows(const struct mfl_job *job)
{
        return mfl_attack_is_on_updates(&job->simulation);
}

static inline bool by_loss(const struct mfl_job *job)
{
        return job->selection.kind >= MFL_SELECT_POWER_OF_CHOICE;
}

static inline bool is_local(const struct mfl_job *job)
{
        return job->data.partition == MFL_PARTITION_LOCAL;
}

static inline bool rounds(const struct mfl_job *job)
{
        return job->compression.bits > 0;
}

static inline bool is_central(const struct mfl_job *job)
{
        return job->privacy.kind == MFL_PRIVACY_CENTRAL;
}

static inline bool is_distributed(const struct mfl_job *job)
{
        return job->privacy.kind == MFL_PRIVACY_DISTRIBUTED;
}

static inline bool is_private(const struct mfl_job *job)
{
        return job->privacy.kind;
}

#endif
