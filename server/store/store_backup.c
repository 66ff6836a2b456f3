/* SPDX-License-Identifier: Apache-2.0 */
/* Back-up of a state directory that a server may be using (store_backup.h explains the steps).
 *   - lock the database for writing, pin a reader's snapshot, open the files that the rows name, unlock;
 *   - DIR.tmp: the database by SQLite's backup API, then each file, hashed while it is copied;
 *   - sync, rename to DIR, sync the directory above.
 * Fails when DIR exists, when the server locks the database for longer than 10 s, when the disk is full, and when
 * there are more files than descriptors. It then removes DIR.tmp. After kill -9 DIR.tmp remains, and the next back-up
 * to DIR reports it.
 */
#include "server/store/store_backup.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fs.h"
#include "server/store/store_internal.h"

#define LOCK_TRIES 5 /* of 2 s each: mfl_db_open's busy timeout */
#define COPY_BYTES (1u << 20)

struct backup {
        const char *state_dir;
        char *dir, *tmp;
        struct mfl_db *lock, *db; /* the write lock; the snapshot */
        struct mfl_store_inventory inventory;
        struct mfl_store_evidence evidence;
        struct mfl_store_summary summary;
        mfl_store_on_finding *on_finding;
        void *user;
        char *buffer;
};

static void find(struct backup *b, const struct mfl_store_named *named, const char *fault)
{
        char path[MFL_STORE_PATH_BYTES], text[MFL_STORE_PATH_BYTES + 200];
        b->summary.findings++;
        snprintf(text, sizeof text, "%s: %s", mfl_store_named_path(b->state_dir, named, path), fault);
        b->on_finding(b->user, text);
}

static int open_databases(struct backup *b, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/mfl.db", b->state_dir);
        struct stat st;
        if (!path)
                return mfl_fail_memory(err, strlen(b->state_dir), "a file name");
        if (stat(path, &st)) /* opening would create it */
                return errno == ENOENT || errno == ENOTDIR
                               ? mfl_fail(err, MFL_INVALID, "%s: not a state directory: there is no mfl.db",
                                         b->state_dir)
                               : mfl_store_code(mfl_fail_errno(err, "%s", path));
        bool running;
        int r = mfl_store_evidence_read_live(b->state_dir, &running, &b->evidence, err);
        if (!r)
                r = mfl_db_open(path, &b->lock, err);
        if (!r)
                r = mfl_db_open(path, &b->db, err);
        if (r)
                return r;
        mfl_db_close_moves_log(
                b->lock, false); /* what a crash has left is repaired at the server's next start */
        mfl_db_close_moves_log(b->db, false);
        return 0;
}

static int lock(struct backup *b, struct mfl_error *err)
{
        int r = MFL_STORE_AGAIN;
        for (int i = 0; i < LOCK_TRIES && r == MFL_STORE_AGAIN; i++)
                r = mfl_db_begin(b->lock, err);
        return r;
}

/* More files than the usual 1024 descriptors may be open at once. */
static void raise_descriptors(uint32_t wanted)
{
        struct rlimit limit;
        if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= (rlim_t)wanted + 64)
                return;
        limit.rlim_cur = MFL_MIN(limit.rlim_max, (rlim_t)wanted + 64);
        setrlimit(RLIMIT_NOFILE, &limit);
}

