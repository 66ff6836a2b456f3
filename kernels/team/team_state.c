/* SPDX-License-Identifier: Apache-2.0 */
/* A training that goes on in another team: what it has come to is kept by a rank, and given to all ranks of the next team. */
#include "kernels/team/team_internal.h"

/* Operations that belong to no step. */
#define STEP_RESUME (UINT32_MAX - 1)

struct mfl_team_state {
        uint32_t step; /* the next one */
        int n_tensors;
        uint64_t n;
        int64_t note;
        struct mfl_score score;
        int *exponent;                     /* n_tensors */
        float *params, *momentum, *second; /* n each, in the gradient's order; the optimizer's may be NULL */
};

/* One call of mfl_team_resume. */
struct resume {
        struct mfl_team *team;
        const struct mfl_team_state *state; /* only at the rank that has it */
        uint32_t source, sequence;
        float *scratch; /* the most elements of a bucket */
        const atomic_bool *cancel;
        struct mfl_error *err;
};

uint64_t mfl_team_state_bytes(const struct mfl_team *team)
{
        uint64_t vectors = 1 + (team->momentum != NULL) + (team->second != NULL);
        return vectors * team->layout.n * sizeof(float) + (uint64_t)team->layout.n_tensors * sizeof(int);
}

void mfl_team_state_free(struct mfl_team_state *state)
{
        if (!state)
                return;
        free(state->exponent);
        free(state->params);
        free(state->momentum);
        free(state->second);
        free(state);
}

uint32_t mfl_team_state_step(const struct mfl_team_state *state)
{
        return state ? state->step : 0;
}

uint32_t mfl_team_done(const struct mfl_team *team, struct mfl_score *ret_score)
{
        *ret_score = team->score;
        return team->torn || team->zero ? 0 : team->done;
}

static int copy(const struct mfl_team *team, struct mfl_team_state *state)
{
        uint64_t first, bytes = team->layout.n * sizeof(float);
        state->exponent = mfl_malloc((size_t)team->layout.n_tensors * sizeof(int) + 1);
        state->params = mfl_malloc(bytes + 1);
        state->momentum = team->momentum ? mfl_malloc(bytes + 1) : NULL;
        state->second = team->second ? mfl_malloc(bytes + 1) : NULL;
        if (!state->exponent || !state->params || (team->momentum && !state->momentum) ||
                (team->second && !state->second))
                return -ENOMEM;
        memcpy(state->exponent, team->exponent, (size_t)team->layout.n_tensors * sizeof(int));
        memcpy(state->params, team->layout.params, bytes);
        for (uint32_t k = 0; k < team->buckets.n; k++) {
                uint64_t n = mfl_team_own(team, k, mfl_team_owner(team), &first);
                if (state->momentum)
                        memcpy(state->momentum + first, team->momentum + team->own[k], n * sizeof(float));
                if (state->second)
                        memcpy(state->second + first, team->second + team->own[k], n * sizeof(float));
        }
        return 0;
}

int mfl_team_state_new(
        const struct mfl_team *team, int64_t note, struct mfl_team_state **ret_state, struct mfl_error *err)
{
        mfl_assert(team->done && !team->torn && !team->zero);
        struct mfl_team_state *state = mfl_calloc(1, sizeof *state);
        if (!state)
                return mfl_fail_memory(err, sizeof *state, "a training's state");
        *state = (struct mfl_team_state){.step = team->done,
                .n_tensors = team->layout.n_tensors,
                .n = team->layout.n,
                .note = note,
                .score = team->score};
        if (copy(team, state)) {
                mfl_team_state_free(state);
                return mfl_fail_memory(err, mfl_team_state_bytes(team), "a training's state");
        }
        *ret_state = state;
        return 0;
}

/* ---- giving it to all ranks ---- */

static int exchange(struct resume *resume, struct mfl_mesh_op op)
{
        op.step = STEP_RESUME;
        op.sequence = resume->sequence++;
        return mfl_mesh_run(
                resume->team->mesh, &op, resume->team->options.deadline_ms, resume->cancel, resume->err);
}

/* Which rank has come farthest; the first of several. *ret_step: how far; 0: nobody has anything. */
static int find_source(struct resume *resume, uint32_t *ret_step)
{
        uint32_t n = resume->team->mesh->n_ranks, rank = resume->team->mesh->rank;
        int64_t step[MFL_MESH_RANKS_MAX];
        step[rank] = mfl_team_state_step(resume->state);
        int rc = exchange(resume, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER,
                                          .type = MFL_MESH_I64,
                                          .in = &step[rank],
                                          .out = step,
                                          .n = n});
        if (rc)
                return rc;
        for (uint32_t r = 0; r < n; r++)
                if (step[r] > step[resume->source])
                        resume->source = r;
        *ret_step = (uint32_t)step[resume->source];
        if (resume->source != rank)
                resume->state = NULL;
        return 0;
}

