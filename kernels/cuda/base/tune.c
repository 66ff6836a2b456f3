/* SPDX-License-Identifier: Apache-2.0 */
/* What measurements chose, in memory and in one text file of the cache directory.
 *
 * The file is read at mfl_tuner_new (a missing file, or one of another identity, counts as empty). It is read
 * again under a lock before it is replaced, so that entries of other processes stay. What can go wrong: no
 * directory, not writable, disk full, another process that holds the lock for too long. Each costs only the
 * memory of what was measured, and one line in the log.
 */
#include "kernels/cuda/base/tune.h"

#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "common/base/log.h"

#define FILE_BYTES_MAX ((size_t)16 << 20)
#define HEAD "mfl tuning file, format 1\t"
#define LOCK_TRIES 40 /* of 25 ms */

struct entry {
        char key[MFL_TUNE_KEY_BYTES], choice[MFL_TUNE_CHOICE_BYTES];
        double ns;
        bool ours; /* put by this process: a file's entry does not replace it */
        bool note; /* not for the file */
};

struct mfl_tuner {
        pthread_mutex_t mutex;
        char *path; /* NULL: nothing is stored on disk */
        char *head; /* the file's first line, without its end */
        struct entry *entries;
        size_t n, n_max;
        bool dirty, said; /* said: a failure was logged */
};

/* FNV-1a, 64 bits (Fowler, Noll, Vo): a name, not a protection. The first line decides. */
static uint64_t hash_text(const char *s)
{
        uint64_t h = 0xcbf29ce484222325u;
        for (; *s; s++)
                h = (h ^ (uint8_t)*s) * 0x100000001b3u;
        return h;
}

static const char *get_env(const char *name)
{
        const char *value = getenv(name);
        return value && *value ? value : NULL;
}

/* Finds the directory by the rules of tune.h; *ret_dir is NULL when there is none. */
static int find_dir(char **ret_dir, struct mfl_error *err)
{
        const char *own = get_env("MFL_CACHE_DIR"), *systemd = get_env("CACHE_DIRECTORY"),
                   *xdg = get_env("XDG_CACHE_HOME"), *home = get_env("HOME");
        char *dir = NULL;
        if (own)
                dir = mfl_strdup(own);
        else if (systemd) /* colons separate several: systemd.exec(5) */
                dir = mfl_asprintf("%.*s", (int)strcspn(systemd, ":"), systemd);
        else if (xdg)
                dir = mfl_asprintf("%s/mfl", xdg);
        else if (home)
                dir = mfl_asprintf("%s/.cache/mfl", home);
        else
                goto out;
        if (!dir)
                return mfl_fail_memory(err, 256, "the name of the cache directory");
out:
        *ret_dir = dir;
        return 0;
}

static struct entry *find(struct mfl_tuner *tuner, const char *key)
{
        for (size_t i = 0; i < tuner->n; i++) {
                if (!strcmp(tuner->entries[i].key, key))
                        return &tuner->entries[i];
        }
        return NULL;
}

static int put(struct mfl_tuner *tuner, const struct entry *new, struct mfl_error *err)
{
        struct entry *e = find(tuner, new->key);
        if (e) {
                *e = *new;
                return 0;
        }
        if (tuner->n == tuner->n_max) {
                size_t n_max = MFL_MAX(2 * tuner->n_max, 64);
                struct entry *entries = mfl_realloc(tuner->entries, n_max * sizeof(*entries));
                if (!entries)
                        return mfl_fail_memory(err, n_max * sizeof(*entries), "tuning entries");
                tuner->entries = entries;
                tuner->n_max = n_max;
        }
        tuner->entries[tuner->n++] = *new;
        return 0;
}

static bool copy_field(char *dst, size_t dst_bytes, const char *src, size_t n)
{
        if (n == 0 || n >= dst_bytes)
                return false;
        for (size_t i = 0; i < n; i++) {
                if (!isprint((unsigned char)src[i]))
                        return false;
        }
        memcpy(dst, src, n);
        dst[n] = 0;
        return true;
}

