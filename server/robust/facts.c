/* SPDX-License-Identifier: Apache-2.0 */
/* What pass 1 finds of rows, range by range. */
#include "server/robust/rule.h"

struct mfl_facts mfl_facts_of(const struct mfl_job *job, uint32_t m, uint64_t n, uint32_t round)
{
        const struct mfl_robust_rule *rule = mfl_robust_get(job->aggregation.strategy);
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        struct mfl_facts facts = {.m = m, .seed = job->seed, .n = n, .round = round};
        if (rule && rule->wants_samples) {
                facts.n_samples = spec->iterations;
                facts.parts = spec->sample;
        }
        facts.signs = rule && rule->wants_signs;
        return facts;
}

size_t mfl_facts_size(const struct mfl_facts *facts)
{
        size_t m = facts->m;
        return m * m * (1 + (size_t)facts->n_samples) + (facts->signs ? MFL_SIGNS * m : 0);
}

size_t mfl_facts_scratch(const struct mfl_facts *facts)
{
        return mfl_gram_scratch(facts->m);
}

/* ---- signs ---- */

static void add_signs(uint32_t m, const float *const *rows, size_t from, size_t count, double *sign)
{
        for (uint32_t i = 0; i < m; i++) {
                uint64_t n[MFL_SIGNS] = {0};
                for (size_t e = from; e < from + count; e++) {
                        n[MFL_SIGN_NEGATIVE] += rows[i][e] < 0;
                        n[MFL_SIGN_POSITIVE] += rows[i][e] > 0;
                }
                n[MFL_SIGN_ZERO] = count - n[MFL_SIGN_NEGATIVE] - n[MFL_SIGN_POSITIVE];
                for (int k = 0; k < MFL_SIGNS; k++)
                        sign[(size_t)k * m + i] += (double)n[k];
        }
}

/* ---- samples ---- */

/* Where part k of `parts` begins: floor(k n / parts). */
static uint64_t part_begin(const struct mfl_facts *facts, uint64_t k)
{
        __extension__ typedef unsigned __int128 wide;
        return (uint64_t)((wide)k * facts->n / facts->parts);
}

/* The element that sample s has of part k, which is not empty. */
static uint64_t drawn(const struct mfl_facts *facts, struct mfl_rng_key key, uint64_t k)
{
        uint64_t begin = part_begin(facts, k), width = part_begin(facts, k + 1) - begin;
        struct mfl_philox u = mfl_rng_block(key, k);
        __extension__ typedef unsigned __int128 wide;
        return begin + (uint64_t)((wide)u.v[0] * width >> 32);
}

/* The first part that ends after element e. */
static uint64_t part_of(const struct mfl_facts *facts, uint64_t e)
{
        uint64_t low = 0, high = facts->parts - 1;
        while (low < high) {
                uint64_t k = low + (high - low) / 2;
                if (part_begin(facts, k + 1) > e)
                        high = k;
                else
                        low = k + 1;
        }
        return low;
}

/* A block of drawn elements at a time. to: [m] rows of MFL_GRAM_BLOCK floats. */
static void add_sample(const struct mfl_facts *facts, uint32_t s, const float *const *rows, uint64_t first,
        size_t from, size_t count, float *const *to, double *scratch, double *g)
{
        struct mfl_rng_key key = mfl_rng_derive(facts->seed, MFL_RNG_COLUMNS, facts->round, s);
        uint64_t begin = first + from, end = begin + count;
        size_t n = 0;
        for (uint64_t k = part_of(facts, begin); k < facts->parts && part_begin(facts, k) < end; k++) {
                if (part_begin(facts, k) == part_begin(facts, k + 1))
                        continue;
                uint64_t e = drawn(facts, key, k);
                if (e < begin || e >= end)
                        continue;
                for (uint32_t i = 0; i < facts->m; i++)
                        to[i][n] = rows[i][e - first];
                if (++n == MFL_GRAM_BLOCK) {
                        mfl_gram_add((const float *const *)to, facts->m, 0, n, scratch, g);
                        n = 0;
                }
        }
        mfl_gram_add((const float *const *)to, facts->m, 0, n, scratch, g);
}

static int add_samples(const struct mfl_facts *facts, const float *const *rows, uint64_t first, size_t from,
        size_t count, double *scratch, double *g)
{
        size_t m = facts->m;
        float **to = mfl_malloc(m * (sizeof *to + MFL_GRAM_BLOCK * sizeof(float)));
        if (!to)
                return -ENOMEM;
        for (size_t i = 0; i < m; i++)
                to[i] = (float *)(void *)(to + m) + i * MFL_GRAM_BLOCK;
        for (uint32_t s = 0; s < facts->n_samples; s++)
                add_sample(facts, s, rows, first, from, count, to, scratch, g + s * m * m);
        free(to);
        return 0;
}

int mfl_facts_add(const struct mfl_facts *facts, const float *const *rows, uint64_t first, size_t from,
        size_t count, double *scratch, double *v)
{
        size_t square = (size_t)facts->m * facts->m;
        mfl_gram_add(rows, facts->m, from, count, scratch, v);
        if (facts->signs)
                add_signs(facts->m, rows, from, count, v + square * (1 + (size_t)facts->n_samples));
        return facts->n_samples ? add_samples(facts, rows, first, from, count, scratch, v + square) : 0;
}

void mfl_facts_finish(const struct mfl_facts *facts, double *v)
{
        for (uint32_t s = 0; s <= facts->n_samples; s++)
                mfl_gram_mirror(facts->m, v + (size_t)s * facts->m * facts->m);
}
