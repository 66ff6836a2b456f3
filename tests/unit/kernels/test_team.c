/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets of a team's gradient, and the thread that exchanges them: what goes when, and how it ends when a rank fails. */
#include "tests/lib/test.h"
#include "kernels/team/team_internal.h"

#include <unistd.h>

#define RANKS 3u
#define BLOCK MFL_GRAD_BLOCK
#define TENSORS 4

/* Not on blocks' edges; the second lies in one block with the first's end, and the last ends the gradient. */
static const struct mfl_grad_tensor tensors[TENSORS] = {{0, 0, 2 * BLOCK + 100}, {1, 2 * BLOCK + 112, 16},
        {2, 2 * BLOCK + 128, 5 * BLOCK}, {3, 7 * BLOCK + 128, 3 * BLOCK + 7}};
static const struct mfl_grad_layout layout = {
        .n = 10 * BLOCK + 135, .n_tensors = TENSORS, .tensors = tensors};

static const struct mfl_team_options small = {.grain = 4, .step_rows = 6, .bucket_bytes = 1};

static void buckets_cover_the_gradient(void **state)
{
        static const uint64_t bytes[] = {1, 64 << 10, 400000, 0};
        static const uint32_t count[] = {3, 3, 2, 1};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bytes); i++)
                for (uint32_t ranks = 1; ranks <= 8; ranks++) {
                        struct team_buckets buckets;
                        const struct mfl_team_options how = {
                                .grain = 4, .step_rows = 6, .bucket_bytes = bytes[i]};
                        uint64_t end = layout.n;
                        assert_int_equal(mfl_team_buckets_new(&layout, &how, ranks, &buckets, NULL), 0);
                        assert_int_equal(buckets.n, count[i]);
                        for (uint32_t k = 0; k < buckets.n; k++) {
                                const struct team_bucket *b = &buckets.bucket[k];
                                assert_int_equal(b->first + b->n, end);
                                assert_int_equal(b->first % BLOCK, 0);
                                assert_int_equal(b->edge[0], 0);
                                assert_int_equal(b->edge[ranks], b->n);
                                for (uint32_t r = 1; r < ranks; r++)
                                        assert_true(b->edge[r] >= b->edge[r - 1] &&
                                                    (b->edge[r] % BLOCK == 0 || b->edge[r] == b->n));
                                end = b->first;
                        }
                        assert_int_equal(end, 0);
                        mfl_team_buckets_deinit(&buckets);
                }
        struct team_buckets buckets;
        assert_int_equal(mfl_team_buckets_new(&layout, &small, 2, &buckets, NULL), 0);
        /* The block in which tensor 3 begins goes with those before it. */
        assert_int_equal(buckets.bucket[0].first, 8 * BLOCK);
        assert_int_equal(buckets.bucket[0].n_tensors, 1);
        assert_int_equal(buckets.bucket[1].first, 3 * BLOCK);
        assert_int_equal(buckets.bucket[1].n_tensors, 2);
        assert_int_equal(buckets.bucket[2].n_tensors, 3);
        mfl_team_buckets_deinit(&buckets);
}

/* Its whole blocks are a bucket that has no traffic, whatever the number of ranks; the rest goes with its neighbours. */
static void deferred_tensors_have_buckets(void **state)
{
        struct mfl_grad_tensor own[TENSORS];
        const struct mfl_grad_layout other = {.n = layout.n, .n_tensors = TENSORS, .tensors = own};
        struct mfl_team_options how = small;
        struct team_buckets buckets;
        memcpy(own, tensors, sizeof own);
        own[0].operands = own[2].operands = 10;
        how.products = MFL_TEAM_PRODUCTS_ALL;
        for (uint32_t ranks = 1; ranks <= 8; ranks++) {
                static const uint64_t first[] = {8 * BLOCK, 7 * BLOCK, 3 * BLOCK, 2 * BLOCK, 0};
                static const int deferred[] = {-1, -1, 2, -1, 0}, n_tensors[] = {1, 2, 1, 3, 1};
                uint64_t end = layout.n;
                assert_int_equal(mfl_team_buckets_new(&other, &how, ranks, &buckets, NULL), 0);
                assert_int_equal(buckets.n, MFL_ARRAY_SIZE(first));
                for (uint32_t k = 0; k < buckets.n; end = first[k++]) {
                        assert_int_equal(buckets.bucket[k].first, first[k]);
                        assert_int_equal(buckets.bucket[k].n, end - first[k]);
                        assert_int_equal(buckets.bucket[k].deferred, deferred[k]);
                        assert_int_equal(buckets.bucket[k].n_tensors, n_tensors[k]);
                        assert_int_equal(buckets.bucket[k].edge[ranks], buckets.bucket[k].n);
                }
                mfl_team_buckets_deinit(&buckets);
        }
}

