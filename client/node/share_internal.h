/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of client/node/share.h: the directory, the names in it, and which daemons are dead. */
#ifndef MFL_CLIENT_NODE_SHARE_INTERNAL_H
#define MFL_CLIENT_NODE_SHARE_INTERNAL_H

#include "client/node/share.h"

#include <pthread.h>
#include <sys/stat.h>

#define MFL_SHARE_FILE_BYTES 96 /* of a name, with the terminating zero */

struct mfl_share {
        char *dir;
        int fd, lock_fd; /* of the directory; of this process's lock file */
        uint64_t instance, id, bytes_max;
        pthread_mutex_t lock; /* of all below */
        uint64_t bytes_used, n_named;
        struct mfl_share_buffer *buffers;
        /* Closed views whose maps are kept, the last used first (share_view.c). */
        struct mfl_share_view *resting;
        uint32_t n_views; /* open ones */
};

enum mfl_share_file_kind {
        MFL_SHARE_FILE_LOCK,
        MFL_SHARE_FILE_NEW, /* becomes a lock file by link */
        MFL_SHARE_FILE_DATA,
};

/* The process that a name belongs to, and what the file is; false: not one of ours. */
bool mfl_share_name_parse(const char *name, uint64_t *ret_instance, enum mfl_share_file_kind *ret_kind);
void mfl_share_name_lock(char name[MFL_SHARE_FILE_BYTES], uint64_t instance);
void mfl_share_name_key(
        char name[MFL_SHARE_FILE_BYTES], uint64_t instance, const uint8_t key[MFL_SHARE_KEY_BYTES]);

/* A regular file that only this user may access. */
bool mfl_share_is_ours(const struct stat *st);
/* The open file still has that name. */
bool mfl_share_is_named(const struct mfl_share *share, int fd, const char *name);
/* An error for a failed call on a file, from errno: negative if this process has run out of something,
 * otherwise MFL_INVALID; the text ends with the system's. */
int mfl_share_fail_errno(struct mfl_error *err, const struct mfl_share *share, const char *name,
        const char *doing, const char *advice);

/* Makes the lock file of share->instance, locked before it can be seen. */
int mfl_share_lock_new(struct mfl_share *share, struct mfl_error *err);
/* Makes it again if it was removed. */
int mfl_share_lock_check(struct mfl_share *share, struct mfl_error *err);
/* The instance's lock is free, or there is none. */
bool mfl_share_is_dead(const struct mfl_share *share, uint64_t instance);
/* Unlinks files of this user's dead daemons. */
void mfl_share_remove_stale(const struct mfl_share *share);

/* Unmaps kept maps: all of them, or those whose files have lost their names. share->lock is held. */
void mfl_share_drop_resting(struct mfl_share *share, bool all);

#endif
