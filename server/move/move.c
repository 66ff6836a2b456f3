/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on their way from one server to another. See move.h.
 *   - begin, export, end: rows of `moves`, a file of rows, the list of files with their SHA-256;
 *   - write, take: files in uploads/, checked, linked into the job's directory under a mark, then one transaction.
 * Fails when the disk is full or broken, and when what comes is not what was listed. */
#include "server/move/move.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fs.h"
#include "server/store/store_internal.h"
#include "server/move/rows.h"

void mfl_move_files_deinit(struct mfl_move_files *files)
{
        free(files->v);
        *files = (struct mfl_move_files){0};
}

static int pass(const char *point, const char *id, struct mfl_error *err)
{
        int r = mfl_fs_fault(point, id);
        return r ? mfl_store_code(mfl_fail(err, r, "%s: %s", point, strerror(-r))) : 0;
}

/* ---- rows of `moves` ---- */

struct found {
        bool is, outward;
        char job[MFL_JOB_ID_BYTES];
        struct mfl_move move;
};

static int on_move(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct found *found = user;
        found->is = true;
        found->outward = mfl_db_int(row, 4) != 0;
        mfl_strcpy(found->move.token, sizeof found->move.token, mfl_db_text(row, 0));
        mfl_strcpy(found->job, sizeof found->job, mfl_db_text(row, 1));
        mfl_strcpy(found->move.to, sizeof found->move.to, mfl_db_text(row, 2));
        mfl_strcpy(found->move.there, sizeof found->move.there, mfl_db_text(row, 3));
        return 0;
}

static int find_leaving(
        struct mfl_store *store, const char *id, struct found *ret_found, struct mfl_error *err)
{
        *ret_found = (struct found){false};
        return mfl_db_query(store->db, on_move, ret_found, err,
                "SELECT token, job, peer, there, outward FROM moves WHERE job = ?1 AND outward = 1", "t", id);
}

static int find_token(
        struct mfl_store *store, const char *token, struct found *ret_found, struct mfl_error *err)
{
        *ret_found = (struct found){false};
        return mfl_db_query(store->db, on_move, ret_found, err,
                "SELECT token, job, peer, there, outward FROM moves WHERE token = ?1 AND outward = 0", "t",
                token);
}

static int add_move(struct mfl_store *store, const char *token, const char *id, bool outward,
        const char *peer, struct mfl_error *err)
{
        return mfl_db_run(store->db, err,
                "INSERT INTO moves (token, job, outward, peer, there, time_ms) VALUES (?1, ?2, ?3, ?4, '', "
                "?5)",
                "ttiti", token, id, (int64_t)outward, peer, (int64_t)mfl_store_unix_ms());
}

/* ---- where it was ---- */

