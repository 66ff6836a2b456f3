/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients at params other than those that move: over all of a client's samples, and of one batch elsewhere (common/method/method.h,
 * `gradient`, `anchored`, `mix`).
 *
 * A backend tells no gradient. But a step of SGD with the rate 2^20 takes p0 to p = fl(p0 - 2^20 g), so g is (p0 - p) / 2^20: exact to
 * 24 bits of the larger of |g| and |p0| / 2^20. Weight decay is part of it.
 *
 * In the update's buffer, behind the place of the delta: the sum of gradients; or what is added to an anchored step's gradient beside
 * the batch's; or, with `mix`, the client's own v. While a batch's gradient is taken elsewhere, the delta's place holds the
 * params that move. */
#include "client/train/trainer_internal.h"
#include "client/train/trainer_poison.h"

/* Statistics are v's. */
void mfl_trainer_mix(const struct trainer_run *run, double mix, const float *v, const float *w, float *to)
{
        static const struct mfl_fixed apart = {.statistics_max = 1}; /* the parts count as such */
        const struct mfl_graph *graph = run->job->graph;
        for (uint64_t e = 0; e < graph->n_moving;) {
                struct mfl_fixed_part part =
                        mfl_fixed_part_at(&apart, &graph->statistics, e, graph->n_moving);
                for (; e < part.end; e++)
                        to[e] = part.statistics ? v[e]
                                                : (float)(mix * (double)v[e] + (1 - mix) * (double)w[e]);
        }
}

double mfl_trainer_mix_of(const struct trainer_run *run, const struct mfl_phase *phase, const float *own)
{
        return mfl_method_get(run->job->spec)->n_own ? (double)own[run->job->graph->n_moving] : phase->mix;
}

#define REACH 0x1p20f

static const struct mfl_fixed apart = {.statistics_max = 1}; /* the parts count as such */

struct mfl_optimizer mfl_trainer_gradient_optimizer(const struct trainer_run *run)
{
        struct mfl_optimizer opt = mfl_trainer_task_optimizer(run->job->spec, run->request->task);
        return (struct mfl_optimizer){
                .kind = MFL_OPTIMIZER_SGD, .lr = REACH, .weight_decay = opt.weight_decay};
}

static float *second_place(const struct trainer_run *run, const struct trainer_lane *lane)
{
        return (float *)run->result->data[lane->item] + run->job->graph->n_moving;
}

static int get(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t i, float *to, struct mfl_error *err)
{
        return run->trainer->ops->params_get(slot->train, (int)i, run->job->graph->n_frozen, to, err);
}

static int set(struct trainer_run *run, struct trainer_slot *slot, uint32_t i, const float *params,
        struct mfl_error *err)
{
        if (trainer_keeps_start(run) && params == run->request->params)
                params = NULL; /* the network keeps them */
        return run->trainer->ops->params_set(slot->train, (int)i, run->request->frozen, params, err);
}

/* ---- over all samples ---- */

void mfl_trainer_gradient_begin(struct trainer_run *run, const struct trainer_lane *lane)
{
        uint64_t n = run->job->graph->n_moving;
        float *delta = run->result->data[lane->item];
        memset(second_place(run, lane), 0, n * sizeof *delta);
        if (!trainer_phase(run, lane)->unsent) /* nothing moves */
                memcpy(delta, run->request->params, n * sizeof *delta);
}

/* After each step, of one batch: its share of the mean is added. */
int mfl_trainer_gradient_stepped(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t i, struct mfl_error *err)
{
        const struct trainer_lane *lane = &slot->lanes[i];
        const struct mfl_graph *graph = run->job->graph;
        const float *x = run->request->params;
        float *sum = second_place(run, lane);
        double share = (double)slot->groups[i].count[0] / (double)lane->local.n / (double)REACH;
        int r = get(run, slot, i, slot->after, err);
        for (uint64_t e = 0; !r && e < graph->n_moving;) {
                struct mfl_fixed_part part =
                        mfl_fixed_part_at(&apart, &graph->statistics, e, graph->n_moving);
                for (; e < part.end; e++)
                        if (!part.statistics)
                                sum[e] += (float)(share * ((double)x[e] - (double)slot->after[e]));
        }
        return r || lane->local.step == lane->local.end ? r : set(run, slot, i, x, err);
}

/* ---- of one batch ---- */

/* What `mix` asks for into slot->after: statistics are v's. */
static const float *mixture(const struct trainer_run *run, const struct trainer_slot *slot, double mix,
        const float *v, const float *w)
{
        mfl_trainer_mix(run, mix, v, w, slot->after);
        return slot->after;
}

