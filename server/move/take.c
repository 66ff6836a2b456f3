/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that come from another server. See move.h.
 *   - write, take: files in uploads/, checked, linked into the job's directory under a mark, then one transaction.
 * Fails when the disk is full or broken, and when what comes is not what was listed; then nothing is left of it but uploads, which go with the token. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/budget.h"
#include "common/base/fs.h"
#include "server/move/move_internal.h"
#include "server/move/rows.h"
#include "server/move/vet.h"
#include "server/store/store_strays.h"

static int known(
        struct mfl_store *store, const char *token, char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        struct mfl_move_found found;
        *ret_id = 0;
        int r = mfl_move_find_token(store, token, &found, err);
        if (r || !found.is)
                return r;
        if (found.outward)
                return mfl_fail(err, MFL_INVALID, "this is the server that has job %s", found.job);
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

static void drop_uploads(struct mfl_store *store, const char *token)
{
        char path[MFL_STORE_PATH_BYTES];
        snprintf(path, sizeof path, "%.3800s/uploads", store->dir);
        DIR *dir = opendir(path);
        struct dirent *entry;
        while (dir && (entry = readdir(dir)))
                if (!strncmp(entry->d_name, token, strlen(token)) && entry->d_name[strlen(token)] == '-')
                        unlinkat(dirfd(dir), entry->d_name, 0);
        if (dir)
                closedir(dir);
}

int mfl_store_move_void(
        struct mfl_store *store, const char *token, char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        struct mfl_move_found found;
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_move_find_token(store, token, &found, err);
        mfl_strcpy(ret_id, MFL_JOB_ID_BYTES, found.outward ? "" : found.job);
        if (!r && !found.is &&
                token[strspn(token, "0")]) /* none: mfl asks with it whether a server takes jobs */
                r = mfl_move_add(store, token, "", false, "", err);
        r = mfl_store_end(store, r, err);
        if (!r)
                drop_uploads(store, token);
        return r;
}

/* What has come of moves that are not taken yet; own: of this one. Initial params that are being submitted have no '-' in their names. */
static void count_uploads(struct mfl_store *store, const char *token, uint64_t *ret_own, uint64_t *ret_others)
{
        char path[MFL_STORE_PATH_BYTES];
        snprintf(path, sizeof path, "%.3800s/uploads", store->dir);
        *ret_own = *ret_others = 0;
        DIR *dir = opendir(path);
        struct dirent *entry;
        struct stat st;
        while (dir && (entry = readdir(dir))) {
                if (strcspn(entry->d_name, "-") != MFL_MOVE_TOKEN_BYTES - 1 ||
                        fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
                        continue;
                const bool own = !strncmp(entry->d_name, token, MFL_MOVE_TOKEN_BYTES - 1);
                *(own ? ret_own : ret_others) += (uint64_t)st.st_size;
        }
        if (dir)
                closedir(dir);
}

int mfl_store_move_fits(
        struct mfl_store *store, const char *token, uint64_t bytes, uint64_t max, struct mfl_error *err)
{
        uint64_t own, others, room;
        char wants[16], has[16], limit[16];
        count_uploads(store, token, &own, &others);
        int r = mfl_store_code(mfl_fs_room(store->dir, &room, err));
        if (r)
                return r;
        if (others > max || bytes > max - others)
                return mfl_fail(err, MFL_STORE_FULL,
                        "the job's files have %s, %s of other moves are here, and this server takes %s "
                        "(moves_max)",
                        mfl_format_bytes(bytes, wants), mfl_format_bytes(others, has),
                        mfl_format_bytes(max, limit));
        if (bytes > own && bytes - own > room)
                return mfl_fail(err, MFL_STORE_FULL,
                        "the job's files have %s, and the disk of this server has %s left",
                        mfl_format_bytes(bytes, wants), mfl_format_bytes(room, has));
        return 0;
}

/* At the end of what has come, or from the beginning again: so it never costs more than was sent. */
static int write_piece(
        int fd, const char *path, uint64_t offset, const void *bytes, size_t n, struct mfl_error *err)
{
        struct stat st;
        if (fstat(fd, &st))
                return mfl_store_code(mfl_fail_errno(err, "stat %s", path));
        if (offset != (uint64_t)st.st_size)
                return mfl_fail(err, MFL_NOT_FOUND,
                        "a piece at byte %llu, after %lld bytes: send the file again",
                        (unsigned long long)offset, (long long)st.st_size);
        for (size_t have = 0; have < n;) {
                ssize_t k = pwrite(fd, (const char *)bytes + have, n - have, (off_t)(offset + have));
                if (k < 0 && errno != EINTR)
                        return mfl_store_code(mfl_fail_errno(err, "write %s", path));
                have += k > 0 ? (size_t)k : 0;
        }
        return 0;
}

int mfl_store_move_write(struct mfl_store *store, const char *token, const char *file, uint64_t offset,
        const void *bytes, size_t n, uint64_t max, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES], id[MFL_JOB_ID_BYTES];
        uint64_t own, others;
        int r = mfl_store_move_known(store, token, id, err);
        if (!r && *id)
                r = mfl_fail(err, MFL_BUSY, "the job is here already, as %s", id);
        if (r)
                return r;
        upload_path(store, token, file, path);
        if (!offset)
                unlink(path);
        count_uploads(store, token, &own, &others);
        if (own + others + n > max)
                return mfl_fail(err, MFL_STORE_FULL, "more than this server takes of moves (moves_max)");
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (offset ? 0 : O_TRUNC), 0600);
        if (fd < 0)
                return mfl_store_code(mfl_fail_errno(err, "open %s", path));
        r = write_piece(fd, path, offset, bytes, n, err);
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
                r = mfl_db_query(store->db, mfl_move_on_number, &given, err,
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
                r = mfl_db_query(store->db, mfl_move_on_number, &n_states, err,
                        "SELECT count(*) FROM client_states WHERE job = ?1 AND site_sha256 IS NULL", "t", id);
        return r || !n_states || !store->cluster ? r : mfl_store_give_states(store, id, err);
}

/* A file that no row names is not the job's, and at the next start it would look like one whose row is lost. */
static int drop_unnamed(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        struct mfl_store_survey survey = {0};
        int r = mfl_store_survey_job(store->db, mfl_store_schema_newest(), store->dir, id, &survey, err);
        for (uint32_t i = 0; i < survey.n && !r; i++)
                mfl_store_unlink(store, id, survey.v[i].file);
        mfl_store_survey_deinit(&survey);
        return r;
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

struct bodies {
        const struct mfl_move_take *take;
        const char *table;
};

static int on_body(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        const struct bodies *bodies = user;
        const struct mfl_db_value body = mfl_db_value(row, 1);
        return bodies->take->vet_body(bodies->table, mfl_db_text(row, 0), body.bytes, body.n)
                       ? 0
                       : mfl_fail(err, MFL_INVALID, "the job's rows: table %s has a body that is not one",
                                 bodies->table);
}

/* Who made the rows is not known; from here on they are trusted as this server's own. */
static int check_rows(struct mfl_store *store, const struct mfl_move_take *take, const char *id,
        const char *text, struct mfl_error *err)
{
        struct mfl_job *spec = NULL;
        struct bodies scores = {take, "round_scores"}, partitions = {take, "job_partitions"};
        int r = take->vet(take->user, text, err);
        if (!r)
                r = mfl_job_parse(text, strlen(text), "the job", &spec, err);
        if (!r)
                r = mfl_rows_vet(store->db, id, spec, err);
        if (!r)
                r = mfl_db_query(store->db, on_body, &scores, err,
                        "SELECT '', body FROM round_scores WHERE job = ?1", "t", id);
        if (!r)
                r = mfl_db_query(store->db, on_body, &partitions, err,
                        "SELECT daemon, body FROM job_partitions WHERE job = ?1", "t", id);
        mfl_job_free(spec);
        return r;
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
                r = check_rows(store, take, id, text ? text : "", err);
        if (!r)
                r = check_names(store, take, id, err);
        if (!r)
                r = drop_unnamed(store, id, err);
        if (!r)
                r = mfl_move_add(store, take->token, id, false, take->from, err);
        return r ? r : mfl_db_run(store->db, err, "DELETE FROM deleted WHERE job = ?1", "t", id);
}

/* The number is free again, and the next job that gets it finds no files. What can't be removed now has its mark. */
static void give_up(struct mfl_store *store, const char *id)
{
        struct mfl_error ignored;
        char path[MFL_STORE_PATH_BYTES];
        int64_t state;
        mfl_store_lock(store);
        const bool is = mfl_move_state(store, id, &state, &ignored) != MFL_NOT_FOUND;
        mfl_store_unlock(store);
        if (is) /* a failure after the commit */
                return;
        mfl_store_remove_job_dir(store, id);
        if (!access(mfl_store_path(store, id, "", path), F_OK) || mfl_store_begin(store, &ignored))
                return;
        mfl_store_end(store, mfl_db_run(store->db, &ignored, "DELETE FROM deleted WHERE job = ?1", "t", id),
                &ignored);
}

static int take_job(struct mfl_store *store, const struct mfl_move_take *take, const char *id, int64_t n,
        struct mfl_error *err)
{
        int r = 0;
        for (uint32_t i = 0; i < take->n_files && !r; i++)
                r = check_upload(store, take->token, &take->files[i], err);
        if (!r)
                r = mfl_move_pass("before-move-place", id, err);
        if (!r)
                r = place_files(store, take, id, err);
        if (!r)
                r = mfl_move_pass("before-move-take", id, err);
        if (!r)
                r = mfl_store_begin(store, err);
        return r ? r : mfl_store_end(store, take_rows(store, take, id, n, err), err);
}

int mfl_store_move_take(struct mfl_store *store, const struct mfl_move_take *take,
        char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        char id[MFL_JOB_ID_BYTES];
        int64_t n;
        int r = reserve(store, take, id, &n, err);
        if (r == MFL_EXISTS)
                memcpy(ret_id, id, sizeof id);
        if (r)
                return r;
        r = take_job(store, take, id, n, err);
        if (r > 0)
                give_up(store, id);
        if (!r)
                r = mfl_move_pass("after-move-take", id, err);
        if (r)
                return r;
        memcpy(ret_id, id, sizeof id);
        drop_uploads(store, take->token);
        return 0;
}
