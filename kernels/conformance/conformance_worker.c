/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/conformance/conformance_worker.h"

static const uint32_t rows_of_step[CONF_STEPS] = {ROWS, 2 * GRAIN, ROWS, GRAIN, ROWS};

void mfl_conf_team_steps(const struct team_run *run, struct mfl_group_steps *steps)
{
        *steps = (struct mfl_group_steps){.index = run->index,
                .count = rows_of_step,
                .dropout = mfl_rng_derive(21, MFL_RNG_DROPOUT, 1, 3),
                .augment = mfl_rng_derive(21, MFL_RNG_AUGMENT, 1, 3),
                .lr_scale = run->kase->scheduled ? run->t->lr_scale[0] : NULL,
                .step_first = 4};
}

/* The rank's host; whether it is the first one there. */
static uint32_t host_of(const struct team_run *run, const struct mfl_mesh *mesh, bool *ret_first)
{
        uint32_t host = mesh->rank * run->n_lent / mesh->n_ranks;
        *ret_first = !mesh->rank || (mesh->rank - 1) * run->n_lent / mesh->n_ranks != host;
        return host;
}

void mfl_conf_worker_init(
        struct team_run *run, struct mfl_mesh *mesh, struct mfl_net *sibling, struct worker *w)
{
        struct mfl_error err;
        struct mfl_team_options options = run->how;
        struct mfl_net_options own = run->options;
        options.grain = GRAIN;
        options.step_rows = ROWS;
        options.moments = mfl_optimizer_moments(&run->kase->opt);
        options.start = run->kase->opt.prox_mu != 0;
        options.deadline_ms = DEADLINE_MS;
        own.worker = true;
        own.sibling = sibling;
        own.lent = run->n_lent > 0;
        bool first = true;
        uint32_t host = run->n_lent ? host_of(run, mesh, &first) : 0;
        options.shared |= run->n_lent == 1;
        options.together = run->n_lent > 1;
        options.follows = run->n_lent > 1 && !first;
        *w = (struct worker){.run = run, .mesh = mesh};
        mfl_conf_team_steps(run, &w->steps);
        mfl_conf_must(run->b->ops->net_new(run->b->device, run->t->graph, &own, &w->net, &err), &err);
        if (own.lent)
                run->b->ops->grad->lend(w->net, run->lent[host]);
        if (!first)
                mfl_conf_must(run->b->ops->params_set(w->net, 0, run->t->first, NULL, &err), &err);
        else if (!sibling)
                mfl_conf_must(
                        mfl_backend_set(run->b->ops, w->net, run->t->graph, 0, run->t->first, &err), &err);
        if (options.resident)
                mfl_conf_must(run->b->ops->grad->device->reside(w->net, true, &err), &err);
        mfl_conf_must(
                mfl_team_new(run->b->ops, w->net, &run->options.loss, mesh, &options, &w->team, &err), &err);
}

void mfl_conf_worker_deinit(struct worker *w)
{
        mfl_team_free(w->team);
        if (w->run->how.resident)
                mfl_conf_must(w->run->b->ops->grad->device->reside(w->net, false, NULL), NULL);
        w->run->b->ops->net_free(w->net);
        mfl_mesh_close(w->mesh);
}

bool mfl_conf_same_score(const struct mfl_score *a, const struct mfl_score *b)
{
        return a->loss_sum == b->loss_sum && a->n_correct == b->n_correct && a->n_scored == b->n_scored;
}
