/* SPDX-License-Identifier: Apache-2.0 */
/* Judges how far mfl's outputs and gradients are from PyTorch's.
 *
 * In double, the bounds are all there is. In floats, rounding alone can change a gradient by more than 1e-3 where it decides a
 * ReLU or the winner of a max pool; `noise` is what it changed in PyTorch, and widens the bounds up to ROUNDING_MAX.
 *
 * In deep networks with batch norm such flips are everywhere: each changes one channel's gradient by much, and those
 * of all earlier layers by a little. Single elements then say nothing. `spread` is how much of a gradient's L2 norm
 * changed in PyTorch by rounding, or with parameters that changed by eight times what rounding does; a gradient that differs
 * elsewhere is taken if its L2 norm of the difference stays near that (SPREAD_MAX at most) in one batch, and
 * within FLIPPED_MAX in both. In resnet152 rounding changes half of PyTorch's gradients by more than 0.078. So a graph that is
 * wrong by less is only found in double.
 */
#include "cli/proof/judge.h"

#include <math.h>

#define OUTPUT_BOUND 1e-4
#define NOISE_FACTOR 8
#define ROUNDING_MAX 2e-2   /* of the largest */
#define SMALL_GRADIENT 1e-3 /* of the model's largest: tensors below are compared with this */
#define SPREAD_MIN 1e-4     /* below, flips are too rare to excuse anything */
#define SPREAD_MAX 0.12
#define SPREAD_FACTOR 1.5 /* PyTorch's two runs are a small sample */
#define FLIPPED_MAX 0.25  /* by rare flips in one of the batches */

static double bound(double share, double largest, double noise)
{
        return share * largest + fmin(NOISE_FACTOR * noise, ROUNDING_MAX * largest) + 1e-12;
}

int mfl_proof_differences_init(
        struct mfl_proof_differences *d, const struct mfl_proof *proof, struct mfl_error *err)
{
        size_t n = proof->n_gradients + (size_t)1;
        *d = (struct mfl_proof_differences){.gradient = {NULL}};
        for (int b = 0; b < MFL_PROOF_BATCHES; b++) {
                if (!(d->gradient[b] = mfl_calloc(n, sizeof *d->gradient[b])))
                        return mfl_fail_memory(err, n * sizeof *d->gradient[b], "the gradients of a proof");
                for (size_t i = 0; i < n; i++) /* until the batch is compared */
                        d->gradient[b][i] = (struct mfl_proof_difference){.is_close = true, .is_small = true};
        }
        return 0;
}

void mfl_proof_differences_deinit(struct mfl_proof_differences *d)
{
        for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                free(d->gradient[b]);
        *d = (struct mfl_proof_differences){.gradient = {NULL}};
}

void mfl_proof_compare(
        const struct mfl_proof *proof, int b, const float *dparams, struct mfl_proof_difference *ret_gradient)
{
        const struct mfl_proof_gradient *g = mfl_proof_gradients(proof);
        const struct mfl_proof_sample *s = mfl_proof_samples(proof);
        double all = 0, all_squares = 0;
        for (uint32_t i = 0; i < proof->n_gradients; i++) {
                double squares = 0;
                for (uint32_t k = g[i].first; k < g[i].first + g[i].n; k++)
                        squares += (double)s[k].value[b] * s[k].value[b];
                all = fmax(all, g[i].largest[b]);
                all_squares = fmax(all_squares, squares / fmax(g[i].n, 1));
        }
        for (uint32_t i = 0; i < proof->n_gradients; i++) {
                struct mfl_proof_difference *d = &ret_gradient[i];
                double worst = 0, size = fmax(g[i].largest[b], SMALL_GRADIENT * all), of = 0, by = 0;
                for (uint32_t k = g[i].first; k < g[i].first + g[i].n; k++) {
                        double x = fabs((double)dparams[s[k].place] - s[k].value[b]);
                        worst = x > worst || isnan(x) ? x : worst;
                        by += x * x;
                        of += (double)s[k].value[b] * s[k].value[b];
                }
                of = fmax(sqrt(of), SMALL_GRADIENT * sqrt(all_squares * g[i].n));
                d->largest = worst / fmax(size, 1e-30);
                d->norm = sqrt(by) / fmax(of, 1e-30);
                d->is_close = worst <= bound(MFL_PROOF_GRADIENT_BOUND, size, 0);
                d->is_small = worst <= bound(MFL_PROOF_GRADIENT_BOUND, size, g[i].noise[b]);
        }
}

bool mfl_proof_output_agrees(
        const struct mfl_proof *proof, const struct mfl_proof_differences *d, int b, bool rounds)
{
        const struct mfl_proof_batch *batch = &proof->batch[b];
        return d->output[b] <= bound(OUTPUT_BOUND, batch->largest, rounds ? batch->noise : 0);
}

