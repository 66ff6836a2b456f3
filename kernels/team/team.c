/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/bodies.h"
#include "kernels/check.h"
#include "kernels/team/team_internal.h"

#define LOST_MS 2000u /* from when the slowest mesh between devices has told its rank */
#define TURN_NS ((uint64_t)20000000)

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
        struct mfl_score own; /* of the rank's rows that the others have not heard of */
        bool moved;           /* no grain has been taken since params may have changed */
};

static bool is_cancelled(const struct call *call)
{
        return call->cancel && atomic_load(call->cancel);
}

void mfl_team_score_add(struct mfl_score *to, const struct mfl_score *score)
{
        to->loss_sum = mfl_fixed_loss_add(to->loss_sum, score->loss_sum);
        to->n_correct += score->n_correct;
        to->n_scored += score->n_scored;
}

void mfl_team_begin(struct mfl_team *team)
{
        for (int t = 0; t < team->layout.n_tensors; t++)
                team->exponent[t] = MFL_TEAM_FIRST;
        team->fresh = true;
        team->torn = false;
        team->done = 0;
        team->loss_scale = team->layout.scaled ? MFL_LOSS_SCALE_START : 1.0f;
        team->good_steps = 0;
        team->score = (struct mfl_score){0};
        mfl_team_snapshots_forget(team->snapshots);
}

void mfl_team_set_note(struct mfl_team *team, int64_t note)
{
        team->note = note;
}

void mfl_team_set_deadline(struct mfl_team *team, uint32_t deadline_ms)
{
        team->options.deadline_ms = deadline_ms;
}

const struct mfl_team_times *mfl_team_times(const struct mfl_team *team)
{
        return &team->times;
}

/* A barrier that blames nobody for being late: who has not come may still wait for the devices. *ret_alone: nobody is gone, nobody has
 * failed, and not all came. */
static int find_gone(struct call *call, const struct mfl_mesh_op *op, uint32_t patience_ms, bool *ret_alone,
        struct mfl_error *err)
{
        struct mfl_mesh *mesh = call->team->mesh;
        uint64_t end_ns = mfl_now_ns() + patience_ms * (uint64_t)1000000;
        int rc = mesh->ops->start(mesh, op, err);
        if (rc)
                return rc;
        while ((rc = mesh->ops->progress(mesh, TURN_NS, err)) == MFL_MESH_PENDING)
                if (is_cancelled(call) || mfl_now_ns() > end_ns) {
                        *ret_alone = true;
                        mesh->ops->abort(mesh, call->err->text);
                }
        *ret_alone = *ret_alone && rc && !mesh->accused;
        return rc;
}

/* What a mesh between devices broke on, it can't say; the other one finds who is gone. If it broke on a deadline, the others' deadlines
 * end about now, too, and who does not come is late. */
static int find_lost(struct call *call)
{
        struct mfl_mesh *mesh = call->team->mesh, *bulk = call->team->bulk;
        const struct mfl_mesh_op op = {
                .kind = MFL_MESH_BARRIER, .step = call->step, .sequence = MFL_MESH_SEQUENCE_LOST};
        uint32_t patience_ms = LOST_MS + bulk->lag_ms;
        bool alone = false, cancelled = is_cancelled(call);
        struct mfl_error other;
        int rc = bulk->late ? mfl_mesh_run(mesh, &op, patience_ms, call->cancel, &other)
                            : find_gone(call, &op, patience_ms, &alone, &other);
        bulk->unreached = !cancelled && (!rc || (alone && !is_cancelled(call)));
        return rc ? mfl_fail(call->err, rc, "%s", other.text) : MFL_MESH_BROKEN;
}

static int exchange_over(struct call *call, struct mfl_mesh *mesh, struct mfl_mesh_op op)
{
        struct mfl_team *team = call->team;
        uint64_t start_ns = mfl_now_ns();
        op.step = call->step;
        op.sequence = call->sequence++;
        int rc = mfl_mesh_run(mesh, &op, team->options.deadline_ms, call->cancel, call->err);
        if (rc == MFL_MESH_BROKEN && mesh != team->mesh)
                rc = find_lost(call);
        team->times.exchange += mfl_now_ns() - start_ns;
        return rc;
}

