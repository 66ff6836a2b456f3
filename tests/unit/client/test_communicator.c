/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator between the GPUs of a team: the next team of the same ranks goes on with it; it is closed when its team breaks, for
 * another job, and when the daemon rests; GPUs that don't reach each other are left alone for a while, and then tried again. The
 * backend is one that only counts. tests/e2e/test_device_teams.py does it with daemons. */
#include "tests/lib/test.h"

#include "client/node/communicator.h"
#include "kernels/check.h"
#include "kernels/mesh/mesh.h"

static struct {
        uint32_t n_opened, n_closed;
        bool fails, cancels;
} fake;

static void close_mesh(struct mfl_mesh *mesh)
{
        fake.n_closed++;
        free(mesh);
}

static const struct mfl_mesh_ops mesh_ops = {.name = "counted", .close = close_mesh};

static int open_mesh(struct mfl_device *device, const uint8_t id[MFL_COMM_ID_BYTES], uint32_t rank,
        uint32_t n_ranks, uint32_t deadline_ms, const atomic_bool *cancel, struct mfl_mesh **ret_mesh,
        struct mfl_error *err)
{
        assert_true(deadline_ms > 0);
        if (fake.fails)
                return mfl_fail(err, MFL_MESH_BROKEN, "no way to the others");
        struct mfl_mesh *mesh = mfl_calloc(1, sizeof *mesh);
        assert_non_null(mesh);
        *mesh = (struct mfl_mesh){.ops = &mesh_ops, .rank = rank, .n_ranks = n_ranks};
        fake.n_opened++;
        *ret_mesh = mesh;
        return 0;
}

static const struct mfl_comm_ops comm_ops = {.mesh = open_mesh};
static struct mfl_backend_ops backend;
static struct mfl_mesh meeting = {.rank = 1, .n_ranks = 3};
static uint8_t first_id[MFL_COMM_ID_BYTES] = {1, 2, 3}, second_id[MFL_COMM_ID_BYTES] = {1, 2, 4};

static int setup(void **state)
{
        backend = mfl_backend_reference;
        backend.comm = &comm_ops;
        memset(&fake, 0, sizeof fake);
        struct mfl_communicator *c = mfl_calloc(1, sizeof *c);
        assert_non_null(c);
        *state = c;
        return 0;
}

static int teardown(void **state)
{
        struct mfl_communicator *c = *state;
        mfl_communicator_close(c);
        assert_int_equal(fake.n_closed, fake.n_opened);
        free(c);
        return 0;
}

static int open_for(struct mfl_communicator *c, const char *job, const uint8_t *id)
{
        struct mfl_error err;
        atomic_bool cancel = fake.cancels;
        return mfl_communicator_open(c, &backend, NULL, job, &meeting, id, &cancel, &err);
}

static void the_next_team_goes_on_with_it(void **state)
{
        struct mfl_communicator *c = *state;
        assert_int_equal(mfl_communicator_number(c, &meeting), 0);
        assert_int_equal(open_for(c, "j-000001", first_id), 0);
        int64_t number = mfl_communicator_number(c, &meeting);
        assert_true(number > 0);
        c->mesh->beside = &meeting;
        mfl_communicator_leave(c, c->mesh, true);
        assert_int_equal(mfl_communicator_number(c, &meeting), number);
        assert_null(c->mesh->beside); /* that is closed */
        const struct mfl_mesh other_rank = {.rank = 0, .n_ranks = 3}, smaller = {.rank = 1, .n_ranks = 2};
        assert_int_equal(mfl_communicator_number(c, &other_rank), 0);
        assert_int_equal(mfl_communicator_number(c, &smaller), 0);
        mfl_communicator_close_of(c, "j-000002", false);
        mfl_communicator_close_of(c, "j-000001", true);
        assert_int_equal(fake.n_closed, 0);
        /* With another id it is another one, and the first is gone. */
        assert_int_equal(open_for(c, "j-000001", second_id), 0);
        assert_int_equal(fake.n_closed, 1);
        assert_int_not_equal(mfl_communicator_number(c, &meeting), number);
}

static void it_is_closed(void **state)
{
        struct mfl_communicator *c = *state;
        assert_int_equal(open_for(c, "j-000001", first_id), 0);
        mfl_communicator_leave(c, c->mesh, false); /* its team broke */
        assert_int_equal(fake.n_closed, 1);
        assert_int_equal(mfl_communicator_number(c, &meeting), 0);
        assert_int_equal(open_for(c, "j-000001", first_id), 0);
        mfl_communicator_close_of(c, "j-000002", true); /* another job's task */
        assert_int_equal(fake.n_closed, 2);
        assert_int_equal(open_for(c, "j-000001", first_id), 0);
        mfl_communicator_close_of(c, "j-000001", false); /* the job is forgotten */
        assert_int_equal(fake.n_closed, 3);
        assert_int_equal(open_for(c, "j-000001", first_id), 0);
        mfl_communicator_close(c);
        assert_int_equal(fake.n_closed, 4);
        mfl_communicator_close(c);
        mfl_communicator_leave(c, NULL, false);
        assert_int_equal(fake.n_closed, 4);
}

static void unreached_gpus_are_tried_again(void **state)
{
        struct mfl_communicator *c = *state;
        struct mfl_error err;
        fake.fails = fake.cancels = true;
        for (int i = 0; i < 4; i++) /* who cancels learns nothing */
                assert_int_equal(open_for(c, "j-000001", first_id), MFL_MESH_BROKEN);
        assert_int_equal(mfl_communicator_check(c, &err), 0);
        fake.cancels = false;
        for (int i = 0; i < 2; i++)
                assert_int_equal(open_for(c, "j-000001", first_id), MFL_MESH_BROKEN);
        assert_int_equal(mfl_communicator_check(c, &err), 0);
        fake.fails = false; /* one that opens, and then breaks with all its ranks there, counts too */
        assert_int_equal(open_for(c, "j-000001", first_id), 0);
        c->mesh->unreached = true;
        mfl_communicator_leave(c, c->mesh, false);
        assert_int_equal(mfl_communicator_check(c, &err), MFL_INVALID);
        assert_string_equal(err.text,
                "GPUs did not reach each other 3 times; 10 minutes after the last time they try again");
        c->rest_ms = 30; /* in place of ten minutes */
        while (mfl_communicator_check(c, &err))
                continue;
        /* Once more in vain, and they rest again; once well, and the count begins anew. */
        fake.fails = true;
        c->rest_ms = 0;
        assert_int_equal(open_for(c, "j-000001", first_id), MFL_MESH_BROKEN);
        assert_int_equal(mfl_communicator_check(c, &err), MFL_INVALID);
        fake.fails = false;
        assert_int_equal(open_for(c, "j-000001", first_id), 0);
        mfl_communicator_leave(c, c->mesh, true);
        assert_int_equal(mfl_communicator_check(c, &err), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(the_next_team_goes_on_with_it, setup, teardown),
                cmocka_unit_test_setup_teardown(it_is_closed, setup, teardown),
                cmocka_unit_test_setup_teardown(unreached_gpus_are_tried_again, setup, teardown),
        };
        return cmocka_run_group_tests_name("client_communicator", tests, NULL, NULL);
}