bool mfl_proof_is_close(const struct mfl_proof *proof, const struct mfl_proof_differences *d, int b)
{
        bool close = mfl_proof_output_agrees(proof, d, b, false);
        for (uint32_t i = 0; close && i < proof->n_gradients; i++)
                close = d->gradient[b][i].is_close;
        return close;
}

double mfl_proof_worst(
        const struct mfl_proof *proof, const struct mfl_proof_differences *d, const char **ret_name)
{
        double worst = -1;
        for (int b = 0; b < MFL_PROOF_BATCHES; b++) {
                double output = d->output[b] / fmax(proof->batch[b].largest, 1e-30);
                if (output > worst) {
                        worst = output;
                        *ret_name = "the output";
                }
                for (uint32_t i = 0; i < proof->n_gradients; i++) {
                        const struct mfl_proof_difference *g = &d->gradient[b][i];
                        double v = g->is_small ? g->largest : g->norm;
                        if (v >= worst) {
                                worst = v;
                                *ret_name = mfl_proof_gradients(proof)[i].name;
                        }
                }
        }
        return worst;
}

static int by_size(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

/* What a gradient may differ by in its L2 norm: what rounding changes in it, or in most others. 0: nothing is known to
 * flip. */
static double spread_of(const struct mfl_proof_gradient *g, int b, double median)
{
        double spread = fmax(g->spread[b], median);
        return spread < SPREAD_MIN ? 0 : MFL_PROOF_GRADIENT_BOUND + fmin(SPREAD_FACTOR * spread, SPREAD_MAX);
}

static int medians(const struct mfl_proof *proof, double ret_median[MFL_PROOF_BATCHES], struct mfl_error *err)
{
        const struct mfl_proof_gradient *g = mfl_proof_gradients(proof);
        MFL_CLEANUP_FREE double *v = mfl_calloc(proof->n_gradients + 1, sizeof *v);
        if (!v)
                return mfl_fail_memory(err, proof->n_gradients * sizeof *v, "the gradients of a proof");
        for (int b = 0; b < MFL_PROOF_BATCHES; b++) {
                for (uint32_t i = 0; i < proof->n_gradients; i++)
                        v[i] = g[i].spread[b];
                qsort(v, proof->n_gradients, sizeof *v, by_size);
                ret_median[b] = v[proof->n_gradients / 2];
        }
        return 0;
}

static bool agrees(const struct mfl_proof *proof, const struct mfl_proof_differences *found, uint32_t i,
        const double median[MFL_PROOF_BATCHES])
{
        const struct mfl_proof_gradient *g = &mfl_proof_gradients(proof)[i];
        bool is_small = true, is_flipped = true, is_near = false;
        for (int b = 0; b < MFL_PROOF_BATCHES; b++) {
                const struct mfl_proof_difference *d = &found->gradient[b][i];
                double spread = spread_of(g, b, median[b]);
                is_small = is_small && d->is_small;
                is_near = is_near || d->is_small || d->norm <= spread;
                is_flipped = is_flipped && (d->is_small || (spread > 0 && d->norm <= FLIPPED_MAX));
        }
        return is_small || (is_near && is_flipped);
}

static bool is_close(const struct mfl_proof_differences *d, uint32_t i)
{
        bool close = true;
        for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                close = close && d->gradient[b][i].is_close;
        return close;
}

int mfl_proof_judge(const struct mfl_proof *proof, const struct mfl_proof_differences *d, bool rounds,
        struct mfl_error *err)
{
        const struct mfl_proof_gradient *g = mfl_proof_gradients(proof), *wrong = NULL;
        const struct mfl_proof_sample *s = mfl_proof_samples(proof);
        double median[MFL_PROOF_BATCHES], by = 0;
        uint64_t last = 0;
        int n_wrong = 0, r = medians(proof, median, err);
        for (uint32_t i = 0; !r && i < proof->n_gradients; i++) {
                if (rounds ? agrees(proof, d, i, median) : is_close(d, i))
                        continue;
                n_wrong++;
                if (g[i].n && s[g[i].first].place >= last) {
                        last = s[g[i].first].place;
                        wrong = &g[i];
                        by = 0;
                        for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                                if (!(d->gradient[b][i].largest <= by)) /* or not a number */
                                        by = d->gradient[b][i].largest;
                }
        }
        char how[64];
        if (!wrong)
                return r;
        if (isnan(by))
                mfl_strcpy(how, sizeof how, "is not a number here");
        else
                mfl_snprintf(how, sizeof how, "differs from PyTorch's by %.2g of its largest element", by);
        return mfl_fail(err, MFL_INVALID,
                "proof: the gradient of %s %s (%d of %u parameters "
                "differ; this one is nearest to the output)%s%s. mfl would train another model: change that "
                "part "
                "of the "
                "module, or report it",
                wrong->name, how, n_wrong, proof->n_gradients, proof->stops[0] ? "; " : "", proof->stops);
}
