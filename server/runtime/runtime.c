/* SPDX-License-Identifier: Apache-2.0 */
/* One job's memory and arithmetic: open, rounds, apply.
 *   - open: reserve and touch memory, make or load params and state, digest them;
 *   - round_open, then slot_add for each update (runtime_slot.c);
 *   - apply: a new block of params from the old, the sums and the state, range by range, hashed on the way.
 * Fails when memory or disk is short at open, when a file does not fit the graph, when a result is not
 * finite.
 */
#include "server/runtime/runtime_internal.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/budget.h"
#include "common/base/digest.h"
#include "common/codec/grid.h"
#include "common/method/central_grid.h"
#include "common/model/safetensors.h"
#include "server/strategy/mark.h"

bool mfl_runtime_f32_only(const struct mfl_job *spec)
{
        return mfl_job_needs_single_updates(spec);
}

static uint64_t block_bytes(const struct mfl_job *spec, uint64_t n)
{
        return mfl_runtime_f32_only(spec) ? mfl_method_update_floats(spec, n) * sizeof(float)
                                          : n * sizeof(int64_t);
}

/* Sums and state. */
static uint64_t fixed_bytes(const struct mfl_job *spec, uint64_t n)
{
        const struct mfl_strategy_ops *ops = mfl_strategy_of(spec);
        uint64_t sums = mfl_job_has_rows(spec) ? mfl_rows_bytes(spec) : n * sizeof(int64_t);
        if (mfl_job_keeps_state(spec))
                sums += mfl_states_bytes(spec, n);
        sums += mfl_servers_bytes(spec, n);
        sums += mfl_feed_bytes(spec, n) + mfl_told_bytes(spec, n) + mfl_down_bytes(spec, n);
        if (mfl_job_has_regions(spec))
                return sums + mfl_regions_bytes(spec, n);
        return sums + (uint64_t)ops->n_state * n * sizeof(float);
}

uint64_t mfl_runtime_bytes(const struct mfl_job *spec, uint64_t n, uint32_t n_slots)
{
        return (1 + (uint64_t)n_slots) * block_bytes(spec, n) + fixed_bytes(spec, n);
}

/* The largest number of slots, up to n_slots, that fits, and its reservation. */
static int choose_slots(
        struct mfl_runtime *rt, uint32_t n_slots, uint64_t clients_bytes, struct mfl_error *err)
{
        char what[128], of_clients[16];
        snprintf(what, sizeof what, "job %s (%llu parameters, one slot, %s for its clients)", rt->job,
                (unsigned long long)rt->n, mfl_format_bytes(clients_bytes, of_clients));
        rt->n_slots = n_slots;
        while (rt->budget) {
                uint64_t bytes = mfl_runtime_bytes(rt->spec, rt->n, rt->n_slots) + clients_bytes;
                int r = mfl_budget_reserve(rt->budget, bytes, what, err);
                if (!r) {
                        /* The rest is the blocks', which give it back one by one. */
                        rt->budget_bytes = fixed_bytes(rt->spec, rt->n) + clients_bytes;
                        return 0;
                }
                if (rt->n_slots == 1) {
                        const struct mfl_error fit = *err;
                        return r < 0 ? r
                                     : mfl_fail(err, MFL_RUNTIME_MEMORY,
                                               "%s: raise memory_max, or submit it again when other jobs "
                                               "have ended",
                                               fit.text);
                }
                rt->n_slots--;
        }
        return 0;
}

static void *alloc_touched(size_t bytes)
{
        void *memory = mfl_alloc_aligned(bytes);
        if (memory)
                memset(memory, 0, bytes);
        return memory;
}