static int on_state(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

static int read_state(struct mfl_store *store, const char *id, int64_t *ret_state, struct mfl_error *err)
{
        *ret_state = -1;
        int r = mfl_db_query(
                store->db, on_state, ret_state, err, "SELECT state FROM jobs WHERE id = ?1", "t", id);
        return r || *ret_state >= 0 ? r : mfl_fail(err, MFL_NOT_FOUND, "there is no job %s", id);
}

static int new_token(char ret_token[MFL_MOVE_TOKEN_BYTES], struct mfl_error *err)
{
        uint8_t bytes[16];
        if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
                return mfl_fail_errno(err, "getrandom");
        mfl_hex(bytes, sizeof bytes, ret_token);
        return 0;
}

static int begin(struct mfl_store *store, const char *id, const char *to, struct mfl_move *ret_move,
        struct mfl_error *err)
{
        struct found found;
        int64_t state;
        int r = find_leaving(store, id, &found, err);
        if (!r && found.is) {
                *ret_move = found.move;
                return *found.move.there ? mfl_fail(err, MFL_EXISTS, "job %s has moved to %s, as %s", id,
                                                   found.move.to, found.move.there)
                                         : 0;
        }
        if (!r)
                r = read_state(store, id, &state, err);
        if (!r && state != MFL_JOB_WAITING && state != MFL_JOB_RUNNING)
                r = mfl_fail(err, MFL_BUSY,
                        "job %s has ended: there is nothing to move (mfl pull fetches its models)", id);
        if (r)
                return r;
        *ret_move = (struct mfl_move){.there = ""};
        mfl_strcpy(ret_move->to, sizeof ret_move->to, to);
        r = new_token(ret_move->token, err);
        return r ? r : add_move(store, ret_move->token, id, true, to, err);
}

int mfl_store_move_begin(struct mfl_store *store, const char *id, const char *to, struct mfl_move *ret_move,
        struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (!r)
                r = mfl_store_end(store, begin(store, id, to, ret_move, err), err);
        return r ? r : pass("after-move-begin", id, err);
}

int mfl_store_move_get(
        struct mfl_store *store, const char *id, struct mfl_move *ret_move, struct mfl_error *err)
{
        struct found found;
        mfl_store_lock(store);
        int r = find_leaving(store, id, &found, err);
        mfl_store_unlock(store);
        if (!r && !found.is)
                return mfl_fail(err, MFL_NOT_FOUND, "job %s does not move", id);
        *ret_move = found.move;
        return r;
}

static int add_file(struct mfl_move_files *files, const char *path, const char *name, struct mfl_error *err)
{
        struct mfl_store_file *grown = mfl_realloc(files->v, (files->n + 1) * sizeof *grown);
        if (!grown)
                return mfl_fail_memory(err, (files->n + 1) * sizeof *grown, "the list of files");
        files->v = grown;
        struct mfl_store_file *file = &files->v[files->n];
        if (files->n == MFL_MOVE_FILES_MAX || !mfl_strcpy(file->name, sizeof file->name, name))
                return mfl_fail(err, MFL_BUSY,
                        "the job has more than %d files, or one with a long name (%s): it "
                        "can't move",
                        MFL_MOVE_FILES_MAX, name);
        files->n++;
        return mfl_store_code(mfl_store_sha256_file(path, file->sha256, &file->bytes, err));
}

static int list_files(
        struct mfl_store *store, const char *id, struct mfl_move_files *files, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES], dir[MFL_STORE_PATH_BYTES];
        DIR *d = opendir(mfl_store_path(store, id, "", dir));
        struct dirent *entry;
        int r = add_file(files, mfl_store_path(store, id, MFL_MOVE_ROWS, path), MFL_MOVE_ROWS, err);
        while (!r && d && (entry = readdir(d))) {
                size_t n = strlen(entry->d_name);
                bool other = entry->d_name[0] == '.' || !strcmp(entry->d_name, MFL_MOVE_ROWS) ||
                             (n > 4 && !strcmp(entry->d_name + n - 4, ".tmp"));
                if (!other)
                        r = add_file(
                                files, mfl_store_path(store, id, entry->d_name, path), entry->d_name, err);
        }
        if (d)
                closedir(d);
        return r;
}

/* It has reached its end before it could be stopped. */
static int check_held(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        int64_t state;
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = read_state(store, id, &state, err);
        const bool ended = !r && state != MFL_JOB_STOPPED;
        if (ended)
                r = mfl_db_run(store->db, err,
                        "DELETE FROM moves WHERE job = ?1 AND outward = 1 AND there = ''", "t", id);
        r = mfl_store_end(store, r, err);
        return r || !ended
                       ? r
                       : mfl_fail(err, MFL_BUSY, "job %s has ended meanwhile: there is nothing to move", id);
}

int mfl_store_move_export(
        struct mfl_store *store, const char *id, struct mfl_move_files *ret_files, struct mfl_error *err)
{
        struct mfl_move_files files = {0};
        char path[MFL_STORE_PATH_BYTES];
        int r = mfl_store_flush(store, err);
        if (!r)
                r = check_held(store, id, err);
        if (r)
                return r;
        mfl_store_lock(store);
        r = mfl_store_code(
                mfl_rows_write(store->db, id, mfl_store_path(store, id, MFL_MOVE_ROWS, path), err));
        mfl_store_unlock(store);
        if (!r)
                r = list_files(store, id, &files, err);
        if (r)
                mfl_move_files_deinit(&files);
        else
                *ret_files = files;
        return r;
}

