/* SPDX-License-Identifier: Apache-2.0 */
/* Files of the state directory: checkpoints, uploads.
 *   - checkpoint: tmp, write, hash what was written, fsync, rename, fsync directory;
 *   - upload: a file in uploads/, moved into the job's directory when the job is created.
 * Fails when the disk is full or broken; a file that cannot be removed is only logged.
 */
#include "server/store/store_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fs.h"
#include "common/model/safetensors.h"

#define HASH_BYTES (1u << 20)

const char *mfl_store_path(
        const struct mfl_store *store, const char *id, const char *file, char buf[MFL_STORE_PATH_BYTES])
{
        snprintf(buf, MFL_STORE_PATH_BYTES, "%s/jobs/%s%s%s", store->dir, id, *file ? "/" : "", file);
        return buf;
}

static int hash_fd(int fd, const char *path, char *buffer, uint8_t ret_sha256[32], uint64_t *ret_bytes,
        struct mfl_error *err)
{
        struct mfl_sha256 sha = {0};
        uint64_t bytes = 0;
        int r = mfl_sha256_init(&sha, err);
        while (!r) {
                ssize_t n = read(fd, buffer, HASH_BYTES);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        r = mfl_fail_errno(err, "read %s", path);
                else if (n == 0)
                        break;
                else
                        r = mfl_sha256_update(&sha, buffer, (size_t)n, err);
                bytes += n > 0 ? (uint64_t)n : 0;
        }
        if (!r)
                r = mfl_sha256_final(&sha, ret_sha256, err);
        mfl_sha256_deinit(&sha);
        *ret_bytes = bytes;
        return r;
}

/* Returns -errno. */
int mfl_store_sha256_file(
        const char *path, uint8_t ret_sha256[32], uint64_t *ret_bytes, struct mfl_error *err)
{
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return mfl_fail_errno(err, "open %s", path);
        MFL_CLEANUP_FREE char *buffer = mfl_malloc(HASH_BYTES);
        int r = buffer ? hash_fd(fd, path, buffer, ret_sha256, ret_bytes, err)
                       : mfl_fail_memory(err, HASH_BYTES, "hashing a file");
        close(fd);
        return r;
}

int mfl_store_make_job_dir(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        int r = mfl_fs_mkdirs(mfl_store_path(store, id, "", path), 0700, err);
        if (!r)
                r = mfl_fs_sync_dir(mfl_store_path(store, "", "", path), err);
        return mfl_store_code(r);
}

void mfl_store_unlink(struct mfl_store *store, const char *id, const char *file)
{
        char path[MFL_STORE_PATH_BYTES];
        mfl_store_path(store, id, file, path);
        int r = mfl_fs_fault("before-unlink", path);
        if (!r && unlink(path) && errno != ENOENT)
                r = -errno;
        if (r)
                mfl_store_logf(store, id, "cannot remove %s: %s", path, strerror(-r));
        mfl_fs_fault("after-unlink", path);
}

void mfl_store_remove_job_dir(struct mfl_store *store, const char *id)
{
        char path[MFL_STORE_PATH_BYTES];
        DIR *dir = opendir(mfl_store_path(store, id, "", path));
        struct dirent *entry;
        while (dir && (entry = readdir(dir)))
                if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
                        mfl_store_unlink(store, id, entry->d_name);
        if (dir)
                closedir(dir);
        if (rmdir(path) && errno != ENOENT)
                mfl_store_logf(store, "", "cannot remove %s: %s", path, strerror(errno));
}

/* ---- checkpoints ---- */

/* Which part of a checkpoint goes into a file. */
enum part {
        PART_MOVING, /* with the strategy's state; all params if none are frozen */
        PART_FROZEN,
};

/* The moving tensors of one state vector, named strategy/STATE/TENSOR. names has one text per tensor. */
static int name_state(const struct mfl_graph *graph, const char *state_name, const float *state,
        struct mfl_st_tensor *tensors, char **names)
{
        for (int t = 0; t < graph->n_params - graph->i_moving; t++) {
                const struct mfl_param *param = &graph->params[graph->i_moving + t];
                names[t] = mfl_asprintf("strategy/%s/%s", state_name, param->name);
                if (!names[t])
                        return -ENOMEM;
                tensors[t] = (struct mfl_st_tensor){.name = names[t],
                        .shape = param->shape,
                        .data = state + (param->offset - graph->n_frozen),
                        .count = param->count};
        }
        return 0;
}