static int exchange(struct call *call, struct mfl_mesh_op op)
{
        return exchange_over(call, call->team->mesh, op);
}

int mfl_team_start(struct mfl_team *team, struct mfl_error *err)
{
        uint64_t first, bytes = team->n_own * sizeof(float);
        int rc = team->momentum ? mfl_team_clear(team, team->momentum, bytes, err) : 0;
        if (!rc && team->second)
                rc = mfl_team_clear(team, team->second, bytes, err);
        for (uint32_t k = 0; !rc && team->start && k < team->buckets.n; k++) {
                uint64_t n = mfl_team_own(team, k, mfl_team_owner(team), &first);
                rc = mfl_team_copy(team, MFL_GRAD_ON_DEVICE, team->start + team->own[k],
                        team->layout.params + first, n, err);
        }
        return rc;
}

/* Grains [first, end); with `sends` buckets go while the last one's gradients come. */
static int run_grains(struct call *call, uint32_t first, uint32_t end, bool sends, struct mfl_score *score)
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
                        .share = &call->share,
                        .moved = call->moved,
                        .loss_scale = team->loss_scale};
                struct mfl_grad_sink sink = {.resident = team->device ? (int64_t *)team->sum : NULL,
                        .place = mfl_team_traffic_place,
                        .first = k == first,
                        .floats = team->options.floats || team->late,
                        .bits = team->bits,
                        .largest = team->largest,
                        .statistics = team->layout.n_statistics
                                              ? team->statistics + (size_t)k * team->layout.n_statistics
                                              : NULL,
                        .deferred = mfl_team_defer(team, k),
                        .ready = sends && k == end - 1 ? mfl_team_traffic_ready : NULL,
                        .user = team->traffic};
                rc = team->ops->grain(team->net, call->data, &grain, &sink, score, call->err);
                call->moved = false;
        }
        return rc;
}

static void begin_traffic(struct call *call, bool adds)
{
        const struct team_traffic_session session = {.step = call->step,
                .sequence = call->sequence,
                .deadline_ms = call->team->options.deadline_ms,
                .cancel = call->cancel,
                .adds = adds};
        mfl_team_traffic_begin(call->team->traffic, &session);
        call->sequence += call->team->buckets.n;
}

/* What buckets took behind backward counts as hidden; the rest is exchange. */
static int end_traffic(struct call *call, int rc)
{
        struct mfl_team *team = call->team;
        struct mfl_error other;
        uint64_t start_ns = mfl_now_ns(), busy = 0;
        if (rc && team->bulk != team->mesh) /* before devices end what they do, which takes its time */
                team->mesh->ops->abort(team->mesh, call->err->text);
        int code = mfl_team_traffic_wait(team->traffic, rc ? "a rank has failed" : NULL, &busy, &other);
        uint64_t waited = mfl_now_ns() - start_ns, inside = busy > waited ? busy - waited : 0;
        bool behind = team->behind;
        team->times.exchange += behind ? waited : MFL_MAX(waited, busy);
        team->times.hidden += behind ? busy : 0;
        team->times.compute -= behind ? 0 : inside; /* in `ready` */
        if (rc || !code)
                return rc;
        mfl_fail(call->err, code, "%s", other.text);
        return code == MFL_MESH_BROKEN && team->bulk != team->mesh ? find_lost(call) : code;
}

/* The totals of deferred tensors, of which all ranks get all operands; in stage 0 also all totals. `again`: with other scales, from the
 * operands that are there. */
static int take_products(struct call *call, bool again)
{
        struct mfl_team *team = call->team;
        uint32_t n = mfl_team_grains(&team->options, call->rows), rank = team->mesh->rank;
        int rc = again || team->mesh->n_ranks == 1 ? 0 : exchange(call, mfl_team_products_op(team, n));
        if (rc)
                return rc;
        uint64_t start_ns = mfl_now_ns();
        mfl_team_products_take(team, n);
        team->times.compute += mfl_now_ns() - start_ns;
        for (uint32_t k = 0; !rc && !team->zero && k < team->buckets.n; k++) {
                const struct team_bucket *bucket = &team->buckets.bucket[k];
                float *totals = mfl_team_totals(team, k);
                if (bucket->deferred >= 0)
                        rc = exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                                                    .type = MFL_MESH_F32,
                                                    .in = totals + bucket->edge[rank],
                                                    .out = totals,
                                                    .n = bucket->n,
                                                    .edge = bucket->edge});
        }
        return rc;
}

