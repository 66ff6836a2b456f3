/* SPDX-License-Identifier: Apache-2.0 */
/* Changes several files at once, with an undo folder.
 *
 * Happy path: copies of the files to replace -> list -> rename to undo -> directories and files -> rename to
 * done -> removal. Failures: a disk error in any step, undone from the folder; a kill, undone by the next
 * command.
 *
 * The list has one line per entry, in the order in which the entries are made: "new PATH", "folder PATH", or
 * "old NUMBER MODE PATH"; the old content is in the file NUMBER beside the list.
 */
#include "cli/pki/pki_txn.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/pki/pki_x509.h"
#include "common/base/fs.h"

#define FILE_BYTES_MAX (64u << 20)

static void plan(
        struct mfl_pki_txn *txn, int kind, const char *text, mode_t mode, const char *fmt, va_list args)
{
        char *path;
        mfl_assert(txn->n < MFL_PKI_TXN_FILES_MAX);
        int n = vasprintf(&path, fmt, args);
        if (n < 0) {
                txn->failed = true;
                return;
        }
        txn->entry[txn->n++] =
                (struct mfl_pki_txn_entry){.path = path, .text = text, .mode = mode, .kind = kind};
}

void mfl_pki_txn_file(struct mfl_pki_txn *txn, const char *text, mode_t mode, const char *fmt, ...)
{
        va_list args;
        mfl_assert(text);
        va_start(args, fmt);
        plan(txn, MFL_PKI_TXN_FILE, text, mode, fmt, args);
        va_end(args);
}

void mfl_pki_txn_dir(struct mfl_pki_txn *txn, mode_t mode, const char *fmt, ...)
{
        va_list args;
        va_start(args, fmt);
        plan(txn, MFL_PKI_TXN_DIR, NULL, mode, fmt, args);
        va_end(args);
}

void mfl_pki_txn_remove(struct mfl_pki_txn *txn, const char *fmt, ...)
{
        va_list args;
        va_start(args, fmt);
        plan(txn, MFL_PKI_TXN_REMOVE, NULL, 0, fmt, args);
        va_end(args);
}

void mfl_pki_txn_drop(struct mfl_pki_txn *txn)
{
        for (int i = 0; i < txn->n; i++)
                free(txn->entry[i].path);
        txn->n = 0;
}

/* ---- steps ---- */

/* Every step passes a test point before and after, like the steps of common/base/fs.h. */
static int fail_step(struct mfl_error *err, int fault, const char *what, const char *path)
{
        if (fault)
                errno = -fault;
        return mfl_fail_errno(err, "%s %s", what, path);
}

static int make_folder(const char *path, mode_t mode, struct mfl_error *err)
{
        int fault = mfl_fs_fault("before-mkdir", path);
        if (fault || mkdir(path, mode))
                return fail_step(err, fault, "make directory", path);
        fault = mfl_fs_fault("after-mkdir", path);
        return fault ? fail_step(err, fault, "make directory", path) : 0;
}

static int rename_folder(const char *dir, const char *from, const char *to, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *source = mfl_asprintf("%s/%s", dir, from);
        MFL_CLEANUP_FREE char *target = mfl_asprintf("%s/%s", dir, to);
        if (!source || !target)
                return mfl_fail_memory(err, strlen(dir), "a file name");
        int fault = mfl_fs_fault("before-rename", target);
        if (fault || rename(source, target))
                return fail_step(err, fault, "rename to", target);
        fault = mfl_fs_fault("after-rename", target);
        return fault ? fail_step(err, fault, "rename to", target) : mfl_fs_sync_dir(dir, err);
}

/* The directory that a file is in. Heap. */
static char *parent_of(const char *path)
{
        const char *slash = strrchr(path, '/');
        if (!slash)
                return mfl_strdup(".");
        return slash == path ? mfl_strdup("/") : mfl_asprintf("%.*s", (int)(slash - path), path);
}

static int sync_parent(const char *path, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *parent = parent_of(path);
        return parent ? mfl_fs_sync_dir(parent, err) : mfl_fail_memory(err, strlen(path), "a file name");
}

