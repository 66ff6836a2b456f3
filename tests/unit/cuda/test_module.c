/* SPDX-License-Identifier: Apache-2.0 */
/* How a program finds the CUDA module: the emulated one where MFL_MODULE_DIR has it, and one clear line on a
 * machine without a driver. The environment names the emulated module's folder. */
#include "tests/lib/test.h"

#include <dlfcn.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/backend.h"

static void test_emulated(void **state)
{
        const struct mfl_backend_ops *ops = NULL;
        struct mfl_device *device = NULL;
        struct mfl_device_info info;
        struct mfl_error err = {""};
        assert_int_equal(mfl_backend_open("cuda", &ops, &err), 0);
        assert_string_equal(ops->name, "cuda");
        assert_int_equal(ops->device_open(&device, &err), 0);
        ops->device_info(device, &info);
        assert_int_equal(strncmp(info.name, "emulated GPU", 12), 0); /* nobody mistakes it for a real one */
        assert_true(info.own_memory);
        ops->device_close(device);
        ops = NULL;
        assert_int_equal(mfl_backend_open("auto", &ops, &err), 0);
        assert_string_equal(ops->name, "cuda");
}

/* The file is no module at all. With a driver that would be the error; without one the file is not even
 * opened. */
static void test_no_driver(void **state)
{
        char dir[] = "/tmp/mfl-module-XXXXXX", path[64], old[4096];
        const struct mfl_backend_ops *ops = NULL;
        struct mfl_error err = {""};
        void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
        if (driver)
                skip_for("this machine has a driver");
        snprintf(old, sizeof old, "%s", getenv("MFL_MODULE_DIR"));
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof path, "%s/libmfl_cuda.so", dir);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fclose(f);
        setenv("MFL_MODULE_DIR", dir, 1);
        assert_int_equal(mfl_backend_open("cuda", &ops, &err), MFL_NOT_FOUND);
        assert_string_equal(
                err.text, "backend cuda: no NVIDIA driver on this machine (libcuda.so.1 is not there)");
        assert_int_equal(mfl_backend_open("auto", &ops, &err), 0);
        assert_string_not_equal(ops->name, "cuda");
        setenv("MFL_MODULE_DIR", old, 1);
        unlink(path);
        rmdir(dir);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_emulated),
                cmocka_unit_test(test_no_driver),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
