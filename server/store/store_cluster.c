/* SPDX-License-Identifier: Apache-2.0 */
/* The leader's side of a cluster: what a transaction changes goes to the log before it is committed here. See store_cluster.h. */
#include "server/store/store_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/fs.h"

#define PIECE_BYTES ((size_t)1 << 20)

static int on_int(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

int mfl_store_cluster_seq(struct mfl_db *db, int64_t schema, int64_t *ret_seq, struct mfl_error *err)
{
        *ret_seq = -1;
        return schema ? mfl_db_query(db, on_int, ret_seq, err,
                                "SELECT value FROM meta WHERE key = 'cluster_seq'", "")
                      : 0;
}

int mfl_store_check_cluster(struct mfl_store *store, int64_t schema, struct mfl_error *err)
{
        int64_t seq;
        int r = mfl_store_cluster_seq(store->db, schema, &seq, err);
        if (r)
                return r;
        if (seq >= 0 && !store->cluster && !store->on_repair)
                return mfl_fail(err, MFL_EXISTS,
                        "state directory %.200s belongs to a cluster: give the server its 'cluster' "
                        "(docs/admin.md, Several "
                        "servers), or take the directory out with mfl-server --leave",
                        store->dir);
        if (seq < 0 && schema && store->cluster)
                return mfl_fail(err, MFL_EXISTS,
                        "state directory %.200s is of a server of its own: take it into the cluster with "
                        "mfl-server "
                        "--join-cluster",
                        store->dir);
        store->seq = seq > 0 ? (uint64_t)seq : 0;
        return 0;
}

int mfl_store_give(struct mfl_store *store, const char *path, const uint8_t sha256[32], uint64_t bytes,
        struct mfl_error *err)
{
        return store->cluster ? store->cluster->blob(store->cluster->user, path, sha256, bytes, err) : 0;
}

static int copy_fd(int from, struct mfl_fs_file *to, const char *path, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *piece = mfl_malloc(PIECE_BYTES);
        ssize_t n = 1;
        int r = piece ? 0 : mfl_fail_memory(err, PIECE_BYTES, "copying a file");
        while (!r && n > 0) {
                n = read(from, piece, PIECE_BYTES);
                if (n < 0)
                        r = mfl_fail_errno(err, "read %s", path);
                else if (n > 0)
                        r = mfl_fs_write(to, piece, (size_t)n, err);
        }
        return r;
}

static int copy_file(const char *from, const char *to, struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        int fd = open(from, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return mfl_fail_errno(err, "open %s", from);
        int r = mfl_fs_begin(&file, to, err);
        if (!r)
                r = copy_fd(fd, &file, from, err);
        if (!r)
                r = mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        close(fd);
        return r;
}

/* Rows of a later round may already be written to free places of the file, so what is given is a copy of it. */
int mfl_store_give_states(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        char from[MFL_STORE_PATH_BYTES], to[MFL_STORE_PATH_BYTES];
        struct mfl_store_file file = {""};
        mfl_store_path(store, id, MFL_STORE_STATES_FILE, from);
        snprintf(to, sizeof to, "%.3900s/uploads/states-%.64s", store->dir,
                id); /* a start empties that directory */
        int r = mfl_store_code(copy_file(from, to, err));
        if (!r)
                r = mfl_store_code(mfl_store_sha256_file(to, file.sha256, &file.bytes, err));
        if (!r)
                r = mfl_store_give(store, to, file.sha256, file.bytes, err);
        unlink(to);
        return r ? r
                 : mfl_db_run(store->db, err,
                           "INSERT OR REPLACE INTO state_files (job, sha256, bytes) VALUES (?1, ?2, ?3)",
                           "tbi", id, (const void *)file.sha256, sizeof file.sha256, (int64_t)file.bytes);
}

int mfl_store_whole(
        struct mfl_db *db, const char *path, struct mfl_store_change *change, struct mfl_error *err)
{
        int r = mfl_changes_whole(db, path, err);
        if (!r)
                r = mfl_store_code(
                        mfl_store_sha256_file(path, change->whole_sha256, &change->whole_bytes, err));
        change->whole = path;
        return r;
}

int mfl_store_replicate(struct mfl_store *store, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        struct mfl_store_change change = {
                .seq = store->seq + 1, .schema = (uint32_t)mfl_store_schema_newest()};
        int r = mfl_db_run(store->db, err,
                "INSERT OR REPLACE INTO meta (key, value) VALUES ('cluster_seq', ?1)", "i",
                (int64_t)change.seq);
        bool whole = store->whole || change.seq % MFL_STORE_WHOLE_EVERY == 0;
        if (!r && !whole) /* changes of the schema can't be recorded */
                r = mfl_changes_get(store->changes, &change.bytes, &change.n, err);
        if (r)
                return r;
        snprintf(path, sizeof path, "%.3900s/cluster.whole", store->dir);
        whole = whole || change.n > MFL_STORE_CHANGE_MAX;
        if (whole)
                r = mfl_store_whole(store->db, path, &change, err);
        if (!r)
                r = store->cluster->commit(store->cluster->user, &change, err);
        if (whole)
                unlink(path);
        return r;
}
