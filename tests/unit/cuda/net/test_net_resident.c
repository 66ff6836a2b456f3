/* SPDX-License-Identifier: Apache-2.0 */
/* Teams whose vectors lie on the device: the bits are those of a team whose vectors lie in the host's memory, by any number of
 * devices, in both stages; a training goes on from one to the other; and what happens when a device has no room, or is lost. */
#include "tests/unit/cuda/net/net_test.h"

#include <pthread.h>

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/device.h"
#include "kernels/cuda/nccl/comm.h"
#include "kernels/grad.h"
#include "kernels/team/team.h"
#include "tests/emu/emu.h"

#define STEPS 5u
#define GRAIN 2u
#define ROWS (2 * NET_BATCH)
#define RANKS_MAX 3u

struct bed {
        struct net_case c;
        struct mfl_optimizer opt;
        enum mfl_precision precision;
        struct mfl_device devices[RANKS_MAX];
        struct mfl_device_data *data[RANKS_MAX];
        uint32_t index[STEPS * ROWS], count[STEPS];
        bool resident;
        uint32_t zero, n;
        uint8_t id[MFL_COMM_ID_BYTES];
        struct mfl_team_state *state; /* from which all go on; NULL: from the beginning */
        uint32_t until;               /* steps */
        uint32_t keep;                /* the state after so many steps; 0: none */
        uint32_t lost;                /* 1 + the rank that takes no part in step 2 */
        bool breaks;                  /* NCCL fails at rank 1, in step 2 */
        uint32_t deadline_ms;
};

struct rank {
        struct bed *bed;
        struct mfl_mesh *mesh, *bulk;
        struct mfl_net *net;
        struct mfl_team *team;
        struct mfl_score score;
        int rc;
        bool late, bulk_late, unreached; /* of the mesh of the host, of the one between devices */
        struct mfl_error err;
};

static const struct mfl_grad_device_ops *device_ops(void)
{
        return mfl_backend_module.grad->device;
}

static void bed_init(struct bed *bed, enum net_model model, enum mfl_precision precision)
{
        *bed = (struct bed){.precision = precision, .until = STEPS, .deadline_ms = 60000};
        mfl_emu_set_devices(RANKS_MAX);
        mfl_cuda_nccl_tune(0, 5000, 20); /* ranks are closed one after another */
        net_case_init(&bed->c, model);
        for (uint32_t t = 0; t < STEPS; t++)
                bed->count[t] = t == 1 ? GRAIN : t == 2 ? ROWS - 3 : ROWS; /* also fewer grains than ranks */
        for (uint32_t i = 0; i < STEPS * ROWS; i++)
                bed->index[i] = i * 17 % NET_SAMPLES;
        for (uint32_t r = 0; r < RANKS_MAX; r++) {
                memcpy(&bed->devices[r], bed->c.device, sizeof bed->devices[r]);
                bed->devices[r].ordinal = (int)r;
                assert_int_equal(mfl_backend_module.data_new(&bed->devices[r], &bed->c.set, &bed->c.set.train,
                                         true, &bed->data[r], NULL),
                        0);
        }
}

static void bed_deinit(struct bed *bed)
{
        mfl_team_state_free(bed->state);
        for (uint32_t r = 0; r < RANKS_MAX; r++)
                mfl_backend_module.data_free(bed->data[r]);
        net_case_deinit(&bed->c);
        assert_int_equal(mfl_emu_nccl_open(), 0);
}

