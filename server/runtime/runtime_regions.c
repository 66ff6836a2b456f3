/* SPDX-License-Identifier: Apache-2.0 */
/* Regions (common/job/edges.h). The clients of a region start from its params, and a round's new params of region e are what the
 * strategy makes of the exact mean of its clients' updates, with a state of the region's own:
 *
 *      x_e  <-  apply(x_e, sum over its clients of round(w_k delta_k 2^s) / (W_e 2^s), state_e)
 *      x     =  sum over e of V_e x_e / sum of V_e      V_e: the sum of its W_e since the regions met
 *
 * x is the job's model of that round, in double, in the order of regions, rounded once. Where the regions meet, each x_e
 * becomes x. A region without a client since then has V_e = 0 and stays as it was. With one region, x is x_e, and a round of nobody
 * is one of a zero update, as without regions.
 * Updates lie in the spill file as rows, and are worked off range by range. Between meetings x_e takes 4 bytes per param and
 * region, in mapped memory that goes with the last reference to it.
 * Fails without memory, or when a result is not finite. */
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>

#include "common/base/budget.h"
#include "server/runtime/runtime_internal.h"

#define HEADER_BYTES_MAX (16u << 20)
#define HEADER_TENSOR_BYTES 112u /* around its name */

struct mfl_regions {
        uint32_t n;
        bool apart; /* they have not met in the round before: each has its params in rt->older */
        uint8_t (*digests)[MFL_DIGEST_BYTES];
        float *state[MFL_REGIONS_MAX][MFL_STRATEGY_STATES_MAX];
        uint64_t weight[MFL_REGIONS_MAX]; /* V_e */
        char vector[MFL_REGIONS_MAX][1 + MFL_STRATEGY_STATES_MAX][48], number[MFL_REGIONS_MAX][32];
        /* While a round is applied: its clients and their weight; where each region is read from and written to. */
        uint32_t clients[MFL_REGIONS_MAX];
        uint64_t added[MFL_REGIONS_MAX];
        const float *from[MFL_REGIONS_MAX];
        struct mfl_params *to[MFL_REGIONS_MAX];
        int64_t *sum;    /* RANGE_ELEMENTS */
        float *made;     /* RANGE_ELEMENTS */
        double *meeting; /* RANGE_ELEMENTS */
};

static bool keeps_params(const struct mfl_job *spec)
{
        return spec->edges.rounds > 1;
}

uint64_t mfl_regions_bytes(const struct mfl_job *spec, uint64_t n)
{
        uint64_t each = (uint64_t)mfl_strategy_of(spec)->n_state + keeps_params(spec);
        return mfl_job_has_regions(spec) ? spec->edges.count * each * n * sizeof(float) : 0;
}

/* ---- open and close ---- */

/* They give their part of the budget back when their last reference goes. */
static int new_params(const struct mfl_runtime *rt, struct mfl_params **ret_params, struct mfl_error *err)
{
        uint64_t bytes = rt->n * sizeof(float);
        void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED)
                return mfl_fail_memory(err, bytes, "a region");
        memset(map, 0, bytes);
        *ret_params = mfl_params_mapped(map, rt->n);
        if (*ret_params) {
                (*ret_params)->block->pool->budget = rt->budget;
                return 0;
        }
        munmap(map, bytes);
        return mfl_fail_memory(err, sizeof **ret_params, "a region");
}

static void name_tensors(const struct mfl_runtime *rt, struct mfl_regions *regions, uint32_t e)
{
        snprintf(regions->vector[e][0], sizeof regions->vector[e][0], "region_%u", e);
        for (int i = 0; i < rt->strategy->n_state; i++)
                snprintf(regions->vector[e][1 + i], sizeof regions->vector[e][1 + i], "region_%u_%.24s", e,
                        rt->strategy->state_name[i]);
        snprintf(regions->number[e], sizeof regions->number[e], "region_%u_weight", e);
}