/* A vector's range from the source; to: NULL where it is not wanted. */
static int give(struct resume *resume, const float *vector, uint64_t first, uint64_t n, float *to)
{
        int rc = exchange(resume, (struct mfl_mesh_op){.kind = MFL_MESH_BROADCAST,
                                          .type = MFL_MESH_F32,
                                          .peer = resume->source,
                                          .in = vector ? vector + first : NULL,
                                          .out = vector || !to ? resume->scratch : to,
                                          .n = n});
        if (!rc && vector && to)
                memcpy(to, vector + first, (size_t)n * sizeof(float));
        return rc;
}

/* The rank's own elements of a bucket. */
static int give_own(struct resume *resume, const float *vector, uint32_t k, float *own)
{
        const struct mfl_team *team = resume->team;
        const struct team_bucket *bucket = &team->buckets.bucket[k];
        uint64_t first, n = mfl_team_own(team, k, mfl_team_owner(team), &first);
        int rc = give(resume, vector, bucket->first, bucket->n, resume->scratch);
        if (!rc)
                memcpy(own + team->own[k], resume->scratch + (first - bucket->first),
                        (size_t)n * sizeof(float));
        return rc;
}

/* Where ranks have one memory of params, the first fills it. */
static int give_vectors(struct resume *resume)
{
        const struct mfl_team_state *state = resume->state;
        struct mfl_team *team = resume->team;
        bool fills = mfl_team_fills(team);
        int rc = 0;
        for (uint32_t k = 0; !rc && k < team->buckets.n; k++) {
                const struct team_bucket *bucket = &team->buckets.bucket[k];
                rc = give(resume, state ? state->params : NULL, bucket->first, bucket->n,
                        fills ? team->layout.params + bucket->first : NULL);
                if (!rc && team->momentum)
                        rc = give_own(resume, state ? state->momentum : NULL, k, team->momentum);
                if (!rc && team->second)
                        rc = give_own(resume, state ? state->second : NULL, k, team->second);
        }
        return rc;
}

enum { LOSS, CORRECT, SCORED, NOTE, NUMBERS };

static int give_numbers(struct resume *resume, int64_t *ret_note)
{
        const struct mfl_team_state *state = resume->state;
        struct mfl_team *team = resume->team;
        size_t n = NUMBERS + (size_t)team->layout.n_tensors;
        MFL_CLEANUP_FREE int64_t *number = mfl_calloc(n, sizeof *number);
        if (!number)
                return mfl_fail_memory(resume->err, n * sizeof *number, "a training's state");
        if (state) {
                number[LOSS] = state->score.loss_sum;
                number[CORRECT] = (int64_t)state->score.n_correct;
                number[SCORED] = (int64_t)state->score.n_scored;
                number[NOTE] = state->note;
        }
        for (int t = 0; state && t < team->layout.n_tensors; t++)
                number[NUMBERS + t] = state->exponent[t];
        int rc = exchange(resume, (struct mfl_mesh_op){.kind = MFL_MESH_BROADCAST,
                                          .type = MFL_MESH_I64,
                                          .peer = resume->source,
                                          .in = number,
                                          .out = number,
                                          .n = n});
        if (rc)
                return rc;
        team->score = (struct mfl_score){.loss_sum = number[LOSS],
                .n_correct = (uint64_t)number[CORRECT],
                .n_scored = (uint64_t)number[SCORED]};
        for (int t = 0; t < team->layout.n_tensors; t++)
                team->exponent[t] = (int)number[NUMBERS + t];
        *ret_note = number[NOTE];
        return 0;
}

int mfl_team_resume(struct mfl_team *team, const struct mfl_team_state *state, const atomic_bool *cancel,
        uint32_t *ret_step, struct mfl_score *ret_score, int64_t *ret_note, struct mfl_error *err)
{
        struct resume resume = {.team = team, .state = state, .cancel = cancel, .err = err};
        uint64_t bytes = mfl_team_largest_bucket(&team->buckets) * sizeof(float);
        uint32_t step;
        mfl_assert(!state || (state->n == team->layout.n && state->n_tensors == team->layout.n_tensors));
        /* Before anybody writes params: what the optimizer needs of those at the start is taken now. */
        if (team->fresh)
                mfl_team_start(team);
        int rc = find_source(&resume, &step);
        if (rc)
                return rc;
        *ret_step = step;
        if (!step)
                return 0;
        resume.scratch = mfl_alloc_aligned(bytes);
        rc = resume.scratch ? give_numbers(&resume, ret_note)
                            : mfl_fail_memory(err, bytes, "a training's state");
        if (!rc)
                rc = give_vectors(&resume);
        if (!rc && (team->options.shared || team->options.together))
                rc = exchange(&resume, (struct mfl_mesh_op){.kind = MFL_MESH_BARRIER});
        free(resume.scratch);
        team->torn = rc != 0;
        team->fresh = team->fresh && rc;
        team->done = rc ? 0 : step;
        *ret_score = team->score;
        return rc;
}
