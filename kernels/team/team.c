/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/team/team.h"

#include <math.h>

#include "kernels/bodies.h"
#include "kernels/check.h"

struct mfl_team {
        const struct mfl_grad_ops *ops;
        struct mfl_net *net;
        struct mfl_mesh *mesh;
        struct mfl_team_options options;
        struct mfl_loss loss;
        struct mfl_grad_layout layout;
        uint32_t n_grains; /* of the largest step */
        uint64_t n_blocks;
        int64_t *sum;         /* layout.n; after a reduce-scatter the rank's range of it holds the total */
        int *exponent, *bits; /* of each tensor */
        float *largest;       /* of each tensor, in this step */
        float *statistics;    /* n_grains * layout.n_statistics */
        double *squares;      /* n_blocks */
        uint64_t edge[3][MFL_MESH_RANKS_MAX + 1]; /* of ranges of params, of blocks, of grains' statistics */
        struct mfl_team_times times;
};

/* One call of mfl_team_step. */
struct call {
        struct mfl_team *team;
        const struct mfl_device_data *data;
        struct mfl_group_steps *steps;
        const struct mfl_optimizer *opt;
        const atomic_bool *cancel;
        struct mfl_error *err;
        /* The step. */
        uint32_t step, sequence, rows;
        const uint32_t *index;
        struct mfl_loss_share share;
};

enum { EDGES_PARAMS, EDGES_BLOCKS, EDGES_STATISTICS };

static uint32_t grains_of(const struct mfl_team_options *options, uint32_t rows)
{
        return (rows + options->grain - 1) / options->grain;
}

uint64_t mfl_team_bytes(const struct mfl_backend_ops *ops, const struct mfl_graph *graph,
        const struct mfl_net_options *net, const struct mfl_team_options *options)
{
        uint64_t n = ops->grad ? ops->grad->elements(graph, net) : 0, statistics = 0;
        for (int i = 0; i < graph->n_params; i++)
                if (mfl_param_is_statistics(&graph->params[i]))
                        statistics += graph->params[i].count;
        return n * sizeof(int64_t) + n / MFL_GRAD_BLOCK * sizeof(double) +
               grains_of(options, options->step_rows) * statistics * sizeof(float) + sizeof(struct mfl_team);
}

static int allocate(struct mfl_team *team, struct mfl_error *err)
{
        size_t n = (size_t)team->layout.n, tensors = (size_t)team->layout.n_tensors + 1;
        team->sum = mfl_alloc_aligned(n * sizeof *team->sum);
        if (team->sum)
                memset(team->sum, 0, n * sizeof *team->sum);
        team->exponent = mfl_calloc(tensors, sizeof *team->exponent);
        team->bits = mfl_calloc(tensors, sizeof *team->bits);
        team->largest = mfl_calloc(tensors, sizeof *team->largest);
        team->statistics =
                mfl_calloc((size_t)team->n_grains * team->layout.n_statistics + 1, sizeof *team->statistics);
        team->squares = mfl_calloc((size_t)team->n_blocks + 1, sizeof *team->squares);
        if (!team->sum || !team->exponent || !team->bits || !team->largest || !team->statistics ||
                !team->squares)
                return mfl_fail_memory(err, n * sizeof *team->sum, "a team's gradient");
        return 0;
}

