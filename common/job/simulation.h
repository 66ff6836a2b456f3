/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated attacks, for tests of robust rules: some clients of a simulated population are bad. A server carries such a job
 * out only if it was started with --allow-simulation.
 *
 * The server makes these attacks on the round's single updates before anything else looks at them, because the strong ones
 * need all honest updates. The bad clients are the first share * clients of a shuffle of all clients with the stream (seed, MFL_RNG_ATTACK).
 * Pure functions; any thread.
 */
#ifndef MFL_COMMON_JOB_SIMULATION_H
#define MFL_COMMON_JOB_SIMULATION_H

#include "common/base/base.h"

enum mfl_attack {
        MFL_ATTACK_NONE,
        MFL_ATTACK_SIGN_FLIP,  /* -scale * own (1) */
        MFL_ATTACK_GAUSSIAN,   /* N(0, scale^2) per element (0.1) */
        MFL_ATTACK_ALIE,       /* mean + z std of the honest rows (Baruch et al. 2019); scale: z, 0: from the numbers of rows */
        MFL_ATTACK_IPM,        /* -scale * mean of the honest rows (0.1) (Xie et al. 2020) */
        MFL_ATTACK_MIN_MAX,    /* mean - gamma std, as far as a honest row is from another (Shejwalkar, Houmansadr 2021) */
        MFL_ATTACK_MIN_SUM,    /* the same for the sum of squared distances */
        MFL_ATTACK_MIMIC,      /* the first honest row (Karimireddy et al. 2022) */
        MFL_ATTACK_LAZY,       /* zeros */
        MFL_ATTACK_NAN,        /* not a number: refused as any such update is */
};

struct mfl_simulation {
        enum mfl_attack attack;
        double share; /* of the population */
        double scale;
        bool has_scale;
        uint32_t from; /* the first round with the attack; default 1 */
};

struct mfl_job;

#define MFL_SIMULATION_REFUSED                                                                               \
        "this server takes no jobs with simulated attacks; start it with --allow-simulation, or use mfl run"

bool mfl_attack_is_on_updates(enum mfl_attack attack);
const char *mfl_attack_name(enum mfl_attack attack);
/* How many clients are bad. */
uint32_t mfl_simulation_bad(const struct mfl_job *job);
/* ret_bad[k]: client k is bad; data.clients of them, on the heap. -ENOMEM. */
int mfl_simulation_draw(const struct mfl_job *job, bool **ret_bad);

#endif
