/* SPDX-License-Identifier: Apache-2.0 */
/* The learning rate over rounds and steps. Uses only correctly rounded operations, so that all machines compute the
 * same bits: no cos or pow of a C library. */
#include "common/job/job.h"

#define PI 3.14159265358979323846

/* sin and cos of x in [0, pi / 4], by their Taylor series: the first term left out is below 1e-17. */
static double sin_small(double x)
{
        double square = x * x, term = x, sum = x;
        for (int k = 1; k <= 8; k++) {
                term *= -square / ((2 * k) * (2 * k + 1));
                sum += term;
        }
        return sum;
}

static double cos_small(double x)
{
        double square = x * x, term = 1, sum = 1;
        for (int k = 1; k <= 8; k++) {
                term *= -square / ((2 * k - 1) * (2 * k));
                sum += term;
        }
        return sum;
}

/* cos(pi x), x in [0, 1]. */
static double cos_pi(double x)
{
        if (x > 0.5)
                return -cos_pi(1 - x);
        return x <= 0.25 ? cos_small(PI * x) : sin_small(PI * (0.5 - x));
}

static double power(double base, uint64_t n)
{
        double result = 1;
        for (; n; n >>= 1, base *= base)
                if (n & 1)
                        result *= base;
        return result;
}

float mfl_job_lr_scale(const struct mfl_job *job, uint32_t round, uint64_t step, uint64_t n_steps)
{
        bool per_round = job->training.schedule.per == MFL_SCHEDULE_PER_ROUND;
        uint64_t t = per_round ? round - 1 : step, warmup = job->training.schedule.warmup;
        uint64_t over = job->training.schedule.over;
        double min = job->training.schedule.min;
        if (t < warmup)
                return (float)((double)(t + 1) / (double)warmup);
        over = over ? over : per_round ? job->rounds : n_steps;
        uint64_t at = t - warmup, whole = over > warmup ? over - warmup : 0;
        double part = at < whole ? (double)at / (double)whole : 1;
        switch (job->training.schedule.kind) {
        case MFL_SCHEDULE_STEP:
                return (float)power(job->training.schedule.factor, at / job->training.schedule.every);
        case MFL_SCHEDULE_LINEAR:
                return (float)(1 - (1 - min) * part);
        case MFL_SCHEDULE_COSINE:
                return (float)(min + (1 - min) * (1 + cos_pi(part)) / 2);
        default:
                return 1;
        }
}

bool mfl_job_has_schedule(const struct mfl_job *job)
{
        return job->training.schedule.kind != MFL_SCHEDULE_CONSTANT || job->training.schedule.warmup > 1;
}