static int train(struct rank *rank)
{
        struct bed *bed = rank->bed;
        uint32_t done = 0;
        int64_t note;
        int rc = 0;
        if (bed->state && !bed->keep)
                rc = mfl_team_resume(rank->team, rank->mesh->rank ? NULL : bed->state, NULL, &done,
                        &rank->score, &note, &rank->err);
        for (; !rc && done < bed->until; done++) {
                struct mfl_group_steps steps = {.index = bed->index + (size_t)done * ROWS,
                        .count = bed->count + done,
                        .dropout = mfl_rng_derive(5, MFL_RNG_DROPOUT, 1, 3),
                        .augment = mfl_rng_derive(5, MFL_RNG_AUGMENT, 1, 3),
                        .step_first = done,
                        .score = rank->score};
                if (bed->lost == rank->mesh->rank + 1 && done == 2)
                        return 1;
                if (bed->breaks && done == 2 && rank->mesh->rank == 1)
                        mfl_emu_nccl_async(1, 6, 0);
                rc = mfl_team_step(rank->team, &bed->c.set, &bed->c.set.train, bed->data[rank->mesh->rank],
                        &steps, 1, &bed->opt, NULL, &rank->err);
                rank->score = steps.score;
                if (!rc && done + 1 == bed->keep && !rank->mesh->rank)
                        rc = mfl_team_state_new(rank->team, 0, &bed->state, &rank->err);
        }
        return rc;
}

static struct mfl_team_options options_of(const struct bed *bed, const struct rank *rank)
{
        return (struct mfl_team_options){.grain = GRAIN,
                .step_rows = ROWS,
                .zero = bed->zero,
                .resident = bed->resident,
                .bulk = rank->bulk,
                .moments = mfl_optimizer_moments(&bed->opt),
                .start = bed->opt.prox_mu != 0,
                .bucket_bytes = 1, /* a bucket for each tensor */
                .deadline_ms = bed->deadline_ms};
}

static int enter(struct rank *rank)
{
        struct bed *bed = rank->bed;
        const struct mfl_loss loss = {0};
        int rc = bed->resident ? device_ops()->reside(rank->net, true, &rank->err) : 0;
        if (!rc && bed->resident && bed->n > 1)
                rc = mfl_backend_module.comm->mesh(&bed->devices[rank->mesh->rank], bed->id, rank->mesh->rank,
                        bed->n, 60000, NULL, &rank->bulk, &rank->err);
        const struct mfl_team_options options = options_of(bed, rank);
        return rc ? rc
                  : mfl_team_new(&mfl_backend_module, rank->net, &loss, rank->mesh, &options, &rank->team,
                            &rank->err);
}

static void *work(void *arg)
{
        struct rank *rank = arg;
        rank->rc = enter(rank);
        if (!rank->rc)
                rank->rc = train(rank);
        rank->late = rank->mesh->late;
        rank->bulk_late = rank->bulk && rank->bulk->late;
        rank->unreached = rank->bulk && rank->bulk->unreached;
        if (rank->rc)
                rank->mesh->ops->abort(rank->mesh, "a rank has failed");
        return NULL;
}

static void start(struct bed *bed, struct mfl_mesh *mesh, struct rank *rank)
{
        struct net_run run = net_run_of(bed->precision, 1, 0);
        *rank = (struct rank){.bed = bed, .mesh = mesh};
        run.options.batch = GRAIN;
        run.options.worker = true;
        run.options.moments = mfl_optimizer_moments(&bed->opt);
        assert_int_equal(mfl_backend_module.net_new(
                                 &bed->devices[mesh->rank], bed->c.graph, &run.options, &rank->net, NULL),
                0);
        assert_int_equal(
                mfl_backend_set(&mfl_backend_module, rank->net, bed->c.graph, 0, bed->c.first, NULL), 0);
}

static void end(struct rank *rank)
{
        mfl_team_free(rank->team);
        mfl_mesh_close(rank->bulk);
        assert_int_equal(device_ops()->reside(rank->net, false, NULL), 0);
        mfl_backend_module.net_free(rank->net);
        mfl_mesh_close(rank->mesh);
}

