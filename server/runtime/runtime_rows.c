/* SPDX-License-Identifier: Apache-2.0 */
/* Single updates on their way to an aggregate: the attack of a simulation (runtime_attack.c), which rows there are, pass 1
 * (runtime_facts.c), the decision (server/robust), pass 2.
 * Fails when rows are too few or too many for the rule, or without memory.
 */
#include "server/runtime/runtime_internal.h"

#include <math.h>

#include "common/partition/partition.h"

/* ---- the decision ---- */

static double least_share(const struct mfl_choice *choice)
{
        return 0.5 / choice->n_rows;
}

/* Whether row a is told before row b: the smaller share, then the larger distance, then the lower row. */
static bool is_before(const struct mfl_choice *choice, uint32_t a, uint32_t b)
{
        if (choice->share[a] != choice->share[b])
                return choice->share[a] < choice->share[b];
        if (choice->distance[a] != choice->distance[b])
                return choice->distance[a] > choice->distance[b];
        return a < b;
}

static void make_report(struct mfl_runtime *rt)
{
        const struct mfl_choice *choice = &rt->choice;
        struct mfl_rows_report *report = &rt->report;
        uint32_t told[MFL_ROWS_TOLD];
        report->n_rows = choice->n_rows;
        report->n_used = choice->n_used;
        report->few = choice->few;
        for (uint32_t i = 0; i < choice->n_rows; i++) {
                if (choice->share[i] >= least_share(choice))
                        continue;
                report->n_least++;
                uint32_t at = report->n_told < MFL_ROWS_TOLD ? report->n_told++ : MFL_ROWS_TOLD;
                while (at > 0 && is_before(choice, i, told[at - 1])) {
                        if (at < MFL_ROWS_TOLD)
                                told[at] = told[at - 1];
                        at--;
                }
                if (at < MFL_ROWS_TOLD)
                        told[at] = i;
        }
        for (uint32_t i = 0; i < report->n_told; i++) {
                report->told[i].item = mfl_spill_item(rt->spill, rt->pick[told[i]]);
                report->told[i].share = choice->share[told[i]];
                report->told[i].score = choice->score[told[i]];
                report->told[i].distance = choice->distance[told[i]];
                mfl_unit_tell(rt, rt->pick[told[i]], &report->told[i].members);
        }
}

/* The rows that the rule is asked about: without the root's, if that is there and not the only one. */
static void pick_rows(struct mfl_runtime *rt, const struct mfl_robust_rule *rule)
{
        uint32_t n = mfl_spill_rows(rt->spill);
        rt->n_pick = 0;
        rt->root = n;
        for (uint32_t i = 0; i < n; i++) {
                if (rule && rule->wants_root && n > 1 && mfl_rows_is_root(rt, mfl_spill_item(rt->spill, i)))
                        rt->root = i;
                else
                        rt->pick[rt->n_pick++] = i;
        }
}

/* What is compared; NULL: nothing, or no memory. */
static double *facts_for(struct mfl_runtime *rt, const struct mfl_robust_rule *rule, struct mfl_error *err)
{
        bool rooted = rt->root < mfl_spill_rows(rt->spill);
        const float *guess = rule && rule->wants_guess ? rt->state[0]
                             : rooted                  ? mfl_spill_row(rt->spill, rt->root)
                                                       : NULL;
        bool history = rule && rule->wants_history;
        if (!mfl_robust_compares(rt->spec) || (history && mfl_history_make(rt, err)))
                return NULL;
        double *facts = mfl_rows_facts(rt, history ? rt->history : rt->spill, rt->pick, rt->n_pick, guess);
        if (!facts)
                mfl_fail_memory(err, rt->n_pick * sizeof *facts, "the rows of a round");
        return facts;
}

static int decide(struct mfl_runtime *rt, struct mfl_error *err)
{
        const struct mfl_robust_rule *rule = mfl_robust_get(rt->spec->aggregation.strategy);
        pick_rows(rt, rule);
        int r = mfl_unit_merge(rt, err);
        if (r)
                return r;
        mfl_servers_lie(rt);
        bool guess = rule && (rule->wants_guess || rt->root < mfl_spill_rows(rt->spill)),
             compares = mfl_robust_compares(rt->spec);
        uint32_t n = rt->n_pick;
        if (compares && n > MFL_ROBUST_ROWS_MAX)
                return mfl_fail(err, MFL_INVALID, "%s compares all updates: a round has at most %u, not %u",
                        rt->strategy->name, MFL_ROBUST_ROWS_MAX, n);
        double *facts = facts_for(rt, rule, err), *weight = rule ? NULL : mfl_calloc(n, sizeof *weight);
        r = compares && !facts ? MFL_INVALID : 0;
        if (!r && !rule && !weight)
                r = mfl_fail_memory(err, n * sizeof *weight, "the rows of a round");
        for (uint32_t i = 0; i < n && weight; i++)
                weight[i] = (double)mfl_spill_weight(rt->spill, rt->pick[i]);
        if (!r)
                r = mfl_robust_decide(rt->spec, rt->round, n, guess, facts, weight, &rt->choice, err);
        free(facts);
        free(weight);
        if (r)
                return r;
        size_t scratch = mfl_robust_scratch(&rt->choice);
        rt->scratch = mfl_malloc((scratch + 1) * sizeof *rt->scratch);
        if (!rt->scratch)
                return mfl_fail_memory(err, scratch * sizeof(double), "the rows of a round");
        if (rule)
                make_report(rt);
        return 0;
}

