/* SPDX-License-Identifier: Apache-2.0 */
/* A training that goes on in another team: what it has come to is kept by its ranks, whole or in shards, and given to all ranks of
 * the next team. */
#include <math.h>

#include "kernels/team/team_internal.h"

/* Operations that belong to no step. */
#define STEP_RESUME (UINT32_MAX - 1)
#define CHOICES 4u /* states that a rank tells of, the newest ones */

/* A state of which each rank may have some shards. */
struct choice {
        uint32_t step, n_owners; /* step 0: none */
        uint64_t shards;         /* one bit for each owner */
};

/* One call of mfl_team_resume. */
struct resume {
        struct mfl_team *team;
        const struct mfl_team_state *state; /* what this rank has; may be NULL */
        struct choice choice;
        uint32_t source[MFL_MESH_RANKS_MAX];              /* of each shard: the rank that gives it */
        const struct team_shard *own[MFL_MESH_RANKS_MAX]; /* those that this rank gives */
        uint64_t at[MFL_MESH_RANKS_MAX];                  /* how far each is given */
        uint32_t sequence;
        float *scratch; /* the most elements of a bucket */
        const atomic_bool *cancel;
        struct mfl_error *err;
};

uint64_t mfl_team_state_bytes(const struct mfl_team *team)
{
        uint64_t vectors = 1 + (team->momentum != NULL) + (team->second != NULL);
        return vectors * team->layout.n * sizeof(float) + (uint64_t)team->layout.n_tensors * sizeof(int);
}

uint32_t mfl_team_done(const struct mfl_team *team, struct mfl_score *ret_score)
{
        *ret_score = team->score;
        return team->torn || team->zero ? 0 : team->done;
}

static int copy(const struct mfl_team *team, struct team_shard *shard, struct mfl_error *err)
{
        uint64_t first;
        int rc = mfl_team_copy(
                team, MFL_GRAD_TO_HOST, shard->params, team->layout.params, team->layout.n, err);
        for (uint32_t k = 0; !rc && k < team->buckets.n; k++) {
                uint64_t n = mfl_team_own(team, k, mfl_team_owner(team), &first), own = team->own[k];
                if (shard->momentum)
                        rc = mfl_team_copy(team, MFL_GRAD_TO_HOST, shard->momentum + first,
                                team->momentum + own, n, err);
                if (!rc && shard->second)
                        rc = mfl_team_copy(
                                team, MFL_GRAD_TO_HOST, shard->second + first, team->second + own, n, err);
        }
        return rc;
}

int mfl_team_state_new(
        const struct mfl_team *team, int64_t note, struct mfl_team_state **ret_state, struct mfl_error *err)
{
        mfl_assert(team->done && !team->torn && !team->zero);
        struct mfl_team_state *state = NULL;
        struct team_shard *shard = NULL;
        int rc = mfl_team_shard_new(team, 0, 1, team->layout.n, &shard, err);
        if (rc)
                return rc;
        mfl_team_shard_stamp(team, note, shard);
        rc = copy(team, shard, err);
        if (!rc)
                rc = mfl_team_state_add(&state, &shard, err);
        if (rc) {
                mfl_team_shard_free(shard);
                mfl_team_state_free(state);
                return rc;
        }
        *ret_state = state;
        return 0;
}

/* ---- which state, and who gives it ---- */

static int exchange(struct resume *resume, struct mfl_mesh_op op)
{
        op.step = STEP_RESUME;
        op.sequence = resume->sequence++;
        return mfl_mesh_run(
                resume->team->mesh, &op, resume->team->options.deadline_ms, resume->cancel, resume->err);
}

/* Elements [*ret_from, end) of a bucket are an owner's. */
static uint64_t part_of(
        const struct team_bucket *bucket, uint32_t n_owners, uint32_t owner, uint64_t *ret_from)
{
        *ret_from = mfl_team_bucket_edge(bucket, n_owners, owner);
        return mfl_team_bucket_edge(bucket, n_owners, owner + 1);
}

/* Whether it is of this team's training, cut as this team would cut it for so many owners. */
static bool is_usable(const struct mfl_team *team, const struct team_shard *shard)
{
        uint64_t n = 0, from;
        for (uint32_t k = 0; k < team->buckets.n; k++) {
                uint64_t end = part_of(&team->buckets.bucket[k], shard->n_owners, shard->owner, &from);
                n += end - from;
        }
        return n == shard->n && shard->n_tensors == team->layout.n_tensors &&
               !shard->momentum == !team->momentum && !shard->second == !team->second;
}

/* The newest states that the rank has shards of. */
static void list_choices(const struct resume *resume, struct choice *choices)
{
        const struct mfl_team_state *state = resume->state;
        for (uint32_t i = 0; state && i < state->n; i++) {
                const struct team_shard *shard = state->shard[i];
                struct choice *to = &choices[0];
                uint32_t c = 0;
                if (!is_usable(resume->team, shard))
                        continue;
                while (c < CHOICES &&
                        (choices[c].step != shard->step || choices[c].n_owners != shard->n_owners)) {
                        to = choices[c].step < to->step ? &choices[c] : to;
                        c++;
                }
                if (c < CHOICES)
                        to = &choices[c];
                else if (to->step < shard->step)
                        *to = (struct choice){.step = shard->step, .n_owners = shard->n_owners};
                else
                        continue;
                to->shards |= (uint64_t)1 << shard->owner;
        }
}