/* By n ranks; what each rank's call returned is in ranks, and params are the last rank's. */
static void train_by(struct bed *bed, uint32_t n, struct rank *ranks, float *params)
{
        struct mfl_mesh *mesh[RANKS_MAX];
        pthread_t threads[RANKS_MAX];
        uint64_t used = mfl_emu_memory_used();
        bed->n = n;
        assert_int_equal(mfl_mesh_threads_new(n, mesh, NULL), 0);
        for (uint32_t r = 0; r < n; r++)
                start(bed, mesh[r], &ranks[r]);
        assert_int_equal(mfl_backend_module.comm->id(&bed->devices[0], bed->id, NULL), 0);
        for (uint32_t r = 0; r < n; r++)
                assert_int_equal(pthread_create(&threads[r], NULL, work, &ranks[r]), 0);
        for (uint32_t r = 0; r < n; r++)
                pthread_join(threads[r], NULL);
        for (uint32_t r = 0; r < n && params; r++) {
                if (ranks[r].rc)
                        fail_msg("rank %u of %u: %s", r, n, ranks[r].err.text);
                assert_int_equal(mfl_backend_module.params_get(ranks[r].net, 0, 0, params, NULL), 0);
        }
        for (uint32_t r = 0; r < n; r++)
                end(&ranks[r]);
        assert_int_equal(mfl_emu_memory_used(), used);
}

static const struct mfl_optimizer optimizers[] = {
        {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 0.01f, .prox_mu = 0.1f, .clip_norm = 0.5f},
        {.kind = MFL_OPTIMIZER_ADAMW,
                .lr = 0.01f,
                .beta1 = 0.9f,
                .beta2 = 0.999f,
                .eps = 1e-8f,
                .weight_decay = 0.1f},
        {.kind = MFL_OPTIMIZER_ADAGRAD, .lr = 0.05f, .eps = 1e-8f, .clip_norm = 1.0f},
        {.lr = 0.1f},
};

static void compare(struct bed *bed, float *want, float *got)
{
        struct rank ranks[RANKS_MAX];
        size_t n = (size_t)bed->c.graph->n;
        bed->resident = false;
        bed->zero = 1;
        train_by(bed, 1, ranks, want);
        struct mfl_score score = ranks[0].score;
        assert_memory_not_equal(want, bed->c.first, n * sizeof *want);
        bed->resident = true;
        for (uint32_t ranks_of = 1; ranks_of <= RANKS_MAX; ranks_of++)
                for (bed->zero = ranks_of == 1; bed->zero < 2; bed->zero++) {
                        train_by(bed, ranks_of, ranks, got);
                        assert_memory_equal(got, want, n * sizeof *want);
                        for (uint32_t r = 0; r < ranks_of; r++)
                                assert_memory_equal(&ranks[r].score, &score, sizeof score);
                }
}

static void the_bits_are_those_of_the_host(void **state)
{
        static const enum mfl_precision precisions[] = {
                MFL_PRECISION_FP32, MFL_PRECISION_BF16, MFL_PRECISION_FP16};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(optimizers) + 2; i++) {
                struct bed bed;
                bool residual = i < MFL_ARRAY_SIZE(optimizers);
                bed_init(&bed, residual ? NET_RESIDUAL : NET_DENSE,
                        precisions[residual ? 0 : i - MFL_ARRAY_SIZE(optimizers) + 1]);
                bed.opt = optimizers[i % MFL_ARRAY_SIZE(optimizers)];
                size_t n = (size_t)bed.c.graph->n;
                float *want = mfl_malloc(n * sizeof *want), *got = mfl_malloc(n * sizeof *got);
                assert_true(want && got);
                compare(&bed, want, got);
                free(want);
                free(got);
                bed_deinit(&bed);
        }
}

/* From the device to the host's memory, and back. */
static void a_training_goes_on_elsewhere(void **state)
{
        for (size_t i = 0; i < 3; i++) {
                struct bed bed;
                struct rank ranks[RANKS_MAX];
                bed_init(&bed, NET_RESIDUAL, MFL_PRECISION_FP32);
                bed.opt = optimizers[i];
                size_t n = (size_t)bed.c.graph->n;
                float *want = mfl_malloc(n * sizeof *want), *got = mfl_malloc(n * sizeof *got);
                assert_true(want && got);
                train_by(&bed, 1, ranks, want);
                for (int from = 0; from < 2; from++) {
                        bed.resident = from;
                        bed.zero = 0;
                        bed.keep = bed.until = 2;
                        train_by(&bed, 2, ranks, got);
                        assert_non_null(bed.state);
                        bed.keep = 0;
                        bed.until = STEPS;
                        bed.resident = !from;
                        train_by(&bed, 3, ranks, got);
                        assert_memory_equal(got, want, n * sizeof *want);
                        mfl_team_state_free(bed.state);
                        bed.state = NULL;
                }
                free(want);
                free(got);
                bed_deinit(&bed);
        }
}

