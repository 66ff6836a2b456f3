/* SPDX-License-Identifier: Apache-2.0 */
/* Shared set-up of the tests of the server's parts. */
#include "tests/unit/server/fixture.h"

#include <ftw.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/rng.h"

void fixture_init(struct fixture *f, enum mfl_strategy_kind strategy, int side)
{
        *f = (struct fixture){{{0}}};
        mfl_strcpy(f->spec.name, sizeof f->spec.name, "test");
        f->spec.seed = 7;
        f->spec.data.partition = MFL_PARTITION_IID;
        f->spec.data.clients = 8;
        f->spec.aggregation.strategy = strategy;
        f->spec.aggregation.server_lr = 1.0f;
        f->spec.aggregation.momentum = 0.9f;
        f->spec.aggregation.beta1 = 0.9f;
        f->spec.aggregation.beta2 = 0.99f;
        f->spec.aggregation.tau = 1e-3f;
        f->spec.aggregation.delta_max = 16.0f;
        struct mfl_shape input = {3, {1, side, side}};
        struct mfl_error err = {{0}};
        assert_int_equal(mfl_graph_preset("logistic", &input, 10, &f->graph, &err), 0);
        f->n = f->graph->n;
        assert_int_equal(mfl_fixed_choose(16.0f, 1024, &f->fixed, &err), 0);
        const char *tmp = getenv("TMPDIR");
        snprintf(f->dir, sizeof f->dir, "%s/mfl-test-XXXXXX", tmp && strlen(tmp) < 40 ? tmp : "/tmp");
        assert_non_null(mkdtemp(f->dir));
}

void fixture_freeze(struct fixture *f)
{
        const struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .input = -1, .out = f->graph->input},
                {.op = MFL_OP_DENSE, .input = 0, .out_channels = 12, .bias = true, .frozen = true},
                {.op = MFL_OP_DENSE, .input = 1, .out_channels = 10, .bias = true}};
        mfl_graph_free(f->graph);
        assert_int_equal(mfl_graph_build("frozen", layers, 3, 10, &f->graph, NULL), 0);
        f->n = f->graph->n_moving;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        return remove(path);
}

void fixture_remove(const char *dir)
{
        nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void fixture_deinit(struct fixture *f)
{
        mfl_graph_free(f->graph);
        fixture_remove(f->dir);
}

struct mfl_runtime *fixture_open(
        const struct fixture *f, uint32_t n_slots, const struct mfl_store_resume *resume)
{
        struct mfl_runtime_options options = {.job = "j-000001",
                .spec = &f->spec,
                .graph = f->graph,
                .fixed = f->fixed,
                .n_slots = n_slots,
                .cohort = 8,
                .n_threads = f->n_threads,
                .state_dir = f->dir};
        if (resume && resume->checkpoint_path[0])
                options.checkpoint_path = resume->checkpoint_path;
        if (resume && resume->frozen_path[0])
                options.frozen_path = resume->frozen_path;
        struct mfl_runtime *rt = NULL;
        struct mfl_error err = {{0}};
        if (mfl_runtime_open(&options, &rt, &err))
                fail_msg("%s", err.text);
        return rt;
}

float fixture_delta(uint64_t k, uint64_t r, uint64_t i)
{
        struct mfl_philox block = {{(uint32_t)i, (uint32_t)k, (uint32_t)r, 0}};
        return (float)(mfl_philox4x32(block, 1, 2).v[0] >> 8) * 0x1p-24f - 0.5f;
}

bool fixture_try_slot(
        struct mfl_runtime *rt, uint32_t slot, enum mfl_encoding encoding, uint64_t weight, uint64_t client)
{
        static uint64_t grants;
        struct mfl_upload upload = {.grant = ++grants,
                .conn = 1,
                .task = 7,
                .weight = weight,
                .item = client,
                .encoding = encoding};
        return mfl_slot_open(rt, slot, &upload);
}

void fixture_slot(
        struct mfl_runtime *rt, uint32_t slot, enum mfl_encoding encoding, uint64_t weight, uint64_t client)
{
        assert_true(fixture_try_slot(rt, slot, encoding, weight, client));
}

void fixture_put(struct mfl_runtime *rt, uint32_t slot, const void *data, uint64_t offset, uint64_t bytes)
{
        struct mfl_slot_write write;
        struct mfl_error err = {{0}};
        if (mfl_slot_write_begin(rt, slot, offset, bytes, &write, &err))
                fail_msg("%s", err.text);
        memcpy(write.dst, (const char *)data + offset, bytes);
        mfl_slot_write_end(rt, &write, true);
}

void fixture_add_f32(
        const struct fixture *f, struct mfl_runtime *rt, uint64_t client, uint64_t round, uint64_t weight)
{
        float *delta = malloc(f->n * sizeof *delta);
        struct mfl_error err = {{0}};
        assert_non_null(delta);
        for (uint64_t i = 0; i < f->n; i++)
                delta[i] = fixture_delta(client, round, i);
        fixture_slot(rt, 0, MFL_ENCODING_F32, weight, client);
        fixture_put(rt, 0, delta, 0, f->n * sizeof *delta);
        assert_int_equal(mfl_slot_add(rt, 0, &err), 0);
        mfl_slot_free(rt, 0);
        free(delta);
}
