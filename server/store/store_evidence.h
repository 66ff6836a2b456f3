/* SPDX-License-Identifier: Apache-2.0 */
/* Evidence that a database lacks committed transactions. SQLite ends its log at the first broken frame; the database
 * then looks intact, but is older than what was committed.
 *
 *   - The database counts its transactions (meta, "commits"). STATE_DIR/commits has the same number, written after
 *     each commit and before the caller learns of it; it is not synced. Until the machine restarts (the file has the
 *     time of its start) the number is exact, because it outlives the process in the page cache. After a power cut it
 *     may be some seconds old, but never too new. So a database with a smaller count has lost transactions. This
 *     costs a write of 96 bytes per commit, and no sync.
 *   - The log itself (store_wal.h), if the number is not exact.
 */
#ifndef MFL_SERVER_STORE_STORE_EVIDENCE_H
#define MFL_SERVER_STORE_STORE_EVIDENCE_H

#include "server/store/store_wal.h"

#define MFL_STORE_SCHEMA_SUMS 7u /* from this schema on, databases count and rows have checksums */

struct mfl_store_count {
        bool there, good; /* good: intact; otherwise damaged */
        bool same_boot;   /* the kernel has not restarted since the file was written */
        uint64_t commits;
};
struct mfl_store_evidence {
        struct mfl_wal_report wal;
        struct mfl_store_count count;
};
/* Call it before SQLite opens the database, because SQLite may change the log. */
int mfl_store_evidence_read(
        const char *state_dir, struct mfl_store_evidence *ret_evidence, struct mfl_error *err);
/* schema: 0 for an empty database; commits: its count. True: transactions are lost, and text says which. False: text
 * is another remark, or "". */
bool mfl_store_evidence_judge(const struct mfl_store_evidence *evidence, int64_t schema, uint64_t commits,
        char *text, size_t text_bytes);

struct mfl_store_counter {
        int fd;        /* of STATE_DIR/commits; -1: none */
        uint64_t boot; /* when the kernel was started */
};
/* Creates the file if necessary. */
int mfl_store_count_open(const char *state_dir, struct mfl_store_counter *ret_counter, struct mfl_error *err);
/* -errno. */
int mfl_store_count_write(const struct mfl_store_counter *counter, uint64_t commits);
void mfl_store_count_close(struct mfl_store_counter *counter); /* synced; fine where fd is -1 */

#endif