/* NCCL does not tell the others, but the host's mesh does, long before their deadline. Nothing hangs, and nothing is left. */
static void a_rank_is_lost(void **state)
{
        for (uint32_t lost = 0; lost < RANKS_MAX; lost++) {
                struct bed bed;
                struct rank ranks[RANKS_MAX];
                bed_init(&bed, NET_DENSE, MFL_PRECISION_FP32);
                bed.opt = optimizers[0];
                bed.resident = true;
                bed.lost = lost + 1;
                train_by(&bed, RANKS_MAX, ranks, NULL);
                for (uint32_t r = 0; r < RANKS_MAX; r++) {
                        assert_int_equal(ranks[r].rc, r == lost ? 1 : MFL_MESH_BROKEN);
                        assert_true(r == lost || strstr(ranks[r].err.text, "a rank has failed"));
                        assert_false(ranks[r].unreached || ranks[r].bulk_late);
                }
                bed_deinit(&bed);
        }
}

/* What NCCL finds breaks the step at all ranks, with its text; the one that still waits is not late. */
static void nccl_fails(void **state)
{
        struct bed bed;
        struct rank ranks[RANKS_MAX];
        bed_init(&bed, NET_DENSE, MFL_PRECISION_FP32);
        bed.opt = optimizers[0];
        bed.resident = true;
        bed.breaks = true;
        train_by(&bed, 2, ranks, NULL);
        mfl_emu_nccl_async(1, 0, 0);
        for (uint32_t r = 0; r < 2; r++) {
                assert_int_equal(ranks[r].rc, MFL_MESH_BROKEN);
                assert_true(ranks[r].unreached);
                assert_false(ranks[r].late || ranks[r].bulk_late);
        }
        assert_non_null(strstr(ranks[1].err.text, "an error that was asked for"));
        bed_deinit(&bed);
}

static void there_is_no_room(void **state)
{
        struct bed bed;
        struct rank rank;
        struct mfl_mesh *mesh;
        bed_init(&bed, NET_DENSE, MFL_PRECISION_FP32);
        assert_int_equal(mfl_mesh_threads_new(1, &mesh, NULL), 0);
        start(&bed, mesh, &rank);
        bed.resident = true;
        bed.n = 1;
        mfl_emu_set_memory(mfl_emu_memory_used() + 64);
        assert_int_equal(enter(&rank), MFL_INVALID);
        assert_non_null(strstr(rank.err.text, "a worker's vectors: "));
        mfl_emu_set_memory((uint64_t)1 << 32);
        assert_int_equal(enter(&rank), 0); /* the next time */
        end(&rank);
        bed_deinit(&bed);
}

/* Memory of the device is not freed then, so none is taken. */
static void a_communicator_is_stuck(void **state)
{
        struct bed bed;
        struct rank rank;
        struct mfl_mesh *mesh;
        bed_init(&bed, NET_DENSE, MFL_PRECISION_FP32);
        assert_int_equal(mfl_mesh_threads_new(1, &mesh, NULL), 0);
        start(&bed, mesh, &rank);
        bed.resident = true;
        bed.n = 1;
        uint64_t used = mfl_emu_memory_used();
        mfl_cuda_set_stuck();
        assert_int_equal(enter(&rank), MFL_INVALID);
        assert_non_null(strstr(rank.err.text, "restart the daemon"));
        assert_int_equal(mfl_emu_memory_used(), used);
        end(&rank);
        bed_deinit(&bed);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_bits_are_those_of_the_host),
                cmocka_unit_test(a_training_goes_on_elsewhere), cmocka_unit_test(a_rank_is_lost),
                cmocka_unit_test(nccl_fails), cmocka_unit_test(there_is_no_room),
                cmocka_unit_test(a_communicator_is_stuck), /* for ever: the last one */
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
