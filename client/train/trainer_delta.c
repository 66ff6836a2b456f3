/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a client's params when it is trained, by whatever has trained it: their change is filtered, checked, clipped, rounded to the
 * job's grid, weighed, and added or left where the upload reads it. */
#include "client/train/trainer_internal.h"

#include <math.h>

#include "client/plugin/plugin.h"
#include "common/base/log.h"
#include "common/codec/bf16.h"
#include "common/codec/grid.h"
#include "common/codec/top_k.h"
#include "client/keep/keep.h"

int mfl_trainer_reject(struct trainer_item *item, char *reason, struct mfl_error *err)
{
        if (!reason)
                return mfl_fail_memory(err, MFL_REASON_BYTES, "a reason");
        *item = (struct trainer_item){.rejected = reason};
        return 0;
}

int mfl_trainer_weight(struct trainer_run *run, struct trainer_item *item, uint64_t n, uint64_t *ret_weight,
        struct mfl_error *err)
{
        uint64_t weight = !n || run->job->spec->aggregation.weighting == MFL_WEIGHT_SAMPLES ? n : 1;
        uint64_t max = MFL_MIN(MFL_WEIGHT_MAX - 1, run->request->task->fixed.weight_max);
        *ret_weight = weight;
        if (weight >= 1 && weight <= max)
                return 0;
        return mfl_trainer_reject(item,
                mfl_asprintf("its weight is %llu, but 1 to %llu can be added", (unsigned long long)weight,
                        (unsigned long long)max),
                err);
}

/* An element that can't be added rejects the client. */
static int check_delta(struct trainer_run *run, float *params, bool is_delta, struct trainer_item *item,
        struct mfl_error *err)
{
        const float *before = run->request->params;
        const struct mfl_graph *graph = run->job->graph;
        const struct mfl_fixed *fixed = &run->request->task->fixed;
        uint64_t n_bad[2] = {0}, first_bad[2]; /* of trained params, of running statistics */
        for (uint64_t i = 0; i < graph->n_moving;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(fixed, &graph->statistics, i, graph->n_moving);
                for (; i < part.end; i++) {
                        params[i] -= is_delta ? 0 : before[i];
                        if (fabsf(params[i]) <= part.fixed.delta_max)
                                continue;
                        if (!n_bad[part.statistics]++)
                                first_bad[part.statistics] = i;
                }
        }
        if (!n_bad[0] && !n_bad[1])
                return 0;
        bool statistics = !n_bad[0];
        uint64_t i = first_bad[statistics];
        int t = 0;
        while (t + 1 < graph->n_params && graph->params[t + 1].offset <= graph->n_frozen + i)
                t++;
        if (run->job->program) /* short, since its words come behind */
                return mfl_trainer_reject(item,
                        mfl_asprintf("%s changes by %g, and aggregation.%s is %g", graph->params[t].name,
                                (double)params[i], statistics ? "statistics_max" : "delta_max",
                                (double)(statistics ? fixed->statistics_max : fixed->delta_max)),
                        err);
        return mfl_trainer_reject(item,
                mfl_asprintf("%llu %s not within +-%g (%s); the first is %g in %s",
                        (unsigned long long)n_bad[statistics],
                        statistics ? "changes of batch norm's running statistics are"
                                   : "elements of the update are",
                        (double)(statistics ? fixed->statistics_max : fixed->delta_max),
                        statistics ? "aggregation.statistics_max, or scale the data"
                                   : "aggregation.delta_max; a smaller training.lr may help",
                        (double)params[i], graph->params[t].name),
                err);
}

/* Where noise hides the change, whether it is counted must not tell of it, and no words either: nobody is left out. What is long is
 * shortened, and a change that is not finite becomes none at all. */
static void make_hidden(struct trainer_run *run, uint64_t client, float *params, bool is_delta)
{
        const float *before = run->request->params;
        uint64_t n = run->job->graph->n_moving;
        bool finite = true;
        for (uint64_t i = 0; i < n; i++) {
                params[i] -= is_delta ? 0 : before[i];
                finite &= isfinite(params[i]);
        }
        if (finite)
                return;
        memset(params, 0, n * sizeof *params);
        mfl_log_job(MFL_LOG_WARN, run->job->id,
                "%s: the change of client %llu is not finite: noise alone leaves", run->job->id,
                (unsigned long long)client);
}

struct mfl_local_rule mfl_trainer_rule(const struct trainer_run *run)
{
        return mfl_site_rule(run->trainer->privacy, run->job->spec);
}

