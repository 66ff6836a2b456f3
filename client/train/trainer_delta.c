/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a client's params when it is trained, by whatever has trained it: their change is filtered, checked, clipped, rounded to the
 * job's grid, weighed, and added or left where the upload reads it. */
#include "client/train/trainer_internal.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>

#include "client/keep/keep.h"
#include "client/plugin/plugin.h"
#include "common/base/log.h"
#include "common/codec/bf16.h"
#include "common/codec/grid.h"
#include "common/codec/top_k.h"
#include "common/method/central_grid.h"

#define CHECK_BLOCK 4096 /* elements: half of a small first-level cache */

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
        const struct mfl_job *spec = run->job->spec;
        bool alike = spec->aggregation.weighting != MFL_WEIGHT_SAMPLES || mfl_job_sums_buckets(spec);
        uint64_t weight = n && alike ? 1 : n;
        uint64_t max = MFL_MIN(MFL_WEIGHT_MAX - 1, run->request->task->fixed.weight_max);
        *ret_weight = weight;
        if (weight >= 1 && weight <= max)
                return 0;
        return mfl_trainer_reject(item,
                mfl_asprintf("its weight is %llu, but 1 to %llu can be added", (unsigned long long)weight,
                        (unsigned long long)max),
                err);
}

/* The elements [first, end) of a client's change. What another process may write is read once, into `params`, which is looked at
 * afterwards. */
static void take_change(const struct trainer_run *run, const struct trainer_trained *trained, bool is_delta,
        uint64_t first, uint64_t end, float *restrict params)
{
        const float *restrict source = trained->source, *restrict before = run->request->params;
        if (source && is_delta)
                memcpy(params + first, source + first, (end - first) * sizeof *params);
        for (uint64_t i = first; source && !is_delta && i < end; i++)
                params[i] = source[i] - before[i];
        for (uint64_t i = first; !source && !is_delta && i < end; i++)
                params[i] -= before[i];
        atomic_signal_fence(memory_order_seq_cst); /* or the compiler might look at the source again later */
}

static bool any_beyond(const float *delta, uint64_t n, float max)
{
        unsigned bad = 0;
        for (uint64_t i = 0; i < n; i++)
                bad |= !(fabsf(delta[i]) <= max);
        return bad;
}

