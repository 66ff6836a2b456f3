/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/bodies.h"
#include "kernels/check.h"
#include "kernels/team/team_internal.h"

struct mfl_team {
        const struct mfl_grad_ops *ops;
        struct mfl_net *net;
        struct mfl_mesh *mesh;
        struct mfl_team_options options;
        struct mfl_loss loss;
        struct mfl_grad_layout layout;
        uint32_t n_grains; /* of the largest step */
        uint64_t n_blocks;
        struct team_buckets buckets;
        struct team_traffic *traffic; /* NULL: traffic comes after the grains */
        bool fresh;                   /* no step has been taken in this training: scales are a guess */
        int64_t *sum;         /* layout.n; after the reduce-scatters the rank's slices of it hold the total */
        int *exponent, *bits; /* of each tensor */
        float *largest;       /* of each tensor, in this step */
        float *statistics;    /* n_grains * layout.n_statistics */
        double *squares;      /* n_blocks: rank by rank; those of a rank in the gradient's order */
        uint64_t edge[2][MFL_MESH_RANKS_MAX + 1]; /* of squares, of grains' statistics */
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

enum { EDGES_SQUARES, EDGES_STATISTICS };

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

static uint64_t blocks_of(uint64_t n)
{
        return (n + MFL_GRAD_BLOCK - 1) / MFL_GRAD_BLOCK;
}

/* Elements of a rank's slice. */
static uint64_t slice_of(const struct team_bucket *bucket, uint32_t rank)
{
        return bucket->edge[rank + 1] - bucket->edge[rank];
}

static int start(struct mfl_team *team, struct mfl_error *err)
{
        int rc = mfl_team_buckets_new(
                &team->layout, team->options.bucket_bytes, team->mesh->n_ranks, &team->buckets, err);
        if (!rc)
                rc = allocate(team, err);
        for (uint32_t r = 0; !rc && r < team->mesh->n_ranks; r++) {
                team->edge[EDGES_SQUARES][r + 1] = team->edge[EDGES_SQUARES][r];
                for (uint32_t k = 0; k < team->buckets.n; k++)
                        team->edge[EDGES_SQUARES][r + 1] += blocks_of(slice_of(&team->buckets.bucket[k], r));
        }
        if (!rc && team->options.overlap && team->mesh->n_ranks > 1)
                rc = mfl_team_traffic_new(
                        team->mesh, &team->buckets, &team->layout, team->sum, &team->traffic, err);
        return rc;
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
        team->n_blocks = blocks_of(team->layout.n);
        int rc = start(team, err);
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
        mfl_team_traffic_free(team->traffic);
        mfl_team_buckets_deinit(&team->buckets);
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
        team->fresh = true;
}

void mfl_team_set_deadline(struct mfl_team *team, uint32_t deadline_ms)
{
        team->options.deadline_ms = deadline_ms;
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

/* Grains [first, end); with traffic, buckets go while the last one's gradients come. */
static int run_grains(struct call *call, uint32_t first, uint32_t end, struct team_traffic *traffic,
        struct mfl_score *score)
{
        struct mfl_team *team = call->team;
        int rc = 0;
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
                                              : NULL,
                        .ready = traffic && k == end - 1 ? mfl_team_traffic_ready : NULL,
                        .user = traffic};
                rc = team->ops->grain(team->net, call->data, &grain, &sink, score, call->err);
        }
        return rc;
}

/* The gradients of the rank's grains; *score: of their rows. With traffic also the ranks' sum. */
static int take_grains(struct call *call, struct team_traffic *traffic, struct mfl_score *score)
{
        struct mfl_team *team = call->team;
        uint32_t n = grains_of(&team->options, call->rows), rank = team->mesh->rank,
                 ranks = team->mesh->n_ranks;
        uint32_t first = (uint32_t)mfl_mesh_slice(n, 1, ranks, rank),
                 end = (uint32_t)mfl_mesh_slice(n, 1, ranks, rank + 1);
        uint64_t start_ns = mfl_now_ns();
        for (int t = 0; t < team->layout.n_tensors; t++) {
                team->bits[t] = mfl_team_bits(team->exponent[t], team->n_grains);
                team->largest[t] = 0;
        }
        if (first == end)
                memset(team->sum, 0, (size_t)team->layout.n * sizeof *team->sum);
        if (traffic) {
                mfl_team_traffic_begin(
                        traffic, call->step, call->sequence, team->options.deadline_ms, call->cancel);
                call->sequence += team->buckets.n;
        }
        int rc = run_grains(call, first, end, traffic, score);
        uint64_t end_ns = mfl_now_ns();
        team->times.compute += end_ns - start_ns;
        if (traffic) {
                struct mfl_error other;
                int code = mfl_team_traffic_wait(
                        traffic, rc ? "a rank has failed" : NULL, &team->times.hidden, &other);
                team->times.exchange += mfl_now_ns() - end_ns;
                if (!rc && code)
                        rc = mfl_fail(call->err, code, "%s", other.text);
        }
        if (rc || !team->layout.n_tensors)
                return rc;
        return exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_REDUCE,
                                      .type = MFL_MESH_F32,
                                      .reduction = MFL_MESH_MAX,
                                      .in = team->largest,
                                      .out = team->largest,
                                      .n = (uint64_t)team->layout.n_tensors});
}

