/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses what computes a pass of a convolution: by rule where bits matter, else by measurement.
 *
 *   deterministic: the rule names a family; measurement chooses among ways with equal bits
 *   fast:          every way that exists is measured, and the fastest is kept
 *
 * Earlier measurements come from the tuner. A library's way is verified once per process and shape, even
 * where its time is stored. A network's first steps, which are not captured, load what must not be loaded
 * during a capture.
 */
#include "kernels/cuda/conv/conv_plan.h"

#include <stdio.h>

#include "common/base/log.h"
#include "kernels/cuda/conv/conv_plan_internal.h"

#define RANKS 3 /* engines and algorithms to try, of each library */

/* A launch for each client costs some microseconds; a GPU with 50 TFLOP/s in float, and several hundred on
 * tensor cores, does this much work in about 20. Estimates, not measured. Changing them changes the bits of
 * deterministic jobs. */
double mfl_conv_library_flops[2] = {0x1p30, 0x1p32};

static const char *const pass_names[MFL_CUDA_PASS_COUNT_] = {"forward", "backward data", "backward weights"};
static const char *const way_names[MFL_CONV_WAY_COUNT_] = {"own", "dnn", "blas", "grouped", "batched"};

struct chooser {
        struct mfl_cuda_context *context;
        const struct mfl_cuda_conv *conv;
        const struct mfl_cuda_conv_use *use;
        struct mfl_conv_trial *trial; /* NULL: not needed so far */
        bool no_memory;               /* for a trial */
        struct mfl_cuda_conv_plan *best;
        char key[MFL_TUNE_KEY_BYTES];
};

bool mfl_cuda_conv_uses_library(const struct mfl_cuda_conv *v, enum mfl_cuda_pass pass)
{
        struct mfl_conv_sizes sizes = mfl_conv_sizes(v, MFL_CUDA_FORWARD);
        double flops = 2.0 * (double)sizes.y * (double)sizes.reduction;
        enum mfl_conv_way way = mfl_blas_can(v) ? MFL_CONV_BLAS_LOOP : MFL_CONV_DNN;
        (void)pass; /* the three passes have the same arithmetic */
        return v->c % 8 == 0 && v->k % 8 == 0 && mfl_conv_way_can(v, way) &&
               flops >= mfl_conv_library_flops[v->precision != MFL_PRECISION_FP32];
}

/* ---- the tuner ---- */

/* Pass, groups, rows, x, y, filter, strides, padding, dilation, precision, and the use. */
static void write_key(const struct mfl_cuda_conv *v, const struct mfl_cuda_conv_use *use, const char *what,
        char key[MFL_TUNE_KEY_BYTES])
{
        int n = snprintf(key, MFL_TUNE_KEY_BYTES,
                "%s p%d g%d n%d %dx%dx%d %dx%dx%d %dx%d s%dx%d p%dx%d d%dx%d t%d b%d a%d +%d f%d", what,
                (int)use->pass, v->groups, v->n, v->h, v->w, v->c, v->oh, v->ow, v->k, v->r, v->s,
                v->stride[0], v->stride[1], v->pad[0], v->pad[1], v->dilation[0], v->dilation[1],
                (int)v->precision, use->bias, (int)use->act, use->add, use->fast);
        mfl_assert(n > 0 && n < MFL_TUNE_KEY_BYTES);
}

/* "own NAME": variants are stored by name, since their numbers may change; "dnn RANK BRANCHES", and so on. */
static int remember(struct chooser *chooser, struct mfl_error *err)
{
        const struct mfl_cuda_conv_plan *plan = chooser->best;
        char choice[MFL_TUNE_CHOICE_BYTES];
        int n;
        if (!chooser->context->tuner || plan->ns > 1e16)
                return 0;
        if (plan->way == MFL_CONV_OWN)
                n = snprintf(choice, sizeof choice, "own %s",
                        mfl_cuda_conv_variant_name(&plan->conv, plan->use.pass, plan->index));
        else
                n = snprintf(
                        choice, sizeof choice, "%s %d %d", way_names[plan->way], plan->index, plan->branches);
        mfl_assert(n > 0 && (size_t)n < sizeof choice);
        return mfl_tuner_put(chooser->context->tuner, chooser->key, choice, plan->ns, err);
}

