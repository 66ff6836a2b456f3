/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of sharded state: each rank keeps its own shard as it was after a step, and so does another process of the team. */
#include "kernels/team/team_internal.h"

/* Of a snapshot's operations, beyond those of the step that follows it. */
#define SEQUENCE_FIRST ((uint32_t)1 << 30)
/* Whoever waits for a rank that itself waits for a lost one must not give up first, and accuse it: of two operations the later one in
 * pass_all's order gets so much more time. */
#define LATER_MS 1000u

struct team_snapshots {
        uint32_t n; /* shards: the own one first, then those of the ranks that this one keeps */
        uint32_t owner[MFL_MESH_RANKS_MAX]; /* of each */
        /* whole: all ranks have that snapshot. next: the one under way; `copied`: this rank has its part of it. A snapshot replaces the
         * one before after a barrier, so at each moment all ranks have one of the two. */
        struct team_shard *whole[MFL_MESH_RANKS_MAX], *next[MFL_MESH_RANKS_MAX];
        bool copied;
};

void mfl_team_shard_free(struct team_shard *shard)
{
        if (!shard)
                return;
        free(shard->exponent);
        free(shard->params);
        free(shard->momentum);
        free(shard->second);
        free(shard);
}

uint64_t mfl_team_shard_bytes(const struct team_shard *shard)
{
        uint64_t vectors = 1 + (shard->momentum != NULL) + (shard->second != NULL);
        return sizeof *shard + vectors * shard->n * sizeof(float) + (uint64_t)shard->n_tensors * sizeof(int);
}

int mfl_team_shard_new(const struct mfl_team *team, uint32_t owner, uint32_t n_owners, uint64_t n,
        struct team_shard **ret_shard, struct mfl_error *err)
{
        struct team_shard *shard = mfl_calloc(1, sizeof *shard);
        size_t bytes = (size_t)n * sizeof(float) + 1;
        if (!shard)
                return mfl_fail_memory(err, sizeof *shard, "a training's state");
        *shard = (struct team_shard){
                .owner = owner, .n_owners = n_owners, .n = n, .n_tensors = team->layout.n_tensors};
        shard->exponent = mfl_malloc((size_t)team->layout.n_tensors * sizeof(int) + 1);
        shard->params = mfl_malloc(bytes);
        shard->momentum = team->momentum ? mfl_malloc(bytes) : NULL;
        shard->second = team->second ? mfl_malloc(bytes) : NULL;
        if (!shard->exponent || !shard->params || (team->momentum && !shard->momentum) ||
                (team->second && !shard->second)) {
                mfl_team_shard_free(shard);
                return mfl_fail_memory(err, bytes, "a training's state");
        }
        *ret_shard = shard;
        return 0;
}

void mfl_team_shard_stamp(const struct mfl_team *team, int64_t note, struct team_shard *shard)
{
        shard->step = team->done;
        shard->note = note;
        shard->score = team->score;
        shard->loss_scale = team->loss_scale;
        shard->good_steps = team->good_steps;
        memcpy(shard->exponent, team->exponent, (size_t)team->layout.n_tensors * sizeof(int));
}

static uint64_t elements_of(const struct mfl_team *team, uint32_t rank)
{
        uint64_t first, n = 0;
        for (uint32_t k = 0; k < team->buckets.n; k++)
                n += mfl_team_own(team, k, rank, &first);
        return n;
}

int mfl_team_snapshots_new(struct mfl_team *team, struct mfl_error *err)
{
        uint32_t rank = team->mesh->rank;
        if (!team->options.snapshot || !team->zero || team->mesh->n_ranks < 2)
                return 0;
        team->snapshots = mfl_calloc(1, sizeof *team->snapshots);
        if (!team->snapshots)
                return mfl_fail_memory(err, sizeof *team->snapshots, "a team's snapshots");
        struct team_snapshots *s = team->snapshots;
        s->owner[s->n++] = rank;
        for (uint32_t r = 0; r < team->mesh->n_ranks; r++) {
                mfl_assert(team->options.keeper[r] < team->mesh->n_ranks && team->options.keeper[r] != r);
                if (team->options.keeper[r] == rank)
                        s->owner[s->n++] = r;
        }
        return 0;
}

