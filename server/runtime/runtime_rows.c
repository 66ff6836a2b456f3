/* SPDX-License-Identifier: Apache-2.0 */
/* Single updates on their way to an aggregate: the attack of a simulation, pass 1 over the spill file on several threads,
 * the decision (server/robust), pass 2.
 *   - pass 1: threads take ranges in order, and add what each gives to the whole in that order: any number of
 *     threads gives the same bits;
 *   - a range's pages are given back when it is done, so memory does not grow with the file.
 * Fails when rows are too few or too many for the rule, or without memory.
 */
#include "server/runtime/runtime_internal.h"

#include <math.h>
#include <unistd.h>

#include "server/robust/attack.h"

#define THREADS_MAX 4u

static uint32_t n_threads(const struct mfl_runtime *rt)
{
        long n = rt->n_threads ? (long)rt->n_threads : sysconf(_SC_NPROCESSORS_ONLN);
        return (uint32_t)MFL_MIN(MFL_MAX(n, 1), (long)THREADS_MAX);
}

/* The matrix for the threads, the whole and the steps before the rule, and tiles. */
uint64_t mfl_rows_bytes(const struct mfl_job *spec)
{
        bool local = spec->data.partition == MFL_PARTITION_LOCAL;
        uint64_t m = local ? MFL_ROBUST_ROWS_MAX : mfl_job_cohort_size(spec, spec->data.clients);
        bool compares = mfl_robust_compares(spec) || spec->simulation.attack == MFL_ATTACK_MIN_MAX ||
                        spec->simulation.attack == MFL_ATTACK_MIN_SUM;
        if (!compares)
                return 0;
        m = MFL_MIN(m, (uint64_t)MFL_ROBUST_ROWS_MAX) + 1;
        struct mfl_facts facts = mfl_facts_of(spec, (uint32_t)m, 0, 0);
        return (THREADS_MAX + 1) * mfl_facts_size(&facts) * sizeof(double) + 5 * m * m * sizeof(double) +
               THREADS_MAX * mfl_facts_scratch(&facts) * sizeof(double);
}

/* ---- pass 1 ---- */

struct pass {
        struct mfl_runtime *rt;
        const uint32_t *pick; /* which rows; NULL: all */
        uint32_t n_pick;
        const float *guess;
        struct mfl_facts facts; /* their shape; m: with the guess */
        double *found;
        pthread_mutex_t mutex;
        pthread_cond_t turned;
        uint64_t next, turn; /* the range to take, and to add */
        bool failed;
};

static int add_range(const struct pass *pass, uint64_t begin, uint64_t count, const float **rows,
        const float **picked, double *scratch, double *found)
{
        int r = 0;
        struct mfl_runtime *rt = pass->rt;
        mfl_spill_range(rt->spill, begin, rows);
        for (uint32_t i = 0; i < pass->n_pick; i++)
                picked[i] = rows[pass->pick ? pass->pick[i] : i];
        if (pass->guess)
                picked[pass->n_pick] = pass->guess + begin;
        memset(found, 0, mfl_facts_size(&pass->facts) * sizeof *found);
        for (uint64_t at = begin; at < begin + count && !r;) {
                struct mfl_fixed_part part =
                        mfl_fixed_part_at(&rt->fixed, &rt->graph->statistics, at, begin + count);
                if (!part.statistics)
                        r = mfl_facts_add(
                                &pass->facts, picked, begin, at - begin, part.end - at, scratch, found);
                at = part.end;
        }
        mfl_spill_release(rt->spill, begin, count);
        return r;
}

