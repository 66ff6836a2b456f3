/* SPDX-License-Identifier: Apache-2.0 */
/* Pass 1 over single updates in a spill file (server/robust), on several threads.
 *   - threads take ranges in order, and add what each gives to the whole in that order: any number of threads gives the
 *     same bits;
 *   - a range's pages are given back when it is done, so memory does not grow with the file.
 * Fails without memory.
 */
#include <unistd.h>

#include "server/robust/attack.h"
#include "server/runtime/runtime_internal.h"

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
        bool compares = mfl_robust_compares(spec) || mfl_attack_compares(spec->simulation.attack);
        if (!compares)
                return 0;
        m = MFL_MIN(spec->simulation.attack ? m : mfl_robust_rows_of(&spec->aggregation.robust, (uint32_t)m),
                    (uint64_t)MFL_ROBUST_ROWS_MAX) +
            1;
        struct mfl_facts facts = mfl_facts_of(spec, (uint32_t)m, 0, 0);
        return (THREADS_MAX + 1) * mfl_facts_size(&facts) * sizeof(double) + 5 * m * m * sizeof(double) +
               THREADS_MAX * mfl_facts_scratch(&facts) * sizeof(double);
}

struct pass {
        struct mfl_runtime *rt;
        struct mfl_spill *spill;
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
        mfl_spill_range(pass->spill, begin, rows);
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
        mfl_spill_release(pass->spill, begin, count);
        return r;
}

static void *run_pass(void *user)
{
        struct pass *pass = user;
        size_t count = mfl_facts_size(&pass->facts);
        uint32_t n_rows = mfl_spill_rows(pass->spill);
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

double *mfl_rows_facts(struct mfl_runtime *rt, struct mfl_spill *spill, const uint32_t *pick, uint32_t n_pick,
        const float *guess)
{
        struct pass pass = {.rt = rt,
                .spill = spill,
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