/* By itself only where operands are much less than the gradient, and that is large; never where sums are floats. */
static void large_products_are_deferred(void **state)
{
        struct mfl_team_options how = {.grain = 16, .step_rows = 32};
        const uint64_t n = (uint64_t)3136 * 512, operands = 3136 + 512;
        assert_true(mfl_team_defers(&how, 2, n, operands));
        assert_false(mfl_team_defers(&how, 2, n, 0));
        assert_false(mfl_team_defers(&how, 2, 0, operands));
        assert_false(mfl_team_defers(&how, 16, n, operands)); /* 256 rows */
        assert_false(mfl_team_defers(&how, 2, 1000, 1));
        how.floats = true;
        assert_false(mfl_team_defers(&how, 2, n, operands));
        how = (struct mfl_team_options){.grain = 16, .step_rows = 32, .resident = true};
        assert_false(mfl_team_defers(&how, 2, n, operands));
}

struct team_of_traffic {
        struct mfl_mesh *mesh[RANKS];
        struct team_buckets buckets;
        struct team_traffic *traffic[RANKS];
        int64_t *sum[RANKS];
};

static const struct team_traffic_session session = {.step = 5, .sequence = 2, .deadline_ms = 60000};

static void set_up(struct team_of_traffic *t, bool behind)
{
        assert_int_equal(mfl_mesh_threads_new(RANKS, t->mesh, NULL), 0);
        assert_int_equal(mfl_team_buckets_new(&layout, &small, RANKS, &t->buckets, NULL), 0);
        for (uint32_t r = 0; r < RANKS; r++) {
                t->sum[r] = mfl_alloc_aligned(layout.n * sizeof(int64_t));
                assert_non_null(t->sum[r]);
                for (uint64_t i = 0; i < layout.n; i++)
                        t->sum[r][i] = (int64_t)(i * 31 + r * 1000003);
                const struct team_traffic_options options = {.mesh = t->mesh[r],
                        .buckets = &t->buckets,
                        .layout = &layout,
                        .type = MFL_MESH_I64,
                        .sum = t->sum[r],
                        .behind = behind};
                assert_int_equal(mfl_team_traffic_new(&options, &t->traffic[r], NULL), 0);
                mfl_team_traffic_begin(t->traffic[r], &session);
        }
}

static void tear_down(struct team_of_traffic *t)
{
        for (uint32_t r = 0; r < RANKS; r++) {
                mfl_team_traffic_free(t->traffic[r]);
                mfl_mesh_close(t->mesh[r]);
                free(t->sum[r]);
        }
        mfl_team_buckets_deinit(&t->buckets);
}

static void ready_buckets_are_summed(void **state)
{
        struct team_of_traffic t;
        uint64_t busy = 0;
        set_up(&t, true);
        for (uint32_t r = 0; r < RANKS; r++) {
                /* Any order; the last rank leaves some to `wait`. */
                mfl_team_traffic_ready(t.traffic[r], r ? 3 : 1);
                mfl_team_traffic_ready(t.traffic[r], r ? 1 : 3);
                mfl_team_traffic_ready(t.traffic[r], 0);
                if (r < RANKS - 1)
                        mfl_team_traffic_ready(t.traffic[r], 2);
        }
        /* Others can't wait alone: all buckets of the last rank go as soon as it waits, and those of the rest are ready. */
        for (uint32_t r = RANKS; r-- > 0;)
                assert_int_equal(mfl_team_traffic_wait(t.traffic[r], NULL, &busy, NULL), 0);
        for (uint32_t k = 0; k < t.buckets.n; k++)
                for (uint32_t r = 0; r < RANKS; r++) {
                        const struct team_bucket *b = &t.buckets.bucket[k];
                        for (uint64_t i = b->first + b->edge[r]; i < b->first + b->edge[r + 1]; i++)
                                assert_int_equal(t.sum[r][i],
                                        (int64_t)(RANKS * i * 31 + (0 + 1 + 2) * (uint64_t)1000003));
                }
        assert_true(busy > 0);
        tear_down(&t);
}

