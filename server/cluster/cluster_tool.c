/* SPDX-License-Identifier: Apache-2.0 */
/* Into the cluster and out of it again: mfl-server --join-cluster and --leave. See cluster.h.
 *   - both hold the leader's key meanwhile, with a lease of their own, so no server can lead;
 *   - join: files to the shared directory, the whole database as entry 1, then the mark in the database;
 *   - leave: the log to its end, an entry that ends it, then the mark goes. */
#include "server/cluster/cluster_internal.h"

#include <stdio.h>
#include <unistd.h>

#include "server/cluster/commit_core.h"

#define TOOL_LEASE_S 60u

struct tool {
        struct mfl_cluster_place place;
        struct mfl_etcd *etcd;
        struct mfl_replica *replica;
        uint64_t lease, term;
        struct mfl_cluster_files files;
        uint64_t files_seq;
};

static bool keep(void *user)
{
        struct tool *tool = user;
        struct mfl_error err;
        uint32_t ttl_s = 1;
        return mfl_etcd_keep(tool->etcd, tool->lease, &ttl_s, &err) || ttl_s;
}

/* Takes the leader's key. MFL_BUSY: a server leads. */
static int take_lead(struct tool *tool, const char *name, struct mfl_error *err)
{
        struct mfl_cluster_view view;
        char own[200];
        uint32_t ttl_s;
        bool done = false;
        int n = snprintf(own, sizeof own, "%s\n\n%llx\n", name, 0ull);
        int r = mfl_etcd_grant(tool->etcd, TOOL_LEASE_S, &tool->lease, &ttl_s, err);
        if (!r)
                r = mfl_etcd_create(tool->etcd, tool->place.leader, own, (size_t)n, tool->lease, &done, err);
        if (!r)
                r = mfl_cluster_leader(tool->etcd, &tool->place, &view, &tool->term, err);
        if (!r && !done)
                r = mfl_fail(err, MFL_BUSY,
                        "server %s (%s) leads the cluster: stop every server of it first, and wait for its "
                        "lease",
                        view.leader_name, view.leader);
        return r;
}

static int begin(struct tool *tool, const struct mfl_cluster_options *options, struct mfl_error *err)
{
        *tool = (struct tool){.files_seq = UINT64_MAX};
        int r = mfl_cluster_place_init(&tool->place, options, err);
        tool->place.blobs.beat = keep;
        tool->place.blobs.user = tool;
        if (!r)
                r = mfl_cluster_etcd_new(options, &tool->etcd, err);
        return r ? r : take_lead(tool, options->name, err);
}

static int end(struct tool *tool, int r)
{
        struct mfl_error ignored;
        if (tool->lease)
                mfl_etcd_revoke(tool->etcd, tool->lease, &ignored);
        mfl_copies_close(tool->place.copies);
        mfl_replica_close(tool->replica);
        mfl_etcd_free(tool->etcd);
        free(tool->files.v);
        return r;
}

static int write_entry(
        struct tool *tool, const struct mfl_store_change *change, bool ends, struct mfl_error *err)
{
        struct mfl_cluster_entry entry = {.etcd = tool->etcd,
                .place = &tool->place,
                .change = change,
                .term = tool->term,
                .ends = ends};
        int result = MFL_COMMIT_WAIT;
        int r = mfl_cluster_write(&entry, &result, err);
        if (r || result == MFL_COMMIT_DONE)
                return r;
        char why[sizeof err->text];
        mfl_strcpy(why, sizeof why, err->text);
        return mfl_fail(err, MFL_BUSY,
                "the cluster did not take the entry (%.300s): nothing has changed here; try again", why);
}

static int check_empty(struct tool *tool, struct mfl_error *err)
{
        struct mfl_etcd_values values = {0};
        char first[MFL_ETCD_KEY_BYTES];
        mfl_cluster_log_key(&tool->place, 0, first);
        int r = mfl_etcd_range(tool->etcd, first, tool->place.log_end, 1, &values, err);
        bool empty = !values.n;
        mfl_etcd_values_deinit(&values);
        return r || empty
                       ? r
                       : mfl_fail(err, MFL_EXISTS,
                                 "the cluster (prefix %s) has an installation already, and two can't become "
                                 "one; start with an "
                                 "empty state directory to be another server of it, or name another prefix",
                                 tool->place.prefix);
}

struct giving {
        struct tool *tool;
        uint32_t n;
};

static int give_file(
        void *user, const char *path, const uint8_t sha256[32], uint64_t bytes, struct mfl_error *err)
{
        struct giving *giving = user;
        giving->n++;
        return mfl_blobs_put(&giving->tool->place.blobs, path, sha256, bytes, err);
}

int mfl_cluster_join(const struct mfl_cluster_options *options, struct mfl_error *err)
{
        struct tool tool;
        struct mfl_store_change change;
        struct giving giving = {.tool = &tool};
        char path[1100];
        int r = begin(&tool, options, err);
        if (!r)
                r = check_empty(&tool, err);
        snprintf(path, sizeof path, "%s/cluster.whole", options->state_dir);
        if (!r)
                r = mfl_replica_join(options->state_dir, path, &tool.replica, &change, err);
        if (!r)
                r = mfl_replica_files(tool.replica, give_file, &giving, err);
        if (!r)
                r = write_entry(&tool, &change, false, err);
        if (!r)
                r = mfl_replica_joined(tool.replica, err);
        unlink(path);
        if (!r)
                printf("%s is in the cluster now, with %u files in %s: start its servers\n",
                        options->state_dir, giving.n, options->blobs);
        return end(&tool, r);
}

int mfl_cluster_leave(const struct mfl_cluster_options *options, struct mfl_error *err)
{
        struct tool tool;
        bool behind = true, ended = false;
        int r = begin(&tool, options, err);
        if (!r)
                r = mfl_cluster_copies(&tool.place, options, err);
        if (!r)
                r = mfl_replica_open(options->state_dir, &tool.replica, err);
        while (!r && behind) {
                struct mfl_cluster_reader reader = {
                        tool.etcd, &tool.place, tool.replica, &tool.files, &tool.files_seq, ""};
                r = mfl_cluster_read(&reader, &behind, err);
                /* This very server began to leave, and was stopped before it was done. */
                ended = r == MFL_NOT_FOUND && !strcmp(reader.ended_by, options->name);
                r = ended ? 0 : r;
                behind = behind && !ended;
        }
        struct mfl_store_change last = {.seq = r ? 0 : mfl_replica_seq(tool.replica) + 1,
                .bytes = options->name,
                .n = strlen(options->name)};
        if (!r && !ended)
                r = write_entry(&tool, &last, true, err);
        if (!r)
                r = mfl_replica_leave(tool.replica, err);
        if (!r)
                printf("%s is a state directory of its own now: remove 'cluster' from the configuration of "
                       "this server, and start it. "
                       "The other servers have nothing to serve any more\n",
                        options->state_dir);
        return end(&tool, r);
}
