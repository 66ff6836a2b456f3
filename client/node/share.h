/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a daemon shares with the other daemons of its node: its updates, so that one of them can add
 * all of them, and the params that it fetched, so that the others need not fetch them.
 *
 * A daemon's files in the shared directory (/dev/shm) have mode 0600 and are named by the instance of its
 * process (Hello.instance), 16 hexadecimal digits:
 *
 *     mfl-INSTANCE.lock        flock'ed as long as the process lives; the kernel releases it
 *     mfl-INSTANCE.newN        becomes a lock file: locked first, then linked to its name
 *     mfl-INSTANCE-N           buffer number N, not published
 *     mfl-INSTANCE.KEY         a published buffer; KEY is 64 hexadecimal digits
 *
 * Publishing is a rename, so a reader finds a whole buffer or none. A reader holds a shared flock on the file
 * that it maps, so the owner can tell whether the buffer is still read. Nothing is locked while it is
 * written, so a process that dies leaves no lock behind. Segments are never made smaller, and unlinked
 * segments live on in the processes that map them: reading a dead daemon's memory is safe. What a dead daemon
 * left behind is unlinked by the next daemon of its user that starts: if the lock can be taken, its daemon is
 * dead. If somebody removes the files of a living daemon (systemd does at a user's logout, RemoveIPC=), the
 * others look in vain, once: the daemon gives up memory without a name, and makes the lock file again with
 * its next buffer.
 *
 * Pages are reserved when a buffer is made: a full /dev/shm (64 MiB in a container by default) is an error
 * then, and not a SIGBUS later.
 *
 * Ways to fail: the directory is missing, not writable, on a disk, or full (MFL_INVALID, with what to do); no
 * memory (negative). Threads: any; one buffer or view belongs to one thread at a time. */
#ifndef MFL_CLIENT_NODE_SHARE_H
#define MFL_CLIENT_NODE_SHARE_H

#include "common/base/base.h"

#define MFL_SHARE_KEY_BYTES 32

enum {
        MFL_SHARE_GONE = 18, /* the other daemon is dead */
};

struct mfl_share;

struct mfl_share_options {
        const char *dir;    /* NULL: /dev/shm */
        uint64_t instance;  /* of this process; not 0 */
        uint64_t bytes_max; /* of all buffers together; 0: as much as the directory has room for */
};

/* Removes what dead daemons of this user left in the directory. */
int mfl_share_open(
        const struct mfl_share_options *options, struct mfl_share **ret_share, struct mfl_error *err);
/* Unlinks everything; buffers and views must be gone. NULL is fine. */
void mfl_share_close(struct mfl_share *share);
/* Where it is; as long as the share. */
const char *mfl_share_dir(const struct mfl_share *share);
/* The same for all processes that see the same directory, and different for all others on this host. */
uint64_t mfl_share_id(const struct mfl_share *share);
uint64_t mfl_share_instance(const struct mfl_share *share);
/* The same number, but for processes of other hosts, too; not 0. */
uint64_t mfl_share_place(const struct mfl_share *share);

struct mfl_share_buffer;

/* Zeroed; every page is reserved, and is allocated when it is first written. MFL_INVALID when there is no
 * room, with the sizes. */
int mfl_share_buffer_new(
        struct mfl_share *share, uint64_t bytes, struct mfl_share_buffer **ret_buffer, struct mfl_error *err);
/* Allocates all of its pages now, before anything is written. Not for a thread that must answer soon: a
 * gigabyte takes a third of a second, or many seconds on a machine that is given the memory only then. */
void mfl_share_buffer_touch(struct mfl_share_buffer *buffer);
/* Unlinks; readers keep what they have mapped. NULL is fine. */
void mfl_share_buffer_free(struct mfl_share_buffer *buffer);
void *mfl_share_buffer_data(const struct mfl_share_buffer *buffer); /* 64-byte aligned */
uint64_t mfl_share_buffer_bytes(const struct mfl_share_buffer *buffer);
/* From here on others may read it: its contents must not change before it is withdrawn and idle. A buffer has
 * one key at a time; publishing withdraws another buffer of this daemon that has the same key. */
int mfl_share_publish(
        struct mfl_share_buffer *buffer, const uint8_t key[MFL_SHARE_KEY_BYTES], struct mfl_error *err);
/* From here on nobody can open it. Idempotent. */
void mfl_share_withdraw(struct mfl_share_buffer *buffer);
/* Withdrawn, and no longer read: it may be written again. Always false if its file was removed: nobody could
 * find it, so give it up. */
bool mfl_share_idle(struct mfl_share_buffer *buffer);

struct mfl_share_view;

/* Maps what the daemon `instance` has published under key, read-only. MFL_NOT_FOUND: nothing yet, and the
 * daemon lives; MFL_SHARE_GONE; MFL_INVALID: wrong size, or another user's file. */
int mfl_share_view_open(struct mfl_share *share, uint64_t instance, const uint8_t key[MFL_SHARE_KEY_BYTES],
        uint64_t bytes, struct mfl_share_view **ret_view, struct mfl_error *err);
const void *mfl_share_view_data(const struct mfl_share_view *view);
/* Lets the owner write again. The map is kept for the next view of the same buffer, until the buffer is gone
 * or this daemon frees a buffer of its own. NULL is fine. */
void mfl_share_view_close(struct mfl_share_view *view);

#endif
