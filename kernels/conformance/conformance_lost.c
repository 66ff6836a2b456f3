/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a team of three is lost at an operation: before it takes part, or after it has told the others its part. Another
 * team, of another size and stage, goes on from what is left: whole states in stage 0, snapshots of shards in the others, there also
 * when the second team loses a rank while it takes the state over. At each operation of the training in turn, the params and the
 * score have the bits of one worker that nothing happened to. */
#include <pthread.h>

#include "kernels/conformance/conformance_lost.h"

#define TEAM 3u
#define FIRST_STEP 4u /* of the workers' steps */

/* A rank's mesh, which breaks in its own operation number `left`. */
struct frail {
        struct mfl_mesh base;
        struct mfl_mesh *inner;
        atomic_int left;
        bool half; /* the others have its part, or some of it */
};

static int fall(struct frail *frail, struct mfl_error *err)
{
        frail->inner->ops->abort(frail->inner, "a rank is lost");
        return mfl_fail(err, MFL_MESH_BROKEN, "a rank is lost");
}

static int frail_start(struct mfl_mesh *mesh, const struct mfl_mesh_op *op, struct mfl_error *err)
{
        struct frail *frail = MFL_CONTAINER_OF(mesh, struct frail, base);
        int left = atomic_fetch_sub(&frail->left, 1);
        if (left == 0 && !frail->half)
                return fall(frail, err);
        int rc = frail->inner->ops->start(frail->inner, op, err);
        if (rc || left)
                return rc;
        frail->inner->ops->progress(frail->inner, 200000, err);
        return fall(frail, err);
}

static int frail_progress(struct mfl_mesh *mesh, uint64_t wait_ns, struct mfl_error *err)
{
        struct frail *frail = MFL_CONTAINER_OF(mesh, struct frail, base);
        return frail->inner->ops->progress(frail->inner, wait_ns, err);
}

static void frail_abort(struct mfl_mesh *mesh, const char *reason)
{
        struct frail *frail = MFL_CONTAINER_OF(mesh, struct frail, base);
        frail->inner->ops->abort(frail->inner, reason);
}

static void frail_close(struct mfl_mesh *mesh)
{
        struct frail *frail = MFL_CONTAINER_OF(mesh, struct frail, base);
        mfl_mesh_close(frail->inner);
}

static const struct mfl_mesh_ops frail_ops = {.name = "frail",
        .start = frail_start,
        .progress = frail_progress,
        .abort = frail_abort,
        .close = frail_close};

struct member {
        struct worker worker;
        const struct mfl_team_state *state; /* what it brings */
        uint32_t resumed;
        bool leaves; /* when it has resumed */
};

static void *work(void *arg)
{
        struct member *m = arg;
        struct worker *w = &m->worker;
        struct team_run *run = w->run;
        int64_t note = 0;
        w->rc = mfl_team_resume(w->team, m->state, NULL, &m->resumed, &w->steps.score, &note, &w->err);
        uint32_t skip = m->resumed ? m->resumed - FIRST_STEP : 0;
        mfl_team_set_note(w->team, 7);
        mfl_assert(!m->resumed || note == 7);
        w->steps.index += (size_t)skip * ROWS;
        w->steps.count += skip;
        w->steps.step_first += skip;
        w->steps.lr_scale += w->steps.lr_scale ? skip : 0;
        if (!w->rc && !m->leaves)
                w->rc = mfl_team_step(w->team, &run->t->set, &run->t->set.train, run->data, &w->steps,
                        CONF_STEPS - skip, &run->kase->opt, NULL, &w->err);
        if (w->rc)
                w->mesh->ops->abort(w->mesh, "a rank has failed");
        return NULL;
}

static void run_members(struct member *members, uint32_t n)
{
        pthread_t threads[TEAM];
        for (uint32_t r = 0; r < n; r++)
                mfl_assert(!pthread_create(&threads[r], NULL, work, &members[r]));
        for (uint32_t r = 0; r < n; r++)
                pthread_join(threads[r], NULL);
}