void mfl_team_snapshots_forget(struct team_snapshots *s)
{
        for (uint32_t i = 0; s && i < s->n; i++) {
                mfl_team_shard_free(s->whole[i]);
                mfl_team_shard_free(s->next[i]);
                s->whole[i] = s->next[i] = NULL;
        }
        if (s)
                s->copied = false;
}

void mfl_team_snapshots_free(struct team_snapshots *s)
{
        mfl_team_snapshots_forget(s);
        free(s);
}

bool mfl_team_snapshot_due(const struct mfl_team *team)
{
        const struct team_snapshots *s = team->snapshots;
        return s && team->done && team->done % team->options.snapshot == 0 &&
               !(s->whole[0] && s->whole[0]->step == team->done);
}

/* ---- taking one ---- */

/* One call of mfl_team_snapshot. */
struct taking {
        struct mfl_team *team;
        const atomic_bool *cancel;
        struct mfl_error *err;
        uint64_t start_ns; /* the same at all ranks, but for a message's way */
};

/* position: of the shard that is passed, in their order; that of the barrier: n_ranks. */
static int exchange(const struct taking *taking, uint32_t position, uint32_t sequence, struct mfl_mesh_op op)
{
        struct mfl_team *team = taking->team;
        uint64_t start_ns = mfl_now_ns(), spent_ms = (start_ns - taking->start_ns) / 1000000;
        uint64_t limit_ms = (uint64_t)team->options.deadline_ms + (uint64_t)position * LATER_MS;
        limit_ms = MFL_MIN(limit_ms > spent_ms ? limit_ms - spent_ms : 1, (uint64_t)UINT32_MAX);
        op.step = team->done;
        op.sequence = SEQUENCE_FIRST + sequence;
        op.type = MFL_MESH_F32;
        int rc = mfl_mesh_run(team->mesh, &op, (uint32_t)limit_ms, taking->cancel, taking->err);
        team->times.exchange += mfl_now_ns() - start_ns;
        return rc;
}

static void copy_own(const struct mfl_team *team, struct team_shard *shard)
{
        uint64_t first;
        for (uint32_t k = 0; k < team->buckets.n; k++) {
                uint64_t n = mfl_team_own(team, k, team->mesh->rank, &first);
                memcpy(shard->params + team->own[k], team->layout.params + first, (size_t)n * sizeof(float));
        }
        if (shard->momentum)
                memcpy(shard->momentum, team->momentum, (size_t)shard->n * sizeof(float));
        if (shard->second)
                memcpy(shard->second, team->second, (size_t)shard->n * sizeof(float));
}

/* A shard's vectors go from its owner to its keeper; this rank is one of them. */
static int pass(const struct taking *taking, uint32_t position, uint32_t owner, struct team_shard *shard)
{
        const struct mfl_team *team = taking->team;
        bool sends = owner == team->mesh->rank;
        float *vector[] = {shard->params, shard->momentum, shard->second};
        int rc = 0;
        for (uint32_t v = 0; !rc && shard->n && v < MFL_ARRAY_SIZE(vector); v++)
                if (vector[v])
                        rc = exchange(taking, position, v,
                                (struct mfl_mesh_op){.kind = sends ? MFL_MESH_SEND : MFL_MESH_RECV,
                                        .peer = sends ? team->options.keeper[owner] : owner,
                                        .in = vector[v],
                                        .out = vector[v],
                                        .n = shard->n});
        return rc;
}

static struct team_shard *shard_of(const struct team_snapshots *s, uint32_t owner)
{
        for (uint32_t i = 0; i < s->n; i++)
                if (s->owner[i] == owner)
                        return s->next[i];
        return NULL;
}

/* In one order at all ranks, so nobody waits in a circle; first every other one, so those that don't meet go side by side. */
static int pass_all(const struct taking *taking)
{
        struct mfl_team *team = taking->team;
        uint32_t rank = team->mesh->rank, position = 0;
        int rc = 0;
        for (uint32_t odd = 0; odd < 2; odd++)
                for (uint32_t r = odd; !rc && r < team->mesh->n_ranks; r += 2, position++)
                        if (r == rank || team->options.keeper[r] == rank)
                                rc = pass(taking, position, r, shard_of(team->snapshots, r));
        return rc;
}

