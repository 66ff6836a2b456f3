/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions in the store: the newest word on a population and of each site; rounds page by page; the order in which updates came. */
#include "tests/unit/server/fixture.h"

#include <stdio.h>

#include "common/cohort/calendar.h"
#include "server/store/store.h"

static void ok(int r, const struct mfl_error *err)
{
        if (r)
                fail_msg("%d: %s", r, err->text);
}

static struct mfl_store *open_store(const char *dir)
{
        struct mfl_store *store = NULL;
        struct mfl_error err = {{0}};
        ok(mfl_store_open(dir, &store, &err), &err);
        return store;
}

static void put(struct mfl_store *store, const char *id, const char *daemon, const char *body)
{
        struct mfl_error err = {{0}};
        ok(mfl_store_partition_put(store, id, daemon, body, strlen(body), &err), &err);
}

/* "daemon=body daemon=body" */
static void expect(struct mfl_store *store, const char *id, const char *text)
{
        struct mfl_store_partitions list;
        struct mfl_error err = {{0}};
        char found[512] = "";
        size_t n = 0;
        ok(mfl_store_partition_list(store, id, &list, &err), &err);
        for (uint32_t i = 0; i < list.n; i++)
                n += (size_t)snprintf(found + n, sizeof found - n, "%s%s=%.*s", i ? " " : "",
                        list.v[i].daemon, (int)list.v[i].bytes, (const char *)list.v[i].body);
        assert_string_equal(found, text);
        mfl_store_partitions_deinit(&list);
}

static void words_are_kept(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        char a[MFL_JOB_ID_BYTES], b[MFL_JOB_ID_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, a, &err), &err);
        ok(mfl_store_job_add(store, "b", "t", "", "ann", NULL, b, &err), &err);
        expect(store, a, "");
        put(store, a, "", "first");
        put(store, a, "", "second");
        expect(store, a, "=second");
        for (const char *name = "edcba"; *name; name++)
                put(store, b, (char[]){*name, '\0'}, "old");
        put(store, b, "c", "");
        put(store, b, "d", "new");
        expect(store, b, "a=old b=old c= d=new e=old");
        assert_int_equal(mfl_store_partition_put(store, "j-999999", "", "x", 1, &err), MFL_NOT_FOUND);
        struct mfl_store_partitions list;
        assert_int_equal(mfl_store_partition_list(store, "j-999999", &list, &err), MFL_NOT_FOUND);
        mfl_store_close(store);
        store = open_store(f.dir);
        expect(store, a, "=second");
        /* They go with their job: rows of none would be somebody's data for ever. */
        ok(mfl_store_job_set_state(store, b, MFL_JOB_DONE, "", &err), &err);
        ok(mfl_store_job_delete(store, b, &err), &err);
        assert_int_equal(mfl_store_partition_list(store, b, &list, &err), MFL_NOT_FOUND);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void rounds_come_page_by_page(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        char id[MFL_JOB_ID_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        for (uint32_t i = 1; i <= 7; i++) {
                struct mfl_store_round round = {.record = {.round = i}, .file = {.name = "none"}};
                const struct mfl_store_nodes none = {0};
                ok(mfl_store_commit(store, id, &round, &none, 2000, &err), &err);
        }
        uint32_t seen = 0;
        for (uint32_t n = 3; n == 3;) {
                struct mfl_store_rounds page;
                ok(mfl_store_round_page(store, id, seen, 3, &page, &err), &err);
                for (uint32_t i = 0; i < page.n; i++)
                        assert_int_equal(page.v[i].record.round, ++seen);
                n = page.n;
                mfl_store_rounds_deinit(&page);
        }
        assert_int_equal(seen, 7);
        mfl_store_close(store);
        fixture_deinit(&f);
}

/* Of versions after a round; a job that replays others has those of its rounds, and stops after them. */
static void arrivals_are_kept(void **state)
{
        static const struct mfl_arrival made[] = {{.client = 7, .version = 1},
                {.client = UINT64_MAX, .version = 1}, {.client = 2, .version = 2, .base = 1}};
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_arrival *v = NULL;
        struct mfl_store_job row;
        char a[MFL_JOB_ID_BYTES], b[MFL_JOB_ID_BYTES];
        uint32_t n = 0;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        ok(mfl_store_job_add(store, "a", "name: a", "", "bob", NULL, a, &err), &err);
        ok(mfl_store_arrivals_get(store, a, 0, &v, &n, &err), &err);
        assert_true(!v && !n);
        ok(mfl_store_arrivals_put(store, a, 1, made, 1, &err), &err); /* a version that is begun again */
        ok(mfl_store_arrivals_put(store, a, 1, made, 2, &err), &err);
        ok(mfl_store_arrivals_put(store, a, 2, made + 2, 1, &err), &err);
        ok(mfl_store_job_replay(store, a, 1, "", "ann", b, &err), &err);
        for (int i = 0; i < 3; i++) {
                ok(mfl_store_arrivals_get(store, i < 2 ? a : b, i == 1, &v, &n, &err), &err);
                assert_int_equal(n, i == 0 ? 3 : i == 1 ? 1 : 2);
                for (uint32_t k = 0; k < n; k++) {
                        const struct mfl_arrival *want = &made[k + (i == 1 ? 2 : 0)];
                        assert_true(v[k].client == want->client && v[k].version == want->version &&
                                    v[k].base == want->base);
                }
                free(v);
        }
        ok(mfl_store_job_get(store, b, &row, &err), &err);
        assert_int_equal(row.stop_after, 1);
        mfl_store_job_deinit(&row);
        assert_int_equal(mfl_store_arrivals_put(store, "j-999999", 1, made, 1, &err), MFL_NOT_FOUND);
        mfl_store_close(store);
        fixture_deinit(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(words_are_kept),
                cmocka_unit_test(rounds_come_page_by_page),
                cmocka_unit_test(arrivals_are_kept),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