/* Numbers of others are not trusted. */
static bool is_possible(const int64_t *number)
{
        return number[0] > 0 && number[0] < UINT32_MAX && number[1] > 0 && number[1] <= MFL_MESH_RANKS_MAX;
}

/* The shards of a choice that any rank has. */
static uint64_t shards_of(const int64_t *all, uint32_t n_ranks, const int64_t *of)
{
        uint64_t shards = 0;
        for (const int64_t *at = all; at < all + (size_t)3 * CHOICES * n_ranks; at += 3)
                shards |= at[0] == of[0] && at[1] == of[1] ? (uint64_t)at[2] : 0;
        return shards;
}

/* The newest state that the ranks have together; of several, the one in the fewest shards. Each shard comes from the first rank that has
 * it. */
static void choose(struct resume *resume, const int64_t *all, uint32_t n_ranks)
{
        struct choice *best = &resume->choice;
        for (const int64_t *at = all; at < all + (size_t)3 * CHOICES * n_ranks; at += 3) {
                if (!is_possible(at) ||
                        shards_of(all, n_ranks, at) << (64 - at[1]) != UINT64_MAX << (64 - at[1]))
                        continue;
                uint32_t step = (uint32_t)at[0], n_owners = (uint32_t)at[1];
                if (step > best->step || (step == best->step && n_owners < best->n_owners))
                        *best = (struct choice){.step = step, .n_owners = n_owners};
        }
        for (uint32_t i = 3 * CHOICES * n_ranks; best->step && i > 0; i -= 3) {
                const int64_t *at = all + (i - 3);
                for (uint32_t o = 0; at[0] == best->step && at[1] == best->n_owners && o < best->n_owners;
                        o++)
                        if ((uint64_t)at[2] >> o & 1)
                                resume->source[o] = (i - 3) / (3 * CHOICES);
        }
}

static void find_own(struct resume *resume)
{
        const struct mfl_team_state *state = resume->state;
        for (uint32_t i = 0; state && i < state->n; i++) {
                const struct team_shard *shard = state->shard[i];
                if (shard->step == resume->choice.step && shard->n_owners == resume->choice.n_owners &&
                        resume->source[shard->owner] == resume->team->mesh->rank)
                        resume->own[shard->owner] = shard;
        }
}

static int find_sources(struct resume *resume)
{
        uint32_t n_ranks = resume->team->mesh->n_ranks, rank = resume->team->mesh->rank;
        struct choice choices[CHOICES] = {{0}};
        int64_t all[3 * CHOICES * MFL_MESH_RANKS_MAX], *own = all + (size_t)3 * CHOICES * rank;
        list_choices(resume, choices);
        for (uint32_t c = 0; c < CHOICES; c++) {
                own[3 * c] = choices[c].step;
                own[3 * c + 1] = choices[c].n_owners;
                own[3 * c + 2] = (int64_t)choices[c].shards;
        }
        int rc = exchange(resume, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                                          .type = MFL_MESH_I64,
                                          .in = own,
                                          .out = all,
                                          .n = (uint64_t)3 * CHOICES * n_ranks});
        if (!rc)
                choose(resume, all, n_ranks);
        if (!rc && resume->choice.step)
                find_own(resume);
        return rc;
}

/* ---- giving it to all ranks ---- */

/* A vector's range from an owner's source; vector: NULL at all others. It is in the scratch afterwards. */
static int give(struct resume *resume, uint32_t owner, const float *vector, uint64_t n)
{
        int rc = exchange(resume, (struct mfl_mesh_op){.kind = MFL_MESH_BROADCAST,
                                          .type = MFL_MESH_F32,
                                          .peer = resume->source[owner],
                                          .in = vector,
                                          .out = resume->scratch,
                                          .n = n});
        if (!rc && vector)
                memcpy(resume->scratch, vector, (size_t)n * sizeof(float));
        return rc;
}

/* Elements [first, first + n) of the gradient are in the scratch; those of bucket k that are the rank's own stay. */
static int take_own(const struct resume *resume, uint32_t k, uint64_t first, uint64_t n, float *own)
{
        const struct mfl_team *team = resume->team;
        uint64_t own_first, own_n = mfl_team_own(team, k, mfl_team_owner(team), &own_first);
        uint64_t from = MFL_MAX(first, own_first), end = MFL_MIN(first + n, own_first + own_n);
        if (from >= end)
                return 0;
        return mfl_team_copy(team, MFL_GRAD_TO_DEVICE, own + team->own[k] + (from - own_first),
                resume->scratch + (from - first), end - from, resume->err);
}

