/* SPDX-License-Identifier: Apache-2.0 */
/* Mime and MimeLite: Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh: "Breaking the centralized barrier for cross-device
 * federated learning", NeurIPS 2021 (arXiv 2008.03606, "Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning"),
 * algorithm 1 with momentum, table 1: U(g, s) = (1 - beta) g + beta s, and V(g, s) is the same. s, the momentum, is the server's (0
 * at first), and stays as it is while clients train. A client takes its steps from y = x with
 *
 *      MimeLite   y <- y - lr U(g_k(y), s)
 *      Mime       y <- y - lr U(g_k(y) - g_k(x) + c, s)      both g_k of the same batch
 *
 * and the server, with weighted means over the round's clients,
 *
 *      x <- x + server_lr mean(y - x),    s <- V(c, s),    c = mean(gradient over all samples of client k at x)
 *
 * With beta = 0, MimeLite is FedAvg. A MimeLite client tells its gradient with its update. Mime needs c first: its rounds 2t - 1 only
 * take gradients, and x stays; round 2t trains the same clients. Running statistics have no gradient: theirs are averaged.
 */
#include "common/method/method.h"

static double rate(const struct mfl_job *job)
{
        return 1 - (double)job->aggregation.momentum;
}

static bool guided_lite(const struct mfl_job *job, uint32_t round)
{
        return round >= 2 && job->aggregation.momentum > 0;
}

/* beta s / (1 - beta): the steps' rate has the factor 1 - beta. */
static void guide_lite(const struct mfl_job *job, size_t n, const float *const *state, float *ret_correction)
{
        double beta = (double)job->aggregation.momentum;
        for (size_t i = 0; i < n; i++)
                ret_correction[i] = (float)(beta / (1 - beta) * (double)state[0][i]);
}

static int phases_lite(const struct mfl_job *job, uint32_t round, struct mfl_phase *ret_phases)
{
        ret_phases[1] = (struct mfl_phase){.unsent = true, .gradient = true};
        return 2;
}

static bool guided(const struct mfl_job *job, uint32_t round)
{
        return round % 2 == 0;
}

static void guide(const struct mfl_job *job, size_t n, const float *const *state, float *ret_correction)
{
        double beta = (double)job->aggregation.momentum;
        for (size_t i = 0; i < n; i++)
                ret_correction[i] = (float)(beta / (1 - beta) * (double)state[0][i] + (double)state[1][i]);
}

static int phases(const struct mfl_job *job, uint32_t round, struct mfl_phase *ret_phases)
{
        if (round % 2)
                ret_phases[0].gradient = true;
        else
                ret_phases[0].anchored = true;
        return 1;
}

const struct mfl_method_ops mfl_method_mimelite = {
        .tells = true,
        .phases = phases_lite,
        .guided = guided_lite,
        .guide = guide_lite,
        .rate = rate,
};

const struct mfl_method_ops mfl_method_mime = {
        .tells = true,
        .anchors = true,
        .phases = phases,
        .guided = guided,
        .guide = guide,
        .rate = rate,
        .turn_rounds = 2,
};