int mfl_team_new(const struct mfl_backend_ops *ops, struct mfl_net *net, const struct mfl_loss *loss,
        struct mfl_mesh *mesh, const struct mfl_team_options *options, struct mfl_team **ret_team,
        struct mfl_error *err)
{
        if (!ops->grad)
                return mfl_fail(err, MFL_INVALID,
                        "the %s backend trains a client on one worker: leave out `parallel`, or use the cpu "
                        "backend",
                        ops->name);
        mfl_assert(options->grain && options->step_rows && mesh->n_ranks <= MFL_MESH_RANKS_MAX);
        struct mfl_team *team = mfl_calloc(1, sizeof *team);
        if (!team)
                return mfl_fail_memory(err, sizeof *team, "a team");
        *team = (struct mfl_team){
                .ops = ops->grad, .net = net, .mesh = mesh, .options = *options, .loss = *loss};
        team->ops->layout(net, &team->layout);
        team->n_grains = grains_of(options, options->step_rows);
        team->n_blocks = (team->layout.n + MFL_GRAD_BLOCK - 1) / MFL_GRAD_BLOCK;
        for (uint32_t r = 0; r <= mesh->n_ranks; r++) {
                team->edge[EDGES_BLOCKS][r] = mfl_mesh_slice(team->n_blocks, 1, mesh->n_ranks, r);
                team->edge[EDGES_PARAMS][r] =
                        MFL_MIN(team->edge[EDGES_BLOCKS][r] * MFL_GRAD_BLOCK, team->layout.n);
        }
        int rc = allocate(team, err);
        if (rc) {
                mfl_team_free(team);
                return rc;
        }
        mfl_team_begin(team);
        *ret_team = team;
        return 0;
}

void mfl_team_free(struct mfl_team *team)
{
        if (!team)
                return;
        free(team->sum);
        free(team->exponent);
        free(team->bits);
        free(team->largest);
        free(team->statistics);
        free(team->squares);
        free(team);
}

void mfl_team_begin(struct mfl_team *team)
{
        for (int t = 0; t < team->layout.n_tensors; t++)
                team->exponent[t] = MFL_TEAM_FIRST;
}

const struct mfl_team_times *mfl_team_times(const struct mfl_team *team)
{
        return &team->times;
}

static int exchange(struct call *call, struct mfl_mesh_op op)
{
        struct mfl_team *team = call->team;
        uint64_t start_ns = mfl_now_ns();
        op.step = call->step;
        op.sequence = call->sequence++;
        int rc = mfl_mesh_run(team->mesh, &op, team->options.deadline_ms, call->cancel, call->err);
        team->times.exchange += mfl_now_ns() - start_ns;
        return rc;
}

/* The gradients of the rank's grains; *score: of their rows. */
static int take_grains(struct call *call, struct mfl_score *score)
{
        struct mfl_team *team = call->team;
        uint32_t n = grains_of(&team->options, call->rows), rank = team->mesh->rank,
                 ranks = team->mesh->n_ranks;
        uint32_t first = (uint32_t)mfl_mesh_slice(n, 1, ranks, rank),
                 end = (uint32_t)mfl_mesh_slice(n, 1, ranks, rank + 1);
        uint64_t start_ns = mfl_now_ns();
        int rc = 0;
        for (int t = 0; t < team->layout.n_tensors; t++) {
                team->bits[t] = mfl_team_bits(team->exponent[t], team->n_grains);
                team->largest[t] = 0;
        }
        if (first == end)
                memset(team->sum, 0, (size_t)team->layout.n * sizeof *team->sum);
        for (uint32_t k = first; !rc && k < end; k++) {
                uint32_t row = k * team->options.grain;
                struct mfl_grain grain = {.index = call->index + row,
                        .rows = MFL_MIN(team->options.grain, call->rows - row),
                        .first_row = row,
                        .step = call->step,
                        .dropout = call->steps->dropout,
                        .augment = call->steps->augment,
                        .share = &call->share};
                struct mfl_grad_sink sink = {.sum = team->sum,
                        .first = k == first,
                        .bits = team->bits,
                        .largest = team->largest,
                        .statistics = team->layout.n_statistics
                                              ? team->statistics + (size_t)k * team->layout.n_statistics
                                              : NULL};
                rc = team->ops->grain(team->net, call->data, &grain, &sink, score, call->err);
        }
        team->times.compute += mfl_now_ns() - start_ns;
        if (rc || !team->layout.n_tensors)
                return rc;
        return exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_REDUCE,
                                      .type = MFL_MESH_F32,
                                      .reduction = MFL_MESH_MAX,
                                      .in = team->largest,
                                      .out = team->largest,
                                      .n = (uint64_t)team->layout.n_tensors});
}

