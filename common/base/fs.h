/* SPDX-License-Identifier: Apache-2.0 */
/* Files: replacing one so that a crash leaves the old or the new and nothing between, reading a whole one,
 * making directories. Blocking, so for worker threads and for the start of programs. Any thread; one object
 * is used by one thread at a time.
 *
 * Errors are negative with the step and the path in the text ("rename models/r12.tmp: No space left on
 * device").
 */
#ifndef MFL_COMMON_BASE_FS_H
#define MFL_COMMON_BASE_FS_H

#include "common/base/base.h"

#include <sys/types.h>

/* Replacing PATH: open PATH.tmp, write, fsync, rename to PATH, fsync the directory. */
struct mfl_fs_file {
        char *path, *tmp;
        int fd;         /* -1: none */
        bool active;    /* PATH.tmp is there and is ours */
        uint64_t bytes; /* written so far */
};

/* Starts; PATH.tmp of an earlier crash is overwritten. On failure there is nothing to abort. -EISDIR,
 * -EINVAL: PATH is a directory, or a device, a pipe or a socket, which are never replaced. */
int mfl_fs_begin(struct mfl_fs_file *file, const char *path, struct mfl_error *err);
/* As mfl_fs_begin, with these permissions from the first instant (less the umask), for files that hold
 * secrets. Fails with EEXIST when PATH.tmp is there, whatever it is: somebody else's file is never written
 * to. */
int mfl_fs_begin_exclusive(struct mfl_fs_file *file, const char *path, mode_t mode, struct mfl_error *err);
/* Appends. */
int mfl_fs_write(struct mfl_fs_file *file, const void *data, size_t bytes, struct mfl_error *err);
/* fsync, rename, fsync of the directory; releases everything, on failure too. On failure PATH is the old file
 * unless the text says that the directory's fsync failed: then it is the new one, but may be lost when the
 * power fails. */
int mfl_fs_commit(struct mfl_fs_file *file, struct mfl_error *err);
/* Removes PATH.tmp and releases everything. Fine on a zeroed object, after commit, and twice. */
void mfl_fs_abort(struct mfl_fs_file *file);

/* The whole file, with a zero after its end that ret_bytes doesn't count; freed with free(). MFL_NOT_FOUND
 * when there is none, MFL_INVALID when it is larger than bytes_max or not a regular file (pipes and the like
 * are read to their end). */
int mfl_fs_read(
        const char *path, size_t bytes_max, char **ret_data, size_t *ret_bytes, struct mfl_error *err);
/* Makes a directory and those above it that are missing; fine when it is there. */
int mfl_fs_mkdirs(const char *path, mode_t mode, struct mfl_error *err);
/* Bytes that this process may still write to the file system of path. */
int mfl_fs_room(const char *path, uint64_t *ret_bytes, struct mfl_error *err);
/* Makes entries of the directory (renames, removals) durable. */
int mfl_fs_sync_dir(const char *path, struct mfl_error *err);

/* Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed, so that no file or socket takes that number
 * and receives output meant for a terminal. Reading finds the end of input; writing to standard output fails, as on a
 * full disk, because nobody would read it; messages are dropped. Call it first in main. False: it failed, and the
 * program should exit with status 1. */
bool mfl_fs_open_standard(void);

/* ---- Faults, a feature for tests ----
 * Every step above passes two points, "before-STEP" and "after-STEP", STEP being open, write, fsync, rename
 * and fsync-dir. Other modules may have points of their own ("before-db-commit") by calling mfl_fs_fault.
 *
 * A test sets a hook, which may return -errno to make the step fail, or may end the process. A test of real processes
 * sets the environment variable MFL_FAULT=POINT:N:exit|hang|slow|enospc|eio, and the N-th passage (from 1) of POINT in the
 * process then exits at once with status MFL_FS_FAULT_STATUS (no destructors, no flushing: as kill -9), or fails that
 * way; slow: it and all later ones take 3 s each. */
#define MFL_FS_FAULT_STATUS 99
typedef int mfl_fs_fault_hook(void *user, const char *point, const char *path);
/* For all threads; set it while no other thread uses files. NULL turns it off. */
void mfl_fs_set_fault_hook(mfl_fs_fault_hook *hook, void *user);
/* Passes a point: 0, or -errno as ordered. */
int mfl_fs_fault(const char *point, const char *path);

#endif