int mfl_store_move_read(struct mfl_store *store, const char *id, const char *file, uint64_t offset,
        void *ret_bytes, size_t n, size_t *ret_n, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        struct mfl_move move;
        int r = mfl_store_move_get(store, id, &move, err);
        if (r)
                return r;
        int fd = open(mfl_store_path(store, id, file, path), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return errno == ENOENT ? mfl_fail(err, MFL_NOT_FOUND, "job %s has no file %s", id, file)
                                       : mfl_store_code(mfl_fail_errno(err, "open %s", path));
        size_t have = 0;
        for (ssize_t k = 1; k && have < n && !r; have += k > 0 ? (size_t)k : 0) {
                k = pread(fd, (char *)ret_bytes + have, n - have, (off_t)(offset + have));
                if (k < 0 && errno != EINTR)
                        r = mfl_store_code(mfl_fail_errno(err, "read %s", path));
        }
        close(fd);
        *ret_n = have;
        return r;
}

int mfl_store_move_end(struct mfl_store *store, const char *id, const char *there, struct mfl_error *err)
{
        struct found found;
        char reason[MFL_REASON_BYTES];
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = find_leaving(store, id, &found, err);
        if (!r && !found.is)
                r = mfl_fail(err, MFL_NOT_FOUND, "job %s does not move", id);
        mfl_snprintf(reason, sizeof reason, "moved to %s, as %s", found.move.to, there);
        if (!r)
                r = mfl_db_run(store->db, err, "UPDATE moves SET there = ?1, time_ms = ?3 WHERE token = ?2",
                        "tti", there, found.move.token, (int64_t)mfl_store_unix_ms());
        if (!r)
                r = mfl_db_run(store->db, err, "UPDATE jobs SET reason = ?1 WHERE id = ?2", "tt", reason, id);
        if (!r)
                r = pass("before-move-end", id, err);
        r = mfl_store_end(store, r, err);
        if (!r)
                r = pass("after-move-end", id, err);
        if (!r)
                mfl_store_unlink(store, id, MFL_MOVE_ROWS);
        return r;
}

int mfl_store_move_back(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        struct found found;
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = find_leaving(store, id, &found, err);
        if (!r && !found.is)
                r = mfl_fail(err, MFL_NOT_FOUND, "job %s does not move", id);
        if (!r && *found.move.there)
                r = mfl_fail(err, MFL_EXISTS, "job %s has moved to %s, as %s", id, found.move.to,
                        found.move.there);
        if (!r)
                r = mfl_db_run(store->db, err, "DELETE FROM moves WHERE token = ?1", "t", found.move.token);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "UPDATE jobs SET state = ?1, reason = '', finished_ms = 0 WHERE id = ?2", "it",
                        (int64_t)MFL_JOB_WAITING, id);
        r = mfl_store_end(store, r, err);
        if (!r)
                mfl_store_unlink(store, id, MFL_MOVE_ROWS);
        return r;
}

int mfl_store_move_settle(struct mfl_store *store, struct mfl_error *err)
{
        int64_t n = 0;
        mfl_store_lock(store);
        int r = mfl_db_query(store->db, on_state, &n, err,
                "SELECT count(*) FROM moves JOIN jobs ON jobs.id = moves.job WHERE outward = 1 AND state < "
                "?1",
                "i", (int64_t)MFL_JOB_DONE);
        mfl_store_unlock(store);
        if (r || !n)
                return r;
        r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_db_run(store->db, err,
                "UPDATE jobs SET state = ?1, reason = 'on its way to ' || (SELECT peer FROM moves WHERE job "
                "= "
                "jobs.id AND outward = 1), finished_ms = ?3 WHERE state < ?2 AND id IN (SELECT job FROM "
                "moves "
                "WHERE outward = 1)",
                "iii", (int64_t)MFL_JOB_STOPPED, (int64_t)MFL_JOB_DONE, (int64_t)mfl_store_unix_ms());
        return mfl_store_end(store, r, err);
}

static int on_to(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        mfl_strcpy(user, MFL_MOVE_TO_BYTES, mfl_db_text(row, 0));
        return 0;
}

int mfl_store_move_last(struct mfl_store *store, char ret_to[MFL_MOVE_TO_BYTES], struct mfl_error *err)
{
        *ret_to = 0;
        mfl_store_lock(store);
        int r = mfl_db_query(store->db, on_to, ret_to, err,
                "SELECT peer FROM moves WHERE outward = 1 AND there <> '' AND time_ms >= (SELECT "
                "coalesce(max(created_ms), 0) FROM jobs) ORDER BY time_ms DESC LIMIT 1",
                "");
        mfl_store_unlock(store);
        return r;
}

/* ---- where it goes ---- */

static int known(
        struct mfl_store *store, const char *token, char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        struct found found;
        *ret_id = 0;
        int r = find_token(store, token, &found, err);
        if (r || !found.is)
                return r;
        mfl_strcpy(ret_id, MFL_JOB_ID_BYTES, found.job);
        return *found.job
                       ? 0
                       : mfl_fail(err, MFL_BUSY, "the move was given up (mfl move --back): begin a new one");
}

int mfl_store_move_known(
        struct mfl_store *store, const char *token, char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        mfl_store_lock(store);
        int r = known(store, token, ret_id, err);
        mfl_store_unlock(store);
        return r;
}

static void upload_path(
        struct mfl_store *store, const char *token, const char *file, char path[MFL_STORE_PATH_BYTES])
{
        snprintf(path, MFL_STORE_PATH_BYTES, "%.3800s/uploads/%s-%s", store->dir, token, file);
}

