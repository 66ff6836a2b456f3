/* SPDX-License-Identifier: Apache-2.0 */
/* What the server remembers of a client's updates, for itself: clients never see it, and it changes no training.
 *
 *      foolsgold: h_k <- h_k + delta_k      Fung, Yoon, Beschastnikh: "The Limitations of Federated Learning in Sybil
 *                                           Settings", RAID 2020, algorithm 1, H_i
 *      the attack `stale`: h_k <- delta_k
 *
 * With rows, the server makes the new states when it decides about a round (server/runtime/runtime_history.c), not as updates
 * arrive. */
#include "common/method/method.h"

static void add(const struct mfl_job *job, const struct mfl_client_turn *turn, size_t n, const double *mean,
        const float *own, const float *delta, float *ret_own)
{
        for (size_t i = 0; i < n; i++)
                ret_own[i] = (float)((double)own[i] + (double)delta[i]);
}

static void replace(const struct mfl_job *job, const struct mfl_client_turn *turn, size_t n,
        const double *mean, const float *own, const float *delta, float *ret_own)
{
        memcpy(ret_own, delta, n * sizeof *delta);
}

const struct mfl_method_ops mfl_method_foolsgold = {.remember = add},
                            mfl_method_stale = {.remember = replace};
