/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a model over samples, and makes probabilities of what it gives. */
#include "cli/predict/answers.h"

#include <math.h>

static enum mfl_answer_kind kind_of(const struct mfl_contract *c)
{
        return mfl_contract_is_classes(c)  ? MFL_ANSWER_CLASS
               : mfl_contract_is_binary(c) ? MFL_ANSWER_BINARY
                                           : MFL_ANSWER_VALUE;
}

int mfl_answers_compute(struct mfl_infer *infer, const struct mfl_samples *samples,
        struct mfl_answers *ret_answers, struct mfl_error *err)
{
        const struct mfl_contract *c = mfl_infer_contract(infer);
        uint32_t batch = mfl_infer_batch_max(infer), outputs = mfl_infer_outputs(infer);
        const struct mfl_split *split = &samples->dataset->train;
        struct mfl_answers a = {.kind = kind_of(c), .n = split->n};
        a.classes = a.kind == MFL_ANSWER_CLASS ? mfl_infer_classes(infer) : outputs;
        a.positions = outputs / a.classes;
        int r = mfl_infer_check(infer, samples->dataset, err);
        if (r)
                return r;
        size_t floats = (size_t)a.n * outputs, bytes = mfl_contract_sample_bytes(c);
        a.z = mfl_alloc_aligned(floats * sizeof *a.z + 1);
        if (!a.z)
                return mfl_fail_memory(err, floats * sizeof *a.z, "answers");
        for (uint32_t at = 0; !r && at < a.n; at += batch)
                r = mfl_infer_run(infer, MFL_MIN(batch, a.n - at), (const char *)split->samples + at * bytes,
                        a.z + (size_t)at * outputs, err);
        if (r)
                mfl_answers_deinit(&a);
        else
                *ret_answers = a;
        return r;
}

void mfl_answers_deinit(struct mfl_answers *answers)
{
        free(answers->z);
        answers->z = NULL;
}

uint32_t mfl_answers_not_finite(const struct mfl_answers *answers)
{
        const size_t each = (size_t)answers->positions * answers->classes;
        uint32_t n = 0;
        for (uint32_t i = 0; i < answers->n; i++) {
                bool fine = true;
                for (size_t k = 0; k < each; k++)
                        fine &= isfinite(answers->z[i * each + k]) != 0;
                n += !fine;
        }
        return n;
}

void mfl_answers_row(const struct mfl_answers *answers, const float *z, double *p)
{
        double most = -INFINITY, sum = 0;
        for (uint32_t k = 0; k < answers->classes; k++) {
                most = fmax(most, (double)z[k]);
                p[k] = answers->kind == MFL_ANSWER_BINARY ? 1 / (1 + exp(-(double)z[k])) : (double)z[k];
        }
        if (answers->kind != MFL_ANSWER_CLASS)
                return;
        for (uint32_t k = 0; k < answers->classes; k++)
                sum += p[k] = exp((double)z[k] - most);
        for (uint32_t k = 0; k < answers->classes; k++)
                p[k] /= sum;
}

uint32_t mfl_answers_best(const float *z, uint32_t classes)
{
        uint32_t best = 0;
        for (uint32_t k = 1; k < classes; k++)
                best = z[k] > z[best] ? k : best;
        return best;
}
