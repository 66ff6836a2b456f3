/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated attack on the rows of a round (server/robust/attack.h), before anything else looks at them. Attacks on data are
 * the daemons'; here their clients are counted. Fails without memory. */
#include "server/robust/attack.h"

#include "server/runtime/runtime_internal.h"

struct bad_rows {
        struct mfl_attack_plan plan;
        uint32_t *honest, *bad, n_honest, n_bad; /* numbers of rows */
        const float **from;                      /* honest rows, of a range */
};

static void write_part(struct mfl_runtime *rt, struct bad_rows *b, uint32_t row, uint64_t at, uint64_t end,
        float limit, bool direction)
{
        float *out = mfl_spill_row(rt->spill, row) + at;
        b->plan.client = mfl_spill_item(rt->spill, row);
        if (direction && b->plan.kind == MFL_ATTACK_FANG_KRUM)
                mfl_attack_signs(b->from, b->n_honest, end - at, out);
        else if (direction)
                mfl_attack_deviation(b->from, b->n_honest, end - at, out);
        else
                mfl_attack_range(&b->plan, b->from, b->n_honest, out, at, end - at, limit, out);
}

/* Writes the bad rows, or the direction of the attack into the first of them; running statistics stay as they are. */
static void write_rows(struct mfl_runtime *rt, struct bad_rows *b, bool direction)
{
        for (uint64_t begin = 0; begin < rt->n; begin += RANGE_ELEMENTS) {
                uint64_t last = MFL_MIN(rt->n, begin + RANGE_ELEMENTS);
                for (uint64_t at = begin; at < last;) {
                        struct mfl_fixed_part part =
                                mfl_fixed_part_at(&rt->fixed, &rt->graph->statistics, at, last);
                        mfl_spill_range(rt->spill, at, rt->rows);
                        for (uint32_t i = 0; i < b->n_honest; i++)
                                b->from[i] = rt->rows[b->honest[i]];
                        for (uint32_t i = 0; i < (direction ? 1 : b->n_bad) && !part.statistics; i++)
                                write_part(rt, b, b->bad[i], at, part.end, part.fixed.delta_max, direction);
                        at = part.end;
                }
                mfl_spill_release(rt->spill, begin, last - begin);
        }
}

static int write_attack(struct mfl_runtime *rt, struct bad_rows *b)
{
        if (b->plan.kind == MFL_ATTACK_ALIE && !rt->spec->simulation.has_scale)
                b->plan.scale = mfl_attack_alie(b->n_honest + b->n_bad, b->n_bad);
        int r = 0;
        if (mfl_attack_compares(b->plan.kind) && b->n_honest) {
                write_rows(rt, b, true);
                b->honest[b->n_honest] = b->bad[0];
                double *g = mfl_rows_facts(
                        rt, rt->spill, b->honest, b->n_honest + 1, NULL); /* G is the first of them */
                if (!g)
                        return -ENOMEM;
                if (b->plan.kind == MFL_ATTACK_FANG_KRUM)
                        r = mfl_attack_lambda(b->n_honest, b->n_bad, g, &b->plan.scale);
                else
                        b->plan.scale = mfl_attack_gamma(b->plan.kind, b->n_honest, g);
                free(g);
        }
        if (!r)
                write_rows(rt, b, false);
        return r;
}

/* Not finite is what a server refuses before it is a row. */
static void drop_rows(struct mfl_runtime *rt, const struct bad_rows *b)
{
        for (uint32_t i = b->n_bad; i-- > 0;)
                mfl_spill_drop(rt->spill, b->bad[i]);
        rt->report.n_dropped = b->n_bad;
}

/* What the bad clients sent before takes the place of what they send now, which is kept for the next time. */
static int replay_rows(struct mfl_runtime *rt, const struct bad_rows *b, struct mfl_error *err)
{
        int r = 0;
        for (uint32_t i = 0; i < b->n_bad && !r; i++)
                r = mfl_history_replay(rt, b->bad[i], err);
        return r;
}

int mfl_rows_attack(struct mfl_runtime *rt, struct mfl_error *err)
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
        bool acts = !r && b.n_bad && mfl_attack_is_on_updates(sim);
        if (acts && sim->attack == MFL_ATTACK_NAN)
                drop_rows(rt, &b);
        else if (acts && sim->attack == MFL_ATTACK_STALE)
                r = replay_rows(rt, &b, err);
        else if (acts)
                r = write_attack(rt, &b);
        free(b.honest);
        free(b.bad);
        free(b.from);
        return r == -ENOMEM ? mfl_fail_memory(err, rt->n * sizeof(float), "a simulated attack") : r;
}
