/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon has in common with others of its host: what is opened for which setting, the reasons for what
 * is not, and what others compare. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <unistd.h>

#include "client/node/node.h"

static struct mfl_client_node node;
static struct mfl_device *device;
static struct mfl_error err;
static char dir[64];
static struct mfl_error version_error;
static int version_rc;

static int fake_version(
        struct mfl_device *of, char text[64], uint32_t *ret_version, struct mfl_error *ret_err)
{
        if (version_rc) {
                *ret_err = version_error;
                return version_rc;
        }
        strcpy(text, "NCCL 2.28.9");
        *ret_version = 22809;
        return 0;
}

static void fake_comm_close(struct mfl_comm *comm)
{
}

static const struct mfl_comm_ops fake_comm = {.version = fake_version, .close = fake_comm_close};

static int open_node(enum mfl_client_collective collective, bool comm)
{
        struct mfl_backend_ops ops = mfl_backend_reference;
        ops.comm = comm ? &fake_comm : NULL;
        const struct mfl_client_node_options options = {.collective = collective,
                .share_dir = dir,
                .instance = 7,
                .threads = 2,
                .ops = &ops,
                .device = device};
        return mfl_client_node_open(&node, &options, &err);
}

static int setup(void **state)
{
        strcpy(dir, "/tmp/mfl-test-node-XXXXXX");
        assert_non_null(mkdtemp(dir));
        return mfl_backend_reference.device_open(&device, &err);
}

static int teardown(void **state)
{
        mfl_backend_reference.device_close(device);
        return rmdir(dir); /* it is empty */
}

static void memory_is_shared_where_it_can_be(void **state)
{
        assert_int_equal(open_node(MFL_CLIENT_COLLECTIVE_AUTO, false), 0);
        assert_true(node.has_reach && node.share && node.shm && !node.nccl);
        assert_int_equal(node.reach.user, geteuid());
        assert_true(node.reach.network_space != 0);
        assert_true(node.reach.memory_space == mfl_share_id(node.share));
        assert_int_equal(mfl_share_instance(node.share), 7);
        assert_int_equal(node.reach.nccl, 0);
        assert_string_equal(node.reach.nccl_reason, "backend reference has none");
        assert_string_equal(node.reach.memory_reason, "");
        assert_ptr_equal(strstr(node.text, "shm ("), node.text);
        assert_non_null(strstr(node.text, " free)"));
        uint64_t space = node.reach.network_space, memory = node.reach.memory_space;
        mfl_client_node_close(&node);
        /* Another daemon beside it says the same. */
        assert_int_equal(open_node(MFL_CLIENT_COLLECTIVE_AUTO, false), 0);
        assert_true(node.reach.network_space == space && node.reach.memory_space == memory);
        mfl_client_node_close(&node);
}

static void without_a_directory_the_reason_is_told(void **state)
{
        char whole[sizeof(dir)];
        strcpy(whole, dir);
        strcat(dir, "/none");
        assert_int_equal(open_node(MFL_CLIENT_COLLECTIVE_AUTO, false), 0);
        strcpy(dir, whole);
        assert_true(node.has_reach && !node.share && !node.shm);
        assert_int_equal(node.reach.memory_space, 0);
        assert_non_null(strstr(node.reach.memory_reason, "/none"));
        assert_ptr_equal(strstr(node.text, "solo: "), node.text);
        mfl_client_node_close(&node);
}

static void nccl_is_told_demanded_and_turned_off(void **state)
{
        assert_int_equal(open_node(MFL_CLIENT_COLLECTIVE_NCCL, false), MFL_INVALID);
        assert_string_equal(err.text, "collective nccl: backend reference has none");
        mfl_client_node_close(&node);
        version_rc = MFL_INVALID;
        strcpy(version_error.text, "no libnccl.so.2");
        assert_int_equal(open_node(MFL_CLIENT_COLLECTIVE_NCCL, true), MFL_INVALID);
        assert_string_equal(err.text, "collective nccl: no libnccl.so.2");
        mfl_client_node_close(&node);
        assert_int_equal(open_node(MFL_CLIENT_COLLECTIVE_AUTO, true), 0);
        assert_string_equal(node.reach.nccl_reason, "no libnccl.so.2");
        assert_non_null(node.share);
        mfl_client_node_close(&node);
        version_rc = -EIO;
        assert_int_equal(open_node(MFL_CLIENT_COLLECTIVE_AUTO, true), -EIO);
        mfl_client_node_close(&node);
        version_rc = 0;
        assert_int_equal(open_node(MFL_CLIENT_COLLECTIVE_NCCL, true), 0);
        assert_non_null(node.nccl);
        assert_int_equal(node.reach.nccl, 22809);
        assert_ptr_equal(strstr(node.text, "NCCL 2.28.9, shm ("), node.text);
        mfl_client_node_close(&node);
        assert_int_equal(open_node(MFL_CLIENT_COLLECTIVE_SHM, true), 0);
        assert_true(!node.nccl && node.shm);
        assert_int_equal(node.reach.nccl, 0);
        assert_string_equal(node.reach.nccl_reason, "the configuration turns it off (collective: shm)");
        mfl_client_node_close(&node);
}

static void who_is_to_be_alone_says_so(void **state)
{
        assert_int_equal(open_node(MFL_CLIENT_COLLECTIVE_SOLO, true), 0);
        assert_true(!node.share && !node.shm && !node.nccl);
        assert_true(node.has_reach);
        assert_int_equal(node.reach.memory_space, 0);
        assert_int_equal(node.reach.nccl, 0);
        assert_string_equal(node.reach.memory_reason, "the configuration says so (collective: solo)");
        assert_string_equal(node.reach.nccl_reason, node.reach.memory_reason);
        mfl_client_node_close(&node);
}

static void want_of_memory_is_survived_at_every_allocation(void **state)
{
        long n = 0;
        for (bool struck = true; struck; n++) {
                mfl_alloc_fail_at(n);
                int r = open_node(MFL_CLIENT_COLLECTIVE_AUTO, true);
                struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, struck ? -ENOMEM : 0);
                mfl_client_node_close(&node);
        }
        assert_true(n > 3);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(memory_is_shared_where_it_can_be),
                cmocka_unit_test(without_a_directory_the_reason_is_told),
                cmocka_unit_test(nccl_is_told_demanded_and_turned_off),
                cmocka_unit_test(who_is_to_be_alone_says_so),
                cmocka_unit_test(want_of_memory_is_survived_at_every_allocation),
        };
        return cmocka_run_group_tests_name("client_node", tests, setup, teardown);
}
