/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of the log. A head of fixed size, little-endian, then the payload. */
#include "server/cluster/entry.h"

#define MAGIC 0x4c464d31u /* "1MFL" */

struct head {
        uint32_t magic, kind, schema, reserved;
        uint64_t term, id, blob_bytes, payload_bytes;
        uint8_t sha256[32];
};

int mfl_entry_write(const struct mfl_entry *entry, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        struct head head = {.magic = MAGIC,
                .kind = (uint32_t)entry->kind,
                .schema = entry->schema,
                .term = entry->term,
                .id = entry->id,
                .blob_bytes = entry->blob_bytes,
                .payload_bytes = entry->n};
        memcpy(head.sha256, entry->sha256, sizeof head.sha256);
        uint8_t *bytes = mfl_malloc(sizeof head + entry->n);
        if (!bytes)
                return mfl_fail_memory(err, sizeof head + entry->n, "an entry of the log");
        memcpy(bytes, &head, sizeof head);
        if (entry->n)
                memcpy(bytes + sizeof head, entry->payload, entry->n);
        *ret_bytes = bytes;
        *ret_n = sizeof head + entry->n;
        return 0;
}

int mfl_entry_read(const uint8_t *bytes, size_t n, struct mfl_entry *ret_entry, struct mfl_error *err)
{
        struct head head;
        if (n < sizeof head)
                return mfl_fail(err, MFL_INVALID, "an entry of %zu bytes is no entry", n);
        memcpy(&head, bytes, sizeof head);
        if (head.magic != MAGIC || head.kind > MFL_ENTRY_END)
                return mfl_fail(
                        err, MFL_INVALID, "an entry of another kind: was it written by a later release?");
        if (!head.id || head.payload_bytes != n - sizeof head)
                return mfl_fail(err, MFL_INVALID, "an entry that is cut off");
        *ret_entry = (struct mfl_entry){.kind = (enum mfl_entry_kind)head.kind,
                .schema = head.schema,
                .term = head.term,
                .id = head.id,
                .blob_bytes = head.blob_bytes,
                .payload = bytes + sizeof head,
                .n = n - sizeof head};
        memcpy(ret_entry->sha256, head.sha256, sizeof head.sha256);
        return 0;
}
