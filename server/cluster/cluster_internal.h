/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the cluster's shell share. */
#ifndef MFL_SERVER_CLUSTER_CLUSTER_INTERNAL_H
#define MFL_SERVER_CLUSTER_CLUSTER_INTERNAL_H

#include <pthread.h>

#include "server/cluster/blobs.h"
#include "server/cluster/cluster.h"
#include "server/cluster/copies.h"
#include "server/cluster/etcd.h"
#include "server/cluster/lead_core.h"

#define MFL_CLUSTER_READ_MAX 16u /* entries per request */

/* Where the keys are, and what every request needs. */
struct mfl_cluster_place {
        char prefix[64], leader[MFL_ETCD_KEY_BYTES], leader_end[MFL_ETCD_KEY_BYTES],
                log_end[MFL_ETCD_KEY_BYTES];
        char state_dir[1024];
        struct mfl_blobs blobs;
        struct mfl_copies
                *copies; /* NULL: the directory is shared, or this is --join-cluster, which is alone */
};

/* A file that is known to be as its row says. */
struct mfl_cluster_file {
        uint8_t sha256[32];
        uint64_t path; /* hash of its path */
};
struct mfl_cluster_files {
        uint32_t n, room;
        struct mfl_cluster_file *v;
};

struct mfl_cluster {
        struct mfl_cluster_place place;
        struct mfl_store_cluster store;
        char name[64], address[320];
        /* The thread's own. */
        pthread_t thread;
        bool runs;
        struct mfl_etcd *etcd;
        struct mfl_lead lead;
        struct mfl_replica *replica; /* NULL: the server's store has the directory */
        struct mfl_cluster_files files;
        uint64_t files_seq; /* the entry whose files are all here; UINT64_MAX: none were looked at */
        uint64_t sweep_ms;  /* when to look for blobs that nobody needs */
        /* Of commits, one at a time. */
        pthread_mutex_t commit_lock;
        struct mfl_etcd *commit_etcd;
        /* Shared. */
        pthread_mutex_t lock;
        pthread_cond_t woken;
        bool stop, fenced, closed;
        struct mfl_cluster_view view;
        void (*changed)(void *user);
        void *user;
};

void mfl_cluster_log_key(const struct mfl_cluster_place *place, uint64_t seq, char key[MFL_ETCD_KEY_BYTES]);
int mfl_cluster_place_init(
        struct mfl_cluster_place *place, const struct mfl_cluster_options *options, struct mfl_error *err);
int mfl_cluster_etcd_new(
        const struct mfl_cluster_options *options, struct mfl_etcd **ret_etcd, struct mfl_error *err);
/* Opens place->copies if the options have servers. */
int mfl_cluster_copies(
        struct mfl_cluster_place *place, const struct mfl_cluster_options *options, struct mfl_error *err);
/* The file at path, as mfl_blobs_get, from wherever it is. */
int mfl_cluster_get(struct mfl_cluster_place *place, const uint8_t sha256[32], uint64_t bytes,
        const char *path, struct mfl_error *err);
/* The leader's key as it is now; view's leader is set, and *ret_term (0: nobody leads). */
int mfl_cluster_leader(struct mfl_etcd *etcd, const struct mfl_cluster_place *place,
        struct mfl_cluster_view *view, uint64_t *ret_term, struct mfl_error *err);

/* cluster_follow.c. Applies the next entries, and brings their files. *ret_behind: there is more. MFL_NOT_FOUND: the log has ended
 * (--leave). */
struct mfl_cluster_reader {
        struct mfl_etcd *etcd;
        struct mfl_cluster_place *place;
        struct mfl_replica *replica;
        struct mfl_cluster_files *files;
        uint64_t *files_seq;
        char ended_by[64]; /* result, with MFL_NOT_FOUND: the server that has the installation now */
};
int mfl_cluster_read(struct mfl_cluster_reader *reader, bool *ret_behind, struct mfl_error *err);
/* After mfl_cluster_read with nothing behind: removes what neither the database nor the log names from the shared directory. */
int mfl_cluster_sweep(struct mfl_cluster_reader *reader, struct mfl_error *err);
/* The same for a leader's own directory, whose store is open. */
int mfl_cluster_sweep_own(struct mfl_etcd *etcd, struct mfl_cluster_place *place, struct mfl_error *err);

/* cluster_commit.c */
int mfl_cluster_blob(void *user, const char *path, const uint8_t sha256[32], uint64_t bytes, bool waits,
        struct mfl_error *err);
int mfl_cluster_commit(void *user, const struct mfl_store_change *change, struct mfl_error *err);
/* For both: writes one entry. *ret_result: enum mfl_commit_result. */
struct mfl_cluster_entry {
        struct mfl_etcd *etcd;
        struct mfl_cluster_place *place;
        const struct mfl_store_change *change;
        uint64_t term;
        bool ends; /* --leave: the entry ends the log; change has only its number */
};
int mfl_cluster_write(const struct mfl_cluster_entry *entry, int *ret_result, struct mfl_error *err);

#endif
