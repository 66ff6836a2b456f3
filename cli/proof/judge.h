/* SPDX-License-Identifier: Apache-2.0 */
/* What a replay found, and whether it is PyTorch's; private to cli/proof. */
#ifndef MFL_CLI_PROOF_JUDGE_H
#define MFL_CLI_PROOF_JUDGE_H

#include "cli/proof/proof.h"

#define MFL_PROOF_GRADIENT_BOUND 1e-3

/* A gradient's difference from PyTorch's in one batch. */
struct mfl_proof_difference {
        double largest, norm; /* of its largest element, of its L2 norm */
        bool is_close;        /* by elements */
        bool is_small;        /* the same, with what rounding changes in PyTorch */
};

struct mfl_proof_differences {
        double output[MFL_PROOF_BATCHES]; /* the largest one */
        struct mfl_proof_difference *gradient[MFL_PROOF_BATCHES];
};

int mfl_proof_differences_init(
        struct mfl_proof_differences *d, const struct mfl_proof *proof, struct mfl_error *err);
void mfl_proof_differences_deinit(struct mfl_proof_differences *d); /* zeros are fine */

/* From a batch's gradients, in the order of the params. */
void mfl_proof_compare(const struct mfl_proof *proof, int b, const float *dparams,
        struct mfl_proof_difference *ret_gradient);

/* `rounds`: allow for rounding, as judge.c says. */
bool mfl_proof_output_agrees(
        const struct mfl_proof *proof, const struct mfl_proof_differences *d, int b, bool rounds);
int mfl_proof_judge(const struct mfl_proof *proof, const struct mfl_proof_differences *d, bool rounds,
        struct mfl_error *err);
/* A batch's outputs and gradients, without any allowance. */
bool mfl_proof_is_close(const struct mfl_proof *proof, const struct mfl_proof_differences *d, int b);
/* The largest difference, relative, and of what. */
double mfl_proof_worst(
        const struct mfl_proof *proof, const struct mfl_proof_differences *d, const char **ret_name);

#endif