/* The gradients of the rank's grains; *score: of their rows. With `sends` also the ranks' sum. Ranks that own shards alone send
 * each grain by itself, so all have the same number of turns. `again`: a second time, with other scales; a grain that is still
 * there is not computed again. */
static int take_grains(struct call *call, bool sends, bool again, struct mfl_score *score)
{
        struct mfl_team *team = call->team;
        uint32_t n = mfl_team_grains(&team->options, call->rows), rank = team->mesh->rank,
                 ranks = team->mesh->n_ranks, turns = team->zero < 2 ? 1 : (n + ranks - 1) / ranks;
        uint32_t first = (uint32_t)mfl_mesh_slice(n, 1, ranks, rank),
                 end = (uint32_t)mfl_mesh_slice(n, 1, ranks, rank + 1);
        int rc = 0;
        for (int t = 0; t < team->layout.n_tensors; t++) {
                team->bits[t] = mfl_team_bits(team->exponent[t], team->n_grains);
                team->largest[t] = 0;
        }
        if (first == end && team->grads)
                memset(team->grads, 0, (size_t)team->layout.n * sizeof(float));
        else if (first == end && team->zero < 2)
                rc = mfl_team_clear(team, team->sum, team->layout.n * team->size, call->err);
        for (uint32_t t = 0; !rc && t < turns; t++) {
                uint32_t from = team->zero < 2 ? first : MFL_MIN(first + t, end);
                uint64_t start_ns = mfl_now_ns();
                if (sends)
                        begin_traffic(call, t > 0);
                if (!again || !team->grads)
                        rc = run_grains(
                                call, from, team->zero < 2 ? end : MFL_MIN(from + 1, end), sends, score);
                team->times.compute += mfl_now_ns() - start_ns;
                if (sends)
                        rc = end_traffic(call, rc);
        }
        if (!rc && team->products)
                rc = take_products(call, again && team->grads);
        /* Where params are one memory, nobody may change them before all have read them. */
        if (!rc && team->options.floats && team->options.shared)
                rc = exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_BARRIER});
        if (rc || !team->layout.n_tensors || team->options.floats)
                return rc;
        return exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_REDUCE,
                                      .type = MFL_MESH_F32,
                                      .reduction = MFL_MESH_MAX,
                                      .in = team->largest,
                                      .out = team->largest,
                                      .n = (uint64_t)team->layout.n_tensors});
}

static int take_gradient(struct call *call)
{
        struct mfl_team *team = call->team;
        struct mfl_score score = {0};
        bool sends = team->late || (team->behind && !team->fresh);
        int rc = team->fresh ? mfl_team_start(team, call->err) : 0;
        if (!rc)
                rc = take_grains(call, sends, false, &score);
        if (!rc && !mfl_team_scales_fit(team)) {
                team->times.repeats++;
                if (!team->grads)
                        score = (struct mfl_score){0};
                sends = team->late || team->behind;
                rc = take_grains(call, sends, true, &score);
                if (!rc && !mfl_team_scales_fit(team))
                        return mfl_fail(call->err, -EIO,
                                "the gradient of step %u came out differently when it was computed again, so "
                                "this device "
                                "can't train a client on several workers",
                                call->step);
        }
        if (!rc && !sends && team->mesh->n_ranks > 1) {
                rc = mfl_team_settle(team, call->err);
                begin_traffic(call, false);
                rc = end_traffic(call, rc);
        }
        team->fresh = false;
        mfl_team_score_add(&call->own, &score);
        return rc;
}

/* What all grains saw. */
static int share_statistics(struct call *call)
{
        struct mfl_team *team = call->team;
        uint32_t n = mfl_team_grains(&team->options, call->rows), ranks = team->mesh->n_ranks,
                 rank = team->mesh->rank;
        uint64_t *edge = team->edge[EDGES_STATISTICS], each = team->layout.n_statistics;
        if (!each)
                return 0;
        for (uint32_t r = 0; r <= ranks; r++)
                edge[r] = mfl_mesh_slice(n, 1, ranks, r) * each;
        return exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                                      .type = MFL_MESH_F32,
                                      .in = team->statistics + edge[rank],
                                      .out = team->statistics,
                                      .n = n * each,
                                      .edge = edge});
}