int mfl_store_move_void(
        struct mfl_store *store, const char *token, char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        struct found found;
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = find_token(store, token, &found, err);
        mfl_strcpy(ret_id, MFL_JOB_ID_BYTES, found.job);
        if (!r && !found.is)
                r = add_move(store, token, "", false, "", err);
        return mfl_store_end(store, r, err);
}

int mfl_store_move_write(struct mfl_store *store, const char *token, const char *file, uint64_t offset,
        const void *bytes, size_t n, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        upload_path(store, token, file, path);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (offset ? 0 : O_TRUNC), 0600);
        if (fd < 0)
                return mfl_store_code(mfl_fail_errno(err, "open %s", path));
        int r = 0;
        for (size_t have = 0; have < n && !r;) {
                ssize_t k = pwrite(fd, (const char *)bytes + have, n - have, (off_t)(offset + have));
                if (k < 0 && errno != EINTR)
                        r = mfl_store_code(mfl_fail_errno(err, "write %s", path));
                have += k > 0 ? (size_t)k : 0;
        }
        close(fd);
        return r;
}

/* The number that the job had, if none as high was ever given here; else the next one. A mark makes files without rows no
 * loss, should this server end before the rows are there. */
static int reserve(struct mfl_store *store, const struct mfl_move_take *take, char ret_id[MFL_JOB_ID_BYTES],
        int64_t *ret_n, struct mfl_error *err)
{
        int64_t given = 0;
        long long had = 0;
        char token_id[MFL_JOB_ID_BYTES];
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = known(store, take->token, token_id, err);
        if (!r && *token_id) {
                mfl_strcpy(ret_id, MFL_JOB_ID_BYTES, token_id);
                r = mfl_fail(err, MFL_EXISTS, "the job is here already, as %s", token_id);
        }
        if (!r)
                r = mfl_db_query(store->db, on_state, &given, err,
                        "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'jobs'", "");
        if (!r && sscanf(take->had, "j-%lld", &had) != 1)
                had = 0;
        *ret_n = MFL_MAX(given + 1, had > 0 && had < 1000000 ? (int64_t)had : 1);
        if (!r) {
                snprintf(ret_id, MFL_JOB_ID_BYTES, "j-%06lld", (long long)*ret_n);
                r = mfl_db_run(
                        store->db, err, "INSERT OR REPLACE INTO deleted (job) VALUES (?1)", "t", ret_id);
        }
        return mfl_store_end(store, r, err);
}

/* A file as it was sent: whole, and on the disk. */
static int check_upload(
        struct mfl_store *store, const char *token, const struct mfl_store_file *file, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        uint8_t sha256[MFL_SHA256_BYTES];
        uint64_t bytes;
        upload_path(store, token, file->name, path);
        int r = mfl_store_sha256_file(path, sha256, &bytes, err);
        if (r == -ENOENT ||
                (!r && (bytes != file->bytes || memcmp(sha256, file->sha256, sizeof sha256) != 0)))
                return mfl_fail(err, MFL_NOT_FOUND, "%s has not come whole: send it again", file->name);
        int fd = r ? -1 : open(path, O_RDONLY | O_CLOEXEC);
        if (!r && (fd < 0 || fsync(fd)))
                r = mfl_fail_errno(err, "fsync %s", path);
        if (fd >= 0)
                close(fd);
        return mfl_store_code(r);
}

static int place_files(
        struct mfl_store *store, const struct mfl_move_take *take, const char *id, struct mfl_error *err)
{
        char from[MFL_STORE_PATH_BYTES], to[MFL_STORE_PATH_BYTES];
        int r = mfl_store_make_job_dir(store, id, err);
        for (uint32_t i = 0; i < take->n_files && !r; i++) {
                if (!strcmp(take->files[i].name, MFL_MOVE_ROWS))
                        continue;
                upload_path(store, take->token, take->files[i].name, from);
                mfl_store_path(store, id, take->files[i].name, to);
                unlink(to);
                if (link(from, to))
                        r = mfl_store_code(mfl_fail_errno(err, "link %s to %s", from, to));
        }
        return r ? r : mfl_store_code(mfl_fs_sync_dir(mfl_store_path(store, id, "", to), err));
}

struct naming {
        struct mfl_store *store;
        const struct mfl_move_take *take;
        const char *id;
};

