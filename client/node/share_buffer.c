/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers that others may read: made with reserved pages, published and withdrawn by rename.
 *
 * - make mfl-INSTANCE-N, reserve its pages, map them;
 * - publish renames it to mfl-INSTANCE.KEY; withdraw renames it back;
 * - idle asks for the exclusive lock of the file, which any reader's shared lock prevents.
 * Fails by: no room, or more than this daemon may use (MFL_INVALID); a foreign file that has the name. */
#include "client/node/share_internal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MIB(bytes) ((double)(bytes) / (1024 * 1024))
#define PAGE 4096 /* the smallest there is */

struct mfl_share_buffer {
        struct mfl_share *share;
        struct mfl_share_buffer *next;
        uint64_t bytes, number;
        int fd;
        void *data;
        bool charged, made, published;
        uint8_t key[MFL_SHARE_KEY_BYTES];
};

static void name_hidden(const struct mfl_share_buffer *buffer, char name[MFL_SHARE_FILE_BYTES])
{
        snprintf(name, MFL_SHARE_FILE_BYTES, "mfl-%016" PRIx64 "-%" PRIu64, buffer->share->instance,
                buffer->number);
}

static void name_now(const struct mfl_share_buffer *buffer, char name[MFL_SHARE_FILE_BYTES])
{
        if (buffer->published)
                mfl_share_name_key(name, buffer->share->instance, buffer->key);
        else
                name_hidden(buffer, name);
}

/* Charges the bytes to this daemon's limit, and takes a number. */
static int charge(struct mfl_share_buffer *buffer, struct mfl_error *err)
{
        struct mfl_share *share = buffer->share;
        int r = 0;
        pthread_mutex_lock(&share->lock);
        if (buffer->bytes > share->bytes_max - share->bytes_used) {
                r = mfl_fail(err, MFL_INVALID,
                        "%s: no room for a buffer of %.1f MiB: this daemon uses %.1f of its %.1f MiB",
                        share->dir, MIB(buffer->bytes), MIB(share->bytes_used), MIB(share->bytes_max));
        } else {
                share->bytes_used += buffer->bytes;
                buffer->charged = true;
        }
        buffer->number = share->n_named++;
        pthread_mutex_unlock(&share->lock);
        return r;
}

static int make_file(struct mfl_share_buffer *buffer, struct mfl_error *err)
{
        struct mfl_share *share = buffer->share;
        char name[MFL_SHARE_FILE_BYTES];
        int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
        /* If a foreign file has the name, the next number is as good. */
        for (int i = 0; i < 100; i++) {
                name_hidden(buffer, name);
                buffer->fd = openat(share->fd, name, flags, S_IRUSR | S_IWUSR);
                if (buffer->fd >= 0 || errno != EEXIST)
                        break;
                pthread_mutex_lock(&share->lock);
                buffer->number = share->n_named++;
                pthread_mutex_unlock(&share->lock);
        }
        if (buffer->fd < 0)
                return mfl_share_fail_errno(err, share, name, "make", "");
        buffer->made = true;
        return 0;
}

static int fail_full(const struct mfl_share_buffer *buffer, struct mfl_error *err)
{
        const struct mfl_share *share = buffer->share;
        struct statvfs vfs = {0};
        fstatvfs(share->fd, &vfs);
        return mfl_fail(err, MFL_INVALID,
                "%s: no room for a buffer of %.1f MiB: %.1f of %.1f MiB are free; make it larger (mount -o "
                "remount,size=...), or give the container a larger /dev/shm (--shm-size)",
                share->dir, MIB(buffer->bytes), MIB((uint64_t)vfs.f_bavail * vfs.f_frsize),
                MIB((uint64_t)vfs.f_blocks * vfs.f_frsize));
}

static int reserve(const struct mfl_share_buffer *buffer, struct mfl_error *err)
{
        int r;
        /* A signal during a long call undoes it. */
        do
                r = fallocate(buffer->fd, 0, 0, (off_t)buffer->bytes);
        while (r && errno == EINTR);
        if (!r)
                return 0;
        if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
                return fail_full(buffer, err);
        return mfl_share_fail_errno(err, buffer->share, "", "reserve memory in", "");
}

static int map_buffer(struct mfl_share_buffer *buffer, struct mfl_error *err)
{
        void *data = mmap(NULL, buffer->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, buffer->fd, 0);
        if (data == MAP_FAILED)
                return mfl_fail_errno(err, "map a shared buffer of %.1f MiB", MIB(buffer->bytes));
        buffer->data = data;
        return 0;
}

void mfl_share_buffer_touch(struct mfl_share_buffer *buffer)
{
        /* In one call, which is faster, if the kernel can (5.14). */
        if (!madvise(buffer->data, buffer->bytes, MADV_POPULATE_WRITE))
                return;
        for (uint64_t at = 0; at < buffer->bytes; at += PAGE)
                ((volatile char *)buffer->data)[at] = 0;
}