/* Whether all tensors' scales were right; those that were not become so. All ranks see the same numbers. */
static bool scales_fit(struct mfl_team *team)
{
        bool fit = true;
        for (int t = 0; t < team->layout.n_tensors; t++) {
                if (mfl_team_fits(team->exponent[t], team->largest[t]))
                        continue;
                team->exponent[t] = mfl_team_exponent(team->largest[t]);
                fit = false;
        }
        return fit;
}

static int take_gradient(struct call *call)
{
        struct mfl_team *team = call->team;
        struct mfl_score score = {0};
        int rc = take_grains(call, &score);
        if (!rc && !scales_fit(team)) {
                team->times.repeats++;
                score = (struct mfl_score){0};
                rc = take_grains(call, &score);
                if (!rc && !scales_fit(team))
                        return mfl_fail(call->err, -EIO,
                                "the gradient of step %u came out differently when it was computed again, so "
                                "this device "
                                "can't train a client on several workers",
                                call->step);
        }
        struct mfl_score *sum = &call->steps->score;
        sum->loss_sum = mfl_fixed_loss_add(sum->loss_sum, score.loss_sum);
        sum->n_correct += score.n_correct;
        sum->n_scored += score.n_scored;
        return rc;
}

/* What all grains saw reaches the running statistics, in the grains' order. */
static int take_statistics(struct call *call)
{
        struct mfl_team *team = call->team;
        uint32_t n = grains_of(&team->options, call->rows), ranks = team->mesh->n_ranks,
                 rank = team->mesh->rank;
        uint64_t *edge = team->edge[EDGES_STATISTICS], each = team->layout.n_statistics;
        if (!each)
                return 0;
        for (uint32_t r = 0; r <= ranks; r++)
                edge[r] = mfl_mesh_slice(n, 1, ranks, r) * each;
        int rc = exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                                        .type = MFL_MESH_F32,
                                        .in = team->statistics + edge[rank],
                                        .out = team->statistics,
                                        .n = n * each,
                                        .edge = edge});
        for (uint32_t k = 0; !rc && k < n && (!team->options.shared || rank == 0); k++)
                rc = team->ops->statistics(team->net, team->statistics + k * each, call->err);
        return rc;
}

/* The factor that clips the whole gradient; NaN, so that the update is refused, where the gradient is not finite. */
static int find_factor(struct call *call, const struct mfl_grad_total *total, float *ret_factor)
{
        struct mfl_team *team = call->team;
        uint64_t *edge = team->edge[EDGES_BLOCKS];
        double squares = 0;
        int rc = 0;
        *ret_factor = 1.0f;
        if (call->opt->clip_norm > 0) {
                double *own = team->squares + edge[team->mesh->rank];
                rc = team->ops->squares(team->net, total, call->opt, own, call->err);
                if (!rc)
                        rc = exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                                                    .type = MFL_MESH_I64, /* a double's bits */
                                                    .in = own,
                                                    .out = team->squares,
                                                    .n = team->n_blocks,
                                                    .edge = edge});
                for (uint64_t b = 0; !rc && b < team->n_blocks; b++)
                        squares += team->squares[b];
                *ret_factor = mfl_clip_factor(call->opt->clip_norm, (float)sqrt(squares));
        }
        for (int t = 0; t < team->layout.n_tensors; t++)
                if (!isfinite(team->largest[t]))
                        *ret_factor = NAN;
        return rc;
}