static int write_params(int fd, const char *path, enum part part, const struct mfl_checkpoint *checkpoint,
        const struct mfl_st_meta *meta, int n_meta, struct mfl_error *err)
{
        int n = checkpoint->graph->n_params, n_moving = n - checkpoint->graph->i_moving, r = 0;
        int n_states = n + checkpoint->n_state * n_moving, first = n - n_moving;
        int n_all = n_states + (checkpoint->n_memory > 0);
        struct mfl_st_tensor *tensors = mfl_calloc((size_t)n_all, sizeof *tensors);
        char **names = mfl_calloc((size_t)n_all, sizeof *names);
        if (!tensors || !names)
                r = -ENOMEM;
        if (!r)
                mfl_st_from_parts(checkpoint->graph, checkpoint->frozen, checkpoint->params, tensors);
        for (int i = 0; i < checkpoint->n_state && !r; i++)
                r = name_state(checkpoint->graph, checkpoint->state_name[i], checkpoint->state[i],
                        tensors + n + n_moving * i, names + n + n_moving * i);
        if (!r && checkpoint->n_memory)
                tensors[n_states] = (struct mfl_st_tensor){.name = MFL_CHECKPOINT_MEMORY,
                        .shape = {.rank = 2, .dim = {(int64_t)checkpoint->n_memory, 4}},
                        .words = checkpoint->memory,
                        .count = 4 * checkpoint->n_memory};
        if (r)
                mfl_fail_memory(err, (size_t)n_all * sizeof *tensors, "a checkpoint's table");
        else
                r = part == PART_FROZEN
                            ? mfl_st_write(fd, path, tensors, first, meta, n_meta, err)
                            : mfl_st_write(fd, path, tensors + first, n_all - first, meta, n_meta, err);
        for (int i = 0; names && i < n_all; i++)
                free(names[i]);
        free(names);
        free(tensors);
        return r;
}

#define GRID_TEXT 5 /* "-126 " */

static char *grid_text(const struct mfl_checkpoint *checkpoint)
{
        size_t room = (size_t)GRID_TEXT * checkpoint->n_grid + 1, at = 0;
        char *text = mfl_malloc(room);
        for (uint32_t i = 0; text && i < checkpoint->n_grid; i++)
                at += (size_t)snprintf(text + at, room - at, i ? " %d" : "%d", (int)checkpoint->grid[i]);
        return text;
}

/* The frozen params are the same in every round. */
static int write_tensors(int fd, const char *path, enum part part, const char *id, uint32_t round,
        const struct mfl_checkpoint *checkpoint, struct mfl_error *err)
{
        char round_text[16], digest_text[MFL_SHA256_HEX_BYTES];
        snprintf(round_text, sizeof round_text, "%u", round);
        mfl_hex(checkpoint->digest, MFL_DIGEST_BYTES, digest_text);
        struct {
                char key[64], value[32];
        } number[MFL_CHECKPOINT_NUMBERS_MAX];
        struct mfl_st_meta meta[6 + MFL_CHECKPOINT_NUMBERS_MAX] = {{"format", "pt"}, {"job", id},
                {"software", "mfl " MFL_VERSION}, {"round", round_text}, {"digest", digest_text}};
        int n = part == PART_FROZEN ? 3 : 5;
        for (int i = 0; i < checkpoint->n_numbers && part != PART_FROZEN; i++) {
                snprintf(number[i].key, sizeof number[i].key, MFL_CHECKPOINT_NUMBER "%s",
                        checkpoint->number_name[i]);
                snprintf(number[i].value, sizeof number[i].value, "%.17g", checkpoint->number[i]);
                meta[n++] = (struct mfl_st_meta){number[i].key, number[i].value};
        }
        MFL_CLEANUP_FREE char *grid = NULL;
        if (checkpoint->n_grid && part != PART_FROZEN) {
                grid = grid_text(checkpoint);
                if (!grid)
                        return mfl_fail_memory(err, GRID_TEXT * checkpoint->n_grid, "a grid");
                meta[n++] = (struct mfl_st_meta){MFL_CHECKPOINT_GRID, grid};
        }
        return write_params(fd, path, part, checkpoint, meta, n, err);
}