static int make_shards(struct mfl_team *team, struct mfl_error *err)
{
        struct team_snapshots *s = team->snapshots;
        int rc = 0;
        for (uint32_t i = 0; !rc && i < s->n; i++)
                if (!s->next[i])
                        rc = mfl_team_shard_new(team, s->owner[i], team->mesh->n_ranks,
                                elements_of(team, s->owner[i]), &s->next[i], err);
        return rc;
}

static void swap(struct team_shard **a, struct team_shard **b)
{
        struct team_shard *other = *a;
        *a = *b;
        *b = other;
}

int mfl_team_snapshot(struct mfl_team *team, const atomic_bool *cancel, struct mfl_error *err)
{
        struct team_snapshots *s = team->snapshots;
        const struct taking taking = {team, cancel, err, mfl_now_ns()};
        int rc = make_shards(team, err);
        s->copied = false;
        if (rc)
                return rc;
        for (uint32_t i = 0; i < s->n; i++)
                mfl_team_shard_stamp(team, team->note, s->next[i]);
        copy_own(team, s->next[0]);
        rc = pass_all(&taking);
        s->copied = !rc;
        if (!rc)
                rc = exchange(&taking, team->mesh->n_ranks, MFL_MESH_RANKS_MAX,
                        (struct mfl_mesh_op){.kind = MFL_MESH_BARRIER});
        for (uint32_t i = 0; !rc && i < s->n; i++)
                swap(&s->whole[i], &s->next[i]);
        s->copied = s->copied && rc;
        return rc;
}

/* ---- what is left of them ---- */

void mfl_team_state_free(struct mfl_team_state *state)
{
        if (!state)
                return;
        for (uint32_t i = 0; i < state->n; i++)
                mfl_team_shard_free(state->shard[i]);
        free(state->shard);
        free(state);
}

uint32_t mfl_team_state_step(const struct mfl_team_state *state)
{
        uint32_t step = 0;
        for (uint32_t i = 0; state && i < state->n; i++)
                step = MFL_MAX(step, state->shard[i]->step);
        return step;
}

int mfl_team_state_add(struct mfl_team_state **state, struct team_shard **shard, struct mfl_error *err)
{
        if (!*state)
                *state = mfl_calloc(1, sizeof **state);
        struct mfl_team_state *s = *state;
        for (uint32_t i = 0; s && i < s->n; i++)
                if (s->shard[i]->step == (*shard)->step && s->shard[i]->n_owners == (*shard)->n_owners &&
                        s->shard[i]->owner == (*shard)->owner)
                        return 0;
        struct team_shard **grown =
                s ? mfl_realloc(s->shard, (s->n + 1) * sizeof(struct team_shard *)) : NULL;
        if (!grown)
                return mfl_fail_memory(err, sizeof *s, "a training's state");
        s->shard = grown;
        s->shard[s->n++] = *shard;
        *shard = NULL;
        return 0;
}

static bool is_there(const struct team_snapshots *s, uint32_t i, bool next)
{
        return next ? s->copied && s->next[i] : s->whole[i] != NULL;
}

uint64_t mfl_team_snapshots_bytes(const struct mfl_team *team)
{
        const struct team_snapshots *s = team ? team->snapshots : NULL;
        uint64_t bytes = 0;
        for (uint32_t i = 0; s && i < s->n; i++)
                bytes += (is_there(s, i, false) ? mfl_team_shard_bytes(s->whole[i]) : 0) +
                         (is_there(s, i, true) ? mfl_team_shard_bytes(s->next[i]) : 0);
        return bytes;
}

bool mfl_team_snapshots_whole(const struct mfl_team *team)
{
        return team && team->snapshots && team->snapshots->whole[0];
}

int mfl_team_snapshots_take(struct mfl_team *team, struct mfl_team_state **state, struct mfl_error *err)
{
        struct team_snapshots *s = team ? team->snapshots : NULL;
        int rc = 0;
        for (uint32_t i = 0; s && !rc && i < s->n; i++) {
                if (is_there(s, i, false))
                        rc = mfl_team_state_add(state, &s->whole[i], err);
                if (!rc && is_there(s, i, true))
                        rc = mfl_team_state_add(state, &s->next[i], err);
        }
        return rc;
}