static int alloc_memory(
        struct mfl_runtime *rt, const struct mfl_runtime_options *options, struct mfl_error *err)
{
        bool single = mfl_job_has_rows(rt->spec);
        uint32_t cohort = MFL_MAX(options->cohort, 1u);
        int r = mfl_pool_new(rt->budget, block_bytes(rt->spec, rt->n), rt->n * sizeof(float), 1 + rt->n_slots,
                &rt->pool, err);
        if (!r)
                r = mfl_regions_open(rt, err);
        if (r)
                return r;
        rt->slots = mfl_calloc(rt->n_slots, sizeof *rt->slots);
        rt->d = mfl_calloc(RANGE_ELEMENTS, sizeof *rt->d);
        if (rt->spec->compression.bits)
                rt->largest = mfl_calloc(mfl_grid_tensors(rt->graph), sizeof *rt->largest);
        bool failed = !rt->slots || !rt->d || (rt->spec->compression.bits && !rt->largest);
        for (int i = 0; i < mfl_runtime_n_state(rt) && !failed; i++) {
                rt->state[i] = alloc_touched(rt->n * sizeof(float));
                failed = !rt->state[i];
        }
        if (!failed && single) {
                rt->rows = mfl_calloc(cohort + 1, sizeof *rt->rows);
                failed =
                        !rt->rows || (rt->spec->simulation.attack && mfl_simulation_draw(rt->spec, &rt->bad));
        } else if (!failed) {
                rt->sums = alloc_touched(rt->n * sizeof *rt->sums);
                failed = !rt->sums;
        }
        if (failed)
                return mfl_fail_memory(err, mfl_runtime_bytes(rt->spec, rt->n, rt->n_slots), rt->job);
        r = mfl_told_open(rt, err);
        if (!r)
                r = mfl_feed_open(rt, err);
        if (!r)
                r = mfl_down_open(rt, err);
        if (r)
                return r;
        uint32_t rows = mfl_job_sums_buckets(rt->spec) ? mfl_buckets_most(rt->spec, cohort) : cohort;
        r = single ? mfl_spill_new(options->state_dir, rt->job, rows, rt->n, &rt->spill, err) : 0;
        return r || !single ? r : mfl_rows_open(rt, options->state_dir, cohort, err);
}

const int64_t *mfl_runtime_memory(const struct mfl_runtime *rt)
{
        return rt->memory;
}

/* Before slots are chosen: those make do with what is left. */
static int make_frozen(struct mfl_runtime *rt, float **ret_v, struct mfl_error *err)
{
        static const uint8_t unknown[MFL_DIGEST_BYTES];
        struct mfl_error why = {{0}};
        if (!rt->graph->n_frozen)
                return 0;
        int r = mfl_params_alone(rt->budget, rt->graph->n_frozen, unknown, ret_v, &rt->frozen, &why);
        return r ? mfl_fail(err, r, "job %s (%llu frozen parameters): %.300s", rt->job,
                           (unsigned long long)rt->graph->n_frozen, why.text)
                 : 0;
}

static int digest_frozen(struct mfl_runtime *rt, struct mfl_error *err)
{
        struct mfl_sha256 own = {NULL};
        int r = mfl_sha256_init(&rt->hashed, err);
        if (r || !rt->frozen)
                return r;
        r = mfl_sha256_update(&rt->hashed, rt->frozen->v, rt->frozen->n * sizeof(float), err);
        if (!r)
                r = mfl_sha256_copy(&rt->hashed, &own, err);
        if (!r)
                r = mfl_sha256_final(&own, rt->frozen->digest, err);
        mfl_sha256_deinit(&own);
        return r;
}

static int make_params(struct mfl_runtime *rt, const struct mfl_runtime_options *options, float *frozen,
        struct mfl_error *err)
{
        pthread_mutex_lock(&rt->pool->mutex);
        struct mfl_block *block = mfl_pool_take(rt->pool);
        pthread_mutex_unlock(&rt->pool->mutex);
        mfl_assert(block);
        int r = mfl_runtime_fill(rt, options, frozen, block->memory, err);
        if (!r)
                r = mfl_regions_load(rt, options->checkpoint_path, options->round, err);
        if (!r && options->checkpoint_path)
                r = mfl_servers_load(rt, options->checkpoint_path, err);
        if (!r)
                r = digest_frozen(rt, err);
        struct mfl_params *params = r ? NULL : mfl_params_new(block, rt->n);
        if (!params) {
                mfl_block_release(block);
                return r ? r : mfl_fail_memory(err, sizeof *params, "parameters");
        }
        r = mfl_runtime_digest(rt, params->v, params->digest, err);
        if (!r && rt->largest && options->checkpoint_path)
                r = mfl_runtime_load_grid(rt, options->checkpoint_path, params, err);
        if (r)
                mfl_params_unref(params);
        else
                mfl_pool_publish(rt->pool, params);
        return r;
}

