/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the registry of models: versions that retention and deletion leave alone, aliases and their way back, and reports. */
#include "tests/unit/server/fixture.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#include "server/models/models.h"

static struct mfl_error err;

static void ok(int r)
{
        if (r)
                fail_msg("%d: %s", r, err.text);
}

static bool has_round(const struct mfl_store *store, const char *id, uint32_t round)
{
        char path[MFL_STORE_PATH_BYTES], name[64];
        struct stat st;
        snprintf(name, sizeof name, "round-%06u.safetensors", round);
        return !stat(mfl_store_path(store, id, name, path), &st);
}

static void commit(const struct fixture *f, struct mfl_store *store, const char *id, struct mfl_runtime *rt,
        uint32_t number)
{
        struct mfl_store_round round = {
                .record = {.round = number, .attempt = 1, .train_loss = NAN, .clients = 1, .weight = 1}};
        const struct mfl_store_nodes nodes = {0};
        struct mfl_checkpoint checkpoint;
        mfl_runtime_round_open(rt, number);
        fixture_add_f32(f, rt, 1, number, 1);
        ok(mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = 1}, round.record.digest,
                (double[MFL_METHOD_STATES_MAX]){0}, &err));
        mfl_runtime_checkpoint(rt, &checkpoint);
        ok(mfl_store_checkpoint(store, id, number, &checkpoint, &round.file, &round.frozen, &err));
        ok(mfl_store_commit(store, id, &round, &nodes, 0, &err));
}

