/* SPDX-License-Identifier: Apache-2.0 */
/* The real libnccl.so.2, as far as possible without a GPU: it is found, has every function, makes unique ids
 * over the loopback, and fails properly where it needs a device. Skipped where the library is not installed.
 */
#include "tests/lib/test.h"

#include <dlfcn.h>
#include <stdio.h>

#include "kernels/cuda/nccl/nccl_load.h"

static const struct mfl_nccl *nccl;

static void loads(void **state)
{
        const struct mfl_nccl *again;
        struct mfl_error err = {""};
        if (mfl_nccl_load(&nccl, &err)) {
                assert_true(*err.text);
                skip_for("%s", err.text);
        }
        assert_true(nccl->version >= NCCL_VERSION(2, 19, 0));
        assert_int_equal(mfl_nccl_load(&again, &err), 0);
        assert_ptr_equal(again, nccl);
        assert_string_equal(getenv("NCCL_COMM_BLOCKING"), "0");
        assert_string_equal(getenv("NCCL_SOCKET_IFNAME"), "=lo");
}

static void makes_unique_ids(void **state)
{
        ncclUniqueId a, b;
        if (!nccl)
                skip_for("no NCCL, as above");
        memset(&a, 0, sizeof a);
        memset(&b, 0, sizeof b);
        assert_int_equal(nccl->get_unique_id(&a), ncclSuccess);
        assert_int_equal(nccl->get_unique_id(&b), ncclSuccess);
        assert_memory_not_equal(&a, &b, sizeof a);
}

/* What kernels/cuda/nccl/nccl.c relies on: a failed opening leaves the handle unchanged, and there is a text.
 */
static void fails_without_a_driver(void **state)
{
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        ncclComm_t comm = NULL;
        ncclUniqueId id;
        void *memory = NULL;
        if (!nccl || dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL))
                skip_for("no NCCL, or this machine has a driver");
        config.blocking = 0;
        assert_int_equal(nccl->get_unique_id(&id), ncclSuccess);
        assert_int_equal(nccl->init(&comm, 2, id, 0, &config), ncclUnhandledCudaError);
        assert_null(comm);
        assert_true(*nccl->error_string(ncclUnhandledCudaError) && *nccl->last_error(NULL));
        assert_int_not_equal(nccl->alloc(&memory, 4096), ncclSuccess);
        assert_null(memory);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(loads),
                cmocka_unit_test(makes_unique_ids),
                cmocka_unit_test(fails_without_a_driver),
        };
        unsetenv("NCCL_SOCKET_IFNAME");
        setenv("NCCL_COMM_BLOCKING", "1", 1);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