/* A checkpoint names each tensor of each vector in its header, which common/model/safetensors.h limits. About, and rather more. */
static int check_header(const struct mfl_runtime *rt, struct mfl_error *err)
{
        uint64_t vectors = (uint64_t)rt->spec->edges.count *
                           (uint32_t)(rt->strategy->n_state + keeps_params(rt->spec)),
                 bytes = 0;
        for (int t = rt->graph->i_moving; t < rt->graph->n_params; t++)
                bytes += vectors * (HEADER_TENSOR_BYTES + strlen(rt->graph->params[t].name));
        return bytes <= HEADER_BYTES_MAX
                       ? 0
                       : mfl_fail(err, MFL_INVALID,
                                 "edges.count: %u regions of a model with %d tensors that move are too many "
                                 "for a "
                                 "checkpoint: write a smaller number",
                                 rt->spec->edges.count, rt->graph->n_params - rt->graph->i_moving);
}

int mfl_regions_open(struct mfl_runtime *rt, struct mfl_error *err)
{
        uint32_t n = rt->spec->edges.count;
        if (!mfl_job_has_regions(rt->spec))
                return 0;
        int r = check_header(rt, err);
        if (r)
                return r;
        struct mfl_regions *regions = rt->regions = mfl_calloc(1, sizeof *regions);
        if (!regions)
                return mfl_fail_memory(err, sizeof *regions, "regions");
        regions->n = n;
        regions->digests = mfl_calloc(n, sizeof *regions->digests);
        regions->sum = mfl_calloc(RANGE_ELEMENTS, sizeof *regions->sum);
        regions->made = mfl_calloc(RANGE_ELEMENTS, sizeof *regions->made);
        regions->meeting = mfl_calloc(RANGE_ELEMENTS, sizeof *regions->meeting);
        if (keeps_params(rt->spec))
                rt->older = mfl_calloc(n, sizeof(struct mfl_params *));
        rt->n_older = rt->older ? n : 0;
        bool failed = !regions->digests || !regions->sum || !regions->made || !regions->meeting ||
                      (keeps_params(rt->spec) && !rt->older);
        r = failed ? mfl_fail_memory(err, RANGE_ELEMENTS * sizeof(double), "regions") : 0;
        for (uint32_t e = 0; e < n && !r; e++) {
                name_tensors(rt, regions, e);
                if (rt->older)
                        r = new_params(rt, &rt->older[e], err);
                if (rt->older && !r && rt->budget)
                        rt->budget_bytes -= rt->n * sizeof(float);
                for (int i = 0; i < rt->strategy->n_state && !r; i++) {
                        regions->state[e][i] = mfl_calloc(rt->n, sizeof(float));
                        if (!regions->state[e][i])
                                r = mfl_fail_memory(err, rt->n * sizeof(float), "a region");
                }
        }
        return r;
}

void mfl_regions_close(struct mfl_regions *regions)
{
        if (!regions)
                return;
        for (uint32_t e = 0; e < regions->n; e++)
                for (int i = 0; i < MFL_STRATEGY_STATES_MAX; i++)
                        free(regions->state[e][i]);
        free(regions->digests);
        free(regions->sum);
        free(regions->made);
        free(regions->meeting);
        free(regions);
}

/* ---- checkpoints ---- */

static void begin_states(struct mfl_runtime *rt)
{
        for (uint32_t e = 0; e < rt->regions->n; e++)
                for (int i = 0; i < rt->strategy->n_state; i++) {
                        float v = rt->strategy->state_initial(rt->spec, i);
                        for (uint64_t at = 0; at < rt->n; at++)
                                rt->regions->state[e][i][at] = v;
                }
}