/* Whether the victim has come so far; states of the others. */
static bool lose(struct team_run *run, uint32_t victim, int operation, struct mfl_team_state **states)
{
        struct mfl_mesh *mesh[TEAM];
        struct member members[TEAM] = {0};
        struct mfl_error err;
        run->n_lent = 0;
        run->how = (struct mfl_team_options){
                .bucket_bytes = 1, .overlap = operation % 2, .products = MFL_TEAM_PRODUCTS_ALL};
        mfl_conf_must(mfl_mesh_threads_new(TEAM, mesh, &err), &err);
        struct frail frail = {.base = *mesh[victim], .inner = mesh[victim], .half = operation / 2 % 2};
        atomic_store(&frail.left, operation);
        frail.base.ops = &frail_ops;
        for (uint32_t r = 0; r < TEAM; r++)
                mfl_conf_worker_init(run, r == victim ? &frail.base : mesh[r], NULL, &members[r].worker);
        run_members(members, TEAM);
        bool lost = atomic_load(&frail.left) < 0;
        for (uint32_t r = TEAM; r-- > 0;) {
                struct worker *w = &members[r].worker;
                struct mfl_score score;
                mfl_assert(w->rc == (lost ? MFL_MESH_BROKEN : 0) || (lost && r != victim && !w->rc));
                if (lost && r != victim && mfl_team_done(w->team, &score))
                        mfl_conf_must(mfl_team_state_new(w->team, 7, &states[r], &err), &err);
                mfl_conf_worker_deinit(w);
        }
        return lost;
}

/* Ends the training; *ret_from: the step with which it went on. */
static void go_on(struct team_run *run, struct mfl_team_state *const *states, int operation, uint32_t n,
        bool snapshots, uint32_t *ret_from)
{
        static const struct mfl_team_options how[] = {{.shared = true}, {.bucket_bytes = 1, .overlap = true},
                {.zero = 2}, {.shared = true, .zero = 1, .bucket_bytes = 1}, {.zero = 1, .overlap = true},
                {.zero = 3, .overlap = true}};
        struct mfl_mesh *mesh[TEAM];
        struct member members[TEAM] = {0};
        struct mfl_error err;
        run->how = how[(size_t)operation % MFL_ARRAY_SIZE(how)];
        run->how.products = MFL_TEAM_PRODUCTS_ALL;
        if (snapshots)
                run->how.bucket_bytes = 1;
        run->n_lent = run->how.zero == 3 ? MFL_MIN(n, HOSTS_MAX - 1) : 0;
        mfl_conf_must(mfl_mesh_threads_new(n, mesh, &err), &err);
        for (uint32_t r = 0; r < n; r++) {
                struct mfl_net *first = run->how.shared && r && !run->n_lent ? members[0].worker.net : NULL;
                mfl_conf_worker_init(run, mesh[r], first, &members[r].worker);
                members[r].state = states[r];
        }
        run_members(members, n);
        for (uint32_t r = 0; r < n; r++)
                mfl_conf_must(members[r].worker.rc, &members[r].worker.err);
        uint32_t from = run->how.shared ? 0 : n - 1;
        mfl_conf_must(run->b->ops->params_get(members[from].worker.net, 0, 0, run->params, &err), &err);
        run->score = members[n - 1].worker.steps.score;
        *ret_from = members[n - 1].resumed;
        for (uint32_t r = n; r-- > 0;)
                mfl_conf_worker_deinit(&members[r].worker);
}

void mfl_conf_test_lost(struct team_run *run, const float *expected, const struct mfl_score *score)
{
        size_t bytes = (size_t)run->t->graph->n * sizeof *expected;
        int operation = 0, wrong = -1;
        uint32_t farthest = 0;
        for (bool lost = true; lost && wrong < 0; operation++) {
                struct mfl_team_state *states[TEAM] = {NULL};
                uint32_t from;
                lost = lose(run, (uint32_t)operation % 7 % TEAM, operation, states);
                if (lost) {
                        go_on(run, states, operation, 1 + (uint32_t)operation % TEAM, false, &from);
                        farthest = MFL_MAX(farthest, from);
                        if (memcmp(expected, run->params, bytes) || !mfl_conf_same_score(score, &run->score))
                                wrong = operation;
                }
                for (uint32_t r = 0; r < TEAM; r++)
                        mfl_team_state_free(states[r]);
        }
        mfl_conf_report(wrong < 0 && farthest >= FIRST_STEP + CONF_STEPS - 1,
                "%s: team %s: a rank lost at each of %d operations costs no bit (wrong: %d; went on from "
                "step %u)",
                run->b->label, run->kase->name, operation - 1, wrong, farthest);
}

/* ---- shards ---- */

#define SNAPSHOT 2u /* steps */

/* What is left of a team whose rank `victim` is lost in its operation number `operation`, if it comes so far; states[r]: what rank r
 * brings, and then what it keeps. *ret_resumed: the step with which it went on. */
