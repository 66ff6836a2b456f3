/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of a private CA: making it, opening it under its lock, and committing changes.
 *
 * Happy path: lock -> undo what a killed command left -> ca.pem, index.json -> (ca.key) -> plan -> commit.
 * Failures: there is no CA; another command holds the lock; permissions that let others read or write;
 * damaged files; the disk.
 */
#include "cli/pki/pki.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/fs.h"

#define TEXT_BYTES_MAX (64u << 20)
#define PASS_BYTES_MAX 1023
#define LOCK_TRIES 500
#define LOCK_PAUSE_NS 20000000

int mfl_pki_default_dir(char **ret_dir, struct mfl_error *err)
{
        const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
        char *dir;
        if (config && *config == '/')
                dir = mfl_asprintf("%s/mfl/pki", config);
        else if (home && *home)
                dir = mfl_asprintf("%s/.config/mfl/pki", home);
        else
                return mfl_fail(
                        err, MFL_CLI_USAGE, "$HOME is not set: give the CA's directory with --dir DIR");
        if (!dir)
                return mfl_fail_memory(err, 0, "a file name");
        *ret_dir = dir;
        return 0;
}

int mfl_pki_pass_read(const char *path, char **ret_pass, struct mfl_error *err)
{
        struct stat st;
        char *text;
        size_t bytes;
        if (!stat(path, &st) && S_ISREG(st.st_mode) && st.st_mode & 0077)
                return mfl_fail(
                        err, MFL_INVALID, "%s: others may read the pass phrase; chmod 600 %s", path, path);
        int r = mfl_fs_read(path, PASS_BYTES_MAX, &text, &bytes, err);
        if (r)
                return r;
        size_t n = strcspn(text, "\r\n");
        explicit_bzero(text + n, bytes - n);
        if (n) {
                *ret_pass = text;
                return 0;
        }
        mfl_pki_wipe(text);
        return mfl_fail(err, MFL_INVALID, "%s: the first line, which is the pass phrase, is empty", path);
}

/* ---- lock ---- */

/* A lock on a file that was removed in the meantime is worth nothing. */
static bool is_same_file(int fd, const char *path)
{
        struct stat a, b;
        return !fstat(fd, &a) && !stat(path, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int take_lock(struct mfl_pki *pki, bool create, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/lock", pki->dir);
        if (!path)
                return mfl_fail_memory(err, strlen(pki->dir), "a file name");
        for (int i = 0; i < LOCK_TRIES; i++) {
                int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0), 0600);
                if (fd < 0 && errno == ENOENT)
                        return mfl_fail(err, MFL_NOT_FOUND,
                                "there is no CA in %s: 'mfl pki init' makes one, --dir DIR names another",
                                pki->dir);
                if (fd < 0)
                        return mfl_fail_errno(err, "open %s", path);
                if (!flock(fd, LOCK_EX | LOCK_NB) && is_same_file(fd, path)) {
                        pki->lock = fd;
                        return 0;
                }
                close(fd);
                nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
        }
        return mfl_fail(err, MFL_CLI_CONFLICT,
                "another 'mfl pki' has held the lock in %s for 10 s: try again when it has ended", pki->dir);
}

static int recover(struct mfl_pki *pki, struct mfl_error *err)
{
        bool undone;
        return mfl_pki_txn_recover(pki->dir, &undone, err);
}

/* ---- open ---- */

static int read_text(const struct mfl_pki *pki, const char *name, char **ret_text, struct mfl_error *err)
{
        size_t bytes;
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s", pki->dir, name);
        return path ? mfl_fs_read(path, TEXT_BYTES_MAX, ret_text, &bytes, err)
                    : mfl_fail_memory(err, strlen(pki->dir), "a file name");
}

static int check_modes(const struct mfl_pki *pki, struct mfl_error *err)
{
        struct stat st;
        MFL_CLEANUP_FREE char *key = mfl_asprintf("%s/ca.key", pki->dir);
        if (!key)
                return mfl_fail_memory(err, strlen(pki->dir), "a file name");
        if (!stat(pki->dir, &st) && st.st_mode & 0022)
                return mfl_fail(
                        err, MFL_INVALID, "%s: others may write there; chmod 700 %s", pki->dir, pki->dir);
        if (!stat(key, &st) && st.st_mode & 0077)
                return mfl_fail(err, MFL_INVALID, "%s: others may read the CA's key; chmod 600 %s", key, key);
        return 0;
}

