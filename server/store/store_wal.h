/* SPDX-License-Identifier: Apache-2.0 */
/* The log of a SQLite database (mfl.db-wal) as a file: which transactions are complete, and whether broken ones
 * follow. SQLite itself silently stops at the first broken frame. The format:
 * https://www.sqlite.org/fileformat2.html#the_write_ahead_log.
 *
 * A frame's checksum continues from the checksum in the previous frame. So frames after a broken one can still be
 * checked, each against its predecessor. The log is synced with each transaction (synchronous=FULL), so a crash can
 * leave at most the last transaction broken: if two or more end after the first broken frame, at least one was
 * committed and is lost. Frames of an earlier use of the file have other salts and are skipped. */
#ifndef MFL_SERVER_STORE_STORE_WAL_H
#define MFL_SERVER_STORE_STORE_WAL_H

#include "common/base/base.h"

struct mfl_wal_report {
        bool bad_header;       /* not empty, but without a valid header */
        uint64_t frames;       /* of whole transactions, from the start */
        uint64_t broken;       /* frames of this use of the log after the last whole transaction */
        uint64_t ends_behind;  /* transactions that end after the first broken frame, itself not counted */
        uint64_t broken_frame; /* its number from 1; 0: none */
};

/* 0 also if there is no file. Only reads, and not through SQLite. */
int mfl_wal_inspect(const char *path, struct mfl_wal_report *ret_report, struct mfl_error *err);
/* Whether a committed transaction is lost for certain. */
bool mfl_wal_lost(const struct mfl_wal_report *report);

#endif
