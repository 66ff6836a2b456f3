/* SPDX-License-Identifier: Apache-2.0 */
/* Measures: what a round says of itself, and an evaluation of a model, beside its loss and accuracy. Each is a function of sums of integers that
 * are exact and have no order, so it has the same bits for any number of daemons. Pure; any thread.
 *
 * On clients (`evaluation: {on: clients}`): let a client's score be its accuracy, or its mean loss where the loss has no
 * accuracy. The mean of the scores weighs clients alike; the record's accuracy and loss weigh them by their samples.
 */
#ifndef MFL_COMMON_MEASURE_MEASURE_H
#define MFL_COMMON_MEASURE_MEASURE_H

#include "common/base/base.h"

/* The numbers are those of the wire and of the database: append, never renumber. */
enum mfl_measure {
        MFL_MEASURE_CLIENT_MEAN,
        MFL_MEASURE_CLIENT_VARIANCE, /* of the scores: the mean square distance from their mean */
        MFL_MEASURE_CLIENT_WORST,    /* the mean score of the worst tenth of the clients, rounded up */
        MFL_MEASURE_CLIENT_BEST,
        MFL_MEASURE_CLIENT_LOW, /* the range of the histogram: 0 and 1 for accuracies, otherwise the scores' own */
        MFL_MEASURE_CLIENT_HIGH,
        /* common/measure/tally.h has these */
        MFL_MEASURE_MACRO_F1,
        MFL_MEASURE_MAE,
        MFL_MEASURE_RMSE,
        MFL_MEASURE_R2,
        /* Of the updates that a version is made of (common/cohort/calendar.h), and those that were dropped meanwhile. */
        MFL_MEASURE_STALENESS_MEAN,
        MFL_MEASURE_STALENESS_MAX,
        MFL_MEASURE_DROPPED,
        MFL_MEASURE_EPSILON,  /* what the job has spent of its privacy budget; of every round */
        MFL_MEASURE_BACKDOOR, /* of a simulated backdoor: the attack's success rate */
        MFL_MEASURE_CLIP,     /* privacy.clip: adaptive: the round's */
        MFL_MEASURES
};
#define MFL_SCORE_BINS 10 /* of equal width from LOW to HIGH; a bin has its lower end, the last one both */

struct mfl_measures {
        uint32_t known;   /* bit k: v[k] was measured */
        uint32_t clients; /* that have evaluated at least one sample */
        uint32_t bins[MFL_SCORE_BINS];
        double v[MFL_MEASURES];
};

/* What metrics of plug-ins (include/mfl/metric.h) have made of an evaluation; v[k] belongs to the k-th name. */
#define MFL_METRICS_MAX 4
struct mfl_metrics {
        uint32_t n;
        double v[MFL_METRICS_MAX];        /* not a number: unknown */
        char names[MFL_METRICS_MAX * 64]; /* "f-beta,kappa" */
};

/* The k-th; false: there are fewer. Unknown: not finite. */
bool mfl_metric_get(const struct mfl_metrics *metrics, uint32_t k, char ret_name[64], double *ret_value);

static inline void mfl_measure_set(struct mfl_measures *m, enum mfl_measure kind, double value)
{
        m->known |= 1u << kind;
        m->v[kind] = value;
}

struct mfl_measure_info {
        const char *name;  /* in JSON and CSV */
        const char *tag;   /* in TensorBoard */
        const char *label; /* for people */
};
extern const struct mfl_measure_info mfl_measure_infos[MFL_MEASURES];

static inline bool mfl_measure_known(const struct mfl_measures *m, enum mfl_measure kind)
{
        return m->known >> kind & 1;
}

/* What one client has evaluated. */
struct mfl_client_score {
        uint64_t client, samples, correct;
        int64_t loss_sum; /* mfl_fixed_loss units */
};

/* Sorts the scores from worst to best (equal ones by client) and adds their measures. Clients without samples are left
 * out: they come last. */
void mfl_measure_clients(
        struct mfl_client_score *v, uint32_t n, bool has_accuracy, struct mfl_measures *measures);

#endif