/* KEY<tab>CHOICE<tab>ns, n bytes without the line's end. */
static bool parse_line(const char *line, size_t n, struct entry *ret_entry)
{
        struct entry e = {.ours = false};
        const char *tab = memchr(line, '\t', n), *tab2;
        char number[40], *end;
        if (!tab || !(tab2 = memchr(tab + 1, '\t', n - (size_t)(tab + 1 - line))))
                return false;
        if (!copy_field(e.key, sizeof e.key, line, (size_t)(tab - line)) ||
                !copy_field(e.choice, sizeof e.choice, tab + 1, (size_t)(tab2 - tab - 1)) ||
                !copy_field(number, sizeof number, tab2 + 1, n - (size_t)(tab2 + 1 - line)))
                return false;
        e.ns = strtod(number, &end);
        if (end == number || *end || !(e.ns >= 0 && e.ns < 1e18))
                return false;
        *ret_entry = e;
        return true;
}

/* Takes over the entries of the text. It skips a last line without an end, which may have been cut. */
static int take_text(struct mfl_tuner *tuner, const char *text, size_t bytes, struct mfl_error *err)
{
        const char *end = text + bytes, *line_end = memchr(text, '\n', bytes);
        size_t head = strlen(tuner->head);
        if (!line_end || (size_t)(line_end - text) != head || memcmp(text, tuner->head, head))
                return 0;
        for (const char *line = line_end + 1; line < end; line = line_end + 1) {
                struct entry e, *old;
                line_end = memchr(line, '\n', (size_t)(end - line));
                if (!line_end)
                        break;
                if (!parse_line(line, (size_t)(line_end - line), &e))
                        continue;
                old = find(tuner, e.key);
                if (old && old->ours)
                        continue;
                int r = put(tuner, &e, err);
                if (r)
                        return r;
        }
        return 0;
}

/* A file that is missing or unreadable is no error; only memory is. */
static int take_file(struct mfl_tuner *tuner, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = NULL;
        size_t bytes;
        struct mfl_error why;
        int r = mfl_fs_read(tuner->path, FILE_BYTES_MAX, &text, &bytes, &why);
        if (r == -ENOMEM)
                return mfl_fail(err, r, "%s", why.text);
        return r ? 0 : take_text(tuner, text, bytes, err);
}

static int set_path(struct mfl_tuner *tuner, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *dir = NULL;
        struct mfl_error why;
        int r = find_dir(&dir, err);
        if (r)
                return r;
        if (!dir) {
                mfl_log(MFL_LOG_INFO, "tuning: measurements are not stored: none of MFL_CACHE_DIR, "
                                      "CACHE_DIRECTORY, XDG_CACHE_HOME and HOME is set");
                return 0;
        }
        r = mfl_fs_mkdirs(dir, 0755, &why);
        if (r == -ENOMEM)
                return mfl_fail(err, r, "%s", why.text);
        if (r || access(dir, W_OK)) {
                mfl_log(MFL_LOG_INFO, "tuning: measurements are not stored: %s",
                        r ? why.text : "the cache directory is not writable");
                tuner->said = true;
        }
        if (r)
                return 0;
        tuner->path = mfl_asprintf("%s/tune-%016llx.txt", dir, (unsigned long long)hash_text(tuner->head));
        return tuner->path ? 0 : mfl_fail_memory(err, strlen(dir) + 32, "a tuning file's name");
}

int mfl_tuner_new(const char *identity, struct mfl_tuner **ret_tuner, struct mfl_error *err)
{
        mfl_assert(!strpbrk(identity, "\t\n"));
        struct mfl_tuner *tuner = mfl_calloc(1, sizeof(*tuner));
        int r = 0;
        if (!tuner)
                return mfl_fail_memory(err, sizeof(*tuner), "a tuner");
        pthread_mutex_init(&tuner->mutex, NULL);
        tuner->head = mfl_asprintf(HEAD "%s", identity);
        if (!tuner->head)
                r = mfl_fail_memory(err, strlen(identity) + sizeof HEAD, "a tuner's identity");
        if (!r)
                r = set_path(tuner, err);
        if (!r && tuner->path)
                r = take_file(tuner, err);
        if (r) {
                mfl_tuner_free(tuner);
                return r;
        }
        *ret_tuner = tuner;
        return 0;
}

void mfl_tuner_free(struct mfl_tuner *tuner)
{
        if (!tuner)
                return;
        mfl_tuner_save(tuner);
        pthread_mutex_destroy(&tuner->mutex);
        free(tuner->entries);
        free(tuner->path);
        free(tuner->head);
        free(tuner);
}

