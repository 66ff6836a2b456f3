/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on their way to another server, where they were. See move.h.
 *   - begin, export, end: rows of `moves`, a file of rows, the list of files with their SHA-256.
 * Fails when the disk is full or broken. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fs.h"
#include "server/move/move_internal.h"
#include "server/move/rows.h"

void mfl_move_files_deinit(struct mfl_move_files *files)
{
        free(files->v);
        *files = (struct mfl_move_files){0};
}

int mfl_move_pass(const char *point, const char *id, struct mfl_error *err)
{
        int r = mfl_fs_fault(point, id);
        return r ? mfl_store_code(mfl_fail(err, r, "%s: %s", point, strerror(-r))) : 0;
}

/* ---- rows of `moves` ---- */

static int on_move(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_move_found *found = user;
        found->is = true;
        found->outward = mfl_db_int(row, 4) != 0;
        mfl_strcpy(found->move.token, sizeof found->move.token, mfl_db_text(row, 0));
        mfl_strcpy(found->job, sizeof found->job, mfl_db_text(row, 1));
        mfl_strcpy(found->move.to, sizeof found->move.to, mfl_db_text(row, 2));
        mfl_strcpy(found->move.there, sizeof found->move.there, mfl_db_text(row, 3));
        return 0;
}

int mfl_move_find_job(
        struct mfl_store *store, const char *id, struct mfl_move_found *ret_found, struct mfl_error *err)
{
        *ret_found = (struct mfl_move_found){false};
        return mfl_db_query(store->db, on_move, ret_found, err,
                "SELECT token, job, peer, there, outward FROM moves WHERE job = ?1 AND outward = 1", "t", id);
}

int mfl_move_find_token(
        struct mfl_store *store, const char *token, struct mfl_move_found *ret_found, struct mfl_error *err)
{
        *ret_found = (struct mfl_move_found){false};
        return mfl_db_query(store->db, on_move, ret_found, err,
                "SELECT token, job, peer, there, outward FROM moves WHERE token = ?1", "t", token);
}

int mfl_move_add(struct mfl_store *store, const char *token, const char *id, bool outward, const char *peer,
        struct mfl_error *err)
{
        return mfl_db_run(store->db, err,
                "INSERT INTO moves (token, job, outward, peer, there, time_ms) VALUES (?1, ?2, ?3, ?4, '', "
                "?5)",
                "ttiti", token, id, (int64_t)outward, peer, (int64_t)mfl_store_unix_ms());
}

/* ---- where it was ---- */

int mfl_move_on_number(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

int mfl_move_state(struct mfl_store *store, const char *id, int64_t *ret_state, struct mfl_error *err)
{
        *ret_state = -1;
        int r = mfl_db_query(store->db, mfl_move_on_number, ret_state, err,
                "SELECT state FROM jobs WHERE id = ?1", "t", id);
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
        struct mfl_move_found found;
        int64_t state;
        int r = mfl_move_find_job(store, id, &found, err);
        if (!r && found.is) {
                *ret_move = found.move;
                return *found.move.there ? mfl_fail(err, MFL_EXISTS, "job %s has moved to %s, as %s", id,
                                                   found.move.to, found.move.there)
                                         : 0;
        }
        if (!r)
                r = mfl_move_state(store, id, &state, err);
        if (!r && state != MFL_JOB_WAITING && state != MFL_JOB_RUNNING)
                r = mfl_fail(err, MFL_BUSY,
                        "job %s has ended: there is nothing to move (mfl pull fetches its models)", id);
        if (r)
                return r;
        *ret_move = (struct mfl_move){.there = ""};
        mfl_strcpy(ret_move->to, sizeof ret_move->to, to);
        r = new_token(ret_move->token, err);
        return r ? r : mfl_move_add(store, ret_move->token, id, true, to, err);
}

int mfl_store_move_begin(struct mfl_store *store, const char *id, const char *to, struct mfl_move *ret_move,
        struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (!r)
                r = mfl_store_end(store, begin(store, id, to, ret_move, err), err);
        return r ? r : mfl_move_pass("after-move-begin", id, err);
}

int mfl_store_move_get(
        struct mfl_store *store, const char *id, struct mfl_move *ret_move, struct mfl_error *err)
{
        struct mfl_move_found found;
        mfl_store_lock(store);
        int r = mfl_move_find_job(store, id, &found, err);
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
        r = mfl_move_state(store, id, &state, err);
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
        struct mfl_move_found found;
        char reason[MFL_REASON_BYTES];
        int64_t state = MFL_JOB_STOPPED;
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_move_find_job(store, id, &found, err);
        if (!r && !found.is)
                r = mfl_fail(err, MFL_NOT_FOUND, "job %s does not move", id);
        if (!r)
                r = mfl_move_state(store, id, &state, err);
        if (!r && (state == MFL_JOB_WAITING || state == MFL_JOB_RUNNING))
                r = mfl_fail(err, MFL_BUSY, "job %s has not stopped yet: ask again", id);
        mfl_snprintf(reason, sizeof reason, "moved to %s, as %s", found.move.to, there);
        if (!r)
                r = mfl_db_run(store->db, err, "UPDATE moves SET there = ?1, time_ms = ?3 WHERE token = ?2",
                        "tti", there, found.move.token, (int64_t)mfl_store_unix_ms());
        if (!r)
                r = mfl_db_run(store->db, err, "UPDATE jobs SET reason = ?1 WHERE id = ?2", "tt", reason, id);
        if (!r)
                r = mfl_move_pass("before-move-end", id, err);
        r = mfl_store_end(store, r, err);
        if (!r)
                r = mfl_move_pass("after-move-end", id, err);
        if (!r)
                mfl_store_unlink(store, id, MFL_MOVE_ROWS);
        return r;
}

int mfl_store_move_back(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        struct mfl_move_found found;
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_move_find_job(store, id, &found, err);
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
        int r = mfl_db_query(store->db, mfl_move_on_number, &n, err,
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
