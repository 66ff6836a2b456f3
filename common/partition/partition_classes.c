/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions that give each client a few classes: pathological (Li, Diao, Chen, He: "Federated learning on
 * non-IID data silos", arXiv 2102.02079) and distribution (Li et al., "Federated optimization in
 * heterogeneous networks", arXiv 1812.06127), as in flwr-datasets. Classes without a training sample are ignored.
 */
#include "common/partition/partition_draw.h"
#include "common/exact/exact.h"

#include <math.h>

struct draft {
        const struct mfl_job *job;
        uint32_t n_clients, per_client;
        uint32_t n_present;
        int *present;     /* n_present classes that have samples, ascending */
        uint32_t *first;  /* by class: see mfl_sort_by_label */
        uint32_t *sorted; /* samples */
        uint32_t *mine;   /* n_clients * per_client: positions in present */
        uint32_t *size;   /* n_clients * per_client: samples of that class */
};

static void draft_deinit(struct draft *d)
{
        free(d->present);
        free(d->first);
        free(d->sorted);
        free(d->mine);
        free(d->size);
}

static int draft_init(struct draft *d, const struct mfl_job *job, const int32_t *labels, uint32_t n,
        int classes, struct mfl_error *err)
{
        *d = (struct draft){.job = job,
                .n_clients = job->data.clients,
                .per_client = job->data.classes_per_client,
                .present = mfl_calloc((size_t)classes, sizeof *d->present)};
        int r = d->present ? mfl_shuffle_by_label(job->seed, labels, n, classes, &d->first, &d->sorted, err)
                           : mfl_fail_memory(err, (size_t)classes * sizeof *d->present, "classes");
        if (r)
                return r;
        for (int c = 0; c < classes; c++)
                if (d->first[c + 1] > d->first[c])
                        d->present[d->n_present++] = c;
        if (d->per_client > d->n_present)
                return mfl_fail(err, MFL_INVALID,
                        "data.classes_per_client: %u, but the training samples have %u classes",
                        d->per_client, d->n_present);
        /* Each client gets at least one sample of each of its classes, so this many cells need as many samples. */
        uint64_t cells = (uint64_t)d->n_clients * d->per_client;
        if (cells > n)
                return mfl_fail(err, MFL_INVALID,
                        "data.clients: %u clients of %u classes each need %llu training samples; the data "
                        "set has %u",
                        d->n_clients, d->per_client, (unsigned long long)cells, n);
        d->mine = mfl_calloc(cells, sizeof *d->mine);
        d->size = mfl_calloc(cells, sizeof *d->size);
        return d->mine && d->size ? 0 : mfl_fail_memory(err, 2 * cells * sizeof *d->mine, "classes");
}

static uint32_t class_samples(const struct draft *d, uint32_t position)
{
        int c = d->present[position];
        return d->first[c + 1] - d->first[c];
}

/* Copies the samples: the samples of a class go to its clients in order. */
static void fill(const struct draft *d, struct mfl_partition *p)
{
        uint32_t at = 0;
        for (uint32_t k = 0; k < d->n_clients; k++) {
                for (uint32_t i = 0; i < d->per_client; i++) {
                        size_t cell = (size_t)k * d->per_client + i;
                        uint32_t *next = &d->first[d->present[d->mine[cell]]];
                        memcpy(p->index + at, d->sorted + *next, d->size[cell] * sizeof *p->index);
                        *next += d->size[cell];
                        at += d->size[cell];
                }
                p->start[k + 1] = at;
        }
}

/* ---- pathological ---- */

/* The first `fixed` of client k's classes are k, k + 1, ...; the others are drawn without replacement. */
static void choose_classes(struct draft *d, uint32_t fixed, uint32_t *deck)
{
        for (uint32_t k = 0; k < d->n_clients; k++) {
                uint32_t *mine = d->mine + (size_t)k * d->per_client;
                struct mfl_rng rng = mfl_rng_new(d->job->seed, MFL_RNG_PARTITION, MFL_STREAM_CLASSES, k);
                for (uint32_t c = 0; c < d->n_present; c++)
                        deck[c] = c;
                for (uint32_t i = 0; i < d->per_client; i++) {
                        uint32_t at = i;
                        if (i >= fixed)
                                at += mfl_rng_below(&rng, d->n_present - i);
                        else
                                while (deck[at] != (k + i) % d->n_present)
                                        at++;
                        mine[i] = deck[at];
                        deck[at] = deck[i];
                        deck[i] = mine[i];
                }
        }
}

/* Divides each class into near-equal parts over the clients that have it; the first ones get the odd samples. */
static int share_classes(struct draft *d, uint32_t *times, uint32_t *seen, struct mfl_error *err)
{
        size_t cells = (size_t)d->n_clients * d->per_client;
        for (size_t i = 0; i < cells; i++)
                times[d->mine[i]]++;
        for (uint32_t c = 0; c < d->n_present; c++)
                if (times[c] > class_samples(d, c))
                        return mfl_fail(err, MFL_INVALID,
                                "data.classes_per_client: %u clients have class %d, which has %u training "
                                "samples; use fewer clients or classes, or class_assignment: deterministic, "
                                "which spreads classes evenly",
                                times[c], d->present[c], class_samples(d, c));
        for (size_t i = 0; i < cells; i++) {
                uint32_t c = d->mine[i], n = class_samples(d, c);
                d->size[i] = n / times[c] + (seen[c]++ < n % times[c]);
        }
        return 0;
}

int mfl_draw_pathological(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition *partition, struct mfl_error *err)
{
        struct draft d;
        uint32_t *deck = NULL, *times = NULL, *seen = NULL;
        int r = draft_init(&d, job, labels, n, classes, err);
        if (!r) {
                deck = mfl_calloc(d.n_present, sizeof *deck);
                times = mfl_calloc(d.n_present, sizeof *times);
                seen = mfl_calloc(d.n_present, sizeof *seen);
                if (!deck || !times || !seen)
                        r = mfl_fail_memory(err, 3 * d.n_present * sizeof *deck, "classes");
        }
        if (!r) {
                static const uint32_t fixed[] = {[MFL_ASSIGNMENT_RANDOM] = 0,
                        [MFL_ASSIGNMENT_DETERMINISTIC] = UINT32_MAX,
                        [MFL_ASSIGNMENT_FIRST_DETERMINISTIC] = 1};
                mfl_assert((size_t)job->data.class_assignment < MFL_ARRAY_SIZE(fixed));
                choose_classes(&d, fixed[job->data.class_assignment], deck);
                r = share_classes(&d, times, seen, err);
        }
        if (!r)
                fill(&d, partition);
        free(deck);
        free(times);
        free(seen);
        draft_deinit(&d);
        return r;
}

/* ---- distribution ---- */

/* Row c of the distribution; log-normal numbers with the largest one 1, since only proportions count. */
static void read_row(const struct mfl_job *job, uint32_t row, uint32_t n_columns, double *v)
{
        if (job->data.distribution) {
                memcpy(v, job->data.distribution + (size_t)row * n_columns, n_columns * sizeof *v);
                return;
        }
        struct mfl_rng rng = mfl_rng_new(job->seed, MFL_RNG_PARTITION, MFL_STREAM_LOGNORMAL, row);
        double top = -INFINITY;
        for (uint32_t i = 0; i < n_columns; i++) {
                v[i] = job->data.sigma * mfl_draw_normal(&rng);
                top = MFL_MAX(top, v[i]);
        }
        for (uint32_t i = 0; i < n_columns; i++)
                v[i] = mfl_exact_exp(v[i] - top);
}

/* Turns a row of the distribution into numbers of samples, for a class with n samples. */
static int settle_row(const struct draft *d, uint32_t row, uint32_t n_columns, const double *v,
        uint32_t *sizes, struct mfl_error *err)
{
        const struct mfl_job *job = d->job;
        uint32_t n = class_samples(d, row);
        uint64_t used = 0, preassigned = (uint64_t)job->data.preassigned_samples * n_columns;
        double sum = 0;
        for (uint32_t i = 0; i < n_columns; i++)
                sum += v[i];
        if (!job->data.rescale) {
                for (uint32_t i = 0; i < n_columns; i++)
                        used += sizes[i] = v[i] < n ? (uint32_t)v[i] : n;
                return sum <= n && used <= n ? 0
                                             : mfl_fail(err, MFL_INVALID,
                                                       "data.distribution: row %u requests %.10g samples, "
                                                       "but class %d has %u",
                                                       row, sum, d->present[row], n);
        }
        if (!(sum > 0) || !isfinite(sum))
                return mfl_fail(err, MFL_INVALID, "data.distribution: row %u has the sum %g", row, sum);
        if (preassigned + n_columns > n)
                return mfl_fail(err, MFL_INVALID,
                        "data.preassigned_samples: class %d has %u samples, and %u clients get %u each and 1 "
                        "or more of the rest",
                        d->present[row], n, n_columns, job->data.preassigned_samples);
        uint32_t rest = n - (uint32_t)preassigned;
        for (uint32_t i = 0; i < n_columns; i++) {
                sizes[i] = MFL_MIN((uint32_t)(v[i] / sum * rest), rest - (uint32_t)used);
                used += sizes[i];
        }
        for (uint32_t i = 0; i < n_columns; i++)
                sizes[i] += job->data.preassigned_samples;
        struct mfl_rng rng = mfl_rng_new(job->seed, MFL_RNG_PARTITION, MFL_STREAM_REST, row);
        sizes[mfl_rng_below(&rng, n_columns)] += rest - (uint32_t)used;
        return 0;
}

/* Column j of a class's row is its j-th client in order. */
static int share_distribution(struct draft *d, uint32_t n_columns, double *v, uint32_t *sizes, uint32_t *seen,
        struct mfl_error *err)
{
        for (uint32_t row = 0; row < d->n_present; row++) {
                read_row(d->job, row, n_columns, v);
                int r = settle_row(d, row, n_columns, v, sizes + (size_t)row * n_columns, err);
                if (r)
                        return r;
        }
        for (uint32_t k = 0; k < d->n_clients; k++) {
                uint64_t total = 0;
                for (uint32_t i = 0; i < d->per_client; i++) {
                        size_t cell = (size_t)k * d->per_client + i;
                        uint32_t c = d->mine[cell] = (k + i) % d->n_present;
                        total += d->size[cell] = sizes[(size_t)c * n_columns + seen[c]++];
                }
                if (!total)
                        return mfl_fail(err, MFL_INVALID,
                                "data.distribution: client %u gets no sample; raise its share, or "
                                "preassigned_samples",
                                k);
        }
        return 0;
}

static int check_distribution(const struct draft *d, struct mfl_error *err)
{
        const struct mfl_job *job = d->job;
        if (d->n_clients % d->n_present)
                return mfl_fail(err, MFL_INVALID,
                        "data.clients: %u; partition distribution needs a multiple of the classes, which are "
                        "%u",
                        d->n_clients, d->n_present);
        uint32_t columns = d->n_clients / d->n_present * d->per_client;
        if (job->data.distribution &&
                (job->data.distribution_rows != d->n_present || job->data.distribution_columns != columns))
                return mfl_fail(err, MFL_INVALID,
                        "data.distribution: %u rows of %u numbers; %u clients of %u classes each make %u "
                        "rows "
                        "(classes) of %u (clients that have the class)",
                        job->data.distribution_rows, job->data.distribution_columns, d->n_clients,
                        d->per_client, d->n_present, columns);
        return 0;
}

int mfl_draw_distribution(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition *partition, struct mfl_error *err)
{
        struct draft d;
        double *v = NULL;
        uint32_t *sizes = NULL, *seen = NULL;
        int r = draft_init(&d, job, labels, n, classes, err);
        if (!r)
                r = check_distribution(&d, err);
        if (!r) {
                uint32_t columns = d.n_clients / d.n_present * d.per_client;
                v = mfl_calloc(columns, sizeof *v);
                sizes = mfl_calloc((size_t)d.n_present * columns, sizeof *sizes);
                seen = mfl_calloc(d.n_present, sizeof *seen);
                r = v && sizes && seen ? share_distribution(&d, columns, v, sizes, seen, err)
                                       : mfl_fail_memory(err, columns * sizeof *v, "a distribution");
        }
        if (!r)
                fill(&d, partition);
        free(v);
        free(sizes);
        free(seen);
        draft_deinit(&d);
        return r;
}