int mfl_runtime_open(
        const struct mfl_runtime_options *options, struct mfl_runtime **ret_rt, struct mfl_error *err)
{
        struct mfl_runtime *rt = mfl_calloc(1, sizeof *rt);
        if (!rt)
                return mfl_fail_memory(err, sizeof *rt, "a job");
        mfl_strcpy(rt->job, sizeof rt->job, options->job);
        rt->spec = options->spec;
        rt->graph = options->graph;
        rt->strategy = mfl_strategy_of(options->spec);
        mfl_strcpy(rt->mark_path, sizeof rt->mark_path, options->mark_path ? options->mark_path : "");
        rt->method = mfl_method_get(options->spec);
        rt->fixed = options->fixed;
        rt->budget = options->budget;
        rt->n = options->graph->n_moving;
        rt->n_threads = options->n_threads;
        float *frozen = NULL;
        int r = make_frozen(rt, &frozen, err);
        if (!r)
                r = choose_slots(rt, options->n_slots ? options->n_slots : 2, options->clients_bytes, err);
        if (!r)
                r = alloc_memory(rt, options, err);
        if (!r)
                r = make_params(rt, options, frozen, err);
        if (!r)
                r = mfl_runtime_open_states(rt, options, err);
        if (!r)
                r = mfl_sites_note(rt, rt->pool->current, err);
        if (!r && rt->spec->debug.deltas && options->changes_path)
                r = mfl_changes_open(options->changes_path, rt->spec->debug.deltas, options->round, rt->n,
                        &rt->changes, err);
        if (!r)
                r = mfl_runtime_open_versions(rt, options, err);
        if (!r)
                r = mfl_regions_note(rt, err);
        if (r) {
                mfl_runtime_close(rt);
                return r;
        }
        *ret_rt = rt;
        return 0;
}

void mfl_runtime_close(struct mfl_runtime *rt)
{
        if (!rt)
                return;
        for (uint32_t i = 0; i < rt->n_slots && rt->slots; i++) {
                mfl_slot_free(rt, i);
                free(rt->slots[i].extents);
        }
        if (rt->pool)
                mfl_ahead_forget(rt);
        mfl_runtime_close_versions(rt);
        mfl_pool_close(rt->pool);
        mfl_params_unref(rt->frozen);
        mfl_sha256_deinit(&rt->hashed);
        if (rt->budget)
                mfl_budget_release(rt->budget, rt->budget_bytes);
        mfl_spill_free(rt->spill);
        mfl_rows_close(rt);
        mfl_regions_close(rt->regions);
        mfl_states_close(rt->states);
        mfl_changes_close(rt->changes);
        for (int i = 0; i < MFL_STRATEGY_STATES_MAX; i++)
                free(rt->state[i]);
        free(rt->slots);
        free(rt->sums);
        free(rt->told);
        free(rt->told_mean);
        free(rt->rest);
        free(rt->down_largest);
        free(rt->fed);
        free(rt->d);
        free(rt->largest);
        free(rt->rows);
        free(rt->memory);
        free(rt->bad);
        free(rt);
}

uint32_t mfl_runtime_slots(const struct mfl_runtime *rt)
{
        return rt->n_slots;
}

uint64_t mfl_runtime_n(const struct mfl_runtime *rt)
{
        return rt->n;
}

struct mfl_params *mfl_runtime_frozen(const struct mfl_runtime *rt)
{
        return rt->frozen;
}

void mfl_runtime_round_open(struct mfl_runtime *rt, uint32_t round)
{
        rt->weight_added = 0;
        rt->round = round;
        mfl_ahead_forget(rt);
        if (rt->sums)
                memset(rt->sums, 0, rt->n * sizeof *rt->sums);
        mfl_told_clear(rt);
        if (rt->spill)
                mfl_spill_clear(rt->spill);
        if (rt->buckets)
                mfl_buckets_clear(rt->buckets);
        if (rt->states)
                mfl_states_round_open(rt->states, round);
        if (rt->changes)
                mfl_changes_round(rt->changes, round);
}

/* The aggregate of one range. */
static void reduce_range(struct mfl_runtime *rt, uint64_t begin, size_t count, uint64_t weight)
{
        bool private = rt->spec->privacy.kind == MFL_PRIVACY_CENTRAL;
        if (!weight && !private) { /* nobody was drawn: the sum over no clients */
                memset(rt->d, 0, count * sizeof *rt->d);
                return;
        }
        if (rt->spill) {
                mfl_rows_reduce(rt, begin, count);
                return;
        }
        mfl_runtime_mean(
                rt, rt->sums + begin, begin, count, private ? mfl_central_divisor(rt->spec) : (double)weight);
}

