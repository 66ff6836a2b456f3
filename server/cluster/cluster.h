/* SPDX-License-Identifier: Apache-2.0 */
/* Several servers that run one installation: one leads and serves, the others follow it and wait.
 *
 *     etcd: PREFIX/leader      the leader's name, address and lease; goes with the lease        (lead_core.h)
 *           PREFIX/log/NUMBER  what each transaction of the store has changed, or a reference to the whole database
 *                                                                                             (commit_core.h, entry.h)
 *     blobs: DIR/SHA256        models and databases: too large for etcd, durable before the entry that needs them: in a directory that all
 *                              servers share, or on the disks of most of them                          (blobs.h, copies.h)
 *     each server: a state directory like that of a server without a cluster, which is always a prefix of the log
 *                                                                                             (server/replica/replica.h)
 *
 * What a caller sees:
 *   1. mfl_cluster_open starts a thread, which follows the log and campaigns when there is no leader.
 *   2. `changed` is called when the role is another one. MFL_CLUSTER_LEADS: open the server's store with mfl_cluster_store(), and
 *      serve with the term. MFL_CLUSTER_LEAVES: close all of it, and call mfl_cluster_closed; the thread follows again.
 *   3. The store's transactions go through mfl_cluster_store(): done, or "try again".
 *
 * A round is committed when its entry is in etcd, and its files are in DIR, or on most servers' disks. Two leaders can't commit the same entry (one transaction
 * of etcd compares the term and that the entry is new), a leader that was stopped and wakes commits nothing, and daemons refuse
 * messages of a lower term than one that they have seen. If etcd is away, the leader's lease ends: it stops serving, daemons keep
 * what they have trained, and somebody leads again when etcd is back.
 *
 * Everything here may be called from any thread, except open and close. */
#ifndef MFL_SERVER_CLUSTER_CLUSTER_H
#define MFL_SERVER_CLUSTER_CLUSTER_H

#include "proto/tls/tls.h"
#include "server/replica/replica.h"

struct mfl_cluster_options {
        const char *etcd;         /* addresses, separated by commas */
        const char *prefix;       /* of all keys in etcd */
        const char *name;         /* of this server */
        const char *address;      /* that peers reach it at */
        const char *blobs;        /* DIR */
        const char *servers;      /* "": DIR is shared; else all servers, and DIR is this one's (copies.h) */
        struct mfl_tls_files tls; /* between servers */
        const char *state_dir;
        const char *tls_ca, *tls_cert, *tls_key; /* for etcd; "" */
        uint64_t lease_ms;
};

enum mfl_cluster_role {
        MFL_CLUSTER_FOLLOWS,
        MFL_CLUSTER_LEADS,
        MFL_CLUSTER_LEAVES, /* it led, and must close */
        MFL_CLUSTER_ENDED,  /* the installation has left the cluster: nothing is to be served here any more */
};

struct mfl_cluster_view {
        enum mfl_cluster_role role;
        uint64_t term;    /* LEADS */
        uint64_t seq;     /* the last entry in this server's state directory, as a follower */
        char leader[320]; /* address of the leader; "": nobody leads, or nobody knows */
        char leader_name[64];
        char trouble[512]; /* why it can't follow or lead at the moment; "": nothing is wrong */
};

struct mfl_cluster;
/* MFL_INVALID: the options; as mfl_replica_open for the state directory. */
int mfl_cluster_open(
        const struct mfl_cluster_options *options, struct mfl_cluster **ret_cluster, struct mfl_error *err);
/* Gives up the lease, if the server is closed, and ends the thread. NULL is fine. */
void mfl_cluster_close(struct mfl_cluster *cluster);
/* changed NULL: nobody listens any more. Called from the cluster's thread. */
void mfl_cluster_listen(struct mfl_cluster *cluster, void (*changed)(void *user), void *user);
void mfl_cluster_look(struct mfl_cluster *cluster, struct mfl_cluster_view *ret_view);
/* For mfl_store_open_in. */
const struct mfl_store_cluster *mfl_cluster_store(struct mfl_cluster *cluster);
/* The store is closed: after LEAVES, or because the server ends. */
void mfl_cluster_closed(struct mfl_cluster *cluster);

/* ---- cluster_tool.c: programs of their own; print what they did ---- */
/* Takes the state directory of a server of its own into a cluster that has none yet. MFL_EXISTS. */
int mfl_cluster_join(const struct mfl_cluster_options *options, struct mfl_error *err);
/* Brings the state directory up to date, ends the cluster, and makes the directory one of a server of its own. MFL_BUSY: a server
 * leads. */
int mfl_cluster_leave(const struct mfl_cluster_options *options, struct mfl_error *err);

#endif
