/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from a job's keys: names, how many clients a round has, and how their updates travel. */
#include "common/job/job_keys.h"

#include <math.h>

#include "common/base/plain.h"
#include "common/secure/ring.h"

#define BIT MFL_JOB_BIT
#define STATEFUL (BIT(MFL_STRATEGY_SCAFFOLD) | BIT(MFL_STRATEGY_FEDDYN))
#define MODELS (BIT(MFL_STRATEGY_DITTO) | BIT(MFL_STRATEGY_PFEDME) | BIT(MFL_STRATEGY_APFL))

const char *const mfl_job_partition_names[] = {"local", "iid", "dirichlet", "shards", "pathological", "size",
        "linear", "square", "exponential", "distribution", "natural-id", "inner-dirichlet", NULL};
const char *const mfl_job_strategy_names[] = {"fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi",
        "fedprox", "median", "fednova", "qfedavg", "scaffold", "feddyn", "trimmed-mean", "mean-around-median",
        "krum", "multi-krum", "bulyan", "rfa", "centered-clip", "norm-filter", "dnc", "signguard", "flame",
        "fedbuff", "fedasync", "ditto", "pfedme", "foolsgold", "fltrust", "plugin", "mimelite", "mime",
        "apfl", NULL};
_Static_assert(MFL_ARRAY_SIZE(mfl_job_strategy_names) == MFL_STRATEGIES + 1, "each strategy has a name");
const char *const mfl_job_selection_names[] = {
        "uniform", "separated", "poisson", "weighted", "power-of-choice", "oort", NULL};

const char *mfl_strategy_name(enum mfl_strategy_kind kind)
{
        return mfl_job_strategy_names[kind];
}

const char *mfl_partition_name(enum mfl_partition_kind kind)
{
        return mfl_job_partition_names[kind];
}

const char *mfl_selection_name(enum mfl_selection kind)
{
        return mfl_job_selection_names[kind];
}

char *mfl_job_program_offer(const char *program, char offer[MFL_NAME_BYTES])
{
        mfl_snprintf(offer, MFL_NAME_BYTES, MFL_PROGRAM_DATA "%.*s", MFL_PROGRAM_BYTES - 1, program);
        return offer;
}

char *mfl_job_filter_offer(const char *filter, char offer[MFL_NAME_BYTES])
{
        mfl_snprintf(offer, MFL_NAME_BYTES, MFL_FILTER_DATA "%.*s", MFL_FILTER_NAME_BYTES - 1, filter);
        return offer;
}

bool mfl_job_has_filter(const struct mfl_job *job, const char *filter)
{
        for (uint32_t i = 0; i < job->n_filters; i++)
                if (!strcmp(job->filters[i], filter))
                        return true;
        return false;
}

bool mfl_job_is_async(const struct mfl_job *job)
{
        return (BIT(MFL_STRATEGY_FEDBUFF) | BIT(MFL_STRATEGY_FEDASYNC)) & BIT(job->aggregation.strategy);
}

bool mfl_job_is_live(const struct mfl_job *job)
{
        return mfl_job_is_async(job) && job->time == MFL_TIME_REAL;
}

uint32_t mfl_job_concurrency(const struct mfl_job *job)
{
        uint32_t n = job->selection.clients ? job->selection.clients : MFL_CONCURRENCY;
        bool local = job->data.partition == MFL_PARTITION_LOCAL;
        return local ? n : MFL_MIN(n, job->data.clients);
}

uint32_t mfl_job_buffer(const struct mfl_job *job)
{
        return job->aggregation.strategy == MFL_STRATEGY_FEDBUFF ? job->aggregation.buffer : 1;
}

uint32_t mfl_job_versions(const struct mfl_job *job)
{
        return mfl_job_is_async(job) ? job->aggregation.staleness_max : 0;
}

uint32_t mfl_job_cohort_size(const struct mfl_job *job, uint32_t population)
{
        if (mfl_job_is_async(job))
                return MFL_MIN(mfl_job_buffer(job), population);
        if (job->selection.kind == MFL_SELECT_SEPARATED)
                population = population / job->selection.separation +
                             (population % job->selection.separation != 0);
        if (job->selection.kind == MFL_SELECT_POISSON) {
                double mean = population * job->selection.rate, variance = mean * (1 - job->selection.rate);
                return (uint32_t)MFL_MIN((double)population, ceil(mean + 10 * sqrt(variance)) + 40);
        }
        return job->selection.clients ? MFL_MIN(job->selection.clients, population) : population;
}

double mfl_job_rate(const struct mfl_job *job)
{
        return job->selection.kind == MFL_SELECT_POISSON ? job->selection.rate : 1;
}

/* Whether a partition may leave a client without samples. */
static bool may_be_empty(const struct mfl_job *job)
{
        enum mfl_partition_kind kind = job->data.partition;
        return kind == MFL_PARTITION_LINEAR || kind == MFL_PARTITION_SQUARE ||
               kind == MFL_PARTITION_EXPONENTIAL || kind == MFL_PARTITION_PATHOLOGICAL ||
               kind == MFL_PARTITION_DISTRIBUTION;
}

