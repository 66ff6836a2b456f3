/* SPDX-License-Identifier: Apache-2.0 */
/* Following the log: entries into the database, files beside it.
 *   - read the next entries of etcd; each is one transaction here;
 *   - then every file that rows name: there with the right SHA-256, or copied from the shared directory, or from a server that has it;
 *   - then what no row names goes.
 * Fails, for now, when etcd or the directory can't be reached or the disk is full; and for good when the database is not what the
 * entry was made for, or the log is of a later release. */
#include "server/cluster/cluster_internal.h"

#include <stdio.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/log.h"
#include "server/cluster/entry.h"

#define SWEEP_AGE_S 3600u

void mfl_cluster_log_key(const struct mfl_cluster_place *place, uint64_t seq, char key[MFL_ETCD_KEY_BYTES])
{
        snprintf(key, MFL_ETCD_KEY_BYTES, "%s/log/%016llx", place->prefix, (unsigned long long)seq);
}

int mfl_cluster_leader(struct mfl_etcd *etcd, const struct mfl_cluster_place *place,
        struct mfl_cluster_view *view, uint64_t *ret_term, struct mfl_error *err)
{
        struct mfl_etcd_values values = {0};
        char text[512] = "";
        int r = mfl_etcd_range(etcd, place->leader, place->leader_end, 1, &values, err);
        if (r)
                return r;
        view->leader[0] = view->leader_name[0] = 0;
        *ret_term = values.n ? values.v[0].created : 0;
        if (values.n)
                memcpy(text, values.v[0].bytes, MFL_MIN(values.v[0].n, sizeof text - 1));
        mfl_etcd_values_deinit(&values);
        char *rest = text, *name = strsep(&rest, "\n"), *address = rest ? strsep(&rest, "\n") : NULL;
        mfl_strcpy(view->leader_name, sizeof view->leader_name, name);
        mfl_strcpy(view->leader, sizeof view->leader, address ? address : "");
        return 0;
}

/* What is damaged here goes, and comes again. */
int mfl_cluster_get(struct mfl_cluster_place *place, const uint8_t sha256[32], uint64_t bytes,
        const char *path, struct mfl_error *err)
{
        struct mfl_blobs *blobs = &place->blobs;
        char blob[MFL_BLOBS_PATH_BYTES];
        int r = 0;
        mfl_blobs_path(blobs, sha256, blob);
        if (place->copies && !mfl_blobs_is(blobs, blob, sha256, bytes)) {
                unlink(blob);
                r = mfl_copies_get(place->copies, sha256, bytes, blob, blobs->beat, blobs->user, err);
        }
        return r ? r : mfl_blobs_get(blobs, sha256, bytes, path, err);
}

/* ---- entries ---- */

static int take_whole(struct mfl_cluster_reader *reader, const struct mfl_entry *entry,
        struct mfl_store_change *change, char path[1100], struct mfl_error *err)
{
        snprintf(path, 1100, "%s/cluster.whole", reader->place->state_dir);
        change->whole = path;
        change->whole_bytes = entry->blob_bytes;
        memcpy(change->whole_sha256, entry->sha256, sizeof change->whole_sha256);
        return mfl_cluster_get(reader->place, entry->sha256, entry->blob_bytes, path, err);
}

static uint64_t number_of(const struct mfl_etcd_value *value)
{
        const char *number = strrchr(value->key, '/');
        return number ? strtoull(number + 1, NULL, 16) : 0;
}

static int take_entry(
        struct mfl_cluster_reader *reader, const struct mfl_etcd_value *value, struct mfl_error *err)
{
        struct mfl_entry entry;
        struct mfl_store_change change = {0};
        char path[1100];
        int r = mfl_entry_read(value->bytes, value->n, &entry, err);
        if (r)
                return r;
        change.seq = number_of(value);
        change.schema = entry.schema;
        change.bytes = entry.payload;
        change.n = entry.n;
        if (entry.kind == MFL_ENTRY_END) {
                memcpy(reader->ended_by, entry.payload, MFL_MIN(entry.n, sizeof reader->ended_by - 1));
                return mfl_fail(err, MFL_NOT_FOUND,
                        "the installation has left the cluster: server %s has it in its state directory",
                        reader->ended_by);
        }
        if (entry.kind == MFL_ENTRY_WHOLE)
                r = take_whole(reader, &entry, &change, path, err);
        else if (change.seq != mfl_replica_seq(reader->replica) + 1)
                r = mfl_fail(err, MFL_INVALID, "entry %llu of the log is missing in etcd",
                        (unsigned long long)mfl_replica_seq(reader->replica) + 1);
        return r ? r : mfl_replica_apply(reader->replica, &change, err);
}

/* A log keeps its newest entry. So a directory whose last entry is not in it, with none after it, is ahead of that log: etcd was lost
 * or restored, or the directory is another installation's. Were it to lead, it would go on with that. Looked at after opening only. */
static int read_entries(struct mfl_cluster_reader *reader, bool *ret_behind, struct mfl_error *err)
{
        char first[MFL_ETCD_KEY_BYTES];
        struct mfl_etcd_values values = {0};
        const uint64_t seq = mfl_replica_seq(reader->replica);
        const bool looks = seq && *reader->files_seq == UINT64_MAX;
        mfl_cluster_log_key(reader->place, looks ? seq : seq + 1, first);
        int r = mfl_etcd_range(
                reader->etcd, first, reader->place->log_end, MFL_CLUSTER_READ_MAX, &values, err);
        if (!r && looks && !values.n)
                r = mfl_fail(err, MFL_INVALID,
                        "state directory %.200s has entry %llu, and the cluster's log in etcd ends before "
                        "it: it is of another installation, or etcd has lost its data (docs/admin.md, etcd "
                        "is lost)",
                        reader->place->state_dir, (unsigned long long)seq);
        for (uint32_t i = looks && values.n && number_of(&values.v[0]) == seq; i < values.n && !r; i++)
                r = take_entry(reader, &values.v[i], err);
        *ret_behind = values.n == MFL_CLUSTER_READ_MAX;
        mfl_etcd_values_deinit(&values);
        return r;
}