static int write_file(const char *path, const char *data, size_t bytes, mode_t mode, struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        int r = mfl_fs_begin_exclusive(&file, path, mode & 0600, err);
        if (r)
                return r;
        r = mfl_fs_write(&file, data, bytes, err);
        if (!r && fchmod(file.fd, mode))
                r = mfl_fail_errno(err, "chmod %s", file.tmp);
        if (!r)
                return mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

/* Removes one of this module's flat folders with its files. It reports no errors: recovery repeats it. */
static bool remove_folder(const char *dir, const char *name)
{
        char path[4096];
        if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
                return false;
        DIR *d = opendir(path);
        if (!d)
                return errno == ENOENT;
        bool ok = true;
        for (struct dirent *e; (e = readdir(d));)
                if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
                        ok = !unlinkat(dirfd(d), e->d_name, 0) && ok;
        closedir(d);
        return !rmdir(path) && ok;
}

/* ---- undoing ---- */

static int undo_new(const char *path, bool folder, struct mfl_error *err)
{
        char tmp[4096];
        /* The temporary file of an unfinished write. */
        if (!folder && snprintf(tmp, sizeof tmp, "%s.tmp", path) < (int)sizeof tmp)
                unlink(tmp);
        if ((folder ? rmdir(path) : unlink(path)) && errno != ENOENT && errno != ENOTDIR)
                return mfl_fail_errno(err, "remove %s", path);
        return 0;
}

static int undo_old(const char *dir, char *line, struct mfl_error *err)
{
        unsigned mode;
        int number, at;
        size_t bytes;
        char *data, tmp[4096];
        if (sscanf(line, "%d %o %n", &number, &mode, &at) != 2)
                return mfl_fail(err, -EIO, "%s/undo/list: damaged", dir);
        MFL_CLEANUP_FREE char *kept = mfl_asprintf("%s/undo/%d", dir, number);
        if (!kept)
                return mfl_fail_memory(err, strlen(dir), "a file name");
        int r = mfl_fs_read(kept, FILE_BYTES_MAX, &data, &bytes, err);
        if (r)
                return mfl_fail(err, -EIO, "%s: can't be read, so the change can't be undone", kept);
        if (snprintf(tmp, sizeof tmp, "%s.tmp", line + at) < (int)sizeof tmp)
                unlink(tmp);
        r = write_file(line + at, data, bytes, (mode_t)mode, err);
        mfl_pki_wipe(data);
        return r;
}

static int undo_line(const char *dir, char *line, struct mfl_error *err)
{
        if (!strncmp(line, "new ", 4))
                return undo_new(line + 4, false, err);
        if (!strncmp(line, "folder ", 7))
                return undo_new(line + 7, true, err);
        if (!strncmp(line, "old ", 4))
                return undo_old(dir, line + 4, err);
        return mfl_fail(err, -EIO, "%s/undo/list: damaged", dir);
}

/* Undoes DIR/undo, last line first, and removes it. The list is complete: it was durable before its folder
 * got this name. */
static int undo(const char *dir, struct mfl_error *err)
{
        char *text;
        size_t bytes;
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/undo/list", dir);
        if (!path)
                return mfl_fail_memory(err, strlen(dir), "a file name");
        int r = mfl_fs_read(path, FILE_BYTES_MAX, &text, &bytes, err);
        if (r)
                return r < 0 ? r
                             : mfl_fail(err, -EIO, "%s: can't be read, so the change can't be undone", path);
        while (!r && bytes) {
                text[bytes - 1] = '\0';
                char *line = strrchr(text, '\n');
                line = line ? line + 1 : text;
                bytes = (size_t)(line - text);
                r = undo_line(dir, line, err);
        }
        free(text);
        if (!r)
                r = rename_folder(dir, "undo", "done", err);
        if (!r)
                remove_folder(dir, "done");
        return r;
}

static bool is_there(const char *dir, const char *name)
{
        char path[4096];
        struct stat st;
        return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && !lstat(path, &st);
}

int mfl_pki_txn_recover(const char *dir, bool *ret_undone, struct mfl_error *err)
{
        remove_folder(dir, "undo.new");
        remove_folder(dir, "done");
        *ret_undone = is_there(dir, "undo");
        return *ret_undone ? undo(dir, err) : 0;
}

/* ---- doing ---- */

/* Saves what is at the entry's path, and adds its line to the list. */
static int keep_old(const char *dir, int i, struct mfl_pki_txn_entry *e, FILE *list, struct mfl_error *err)
{
        struct stat st;
        char *data;
        size_t bytes;
        MFL_CLEANUP_FREE char *tmp = mfl_asprintf("%s.tmp", e->path);
        if (!tmp)
                return mfl_fail_memory(err, strlen(e->path), "a file name");
        if (strchr(e->path, '\n'))
                return mfl_fail(err, MFL_INVALID, "a path with a line break can't be used");
        /* Undoing removes it, so it must be a file of this change. */
        if (e->kind == MFL_PKI_TXN_FILE && !lstat(tmp, &st))
                return mfl_fail(err, MFL_EXISTS, "%s: is in the way", tmp);
        if (lstat(e->path, &st)) {
                if (errno != ENOENT && errno != ENOTDIR)
                        return mfl_fail_errno(err, "stat %s", e->path);
                e->is_new = true;
                if (e->kind != MFL_PKI_TXN_REMOVE)
                        fprintf(list, "%s %s\n", e->kind == MFL_PKI_TXN_DIR ? "folder" : "new", e->path);
                return 0;
        }
        if (e->kind == MFL_PKI_TXN_DIR && S_ISDIR(st.st_mode))
                return 0;
        if (e->kind == MFL_PKI_TXN_DIR || !S_ISREG(st.st_mode))
                return mfl_fail(err, MFL_EXISTS, "%s: exists, but is of another kind", e->path);
        MFL_CLEANUP_FREE char *kept = mfl_asprintf("%s/undo.new/%d", dir, i);
        if (!kept)
                return mfl_fail_memory(err, strlen(dir), "a file name");
        int r = mfl_fs_read(e->path, FILE_BYTES_MAX, &data, &bytes, err);
        if (r)
                return r;
        r = write_file(kept, data, bytes, 0600, err);
        mfl_pki_wipe(data);
        fprintf(list, "old %d %o %s\n", i, (unsigned)(st.st_mode & 07777), e->path);
        return r;
}

static int write_list(struct mfl_pki_txn *txn, struct mfl_error *err)
{
        char *text = NULL;
        size_t bytes;
        FILE *list = open_memstream(&text, &bytes);
        int r = 0;
        if (!list)
                return mfl_fail_memory(err, 0, "a list");
        for (int i = 0; !r && i < txn->n; i++)
                r = keep_old(txn->dir, i, &txn->entry[i], list, err);
        bool bad = ferror(list);
        if (fclose(list) || bad)
                r = mfl_fail_memory(err, 0, "a list");
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/undo.new/list", txn->dir);
        if (!r && !path)
                r = mfl_fail_memory(err, strlen(txn->dir), "a file name");
        if (!r)
                r = write_file(path, text, bytes, 0600, err);
        free(text);
        return r;
}

static int prepare(struct mfl_pki_txn *txn, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/undo.new", txn->dir);
        if (!path || txn->failed)
                return mfl_fail_memory(err, strlen(txn->dir), "a file name");
        int r = make_folder(path, 0700, err);
        if (!r)
                r = write_list(txn, err);
        if (!r)
                r = rename_folder(txn->dir, "undo.new", "undo", err);
        return r;
}

static int apply_entry(const struct mfl_pki_txn_entry *e, struct mfl_error *err)
{
        int r = 0;
        switch (e->kind) {
        case MFL_PKI_TXN_FILE:
                return write_file(e->path, e->text, strlen(e->text), e->mode, err);
        case MFL_PKI_TXN_DIR:
                if (e->is_new)
                        r = make_folder(e->path, e->mode, err);
                break;
        case MFL_PKI_TXN_REMOVE:
                if (!e->is_new && unlink(e->path))
                        return mfl_fail_errno(err, "remove %s", e->path);
                break;
        }
        return r || e->is_new != (e->kind == MFL_PKI_TXN_DIR) ? r : sync_parent(e->path, err);
}

static int apply(struct mfl_pki_txn *txn, struct mfl_error *err)
{
        int r = 0;
        for (int i = 0; !r && i < txn->n; i++)
                r = apply_entry(&txn->entry[i], err);
        return r ? r : rename_folder(txn->dir, "undo", "done", err);
}

/* Restored. `done` may exist if the fsync of the directory failed after the rename. */
static void take_back(struct mfl_pki_txn *txn, struct mfl_error *err)
{
        struct mfl_error why, again;
        int r = 0;
        if (!is_there(txn->dir, "undo") && is_there(txn->dir, "done"))
                r = rename_folder(txn->dir, "done", "undo", &why);
        if (!r && is_there(txn->dir, "undo"))
                r = undo(txn->dir, &why);
        if (!r)
                remove_folder(txn->dir, "undo.new");
        if (!r)
                return;
        again = *err;
        mfl_fail(err, r, "%.250s; undoing the change also failed (%.150s): the next command will undo it",
                again.text, why.text);
}

int mfl_pki_txn_commit(struct mfl_pki_txn *txn, struct mfl_error *err)
{
        int r = prepare(txn, err);
        if (!r)
                r = apply(txn, err);
        if (r)
                take_back(txn, err);
        else
                remove_folder(txn->dir, "done");
        mfl_pki_txn_drop(txn);
        return r;
}