/* v takes its step from where its mixture went: to slot->after. So does a mix of the client's own, from v and w as they were; one
 * that is not a number stays so. */
static void step_own(const struct trainer_run *run, const struct trainer_slot *slot, double mix, double lr,
        const float *w, float *v)
{
        const struct mfl_graph *graph = run->job->graph;
        double slope = 0;
        for (uint64_t e = 0; e < graph->n_moving;) {
                struct mfl_fixed_part part =
                        mfl_fixed_part_at(&apart, &graph->statistics, e, graph->n_moving);
                for (; e < part.end; e++) {
                        float from = (float)(mix * (double)v[e] + (1 - mix) * (double)w[e]);
                        double g = ((double)from - (double)slot->after[e]) / (double)REACH;
                        slope += part.statistics ? 0 : ((double)v[e] - (double)w[e]) * g;
                        v[e] = part.statistics ? slot->after[e] : (float)((double)v[e] - lr * mix * g);
                }
        }
        if (!mfl_method_get(run->job->spec)->n_own)
                return;
        double next = mix - lr * slope;
        v[graph->n_moving] = (float)(next < 0 ? 0 : next > 1 ? 1 : next);
}

static bool is_probed(const struct trainer_slot *slot, uint32_t i, uint32_t phase)
{
        return slot->lanes[i].active && slot->lanes[i].local.phase == phase && slot->groups[i].count[0];
}

/* The lane's params go to where the gradient is wanted. */
static int leave(struct trainer_run *run, struct trainer_slot *slot, uint32_t i, struct mfl_error *err)
{
        const struct trainer_lane *lane = &slot->lanes[i];
        const struct mfl_phase *phase = trainer_phase(run, lane);
        float *w = run->result->data[lane->item], *second = second_place(run, lane);
        int r = get(run, slot, i, w, err);
        if (r)
                return r;
        return set(run, slot, i,
                phase->anchored ? run->request->params
                                : mixture(run, slot, mfl_trainer_mix_of(run, phase, second), second, w),
                err);
}

/* They come back; the gradient does what it is for. */
static int come_back(struct trainer_run *run, struct trainer_slot *slot, uint32_t i, struct mfl_error *err)
{
        const struct trainer_lane *lane = &slot->lanes[i];
        const struct mfl_phase *phase = trainer_phase(run, lane);
        const float *x = run->request->params, *w = run->result->data[lane->item],
                    *scale = slot->groups[i].lr_scale;
        float *second = second_place(run, lane);
        struct mfl_optimizer opt = mfl_trainer_task_optimizer(run->job->spec, run->request->task);
        int r = get(run, slot, i, slot->after, err);
        if (!r && phase->mix != 0)
                step_own(run, slot, mfl_trainer_mix_of(run, phase, second),
                        (double)opt.lr * (scale ? (double)scale[0] : 1), w, second);
        if (!r)
                r = set(run, slot, i, w, err);
        if (r || !phase->anchored)
                return r;
        for (uint64_t e = 0; e < run->job->graph->n_moving; e++)
                slot->after[e] =
                        (float)((double)second[e] - ((double)x[e] - (double)slot->after[e]) / (double)REACH);
        return run->trainer->ops->correction_set(slot->train, (int)i, slot->after, err);
}

int mfl_trainer_probe(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t phase, struct mfl_error *err)
{
        struct mfl_optimizer opt = mfl_trainer_gradient_optimizer(run);
        int r = 0;
        if (!run->phases[phase].anchored && run->phases[phase].mix == 0)
                return 0;
        for (uint32_t i = 0; !r && i < slot->n_lanes; i++)
                r = is_probed(slot, i, phase) ? leave(run, slot, i, err) : 0;
        for (uint32_t i = 0; i < slot->n_lanes; i++)
                slot->groups[i].lr_scale = NULL;
        if (!r)
                r = run->trainer->ops->step(
                        slot->train, mfl_trainer_train_data(run), slot->groups, 1, &opt, err);
        for (uint32_t i = 0; i < slot->n_lanes; i++) { /* as they were filled */
                slot->groups[i].lr_scale = mfl_trainer_scales(slot, i);
                slot->groups[i].score = (struct mfl_score){0};
                slot->groups[i].n_samples = 0;
        }
        for (uint32_t i = 0; !r && i < slot->n_lanes; i++)
                r = is_probed(slot, i, phase) ? come_back(run, slot, i, err) : 0;
        return r;
}