static int load_region(struct mfl_runtime *rt, const struct mfl_st_file *file, uint32_t e, const char *path,
        struct mfl_error *err)
{
        struct mfl_regions *regions = rt->regions;
        double weight = 0;
        int r = 0;
        for (int i = 0; i < rt->strategy->n_state && !r; i++)
                r = mfl_runtime_load_state(
                        rt, file, regions->vector[e][1 + i], regions->state[e][i], path, err);
        if (r || !regions->apart)
                return r;
        float *v = (float *)(uintptr_t)rt->older[e]->v;
        r = mfl_runtime_load_state(rt, file, regions->vector[e][0], v, path, err);
        if (!r)
                r = mfl_runtime_load_number(file, regions->number[e], path, &weight, err);
        regions->weight[e] = (uint64_t)weight;
        return r;
}

int mfl_regions_load(struct mfl_runtime *rt, const char *path, uint32_t round, struct mfl_error *err)
{
        struct mfl_regions *regions = rt->regions;
        struct mfl_st_file *file = NULL;
        if (!regions)
                return 0;
        if (!path) {
                begin_states(rt);
                return 0;
        }
        regions->apart = !mfl_job_regions_meet(rt->spec, round);
        int r = mfl_st_open(path, &file, err);
        for (uint32_t e = 0; e < regions->n && !r; e++)
                r = load_region(rt, file, e, path, err);
        mfl_st_close(file);
        return r == MFL_NOT_FOUND ? MFL_INVALID : r;
}

void mfl_regions_store(const struct mfl_runtime *rt, struct mfl_checkpoint *checkpoint)
{
        const struct mfl_regions *regions = rt->regions;
        for (uint32_t e = 0; regions && e < regions->n; e++) {
                for (int i = 0; i < rt->strategy->n_state; i++) {
                        checkpoint->state_name[checkpoint->n_state] = regions->vector[e][1 + i];
                        checkpoint->state[checkpoint->n_state++] = regions->state[e][i];
                }
                if (!regions->apart)
                        continue;
                checkpoint->state_name[checkpoint->n_state] = regions->vector[e][0];
                checkpoint->state[checkpoint->n_state++] = rt->older[e]->v;
                checkpoint->number_name[checkpoint->n_numbers] = regions->number[e];
                checkpoint->number[checkpoint->n_numbers++] = (double)regions->weight[e];
        }
}

/* ---- params ---- */

/* What clients of each region start from next. */
static void note_digests(struct mfl_runtime *rt)
{
        struct mfl_regions *regions = rt->regions;
        for (uint32_t e = 0; e < regions->n; e++)
                memcpy(regions->digests[e], regions->apart ? rt->older[e]->digest : rt->pool->current->digest,
                        MFL_DIGEST_BYTES);
}

int mfl_regions_note(struct mfl_runtime *rt, struct mfl_error *err)
{
        struct mfl_regions *regions = rt->regions;
        int r = 0;
        if (!regions)
                return 0;
        for (uint32_t e = 0; regions->apart && e < regions->n && !r; e++)
                r = mfl_runtime_digest(rt, rt->older[e]->v, rt->older[e]->digest, err);
        if (!r)
                note_digests(rt);
        return r;
}

const uint8_t (*mfl_regions_digests(const struct mfl_regions *regions))[MFL_DIGEST_BYTES]
{
        return (const uint8_t(*)[MFL_DIGEST_BYTES])regions->digests;
}

/* ---- a round ---- */

static void count_rows(struct mfl_runtime *rt)
{
        struct mfl_regions *regions = rt->regions;
        memset(regions->clients, 0, sizeof regions->clients);
        memset(regions->added, 0, sizeof regions->added);
        for (uint32_t i = 0; i < mfl_spill_rows(rt->spill); i++) {
                uint32_t e = mfl_job_region(rt->spec, mfl_spill_item(rt->spill, i));
                rt->pick[i] = e;
                regions->clients[e]++;
                regions->added[e] += mfl_spill_weight(rt->spill, i);
        }
        for (uint32_t e = 0; e < regions->n; e++)
                regions->weight[e] += regions->added[e];
}