static bool parse_choice(const struct chooser *chooser, const char *choice, enum mfl_conv_way *ret_way,
        int *ret_index, int *ret_branches)
{
        char name[16];
        int index, branches, end = 0;
        if (!strncmp(choice, "own ", 4)) {
                for (int i = 0; i < mfl_cuda_conv_variants(chooser->conv, chooser->use->pass); i++) {
                        if (!strcmp(choice + 4,
                                    mfl_cuda_conv_variant_name(chooser->conv, chooser->use->pass, i))) {
                                *ret_way = MFL_CONV_OWN;
                                *ret_index = i;
                                *ret_branches = 1;
                                return true;
                        }
                }
                return false;
        }
        if (sscanf(choice, "%15s %d %d%n", name, &index, &branches, &end) != 3 || choice[end])
                return false;
        for (int i = MFL_CONV_DNN; i < MFL_CONV_WAY_COUNT_; i++) {
                if (!strcmp(name, way_names[i])) {
                        *ret_way = (enum mfl_conv_way)i;
                        *ret_index = index;
                        *ret_branches = branches;
                        return index >= 0 && index < RANKS && branches >= 1 &&
                               branches <= (mfl_conv_way_is_looped(*ret_way) ? MFL_CUDA_BRANCHES_MAX : 1);
                }
        }
        return false;
}

/* ---- candidates ---- */

/* Whether the way's result is right, which is checked once per process and shape. Where each client has its
 * own call, two clients are as good as many. */
static int verify(struct chooser *chooser, struct mfl_cuda_conv_plan *plan, struct mfl_error *err)
{
        struct mfl_tuner *tuner = chooser->context->tuner;
        struct mfl_cuda_conv conv = *chooser->conv;
        char what[32], key[MFL_TUNE_KEY_BYTES];
        if (mfl_conv_way_is_looped(plan->way))
                conv.groups = MFL_MIN(conv.groups, 2);
        snprintf(what, sizeof what, "right: %s %d", way_names[plan->way], plan->index);
        write_key(&conv, chooser->use, what, key);
        if (tuner && mfl_tuner_knows(tuner, key))
                return 0;
        int r = mfl_conv_trial_verify(plan, err);
        return r || !tuner ? r : mfl_tuner_note(tuner, key, err);
}

/* A verified way, or MFL_NOT_FOUND with the reason. */
static int make_way(struct chooser *chooser, enum mfl_conv_way way, int index,
        struct mfl_cuda_conv_plan **ret_plan, struct mfl_error *err)
{
        struct mfl_cuda_conv_plan *plan = NULL;
        int r = mfl_conv_way_new(chooser->context, chooser->conv, chooser->use, way, index, &plan, err);
        if (r || way == MFL_CONV_OWN) {
                if (!r)
                        *ret_plan = plan;
                return r;
        }
        r = verify(chooser, plan, err);
        if (r == MFL_BUSY && !chooser->use->fast) /* leaving it out for that reason would change bits */
                r = -ENOMEM;
        if (r > 0) {
                mfl_log(MFL_LOG_WARN, "convolution, %s: a library's implementation is skipped: %s",
                        pass_names[chooser->use->pass], err->text);
                r = MFL_NOT_FOUND;
        }
        if (r)
                mfl_cuda_conv_plan_free(plan);
        else
                *ret_plan = plan;
        return r;
}

/* Sets plan->ns. Without memory it stays unknown, and the first candidate is kept. */
static int measure(struct chooser *chooser, struct mfl_cuda_conv_plan *plan, struct mfl_error *err)
{
        int r = 0;
        if (chooser->no_memory)
                return 0;
        if (!chooser->trial)
                r = mfl_conv_trial_new(chooser->context, chooser->conv, chooser->use, &chooser->trial, err);
        if (!r)
                r = mfl_conv_trial_time(chooser->trial, plan, err);
        if (r == MFL_BUSY) {
                mfl_log(MFL_LOG_WARN, "convolution, %s: not measured: %s", pass_names[chooser->use->pass],
                        err->text);
                chooser->no_memory |= !chooser->trial;
                r = 0;
        }
        return r;
}

