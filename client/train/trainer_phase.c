/* SPDX-License-Identifier: Apache-2.0 */
/* The phases of a client's local training (common/method/method.h): what each starts from, what holds it, and what it leaves.
 *
 * A client with a model of its own has two vectors of floats in its update's buffer: the place of its delta, and behind it
 * that of its own model. While it trains they hold what the phases need:
 *
 *      from the client's own params     delta: the start (with `models`, own: the start)
 *      from the last phase's end        delta: that end
 *      inner                            delta: w; own: v after the last batch
 *      gradient, anchored, mix          trainer_gradient.c
 */
#include "client/train/trainer_internal.h"

/* ---- a client's own model: what its state says, or the round's params and that on top of them, or a mixture of both ---- */

/* Nobody has a state before the first round is over: its training has number 1, and so has its evaluation, which comes after. */
static bool has_states(const struct mfl_task *task)
{
        return task->round > 1 || task->kind != MFL_TASK_TRAIN;
}

/* What the server keeps of the client. */
static int ask_own(struct trainer_run *run, uint64_t client, float *ret_own, struct mfl_error *err)
{
        const struct mfl_train_request *request = run->request;
        uint32_t width = trainer_width(run);
        if (!request->correct)
                return mfl_fail(err, MFL_INVALID, "clients' states can't be had here");
        trainer_turn(run->trainer, width, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE);
        uint64_t n = mfl_method_state_floats(run->job->spec, run->job->graph->n_moving);
        int r = request->correct(request->correct_user, client, n, ret_own, err);
        trainer_turn(run->trainer, width, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES);
        return r;
}

int mfl_trainer_own(
        struct trainer_run *run, uint64_t client, float *ret_own, bool *ret_lost, struct mfl_error *err)
{
        const struct mfl_train_request *request = run->request;
        const struct mfl_method_ops *method = mfl_method_get(run->job->spec);
        uint64_t n = run->job->graph->n_moving;
        bool there = has_states(request->task), kept = mfl_trainer_keeps_own(run);
        int r = 0;
        *ret_lost = false;
        if (kept)
                r = mfl_trainer_site_load(run, client, ret_own, &there, err);
        else if (there)
                r = ask_own(run, client, ret_own, err);
        if (r)
                return r;
        *ret_lost = kept && request->task->has_state && !there;
        if (!there) {
                memcpy(ret_own, request->params, n * sizeof *ret_own);
                for (uint32_t i = 0; i < method->n_own; i++)
                        ret_own[n + i] = method->own_start;
                return 0;
        }
        bool adds = method->starts;
        const struct mfl_phase *phase = &run->phases[0];
        if (!r && phase->mix != 0 && request->task->kind != MFL_TASK_TRAIN)
                mfl_trainer_mix(
                        run, mfl_trainer_mix_of(run, phase, ret_own), ret_own, request->params, ret_own);
        for (uint64_t i = 0; !r && adds && i < n; i++)
                ret_own[i] += request->params[i];
        return r;
}

/* ---- phases ---- */

static float *delta_place(const struct trainer_run *run, const struct trainer_lane *lane)
{
        return run->result->data[lane->item];
}

static float *own_place(const struct trainer_run *run, const struct trainer_lane *lane)
{
        return delta_place(run, lane) + run->job->graph->n_moving;
}

/* *ret_start NULL: the network keeps it. */
static int start_of(struct trainer_run *run, struct trainer_slot *slot, uint32_t i, const float **ret_start,
        struct mfl_error *err)
{
        const struct trainer_lane *lane = &slot->lanes[i];
        const struct mfl_phase *phase = trainer_phase(run, lane);
        bool starts = mfl_method_get(run->job->spec)->starts;
        float *place;
        bool lost = false;
        int r = 0;
        *ret_start = trainer_keeps_start(run) ? NULL : run->request->params;
        if (phase->from == MFL_FROM_LAST) {
                *ret_start = place = delta_place(run, lane);
                r = run->trainer->ops->params_get(slot->train, (int)i, run->job->graph->n_frozen, place, err);
        } else if (phase->from == MFL_FROM_OWN || starts) {
                *ret_start = place = starts ? delta_place(run, lane) : own_place(run, lane);
                r = mfl_trainer_own(run, lane->local.client, place, &lost, err);
        }
        run->items[lane->item].state.anew |= lost;
        return r;
}

/* What the server adds to its gradients. An anchored step adds it by itself. */
static int correct(struct trainer_run *run, struct trainer_slot *slot, uint32_t i, struct mfl_error *err)
{
        const struct mfl_train_request *request = run->request;
        uint32_t width = trainer_width(run);
        const struct mfl_phase *phase = trainer_phase(run, &slot->lanes[i]);
        float *to = phase->anchored ? own_place(run, &slot->lanes[i]) : slot->after;
        if (phase->gradient || !mfl_method_corrects(run->job->spec, request->task->round))
                return 0;
        if (!request->correct)
                return mfl_fail(err, MFL_INVALID, "clients' states can't be had here");
        trainer_turn(run->trainer, width, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE);
        int r = request->correct(
                request->correct_user, slot->lanes[i].local.client, run->job->graph->n_moving, to, err);
        trainer_turn(run->trainer, width, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES);
        return r || phase->anchored
                       ? r
                       : run->trainer->ops->correction_set(slot->train, (int)i, slot->after, err);
}