/* From here on they are found by the digest of what they are now. */
static void put_params(struct mfl_runtime *rt)
{
        struct mfl_regions *regions = rt->regions;
        mfl_slots_lock(rt);
        for (uint32_t e = 0; rt->older && e < regions->n; e++)
                rt->older[e] = regions->to[e];
        mfl_slots_unlock(rt);
}

/* What a download still holds is not written to. It ends soon, for they are replaced. */
static int copy_params(struct mfl_runtime *rt, uint32_t e, struct mfl_error *err)
{
        uint64_t bytes = rt->n * sizeof(float);
        struct mfl_params *old = rt->regions->to[e], *copy;
        atomic_store(&old->retired, true);
        if (rt->budget && mfl_budget_reserve(rt->budget, bytes, "a region", NULL))
                return mfl_fail(err, MFL_BUSY, "apply: all memory of job %s is held", rt->job);
        int r = new_params(rt, &copy, err);
        if (r) {
                if (rt->budget)
                        mfl_budget_release(rt->budget, bytes);
                return r;
        }
        memcpy((float *)(uintptr_t)copy->v, old->v, bytes);
        memcpy(copy->digest, old->digest, MFL_DIGEST_BYTES);
        rt->regions->to[e] = copy;
        mfl_params_unref(old);
        return 0;
}

/* Where they are read from, and, unless they meet, written to. Nobody finds them until they are put back. MFL_BUSY: downloads
 * hold them, and there is no memory for copies; nothing has happened. */
static int take_params(struct mfl_runtime *rt, bool meets, struct mfl_error *err)
{
        struct mfl_regions *regions = rt->regions;
        int r = 0;
        mfl_slots_lock(rt);
        for (uint32_t e = 0; rt->older && e < regions->n; e++) {
                regions->to[e] = rt->older[e];
                rt->older[e] = NULL;
        }
        mfl_slots_unlock(rt);
        for (uint32_t e = 0; !meets && e < regions->n && !r; e++) {
                if (atomic_load(&regions->to[e]->refs) > 1)
                        r = copy_params(rt, e, err);
                else
                        atomic_store(&regions->to[e]->retired, false);
        }
        for (uint32_t e = 0; e < regions->n; e++)
                regions->from[e] = regions->apart ? regions->to[e]->v : rt->pool->current->v;
        if (r)
                put_params(rt);
        return r;
}

/* The exact mean of the region's updates into rt->d. */
static int mean_range(struct mfl_runtime *rt, uint32_t e, uint64_t begin, size_t count, struct mfl_error *err)
{
        struct mfl_regions *regions = rt->regions;
        int r = 0;
        memset(regions->sum, 0, count * sizeof *regions->sum);
        for (uint32_t i = 0; i < mfl_spill_rows(rt->spill) && !r; i++)
                if (rt->pick[i] == e)
                        r = mfl_fixed_parts_add_f32(&rt->fixed, &rt->graph->statistics, begin,
                                mfl_spill_weight(rt->spill, i), rt->rows[i], count, regions->sum, err);
        if (!r)
                mfl_runtime_mean(rt, regions->sum, begin, count, (double)regions->added[e]);
        return r;
}

/* The region's new params of the range into regions->made. */
static int make_range(struct mfl_runtime *rt, uint32_t e, const struct mfl_strategy_round *round,
        uint64_t begin, size_t count, struct mfl_error *err)
{
        struct mfl_regions *regions = rt->regions;
        float *state[MFL_STRATEGY_STATES_MAX] = {NULL};
        memcpy(regions->made, regions->from[e] + begin, count * sizeof *regions->made);
        if (!regions->clients[e] && regions->n > 1)
                return 0;
        for (int i = 0; i < rt->strategy->n_state; i++)
                state[i] = regions->state[e][i] + begin;
        if (!regions->clients[e])
                memset(rt->d, 0, count * sizeof *rt->d);
        int r = regions->clients[e] ? mean_range(rt, e, begin, count, err) : 0;
        return r ? r
                 : mfl_strategy_apply(rt->strategy, rt->spec, round, rt->graph, rt->graph->n_frozen + begin,
                           count, regions->from[e] + begin, rt->d, state, regions->made, err);
}

