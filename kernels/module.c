/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and opens a backend: the built-in reference, or a module by dlopen.
 *
 * Happy path: for "cpu" and "cuda", it tries the file libmfl_<name>.so in each place that backend.h lists;
 * the symbol mfl_backend_module is the table. Ways to fail: no such file; a file whose libraries are missing
 * (the reason is the linker's text); no such symbol; another ABI; for "cuda", no driver, which is checked
 * first.
 */
#include "kernels/backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#ifndef MFL_MODULE_DIR
#define MFL_MODULE_DIR "/usr/lib/mfl"
#endif

/* Writes the directory of the executable; false where /proc does not have it. */
static bool executable_dir(char *buf, size_t bytes)
{
        ssize_t n = readlink("/proc/self/exe", buf, bytes - 1);
        if (n <= 0)
                return false;
        buf[n] = '\0';
        char *slash = strrchr(buf, '/');
        if (!slash)
                return false;
        *slash = '\0';
        return true;
}

enum {
        EMULATED = 0, /* the tests' device: never installed, searched for only in MFL_MODULE_DIR */
        N_PLACES = 6,
};

/* Place number i of the search; false: no such place (but there may be later ones). */
static bool module_path(int i, const char *name, char *buf, size_t bytes)
{
        char dir[PATH_MAX];
        const char *env = getenv("MFL_MODULE_DIR");
        switch (i) {
        case EMULATED:
                return env && *env &&
                       snprintf(buf, bytes, "%s/libmfl_%s_emulated.so", env, name) < (int)bytes;
        case 1:
                return env && *env && snprintf(buf, bytes, "%s/libmfl_%s.so", env, name) < (int)bytes;
        case 2:
                return executable_dir(dir, sizeof dir) &&
                       snprintf(buf, bytes, "%s/libmfl_%s.so", dir, name) < (int)bytes;
        case 3:
                return executable_dir(dir, sizeof dir) &&
                       snprintf(buf, bytes, "%s/../lib/mfl/libmfl_%s.so", dir, name) < (int)bytes;
        case 4: /* a build tree: PROGRAM is build/client/mfl-client */
                return executable_dir(dir, sizeof dir) &&
                       snprintf(buf, bytes, "%s/../kernels/%s/libmfl_%s.so", dir, name, name) < (int)bytes;
        default:
                return snprintf(buf, bytes, "%s/libmfl_%s.so", MFL_MODULE_DIR, name) < (int)bytes;
        }
}

static int check_module(
        const char *path, void *handle, const struct mfl_backend_ops **ret_ops, struct mfl_error *err)
{
        const struct mfl_backend_ops *ops = dlsym(handle, MFL_BACKEND_SYMBOL);
        if (!ops)
                return mfl_fail(
                        err, MFL_INVALID, "%s: no symbol %s: not a module of mfl", path, MFL_BACKEND_SYMBOL);
        if (ops->abi != MFL_BACKEND_ABI)
                return mfl_fail(err, MFL_INVALID, "%s: module has ABI %u, but this program needs %u", path,
                        ops->abi, MFL_BACKEND_ABI);
        *ret_ops = ops;
        return 0;
}

static bool has_driver(void)
{
        void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
        if (driver)
                dlclose(driver);
        return driver;
}

/* Without a driver nobody misses the CUDA module. With one, the user expects the GPU to be found. */
static int fail_absent(const char *name, struct mfl_error *err)
{
        if (strcmp(name, "cuda"))
                return mfl_fail(err, MFL_NOT_FOUND,
                        "backend %s: libmfl_%s.so is missing: install oneDNN (libdnnl-dev) and build again",
                        name, name);
        if (!has_driver())
                return mfl_fail(err, MFL_NOT_FOUND,
                        "backend cuda: no NVIDIA driver on this machine (libcuda.so.1 is not there)");
        return mfl_fail(err, MFL_NOT_FOUND,
                "backend cuda: the NVIDIA driver is here, but libmfl_cuda.so is not: install the package "
                "mfl-client-cuda, or build with the CUDA Toolkit and cuDNN (meson setup says what is "
                "missing)");
}

static int open_module(const char *name, const struct mfl_backend_ops **ret_ops, struct mfl_error *err)
{
        char path[PATH_MAX + 64], reason[400] = "";
        for (int i = 0; i < N_PLACES; i++) {
                if (!module_path(i, name, path, sizeof path) || access(path, F_OK))
                        continue;
                /* CUDA's libraries take long to load, so they are not loaded where they could do nothing. */
                if (i != EMULATED && !strcmp(name, "cuda") && !has_driver())
                        return mfl_fail(err, MFL_NOT_FOUND,
                                "backend cuda: no NVIDIA driver on this machine (libcuda.so.1 is not there)");
                /* libgomp is loaded with the cpu module and then reads this variable. Idle threads that spin
                 * make two daemons on one machine twenty times slower. The user's own value is kept. */
                setenv("OMP_WAIT_POLICY", "passive", 0);
                void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
                if (handle) {
                        int rc = check_module(path, handle, ret_ops, err);
                        if (rc)
                                dlclose(handle);
                        return rc;
                }
                mfl_strcpy(reason, sizeof reason, dlerror());
        }
        return *reason ? mfl_fail(err, MFL_NOT_FOUND, "backend %s: %s", name, reason)
                       : fail_absent(name, err);
}

/* A module may load and still have no device: it counts only if a device opens. */
static bool has_device(const struct mfl_backend_ops *ops, struct mfl_error *err)
{
        struct mfl_device *device;
        if (ops->device_open(&device, err))
                return false;
        ops->device_close(device);
        return true;
}

int mfl_backend_open(const char *name, const struct mfl_backend_ops **ret_ops, struct mfl_error *err)
{
        static const char *const order[] = {"cuda", "cpu"};
        const struct mfl_backend_ops *ops;
        if (!strcmp(name, "reference")) {
                *ret_ops = &mfl_backend_reference;
                return 0;
        }
        if (!strcmp(name, "cuda") || !strcmp(name, "cpu"))
                return open_module(name, ret_ops, err);
        if (strcmp(name, "auto"))
                return mfl_fail(
                        err, MFL_NOT_FOUND, "unknown backend %s; known are auto, cuda, cpu, reference", name);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(order); i++)
                if (!open_module(order[i], &ops, err) && has_device(ops, err)) {
                        *ret_ops = ops;
                        return 0;
                }
        *ret_ops = &mfl_backend_reference;
        return 0;
}