/* An element that can't be added rejects the client. One pass over memory: what a block has taken is still in the cache when it is checked. */
static int check_delta(struct trainer_run *run, float *params, const struct trainer_trained *trained,
        bool is_delta, struct trainer_item *item, struct mfl_error *err)
{
        const struct mfl_graph *graph = run->job->graph;
        const struct mfl_fixed *fixed = &run->request->task->fixed;
        uint64_t n_bad[2] = {0}, first_bad[2]; /* of trained params, of running statistics */
        for (uint64_t i = 0; i < graph->n_moving;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(fixed, &graph->statistics, i, graph->n_moving);
                uint64_t end = MFL_MIN(part.end, i + CHECK_BLOCK);
                take_change(run, trained, is_delta, i, end, params);
                if (!any_beyond(params + i, end - i, part.fixed.delta_max))
                        i = end;
                for (; i < end; i++) {
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
static void make_hidden(
        struct trainer_run *run, const struct trainer_trained *trained, bool is_delta, float *params)
{
        uint64_t n = run->job->graph->n_moving;
        take_change(run, trained, is_delta, 0, n, params);
        if (!any_beyond(params, n, FLT_MAX))
                return;
        memset(params, 0, n * sizeof *params);
        mfl_log_job(MFL_LOG_WARN, run->job->id,
                "%s: the change of client %llu is not finite: noise alone leaves", run->job->id,
                (unsigned long long)trained->client);
}

static bool shares_noise(const struct trainer_run *run)
{
        return run->job->spec->privacy.kind == MFL_PRIVACY_DISTRIBUTED;
}

bool mfl_trainer_withholds(const struct trainer_run *run)
{
        const struct mfl_site_privacy *site = run->trainer->privacy;
        return mfl_privacy_withholds(&run->job->spec->privacy) || (site && site->withholds);
}

struct mfl_local_rule mfl_trainer_rule(const struct trainer_run *run)
{
        return mfl_site_rule(run->trainer->privacy, run->job->spec);
}

/* The grid comes from the server, and this daemon's noise is as wide as its units say. */
static int check_share(const struct trainer_run *run, struct mfl_error *err)
{
        const struct mfl_site_privacy *site = run->trainer->privacy;
        const struct mfl_fixed *fixed = &run->request->task->fixed;
        const struct mfl_job *spec = run->job->spec;
        if (!site || !site->secret)
                return mfl_fail(err, MFL_INVALID,
                        "the job has privacy: {kind: distributed}, and this daemon's share of the noise "
                        "needs "
                        "a "
                        "key that survives restarts: give it a place for one, policy: {dir: DIR}");
        int most, r = mfl_central_scale_max(spec, &most, err);
        if (r)
                return r;
        if (fixed->scale_bits > most || (double)fixed->delta_max < spec->privacy.clip)
                return mfl_fail(err, MFL_INVALID,
                        "the server's grid has no room for the clip and the noise of the job: 2^-%d to %g",
                        fixed->scale_bits, (double)fixed->delta_max);
        return mfl_central_check(spec, fixed, run->job->graph->n_moving, err);
}

int mfl_trainer_check_rule(const struct trainer_run *run, struct mfl_error *err)
{
        const struct mfl_local_rule rule = mfl_trainer_rule(run);
        const struct mfl_site_privacy *site = run->trainer->privacy;
        int r = shares_noise(run) ? check_share(run, err) : 0;
        if (r || rule.clip == 0)
                return r;
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
        if (shares_noise(
                    run)) /* nobody is left out: what is beyond delta_max is shortened before its weight is found */
                mfl_method_clip(fixed, &graph->statistics, run->job->spec->privacy.clip, delta, n);
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
        take_change(run, trained, trained->is_delta, 0, run->job->graph->n_moving, params);
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

/* ---- what stays at a client's site (client_state: daemon): its own model, its own layers, what is not sent ----
 *
 * It is read before a training or an evaluation, and kept after a training. Of layers that stay, the client's whole change is in the file
 * and none of it in the update. What the server names and the site does not have is lost: the client begins anew, and its update says so.
 * A full disk rejects the client. */

bool mfl_trainer_keeps_own(const struct trainer_run *run)
{
        const struct mfl_method_ops *method = mfl_method_get(run->job->spec);
        return run->job->spec->client_state == MFL_CLIENT_STATE_DAEMON && (method->models || method->starts);
}

static struct mfl_keep site_of(const struct trainer_run *run, uint64_t client)
{
        return (struct mfl_keep){.dir = run->trainer->state_dir,
                .job = run->request->task->job,
                .job_text = run->request->job_text,
                .client = client};
}

int mfl_trainer_site_load(
        struct trainer_run *run, uint64_t client, float *ret_own, bool *ret_there, struct mfl_error *err)
{
        const struct mfl_task *task = run->request->task;
        const struct mfl_keep keep = site_of(run, client);
        size_t n = (size_t)mfl_method_state_floats(run->job->spec, run->job->graph->n_moving);
        bool there = false;
        int r = task->has_state ? mfl_keep_load(&keep, task->state_digest, n, ret_own, &there, err) : 0;
        if (!r)
                *ret_there = there;
        return r;
}

int mfl_trainer_site_save(struct trainer_run *run, uint64_t client, size_t n, const float *own, bool there,
        struct trainer_item *item, struct mfl_error *err)
{
        const struct mfl_keep keep = site_of(run, client);
        struct mfl_error why;
        int r = mfl_keep_save(&keep, n, own, item->state.digest, &why);
        if (r < 0)
                return mfl_fail(err, r, "%s", why.text);
        item->state.there = true;
        item->state.anew = run->request->task->has_state && !there;
        return r ? mfl_trainer_reject(item, mfl_asprintf("%s", why.text), err) : 0;
}

/* Moves the elements of layers that stay from the delta to `own`, which has 0 elsewhere. */
static void split(const struct mfl_graph *graph, float *delta, float *own)
{
        static const struct mfl_fixed apart = {.statistics_max = 1}; /* the parts count as such */
        for (uint64_t e = 0; e < graph->n_moving;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(&apart, &graph->personal, e, graph->n_moving);
                for (; e < part.end; e++) {
                        own[e] = part.statistics ? delta[e] : 0;
                        delta[e] = part.statistics ? 0 : delta[e];
                }
        }
}

int mfl_trainer_site_keep(struct trainer_run *run, const struct trainer_lane *lane, struct trainer_item *item,
        struct mfl_error *err)
{
        const struct mfl_graph *graph = run->job->graph;
        size_t n = (size_t)graph->n_moving;
        void *own;
        if (!mfl_trainer_keeps_own(run))
                return 0;
        float *delta = run->result->data[lane->item]; /* such a job sends each update by itself */
        if (mfl_method_get(run->job->spec)->models)
                return mfl_trainer_site_save(run, lane->local.client,
                        (size_t)mfl_method_state_floats(run->job->spec, n), delta + n, !item->state.anew,
                        item, err);
        int r = mfl_trainer_buffer_get(
                &run->trainer->memory, n * sizeof *delta, "what stays of a client", &own, err);
        if (r)
                return r;
        split(graph, delta, own);
        r = mfl_trainer_site_save(run, lane->local.client, n, own, !item->state.anew, item, err);
        mfl_trainer_buffer_put(&run->trainer->memory, own, n * sizeof *delta);
        return r;
}

/* Adds what the client had not sent before, keeps what it does not send now, and leaves what it sends. */
static int cut(struct trainer_run *run, uint64_t client, float *delta, float *rest, struct trainer_item *item,
        struct mfl_error *err)
{
        const struct mfl_task *task = run->request->task;
        const struct mfl_graph *graph = run->job->graph;
        size_t n = (size_t)graph->n_moving;
        struct mfl_top_k top;
        bool there;
        int r = mfl_trainer_site_load(run, client, rest, &there, err);
        if (r)
                return r;
        if (there)
                mfl_top_k_feed(&graph->statistics, 0, n, rest, delta);
        mfl_top_k_find(
                &graph->statistics, run->job->spec->compression.top_k, task->fixed.delta_max, n, delta, &top);
        mfl_top_k_split(&top, 0, n, delta, rest);
        return mfl_trainer_site_save(run, client, n, rest, there, item, err);
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
        struct trainer_trained rest = *trained; /* what filters leave is in place, and a change */
        if (filters)
                rest.source = NULL;
        int r = filters ? filter_delta(run, worker, trained, delta, item, err) : 0;
        if (!r && !item->rejected && (mfl_trainer_rule(run).noise > 0 || shares_noise(run)))
                make_hidden(run, &rest, trained->is_delta || filters, delta);
        else if (!r && !item->rejected)
                r = check_delta(run, delta, &rest, trained->is_delta || filters, item, err);
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
