/* SPDX-License-Identifier: Apache-2.0 */
/* Checking the numbers that daemons report. Sums of losses have 128 bits and can't overflow. */
#include "server/work/core_claims.h"

#include "common/partition/partition.h"
#include "server/work/core_presence.h"

#include <inttypes.h>
#include <math.h>

#define LOSS_BITS 52 /* the largest loss of a prediction is 2^52 units */

struct bounds {
        uint64_t min, max;
};

static uint64_t multiply(uint64_t a, uint64_t b)
{
        uint64_t product;
        return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t add(uint64_t a, uint64_t b)
{
        uint64_t sum;
        return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

bool mfl_core_claims_known(const struct core_job *job)
{
        enum mfl_partition_kind kind = job->spec->data.partition;
        return job->cut || kind == MFL_PARTITION_LOCAL || kind == MFL_PARTITION_IID ||
               job->spec->aggregation.weighting == MFL_WEIGHT_UNIFORM || job->spec->secure.bits;
}

/* The number of samples that one client has, with those that it keeps for evaluations. */
static struct bounds owned_of(const struct core_job *job, const struct mfl_data_info *data, uint64_t client)
{
        uint32_t n;
        const struct core_cut *cut = job->cut;
        if (mfl_job_owns_data(job->spec)) /* only the program knows, and this is its limit */
                return (struct bounds){1, job->data.train_samples};
        if (job->spec->data.partition == MFL_PARTITION_LOCAL)
                return (struct bounds){data->train_samples, data->train_samples};
        if (mfl_partition_client(job->spec, job->data.train_samples, client, &n))
                return (struct bounds){n, n};
        if (job->cut_exact)
                return (struct bounds){cut->count[client], cut->count[client]};
        if (cut)
                return (struct bounds){cut->samples_min, cut->samples_max};
        return (struct bounds){0, job->data.train_samples};
}

/* The number of those that it keeps, and of those that it trains on. */
static struct bounds held_of(const struct core_job *job, const struct mfl_data_info *data, uint64_t client)
{
        struct bounds all = owned_of(job, data, client);
        return (struct bounds){
                mfl_job_held(job->spec, (uint32_t)all.min), mfl_job_held(job->spec, (uint32_t)all.max)};
}

static struct bounds samples_of(const struct core_job *job, const struct mfl_data_info *data, uint64_t client)
{
        struct bounds all = owned_of(job, data, client);
        return (struct bounds){all.min - mfl_job_held(job->spec, (uint32_t)all.min),
                all.max - mfl_job_held(job->spec, (uint32_t)all.max)};
}

/* The maximum number of scored predictions in one client's local training. */
static uint64_t trained_of(const struct core_job *job, uint64_t samples)
{
        const struct mfl_job *spec = job->spec;
        uint64_t rows = multiply(spec->training.batch, spec->training.accumulate);
        uint64_t n = multiply(samples, spec->training.epochs);
        if (spec->training.steps)
                n = multiply(spec->training.steps, MFL_MIN(rows, samples));
        struct mfl_phase phases[MFL_PHASES_MAX];
        mfl_method_phases(spec, job->round, phases);
        if (phases[0].gradient)
                n = samples;
        return multiply(multiply(n, MFL_MAX(phases[0].inner, 1u)), job->scored);
}

/* Checks the number of correct predictions among n, and the sum of their losses. */
static const char *check_score(
        const struct core_job *job, uint64_t n, uint64_t correct, int64_t loss_sum, char *text)
{
        uint64_t heads = 1 + job->spec->training.auxiliary.n;
        if (correct > n)
                mfl_snprintf(text, MFL_REASON_BYTES, "%" PRIu64 " of %" PRIu64 " predictions are correct",
                        correct, n);
        else if (correct && !mfl_job_has_accuracy(job->spec))
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "%" PRIu64 " predictions are correct, but the loss has no accuracy", correct);
        else if (loss_sum < 0 || (uint64_t)loss_sum > multiply(multiply(n, heads), (uint64_t)1 << LOSS_BITS))
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "a total loss of %g for %" PRIu64 " predictions, but each has at most 2^20",
                        mfl_fixed_loss_to_double(loss_sum), n);
        else
                return NULL;
        return text;
}

/* ---- updates ---- */

