/* SPDX-License-Identifier: Apache-2.0 */
/* SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated
 * Learning", ICML 2020, algorithm 1. Each client has a control variate c_k, an estimate of its own gradient, and
 * c is the mean of all N clients' (0 at first). A client in round t takes its K_k steps with
 *
 *      y <- y - lr (g_k(y) - c_k + c)
 *      c_k <- c_k - c + (x - y) / (K_k lr)                      option II
 *      c_k <- gradient over all of its samples at x             option I
 *
 * and the server, with the mean over the round's clients, every client counting alike,
 *
 *      x <- x + server_lr mean(y - x),    c <- c + (1/N) sum over the round of what c_k changed by
 *
 * The last line keeps c the mean of all c_k, which is how the server has it: from exact integers. With a schedule per step,
 * K_k lr is the sum of the steps' learning rates. All c are 0 in the first round, which is FedAvg's with `weighting: uniform`.
 */
#include "common/method/method.h"

static void correct(
        const struct mfl_job *job, size_t n, const double *mean, const float *own, float *ret_correction)
{
        for (size_t i = 0; i < n; i++)
                ret_correction[i] = (float)(mean[i] - (double)own[i]);
}

/* The learning rates of all steps together. */
static double path(const struct mfl_job *job, const struct mfl_client_turn *turn)
{
        double sum = 0;
        if (!mfl_job_has_schedule(job))
                return (double)turn->steps * (double)job->training.lr;
        for (uint64_t s = 0; s < turn->steps; s++)
                sum += (double)mfl_job_lr_scale(job, turn->round, s, turn->steps);
        return sum * (double)job->training.lr;
}

static void remember(const struct mfl_job *job, const struct mfl_client_turn *turn, size_t n,
        const double *mean, const float *own, const float *delta, float *ret_own)
{
        double rate = path(job, turn);
        for (size_t i = 0; i < n; i++) {
                double away = rate > 0 ? (double)delta[i] / rate : 0;
                ret_own[i] = rate > 0 ? (float)((double)own[i] - mean[i] - away) : own[i];
        }
}

const struct mfl_method_ops mfl_method_scaffold = {
        .counts_steps = true,
        .n_scalars = 1,
        .scalar_max_bits = {24},
        .correct = correct,
        .remember = remember,
};

/* The state is what the client tells. */
static int phases(const struct mfl_job *job, uint32_t round, struct mfl_phase *ret_phases)
{
        ret_phases[1] = (struct mfl_phase){.unsent = true, .gradient = true};
        return 2;
}

const struct mfl_method_ops mfl_method_scaffold_first = {
        .tells = true,
        .phases = phases,
        .correct = correct,
};