/* A file that a row names must have come, as the row says. */
static int on_named(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        const struct naming *naming = user;
        uint8_t sha256[MFL_SHA256_BYTES];
        char path[MFL_STORE_PATH_BYTES];
        if (!*mfl_db_text(row, 0) || !mfl_db_bytes(row, 1))
                return 0;
        mfl_db_blob(row, 1, sha256, sizeof sha256);
        for (uint32_t i = 0; i < naming->take->n_files; i++) {
                const struct mfl_store_file *file = &naming->take->files[i];
                if (!strcmp(file->name, mfl_db_text(row, 0)) && !memcmp(file->sha256, sha256, sizeof sha256))
                        return mfl_store_give(naming->store,
                                mfl_store_path(naming->store, naming->id, file->name, path), sha256,
                                file->bytes, err);
        }
        return mfl_fail(
                err, MFL_INVALID, "the job's rows name the file %s, which has not come", mfl_db_text(row, 0));
}

static int check_names(
        struct mfl_store *store, const struct mfl_move_take *take, const char *id, struct mfl_error *err)
{
        struct naming naming = {store, take, id};
        int64_t n_states = 0;
        int r = mfl_db_query(store->db, on_named, &naming, err,
                "SELECT 'initial.f32', CASE WHEN has_initial THEN initial_sha256 END FROM jobs WHERE id = ?1 "
                "UNION SELECT file, file_sha256 FROM rounds WHERE job = ?1 AND kept = 1 AND superseded = 0 "
                "UNION SELECT frozen_file, frozen_sha256 FROM rounds WHERE job = ?1 AND kept = 1 AND "
                "superseded "
                "= 0 AND frozen_file <> ''",
                "t", id);
        if (!r)
                r = mfl_db_query(store->db, on_state, &n_states, err,
                        "SELECT count(*) FROM client_states WHERE job = ?1 AND site_sha256 IS NULL", "t", id);
        return r || !n_states || !store->cluster ? r : mfl_store_give_states(store, id, err);
}

static uint64_t next_line(void *user)
{
        struct mfl_store *store = user;
        pthread_mutex_lock(&store->log_mutex);
        uint64_t seq = store->next_seq++;
        pthread_mutex_unlock(&store->log_mutex);
        return seq;
}

static int on_text(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        char **text = user;
        *text = mfl_strdup(mfl_db_text(row, 0));
        return *text ? 0 : mfl_fail_memory(err, strlen(mfl_db_text(row, 0)), "a job file");
}

static int take_rows(struct mfl_store *store, const struct mfl_move_take *take, const char *id, int64_t n,
        struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        MFL_CLEANUP_FREE char *text = NULL;
        const struct mfl_rows_new new = {.id = id,
                .owner = take->any_owner ? "" : take->owner,
                .n = n,
                .now_ms = (int64_t)mfl_store_unix_ms(),
                .state = MFL_JOB_WAITING,
                .line = next_line,
                .user = store};
        upload_path(store, take->token, MFL_MOVE_ROWS, path);
        int r = mfl_rows_read(store->db, path, &new, err);
        if (!r)
                r = mfl_db_query(
                        store->db, on_text, &text, err, "SELECT text FROM jobs WHERE id = ?1", "t", id);
        if (!r)
                r = take->vet(take->user, text ? text : "", err);
        if (!r)
                r = check_names(store, take, id, err);
        if (!r)
                r = add_move(store, take->token, id, false, take->from, err);
        return r ? r : mfl_db_run(store->db, err, "DELETE FROM deleted WHERE job = ?1", "t", id);
}

static void drop_uploads(struct mfl_store *store, const struct mfl_move_take *take)
{
        char path[MFL_STORE_PATH_BYTES];
        for (uint32_t i = 0; i < take->n_files; i++) {
                upload_path(store, take->token, take->files[i].name, path);
                unlink(path);
        }
}

int mfl_store_move_take(struct mfl_store *store, const struct mfl_move_take *take,
        char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        char id[MFL_JOB_ID_BYTES];
        int64_t n;
        int r = reserve(store, take, id, &n, err);
        if (r == MFL_EXISTS)
                memcpy(ret_id, id, sizeof id);
        for (uint32_t i = 0; i < take->n_files && !r; i++)
                r = check_upload(store, take->token, &take->files[i], err);
        if (!r)
                r = pass("before-move-place", id, err);
        if (!r)
                r = place_files(store, take, id, err);
        if (!r)
                r = pass("before-move-take", id, err);
        if (!r)
                r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_store_end(store, take_rows(store, take, id, n, err), err);
        if (!r)
                r = pass("after-move-take", id, err);
        if (r)
                return r;
        memcpy(ret_id, id, sizeof id);
        drop_uploads(store, take);
        return 0;
}