static const char *check_weight(
        const struct core_job *job, struct bounds samples, uint32_t n, uint64_t weight, char *text)
{
        if (job->spec->aggregation.weighting == MFL_WEIGHT_UNIFORM) {
                if (weight == n)
                        return NULL;
                mfl_snprintf(text, MFL_REASON_BYTES, "weight %" PRIu64 ", but it has %u client%s", weight, n,
                        n == 1 ? "" : "s");
        } else if (weight >= samples.min && weight <= samples.max) {
                return NULL;
        } else if (samples.min == samples.max) {
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "weight %" PRIu64 ", but its %u client%s %" PRIu64 " samples", weight, n,
                        n == 1 ? " has" : "s have", samples.max);
        } else {
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "weight %" PRIu64 ", but its %u client%s %" PRIu64 " to %" PRIu64 " samples", weight,
                        n, n == 1 ? " has" : "s have", samples.min, samples.max);
        }
        return text;
}

/* A client's scalar is at most its weight times the method's limit. */
static const char *check_scalars(const struct core_job *job, const struct mfl_announce *a, char *text)
{
        const struct mfl_method_ops *method = mfl_method_get(job->spec);
        for (uint32_t i = 0; i < a->n_scalars && i < (uint32_t)method->n_scalars; i++) {
                int bits =
                        method->scalar_max_bits[i] + mfl_method_scalar_bits(job->spec, &job->fixed, (int)i);
                double most = ldexp((double)a->weight, bits);
                if ((double)a->scalars[i] <= most)
                        continue;
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "scalar %u is %" PRId64 ", but clients of weight %" PRIu64 " have at most %.0f", i,
                        a->scalars[i], a->weight, most);
                return text;
        }
        return NULL;
}

/* What it says of each client adds up to what it says of all. */
static const char *check_losses(const struct mfl_announce *a, char *text)
{
        uint64_t samples = 0;
        int64_t loss_sum = 0;
        for (uint32_t i = 0; i < a->n_losses; i++) {
                samples = add(samples, a->losses[i].samples);
                loss_sum = mfl_fixed_loss_add(loss_sum, a->losses[i].loss_sum);
        }
        if (!a->n_losses || (samples == a->samples && loss_sum == a->loss_sum))
                return NULL;
        mfl_snprintf(text, MFL_REASON_BYTES,
                "its clients have %" PRIu64 " predictions and a loss of %g, but together %" PRIu64 " and %g",
                samples, mfl_fixed_loss_to_double(loss_sum), a->samples,
                mfl_fixed_loss_to_double(a->loss_sum));
        return text;
}

const char *mfl_core_claim_update(const struct core_task *task, const struct core_daemon *daemon,
        const struct mfl_announce *a, char text[MFL_REASON_BYTES])
{
        const struct core_job *job = task->job;
        bool local = job->spec->data.partition == MFL_PARTITION_LOCAL;
        const struct mfl_data_info *data = local ? mfl_core_daemon_data(daemon, job) : NULL;
        struct bounds accepted = {0, 0};
        uint64_t scored = 0;
        if (local && !data)
                return NULL; /* it came back without the data: its tasks are taken away */
        for (uint32_t i = 0, r = 0; i < a->item_count; i++) {
                uint64_t item = job->items[task->index[a->item_first + i]].item;
                struct bounds one = samples_of(job, data, item);
                scored = add(scored, trained_of(job, one.max));
                if (r < a->n_rejected && a->rejected[r].item == item) {
                        r++;
                        continue;
                }
                accepted.min += one.min;
                accepted.max += one.max;
        }
        if (!local && !mfl_job_owns_data(job->spec))
                accepted.max = MFL_MIN(accepted.max, (uint64_t)job->data.train_samples);
        const char *lie = check_weight(job, accepted, a->item_count - a->n_rejected, a->weight, text);
        if (!lie && job->scored && a->samples > scored) {
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "%" PRIu64 " predictions, but its %u clients make at most %" PRIu64, a->samples,
                        a->item_count, scored);
                lie = text;
        }
        uint64_t elements = (a->item_count - a->n_rejected) * (job->n_params - job->n_frozen);
        if (!lie && a->clamped > (job->spec->compression.bits ? elements : 0)) {
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "%" PRIu64 " elements beyond the grid, but its clients have at most %" PRIu64,
                        a->clamped, job->spec->compression.bits ? elements : 0);
                lie = text;
        }
        if (!lie)
                lie = check_scalars(job, a, text);
        if (!lie)
                lie = check_losses(a, text);
        return lie ? lie : check_score(job, a->samples, a->correct, a->loss_sum, text);
}

/* The update came before its clients' samples were known. If it counts, or is being added, and is false,
 * the round is spoilt. */