/* The steps of the next round's grid. A round of nobody leaves them as they were. */
static int make_grid(struct mfl_runtime *rt, bool nobody, struct mfl_params *params, struct mfl_error *err)
{
        const struct mfl_params *before = rt->pool->current;
        uint32_t n = mfl_grid_tensors(rt->graph);
        if (!rt->largest || (nobody && !before->grid))
                return 0;
        params->grid = mfl_calloc(n, sizeof *params->grid);
        if (!params->grid)
                return mfl_fail_memory(err, n * sizeof *params->grid, "a grid");
        params->n_grid = n;
        for (uint32_t t = 0; t < n; t++)
                params->grid[t] = nobody ? before->grid[t]
                                         : mfl_grid_exponent((int)rt->spec->compression.bits, rt->largest[t]);
        return 0;
}

/* Their digest is that of what everybody starts from. */
static int round_params(
        struct mfl_runtime *rt, const float *in, float *out, struct mfl_params *params, struct mfl_error *err)
{
        struct mfl_sha256 sha = {0};
        int r = mfl_sha256_copy(&rt->hashed, &sha, err);
        for (uint64_t begin = 0; begin < rt->n && !r; begin += RANGE_ELEMENTS) {
                size_t count = MFL_MIN(rt->n - begin, (uint64_t)RANGE_ELEMENTS);
                mfl_down_round(rt, begin, count, in, out, params);
                r = mfl_sha256_update(&sha, out + begin, count * sizeof *out, err);
        }
        if (!r)
                r = mfl_sha256_final(&sha, params->digest, err);
        mfl_sha256_deinit(&sha);
        return r;
}

static int apply_ranges(struct mfl_runtime *rt, const struct mfl_round_totals *totals, const float *in,
        float *out, struct mfl_params *params, struct mfl_error *err)
{
        struct mfl_strategy_round round = {.number = rt->round,
                .step = rt->method->step && totals->weight ? rt->method->step(rt->spec, totals) : 1};
        struct mfl_sha256 sha = {0};
        if (rt->regions)
                return mfl_regions_apply(rt, &round, out, params, err);
        int r = mfl_sha256_copy(&rt->hashed, &sha, err);
        for (uint32_t t = 0; rt->largest && t < mfl_grid_tensors(rt->graph); t++)
                rt->largest[t] = 0;
        for (uint64_t begin = 0; begin < rt->n && !r; begin += RANGE_ELEMENTS) {
                size_t count = MFL_MIN(rt->n - begin, (uint64_t)RANGE_ELEMENTS);
                float *state[MFL_STRATEGY_STATES_MAX] = {NULL};
                for (int i = 0; i < rt->strategy->n_state; i++)
                        state[i] = rt->state[i] + begin;
                reduce_range(rt, begin, count, totals->weight);
                r = mfl_runtime_advance_states(rt, begin, count, totals->weight, err);
                if (r)
                        break;
                mfl_runtime_rebase(rt, totals, begin, count);
                if (rt->largest)
                        mfl_grid_measure(rt->graph, begin, count, rt->d, rt->largest);
                round.told = mfl_told_mean(rt, begin, count, totals->weight);
                r = mfl_strategy_apply(rt->strategy, rt->spec, &round, rt->graph, rt->graph->n_frozen + begin,
                        count, in + begin, rt->d, state, out + begin, err);
                if (!r)
                        mfl_down_made(rt, begin, count, in, out, params);
                if (!r && !params->step)
                        r = mfl_sha256_update(&sha, out + begin, count * sizeof *out, err);
        }
        if (!r && !params->step)
                r = mfl_sha256_final(&sha, params->digest, err);
        mfl_sha256_deinit(&sha);
        return r || !params->step ? r : round_params(rt, in, out, params, err);
}