/* ---- files ---- */

struct bringing {
        struct mfl_cluster_reader *reader;
        struct mfl_cluster_files seen;
};

static uint64_t hash_path(const char *path)
{
        uint64_t h = 14695981039346656037u;
        for (; *path; path++)
                h = (h ^ (uint8_t)*path) * 1099511628211u;
        return h;
}

static bool knows(const struct mfl_cluster_files *files, const struct mfl_cluster_file *file)
{
        for (uint32_t i = 0; i < files->n; i++)
                if (files->v[i].path == file->path &&
                        !memcmp(files->v[i].sha256, file->sha256, sizeof file->sha256))
                        return true;
        return false;
}

static int note(struct mfl_cluster_files *files, const struct mfl_cluster_file *file, struct mfl_error *err)
{
        if (files->n == files->room) {
                uint32_t room = files->room ? 2 * files->room : 64;
                struct mfl_cluster_file *grown = mfl_realloc(files->v, room * sizeof *grown);
                if (!grown)
                        return mfl_fail_memory(err, room * sizeof *grown, "the list of files");
                files->v = grown;
                files->room = room;
        }
        files->v[files->n++] = *file;
        return 0;
}

static int on_file(
        void *user, const char *path, const uint8_t sha256[32], uint64_t bytes, struct mfl_error *err)
{
        struct bringing *b = user;
        struct mfl_cluster_reader *reader = b->reader;
        struct mfl_cluster_file file = {.path = hash_path(path)};
        memcpy(file.sha256, sha256, sizeof file.sha256);
        int r = 0;
        if (!(knows(reader->files, &file) && !access(path, R_OK)) &&
                !mfl_blobs_is(&reader->place->blobs, path, sha256, bytes))
                r = mfl_cluster_get(reader->place, sha256, bytes, path, err);
        return r ? r : note(&b->seen, &file, err);
}

static int bring_files(struct mfl_cluster_reader *reader, struct mfl_error *err)
{
        struct bringing b = {.reader = reader};
        int r = mfl_replica_files(reader->replica, on_file, &b, err);
        if (r) { /* what was found stays known */
                free(b.seen.v);
                return r;
        }
        free(reader->files->v);
        *reader->files = b.seen;
        mfl_replica_prune(reader->replica);
        *reader->files_seq = mfl_replica_seq(reader->replica);
        return 0;
}

/* ---- blobs that nobody needs any longer ---- */

struct keeping {
        const struct mfl_cluster_files *files;
        uint8_t whole[32];
};

static bool keeps(void *user, const char *name)
{
        const struct keeping *keeping = user;
        char hex[MFL_SHA256_HEX_BYTES];
        mfl_hex(keeping->whole, sizeof keeping->whole, hex);
        bool is = !strncmp(name, hex, 64);
        for (uint32_t i = 0; i < keeping->files->n && !is; i++) {
                mfl_hex(keeping->files->v[i].sha256, 32, hex);
                is = !strncmp(name, hex, 64);
        }
        return is;
}

/* What the leader gives for the next entries is younger than SWEEP_AGE_S; the log's first entry is the newest whole database. */
static int sweep(struct mfl_etcd *etcd, struct mfl_cluster_place *place,
        const struct mfl_cluster_files *files, struct mfl_error *err)
{
        struct keeping keeping = {.files = files};
        struct mfl_etcd_values values = {0};
        struct mfl_entry entry;
        char first[MFL_ETCD_KEY_BYTES];
        mfl_cluster_log_key(place, 0, first);
        int r = mfl_etcd_range(etcd, first, place->log_end, 1, &values, err);
        bool known = !r && values.n && !mfl_entry_read(values.v[0].bytes, values.v[0].n, &entry, err) &&
                     entry.kind == MFL_ENTRY_WHOLE;
        if (known)
                memcpy(keeping.whole, entry.sha256, sizeof keeping.whole);
        mfl_etcd_values_deinit(&values);
        uint32_t n = known ? mfl_blobs_sweep(&place->blobs, SWEEP_AGE_S, keeps, &keeping) : 0;
        if (n)
                mfl_log(MFL_LOG_INFO, "cluster: removed %u files that no row names any longer from %s", n,
                        place->blobs.dir);
        return r;
}

int mfl_cluster_sweep(struct mfl_cluster_reader *reader, struct mfl_error *err)
{
        return sweep(reader->etcd, reader->place, reader->files, err);
}

static int on_name(
        void *user, const char *path, const uint8_t sha256[32], uint64_t bytes, struct mfl_error *err)
{
        struct mfl_cluster_file file = {.path = hash_path(path)};
        memcpy(file.sha256, sha256, sizeof file.sha256);
        return note(user, &file, err);
}

int mfl_cluster_sweep_own(struct mfl_etcd *etcd, struct mfl_cluster_place *place, struct mfl_error *err)
{
        struct mfl_cluster_files files = {0};
        int r = mfl_replica_look(place->state_dir, on_name, &files, err);
        if (!r)
                r = sweep(etcd, place, &files, err);
        free(files.v);
        return r;
}

int mfl_cluster_read(struct mfl_cluster_reader *reader, bool *ret_behind, struct mfl_error *err)
{
        int r = read_entries(reader, ret_behind, err);
        if (r || *ret_behind || *reader->files_seq == mfl_replica_seq(reader->replica))
                return r;
        return bring_files(reader, err);
}