int mfl_trainer_check_rule(const struct trainer_run *run, struct mfl_error *err)
{
        const struct mfl_local_rule rule = mfl_trainer_rule(run);
        const struct mfl_site_privacy *site = run->trainer->privacy;
        if (rule.clip == 0)
                return 0;
        if (rule.noise > 0 && (!site || !site->secret))
                return mfl_fail(err, MFL_INVALID,
                        "the job has privacy: {kind: local}, whose noise needs a key that survives restarts: "
                        "give this daemon a place for it, policy: {dir: DIR}");
        if (run->job->graph->statistics.n)
                return mfl_fail(err, MFL_INVALID,
                        "the model's batch norms have running statistics, which clipping and noise of "
                        "updates "
                        "do not cover: use group norms");
        if (run->request->task->team.team)
                return mfl_fail(err, MFL_INVALID,
                        "daemons of a team exchange gradients, which this site's clipping and noise of "
                        "updates do "
                        "not cover: write parallel: {within: daemon}");
        return 0;
}

/* The site's own clip and noise, or a job's of kind local: before anything else is made of the change. */
static int keep_rule(struct trainer_run *run, uint64_t client, float *delta, struct mfl_error *err)
{
        const struct mfl_local_rule rule = mfl_trainer_rule(run);
        const struct mfl_graph *graph = run->job->graph;
        const struct mfl_fixed *fixed = &run->request->task->fixed;
        uint64_t n = graph->n_moving, bytes = n * sizeof(int64_t);
        if (rule.clip > 0 && rule.noise == 0)
                mfl_method_clip(fixed, &graph->statistics, rule.clip, delta, n);
        if (rule.noise == 0)
                return 0;
        int r = mfl_trainer_memory_reserve(&run->trainer->memory, bytes, "a change before its noise", err);
        if (r)
                return r;
        MFL_CLEANUP_FREE int64_t *q = mfl_malloc(bytes + 1);
        const struct mfl_site_change change = {.job = run->job->spec,
                .text = run->job->text,
                .task = run->request->task,
                .client = client,
                .n = n,
                .norm2 = mfl_method_norm2(fixed, &graph->statistics, delta, n),
                .threads = run->trainer->workers};
        r = q ? mfl_site_noise(run->trainer->privacy, &rule, &change, q, delta, err)
              : mfl_fail_memory(err, bytes, "a change before its noise");
        mfl_trainer_memory_release(&run->trainer->memory, bytes);
        return r;
}

/* The daemon's filters see the change before anything is checked or rounded. */
static int filter_delta(struct trainer_run *run, uint32_t worker, const struct trainer_trained *trained,
        float *params, struct trainer_item *item, struct mfl_error *err)
{
        const struct mfl_task *task = run->request->task;
        const struct mfl_filter_client client = {.job = task->job,
                .spec = run->job->spec,
                .round = task->round,
                .worker = worker,
                .client = trained->client,
                .seed = run->job->spec->seed,
                .graph = run->job->graph,
                .params = run->request->params,
                .params_digest = task->params_digest};
        struct mfl_error why;
        for (uint64_t i = 0; i < run->job->graph->n_moving && !trained->is_delta; i++)
                params[i] -= client.params[i];
        int r = mfl_filters_apply(run->trainer->filters, &client, params, &why);
        if (r > 0)
                return mfl_trainer_reject(item, mfl_asprintf("%s", why.text), err);
        if (r)
                *err = why;
        return r;
}

/* No update that leaves the daemon is longer than the job says. */
static void clip_delta(struct trainer_run *run, float *delta)
{
        double limit = run->job->spec->aggregation.robust.update_clip;
        const struct mfl_graph *graph = run->job->graph;
        if (limit > 0)
                mfl_method_clip(
                        &run->request->task->fixed, &graph->statistics, limit, delta, graph->n_moving);
}

/* The first round has no grid. */
static void round_delta(struct trainer_run *run, uint64_t client, float *delta, struct trainer_item *item)
{
        const struct mfl_task *task = run->request->task;
        const struct mfl_job *spec = run->job->spec;
        if (spec->compression.up_half)
                mfl_bf16_round(run->job->graph, spec->seed, client, task->round, delta);
        else if (task->grid)
                item->clamped = mfl_grid_round(run->job->graph, (int)spec->compression.bits, task->grid,
                        spec->seed, client, task->round, delta);
}

/* Adds what the client had not sent before, keeps what it does not send now, and leaves what it sends. */
static int cut(struct trainer_run *run, uint64_t client, float *delta, float *rest, struct trainer_item *item,
        struct mfl_error *err)
{
        const struct mfl_task *task = run->request->task;
        const struct mfl_graph *graph = run->job->graph;
        const struct mfl_keep keep = {.dir = run->trainer->state_dir,
                .job = task->job,
                .job_text = run->request->job_text,
                .client = client};
        size_t n = (size_t)graph->n_moving;
        struct mfl_top_k top;
        struct mfl_error why;
        bool there = false;
        int r = task->has_state ? mfl_keep_load(&keep, task->state_digest, n, rest, &there, err) : 0;
        if (r)
                return r;
        if (there)
                mfl_top_k_feed(&graph->statistics, 0, n, rest, delta);
        mfl_top_k_find(
                &graph->statistics, run->job->spec->compression.top_k, task->fixed.delta_max, n, delta, &top);
        mfl_top_k_split(&top, 0, n, delta, rest);
        r = mfl_keep_save(&keep, n, rest, item->state.digest, &why);
        if (r < 0)
                return mfl_fail(err, r, "%s", why.text);
        item->state.there = true;
        item->state.anew = task->has_state && !there;
        return r ? mfl_trainer_reject(item, mfl_asprintf("%s", why.text), err) : 0;
}

