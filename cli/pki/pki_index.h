/* SPDX-License-Identifier: Apache-2.0 */
/* The certificates that a private CA has issued: index.json in its directory, read and made as text.
 *
 * {"version": 1, "ca": "mfl CA 1a2b3c4d", "crl_number": 7, "crl_days": 365,
 *  "certificates": [{"name": "site-a", "roles": ["daemon"], "hosts": [], "serial": "9F...", "request": false,
 *                    "not_before": 1700000000, "not_after": 1731536000, "state": "valid", "revoked": null}]}
 *
 * In the order of issue; no entry is ever removed. Times are Unix seconds. Errors: MFL_INVALID for a damaged
 * file; -ENOMEM.
 */
#ifndef MFL_CLI_PKI_PKI_INDEX_H
#define MFL_CLI_PKI_PKI_INDEX_H

#include "cli/pki/pki_x509.h"
#include "common/base/base.h"

#define MFL_PKI_NAME_MAX 63
#define MFL_PKI_ROLES_MAX 6
#define MFL_PKI_HOSTS_MAX 16
#define MFL_PKI_HOST_BYTES 256

enum mfl_pki_role {
        MFL_PKI_DAEMON = 1,
        MFL_PKI_OPERATOR = 2,
        MFL_PKI_VIEWER = 4,
        MFL_PKI_ADMIN = 8,
        MFL_PKI_SERVER = 16, /* never with another role */
        MFL_PKI_RELAY = 32,  /* listens like a server, and connects to one; never with another role */
        MFL_PKI_SERVE = 64,  /* of mfl-serve towards mfl-server */
};
/* Their certificates name hosts. */
#define MFL_PKI_LISTENS (MFL_PKI_SERVER | MFL_PKI_RELAY)
/* The role of that name; 0 if there is none. */
unsigned mfl_pki_role_of(const char *text);
/* Returns the number of names. */
int mfl_pki_role_names(unsigned roles, const char *ret_names[MFL_PKI_ROLES_MAX]);
/* "daemon,operator"; returns buf. */
const char *mfl_pki_roles_text(unsigned roles, char *buf, size_t buf_bytes);

/* 1 to 63 of [A-Za-z0-9._-], and not "." or "..", which are folders. */
bool mfl_pki_name_valid(const char *name);
/* A DNS name (also "*.NAME") or an IP address, without port and scheme. */
bool mfl_pki_host_valid(const char *host);

enum mfl_pki_state {
        MFL_PKI_VALID,
        MFL_PKI_RENEWED, /* the name has a newer certificate; this one is still valid */
        MFL_PKI_REVOKED,
};
extern const char *const mfl_pki_state_names[]; /* ends with NULL */

struct mfl_pki_entry {
        char name[MFL_PKI_NAME_MAX + 1];
        char serial[MFL_PKI_SERIAL_BYTES];
        char site[MFL_PKI_NAME_MAX + 1]; /* "": none */
        unsigned roles;
        char *hosts[MFL_PKI_HOSTS_MAX]; /* for a server; owned */
        int n_hosts;
        bool request; /* the key was made elsewhere */
        int64_t not_before, not_after, revoked;
        enum mfl_pki_state state;
};
struct mfl_pki_index {
        char ca[64]; /* its CN */
        uint64_t crl_number;
        int crl_days;
        struct mfl_pki_entry *entry;
        size_t n;
};

int mfl_pki_index_parse(
        const char *text, const char *path, struct mfl_pki_index *ret_index, struct mfl_error *err);
int mfl_pki_index_text(const struct mfl_pki_index *index, char **ret_text, struct mfl_error *err);
void mfl_pki_index_deinit(struct mfl_pki_index *index); /* idempotent, also on a zeroed object */

/* Appends; the hosts are copied. */
int mfl_pki_index_add(struct mfl_pki_index *index, const struct mfl_pki_entry *entry, struct mfl_error *err);
/* The newest certificate of that name; NULL: none. Valid until the next add. */
struct mfl_pki_entry *mfl_pki_index_find(const struct mfl_pki_index *index, const char *name);
/* By serial number, in upper or lower case. */
struct mfl_pki_entry *mfl_pki_index_find_serial(const struct mfl_pki_index *index, const char *serial);

#endif