static void versions_keep_their_rounds(void **state)
{
        struct fixture f;
        struct mfl_store *store;
        struct mfl_store_versions list;
        struct mfl_store_job row;
        char id[MFL_JOB_ID_BYTES];
        uint32_t version = 0;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        ok(mfl_store_open(f.dir, &store, &err));
        struct mfl_runtime *rt = fixture_open(&f, 1, NULL);
        ok(mfl_store_job_add(store, "a", "text", "", "", NULL, id, &err));
        commit(&f, store, id, rt, 1);
        ok(mfl_store_version_add(store, "m", id, 1, "alice", &version, &err));
        assert_int_equal(version, 1);
        for (uint32_t r = 2; r <= 4; r++)
                commit(&f, store, id, rt, r);
        assert_true(has_round(store, id, 1) && !has_round(store, id, 2) && !has_round(store, id, 3) &&
                    has_round(store, id, 4));
        assert_int_equal(mfl_store_version_add(store, "m", id, 2, "alice", &version, &err), MFL_BUSY);
        assert_int_equal(mfl_store_version_add(store, "m", id, 9, "alice", &version, &err), MFL_NOT_FOUND);
        assert_int_equal(mfl_store_version_add(store, "m", id, 1, "bob", &version, &err), MFL_EXISTS);
        assert_int_equal(version, 1);
        ok(mfl_store_version_add(store, "m", id, MFL_STORE_NEWEST, "bob", &version, &err));
        assert_int_equal(version, 2);
        assert_int_equal(mfl_store_job_delete_unread(store, id, &err), MFL_BUSY);
        assert_non_null(strstr(err.text, "registered model m@1"));
        ok(mfl_store_job_get(store, id, &row, &err)); /* and it is as it was */
        assert_int_equal(row.state, MFL_JOB_WAITING);
        mfl_store_job_deinit(&row);
        ok(mfl_store_job_set_state(store, id, MFL_JOB_DONE, "", &err));
        assert_int_equal(mfl_store_job_delete(store, id, &err), MFL_BUSY);
        mfl_store_close(store); /* and a start changes nothing */
        ok(mfl_store_open(f.dir, &store, &err));
        ok(mfl_store_version_list(store, "", &list, &err));
        assert_true(list.n == 2 && list.v[1].round == 4 && !strcmp(list.v[1].who, "bob"));
        mfl_store_versions_deinit(&list);
        ok(mfl_store_version_remove(store, "m", 2, &err));
        ok(mfl_store_version_add(store, "m", id, 4, "bob", &version, &err));
        assert_int_equal(version, 3); /* numbers are not used twice */
        ok(mfl_store_version_remove(store, "m", 3, &err));
        ok(mfl_store_version_remove(store, "m", 1, &err));
        ok(mfl_store_job_delete(store, id, &err));
        mfl_runtime_close(rt);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void aliases_go_back(void **state)
{
        struct fixture f;
        struct mfl_store *store;
        struct mfl_store_version found;
        struct mfl_store_aliases aliases;
        char id[MFL_JOB_ID_BYTES];
        uint32_t version = 0;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        ok(mfl_store_open(f.dir, &store, &err));
        struct mfl_runtime *rt = fixture_open(&f, 1, NULL);
        ok(mfl_store_job_add(store, "a", "text", "", "", NULL, id, &err));
        for (uint32_t r = 1; r <= 3; r++) {
                commit(&f, store, id, rt, r);
                ok(mfl_store_version_add(store, "m", id, r, "alice", &version, &err));
        }
        assert_int_equal(mfl_store_alias_set(store, "m", "champion", 4, "alice", &err), MFL_NOT_FOUND);
        ok(mfl_store_alias_set(store, "m", "champion", 1, "alice", &err));
        ok(mfl_store_alias_set(store, "m", "champion", 3, "alice", &err));
        ok(mfl_store_alias_set(store, "m", "champion", 3, "alice", &err)); /* once */
        ok(mfl_store_version_find(store, "m@champion", &found, &err));
        assert_int_equal(found.round, 3);
        ok(mfl_store_version_find(store, "m@2", &found, &err));
        assert_int_equal(found.round, 2);
        ok(mfl_store_version_find(store, "m", &found, &err));
        assert_int_equal(found.version, 3);
        assert_int_equal(mfl_store_version_find(store, "m@other", &found, &err), MFL_NOT_FOUND);
        assert_int_equal(mfl_store_version_remove(store, "m", 3, &err), MFL_BUSY);
        ok(mfl_store_alias_back(store, "m", "champion", &version, &err));
        assert_int_equal(version, 1);
        assert_int_equal(mfl_store_alias_back(store, "m", "champion", &version, &err), MFL_NOT_FOUND);
        ok(mfl_store_alias_list(store, &aliases, &err)); /* what failed has changed nothing */
        assert_true(aliases.n == 1 && aliases.v[0].version == 1);
        mfl_store_aliases_deinit(&aliases);
        ok(mfl_store_alias_remove(store, "m", "champion", &err));
        assert_int_equal(mfl_store_alias_remove(store, "m", "champion", &err), MFL_NOT_FOUND);
        mfl_runtime_close(rt);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void reports_are_found_by_model(void **state)
{
        struct fixture f;
        struct mfl_store *store;
        struct mfl_store_inquiries list;
        uint8_t digest[2][MFL_DIGEST_BYTES] = {{1}, {2}};
        uint64_t n;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        ok(mfl_store_open(f.dir, &store, &err));
        for (uint32_t i = 0; i < 5; i++) {
                uint8_t body = (uint8_t)i;
                const struct mfl_store_inquiry q = {
                        .kind = 1 + i % 2, .digest = i % 2 ? digest[i / 2] : NULL, .body = &body, .bytes = 1};
                ok(mfl_store_inquiry_add(store, &q, &n, &err));
        }
        ok(mfl_store_inquiry_list(store, 2, digest[0], 9, &list, &err));
        assert_true(list.n == 1 && list.v[0].bytes == 1 && *(uint8_t *)list.v[0].body == 1);
        mfl_store_inquiries_deinit(&list);
        ok(mfl_store_inquiry_list(store, 0, NULL, 3, &list, &err));
        assert_true(list.n == 3 && list.v[0].n == n && *(uint8_t *)list.v[2].body == 2);
        mfl_store_inquiries_deinit(&list);
        mfl_store_close(store);
        fixture_deinit(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(versions_keep_their_rounds),
                cmocka_unit_test(aliases_go_back), cmocka_unit_test(reports_are_found_by_model)};
        return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