static void *run_pass(void *user)
{
        struct pass *pass = user;
        size_t count = mfl_facts_size(&pass->facts);
        uint32_t n_rows = mfl_spill_rows(pass->rt->spill);
        double *found = mfl_malloc(count * sizeof *found),
               *scratch = mfl_malloc(mfl_facts_scratch(&pass->facts) * sizeof *scratch);
        const float **rows = mfl_calloc(n_rows + (size_t)pass->facts.m, sizeof *rows);
        pthread_mutex_lock(&pass->mutex);
        pass->failed = pass->failed || !found || !scratch || !rows;
        while (!pass->failed && pass->next * RANGE_ELEMENTS < pass->rt->n) {
                uint64_t range = pass->next++, begin = range * RANGE_ELEMENTS;
                pthread_mutex_unlock(&pass->mutex);
                int r = add_range(pass, begin, MFL_MIN(pass->rt->n - begin, (uint64_t)RANGE_ELEMENTS), rows,
                        rows + n_rows, scratch, found);
                pthread_mutex_lock(&pass->mutex);
                pass->failed = pass->failed || r;
                while (pass->turn != range && !pass->failed)
                        pthread_cond_wait(&pass->turned, &pass->mutex);
                for (size_t i = 0; i < count; i++)
                        pass->found[i] += found[i];
                pass->turn++;
                pthread_cond_broadcast(&pass->turned);
        }
        pthread_cond_broadcast(&pass->turned);
        pthread_mutex_unlock(&pass->mutex);
        free(found);
        free(scratch);
        free(rows);
        return NULL;
}

/* The facts of the rows, with the guess as the last one; the caller frees them. NULL: no memory. */
static double *find_facts(struct mfl_runtime *rt, const uint32_t *pick, uint32_t n_pick, const float *guess)
{
        struct pass pass = {.rt = rt,
                .pick = pick,
                .n_pick = n_pick,
                .guess = guess,
                .facts = mfl_facts_of(rt->spec, n_pick + (guess != NULL), rt->n, rt->round)};
        pthread_t threads[THREADS_MAX];
        uint32_t started = 0, wanted = n_threads(rt) - 1;
        pass.found = mfl_calloc(mfl_facts_size(&pass.facts), sizeof *pass.found);
        if (!pass.found)
                return NULL;
        pthread_mutex_init(&pass.mutex, NULL);
        pthread_cond_init(&pass.turned, NULL);
        while (started < wanted && !pthread_create(&threads[started], NULL, run_pass, &pass))
                started++;
        run_pass(&pass);
        for (uint32_t i = 0; i < started; i++)
                pthread_join(threads[i], NULL);
        pthread_mutex_destroy(&pass.mutex);
        pthread_cond_destroy(&pass.turned);
        if (pass.failed) {
                free(pass.found);
                return NULL;
        }
        mfl_facts_finish(&pass.facts, pass.found);
        return pass.found;
}

/* ---- a simulated attack ---- */

struct bad_rows {
        struct mfl_attack_plan plan;
        uint32_t *honest, *bad, n_honest, n_bad; /* numbers of rows */
        const float **from;                      /* honest rows, of a range */
};

static void write_part(struct mfl_runtime *rt, struct bad_rows *b, uint32_t row, uint64_t at, uint64_t end,
        float limit, bool deviation)
{
        float *out = mfl_spill_row(rt->spill, row) + at;
        b->plan.client = mfl_spill_item(rt->spill, row);
        if (deviation)
                mfl_attack_deviation(b->from, b->n_honest, end - at, out);
        else
                mfl_attack_range(&b->plan, b->from, b->n_honest, out, at, end - at, limit, out);
}

/* Writes the bad rows, or the deviation into the first of them; running statistics stay as they are. */
static void write_rows(struct mfl_runtime *rt, struct bad_rows *b, bool deviation)
{
        for (uint64_t begin = 0; begin < rt->n; begin += RANGE_ELEMENTS) {
                uint64_t last = MFL_MIN(rt->n, begin + RANGE_ELEMENTS);
                for (uint64_t at = begin; at < last;) {
                        struct mfl_fixed_part part =
                                mfl_fixed_part_at(&rt->fixed, &rt->graph->statistics, at, last);
                        mfl_spill_range(rt->spill, at, rt->rows);
                        for (uint32_t i = 0; i < b->n_honest; i++)
                                b->from[i] = rt->rows[b->honest[i]];
                        for (uint32_t i = 0; i < (deviation ? 1 : b->n_bad) && !part.statistics; i++)
                                write_part(rt, b, b->bad[i], at, part.end, part.fixed.delta_max, deviation);
                        at = part.end;
                }
                mfl_spill_release(rt->spill, begin, last - begin);
        }
}