/* Leaves out branches that would exceed the workspace's limit. */
static int branches_max(const struct mfl_cuda_conv_plan *plan)
{
        int most = 1;
        for (int b = 1; b <= MFL_MIN(MFL_CUDA_BRANCHES_MAX, plan->conv.groups); b *= 2) {
                if ((uint64_t)b * plan->library_bytes <= MFL_DNN_WORKSPACE_MAX)
                        most = b;
        }
        return mfl_conv_way_is_looped(plan->way) ? most : 1;
}

static int measure_branches(struct chooser *chooser, struct mfl_cuda_conv_plan *plan, struct mfl_error *err)
{
        int most = branches_max(plan), best = 1, r = 0;
        double unknown = plan->ns, least = unknown;
        for (int b = 1; b <= most && !r; b *= 2) {
                mfl_conv_way_lay_out(plan, b);
                plan->ns = unknown;
                r = measure(chooser, plan, err);
                if (plan->ns < least) {
                        least = plan->ns;
                        best = b;
                }
        }
        plan->ns = least;
        mfl_conv_way_lay_out(plan, best);
        return r;
}

/* Measures a way and keeps it if it is the fastest so far (only: it is the only one of its kind, and there is
 * nothing to compare with). MFL_NOT_FOUND: there is no such way. */
static int consider(
        struct chooser *chooser, enum mfl_conv_way way, int index, bool only, struct mfl_error *err)
{
        struct mfl_cuda_conv_plan *plan = NULL;
        int r = make_way(chooser, way, index, &plan, err);
        if (r)
                return r;
        if (!only || branches_max(plan) > 1)
                r = measure_branches(chooser, plan, err);
        if (!r && (!chooser->best || plan->ns < chooser->best->ns)) {
                struct mfl_cuda_conv_plan *slower = chooser->best;
                chooser->best = plan;
                plan = slower;
        }
        mfl_cuda_conv_plan_free(plan);
        return r;
}

static int consider_own(struct chooser *chooser, bool only, struct mfl_error *err)
{
        int n = mfl_cuda_conv_variants(chooser->conv, chooser->use->pass), r = 0;
        for (int i = 0; i < n && !r; i++)
                r = consider(chooser, MFL_CONV_OWN, i, only && n == 1, err);
        return r;
}

/* The way that the rule names, for deterministic plans. */
static enum mfl_conv_way ruled_way(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass)
{
        return !mfl_cuda_conv_uses_library(conv, pass) ? MFL_CONV_OWN
               : mfl_blas_can(conv)                    ? MFL_CONV_BLAS_LOOP
                                                       : MFL_CONV_DNN;
}

static int choose_deterministic(struct chooser *chooser, struct mfl_error *err)
{
        enum mfl_conv_way way = ruled_way(chooser->conv, chooser->use->pass);
        if (way != MFL_CONV_OWN) {
                struct mfl_error why;
                int r = consider(chooser, way, 0, true, &why);
                if (r < 0)
                        return mfl_fail(err, r, "%s", why.text);
                if (!r)
                        return 0;
                mfl_log(MFL_LOG_ERROR,
                        "convolution, %s, %dx%dx%d to %d channels: the library that deterministic jobs use "
                        "here is replaced by own kernels, so models will differ in their last bits from "
                        "those "
                        "of other machines of this kind: %s",
                        pass_names[chooser->use->pass], chooser->conv->h, chooser->conv->w, chooser->conv->c,
                        chooser->conv->k, why.text);
        }
        return consider_own(chooser, true, err);
}

