/* SPDX-License-Identifier: Apache-2.0 */
/* The block of numbers that a proof is: its parts, and whether they are within bounds. */
#include <math.h>

#include "cli/proof/proof.h"

uint64_t mfl_proof_size(const struct mfl_proof *head)
{
        uint64_t n = sizeof *head;
        for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                n += head->batch[b].n_outputs * (uint64_t)sizeof(struct mfl_proof_output);
        n += head->n_gradients * (uint64_t)sizeof(struct mfl_proof_gradient);
        n += head->n_samples * (uint64_t)sizeof(struct mfl_proof_sample);
        n += head->n_modules * (uint64_t)sizeof(struct mfl_proof_module);
        return n > MFL_PROOF_BYTES_MAX ? UINT64_MAX : n;
}

const struct mfl_proof_output *mfl_proof_outputs(const struct mfl_proof *proof, int batch)
{
        const struct mfl_proof_output *first = (const void *)(proof + 1);
        return first + (batch ? proof->batch[0].n_outputs : 0);
}

const struct mfl_proof_gradient *mfl_proof_gradients(const struct mfl_proof *proof)
{
        return (const void *)(mfl_proof_outputs(proof, 1) + proof->batch[1].n_outputs);
}

const struct mfl_proof_sample *mfl_proof_samples(const struct mfl_proof *proof)
{
        return (const void *)(mfl_proof_gradients(proof) + proof->n_gradients);
}

const struct mfl_proof_module *mfl_proof_modules(const struct mfl_proof *proof)
{
        return (const void *)(mfl_proof_samples(proof) + proof->n_samples);
}

static bool is_name(const char name[MFL_PROOF_NAME_BYTES])
{
        return memchr(name, '\0', MFL_PROOF_NAME_BYTES);
}

static bool is_size(double v)
{
        return isfinite(v) && v >= 0;
}

static bool has_head(const struct mfl_proof *p)
{
        bool ok = p->n_inputs >= 1 && p->n_inputs <= MFL_PROOF_INPUTS_MAX && p->rank >= 2 &&
                  p->rank <= MFL_PROOF_RANK_MAX && memchr(p->stops, '\0', sizeof p->stops);
        for (uint32_t i = 0; ok && i < p->n_inputs; i++)
                ok = isfinite(p->input[i].mean) && isfinite(p->input[i].deviation) &&
                     p->input[i].count <= MFL_PARAMS_MAX;
        for (uint32_t d = 1; ok && d < p->rank; d++)
                ok = p->shape[d] >= 1 && p->shape[d] <= 1 << 20;
        for (int b = 0; ok && b < MFL_PROOF_BATCHES; b++)
                ok = p->batch[b].rows >= 1 && p->batch[b].rows <= MFL_PROOF_ROWS_MAX &&
                     is_size(p->batch[b].largest) && is_size(p->batch[b].noise);
        return ok;
}

static bool has_parts(const struct mfl_proof *p, uint64_t n_params)
{
        const struct mfl_proof_gradient *g = mfl_proof_gradients(p);
        const struct mfl_proof_sample *s = mfl_proof_samples(p);
        const struct mfl_proof_module *m = mfl_proof_modules(p);
        for (uint32_t i = 0; i < p->n_gradients; i++) {
                if (!is_name(g[i].name) || g[i].first > p->n_samples || g[i].n > p->n_samples - g[i].first)
                        return false;
                for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                        if (!is_size(g[i].largest[b]) || !is_size(g[i].noise[b]) || !is_size(g[i].spread[b]))
                                return false;
        }
        for (uint32_t i = 0; i < p->n_samples; i++)
                if (s[i].place >= n_params || !isfinite(s[i].value[0]) || !isfinite(s[i].value[1]))
                        return false;
        for (uint32_t i = 0; i < p->n_modules; i++)
                if (!is_name(m[i].name) || !is_name(m[i].kind) || !is_size(m[i].norm[0]) ||
                        !is_size(m[i].norm[1]))
                        return false;
        return true;
}

int mfl_proof_check(const void *bytes, uint64_t n_bytes, uint64_t n_params, struct mfl_error *err)
{
        const struct mfl_proof *p = bytes;
        if (n_bytes < sizeof *p || p->bytes != n_bytes || mfl_proof_size(p) != n_bytes || !has_head(p) ||
                !has_parts(p, n_params))
                return mfl_fail(err, MFL_INVALID, "the proof's numbers are out of bounds");
        return 0;
}