static void nothing_goes_before_it_is_ready(void **state)
{
        struct team_of_traffic t;
        struct mfl_error err;
        uint64_t busy = 0;
        set_up(&t, true);
        for (uint32_t r = 0; r < RANKS; r++)
                for (int tensor = 0; tensor < 3; tensor++) /* bucket 0 lacks tensor 3 */
                        mfl_team_traffic_ready(t.traffic[r], tensor);
        usleep(30000);
        for (uint32_t r = 0; r < RANKS; r++)
                for (uint64_t i = 0; i < layout.n; i++)
                        assert_int_equal(t.sum[r][i], (int64_t)(i * 31 + r * 1000003));
        /* Rank 1 fails: its own traffic ends, and that of the others, which waits for it in the mesh, breaks. */
        assert_int_equal(mfl_team_traffic_wait(t.traffic[1], "rank 1 has failed", &busy, &err), 0);
        for (uint32_t r = 0; r < RANKS; r += 2) {
                assert_int_equal(mfl_team_traffic_wait(t.traffic[r], NULL, &busy, &err), MFL_MESH_BROKEN);
                assert_non_null(strstr(err.text, "rank 1 has failed"));
        }
        tear_down(&t);
}

/* ---- windows: ranks hold shards, and buckets only while they are filled and go ---- */

#define TURNS 3

struct sharer {
        struct mfl_mesh *mesh;
        const struct team_buckets *buckets;
        bool behind, keeps, fails; /* keeps: a grain has memory of its own */
        int64_t shard[10 * BLOCK + 135];
        float grads[10 * BLOCK + 135];
        uint64_t own[TENSORS], n_own, bytes;
        struct mfl_error err;
        int rc;
};

/* A whole number that a float holds. */
static int64_t element(uint32_t rank, uint32_t turn, uint64_t at)
{
        return (int64_t)(at * 31 + rank * 1000003 + turn * 77);
}

/* As a backend: tensor by tensor, wherever its elements belong. */
static void give_tensor(struct team_traffic *traffic, int t, uint32_t rank, uint32_t turn)
{
        const struct mfl_grad_tensor *tensor = &tensors[t];
        for (uint64_t at = tensor->at, end = at + tensor->count, n; at < end; at += n) {
                n = end - at;
                float *to = mfl_team_traffic_place(traffic, at, &n);
                if (!to)
                        return;
                for (uint64_t i = 0; i < n; i++)
                        to[i] = (float)element(rank, turn, at + i);
        }
        mfl_team_traffic_ready(traffic, t);
}

static void add_whole(const struct mfl_net *net, const struct mfl_grad_rounding *how, uint64_t first,
        uint64_t n, const float *grads, bool set, int64_t *sum)
{
        for (uint64_t i = 0; i < n; i++)
                sum[i] = (set ? 0 : sum[i]) + (int64_t)grads[i];
}

static const struct mfl_grad_ops whole_ops = {.round = add_whole};

static void *share(void *arg)
{
        struct sharer *own = arg;
        struct team_traffic *traffic;
        uint32_t rank = own->mesh->rank;
        uint64_t busy = 0;
        for (uint32_t k = 0; k < own->buckets->n; k++) {
                own->own[k] = own->n_own;
                own->n_own += own->buckets->bucket[k].edge[rank + 1] - own->buckets->bucket[k].edge[rank];
        }
        const struct team_traffic_options options = {.mesh = own->mesh,
                .buckets = own->buckets,
                .layout = &layout,
                .type = MFL_MESH_F32,
                .sum = own->shard,
                .own = own->own,
                .grads = own->keeps ? own->grads : NULL,
                .ops = &whole_ops,
                .behind = own->behind};
        own->rc = mfl_team_traffic_new(&options, &traffic, &own->err);
        for (uint32_t turn = 0; !own->rc && turn < TURNS; turn++) {
                struct team_traffic_session next = session;
                next.sequence += turn * own->buckets->n;
                next.adds = turn > 0;
                mfl_team_traffic_begin(traffic, &next);
                /* The last rank has no grain in the last turn; it does not see the second tensor at all. */
                bool has_grain = rank < RANKS - 1 || turn < TURNS - 1;
                if (!has_grain)
                        memset(own->grads, 0, sizeof own->grads);
                for (int t = TENSORS; t-- > 0;)
                        if (t != 1 && has_grain)
                                give_tensor(traffic, t, rank, turn);
                own->rc = mfl_team_traffic_wait(
                        traffic, own->fails ? "rank 1 has failed" : NULL, &busy, &own->err);
                if (own->fails)
                        own->rc = MFL_MESH_BROKEN;
        }
        own->bytes = mfl_team_traffic_bytes(traffic);
        mfl_team_traffic_free(traffic);
        return NULL;
}

