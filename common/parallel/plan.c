/* SPDX-License-Identifier: Apache-2.0 */
#include "common/parallel/plan.h"

#define BACKWARD (2.0 / 3) /* of a grain's time: forward is one product a layer, backward two */
#define NOISE 0.95         /* of the time, that another stage must need for as many members */
#define GAIN 0.95          /* of the time, at most, that twice the members must need */

uint32_t mfl_parallel_stage(uint32_t zero, bool shared, uint32_t n_ranks)
{
        return n_ranks == 1 ? 1 : shared ? MFL_MAX(1, zero) : zero;
}

bool mfl_parallel_rounds_late(uint32_t grains, uint32_t n_ranks, uint32_t stage)
{
        return n_ranks > 1 && (stage >= 2 || (stage == 1 && grains <= n_ranks));
}

/* Of an element that a rank sends. */
static uint32_t sent_bytes(const struct mfl_parallel_shape *s, uint32_t n_ranks, uint32_t stage)
{
        return mfl_parallel_rounds_late(s->grains, n_ranks, stage) ? sizeof(float) : s->size;
}

uint64_t mfl_parallel_rank_bytes(const struct mfl_parallel_shape *s, uint32_t n_ranks, uint32_t stage)
{
        uint64_t bucket = MFL_MAX(s->bucket, 1), window = MFL_MAX(bucket, s->largest) + MFL_PARALLEL_BLOCK;
        uint64_t n_buckets = MFL_MIN(s->n_tensors, s->n / bucket + 2) + 2 * (uint64_t)s->n_deferred;
        /* A slice may have a block more than its share of a bucket. */
        uint64_t own = stage ? MFL_MIN(s->n, s->n / n_ranks + n_buckets * MFL_PARALLEL_BLOCK) : s->n;
        uint64_t filled = stage < 2 ? s->n : MFL_MIN(s->n, 3 * window);
        uint64_t copies = stage && n_ranks > 1 ? own * s->snapshot : 0;
        bool late = sent_bytes(s, n_ranks, stage) < s->size;
        return filled * sent_bytes(s, n_ranks, stage) + (late ? own * s->size : 0) +
               own * s->kept * sizeof(float) + copies + s->n / MFL_PARALLEL_BLOCK * sizeof(double) +
               (s->statistics + s->operands) * sizeof(float) +
               (s->aside ? MFL_MIN(s->n, window) * sizeof(float) : 0);
}

/* Ranks of the widest process are [*ret_first, *ret_first + the width that is returned). */
static uint32_t find_widest(
        const uint32_t *width, uint32_t n_processes, uint32_t *ret_first, uint32_t *ret_ranks)
{
        uint32_t widest = 0, ranks = 0;
        for (uint32_t i = 0; i < n_processes; i++) {
                if (width[i] > widest) {
                        widest = width[i];
                        *ret_first = ranks;
                }
                ranks += width[i];
        }
        *ret_ranks = ranks;
        return widest;
}

/* Where no process has more than half of the ranks, those at the distance of the widest one are of another; else that one and the
 * others keep each other's. */
void mfl_parallel_keepers(const uint32_t *width, uint32_t n_processes, uint8_t *keeper)
{
        uint32_t first = 0, ranks, widest = find_widest(width, n_processes, &first, &ranks), others = 0;
        for (uint32_t r = 0; r < ranks; r++) {
                bool inside = r >= first && r < first + widest;
                uint32_t other = (r - first) % MFL_MAX(1u, ranks - widest); /* of those outside */
                if (2 * widest <= ranks)
                        keeper[r] = (uint8_t)((r + widest) % ranks);
                else if (inside)
                        keeper[r] = (uint8_t)(other < first ? other : other + widest);
                else
                        keeper[r] = (uint8_t)(first + others++);
        }
}

uint32_t mfl_parallel_keeps(uint32_t widest, uint32_t n_ranks)
{
        uint32_t others = n_ranks > widest ? n_ranks - widest : 1;
        return 2 * widest <= n_ranks ? 1 : (widest + others - 1) / others;
}

/* Of the rank that has the most. */
static uint32_t grains_each(uint32_t grains, uint32_t ranks)
{
        return (grains + ranks - 1) / ranks;
}

/* Bytes that a member takes in a step: sums, grain by grain from stage 2 on, operands, and params, or in stage 0 deferred totals, where
 * it has its own. */
static uint64_t traffic_bytes(
        const struct mfl_parallel_facts *f, uint32_t members, uint32_t zero, uint64_t *ret_sums)
{
        const struct mfl_parallel_shape *s = &f->shape;
        uint64_t others = s->n * (members - 1) / members, each = grains_each(s->grains, members),
                 deferred = s->deferred * (members - 1) / members,
                 operands = s->operands * (members - 1) / members;
        *ret_sums = (others - deferred) * sent_bytes(s, members, zero) * (zero < 2 ? 1 + !zero : each);
        return *ret_sums + (operands + (zero == 1 || zero == 2 ? others
                                               : zero          ? 0
                                                               : deferred)) *
                                   sizeof(float);
}