static int read_index(struct mfl_pki *pki, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = NULL;
        int r = read_text(pki, "ca.pem", &pki->ca_pem, err);
        if (!r)
                r = read_text(pki, "index.json", &text, err);
        return r ? r : mfl_pki_index_parse(text, "index.json", &pki->index, err);
}

int mfl_pki_open(struct mfl_pki *pki, const char *dir, int64_t now, struct mfl_error *err)
{
        *pki = (struct mfl_pki){.lock = -1, .now = now, .dir = realpath(dir, NULL)};
        if (!pki->dir && (errno == ENOENT || errno == ENOTDIR))
                return mfl_fail(err, MFL_NOT_FOUND,
                        "there is no CA in %s: 'mfl pki init' makes one, --dir DIR names another", dir);
        int r = pki->dir ? take_lock(pki, false, err) : mfl_fail_errno(err, "%s", dir);
        if (!r)
                r = check_modes(pki, err);
        if (!r)
                r = recover(pki, err);
        if (!r)
                r = read_index(pki, err);
        if (r)
                mfl_pki_close(pki);
        return r;
}

int mfl_pki_unseal(struct mfl_pki *pki, const char *pass, struct mfl_error *err)
{
        char *key;
        int r = read_text(pki, "ca.key", &key, err);
        if (r)
                return r;
        r = mfl_pki_ca_read(pki->ca_pem, key, pass, &pki->ca, err);
        mfl_pki_wipe(key);
        return r;
}

void mfl_pki_close(struct mfl_pki *pki)
{
        if (pki->lock >= 0)
                close(pki->lock);
        pki->lock = -1;
        mfl_pki_ca_free(pki->ca);
        mfl_pki_index_deinit(&pki->index);
        free(pki->ca_pem);
        free(pki->dir);
        pki->ca = NULL;
        pki->ca_pem = pki->dir = NULL;
}

/* ---- commit ---- */

static int make_crl(struct mfl_pki *pki, char **ret_crl, struct mfl_error *err)
{
        const struct mfl_pki_index *index = &pki->index;
        MFL_CLEANUP_FREE struct mfl_pki_revoked *revoked = mfl_calloc(index->n + 1, sizeof *revoked);
        size_t n = 0;
        if (!revoked)
                return mfl_fail_memory(err, index->n * sizeof *revoked, "the revocation list");
        for (size_t i = 0; i < index->n; i++)
                if (index->entry[i].state == MFL_PKI_REVOKED)
                        revoked[n++] =
                                (struct mfl_pki_revoked){index->entry[i].serial, index->entry[i].revoked};
        return mfl_pki_crl_make(pki->ca, revoked, n, index->crl_number, pki->now,
                pki->now + (int64_t)index->crl_days * MFL_PKI_DAY_S, ret_crl, err);
}

int mfl_pki_commit(struct mfl_pki *pki, struct mfl_pki_txn *txn, int64_t crl_days, const char *crl_copy,
        struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *crl = NULL, *text = NULL;
        pki->index.crl_number++;
        if (crl_days > 0)
                pki->index.crl_days = (int)crl_days;
        int r = make_crl(pki, &crl, err);
        if (!r)
                r = mfl_pki_index_text(&pki->index, &text, err);
        if (r) {
                mfl_pki_txn_drop(txn);
                return r;
        }
        if (crl_copy)
                mfl_pki_txn_file(txn, crl, 0644, "%s", crl_copy);
        mfl_pki_txn_file(txn, crl, 0644, "%s/crl.pem", pki->dir);
        mfl_pki_txn_file(txn, text, 0600, "%s/index.json", pki->dir);
        return mfl_pki_txn_commit(txn, err);
}

/* ---- create ---- */