/* Passes the same fault points as mfl_fs_write, which the tensors bypass. */
static int write_file(struct mfl_fs_file *file, enum part part, const char *id, uint32_t round,
        const struct mfl_checkpoint *checkpoint, struct mfl_error *err)
{
        int r = mfl_fs_fault("before-write", file->tmp);
        if (r)
                return mfl_fail(err, r, "write %s: %s", file->tmp, strerror(-r));
        r = write_tensors(file->fd, file->tmp, part, id, round, checkpoint, err);
        if (r)
                return r;
        r = mfl_fs_fault("after-write", file->tmp);
        return r ? mfl_fail(err, r, "write %s: %s", file->tmp, strerror(-r)) : 0;
}

/* Durable when this returns 0; result->name is given. */
static int write_part(struct mfl_store *store, enum part part, const char *id, uint32_t round,
        const struct mfl_checkpoint *checkpoint, struct mfl_store_file *result, struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        char path[MFL_STORE_PATH_BYTES];
        int r = mfl_fs_begin(&file, mfl_store_path(store, id, result->name, path), err);
        if (r)
                return mfl_store_code(r);
        r = write_file(&file, part, id, round, checkpoint, err);
        /* The disk starts to write while the file is hashed; a kernel without this call writes at the fsync. */
        if (!r)
                sync_file_range(file.fd, 0, 0, SYNC_FILE_RANGE_WRITE);
        /* Reads back from the page cache, so that the hash is of the file's content. */
        if (!r)
                r = mfl_store_sha256_file(file.tmp, result->sha256, &result->bytes, err);
        if (!r)
                r = mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return mfl_store_code(r);
}

static int on_frozen(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_file *file = user;
        mfl_strcpy(file->name, sizeof file->name, mfl_db_text(row, 0));
        mfl_db_blob(row, 1, file->sha256, sizeof file->sha256);
        file->bytes = (uint64_t)mfl_db_int(row, 2);
        return 0;
}

static int find_frozen(
        struct mfl_store *store, const char *id, struct mfl_store_file *ret_file, struct mfl_error *err)
{
        struct mfl_store_file file = {{0}};
        mfl_store_lock(store);
        int r = mfl_db_query(store->db, on_frozen, &file, err,
                "SELECT frozen_file, frozen_sha256, frozen_bytes FROM rounds WHERE job = ?1 AND kept = 1 AND "
                "superseded = 0 AND frozen_file <> '' ORDER BY round DESC LIMIT 1",
                "t", id);
        mfl_store_unlock(store);
        if (!r)
                *ret_file = file;
        return r;
}

int mfl_store_checkpoint(struct mfl_store *store, const char *id, uint32_t round,
        const struct mfl_checkpoint *checkpoint, struct mfl_store_file *ret_file,
        struct mfl_store_file *ret_frozen, struct mfl_error *err)
{
        struct mfl_store_file result = {{0}}, frozen = {{0}};
        int r = 0;
        if (checkpoint->graph->n_frozen) {
                r = find_frozen(store, id, &frozen, err);
                if (!r && !frozen.name[0]) {
                        mfl_strcpy(frozen.name, sizeof frozen.name, "frozen.safetensors");
                        r = write_part(store, PART_FROZEN, id, round, checkpoint, &frozen, err);
                }
        }
        snprintf(result.name, sizeof result.name, "round-%06u.safetensors", round);
        if (!r)
                r = write_part(store, PART_MOVING, id, round, checkpoint, &result, err);
        if (r)
                return r;
        *ret_file = result;
        *ret_frozen = frozen;
        return 0;
}

/* ---- uploads ---- */

