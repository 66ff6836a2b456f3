/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that stay with each client; all others are averaged by the job's strategy.
 *
 *   FedPer: Arivazhagan, Aggarwal, Singh, Choudhary: "Federated Learning with Personalization Layers", arXiv 1912.00818,
 *           section 3, algorithm 1: the last layers are each client's
 *   FedBN:  Li, Jiang, Zhang, Kamp, Dou: "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR
 *           2021, algorithm 1: the norm layers are, their running statistics too
 *
 * Of x, the params that the server sends, the personal elements never change. Client k trains from x + p_k to y, and
 *
 *      p_k <- y - x     in its personal layers, 0 elsewhere (0 everywhere before its first turn)
 *
 * The strategy's mean delta is 0 in personal layers, and y - x elsewhere, where p_k is 0.
 *
 *   FedRep: Collins, Hassani, Mokhtari, Shakkottai: "Exploiting Shared Representations for Personalized Federated Learning",
 *           ICML 2021, algorithm 1: first `personal.epochs` on the personal layers, while the others stay as they are; then
 *           `training` on the others, while the personal layers stay
 */
#include "common/method/method.h"

static void correct(
        const struct mfl_job *job, size_t n, const double *mean, const float *own, float *ret_correction)
{
        memcpy(ret_correction, own, n * sizeof *own);
}

static void remember(const struct mfl_job *job, const struct mfl_client_turn *turn, size_t n,
        const double *mean, const float *own, const float *delta, float *ret_own)
{
        memcpy(ret_own, delta, n * sizeof *delta);
}

static int phases(const struct mfl_job *job, uint32_t round, struct mfl_phase *ret_phases)
{
        uint32_t epochs = job->personal.epochs;
        if (!epochs)
                return 1;
        ret_phases[0].moves = MFL_MOVES_PERSONAL;
        ret_phases[0].epochs = epochs;
        ret_phases[0].unsent = true;
        ret_phases[1] = (struct mfl_phase){.from = MFL_FROM_LAST, .moves = MFL_MOVES_OTHERS};
        return 2;
}

const struct mfl_method_ops mfl_method_personal = {
        .starts = true,
        .phases = phases,
        .correct = correct,
        .remember = remember,
};
