/* SPDX-License-Identifier: Apache-2.0 */
/* The self-test of communicators: one rank alone gets its own sum. */
#include "kernels/cuda/selftest.h"
#include "kernels/cuda/sum.h"

#include <stdio.h>

#define SELFTEST_N (3 * MFL_NCCL_RANGE / 2)
#define SELFTEST_MS 60000

/* One rank, over more than one range. */
static int selftest(
        struct mfl_device *device, struct mfl_sum *sum, int64_t *host, bool *ret_same, struct mfl_error *err)
{
        struct mfl_comm_control control = {0};
        struct mfl_comm *comm = NULL;
        uint8_t id[MFL_COMM_ID_BYTES];
        int64_t *out = host + sum->n;
        for (uint64_t i = 0; i < sum->n; i++)
                host[i] = (int64_t)(i * 0x9e3779b97f4a7c15u);
        int rc = mfl_cuda_check(
                cudaMemcpy(sum->memory, host, (size_t)sum->n * sizeof *host, cudaMemcpyHostToDevice),
                "fill a sum", err);
        if (!rc)
                rc = mfl_cuda_comm.id(device, id, err);
        if (!rc)
                rc = mfl_cuda_comm.open(device, id, 0, 1, SELFTEST_MS, &control, &comm, err);
        if (!rc)
                rc = mfl_cuda_comm.reduce(comm, sum, 0, out, SELFTEST_MS, &control, err);
        *ret_same = !rc && !memcmp(host, out, (size_t)sum->n * sizeof *host) &&
                    atomic_load(&control.ready) == sum->n;
        mfl_cuda_comm.close(comm);
        return rc;
}

int mfl_cuda_nccl_selftest(struct mfl_device *device, void (*report)(void *user, bool ok, const char *text),
        void *user, struct mfl_error *err)
{
        char version[64], text[640];
        uint32_t number;
        bool same = false;
        struct mfl_sum *sum = NULL;
        struct mfl_error why = {""};
        if (mfl_cuda_comm.version(device, version, &number, &why)) {
                report(user, true, why.text);
                return 0;
        }
        MFL_CLEANUP_FREE int64_t *host = mfl_malloc(2 * SELFTEST_N * sizeof *host);
        if (!host)
                return mfl_fail_memory(err, 2 * SELFTEST_N * sizeof *host, "a self-test");
        int rc = mfl_cuda_sum_new(device, SELFTEST_N, &sum, &why);
        if (!rc)
                rc = selftest(device, sum, host, &same, &why);
        mfl_cuda_sum_free(sum);
        snprintf(text, sizeof text, "%s: one rank alone gets its own sum%s%s", version, rc ? ": " : "",
                rc ? why.text : "");
        if (rc < 0)
                return mfl_fail(err, rc, "%s", why.text);
        report(user, same, text);
        return 0;
}