struct mfl_store_upload {
        struct mfl_store *store;
        uint64_t bytes_want, bytes;
        struct mfl_fs_file file;
};

int mfl_store_upload_begin(struct mfl_store *store, uint64_t n_floats, struct mfl_store_upload **ret_upload,
        struct mfl_error *err)
{
        if (!n_floats || n_floats > MFL_PARAMS_MAX)
                return mfl_fail(err, MFL_INVALID, "initial params: %llu floats, expected 1 to 2^34",
                        (unsigned long long)n_floats);
        struct mfl_store_upload *upload = mfl_calloc(1, sizeof *upload);
        if (!upload)
                return mfl_fail_memory(err, sizeof *upload, "an upload");
        upload->store = store;
        upload->bytes_want = n_floats * sizeof(float);
        pthread_mutex_lock(&store->log_mutex);
        uint64_t number = ++store->n_uploads;
        pthread_mutex_unlock(&store->log_mutex);
        char path[MFL_STORE_PATH_BYTES];
        snprintf(path, sizeof path, "%s/uploads/%llu", store->dir, (unsigned long long)number);
        int r = mfl_fs_begin(&upload->file, path, err);
        if (r) {
                free(upload);
                return mfl_store_code(r);
        }
        *ret_upload = upload;
        return 0;
}

int mfl_store_upload_write(
        struct mfl_store_upload *upload, const void *data, size_t bytes, struct mfl_error *err)
{
        if (bytes > upload->bytes_want - upload->bytes)
                return mfl_fail(err, MFL_INVALID, "initial params: more than the %llu announced bytes",
                        (unsigned long long)upload->bytes_want);
        int r = mfl_fs_write(&upload->file, data, bytes, err);
        if (!r)
                upload->bytes += bytes;
        return mfl_store_code(r);
}

void mfl_store_upload_discard(struct mfl_store_upload *upload)
{
        if (!upload)
                return;
        mfl_fs_abort(&upload->file);
        free(upload);
}

static int check_whole(const struct mfl_store_upload *upload, struct mfl_error *err)
{
        return upload->bytes == upload->bytes_want
                       ? 0
                       : mfl_fail(err, MFL_INVALID, "initial params: %llu of %llu bytes arrived",
                                 (unsigned long long)upload->bytes, (unsigned long long)upload->bytes_want);
}

int mfl_store_upload_digest(struct mfl_store_upload *upload, uint8_t ret_sha256[32], struct mfl_error *err)
{
        uint64_t bytes;
        int r = check_whole(upload, err);
        return r ? r : mfl_store_code(mfl_store_sha256_file(upload->file.tmp, ret_sha256, &bytes, err));
}

/* Hard link of the finished tmp file rather than a rename: the upload stays whole if the transaction fails,
 * and may be tried again. */
int mfl_store_upload_place(struct mfl_store_upload *upload, const char *id, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES], dir[MFL_STORE_PATH_BYTES];
        int r = check_whole(upload, err);
        if (r)
                return r;
        mfl_store_path(upload->store, id, "initial.f32", path);
        if (fsync(upload->file.fd))
                return mfl_store_code(mfl_fail_errno(err, "fsync %s", upload->file.tmp));
        unlink(path); /* left by an attempt whose transaction failed */
        if (link(upload->file.tmp, path))
                return mfl_store_code(mfl_fail_errno(err, "link %s", path));
        return mfl_store_code(mfl_fs_sync_dir(mfl_store_path(upload->store, id, "", dir), err));
}

void mfl_store_clean_uploads(struct mfl_store *store)
{
        char path[MFL_STORE_PATH_BYTES];
        snprintf(path, sizeof path, "%s/uploads", store->dir);
        DIR *dir = opendir(path);
        struct dirent *entry;
        while (dir && (entry = readdir(dir)))
                if (entry->d_name[0] != '.' && unlinkat(dirfd(dir), entry->d_name, 0))
                        mfl_store_logf(
                                store, "", "cannot remove %s/%s: %s", path, entry->d_name, strerror(errno));
        if (dir)
                closedir(dir);
}