bool mfl_tuner_get(struct mfl_tuner *tuner, const char *key, char *choice, double *ret_ns)
{
        pthread_mutex_lock(&tuner->mutex);
        const struct entry *e = find(tuner, key);
        if (e) {
                memcpy(choice, e->choice, sizeof e->choice);
                *ret_ns = e->ns;
        }
        pthread_mutex_unlock(&tuner->mutex);
        return e != NULL;
}

int mfl_tuner_put(
        struct mfl_tuner *tuner, const char *key, const char *choice, double ns, struct mfl_error *err)
{
        struct entry e = {.ns = ns, .ours = true};
        mfl_assert(copy_field(e.key, sizeof e.key, key, strlen(key)));
        mfl_assert(copy_field(e.choice, sizeof e.choice, choice, strlen(choice)));
        mfl_assert(ns >= 0 && ns < 1e18);
        pthread_mutex_lock(&tuner->mutex);
        int r = put(tuner, &e, err);
        if (!r)
                tuner->dirty = true;
        pthread_mutex_unlock(&tuner->mutex);
        return r;
}

int mfl_tuner_note(struct mfl_tuner *tuner, const char *key, struct mfl_error *err)
{
        struct entry e = {.ours = true, .note = true};
        mfl_assert(copy_field(e.key, sizeof e.key, key, strlen(key)));
        pthread_mutex_lock(&tuner->mutex);
        int r = put(tuner, &e, err);
        pthread_mutex_unlock(&tuner->mutex);
        return r;
}

bool mfl_tuner_knows(struct mfl_tuner *tuner, const char *key)
{
        pthread_mutex_lock(&tuner->mutex);
        const struct entry *e = find(tuner, key);
        bool known = e && e->note;
        pthread_mutex_unlock(&tuner->mutex);
        return known;
}

/* Several processes replace the file, but only the holder of PATH.lock may. It waits a second for the lock,
 * not forever: the holder may have been stopped. -1: not locked. */
static int lock_file(const char *path, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *name = mfl_asprintf("%s.lock", path);
        if (!name) {
                mfl_fail_memory(err, strlen(path) + 6, "a file name");
                return -1;
        }
        int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0) {
                mfl_fail_errno(err, "create %s", name);
                return -1;
        }
        for (int i = 0; i < LOCK_TRIES; i++) {
                if (!flock(fd, LOCK_EX | LOCK_NB))
                        return fd;
                nanosleep(&(struct timespec){.tv_nsec = 25000000}, NULL);
        }
        mfl_fail_errno(err, "lock %s", name);
        close(fd);
        return -1;
}

static int write_entries(struct mfl_tuner *tuner, struct mfl_fs_file *file, struct mfl_error *err)
{
        char line[MFL_TUNE_KEY_BYTES + MFL_TUNE_CHOICE_BYTES + 48];
        int r = mfl_fs_write(file, tuner->head, strlen(tuner->head), err);
        if (!r)
                r = mfl_fs_write(file, "\n", 1, err);
        for (size_t i = 0; i < tuner->n && !r; i++) {
                const struct entry *e = &tuner->entries[i];
                if (e->note)
                        continue;
                int n = snprintf(line, sizeof line, "%s\t%s\t%.1f\n", e->key, e->choice, e->ns);
                r = mfl_fs_write(file, line, (size_t)n, err);
        }
        return r;
}

static int save(struct mfl_tuner *tuner, struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        int fd = lock_file(tuner->path, err);
        if (fd < 0)
                return -EIO;
        int r = take_file(tuner, err);
        if (!r)
                r = mfl_fs_begin(&file, tuner->path, err);
        if (!r) {
                r = write_entries(tuner, &file, err);
                if (!r)
                        r = mfl_fs_commit(&file, err);
                mfl_fs_abort(&file);
        }
        close(fd);
        return r;
}

void mfl_tuner_save(struct mfl_tuner *tuner)
{
        struct mfl_error err;
        pthread_mutex_lock(&tuner->mutex);
        if (tuner->path && tuner->dirty) {
                int r = save(tuner, &err);
                if (!r)
                        tuner->dirty = false;
                else if (!tuner->said)
                        mfl_log(MFL_LOG_WARN, "tuning: measurements are not stored: %s", err.text);
                tuner->said |= r != 0;
        }
        pthread_mutex_unlock(&tuner->mutex);
}
