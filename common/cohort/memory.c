/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of clients' losses. */
#include "common/cohort/memory.h"

#include <math.h>

_Static_assert(sizeof(union mfl_memory_row) == 32, "32 bytes per client");

bool mfl_memory_is_needed(const struct mfl_job *job)
{
        return job->selection.kind == MFL_SELECT_POWER_OF_CHOICE || job->selection.kind == MFL_SELECT_OORT;
}

bool mfl_memory_needs_squares(const struct mfl_job *job)
{
        return job->selection.kind == MFL_SELECT_OORT;
}

union mfl_memory_row *mfl_memory_new(const struct mfl_job *job, uint32_t population)
{
        union mfl_memory_row *rows = mfl_calloc((size_t)population + 1, sizeof *rows);
        if (rows)
                rows[population].pacer.threshold = job->selection.oort.threshold;
        return rows;
}

double mfl_memory_utility(const union mfl_memory_row *row, uint32_t samples)
{
        double mean = row->loss.samples ? ldexp((double)row->loss.square_sum, -MFL_SQUARE_BITS) /
                                                  (double)row->loss.samples
                                        : 0;
        return samples * sqrt(mean);
}

int64_t mfl_memory_add_square(int64_t sum, int64_t loss_sum, uint64_t n)
{
        if (!n)
                return sum;
        double mean = mfl_fixed_loss_to_double(loss_sum) / (double)n;
        double units = nearbyint(ldexp(mean * mean * (double)n, MFL_SQUARE_BITS));
        int64_t more = units < 0x1p62 ? (int64_t)units : (int64_t)1 << 62;
        return __builtin_add_overflow(sum, more, &sum) ? INT64_MAX : sum;
}

/* Lai et al. 2021, algorithm 1, lines 7 to 9, with FedScale's bounds: while the utility that rounds bring hardly changes, slower
 * clients are admitted; when it jumps, fewer. */
static void pace(union mfl_memory_row *row, const struct mfl_job *job, uint32_t round, double utility)
{
        uint32_t step = job->selection.oort.pacer_step, delta = job->selection.oort.pacer_delta;
        row->pacer.now += utility;
        if (round % step)
                return;
        double now = row->pacer.now, before = row->pacer.before, change = fabs(now - before);
        uint64_t threshold = row->pacer.threshold;
        if (round >= 2 * (uint64_t)step && change <= before * 0.1)
                row->pacer.threshold = MFL_MIN(threshold + delta, (uint64_t)100);
        else if (round >= 2 * (uint64_t)step && change >= before * 5)
                row->pacer.threshold = threshold > 2 * (uint64_t)delta ? threshold - delta : delta;
        row->pacer.before = now;
        row->pacer.now = 0;
}

void mfl_memory_learn(union mfl_memory_row *memory, const struct mfl_job *job, uint32_t population,
        uint32_t round, const uint32_t *samples, const struct mfl_seen_client *seen, uint32_t n)
{
        double sum = 0;
        uint32_t exploited = 0;
        for (uint32_t i = 0; i < n; i++) {
                union mfl_memory_row *row = &memory[seen[i].client];
                bool known = row->times > 0;
                row->loss = seen[i].loss;
                row->round = round;
                row->times++;
                if (!known || job->selection.kind != MFL_SELECT_OORT)
                        continue;
                sum += mfl_memory_utility(row, samples[seen[i].client]);
                exploited++;
        }
        if (job->selection.kind == MFL_SELECT_OORT)
                pace(&memory[population], job, round, exploited ? sum / exploited : 0);
}
