/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks `time`, `trace`, and selections that know their clients. */

#include <math.h>

#include "common/job/job_keys.h"

const char *const mfl_job_time_names[] = {"real", "virtual", NULL};

static int read_file(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return mfl_yaml_fail(doc, node, err,
                "'%s' is a file that 'mfl check', 'mfl submit' and 'mfl run' read; here the table itself "
                "must stand, as csv",
                node->text ? node->text : "");
}

#define AT(kind, member) MFL_YAML_AT(kind, struct mfl_job, trace.member)

const struct mfl_yaml_field mfl_job_trace_fields[] = {
        {.key = "file", .kind = MFL_YAML_CALL, .read = read_file}, {.key = "csv", AT(TEXT, csv)},
        {.key = "day", AT(DURATION, day_ms), .min = 1000, .max = 365.0 * 86400000},
        {.key = "mu", AT(F64, mu), .min = -20, .max = 20},
        {.key = "sigma", AT(F64, sigma), .min = 0, .max = 5},
        {.key = "speed", AT(F64, speed), .min = 1e-6, .max = 1e9},
        {.key = "bandwidth", AT(SIZE, bandwidth), .min = 1, .max = 1e12},
        {.key = "online", AT(F64, online), .min = 0, .max = 1, .min_open = true}, {0}};

void mfl_job_time_defaults(struct mfl_job *job)
{
        job->trace.day_ms = 86400000;
        job->trace.mu = 1;
        job->trace.sigma = 0.6;
        job->trace.speed = 200;
        job->trace.online = 1;
        job->selection.over = 1;
        job->selection.oort.exploration = 0.9;
        job->selection.oort.decay = 0.98;
        job->selection.oort.floor = 0.3;
        job->selection.oort.penalty = 2;
        job->selection.oort.cut_off = 0.95;
        job->selection.oort.clip = 0.9;
        job->selection.oort.pacer_step = 20;
        job->selection.oort.pacer_delta = 5;
        job->selection.oort.threshold = 30;
        job->selection.oort.window = 5;
}

int mfl_job_read_trace(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return node->type == MFL_YAML_SCALAR ? read_file(doc, node, value, err)
                                             : mfl_yaml_read(doc, node, mfl_job_trace_fields, value, err);
}

static int check_trace(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *trace = mfl_job_find_key(mfl_yaml_root(doc), "trace");
        struct mfl_error why;
        if (!trace)
                return mfl_yaml_fail(doc, mfl_job_find_key(mfl_yaml_root(doc), "time"), err,
                        "virtual needs trace: the file of a table, or a model, for example {online: 0.5}");
        for (const struct mfl_yaml_node *n = trace->first; n && job->trace.csv; n = n->next)
                if (strcmp(n->key, "csv") && strcmp(n->key, "day"))
                        return mfl_yaml_fail(
                                doc, n, err, "is the model's, and a table is given too; keep one");
        if (!job->trace.csv)
                return 0;
        int r = mfl_trace_read(&job->trace, job->data.clients, &why);
        return r == MFL_INVALID ? mfl_yaml_fail(doc, mfl_job_find_key(trace, "csv"), err, "%s", why.text)
               : r              ? mfl_fail(err, r, "%s", why.text)
                                : 0;
}

static int check_population(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *data = mfl_job_find_key(mfl_yaml_root(doc), "data");
        bool knows = job->time == MFL_TIME_VIRTUAL || job->selection.kind >= MFL_SELECT_WEIGHTED;
        bool sorts = job->selection.kind == MFL_SELECT_OORT || mfl_job_is_async(job);
        uint32_t most = sorts ? MFL_COHORT_OORT_MAX : MFL_COHORT_POPULATION_MAX;
        if (!knows || job->data.clients <= most)
                return 0;
        return mfl_yaml_fail(doc, mfl_job_find_key(data, "clients"), err,
                "%u clients, and the server must know each one; with this selection and time at most %u, "
                "with selection.kind: "
                "uniform in real time any number",
                job->data.clients, most);
}