static int write_attack(struct mfl_runtime *rt, struct bad_rows *b)
{
        if (b->plan.kind == MFL_ATTACK_ALIE && !rt->spec->simulation.has_scale)
                b->plan.scale = mfl_attack_alie(b->n_honest + b->n_bad, b->n_bad);
        if ((b->plan.kind == MFL_ATTACK_MIN_MAX || b->plan.kind == MFL_ATTACK_MIN_SUM) && b->n_honest) {
                write_rows(rt, b, true);
                b->honest[b->n_honest] = b->bad[0];
                double *g = find_facts(rt, b->honest, b->n_honest + 1, NULL); /* G is the first of them */
                if (!g)
                        return -ENOMEM;
                b->plan.scale = mfl_attack_gamma(b->plan.kind, b->n_honest, g);
                free(g);
        }
        write_rows(rt, b, false);
        return 0;
}

/* Not finite is what a server refuses before it is a row. */
static void drop_rows(struct mfl_runtime *rt, const struct bad_rows *b)
{
        for (uint32_t i = b->n_bad; i-- > 0;)
                mfl_spill_drop(rt->spill, b->bad[i]);
        rt->report.n_dropped = b->n_bad;
}

static int attack(struct mfl_runtime *rt)
{
        uint32_t n = mfl_spill_rows(rt->spill);
        const struct mfl_simulation *sim = &rt->spec->simulation;
        if (!rt->bad || rt->round < sim->from)
                return 0;
        struct bad_rows b = {.plan = {.kind = sim->attack,
                                     .scale = sim->scale,
                                     .seed = rt->spec->seed,
                                     .round = rt->round},
                .honest = mfl_calloc((size_t)n + 1, sizeof *b.honest),
                .bad = mfl_calloc((size_t)n + 1, sizeof *b.bad),
                .from = mfl_calloc(n, sizeof *b.from)};
        int r = b.honest && b.bad && b.from ? 0 : -ENOMEM;
        for (uint32_t i = 0; i < n && !r; i++) {
                if (rt->bad[mfl_spill_item(rt->spill, i)])
                        b.bad[b.n_bad++] = i;
                else
                        b.honest[b.n_honest++] = i;
        }
        rt->report.n_bad = b.n_bad;
        if (!r && b.n_bad && sim->attack == MFL_ATTACK_NAN)
                drop_rows(rt, &b);
        else if (!r && b.n_bad)
                r = write_attack(rt, &b);
        free(b.honest);
        free(b.bad);
        free(b.from);
        return r;
}

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
                report->told[i].item = mfl_spill_item(rt->spill, told[i]);
                report->told[i].share = choice->share[told[i]];
                report->told[i].score = choice->score[told[i]];
                report->told[i].distance = choice->distance[told[i]];
        }
}

static int decide(struct mfl_runtime *rt, struct mfl_error *err)
{
        uint32_t n = mfl_spill_rows(rt->spill);
        const struct mfl_robust_rule *rule = mfl_robust_get(rt->spec->aggregation.strategy);
        bool guess = rule && rule->wants_guess, compares = mfl_robust_compares(rt->spec);
        if (compares && n > MFL_ROBUST_ROWS_MAX)
                return mfl_fail(err, MFL_INVALID, "%s compares all updates: a round has at most %u, not %u",
                        rt->strategy->name, MFL_ROBUST_ROWS_MAX, n);
        double *facts = compares ? find_facts(rt, NULL, n, guess ? rt->state[0] : NULL) : NULL;
        double *weight = rule ? NULL : mfl_calloc(n, sizeof *weight);
        int r = (compares && !facts) || (!rule && !weight)
                        ? mfl_fail_memory(err, n * sizeof *facts, "the rows of a round")
                        : 0;
        for (uint32_t i = 0; i < n && weight; i++)
                weight[i] = (double)mfl_spill_weight(rt->spill, i);
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
        int r = attack(rt);
        if (r)
                return mfl_fail_memory(err, rt->n * sizeof(float), "a simulated attack");
        return mfl_spill_rows(rt->spill) ? decide(rt, err) : 0;
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
                mfl_spill_range(rt->spill, at, rt->rows);
                if (rt->choice.n_in > rt->choice.n_rows)
                        rt->rows[rt->choice.n_rows] = rt->state[0] + at;
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