/* An owner's elements of a bucket. Where ranks have one memory of params, the first fills it. */
static int give_part(struct resume *resume, uint32_t k, uint32_t owner)
{
        struct mfl_team *team = resume->team;
        const struct team_bucket *bucket = &team->buckets.bucket[k];
        const struct team_shard *shard = resume->own[owner];
        uint64_t from, n = part_of(bucket, resume->choice.n_owners, owner, &from) - from;
        uint64_t first = bucket->first + from, at = resume->choice.n_owners == 1 ? first : resume->at[owner];
        resume->at[owner] += n;
        if (!n)
                return 0;
        int rc = give(resume, owner, shard ? shard->params + at : NULL, n);
        if (!rc && mfl_team_fills(team))
                rc = mfl_team_copy(team, MFL_GRAD_TO_DEVICE, team->layout.params + first, resume->scratch, n,
                        resume->err);
        if (!rc && team->momentum) {
                rc = give(resume, owner, shard ? shard->momentum + at : NULL, n);
                if (!rc)
                        rc = take_own(resume, k, first, n, team->momentum);
        }
        if (!rc && team->second) {
                rc = give(resume, owner, shard ? shard->second + at : NULL, n);
                if (!rc)
                        rc = take_own(resume, k, first, n, team->second);
        }
        return rc;
}

static int give_vectors(struct resume *resume)
{
        int rc = 0;
        for (uint32_t k = 0; k < resume->team->buckets.n; k++)
                for (uint32_t o = 0; !rc && o < resume->choice.n_owners; o++)
                        rc = give_part(resume, k, o);
        return rc;
}

enum { LOSS, CORRECT, SCORED, NOTE, LOSS_SCALE, GOOD_STEPS, NUMBERS };

static int give_numbers(struct resume *resume, int64_t *ret_note)
{
        const struct team_shard *shard = resume->own[0];
        struct mfl_team *team = resume->team;
        size_t n = NUMBERS + (size_t)team->layout.n_tensors;
        MFL_CLEANUP_FREE int64_t *number = mfl_calloc(n, sizeof *number);
        if (!number)
                return mfl_fail_memory(resume->err, n * sizeof *number, "a training's state");
        if (shard) {
                number[LOSS] = shard->score.loss_sum;
                number[CORRECT] = (int64_t)shard->score.n_correct;
                number[SCORED] = (int64_t)shard->score.n_scored;
                number[NOTE] = shard->note;
                number[LOSS_SCALE] = ilogbf(shard->loss_scale);
                number[GOOD_STEPS] = shard->good_steps;
        }
        for (int t = 0; shard && t < team->layout.n_tensors; t++)
                number[NUMBERS + t] = shard->exponent[t];
        int rc = exchange(resume, (struct mfl_mesh_op){.kind = MFL_MESH_BROADCAST,
                                          .type = MFL_MESH_I64,
                                          .peer = resume->source[0],
                                          .in = number,
                                          .out = number,
                                          .n = n});
        if (rc)
                return rc;
        team->score = (struct mfl_score){.loss_sum = number[LOSS],
                .n_correct = (uint64_t)number[CORRECT],
                .n_scored = (uint64_t)number[SCORED]};
        team->loss_scale = ldexpf(1.0f, (int)number[LOSS_SCALE]);
        team->good_steps = (uint32_t)number[GOOD_STEPS];
        for (int t = 0; t < team->layout.n_tensors; t++)
                team->exponent[t] = (int)number[NUMBERS + t];
        *ret_note = number[NOTE];
        return 0;
}

static int give_all(struct resume *resume, int64_t *ret_note)
{
        struct mfl_team *team = resume->team;
        uint64_t bytes = mfl_team_largest_bucket(&team->buckets) * sizeof(float);
        resume->scratch = mfl_alloc_aligned(bytes);
        int rc = resume->scratch ? give_numbers(resume, ret_note)
                                 : mfl_fail_memory(resume->err, bytes, "a training's state");
        if (!rc)
                rc = give_vectors(resume);
        free(resume->scratch);
        if (!rc && (team->options.shared || team->options.together))
                rc = exchange(resume, (struct mfl_mesh_op){.kind = MFL_MESH_BARRIER});
        team->torn = rc != 0;
        team->fresh = team->fresh && rc;
        team->done = rc ? 0 : resume->choice.step;
        /* A snapshot at once: the caller frees what this came from. */
        if (rc || !team->snapshots)
                return rc;
        team->note = *ret_note;
        return mfl_team_snapshot(team, resume->cancel, resume->err);
}

int mfl_team_resume(struct mfl_team *team, const struct mfl_team_state *state, const atomic_bool *cancel,
        uint32_t *ret_step, struct mfl_score *ret_score, int64_t *ret_note, struct mfl_error *err)
{
        struct resume resume = {.team = team, .state = state, .cancel = cancel, .err = err};
        /* Before anybody writes params: what the optimizer needs of those at the start is taken now. */
        int rc = team->fresh ? mfl_team_start(team, err) : 0;
        if (!rc)
                rc = find_sources(&resume);
        if (!rc && resume.choice.step)
                rc = give_all(&resume, ret_note);
        if (rc)
                return rc;
        *ret_step = resume.choice.step;
        *ret_score = resume.choice.step ? team->score : *ret_score;
        return 0;
}