int mfl_share_buffer_new(
        struct mfl_share *share, uint64_t bytes, struct mfl_share_buffer **ret_buffer, struct mfl_error *err)
{
        mfl_assert(bytes > 0 && bytes <= INT64_MAX);
        struct mfl_share_buffer *buffer = mfl_calloc(1, sizeof(*buffer));
        if (!buffer)
                return mfl_fail_memory(err, sizeof(*buffer), "a shared buffer");
        *buffer = (struct mfl_share_buffer){.share = share, .bytes = bytes, .fd = -1};
        pthread_mutex_lock(&share->lock);
        buffer->next = share->buffers;
        share->buffers = buffer;
        pthread_mutex_unlock(&share->lock);
        int r = charge(buffer, err);
        if (!r)
                r = mfl_share_lock_check(share, err);
        if (!r)
                r = make_file(buffer, err);
        if (!r)
                r = reserve(buffer, err);
        if (!r)
                r = map_buffer(buffer, err);
        if (r) {
                mfl_share_buffer_free(buffer);
                return r;
        }
        *ret_buffer = buffer;
        return 0;
}

void mfl_share_buffer_free(struct mfl_share_buffer *buffer)
{
        if (!buffer)
                return;
        struct mfl_share *share = buffer->share;
        char name[MFL_SHARE_FILE_BYTES];
        pthread_mutex_lock(&share->lock);
        struct mfl_share_buffer **link = &share->buffers;
        while (*link != buffer)
                link = &(*link)->next;
        *link = buffer->next;
        if (buffer->charged)
                share->bytes_used -= buffer->bytes;
        name_now(buffer, name);
        if (buffer->made)
                unlinkat(share->fd, name, 0);
        /* If a daemon frees its own memory, its job is over, and so are the others' views for it. */
        mfl_share_drop_resting(share, true);
        pthread_mutex_unlock(&share->lock);
        if (buffer->data)
                munmap(buffer->data, buffer->bytes);
        if (buffer->fd >= 0)
                close(buffer->fd);
        free(buffer);
}

void *mfl_share_buffer_data(const struct mfl_share_buffer *buffer)
{
        return buffer->data;
}

uint64_t mfl_share_buffer_bytes(const struct mfl_share_buffer *buffer)
{
        return buffer->bytes;
}

/* share->lock is held. If the old name is taken, the file loses its name altogether, so that nobody new can
 * open it. Then it can't be published again, and publish says so. */
static void withdraw_locked(struct mfl_share_buffer *buffer)
{
        char from[MFL_SHARE_FILE_BYTES], to[MFL_SHARE_FILE_BYTES];
        if (!buffer->published)
                return;
        name_now(buffer, from);
        name_hidden(buffer, to);
        if (renameat(buffer->share->fd, from, buffer->share->fd, to))
                unlinkat(buffer->share->fd, from, 0);
        buffer->published = false;
}

int mfl_share_publish(
        struct mfl_share_buffer *buffer, const uint8_t key[MFL_SHARE_KEY_BYTES], struct mfl_error *err)
{
        struct mfl_share *share = buffer->share;
        char from[MFL_SHARE_FILE_BYTES], to[MFL_SHARE_FILE_BYTES];
        int r = 0;
        pthread_mutex_lock(&share->lock);
        for (struct mfl_share_buffer *other = share->buffers; other; other = other->next)
                if (other != buffer && other->published && !memcmp(other->key, key, MFL_SHARE_KEY_BYTES))
                        withdraw_locked(other);
        name_now(buffer, from);
        mfl_share_name_key(to, share->instance, key);
        if (renameat(share->fd, from, share->fd, to)) {
                r = mfl_share_fail_errno(err, share, to, "publish as", "");
        } else {
                buffer->published = true;
                memcpy(buffer->key, key, MFL_SHARE_KEY_BYTES);
        }
        pthread_mutex_unlock(&share->lock);
        return r;
}

void mfl_share_withdraw(struct mfl_share_buffer *buffer)
{
        pthread_mutex_lock(&buffer->share->lock);
        withdraw_locked(buffer);
        pthread_mutex_unlock(&buffer->share->lock);
}

/* A reader that opened the file before it was withdrawn may still lock it later; it then checks the name
 * again and does not read. */
bool mfl_share_idle(struct mfl_share_buffer *buffer)
{
        struct stat st;
        pthread_mutex_lock(&buffer->share->lock);
        bool idle = !buffer->published && !fstat(buffer->fd, &st) && st.st_nlink > 0 &&
                    !flock(buffer->fd, LOCK_EX | LOCK_NB);
        if (idle)
                flock(buffer->fd, LOCK_UN);
        pthread_mutex_unlock(&buffer->share->lock);
        return idle;
}