/* Under the lock. A file that cannot be opened counts as missing, unless descriptors have run out. */
static int open_files(struct backup *b, struct mfl_error *err)
{
        raise_descriptors(b->inventory.n);
        for (uint32_t i = 0; i < b->inventory.n; i++) {
                struct mfl_store_named *named = &b->inventory.v[i];
                char path[MFL_STORE_PATH_BYTES];
                named->fd = open(
                        mfl_store_named_path(b->state_dir, named, path), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
                if (named->fd < 0 && (errno == EMFILE || errno == ENFILE))
                        return mfl_fail(err, MFL_STORE_AGAIN,
                                "%u files must be open at once: raise the limit (ulimit -n)", b->inventory.n);
                if (named->fd < 0)
                        find(b, named, strerror(errno));
        }
        return 0;
}

static int take_snapshot(struct backup *b, struct mfl_error *err)
{
        int r = lock(b, err);
        if (r)
                return r;
        /* A transaction of SQLite reads nothing, and so pins nothing, before its first SELECT. */
        r = mfl_db_exec(b->db, "BEGIN; SELECT count(*) FROM sqlite_master", err);
        if (!r)
                r = mfl_store_inventory_read(b->db, b->state_dir, &b->inventory, &b->summary, err);
        if (!r)
                r = open_files(b, err);
        mfl_db_rollback(b->lock);
        uint32_t n = 0;
        if (!r)
                r = mfl_store_check_rows(
                        b->db, b->summary.schema, &b->evidence, b->on_finding, b->user, &n, err);
        b->summary.findings += n;
        return r;
}

static int save_database(struct backup *b, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/mfl.db", b->tmp);
        if (!path)
                return mfl_fail_memory(err, strlen(b->tmp), "a file name");
        int r = mfl_db_save(b->db, path, err);
        mfl_db_rollback(b->db); /* from here on the server's write-ahead log may shrink again */
        if (r)
                return r;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || fsync(fd))
                r = mfl_store_code(mfl_fail_errno(err, "fsync %s", path));
        if (fd >= 0)
                close(fd);
        return r;
}

static int copy_bytes(struct backup *b, const struct mfl_store_named *named, struct mfl_fs_file *to,
        uint8_t ret_sha256[32], struct mfl_error *err)
{
        struct mfl_sha256 sha = {0};
        int r = mfl_sha256_init(&sha, err);
        while (!r) {
                ssize_t n = read(named->fd, b->buffer, COPY_BYTES);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        r = mfl_fail_errno(err, "read %s of %s", named->file.name, named->job);
                if (n <= 0)
                        break;
                r = mfl_sha256_update(&sha, b->buffer, (size_t)n, err);
                if (!r)
                        r = mfl_fs_write(to, b->buffer, (size_t)n, err);
        }
        if (!r)
                r = mfl_sha256_final(&sha, ret_sha256, err);
        mfl_sha256_deinit(&sha);
        return r;
}

static int copy_file(struct backup *b, struct mfl_store_named *named, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        struct mfl_fs_file to = {.fd = -1};
        uint8_t sha256[32];
        int r = mfl_fs_begin(&to, mfl_store_named_path(b->tmp, named, path), err);
        if (r)
                return r;
        r = copy_bytes(b, named, &to, sha256, err);
        uint64_t bytes = to.bytes;
        if (!r)
                r = mfl_fs_commit(&to, err);
        mfl_fs_abort(&to);
        close(named->fd);
        named->fd = -1;
        if (r)
                return r;
        const char *fault = mfl_store_named_fault(named, bytes, sha256);
        if (fault) {
                find(b, named, fault);
                return 0;
        }
        b->summary.files++;
        b->summary.bytes += bytes;
        return 0;
}

static int copy_files(struct backup *b, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        int r = 0;
        for (uint32_t i = 0; i < b->inventory.n && !r; i++) {
                struct mfl_store_named *named = &b->inventory.v[i];
                if (named->fd < 0)
                        continue;
                snprintf(path, sizeof path, "%.3900s/jobs/%s", b->tmp, named->job);
                r = mfl_fs_mkdirs(path, 0700, err);
                if (!r)
                        r = copy_file(b, named, err);
        }
        if (r)
                return r;
        snprintf(path, sizeof path, "%.3900s/jobs", b->tmp);
        r = mfl_fs_mkdirs(path, 0700, err);
        return r ? r : mfl_fs_sync_dir(path, err);
}

/* Directories are at most three deep, and everything in them is ours. */
static void remove_tree(const char *path, int depth)
{
        DIR *dir = depth ? opendir(path) : NULL;
        struct dirent *entry;
        while (dir && (entry = readdir(dir))) {
                if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
                        continue;
                char below[MFL_STORE_PATH_BYTES];
                snprintf(below, sizeof below, "%.3820s/%.255s", path, entry->d_name);
                if (unlink(below))
                        remove_tree(below, depth - 1);
        }
        if (dir)
                closedir(dir);
        rmdir(path);
}

