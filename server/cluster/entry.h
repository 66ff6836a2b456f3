/* SPDX-License-Identifier: Apache-2.0 */
/* An entry of the installation's log as bytes. */
#ifndef MFL_SERVER_CLUSTER_ENTRY_H
#define MFL_SERVER_CLUSTER_ENTRY_H

#include "common/base/base.h"

enum mfl_entry_kind {
        MFL_ENTRY_CHANGES, /* the payload is a changeset of SQLite */
        MFL_ENTRY_WHOLE,   /* a blob is the whole database */
        MFL_ENTRY_END, /* the installation has left the cluster (--leave); the payload is the server's name */
};

struct mfl_entry {
        enum mfl_entry_kind kind;
        uint32_t schema;
        uint64_t term, id;
        uint64_t blob_bytes; /* WHOLE */
        uint8_t sha256[32];
        const void *payload; /* borrowed */
        size_t n;
};

/* On the heap. */
int mfl_entry_write(const struct mfl_entry *entry, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err);
/* The payload lies within bytes. MFL_INVALID: it is no entry, or one of a later release. */
int mfl_entry_read(const uint8_t *bytes, size_t n, struct mfl_entry *ret_entry, struct mfl_error *err);

#endif
