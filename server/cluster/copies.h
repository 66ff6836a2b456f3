/* SPDX-License-Identifier: Apache-2.0 */
/* Files on the disks of most servers of the cluster, for installations without a shared directory: each server has a directory of its own
 * (blobs.h), and the leader sends every file that an entry is going to name to the others, before the entry is written.
 *
 *     put: own disk, then a thread per other server --PutFile--> their disks;   0 as soon as most servers have it
 *     get: own disk, or from the first server that has it
 *
 * A server that is away, slow or full holds nobody up while most are well: it is reported (log, once per reason), and brings what it
 * lacks when it follows the log. If most are, a put gives up when nobody has taken a piece for a while. A new leader needs a majority alive (etcd asks for no less), so one of them has the file. */
#ifndef MFL_SERVER_CLUSTER_COPIES_H
#define MFL_SERVER_CLUSTER_COPIES_H

#include "server/cluster/blobs.h"
#include "server/cluster/copy_core.h"
#include "server/cluster/peer.h"

struct mfl_copies;
struct mfl_copies_options {
        const char *own;          /* this server's name */
        const char *servers;      /* "s1=a:7433,s2=b:7433,s3=c:7433": all of them, this one too */
        struct mfl_tls_files tls; /* "" or NULL: plain; borrowed */
};
/* MFL_INVALID: the list is not one. */
int mfl_copies_open(
        const struct mfl_copies_options *options, struct mfl_copies **ret_copies, struct mfl_error *err);
void mfl_copies_close(struct mfl_copies *copies); /* NULL is fine */
struct mfl_copies_wait {
        uint64_t patience_ms; /* how long nobody may take a piece of any file */
        bool ahead; /* others wait behind the caller: before the next piece of a file that is not ahead */
        bool (*goes_on)(
                void *user); /* asked a few times per second; false ends the wait. NULL: always. Must not put */
        void *user;
};
/* The file is on this server's disk, at path, where it stays for an hour. Any thread. MFL_BUSY: most servers do not have it; the text says
 * who lacks it and why. What is on its way then goes on, and the same put again joins it. */
int mfl_copies_put(struct mfl_copies *copies, const char *path, const uint8_t sha256[32], uint64_t bytes,
        const struct mfl_copies_wait *wait, struct mfl_error *err);
/* Writes it to path, never more than `bytes` of it. One thread at a time. MFL_NOT_FOUND: no server that answers has it. */
int mfl_copies_get(struct mfl_copies *copies, const uint8_t sha256[32], uint64_t bytes, const char *path,
        bool (*beat)(void *user), void *user, struct mfl_error *err);

#endif
