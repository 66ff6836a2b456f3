/* SPDX-License-Identifier: Apache-2.0 */
/* The few requests that the cluster makes of etcd (3.4 or newer), through its HTTP/JSON gateway:
 * https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/ and https://etcd.io/docs/v3.4/learning/api/.
 *
 * A request goes to one member; if that member can't be reached, the next request goes to the next one. Each call blocks for at
 * most the time limit, so no call is for a loop's thread. One thread at a time per object.
 *
 * Errors: MFL_ETCD_AWAY: no member took the request, so nothing has changed. MFL_ETCD_UNKNOWN: there was no (sensible) answer, so
 * the request may have been carried out, or may still be. Negative: memory. */
#ifndef MFL_SERVER_CLUSTER_ETCD_H
#define MFL_SERVER_CLUSTER_ETCD_H

#include "common/base/base.h"

enum {
        MFL_ETCD_AWAY = 16,
        MFL_ETCD_UNKNOWN = 17,
};

#define MFL_ETCD_ENDPOINTS_MAX 9
#define MFL_ETCD_KEY_BYTES 128

struct mfl_etcd_options {
        const char *endpoints;       /* "http://a:2379,http://b:2379" */
        const char *ca, *cert, *key; /* PEM files for https; "": the system's CAs, no certificate */
        uint32_t timeout_ms;         /* of one request */
};

/* What a key holds. */
struct mfl_etcd_value {
        char key[MFL_ETCD_KEY_BYTES];
        uint64_t created; /* the revision that created the key; 0: there is no such key */
        uint8_t *bytes;   /* owned; NULL: nothing */
        size_t n;
};
struct mfl_etcd_values {
        uint32_t n;
        struct mfl_etcd_value *v;
};
void mfl_etcd_values_deinit(struct mfl_etcd_values *values);

struct mfl_etcd;
/* Connects to nobody yet. MFL_INVALID: an endpoint that is no http:// or https:// URL, or a build without libcurl. */
int mfl_etcd_new(const struct mfl_etcd_options *options, struct mfl_etcd **ret_etcd,
        struct mfl_error *err) MFL_MUST_CHECK;
void mfl_etcd_free(struct mfl_etcd *etcd); /* NULL is fine */

/* A lease of ttl_s seconds; etcd may grant a longer one. */
int mfl_etcd_grant(struct mfl_etcd *etcd, uint32_t ttl_s, uint64_t *ret_lease, uint32_t *ret_ttl_s,
        struct mfl_error *err);
/* *ret_ttl_s 0: the lease is gone. */
int mfl_etcd_keep(struct mfl_etcd *etcd, uint64_t lease, uint32_t *ret_ttl_s, struct mfl_error *err);
int mfl_etcd_revoke(struct mfl_etcd *etcd, uint64_t lease, struct mfl_error *err);

/* The keys in [first, end), ascending, at most limit. */
int mfl_etcd_range(struct mfl_etcd *etcd, const char *first, const char *end, uint32_t limit,
        struct mfl_etcd_values *ret_values, struct mfl_error *err);
/* Writes a key that does not exist. lease 0: for good. *ret_done false: it exists. */
int mfl_etcd_create(struct mfl_etcd *etcd, const char *key, const void *value, size_t n, uint64_t lease,
        bool *ret_done, struct mfl_error *err);

/* One transaction: if `guard` was created by revision `term`, and `key` does not exist, writes key and deletes [drop_first,
 * drop_end) ("" for nothing). */
struct mfl_etcd_commit {
        const char *guard;
        uint64_t term;
        const char *key;
        const void *value;
        size_t n;
        const char *drop_first, *drop_end;
};
int mfl_etcd_commit(
        struct mfl_etcd *etcd, const struct mfl_etcd_commit *commit, bool *ret_done, struct mfl_error *err);

#endif
