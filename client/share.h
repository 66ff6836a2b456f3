/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a daemon shares with the other daemons of its node: its updates, so that one of them can add
 * them all, and the params that it fetched, so that the others need not fetch them.
 *
 * A daemon's files in the shared directory (/dev/shm), all of mode 0600 and named by the instance of its
 * process (Hello.instance), 16 hexadecimal digits:
 *
 *     mfl-INSTANCE.lock        flock'ed as long as the process lives; the kernel lets go when it dies
 *     mfl-INSTANCE.newN        becomes a lock file: locked first, then linked to its name
 *     mfl-INSTANCE-N           buffer number N, which nobody shall read
 *     mfl-INSTANCE.KEY         a published buffer; KEY is 64 hexadecimal digits
 *
 * Publishing is a rename, so a reader finds a whole buffer or none. A reader holds a shared flock on the file
 * that it maps, so the owner can tell whether somebody still reads. Nothing is locked while it is written, so
 * no process's death can leave a lock behind. Segments are never made smaller, and unlinked ones live on in
 * whoever maps them: a reader of a dead daemon's memory is safe. What a dead daemon left behind is unlinked
 * by the next one of its user that starts: whose lock can be had is dead. Whoever removes the files of a
 * living daemon (systemd does at a user's logout, RemoveIPC=) makes the others look in vain, once: memory
 * without a name is given up, and with the next buffer the lock file is made again.
 *
 * Pages are reserved when a buffer is made: a full /dev/shm (64 MiB in a container by default) is an error
 * there and not a SIGBUS later.
 *
 * Ways to fail: the directory is not there, not writable, on a disk, or full (MFL_INVALID, with what to do);
 * memory (negative). Threads: any; one buffer or view belongs to one thread at a time.
 */
#ifndef MFL_CLIENT_SHARE_H
#define MFL_CLIENT_SHARE_H

#include "common/base.h"

#define MFL_SHARE_KEY_BYTES 32

enum {
        MFL_SHARE_GONE = 18, /* the daemon that was asked for is dead */
};

struct mfl_share;

struct mfl_share_options {
        const char *dir;    /* NULL: /dev/shm */
        uint64_t instance;  /* of this process; not 0 */
        uint64_t bytes_max; /* of all buffers together; 0: what the directory has room for */
};

/* Removes what dead daemons of this user left in the directory. */
int mfl_share_open(
        const struct mfl_share_options *options, struct mfl_share **ret_share, struct mfl_error *err);
/* Unlinks everything; buffers and views must be gone. NULL is fine. */
void mfl_share_close(struct mfl_share *share);
/* The same for all processes that see the same directory, and for no others on this host. */
uint64_t mfl_share_id(const struct mfl_share *share);
uint64_t mfl_share_instance(const struct mfl_share *share);

struct mfl_share_buffer;

/* Zeroed; every page is reserved, and comes when it is first written to. MFL_INVALID when there is no room,
 * with the sizes. */
int mfl_share_buffer_new(
        struct mfl_share *share, uint64_t bytes, struct mfl_share_buffer **ret_buffer, struct mfl_error *err);
/* Makes all of its pages come now. Before anything is written; not on a thread that must answer soon, since a
 * gigabyte takes a third of a second, or many where a machine has to be given the memory first. */
void mfl_share_buffer_touch(struct mfl_share_buffer *buffer);
/* Unlinks; readers keep what they have mapped. NULL is fine. */
void mfl_share_buffer_free(struct mfl_share_buffer *buffer);
void *mfl_share_buffer_data(const struct mfl_share_buffer *buffer); /* 64-byte aligned */
uint64_t mfl_share_buffer_bytes(const struct mfl_share_buffer *buffer);
/* From here on others may read it: what is in it must not change before it is withdrawn and idle. A buffer
 * has one key at a time; another buffer of this daemon under the same key is withdrawn by it. */
int mfl_share_publish(
        struct mfl_share_buffer *buffer, const uint8_t key[MFL_SHARE_KEY_BYTES], struct mfl_error *err);
/* Nobody new can open it. Idempotent. */
void mfl_share_withdraw(struct mfl_share_buffer *buffer);
/* Withdrawn, and nobody reads it any more: it may be written to again. Never true when somebody has removed
 * its file: nobody would ever find it, so give it up. */
bool mfl_share_idle(struct mfl_share_buffer *buffer);

struct mfl_share_view;

/* Maps what the daemon `instance` has published under key, read-only. MFL_NOT_FOUND: nothing (yet), and the
 * daemon lives; MFL_SHARE_GONE; MFL_INVALID: it is of another size, or another user's. */
int mfl_share_view_open(struct mfl_share *share, uint64_t instance, const uint8_t key[MFL_SHARE_KEY_BYTES],
        uint64_t bytes, struct mfl_share_view **ret_view, struct mfl_error *err);
const void *mfl_share_view_data(const struct mfl_share_view *view);
/* Lets the owner write again. The map is kept for the next view of the same buffer, until the buffer is gone
 * or this daemon frees one of its own. NULL is fine. */
void mfl_share_view_close(struct mfl_share_view *view);

#endif