static void check_update(struct mfl_core *core, struct core_update *update)
{
        struct core_task *task = update->task;
        struct core_job *job = task->job;
        struct core_daemon *daemon = mfl_core_map_get(&core->by_key, task->owner_key);
        char text[MFL_REASON_BYTES];
        if (update->state == UPDATE_REFUSED || !mfl_core_claim_update(task, daemon, &update->announce, text))
                return;
        job->spoilt |= update->state >= UPDATE_ADDING;
        if (!daemon || daemon->info.instance != task->owner_instance)
                return;
        /* If the daemon's own cut is not the valid one, its update may agree with its cut. The vote
         * decides about the cut; the update is no second lie. */
        const struct core_relation *relation = mfl_core_relation(core, daemon, job);
        if (!relation || !mfl_core_cut_differs(relation, job))
                mfl_core_daemon_lied(core, daemon, job, "%s", text);
}

void mfl_core_claims_check(struct mfl_core *core, struct core_job *job)
{
        mfl_assert(job->spec->data.partition != MFL_PARTITION_LOCAL);
        for (struct core_task *task = job->phase == PHASE_TRAIN || job->phase == PHASE_CLOSING ? job->tasks
                                                                                               : NULL;
                task; task = task->job_next)
                for (uint32_t i = 0; task->kind == MFL_TASK_TRAIN && i < task->n_items; i++)
                        if (task->updates[i])
                                check_update(core, task->updates[i]);
}

/* ---- evaluations and progress ---- */

/* The number of samples that one shard, or one client, evaluates. */
static struct bounds tested_of(const struct core_job *job, const struct mfl_data_info *data, uint64_t item)
{
        uint32_t per, n = job->data.test_samples;
        if (mfl_job_held(job->spec, UINT32_MAX))
                return held_of(job, data, item);
        if (job->spec->data.partition == MFL_PARTITION_LOCAL)
                return (struct bounds){data->test_samples, data->test_samples};
        uint64_t n_shards = mfl_eval_shards(n, job->spec->evaluation.batch, &per);
        uint64_t tested = item < n_shards ? MFL_MIN((uint64_t)per, n - item * per) : 0;
        return (struct bounds){tested, tested};
}

const char *mfl_core_claim_score(const struct core_task *task, const struct core_daemon *daemon,
        const struct mfl_eval_item *item, char text[MFL_REASON_BYTES])
{
        const struct core_job *job = task->job;
        const struct mfl_data_info *data = mfl_core_daemon_data(daemon, job);
        struct bounds tested = data ? tested_of(job, data, item->item) : (struct bounds){0, 0};
        uint64_t most = multiply(tested.max, job->scored), least = multiply(tested.min, job->scored);
        bool withheld = !item->samples; /* a site's policy may keep its figures */
        bool wrong = item->samples > most || (job->scored_all && !withheld && item->samples < least);
        if (data && job->scored && wrong) {
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "%" PRIu64 " predictions are scored, but the test samples have %s%" PRIu64,
                        item->samples, least < most ? "at most " : "", item->samples > most ? most : least);
                return text;
        }
        return check_score(job, item->samples, item->correct, item->loss_sum, text);
}

const char *mfl_core_claim_tally(const struct core_job *job, const struct mfl_eval_item *item,
        const uint64_t *tally, char text[MFL_REASON_BYTES])
{
        if (mfl_tally_agrees(job->tally_kind, tally, job->answers, item->samples, item->correct))
                return NULL;
        mfl_snprintf(text, MFL_REASON_BYTES,
                "its tally contradicts %" PRIu64 " predictions, %" PRIu64 " right", item->samples,
                item->correct);
        return text;
}

const char *mfl_core_claim_progress(const struct core_task *task, const struct core_daemon *daemon,
        uint64_t samples, int64_t loss_sum, char text[MFL_REASON_BYTES])
{
        const struct core_job *job = task->job;
        const struct mfl_data_info *data = mfl_core_daemon_data(daemon, job);
        uint64_t most = 0;
        if (!data || !job->scored)
                return NULL;
        for (uint32_t i = 0; i < task->n_items; i++) {
                uint64_t item = job->items[task->index[i]].item;
                most = add(most, task->kind == MFL_TASK_TRAIN
                                         ? trained_of(job, samples_of(job, data, item).max)
                                         : multiply(tested_of(job, data, item).max, job->scored));
        }
        if (samples > most) {
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "%" PRIu64 " samples done, but its task has at most %" PRIu64, samples, most);
                return text;
        }
        return check_score(job, most, 0, loss_sum, text);
}
