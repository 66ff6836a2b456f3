/* SPDX-License-Identifier: Apache-2.0 */
/* fp16 in a team: the loss scale is the team's. A step of which one worker's grain overflows is left out by all of them, and a
 * training that goes on in another team goes on with its scale. */
#include "tests/unit/cuda/net/net_test.h"

#include <math.h>
#include <pthread.h>

#include "kernels/team/team.h"

#define STEPS 12u
#define GRAIN 2u
#define RANKS_MAX 3u

struct bed {
        struct net_case c;
        struct mfl_device_data *data;
        struct mfl_optimizer opt;
        uint32_t index[STEPS * NET_BATCH], count[STEPS];
        uint32_t zero;
        struct mfl_team_state *state; /* of the first steps; NULL: not yet */
        uint32_t kept;                /* steps after which it is taken; 0: never */
        uint32_t unmoved; /* by how many steps the params did not change, before the first that did */
};

struct rank {
        struct bed *bed;
        struct mfl_mesh *mesh;
        struct mfl_net *net;
        struct mfl_team *team;
        int rc;
        struct mfl_error err;
};

/* Gradients go through weights that only their own scale fits. */
static void bed_init(struct bed *bed)
{
        *bed = (struct bed){.opt = {.lr = 0.001f, .momentum = 0.5f}};
        net_case_init(&bed->c, NET_DENSE);
        const struct mfl_param *last = &bed->c.graph->params[bed->c.graph->layers[3].param_weight];
        for (uint64_t i = 0; i < last->count; i++)
                bed->c.first[last->offset + i] = (i + i / 8) % 2 ? 16.0f : -16.0f;
        for (uint32_t t = 0; t < STEPS; t++) {
                memcpy(bed->index + (size_t)t * NET_BATCH, bed->c.index[0], NET_BATCH * sizeof(uint32_t));
                bed->count[t] = NET_BATCH;
        }
        assert_int_equal(mfl_backend_module.data_new(
                                 bed->c.device, &bed->c.set, &bed->c.set.train, true, &bed->data, NULL),
                0);
}

static void bed_deinit(struct bed *bed)
{
        mfl_team_state_free(bed->state);
        mfl_backend_module.data_free(bed->data);
        net_case_deinit(&bed->c);
}

static void get(const struct bed *bed, struct mfl_net *net, float *params)
{
        assert_int_equal(mfl_backend_module.params_get(net, 0, 0, params, NULL), 0);
        for (uint64_t i = 0; i < bed->c.graph->n; i++)
                assert_true(isfinite(params[i]));
}

static struct mfl_group_steps steps_from(const struct bed *bed, uint32_t first)
{
        return (struct mfl_group_steps){.index = bed->index + (size_t)first * NET_BATCH,
                .count = bed->count + first,
                .step_first = first};
}

static void *work(void *arg)
{
        struct rank *rank = arg;
        struct bed *bed = rank->bed;
        struct mfl_score score;
        int64_t note;
        uint32_t done = 0;
        if (!bed->kept && bed->state)
                rank->rc = mfl_team_resume(rank->team, rank->mesh->rank ? NULL : bed->state, NULL, &done,
                        &score, &note, &rank->err);
        for (; !rank->rc && done < STEPS; done++) {
                struct mfl_group_steps steps = steps_from(bed, done);
                rank->rc = mfl_team_step(rank->team, &bed->c.set, &bed->c.set.train, bed->data, &steps, 1,
                        &bed->opt, NULL, &rank->err);
                if (!rank->rc && !rank->mesh->rank && done + 1 == bed->kept)
                        rank->rc = mfl_team_state_new(rank->team, 0, &bed->state, &rank->err);
        }
        if (rank->rc)
                rank->mesh->ops->abort(rank->mesh, "a rank has failed");
        return NULL;
}

static void start(struct bed *bed, struct mfl_mesh *mesh, struct rank *rank)
{
        struct net_run run = net_run_of(MFL_PRECISION_FP16, 1, 0);
        *rank = (struct rank){.bed = bed, .mesh = mesh};
        run.options.batch = GRAIN;
        run.options.worker = true;
        run.options.moments = MFL_MOMENTS_FIRST;
        const struct mfl_team_options options = {.grain = GRAIN,
                .step_rows = NET_BATCH,
                .zero = bed->zero,
                .moments = MFL_MOMENTS_FIRST,
                .deadline_ms = 60000};
        assert_int_equal(
                mfl_backend_module.net_new(bed->c.device, bed->c.graph, &run.options, &rank->net, NULL), 0);
        assert_int_equal(
                mfl_backend_set(&mfl_backend_module, rank->net, bed->c.graph, 0, bed->c.first, NULL), 0);
        if (mfl_team_new(&mfl_backend_module, rank->net, &run.options.loss, mesh, &options, &rank->team,
                    &rank->err))
                fail_msg("%s", rank->err.text);
}