int mfl_runtime_apply(struct mfl_runtime *rt, const struct mfl_round_totals *totals,
        uint8_t ret_digest[MFL_DIGEST_BYTES], double ret_method[MFL_METHOD_STATES_MAX], struct mfl_error *err)
{
        uint64_t weight = totals->weight;
        mfl_ahead_undo(rt);
        if (rt->buckets && !weight) /* the round is skipped, though some of its buckets were opened */
                rt->weight_added = 0;
        bool may_be_none = rt->spec->selection.kind == MFL_SELECT_POISSON || rt->spec->secure.bits ||
                           rt->spec->selection.n_without;
        if (weight != rt->weight_added || (!weight && !may_be_none))
                return mfl_fail(err, MFL_INVALID, "apply: weight %llu, the round's updates have %llu",
                        (unsigned long long)weight, (unsigned long long)rt->weight_added);
        pthread_mutex_lock(&rt->pool->mutex);
        struct mfl_block *block = mfl_pool_take(rt->pool);
        pthread_mutex_unlock(&rt->pool->mutex);
        if (!block)
                return mfl_fail(err, MFL_BUSY, "apply: all memory of job %s is held", rt->job);
        struct mfl_params *params = mfl_params_new(block, rt->n);
        if (!params) {
                mfl_block_release(block);
                return mfl_fail_memory(err, sizeof *params, "parameters");
        }
        int r = rt->spill && weight && !rt->regions ? mfl_rows_decide(rt, err) : 0;
        struct mfl_round_totals noisy = *totals;
        if (!r && rt->spec->privacy.kind == MFL_PRIVACY_CENTRAL)
                r = mfl_runtime_add_noise(rt, &noisy, err);
        bool marks = rt->spec->aggregation.strategy == MFL_STRATEGY_PLUGIN && *rt->mark_path;
        if (!r && marks)
                r = mfl_plugin_mark(rt->mark_path, rt->round, rt->strategy->name, err);
        if (!r)
                r = mfl_down_begin(rt, params, err);
        if (!r)
                r = apply_ranges(rt, totals, rt->pool->current->v, block->memory, params, err);
        if (!r && marks)
                mfl_plugin_unmark(rt->mark_path);
        mfl_rows_end(rt);
        if (!r)
                r = make_grid(rt, !weight, params, err);
        if (!r && rt->states)
                r = mfl_states_apply(rt->states, err);
        if (!r)
                r = mfl_sites_note(rt, params, err);
        if (!r)
                r = mfl_runtime_keep_version(rt, err);
        if (r) {
                mfl_params_unref(params);
                return r;
        }
        memcpy(ret_digest, params->digest, MFL_DIGEST_BYTES);
        mfl_pool_publish(rt->pool, params);
        mfl_runtime_note_version(rt, params->digest);
        mfl_regions_applied(rt);
        bool private = rt->spec->privacy.kind == MFL_PRIVACY_CENTRAL; /* a round of nobody is one, too */
        if (rt->method->advance && (weight || private))
                rt->method->advance(rt->spec, &noisy, rt->numbers);
        memcpy(ret_method, rt->numbers, sizeof rt->numbers);
        return 0;
}

const struct mfl_rows_report *mfl_runtime_report(const struct mfl_runtime *rt)
{
        return &rt->report;
}

const uint8_t (*mfl_runtime_digests(const struct mfl_runtime *rt))[MFL_DIGEST_BYTES]
{
        return rt->regions ? mfl_regions_digests(rt->regions)
                           : (const uint8_t(*)[MFL_DIGEST_BYTES])rt->digests;
}

const double *mfl_runtime_method(const struct mfl_runtime *rt)
{
        return rt->numbers;
}

_Static_assert(MFL_CHECKPOINT_STATES_MAX > MFL_STRATEGY_STATES_MAX, "a checkpoint holds every state vector");
_Static_assert(MFL_CHECKPOINT_NUMBERS_MAX >= MFL_METHOD_STATES_MAX, "and every number");

void mfl_runtime_checkpoint(struct mfl_runtime *rt, struct mfl_checkpoint *ret_checkpoint)
{
        struct mfl_checkpoint checkpoint = {
                .graph = rt->graph,
                .frozen = rt->frozen ? rt->frozen->v : NULL,
                .params = rt->pool->current->v,
                .digest = rt->pool->current->digest,
                .n_state = mfl_runtime_n_state(rt),
                .grid = rt->pool->current->grid,
                .n_grid = rt->pool->current->n_grid,
        };
        checkpoint.n_numbers = rt->method->n_state;
        for (int i = 0; i < rt->method->n_state; i++) {
                checkpoint.number_name[i] = rt->method->state_name[i];
                checkpoint.number[i] = rt->numbers[i];
        }
        for (int i = 0; i < mfl_runtime_n_state(rt); i++) {
                checkpoint.state_name[i] = rt->strategy->state_name[i];
                checkpoint.state[i] = rt->state[i];
        }
        if (rt->rest) {
                checkpoint.state_name[checkpoint.n_state] = MFL_RUNTIME_REST;
                checkpoint.state[checkpoint.n_state++] = rt->rest;
        }
        mfl_regions_store(rt, &checkpoint);
        mfl_servers_store(rt, &checkpoint);
        *ret_checkpoint = checkpoint;
}