static int take_step(struct call *call, float lr_scale)
{
        struct mfl_team *team = call->team;
        uint64_t *edge = team->edge[EDGES_PARAMS], first = edge[team->mesh->rank],
                 end = edge[team->mesh->rank + 1];
        struct mfl_rate rate = mfl_rate_of(call->opt, (uint64_t)call->step + 1, lr_scale);
        struct mfl_grad_total total = {team->sum + first, first, end - first, team->bits};
        float factor;
        int rc = exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_REDUCE_SCATTER,
                                        .type = MFL_MESH_I64,
                                        .in = team->sum,
                                        .out = team->sum + first,
                                        .n = team->layout.n,
                                        .edge = edge});
        if (!rc)
                rc = find_factor(call, &total, &factor);
        uint64_t start_ns = mfl_now_ns();
        if (!rc && total.n)
                rc = team->ops->apply(team->net, &total, call->opt, &rate, factor, call->err);
        team->times.apply += mfl_now_ns() - start_ns;
        if (rc)
                return rc;
        for (int t = 0; t < team->layout.n_tensors; t++)
                if (team->largest[t] > 0 && isfinite(team->largest[t]))
                        team->exponent[t] = mfl_team_exponent(team->largest[t]);
        if (team->options.shared)
                return exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_BARRIER});
        return exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                                      .type = MFL_MESH_F32,
                                      .in = team->layout.params + first,
                                      .out = team->layout.params,
                                      .n = team->layout.n,
                                      .edge = edge});
}

/* All ranks' scores, at every rank. Sums of losses saturate, and do so in any order. */
static int share_score(struct call *call)
{
        struct mfl_team *team = call->team;
        int64_t all[3 * MFL_MESH_RANKS_MAX];
        struct mfl_score *score = &call->steps->score;
        uint32_t n = team->mesh->n_ranks, rank = team->mesh->rank;
        all[3 * rank] = score->loss_sum;
        all[3 * rank + 1] = (int64_t)score->n_correct;
        all[3 * rank + 2] = (int64_t)score->n_scored;
        int rc = exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                                        .type = MFL_MESH_I64,
                                        .in = all + (size_t)3 * rank,
                                        .out = all,
                                        .n = (uint64_t)3 * n});
        *score = (struct mfl_score){0};
        for (uint32_t r = 0; !rc && r < n; r++) {
                score->loss_sum = mfl_fixed_loss_add(score->loss_sum, all[3 * r]);
                score->n_correct += (uint64_t)all[3 * r + 1];
                score->n_scored += (uint64_t)all[3 * r + 2];
        }
        return rc;
}

int mfl_team_step(struct mfl_team *team, const struct mfl_dataset *dataset, const struct mfl_split *split,
        const struct mfl_device_data *data, struct mfl_group_steps *steps, uint32_t n_steps,
        const struct mfl_optimizer *opt, const atomic_bool *cancel, struct mfl_error *err)
{
        struct mfl_score before = steps->score;
        struct call call = {team, data, steps, opt, cancel, err};
        int rc = 0;
        steps->score = (struct mfl_score){0};
        for (uint32_t t = 0; !rc && t < n_steps; t++) {
                call.step = steps->step_first + t;
                call.sequence = 0;
                call.rows = steps->count[t];
                call.index = steps->index + (size_t)t * team->options.step_rows;
                mfl_assert(call.rows <= team->options.step_rows);
                if (!call.rows)
                        continue;
                call.share = mfl_loss_share_of(dataset, split, &team->loss, call.index, call.rows);
                rc = take_gradient(&call);
                if (!rc)
                        rc = take_statistics(&call);
                if (!rc)
                        rc = take_step(&call, steps->lr_scale ? steps->lr_scale[t] : 1.0f);
                steps->n_samples += call.rows;
        }
        if (!rc)
                rc = share_score(&call);
        steps->score.loss_sum = mfl_fixed_loss_add(steps->score.loss_sum, before.loss_sum);
        steps->score.n_correct += before.n_correct;
        steps->score.n_scored += before.n_scored;
        return rc;
}