/* With client_state server, the server does so. */
static int cut_delta(struct trainer_run *run, uint64_t client, float *delta, struct trainer_item *item,
        struct mfl_error *err)
{
        const struct mfl_job *spec = run->job->spec;
        uint64_t bytes = run->job->graph->n_moving * sizeof *delta;
        void *rest;
        if (!mfl_method_get(spec)->feeds || spec->client_state != MFL_CLIENT_STATE_DAEMON)
                return 0;
        int r = mfl_trainer_buffer_get(
                &run->trainer->memory, bytes, "what a client does not send", &rest, err);
        if (r)
                return r;
        r = cut(run, client, delta, rest, item, err);
        mfl_trainer_buffer_put(&run->trainer->memory, rest, bytes);
        return r;
}

/* Workers start at different stripes, so they rarely wait for each other. */
static int add_delta(struct trainer_run *run, uint32_t worker, const float *delta, uint64_t weight,
        double real, struct mfl_error *err)
{
        uint64_t n = run->job->graph->n_moving;
        uint32_t n_stripes = (uint32_t)((n + run->stripe - 1) / run->stripe);
        for (uint32_t s = 0; s < n_stripes; s++) {
                uint32_t i = (s + worker * 7) % n_stripes;
                uint64_t first = i * run->stripe, count = MFL_MIN(run->stripe, n - first);
                pthread_mutex_lock(&run->stripes[i]);
                int r = mfl_fixed_parts_add_real(&run->fixed, &run->job->graph->statistics, first, weight,
                        real, delta + first, count, run->sum + first, err);
                pthread_mutex_unlock(&run->stripes[i]);
                if (r)
                        return r;
        }
        return 0;
}

/* What the strategy makes of a client: its real weight, and its scalars. A client that it can't count is rejected. */
static int weigh(struct trainer_run *run, const struct trainer_trained *trained, struct trainer_item *item,
        const float *delta, double *ret_real, struct mfl_error *err)
{
        const struct mfl_method_ops *method = mfl_method_get(run->job->spec);
        struct mfl_error why;
        *ret_real = (double)trained->weight;
        if (method->counts_steps &&
                mfl_method_count(run->job->spec, &run->fixed, trained->steps, &item->scalars[0], &why))
                return mfl_trainer_reject(item, mfl_asprintf("%s", why.text), err);
        if (!method->weighs)
                return 0;
        struct mfl_client_facts facts = {.weight = trained->weight,
                .samples = trained->samples,
                .steps = trained->steps,
                .loss = trained->loss,
                .n = run->job->graph->n_moving,
                .scale_bits = run->fixed.scale_bits,
                .staleness = run->request->task->staleness};
        if (method->needs_norm)
                facts.norm2 = mfl_method_norm2(
                        &run->fixed, &run->job->graph->statistics, delta, run->job->graph->n_moving);
        if (mfl_method_weigh(run->job->spec, &run->fixed, run->request->task->method, &facts, ret_real,
                    item->scalars, &why))
                return mfl_trainer_reject(item, mfl_asprintf("%s", why.text), err);
        return 0;
}

int mfl_trainer_delta(struct trainer_run *run, uint32_t worker, float *delta,
        const struct trainer_trained *trained, struct trainer_item *item, struct mfl_error *err)
{
        double real = 0;
        bool filters = mfl_filters_concern(run->trainer->filters, run->job->spec);
        int r = filters ? filter_delta(run, worker, trained, delta, item, err) : 0;
        if (!r && !item->rejected && mfl_trainer_rule(run).noise > 0)
                make_hidden(run, trained->client, delta, trained->is_delta || filters);
        else if (!r && !item->rejected)
                r = check_delta(run, delta, trained->is_delta || filters, item, err);
        if (!r && !item->rejected)
                r = keep_rule(run, trained->client, delta, err);
        if (!r && !item->rejected)
                clip_delta(run, delta);
        if (!r && !item->rejected)
                r = cut_delta(run, trained->client, delta, item, err);
        if (!r && !item->rejected)
                round_delta(run, trained->client, delta, item);
        if (!r && !item->rejected)
                r = weigh(run, trained, item, delta, &real, err);
        /* Only clients that the device rejected come here, and its sum does not have them. */
        if (!r && trainer_adds_on_device(run) && !item->rejected)
                return mfl_fail(err, -EIO, "the device rejects an update that is within +-%g",
                        (double)run->request->task->fixed.delta_max);
        if (!r && run->sum && !item->rejected)
                r = add_delta(run, worker, delta, trained->weight, real, err);
        return r;
}
