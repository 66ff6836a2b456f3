/* SPDX-License-Identifier: Apache-2.0 */
/* Opens libnccl.so.2 on first use: in the loader's places, and where this module's build found it. */
#include "kernels/cuda/nccl/nccl_load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define OLDEST NCCL_VERSION(2, 19, 0) /* ncclMemAlloc, ncclCommRegister */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mfl_nccl nccl;
static bool loaded;

static int find(void *library, const char *name, void *field, struct mfl_error *err)
{
        void *symbol = dlsym(library, name);
        if (!symbol)
                return mfl_fail(err, MFL_INVALID, "NCCL: libnccl.so.2 has no %s: it is too old", name);
        memcpy(field, &symbol, sizeof symbol);
        return 0;
}

static int find_all(void *library, struct mfl_nccl *to, struct mfl_error *err)
{
        int rc = 0;
#define FIND(field, Name)                                                                                    \
        if (!rc)                                                                                             \
                rc = find(library, "nccl" #Name, &to->field, err);
        MFL_NCCL_FUNCTIONS(FIND)
#undef FIND
        if (rc)
                return rc;
        if (to->get_version(&to->version) != ncclSuccess)
                return mfl_fail(err, MFL_INVALID, "NCCL: libnccl.so.2 does not report its version");
        if (to->version < OLDEST)
                return mfl_fail(err, MFL_INVALID,
                        "NCCL: libnccl.so.2 has version code %d: 2.19 or newer is "
                        "needed",
                        to->version);
        return 0;
}

static int load(struct mfl_error *err)
{
        struct mfl_nccl found;
        /* Set before NCCL reads them: kernels/cuda/nccl/comm.h says why. */
        if (setenv("NCCL_COMM_BLOCKING", "0", 1) || setenv("NCCL_SOCKET_IFNAME", "=lo", 0))
                return mfl_fail_memory(err, 64, "NCCL's environment");
        void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
        if (!library)
                return mfl_fail(err, MFL_INVALID, "NCCL: %s", dlerror());
        int rc = find_all(library, &found, err);
        if (rc) {
                dlclose(library);
                return rc;
        }
        nccl = found;
        loaded = true; /* forever: its threads outlive communicators */
        return 0;
}

int mfl_nccl_load(const struct mfl_nccl **ret_nccl, struct mfl_error *err)
{
        pthread_mutex_lock(&lock);
        int rc = loaded ? 0 : load(err);
        pthread_mutex_unlock(&lock);
        if (!rc)
                *ret_nccl = &nccl;
        return rc;
}