/* The network pulls towards where the phase started, p0. The rest of pull * (v - w) is pull * (p0 - w). */
static int set_pull(struct trainer_run *run, struct trainer_slot *slot, uint32_t i, const float *p0,
        const float *w, struct mfl_error *err)
{
        double pull = trainer_phase(run, &slot->lanes[i])->pull;
        for (uint64_t e = 0; e < run->job->graph->n_moving; e++)
                slot->after[e] = (float)(pull * ((double)p0[e] - (double)w[e]));
        return run->trainer->ops->correction_set(slot->train, (int)i, slot->after, err);
}

int mfl_trainer_phase_begin(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t i, struct mfl_error *err)
{
        const struct trainer_lane *lane = &slot->lanes[i];
        const struct mfl_phase *phase = trainer_phase(run, lane);
        const float *start, *received = run->request->params;
        bool lost = false;
        int r = start_of(run, slot, i, &start, err);
        if (!r && !run->job->apart) /* else all members' ranks do so together */
                r = run->trainer->ops->params_set(slot->train, (int)i, run->request->frozen, start, err);
        if (!r)
                r = correct(run, slot, i, err);
        if (!r && phase->gradient)
                mfl_trainer_gradient_begin(run, lane);
        /* With `inner` it is not needed, but whether its site has it is told. */
        if (!r && (phase->mix != 0 || (phase->inner && mfl_trainer_keeps_own(run))))
                r = mfl_trainer_own(run, lane->local.client, own_place(run, lane), &lost, err);
        run->items[lane->item].state.anew |= lost;
        if (!r && phase->inner)
                memcpy(delta_place(run, lane), received, run->job->graph->n_moving * sizeof *received);
        else if (!r && phase->pull != 0)
                r = set_pull(run, slot, i, start, received, err);
        return r;
}

/* w <- w - rate pull (w - v), but running statistics are v's. */
static void follow(const struct trainer_run *run, const struct mfl_phase *phase, float *w, const float *v)
{
        static const struct mfl_fixed apart = {.statistics_max = 1}; /* the parts count as such */
        const struct mfl_graph *graph = run->job->graph;
        double share = phase->rate * phase->pull;
        for (uint64_t e = 0; e < graph->n_moving;) {
                struct mfl_fixed_part part =
                        mfl_fixed_part_at(&apart, &graph->statistics, e, graph->n_moving);
                for (; e < part.end; e++)
                        w[e] = part.statistics
                                       ? v[e]
                                       : (float)((double)w[e] - share * ((double)w[e] - (double)v[e]));
        }
}

int mfl_trainer_phase_stepped(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t i, struct mfl_error *err)
{
        const struct trainer_lane *lane = &slot->lanes[i];
        const struct mfl_phase *phase = trainer_phase(run, lane);
        if (phase->gradient)
                return mfl_trainer_gradient_stepped(run, slot, i, err);
        if (!phase->inner || (lane->local.step - lane->local.first) % phase->inner)
                return 0;
        float *w = delta_place(run, lane), *v = own_place(run, lane);
        int r = run->trainer->ops->params_get(slot->train, (int)i, run->job->graph->n_frozen, v, err);
        if (r)
                return r;
        follow(run, phase, w, v);
        return lane->local.step < lane->local.end ? set_pull(run, slot, i, run->request->params, w, err) : 0;
}

int mfl_trainer_phase_own(struct trainer_run *run, struct trainer_slot *slot, uint32_t i, bool *ret_finite,
        struct mfl_error *err)
{
        const struct trainer_lane *lane = &slot->lanes[i];
        const struct mfl_phase *phase = trainer_phase(run, lane);
        float *own, worst = 0;
        *ret_finite = true;
        if (phase->anchored) /* it tells nothing */
                memset(own_place(run, lane), 0, run->job->graph->n_moving * sizeof *own);
        if (!phase->models && !phase->gradient)
                return 0;
        own = own_place(run, lane);
        bool there = phase->inner || phase->gradient || phase->mix != 0;
        int r = there ? 0
                      : run->trainer->ops->params_get(
                                slot->train, (int)i, run->job->graph->n_frozen, own, err);
        uint64_t n = run->job->graph->n_moving;
        n = phase->gradient ? n : mfl_method_state_floats(run->job->spec, n);
        for (uint64_t e = 0; !r && e < n; e++)
                worst += 0 * own[e]; /* not a number, once one is not finite */
        *ret_finite = worst == 0;
        return r;
}

struct mfl_optimizer mfl_trainer_phase_optimizer(const struct trainer_run *run, uint32_t phase)
{
        if (run->phases[phase].gradient)
                return mfl_trainer_gradient_optimizer(run);
        struct mfl_optimizer opt = mfl_trainer_task_optimizer(run->job->spec, run->request->task);
        opt.moves = run->phases[phase].moves;
        if (run->phases[phase].pull != 0)
                opt.prox_mu = (float)run->phases[phase].pull;
        return opt;
}