/* The ranks' sum, where it did not go behind backward. */
static int exchange_buckets(struct call *call)
{
        struct mfl_team *team = call->team;
        int rc = 0;
        for (uint32_t k = 0; !rc && k < team->buckets.n; k++)
                rc = exchange(call, mfl_team_scatter(team->mesh, &team->buckets.bucket[k], team->sum));
        return rc;
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
        struct team_traffic *traffic = team->fresh ? NULL : team->traffic;
        int rc = take_grains(call, traffic, &score);
        if (!rc && !scales_fit(team)) {
                team->times.repeats++;
                score = (struct mfl_score){0};
                traffic = team->traffic;
                rc = take_grains(call, traffic, &score);
                if (!rc && !scales_fit(team))
                        return mfl_fail(call->err, -EIO,
                                "the gradient of step %u came out differently when it was computed again, so "
                                "this device "
                                "can't train a client on several workers",
                                call->step);
        }
        if (!rc && !traffic)
                rc = exchange_buckets(call);
        team->fresh = false;
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

/* What a slice of a bucket is to the backend. */
static struct mfl_grad_total total_of(const struct mfl_team *team, const struct team_bucket *bucket)
{
        uint64_t first = bucket->first + bucket->edge[team->mesh->rank];
        return (struct mfl_grad_total){
                team->sum + first, first, slice_of(bucket, team->mesh->rank), team->bits};
}

/* The sum over all blocks, in the gradient's order: buckets from the last to the first, and in each the ranks. */
static double sum_squares(const struct mfl_team *team)
{
        uint64_t next[MFL_MESH_RANKS_MAX];
        double squares = 0;
        memcpy(next, team->edge[EDGES_SQUARES], team->mesh->n_ranks * sizeof *next);
        for (uint32_t k = team->buckets.n; k-- > 0;)
                for (uint32_t r = 0; r < team->mesh->n_ranks; r++)
                        for (uint64_t b = blocks_of(slice_of(&team->buckets.bucket[k], r)); b > 0; b--)
                                squares += team->squares[next[r]++];
        return squares;
}

/* The factor that clips the whole gradient; NaN, so that the update is refused, where the gradient is not finite. */
static int find_factor(struct call *call, float *ret_factor)
{
        struct mfl_team *team = call->team;
        uint64_t *edge = team->edge[EDGES_SQUARES];
        int rc = 0;
        *ret_factor = 1.0f;
        if (call->opt->clip_norm > 0) {
                double *own = team->squares + edge[team->mesh->rank], *at = own;
                for (uint32_t k = team->buckets.n; !rc && k-- > 0;) {
                        struct mfl_grad_total total = total_of(team, &team->buckets.bucket[k]);
                        rc = team->ops->squares(team->net, &total, call->opt, at, call->err);
                        at += blocks_of(total.n);
                }
                if (!rc)
                        rc = exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                                                    .type = MFL_MESH_I64, /* a double's bits */
                                                    .in = own,
                                                    .out = team->squares,
                                                    .n = team->n_blocks,
                                                    .edge = edge});
                if (!rc)
                        *ret_factor = mfl_clip_factor(call->opt->clip_norm, (float)sqrt(sum_squares(team)));
        }
        for (int t = 0; t < team->layout.n_tensors; t++)
                if (!isfinite(team->largest[t]))
                        *ret_factor = NAN;
        return rc;
}

/* All ranks get all params; where they have them in one memory, nobody reads them before all are written. */
static int share_params(struct call *call)
{
        struct mfl_team *team = call->team;
        int rc = 0;
        if (team->options.shared)
                return exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_BARRIER});
        for (uint32_t k = 0; !rc && k < team->buckets.n; k++) {
                const struct team_bucket *bucket = &team->buckets.bucket[k];
                float *params = team->layout.params + bucket->first;
                rc = exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                                            .type = MFL_MESH_F32,
                                            .in = params + bucket->edge[team->mesh->rank],
                                            .out = params,
                                            .n = bucket->n,
                                            .edge = bucket->edge});
        }
        return rc;
}

static int take_step(struct call *call, float lr_scale)
{
        struct mfl_team *team = call->team;
        struct mfl_rate rate = mfl_rate_of(call->opt, (uint64_t)call->step + 1, lr_scale);
        float factor;
        int rc = find_factor(call, &factor);
        uint64_t start_ns = mfl_now_ns();
        for (uint32_t k = 0; !rc && k < team->buckets.n; k++) {
                struct mfl_grad_total total = total_of(team, &team->buckets.bucket[k]);
                if (total.n)
                        rc = team->ops->apply(team->net, &total, call->opt, &rate, factor, call->err);
        }
        team->times.apply += mfl_now_ns() - start_ns;
        if (rc)
                return rc;
        for (int t = 0; t < team->layout.n_tensors; t++)
                if (team->largest[t] > 0 && isfinite(team->largest[t]))
                        team->exponent[t] = mfl_team_exponent(team->largest[t]);
        return share_params(call);
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