static void train_by(struct bed *bed, uint32_t n, float *params)
{
        struct mfl_mesh *mesh[RANKS_MAX];
        struct rank ranks[RANKS_MAX];
        pthread_t threads[RANKS_MAX];
        assert_int_equal(mfl_mesh_threads_new(n, mesh, NULL), 0);
        for (uint32_t r = 0; r < n; r++)
                start(bed, mesh[r], &ranks[r]);
        for (uint32_t r = 0; r < n; r++)
                assert_int_equal(pthread_create(&threads[r], NULL, work, &ranks[r]), 0);
        for (uint32_t r = 0; r < n; r++)
                pthread_join(threads[r], NULL);
        for (uint32_t r = 0; r < n; r++)
                if (ranks[r].rc)
                        fail_msg("rank %u of %u: %s", r, n, ranks[r].err.text);
        get(bed, ranks[n - 1].net, params);
        for (uint32_t r = 0; r < n; r++) {
                mfl_team_free(ranks[r].team);
                mfl_backend_module.net_free(ranks[r].net);
                mfl_mesh_close(ranks[r].mesh);
        }
}

/* One network, whose scale is on the device. */
static void train_alone(struct bed *bed, float *params)
{
        struct net_run run = net_run_of(MFL_PRECISION_FP16, 1, 0);
        struct mfl_net *net;
        run.options.batch = GRAIN;
        run.options.accumulate = NET_BATCH / GRAIN;
        run.options.moments = MFL_MOMENTS_FIRST;
        assert_int_equal(
                mfl_backend_module.net_new(bed->c.device, bed->c.graph, &run.options, &net, NULL), 0);
        assert_int_equal(mfl_backend_set(&mfl_backend_module, net, bed->c.graph, 0, bed->c.first, NULL), 0);
        for (uint32_t t = 0; t < STEPS; t++) {
                struct mfl_group_steps steps = steps_from(bed, t);
                assert_int_equal(mfl_backend_module.step(net, bed->data, &steps, 1, &bed->opt, NULL), 0);
                get(bed, net, params);
                if (bed->unmoved == t && !memcmp(params, bed->c.first, bed->c.graph->n * sizeof *params))
                        bed->unmoved = t + 1;
        }
        mfl_backend_module.net_free(net);
}

static void an_overflow_is_left_out_by_all(void **state)
{
        struct bed bed;
        bed_init(&bed);
        size_t n = (size_t)bed.c.graph->n;
        float *one = mfl_malloc(n * sizeof *one), *got = mfl_malloc(n * sizeof *got);
        assert_true(one && got);
        train_alone(&bed, got);
        assert_in_range(bed.unmoved, 2, STEPS - 4); /* the case is one */
        train_by(&bed, 1, one);
        for (size_t i = 0; i < n; i++)
                assert_true(fabsf(one[i] - got[i]) <= 1e-5f * (1 + fabsf(got[i])));
        for (bed.zero = 0; bed.zero <= 2; bed.zero++) {
                train_by(&bed, 2, got);
                assert_memory_equal(got, one, n * sizeof *one);
        }
        free(one);
        free(got);
        bed_deinit(&bed);
}

/* With the scale that a training begins with, the step after the state would be left out. */
static void the_scale_goes_along(void **state)
{
        struct bed bed;
        bed_init(&bed);
        size_t n = (size_t)bed.c.graph->n;
        float *one = mfl_malloc(n * sizeof *one), *got = mfl_malloc(n * sizeof *got);
        assert_true(one && got);
        train_alone(&bed, got);
        bed.kept = bed.unmoved + 2;
        train_by(&bed, 2, one);
        assert_non_null(bed.state);
        bed.kept = 0;
        train_by(&bed, 3, got);
        assert_memory_equal(got, one, n * sizeof *one);
        free(one);
        free(got);
        bed_deinit(&bed);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(an_overflow_is_left_out_by_all),
                cmocka_unit_test(the_scale_goes_along),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