/* That have data: sums, turn by turn from stage 2 on, and params. */
static double operations(const struct mfl_parallel_facts *f, uint32_t members, uint32_t zero)
{
        uint32_t turns = zero < 2 ? 1 : grains_each(f->shape.grains, members);
        uint32_t products = f->shape.n_deferred ? 1 + !zero * f->shape.n_deferred : 0;
        return 2.0 + products + (double)f->n_buckets * (turns + (zero == 1 || zero == 2));
}

static double step_seconds(
        const struct mfl_parallel_facts *f, uint32_t members, uint32_t zero, uint64_t traffic, uint64_t sums)
{
        uint32_t each = grains_each(f->shape.grains, members);
        if (f->grain_s <= 0)
                return 0;
        if (members == 1)
                return each * f->grain_s + f->apply_s;
        double grain = f->beside_s > 0 ? f->beside_s : f->grain_s, compute = each * grain;
        double apply = (f->apply_beside_s > 0 ? f->apply_beside_s : f->apply_s) / (zero ? members : 1);
        double spare = f->cores ? MFL_MIN(1.0, MFL_MAX((double)f->cores / members - 1, 0)) : 1;
        double n = operations(f, members, zero), sync = f->sync_s[zero] * n / operations(f, 2, zero);
        double behind = f->overlap ? spare * MFL_MIN((double)sums / f->bytes_per_s,
                                                     BACKWARD * grain * (zero < 2 ? 1 : each))
                                   : 0;
        double rest = apply + (double)traffic / f->bytes_per_s - behind + n * f->wait_s;
        return compute + MFL_MAX(rest + sync, 0);
}

void mfl_parallel_estimate(const struct mfl_parallel_facts *f, uint32_t members, uint32_t zero,
        struct mfl_parallel_plan *ret_plan)
{
        uint32_t stage = mfl_parallel_stage(zero, false, members);
        uint64_t params = f->shape.n * sizeof(float), update = f->moving * sizeof(float), sums;
        uint64_t held = mfl_parallel_rank_bytes(&f->shape, members, stage) +
                        (stage == 3 ? (params + members - 1) / members : params) +
                        (members > 1 ? f->link : 0);
        struct mfl_parallel_plan plan = {.members = members, .zero = zero};
        /* One daemon alone makes the update beside its params; a leader in their place, when the rest is gone. */
        plan.member = f->network + held;
        plan.leader = f->network + update + (members > 1 ? MFL_MAX(held, update) : held + update);
        plan.traffic = traffic_bytes(f, members, zero, &sums);
        plan.seconds = step_seconds(f, members, zero, plan.traffic, sums);
        plan.fits = !f->memory || plan.leader <= f->memory;
        *ret_plan = plan;
}

static bool is_better(const struct mfl_parallel_plan *plan, const struct mfl_parallel_plan *best)
{
        if (plan->fits != best->fits)
                return plan->fits;
        if (!plan->fits)
                return plan->leader < best->leader;
        double least = best->seconds * (plan->members == best->members ? NOISE : 1);
        for (uint32_t n = best->members; n < plan->members; n *= 2)
                least *= GAIN;
        return plan->seconds < least;
}

bool mfl_parallel_choose(const struct mfl_parallel_facts *facts, uint32_t members_max, int zero,
        struct mfl_parallel_plan *ret_plan)
{
        struct mfl_parallel_plan best, plan;
        uint32_t first = zero < 0 ? 1 : (uint32_t)zero,
                 most = MFL_MAX(1u, MFL_MIN(members_max, facts->shape.grains));
        mfl_parallel_estimate(facts, 1, 0, &best);
        for (uint32_t members = 2; members <= most; members++)
                for (uint32_t z = first; z < MFL_PARALLEL_STAGES && (zero < 0 || z == first); z++) {
                        mfl_parallel_estimate(facts, members, z, &plan);
                        if (is_better(&plan, &best))
                                best = plan;
                }
        *ret_plan = best;
        return best.fits;
}

static double took_with(const struct mfl_parallel_took *took, uint32_t ranks)
{
        double shares = (double)took->ranks / ranks;
        double compute = (double)took->compute * grains_each(took->grains, ranks) /
                         grains_each(took->grains, took->ranks);
        double exchange = (double)took->exchange * (ranks - 1) / (took->ranks - 1) * shares;
        return compute + exchange + (double)took->apply * (took->whole ? 1 : shares);
}

uint32_t mfl_parallel_width(const struct mfl_parallel_took *took, uint32_t ranks_max)
{
        uint32_t best = 1;
        for (uint32_t ranks = 2; ranks <= MFL_MIN(ranks_max, took->grains); ranks++) {
                double least = took_with(took, best);
                for (uint32_t n = best; n < ranks; n *= 2)
                        least *= GAIN;
                best = took_with(took, ranks) < least ? ranks : best;
        }
        return best;
}