int mfl_rows_decide(struct mfl_runtime *rt, struct mfl_error *err)
{
        rt->report = (struct mfl_rows_report){0};
        int r = mfl_rows_attack(rt, err);
        return r || !mfl_spill_rows(rt->spill) ? r : decide(rt, err);
}

/* The rows of the choice, with the guess or the root's after them. */
static void order_rows(struct mfl_runtime *rt, uint64_t at)
{
        mfl_spill_range(rt->spill, at, rt->rows);
        const float *last = rt->root < mfl_spill_rows(rt->spill)  ? rt->rows[rt->root]
                            : rt->choice.n_in > rt->choice.n_rows ? rt->state[0] + at
                                                                  : NULL;
        for (uint32_t i = 0; i < rt->n_pick; i++) /* ascending: none is overwritten before it is read */
                rt->rows[i] = rt->rows[rt->pick[i]];
        if (last)
                rt->rows[rt->n_pick] = last;
}

void mfl_rows_reduce(struct mfl_runtime *rt, uint64_t begin, size_t count)
{
        if (!rt->choice.n_rows) {
                memset(rt->d, 0, count * sizeof *rt->d);
                return;
        }
        for (uint64_t at = begin; at < begin + count;) {
                struct mfl_fixed_part part =
                        mfl_fixed_part_at(&rt->fixed, &rt->graph->statistics, at, begin + count);
                order_rows(rt, at);
                mfl_robust_reduce(&rt->choice, part.statistics, rt->rows, at, part.end - at, rt->scratch,
                        rt->d + (at - begin));
                at = part.end;
        }
        mfl_spill_release(rt->spill, begin, count);
}

void mfl_rows_end(struct mfl_runtime *rt)
{
        mfl_choice_deinit(&rt->choice);
        free(rt->scratch);
        rt->scratch = NULL;
}

/* ---- open and close ---- */

bool mfl_rows_is_root(const struct mfl_runtime *rt, uint64_t item)
{
        const struct mfl_robust_spec *spec = &rt->spec->aggregation.robust;
        if (spec->root.has_client)
                return item == spec->root.client;
        return spec->root.daemon[0] && (item == rt->root_item[0] || item == rt->root_item[1]);
}

int mfl_rows_open(struct mfl_runtime *rt, const char *dir, uint32_t cohort, struct mfl_error *err)
{
        const struct mfl_robust_spec *spec = &rt->spec->aggregation.robust;
        const struct mfl_robust_rule *rule = mfl_robust_get(rt->spec->aggregation.strategy);
        int r = 0;
        rt->pick = mfl_calloc(cohort, sizeof *rt->pick);
        if (!rt->pick || (spec->unit >= MFL_ROWS_BUCKET && !mfl_job_sums_buckets(rt->spec) &&
                                 mfl_unit_new(cohort, &rt->unit)))
                r = mfl_fail_memory(err, cohort * sizeof *rt->pick, "the rows of a round");
        if (!r && spec->root.daemon[0]) /* a site, or a daemon that has none */
                r = mfl_partition_site_client(spec->root.daemon, "", &rt->root_item[0], err);
        if (!r && spec->root.daemon[0])
                r = mfl_partition_site_client("", spec->root.daemon, &rt->root_item[1], err);
        if (!r)
                r = mfl_servers_open(rt, err);
        if (!r && rule && rule->wants_history)
                r = mfl_spill_new(dir, rt->job, cohort, rt->n, &rt->history, err);
        if (!r && mfl_job_sums_buckets(rt->spec))
                r = mfl_buckets_open(rt, dir, cohort, err);
        return r;
}

void mfl_rows_close(struct mfl_runtime *rt)
{
        free(rt->pick);
        mfl_unit_free(rt->unit);
        mfl_servers_close(rt->servers);
        mfl_spill_free(rt->history);
        mfl_buckets_close(rt->buckets);
}