/* One range of all regions; out: where they would meet. */
static int apply_range(struct mfl_runtime *rt, const struct mfl_strategy_round *round, bool meets,
        uint64_t begin, size_t count, float *out, struct mfl_error *err)
{
        struct mfl_regions *regions = rt->regions;
        uint32_t n_met = 0;
        uint64_t weight = 0;
        memset(regions->meeting, 0, count * sizeof *regions->meeting);
        mfl_spill_range(rt->spill, begin, rt->rows);
        for (uint32_t e = 0; e < regions->n; e++) {
                int r = make_range(rt, e, round, begin, count, err);
                if (r)
                        return r;
                if (!meets)
                        memcpy((float *)(uintptr_t)regions->to[e]->v + begin, regions->made,
                                count * sizeof *out);
                if (!regions->weight[e] && regions->n > 1)
                        continue;
                if (!n_met++) /* the only one is met exactly */
                        memcpy(out, regions->made, count * sizeof *out);
                weight += regions->weight[e];
                for (size_t i = 0; i < count; i++)
                        regions->meeting[i] += (double)regions->weight[e] * (double)regions->made[i];
        }
        for (size_t i = 0; n_met > 1 && i < count; i++)
                out[i] = (float)(regions->meeting[i] / (double)weight);
        if (!n_met)
                memcpy(out, rt->pool->current->v + begin, count * sizeof *out);
        mfl_spill_release(rt->spill, begin, count);
        return 0;
}

static void make_report(struct mfl_runtime *rt)
{
        struct mfl_regions *regions = rt->regions;
        rt->report.n_regions = regions->n;
        rt->report.round = rt->round;
        memcpy(rt->report.region_clients, regions->clients, sizeof rt->report.region_clients);
        for (uint32_t e = 0; e < regions->n; e++)
                memcpy(rt->report.region_digest[e], regions->digests[e], sizeof rt->report.region_digest[e]);
}

int mfl_regions_apply(struct mfl_runtime *rt, const struct mfl_strategy_round *round, float *out,
        struct mfl_params *params, struct mfl_error *err)
{
        bool meets = mfl_job_regions_meet(rt->spec, rt->round);
        struct mfl_sha256 sha = {0};
        int r = take_params(rt, meets, err);
        if (r)
                return r;
        rt->report = (struct mfl_rows_report){0};
        r = mfl_rows_attack(rt, err);
        if (!r)
                r = mfl_sha256_copy(&rt->hashed, &sha, err);
        if (!r)
                count_rows(rt);
        for (uint64_t begin = 0; begin < rt->n && !r; begin += RANGE_ELEMENTS) {
                size_t count = MFL_MIN(rt->n - begin, (uint64_t)RANGE_ELEMENTS);
                r = apply_range(rt, round, meets, begin, count, out + begin, err);
                if (!r)
                        r = mfl_sha256_update(&sha, out + begin, count * sizeof *out, err);
        }
        if (!r)
                r = mfl_sha256_final(&sha, params->digest, err);
        mfl_sha256_deinit(&sha);
        for (uint32_t e = 0; !meets && e < rt->regions->n && !r; e++) {
                struct mfl_params *to = rt->regions->to[e];
                mfl_params_forget_crc(to);
                r = mfl_runtime_digest(rt, to->v, to->digest, err);
        }
        put_params(rt);
        rt->regions->apart = !meets;
        if (meets)
                memset(rt->regions->weight, 0, sizeof rt->regions->weight);
        return r;
}

void mfl_regions_applied(struct mfl_runtime *rt)
{
        if (!rt->regions)
                return;
        note_digests(rt);
        make_report(rt);
}
