/* SPDX-License-Identifier: Apache-2.0 */
/* Files by their SHA-256, in a directory that all servers share (NFS and the like), or in one of each server (copies.h): DIR/HEX. A file is
 * there only whole: written beside, synced, renamed. Any thread.
 *
 * Errors: MFL_NOT_FOUND; MFL_INVALID: the content is not that SHA-256. Otherwise -errno, with a text. */
#ifndef MFL_SERVER_CLUSTER_BLOBS_H
#define MFL_SERVER_CLUSTER_BLOBS_H

#include "common/base/base.h"

struct mfl_blobs {
        char dir[1024];
        char name[64]; /* this server's, for names of temporary files */
        bool links; /* the directory is on the state directory's file system: files that never change are linked, not copied */
        /* While a large file is copied, every few MiB: keeps a lease, say. False stops the copy with -ECANCELED. NULL: nobody. */
        bool (*beat)(void *user);
        void *user;
};

#define MFL_BLOBS_PATH_BYTES 1400
void mfl_blobs_path(
        const struct mfl_blobs *blobs, const uint8_t sha256[32], char ret_path[MFL_BLOBS_PATH_BYTES]);
/* Durable when this returns 0. A blob that is there is only marked as used. */
int mfl_blobs_put(struct mfl_blobs *blobs, const char *path, const uint8_t sha256[32], uint64_t bytes,
        struct mfl_error *err);
/* 0: the file, anywhere, has that content; negative: it can't be read. bytes 0: of any size. */
int mfl_blobs_check(struct mfl_blobs *blobs, const char *path, const uint8_t sha256[32], uint64_t bytes,
        struct mfl_error *err);
/* Whether that is 0. */
bool mfl_blobs_is(struct mfl_blobs *blobs, const char *path, const uint8_t sha256[32], uint64_t bytes);
/* Copies it to the path: as mfl_fs_commit, and checked. bytes 0: of any size. */
int mfl_blobs_get(struct mfl_blobs *blobs, const uint8_t sha256[32], uint64_t bytes, const char *path,
        struct mfl_error *err);
/* Removes blobs that were put, or marked, more than age_s before this call, and that `keeps` does not want. now is the time of
 * the directory's own file system. Returns how many. */
uint32_t mfl_blobs_sweep(
        struct mfl_blobs *blobs, uint64_t age_s, bool (*keeps)(void *user, const char *hex), void *user);

#endif