/* Running statistics take it, in the grains' order. */
static int take_statistics(struct call *call)
{
        struct mfl_team *team = call->team;
        uint32_t n = mfl_team_grains(&team->options, call->rows);
        uint64_t each = team->layout.n_statistics;
        int rc = 0;
        for (uint32_t k = 0; each && !rc && k < n && mfl_team_fills(team); k++)
                rc = team->ops->statistics(team->net, team->statistics + k * each, call->err);
        return rc;
}

/* What the rank's elements of a bucket are to the backend. */
static struct mfl_grad_total total_of(const struct mfl_team *team, uint32_t k)
{
        uint64_t first, n = mfl_team_own(team, k, mfl_team_owner(team), &first), own = team->own[k];
        const char *sum = team->sum + (team->late ? own : first) * team->size;
        bool floats = team->options.floats || team->buckets.bucket[k].deferred >= 0;
        return (struct mfl_grad_total){.sum = floats ? NULL : (const int64_t *)sum,
                .floats = floats ? (const float *)sum : NULL,
                .first = first,
                .n = n,
                .bits = team->bits,
                .momentum = team->momentum ? team->momentum + own : NULL,
                .second = team->second ? team->second + own : NULL,
                .start = team->start ? team->start + own : NULL};
}

/* The sum over all blocks, in the gradient's order: buckets from the last to the first, and in each the ranks. */
static double sum_squares(const struct mfl_team *team)
{
        uint64_t next[MFL_MESH_RANKS_MAX], first;
        double squares = 0;
        memcpy(next, team->edge[EDGES_SQUARES], mfl_team_owners(team) * sizeof *next);
        for (uint32_t k = team->buckets.n; k-- > 0;)
                for (uint32_t r = 0; r < mfl_team_owners(team); r++)
                        for (uint64_t b = mfl_team_blocks(mfl_team_own(team, k, r, &first)); b > 0; b--)
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
                double *own = team->squares + edge[mfl_team_owner(team)], *at = own;
                for (uint32_t k = team->buckets.n; !rc && k-- > 0;) {
                        struct mfl_grad_total total = total_of(team, k);
                        rc = team->ops->squares(team->net, &total, call->opt, at, call->err);
                        at += mfl_team_blocks(total.n);
                }
                if (!rc && team->zero)
                        rc = exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                                                    .type = MFL_MESH_I64, /* a double's bits */
                                                    .in = own,
                                                    .out = team->squares,
                                                    .n = team->n_blocks,
                                                    .edge = edge});
                if (!rc)
                        *ret_factor = mfl_clip_factor(call->opt->clip_norm, (float)sqrt(sum_squares(team)));
        }
        for (int t = 0; !team->options.floats && t < team->layout.n_tensors; t++)
                if (!isfinite(team->largest[t]))
                        *ret_factor = NAN;
        return rc;
}

/* All ranks get all params; where some have them in one memory, nobody reads them before all are written. */
static int share_params(struct call *call)
{
        struct mfl_team *team = call->team;
        int rc = 0;
        if (!team->zero)
                return 0;
        if (team->options.shared)
                return exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_BARRIER});
        if (team->options.together) /* running statistics are in the slices of others, too */
                rc = exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_BARRIER});
        for (uint32_t k = 0; !rc && k < team->buckets.n; k++) {
                const struct team_bucket *bucket = &team->buckets.bucket[k];
                float *params = team->layout.params + bucket->first;
                rc = exchange_over(call, team->bulk,
                        (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                                .type = MFL_MESH_F32,
                                .in = params + bucket->edge[team->mesh->rank],
                                .out = team->aside ? team->aside : params,
                                .n = bucket->n,
                                .edge = bucket->edge});
        }
        if (!rc && team->options.together)
                rc = exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_BARRIER});
        return rc;
}