static void share_all(
        struct sharer *v, const struct team_buckets *buckets, bool behind, bool keeps, bool fails)
{
        struct mfl_mesh *mesh[RANKS];
        pthread_t threads[RANKS];
        assert_int_equal(mfl_mesh_threads_new(RANKS, mesh, NULL), 0);
        for (uint32_t r = 0; r < RANKS; r++) {
                v[r] = (struct sharer){.mesh = mesh[r],
                        .buckets = buckets,
                        .behind = behind,
                        .keeps = keeps,
                        .fails = fails && r == 1};
                assert_int_equal(pthread_create(&threads[r], NULL, share, &v[r]), 0);
        }
        for (uint32_t r = 0; r < RANKS; r++)
                pthread_join(threads[r], NULL);
        for (uint32_t r = 0; r < RANKS; r++)
                mfl_mesh_close(mesh[r]);
}

static void shards_add_turn_after_turn(void **state)
{
        struct sharer *v = mfl_calloc(RANKS, sizeof *v);
        struct team_buckets buckets;
        assert_non_null(v);
        assert_int_equal(mfl_team_buckets_new(&layout, &small, RANKS, &buckets, NULL), 0);
        for (int way = 0; way < 4; way++) {
                bool behind = way & 1, keeps = way & 2;
                share_all(v, &buckets, behind, keeps, false);
                for (uint32_t r = 0; r < RANKS; r++) {
                        assert_int_equal(v[r].rc, 0);
                        /* Two of three buckets; one more may go behind. */
                        assert_true(behind || v[r].bytes <= 8 * BLOCK * sizeof(float));
                        assert_true(!keeps || !v[r].bytes);
                        for (uint32_t k = 0; k < buckets.n; k++)
                                for (uint64_t i = buckets.bucket[k].edge[r];
                                        i < buckets.bucket[k].edge[r + 1]; i++) {
                                        uint64_t at = buckets.bucket[k].first + i;
                                        int64_t want = 0;
                                        bool gap = at >= 2 * BLOCK + 100 && at < 2 * BLOCK + 128;
                                        for (uint32_t turn = 0; !gap && turn < TURNS; turn++)
                                                for (uint32_t from = 0; from < RANKS - (turn == TURNS - 1);
                                                        from++)
                                                        want += element(from, turn, at);
                                        assert_int_equal(
                                                v[r].shard[v[r].own[k] + i - buckets.bucket[k].edge[r]],
                                                want);
                                }
                }
        }
        mfl_team_buckets_deinit(&buckets);
        free(v);
}

static void a_failed_rank_ends_all_windows(void **state)
{
        struct sharer *v = mfl_calloc(RANKS, sizeof *v);
        struct team_buckets buckets;
        assert_non_null(v);
        assert_int_equal(mfl_team_buckets_new(&layout, &small, RANKS, &buckets, NULL), 0);
        for (int way = 0; way < 4; way++) {
                share_all(v, &buckets, way & 1, way & 2, true);
                for (uint32_t r = 0; r < RANKS; r++)
                        assert_int_equal(v[r].rc, MFL_MESH_BROKEN);
        }
        mfl_team_buckets_deinit(&buckets);
        free(v);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(buckets_cover_the_gradient),
                cmocka_unit_test(deferred_tensors_have_buckets),
                cmocka_unit_test(large_products_are_deferred),
                cmocka_unit_test(ready_buckets_are_summed),
                cmocka_unit_test(nothing_goes_before_it_is_ready),
                cmocka_unit_test(shards_add_turn_after_turn),
                cmocka_unit_test(a_failed_rank_ends_all_windows),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