/* As if none were left out. */
static uint32_t least_drawn(const struct mfl_job *job, uint32_t population)
{
        if (job->time == MFL_TIME_VIRTUAL && job->selection.kind != MFL_SELECT_POISSON)
                return (uint32_t)ceil(job->limits.quorum * mfl_job_cohort_size(job, population));
        if (job->selection.kind >= MFL_SELECT_WEIGHTED && may_be_empty(job))
                return 1;
        if (job->selection.kind == MFL_SELECT_POISSON)
                return job->selection.rate < 1 ? 0 : population;
        if (job->selection.kind == MFL_SELECT_SEPARATED) {
                uint32_t turn = population / job->selection.separation;
                return job->selection.clients ? MFL_MIN(job->selection.clients, turn) : turn;
        }
        return mfl_job_cohort_size(job, population);
}

uint32_t mfl_job_cohort_least(const struct mfl_job *job, uint32_t population)
{
        uint32_t n = least_drawn(job, population);
        return n > job->selection.n_without ? n - job->selection.n_without : MFL_MIN(n, 1u);
}

int mfl_job_check_ring(const struct mfl_job *job, uint64_t weight_max, struct mfl_error *err)
{
        struct mfl_error why;
        bool local = job->data.partition == MFL_PARTITION_LOCAL;
        if (!job->secure.bits)
                return 0;
        if (local && job->aggregation.weighting == MFL_WEIGHT_UNIFORM) /* a site is one participant */
                weight_max = MFL_MIN(weight_max, (uint64_t)MFL_SECURE_MEMBERS_MAX);
        int r = mfl_secure_ring_fits(job->secure.bits, job->compression.bits, weight_max, &why);
        return r ? mfl_fail(err, r, "job %s: %s", job->name, why.text) : 0;
}

/* What the job file tells of it: clients have a sample at least; those of sites may have any number. */
static uint64_t least_weight(const struct mfl_job *job)
{
        if (job->data.partition != MFL_PARTITION_LOCAL)
                return MFL_MAX(mfl_job_cohort_size(job, job->data.clients), 1u);
        return job->aggregation.weighting == MFL_WEIGHT_UNIFORM ? MFL_SECURE_MEMBERS_MAX : (uint64_t)1 << 36;
}

int mfl_job_check_cohort(const struct mfl_job *job, struct mfl_error *err)
{
        uint32_t n = mfl_job_cohort_size(job, job->data.clients);
        int r = mfl_job_check_ring(job, least_weight(job), err);
        if (r)
                return r;
        if (job->data.partition == MFL_PARTITION_LOCAL || n <= MFL_COHORT_MAX)
                return 0;
        if (job->selection.kind == MFL_SELECT_POISSON)
                return mfl_fail(err, MFL_INVALID,
                        "job %s: selection.rate: up to %u clients per round; the limit is %u", job->name, n,
                        MFL_COHORT_MAX);
        if (job->selection.clients)
                return mfl_fail(err, MFL_INVALID,
                        "job %s: selection.clients: %u clients per round; the limit is %u", job->name, n,
                        MFL_COHORT_MAX);
        return mfl_fail(err, MFL_INVALID,
                "job %s: data.clients: each round would take all %u clients, and the limit is %u; set "
                "selection.clients, the number of clients per round",
                job->name, n, MFL_COHORT_MAX);
}

bool mfl_job_has_own_models(const struct mfl_job *job)
{
        return MODELS & BIT(job->aggregation.strategy) || job->personal.layers.n;
}

bool mfl_job_tells_gradients(const struct mfl_job *job)
{
        return (BIT(MFL_STRATEGY_MIMELITE) | BIT(MFL_STRATEGY_MIME)) & BIT(job->aggregation.strategy);
}

bool mfl_job_keeps_history(const struct mfl_job *job)
{
        return job->aggregation.strategy == MFL_STRATEGY_FOOLSGOLD ||
               job->simulation.attack == MFL_ATTACK_STALE;
}

bool mfl_job_keeps_state(const struct mfl_job *job)
{
        return STATEFUL & BIT(job->aggregation.strategy) || mfl_job_has_own_models(job) ||
               mfl_job_keeps_history(job) || job->compression.top_k > 0;
}

/* A byte order mark at the start only tells the encoding. */
int mfl_job_check_text(const char *text, const char *file, struct mfl_error *err)
{
        uint32_t code, line = 1, column = 1;
        const char *from = strncmp(text, "\xef\xbb\xbf", 3) ? text : text + 3;
        const char *at = mfl_plain_find(from, true, &code);
        while (at && *at == '\r' && at[1] == '\n')
                at = mfl_plain_find(at + 1, true, &code);
        if (!at)
                return 0;
        for (const char *c = from; c < at; c++) {
                column = *c == '\n' ? 1 : column + (((uint8_t)*c & 0xc0) != 0x80);
                line += *c == '\n';
        }
        return mfl_fail(err, MFL_INVALID,
                "%s:%u: column %u has U+%04X, which is invisible or changes how the text around it looks; "
                "remove it",
                file, line, column, code);
}