static bool lose_shard(struct team_run *run, uint32_t victim, int operation, bool leaves,
        struct mfl_team_state **states, uint32_t *ret_resumed)
{
        struct mfl_mesh *mesh[TEAM];
        struct member members[TEAM] = {0};
        struct mfl_error err;
        run->how = (struct mfl_team_options){.products = MFL_TEAM_PRODUCTS_ALL,
                .bucket_bytes = 1,
                .overlap = operation % 2,
                .zero = 1 + (uint32_t)operation % MFL_TEAM_ZERO_MAX,
                .snapshot = SNAPSHOT,
                .keeper = {1, 2, 0}};
        run->n_lent = run->how.zero == 3 ? 1 + (uint32_t)operation % 2 : 0;
        mfl_conf_must(mfl_mesh_threads_new(TEAM, mesh, &err), &err);
        struct frail frail = {.base = *mesh[victim], .inner = mesh[victim], .half = operation / 2 % 2};
        atomic_store(&frail.left, operation);
        frail.base.ops = &frail_ops;
        for (uint32_t r = 0; r < TEAM; r++) {
                mfl_conf_worker_init(run, r == victim ? &frail.base : mesh[r], NULL, &members[r].worker);
                members[r].state = states[r];
                members[r].leaves = leaves;
        }
        run_members(members, TEAM);
        bool lost = atomic_load(&frail.left) < 0;
        *ret_resumed = members[(victim + 1) % TEAM].resumed;
        for (uint32_t r = TEAM; r-- > 0;) {
                struct worker *w = &members[r].worker;
                if (r == victim || mfl_team_snapshots_whole(w->team)) {
                        mfl_team_state_free(states[r]);
                        states[r] = NULL;
                }
                if (r != victim)
                        mfl_conf_must(mfl_team_snapshots_take(w->team, &states[r], &err), &err);
                mfl_conf_worker_deinit(w);
        }
        return lost;
}

/* Those who are left come first. */
static void close_up(struct mfl_team_state **states, uint32_t victim)
{
        for (uint32_t r = victim; r + 1 < TEAM; r++)
                states[r] = states[r + 1];
        states[TEAM - 1] = NULL;
}

static bool has_ended_well(struct team_run *run, struct mfl_team_state **states, int operation,
        const float *expected, const struct mfl_score *score, uint32_t *ret_from)
{
        go_on(run, states, operation, 2 + (uint32_t)operation % (TEAM - 1), true, ret_from);
        for (uint32_t r = 0; r < TEAM; r++)
                mfl_team_state_free(states[r]);
        return !memcmp(expected, run->params, (size_t)run->t->graph->n * sizeof *expected) &&
               mfl_conf_same_score(score, &run->score);
}

void mfl_conf_test_lost_shard(struct team_run *run, const float *expected, const struct mfl_score *score)
{
        int operation = 0, wrong = -1;
        uint32_t farthest = 0;
        for (bool lost = true; lost && wrong < 0; operation++) {
                struct mfl_team_state *states[TEAM] = {NULL};
                uint32_t from, victim = (uint32_t)operation % 7 % TEAM;
                lost = lose_shard(run, victim, operation, false, states, &from);
                close_up(states, victim);
                if (!has_ended_well(run, states, operation, expected, score, &from))
                        wrong = operation;
                farthest = MFL_MAX(farthest, from);
        }
        mfl_conf_report(wrong < 0 && farthest == FIRST_STEP + CONF_STEPS - 1,
                "%s: team %s: a shard lost at each of %d operations costs no bit (wrong: %d; went on from "
                "step %u)",
                run->b->label, run->kase->name, operation - 1, wrong, farthest);
}

/* The second team breaks while it takes over what the first one left, and loses nobody's states. */
void mfl_conf_test_lost_again(struct team_run *run, const float *expected, const struct mfl_score *score)
{
        enum { LATE = 1 << 20 }; /* the first team's training ends, and its last rank is gone */
        int operation = 0, wrong = -1;
        for (bool lost = true; lost && wrong < 0; operation++) {
                struct mfl_team_state *states[TEAM] = {NULL};
                uint32_t from, victim = TEAM - 1;
                lose_shard(run, victim, LATE + operation, false, states, &from);
                lost = lose_shard(run, victim, operation, true, states, &from);
                if (!has_ended_well(run, states, operation, expected, score, &from) ||
                        from < FIRST_STEP + CONF_STEPS - 1)
                        wrong = operation;
        }
        mfl_conf_report(wrong < 0 && operation > 4,
                "%s: team %s: a team that breaks at each of %d operations of taking shards over costs no bit "
                "and "
                "no step (wrong: %d)",
                run->b->label, run->kase->name, operation - 1, wrong);
}