/* Heap. */
static char *directory_above(const char *dir)
{
        const char *slash = strrchr(dir, '/');
        return slash ? mfl_asprintf("%.*s", (int)MFL_MAX(slash - dir, (ptrdiff_t)1), dir) : mfl_strdup(".");
}

static int finish(struct backup *b, struct mfl_error *err)
{
        int r = mfl_fs_sync_dir(b->tmp, err);
        if (!r)
                r = mfl_fs_fault("before-backup-rename", b->dir);
        if (!r && rename(b->tmp, b->dir))
                r = mfl_fail_errno(err, "rename %s to %s", b->tmp, b->dir);
        if (r)
                return r;
        MFL_CLEANUP_FREE char *above = directory_above(b->dir);
        return above ? mfl_fs_sync_dir(above, err) : mfl_fail_memory(err, strlen(b->dir), "a file name");
}

/* A back-up inside the state directory would be lost with it; in jobs/ the next start of the server would remove it. */
static int check_outside(struct backup *b, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *above = directory_above(b->dir);
        if (!above)
                return mfl_fail_memory(err, strlen(b->dir), "a file name");
        char *real_above = realpath(above, NULL), *real_state = realpath(b->state_dir, NULL);
        size_t n = real_state ? strlen(real_state) : 0;
        bool inside = real_above && n && !strncmp(real_above, real_state, n) &&
                      (!real_above[n] || real_above[n] == '/');
        free(real_above);
        free(real_state);
        return inside ? mfl_fail(err, MFL_INVALID,
                                "%s is in the state directory, and would be lost with it: name a directory "
                                "outside",
                                b->dir)
                      : 0;
}

/* Checked first, so that a wrong path costs nothing. */
static int make_target(struct backup *b, struct mfl_error *err)
{
        struct stat st;
        if (strlen(b->dir) > 3800)
                return mfl_fail(err, MFL_INVALID, "the path of the back-up is too long");
        if (!lstat(b->dir, &st))
                return mfl_fail(err, MFL_INVALID, "%s already exists: name a new directory", b->dir);
        int r = check_outside(b, err);
        if (r)
                return r;
        if (!mkdir(b->tmp, 0700))
                return 0;
        if (errno == EEXIST)
                return mfl_fail(err, MFL_INVALID,
                        "%s already exists: another back-up is running or was interrupted; remove it if none "
                        "is running",
                        b->tmp);
        return mfl_store_code(mfl_fail_errno(err, "make directory %s", b->tmp));
}

static int run(struct backup *b, struct mfl_error *err)
{
        int r = open_databases(b, err);
        if (!r)
                r = make_target(b, err);
        if (r)
                return r;
        r = take_snapshot(b, err);
        if (!r)
                r = save_database(b, err);
        if (!r)
                r = mfl_store_code(copy_files(b, err));
        if (!r)
                r = mfl_store_code(finish(b, err));
        if (r)
                remove_tree(b->tmp, 3);
        return r;
}

int mfl_store_backup(const char *state_dir, const char *dir, mfl_store_on_finding *on_finding, void *user,
        struct mfl_store_summary *ret_summary, struct mfl_error *err)
{
        struct backup b = {.state_dir = state_dir, .on_finding = on_finding, .user = user};
        size_t n = strlen(dir);
        while (n > 1 && dir[n - 1] == '/')
                n--;
        b.dir = mfl_asprintf("%.*s", (int)n, dir);
        b.tmp = mfl_asprintf("%.*s.tmp", (int)n, dir);
        b.buffer = mfl_malloc(COPY_BYTES);
        int r = b.dir && b.tmp && b.buffer ? run(&b, err) : mfl_fail_memory(err, COPY_BYTES, "a back-up");
        mfl_store_inventory_deinit(&b.inventory);
        mfl_db_close(b.lock);
        mfl_db_close(b.db);
        free(b.dir);
        free(b.tmp);
        free(b.buffer);
        if (!r)
                *ret_summary = b.summary;
        return r == -EIO ? MFL_STORE_DAMAGED : mfl_store_code(r);
}