static int choose_fast(struct chooser *chooser, struct mfl_error *err)
{
        static const enum mfl_conv_way ways[] = {
                MFL_CONV_DNN, MFL_CONV_BLAS_LOOP, MFL_CONV_GROUPED, MFL_CONV_BATCHED};
        int r = consider_own(chooser, false, err);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(ways) && r >= 0; i++) {
                bool one_client = ways[i] == MFL_CONV_DNN || ways[i] == MFL_CONV_BATCHED;
                if (chooser->conv->groups == 1 && !one_client)
                        continue;
                r = 0;
                for (int rank = 0; rank < RANKS && !r; rank++) {
                        struct mfl_error why;
                        r = consider(chooser, ways[i], rank, false, &why);
                        if (r < 0)
                                mfl_fail(err, r, "%s", why.text);
                        else if (r)
                                mfl_log(MFL_LOG_DEBUG, "convolution, %s: %s, rank %d: %s",
                                        pass_names[chooser->use->pass], way_names[ways[i]], rank, why.text);
                }
        }
        return r < 0 ? r : 0;
}

/* The choice that the tuner has stored, if it exists and still works. MFL_NOT_FOUND: measure. */
static int choose_remembered(struct chooser *chooser, struct mfl_error *err)
{
        char choice[MFL_TUNE_CHOICE_BYTES];
        enum mfl_conv_way way;
        int index, branches;
        double ns;
        struct mfl_tuner *tuner = chooser->context->tuner;
        if (!tuner || !mfl_tuner_get(tuner, chooser->key, choice, &ns) ||
                !parse_choice(chooser, choice, &way, &index, &branches))
                return MFL_NOT_FOUND;
        if (!chooser->use->fast &&
                (way != ruled_way(chooser->conv, chooser->use->pass) || (way != MFL_CONV_OWN && index != 0)))
                return MFL_NOT_FOUND; /* a file must not change bits */
        int r = make_way(chooser, way, index, &chooser->best, err);
        if (r)
                return r;
        if (branches > branches_max(chooser->best)) {
                mfl_cuda_conv_plan_free(chooser->best);
                chooser->best = NULL;
                return MFL_NOT_FOUND;
        }
        mfl_conv_way_lay_out(chooser->best, branches);
        chooser->best->ns = ns;
        return 0;
}

int mfl_cuda_conv_plan_new(struct mfl_cuda_context *context, const struct mfl_cuda_conv *conv,
        const struct mfl_cuda_conv_use *use, struct mfl_cuda_conv_plan **ret_plan, struct mfl_error *err)
{
        struct chooser chooser = {.context = context, .conv = conv, .use = use};
        struct mfl_error why;
        write_key(conv, use, "conv", chooser.key);
        int r = choose_remembered(&chooser, &why);
        if (r == MFL_NOT_FOUND) {
                r = use->fast ? choose_fast(&chooser, &why) : choose_deterministic(&chooser, &why);
                if (!r)
                        r = remember(&chooser, &why);
        }
        mfl_conv_trial_free(chooser.trial);
        if (r) {
                mfl_cuda_conv_plan_free(chooser.best);
                return mfl_fail(err, r, "%s", why.text);
        }
        *ret_plan = chooser.best;
        return 0;
}

uint64_t mfl_cuda_conv_plan_workspace(const struct mfl_cuda_conv_plan *plan)
{
        return plan->workspace;
}

uint32_t mfl_cuda_conv_plan_calls(const struct mfl_cuda_conv_plan *plan)
{
        return mfl_conv_way_is_looped(plan->way) ? (uint32_t)plan->conv.groups : 1;
}

uint64_t mfl_cuda_conv_plan_workspace_max(
        const struct mfl_cuda_conv *conv, const struct mfl_cuda_conv_use *use)
{
        uint64_t most = 0;
        for (int i = 0; i < mfl_cuda_conv_variants(conv, use->pass); i++)
                most = MFL_MAX(most, mfl_cuda_conv_workspace(conv, use->pass, i));
        if (use->fast || ruled_way(conv, use->pass) != MFL_CONV_OWN)
                most = MFL_MAX(most, MFL_DNN_WORKSPACE_MAX + mfl_conv_way_parts_max(conv, use));
        return most;
}

const char *mfl_cuda_conv_plan_name(const struct mfl_cuda_conv_plan *plan)
{
        return plan->name;
}