/* Only a lock, and what a killed init left, which recovery has removed. */
static int check_empty(struct mfl_pki *pki, struct mfl_error *err)
{
        DIR *d = opendir(pki->dir);
        char found[256] = "";
        if (!d)
                return mfl_fail_errno(err, "open %s", pki->dir);
        for (struct dirent *e; (e = readdir(d));) {
                pki->has_ca = pki->has_ca || !strcmp(e->d_name, "ca.pem") || !strcmp(e->d_name, "ca.key");
                if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strcmp(e->d_name, "lock"))
                        mfl_strcpy(found, sizeof found, e->d_name);
        }
        closedir(d);
        if (pki->has_ca)
                return mfl_fail(err, MFL_EXISTS, "%s already has a CA; nothing was changed", pki->dir);
        if (*found)
                return mfl_fail(err, MFL_EXISTS, "%s is not empty (it contains '%.60s'); nothing was changed",
                        pki->dir, found);
        return 0;
}

static int make_ca(struct mfl_pki *pki, int days, const char *pass, struct mfl_error *err)
{
        struct mfl_pki_txn txn = {.dir = pki->dir};
        char *key = NULL;
        int r = mfl_pki_ca_make(pki->index.ca, pki->now, days, pass, &pki->ca_pem, &key, err);
        if (!r)
                r = mfl_pki_ca_read(pki->ca_pem, key, pass, &pki->ca, err);
        if (!r) {
                mfl_pki_txn_dir(&txn, 0700, "%s/issued", pki->dir);
                mfl_pki_txn_file(&txn, key, 0600, "%s/ca.key", pki->dir);
                mfl_pki_txn_file(&txn, pki->ca_pem, 0644, "%s/ca.pem", pki->dir);
                r = mfl_pki_commit(pki, &txn, -1, NULL, err);
        }
        mfl_pki_wipe(key);
        return r;
}

/* The folder may exist already. Others must not look into it. */
static int make_dir(struct mfl_pki *pki, const char *dir, bool *ret_made, struct mfl_error *err)
{
        struct stat st;
        *ret_made = stat(dir, &st) != 0;
        int r = mfl_fs_mkdirs(dir, 0700, err);
        if (r)
                return r;
        pki->dir = realpath(dir, NULL);
        return pki->dir ? 0 : mfl_fail_errno(err, "%s", dir);
}

static int fill_dir(struct mfl_pki *pki, int days, const char *pass, struct mfl_error *err)
{
        int r = recover(pki, err);
        if (!r)
                r = check_empty(pki, err);
        if (!r && chmod(pki->dir, 0700))
                r = mfl_fail_errno(err, "chmod 700 %s", pki->dir);
        return r ? r : make_ca(pki, days, pass, err);
}

/* After a failure, the folder is as it was before this command made a lock in it. */
static void leave_dir(struct mfl_pki *pki, const struct stat *before, bool made, bool had_lock)
{
        MFL_CLEANUP_FREE char *lock = mfl_asprintf("%s/lock", pki->dir);
        /* If another command has made a CA in the meantime, its lock stays. */
        if (pki->lock >= 0 && !pki->has_ca && lock) {
                chmod(pki->dir, before->st_mode & 07777);
                if (!had_lock)
                        unlink(lock);
        }
        if (made)
                rmdir(pki->dir);
}

int mfl_pki_create(struct mfl_pki *pki, const char *dir, const char *ca_name, int days, int crl_days,
        const char *pass, int64_t now, struct mfl_error *err)
{
        struct stat before = {.st_mode = 0700}, st;
        bool made = false, had_lock = false;
        *pki = (struct mfl_pki){.lock = -1, .now = now, .index = {.crl_days = crl_days}};
        mfl_strcpy(pki->index.ca, sizeof pki->index.ca, ca_name);
        int r = make_dir(pki, dir, &made, err);
        if (r)
                return r;
        MFL_CLEANUP_FREE char *lock = mfl_asprintf("%s/lock", pki->dir);
        had_lock = lock && !stat(lock, &st);
        if (!lock)
                r = mfl_fail_memory(err, strlen(pki->dir), "a file name");
        else if (stat(pki->dir, &before))
                r = mfl_fail_errno(err, "stat %s", pki->dir);
        if (!r)
                r = take_lock(pki, true, err);
        if (!r)
                r = fill_dir(pki, days, pass, err);
        if (!r)
                return 0;
        leave_dir(pki, &before, made, had_lock);
        mfl_pki_close(pki);
        return r;
}