/* All ranks' scores, at every rank. Sums of losses saturate, and do so in any order. */
static int share_score(struct call *call)
{
        struct mfl_team *team = call->team;
        int64_t all[3 * MFL_MESH_RANKS_MAX];
        uint32_t n = team->mesh->n_ranks, rank = team->mesh->rank;
        all[3 * rank] = call->own.loss_sum;
        all[3 * rank + 1] = (int64_t)call->own.n_correct;
        all[3 * rank + 2] = (int64_t)call->own.n_scored;
        int rc = exchange(call, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                                        .type = MFL_MESH_I64,
                                        .in = all + (size_t)3 * rank,
                                        .out = all,
                                        .n = (uint64_t)3 * n});
        if (rc)
                return rc;
        call->own = (struct mfl_score){0};
        for (uint32_t r = 0; r < n; r++) {
                const struct mfl_score score = {.loss_sum = all[3 * r],
                        .n_correct = (uint64_t)all[3 * r + 1],
                        .n_scored = (uint64_t)all[3 * r + 2]};
                mfl_team_score_add(&call->steps->score, &score);
                mfl_team_score_add(&team->score, &score);
        }
        return 0;
}

/* From here on the training's state changes: params, what the optimizer keeps, scales. A step that is left out changes running
 * statistics, as it does with one worker, and the loss scale. */
static int change(struct call *call, float factor, float lr_scale, bool left_out)
{
        struct mfl_team *team = call->team;
        struct mfl_rate rate = mfl_rate_of(call->opt, (uint64_t)call->step + 1, lr_scale);
        uint64_t start_ns = mfl_now_ns();
        team->torn = true;
        int rc = take_statistics(call);
        for (uint32_t k = 0; !rc && !left_out && k < team->buckets.n; k++) {
                struct mfl_grad_total total = total_of(team, k);
                if (total.n)
                        rc = team->ops->apply(team->net, &total, call->opt, &rate, factor, call->err);
        }
        if (!rc)
                rc = mfl_team_settle(team, call->err);
        team->times.apply += mfl_now_ns() - start_ns;
        if (rc)
                return rc;
        if (team->layout.scaled)
                mfl_loss_scale_next(&team->loss_scale, &team->good_steps, left_out);
        for (int t = 0; !left_out && t < team->layout.n_tensors; t++)
                if (team->largest[t] > 0 && isfinite(team->largest[t]))
                        team->exponent[t] = mfl_team_exponent(team->largest[t]);
        rc = share_params(call);
        team->done = call->step + 1;
        team->torn = rc != 0;
        return rc;
}

/* In stage 0 ranks exchange nothing after the first change, and the score before it: a rank that is left alone at any operation
 * has the state, and the score, of whole steps. */
static int take_step(struct call *call, float lr_scale)
{
        float factor = 1.0f;
        int rc = take_gradient(call);
        bool left_out = !rc && mfl_team_overflows(call->team);
        if (!rc)
                rc = share_statistics(call);
        if (!rc && !left_out)
                rc = find_factor(call, &factor);
        if (!rc && !call->team->zero)
                rc = share_score(call);
        return rc ? rc : change(call, factor, lr_scale, left_out);
}

static int take_snapshot(struct call *call)
{
        int rc = share_score(call);
        return rc ? rc : mfl_team_snapshot(call->team, call->cancel, call->err);
}

int mfl_team_step(struct mfl_team *team, const struct mfl_dataset *dataset, const struct mfl_split *split,
        const struct mfl_device_data *data, struct mfl_group_steps *steps, uint32_t n_steps,
        const struct mfl_optimizer *opt, const atomic_bool *cancel, struct mfl_error *err)
{
        struct call call = {
                .team = team, .data = data, .steps = steps, .opt = opt, .cancel = cancel, .err = err};
        int rc = 0;
        for (uint32_t t = 0; !rc && t < n_steps; t++) {
                call.step = steps->step_first + t;
                call.sequence = 0;
                call.rows = steps->count[t];
                call.index = steps->index + (size_t)t * team->options.step_rows;
                mfl_assert(call.rows <= team->options.step_rows);
                if (!call.rows)
                        continue;
                if (mfl_team_snapshot_due(team))
                        rc = take_snapshot(&call);
                if (rc)
                        break;
                call.moved = true;
                call.share = mfl_loss_share_of(dataset, split, &team->loss, call.index, call.rows);
                rc = take_step(&call, steps->lr_scale ? steps->lr_scale[t] : 1.0f);
                steps->n_samples += call.rows;
        }
        return !rc && team->zero ? share_score(&call) : rc;
}