/* Losses come per client, in one message per daemon. */
static int check_losses(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *selection = mfl_job_find_key(mfl_yaml_root(doc), "selection");
        const struct mfl_yaml_node *kind = mfl_job_find_key(selection, "kind");
        const char *name = mfl_selection_name(job->selection.kind);
        uint32_t clients = job->selection.clients, candidates = job->selection.candidates;
        double drawn = ceil(job->selection.over * clients);
        if (!clients)
                return mfl_yaml_fail(doc, kind, err, "%s needs clients, the number per round", name);
        if (drawn > MFL_COHORT_LOSSES_MAX)
                return mfl_yaml_fail(doc, mfl_job_find_key(selection, "clients"), err,
                        "%s: %.0f clients are drawn per round; the limit is %u", name, drawn,
                        MFL_COHORT_LOSSES_MAX);
        if (job->selection.kind != MFL_SELECT_POWER_OF_CHOICE)
                return 0;
        if (!candidates)
                return mfl_yaml_fail(doc, kind, err,
                        "power-of-choice needs candidates: how many are drawn by their samples, of which the "
                        "%u with the "
                        "largest loss train",
                        clients);
        if (candidates < drawn || candidates > job->data.clients)
                return mfl_yaml_fail(doc, mfl_job_find_key(selection, "candidates"), err,
                        "%u of %u clients, of which %.0f are to be chosen; write a number between",
                        candidates, job->data.clients, drawn);
        return 0;
}

int mfl_job_check_over(const struct mfl_job *job, struct mfl_error *err)
{
        uint32_t clients = job->selection.clients, turns = MFL_MAX(job->selection.separation, 1u);
        double drawn = ceil(job->selection.over * clients);
        if (job->time != MFL_TIME_VIRTUAL || job->data.partition == MFL_PARTITION_LOCAL ||
                job->selection.over == 1 || job->data.clients < turns)
                return 0;
        if (!clients)
                return mfl_fail(err, MFL_INVALID,
                        "job %s: selection.over: so many times selection.clients are drawn: write "
                        "selection.clients, the number that take part",
                        job->name);
        if (drawn > job->data.clients / turns)
                return mfl_fail(err, MFL_INVALID,
                        "job %s: selection.over: %g times %u clients are %.0f, and there are %u to draw "
                        "from: lower it, or selection.clients",
                        job->name, job->selection.over, clients, drawn, job->data.clients / turns);
        return 0;
}

static int check_async(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *root = mfl_yaml_root(doc);
        const struct mfl_yaml_node *aggregation = mfl_job_find_key(root, "aggregation"),
                                   *buffer = mfl_job_find_key(aggregation, "buffer"), /* NULL: by default */
                                           *strategy = mfl_job_find_key(aggregation, "strategy");
        const char *name = mfl_strategy_name(job->aggregation.strategy);
        if (job->aggregation.strategy == MFL_STRATEGY_FEDASYNC && job->aggregation.alpha > 1)
                return mfl_yaml_fail(doc, mfl_job_find_key(aggregation, "alpha"), err,
                        "%g: fedasync's is the share of the new model, at most 1", job->aggregation.alpha);
        if (job->selection.clients > MFL_CONCURRENCY_MAX)
                return mfl_yaml_fail(doc, mfl_job_find_key(mfl_job_find_key(root, "selection"), "clients"),
                        err, "%s: %u clients train at once; the limit is %u", name, job->selection.clients,
                        MFL_CONCURRENCY_MAX);
        if (mfl_job_is_live(job) && mfl_job_buffer(job) > mfl_job_concurrency(job) &&
                job->data.partition != MFL_PARTITION_LOCAL)
                return mfl_yaml_fail(doc, buffer ? buffer : strategy, err,
                        "a buffer of %u updates, but only %u clients train at once (selection.clients), and "
                        "in real time the next ones start when the buffer is full: lower aggregation.buffer",
                        mfl_job_buffer(job), mfl_job_concurrency(job));
        if (mfl_job_buffer(job) <= job->data.clients || job->data.partition == MFL_PARTITION_LOCAL)
                return 0;
        return mfl_yaml_fail(doc, buffer ? buffer : strategy, err,
                "%s's buffer of %u updates of as many clients never fills: the population has %u "
                "(data.clients)",
                name, mfl_job_buffer(job), job->data.clients);
}

int mfl_job_check_time(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err)
{
        int r = check_population(doc, job, err);
        if (!r && job->selection.kind > MFL_SELECT_WEIGHTED && job->data.partition != MFL_PARTITION_LOCAL)
                r = check_losses(doc, job, err);
        if (!r && mfl_job_is_async(job))
                r = check_async(doc, job, err);
        if (!r && job->time == MFL_TIME_VIRTUAL && job->data.partition != MFL_PARTITION_LOCAL)
                r = check_trace(doc, job, err);
        return r;
}
