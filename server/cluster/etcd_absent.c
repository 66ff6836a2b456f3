/* SPDX-License-Identifier: Apache-2.0 */
/* A build without libcurl has no clusters. */
#include "server/cluster/etcd.h"

int mfl_etcd_new(const struct mfl_etcd_options *options, struct mfl_etcd **ret_etcd, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "cluster: this build of mfl-server has no libcurl: install libcurl4-openssl-dev and build it "
                "again, or remove "
                "'cluster' from the configuration");
}

void mfl_etcd_free(struct mfl_etcd *etcd)
{
}

void mfl_etcd_values_deinit(struct mfl_etcd_values *values)
{
}

static int absent(struct mfl_error *err)
{
        return mfl_fail(err, MFL_ETCD_AWAY, "this build has no libcurl");
}

int mfl_etcd_grant(struct mfl_etcd *etcd, uint32_t ttl_s, uint64_t *ret_lease, uint32_t *ret_ttl_s,
        struct mfl_error *err)
{
        return absent(err);
}

int mfl_etcd_keep(struct mfl_etcd *etcd, uint64_t lease, uint32_t *ret_ttl_s, struct mfl_error *err)
{
        return absent(err);
}

int mfl_etcd_revoke(struct mfl_etcd *etcd, uint64_t lease, struct mfl_error *err)
{
        return absent(err);
}

int mfl_etcd_range(struct mfl_etcd *etcd, const char *first, const char *end, uint32_t limit,
        struct mfl_etcd_values *ret_values, struct mfl_error *err)
{
        return absent(err);
}

int mfl_etcd_create(struct mfl_etcd *etcd, const char *key, const void *value, size_t n, uint64_t lease,
        bool *ret_done, struct mfl_error *err)
{
        return absent(err);
}

int mfl_etcd_commit(
        struct mfl_etcd *etcd, const struct mfl_etcd_commit *commit, bool *ret_done, struct mfl_error *err)
{
        return absent(err);
}
