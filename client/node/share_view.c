/* SPDX-License-Identifier: Apache-2.0 */
/* Views of other daemons' buffers: found by name, locked against overwriting, mapped read-only.
 *
 * - open the file of that name; check that it is this user's and has the right size;
 * - lock it, shared; it must still have its name, otherwise its owner has just withdrawn it;
 * - map it, or reuse the former map.
 *
 * Mapping has a cost: on one core of a Xeon (Sapphire Rapids, a virtual machine) 200 MB take 5.8 ms of page
 * faults (4.2 with MAP_POPULATE, but then by one thread) and 2.1 ms to unmap, while adding them to a sum
 * takes 9 to 12 ms. So a closed view releases the lock but keeps the map, and the next view of the same file
 * uses it. The file is recognized by its inode number, which no other file can have as long as the map
 * exists. Kept maps take no memory while their files have names; without a name they would keep the memory of
 * a buffer that its owner freed. So those are unmapped whenever a view is opened, and all of them whenever
 * this daemon frees a buffer. */
#include "client/node/share_internal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/fs.h"

#define TRIES 16
#define RESTING_MAX 128 /* two for each member of a group */

struct mfl_share_view {
        struct mfl_share *share;
        struct mfl_share_view *next; /* resting */
        int fd;
        void *data; /* NULL: not mapped */
        uint64_t bytes;
        dev_t dev;
        ino_t ino;
};

static void free_view(struct mfl_share_view *view)
{
        if (view->data)
                munmap(view->data, view->bytes);
        if (view->fd >= 0)
                close(view->fd);
        free(view);
}

void mfl_share_drop_resting(struct mfl_share *share, bool all)
{
        struct mfl_share_view **link = &share->resting;
        while (*link) {
                struct mfl_share_view *view = *link;
                struct stat st;
                if (all || fstat(view->fd, &st) || st.st_nlink == 0) {
                        *link = view->next;
                        free_view(view);
                } else {
                        link = &view->next;
                }
        }
}

/* Opens and locks the file that has the name now. MFL_NOT_FOUND: none; MFL_BUSY: it has just been
 * withdrawn. */
static int open_locked(struct mfl_share_view *view, const char *name, struct mfl_error *err)
{
        struct mfl_share *share = view->share;
        struct stat st;
        view->fd = openat(share->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (view->fd < 0)
                return errno == ENOENT ? MFL_NOT_FOUND : mfl_share_fail_errno(err, share, name, "open", "");
        if (fstat(view->fd, &st))
                return mfl_share_fail_errno(err, share, name, "look at", "");
        if (!mfl_share_is_ours(&st))
                return mfl_fail(err, MFL_INVALID,
                        "%s/%s: not a file of this user for this user alone (user %u, mode %o)", share->dir,
                        name, (unsigned)st.st_uid, (unsigned)st.st_mode);
        if ((uint64_t)st.st_size != view->bytes)
                return mfl_fail(err, MFL_INVALID, "%s/%s: %" PRIu64 " bytes, expected %" PRIu64, share->dir,
                        name, (uint64_t)st.st_size, view->bytes);
        int r = mfl_fs_fault("share-view-opened", name); /* tests act between opening and locking */
        if (r)
                return mfl_fail(err, r, "open %s/%s: %s", share->dir, name, strerror(-r));
        /* Never waits: only an owner whose buffer is withdrawn and idle holds the exclusive lock. */
        if (flock(view->fd, LOCK_SH | LOCK_NB)) {
                if (errno == EWOULDBLOCK)
                        return MFL_BUSY;
                return mfl_share_fail_errno(err, share, name, "lock", "");
        }
        if (!mfl_share_is_named(share, view->fd, name))
                return MFL_BUSY;
        view->dev = st.st_dev;
        view->ino = st.st_ino;
        return 0;
}

static int find_and_lock(
        struct mfl_share_view *view, uint64_t instance, const char *name, struct mfl_error *err)
{
        int r = MFL_BUSY;
        for (int i = 0; r == MFL_BUSY && i < TRIES; i++) {
                if (view->fd >= 0)
                        close(view->fd);
                r = open_locked(view, name, err);
        }
        if (r != MFL_BUSY && r != MFL_NOT_FOUND)
                return r;
        if (r == MFL_NOT_FOUND && mfl_share_is_dead(view->share, instance))
                return mfl_fail(err, MFL_SHARE_GONE, "%s/%s: the daemon is dead", view->share->dir, name);
        return mfl_fail(err, MFL_NOT_FOUND, "%s/%s: not there (any more)", view->share->dir, name);
}

static int map_view(struct mfl_share_view *view, struct mfl_error *err)
{
        struct mfl_share *share = view->share;
        pthread_mutex_lock(&share->lock);
        struct mfl_share_view **link = &share->resting, *old;
        while ((old = *link) && (old->ino != view->ino || old->dev != view->dev || old->bytes != view->bytes))
                link = &old->next;
        if (old) {
                *link = old->next;
                view->data = old->data;
                old->data = NULL;
                free_view(old);
        }
        pthread_mutex_unlock(&share->lock);
        if (view->data)
                return 0;
        void *data = mmap(NULL, view->bytes, PROT_READ, MAP_SHARED, view->fd, 0);
        if (data == MAP_FAILED)
                return mfl_fail_errno(err, "map %" PRIu64 " bytes of another daemon", view->bytes);
        view->data = data;
        return 0;
}

int mfl_share_view_open(struct mfl_share *share, uint64_t instance, const uint8_t key[MFL_SHARE_KEY_BYTES],
        uint64_t bytes, struct mfl_share_view **ret_view, struct mfl_error *err)
{
        mfl_assert(bytes > 0);
        char name[MFL_SHARE_FILE_BYTES];
        mfl_share_name_key(name, instance, key);
        struct mfl_share_view *view = mfl_calloc(1, sizeof(*view));
        if (!view)
                return mfl_fail_memory(err, sizeof(*view), "a view of shared memory");
        *view = (struct mfl_share_view){.share = share, .bytes = bytes, .fd = -1};
        pthread_mutex_lock(&share->lock);
        mfl_share_drop_resting(share, false);
        pthread_mutex_unlock(&share->lock);
        int r = find_and_lock(view, instance, name, err);
        if (!r)
                r = map_view(view, err);
        if (r) {
                free_view(view);
                return r;
        }
        pthread_mutex_lock(&share->lock);
        share->n_views++;
        pthread_mutex_unlock(&share->lock);
        *ret_view = view;
        return 0;
}

const void *mfl_share_view_data(const struct mfl_share_view *view)
{
        return view->data;
}

void mfl_share_view_close(struct mfl_share_view *view)
{
        if (!view)
                return;
        struct mfl_share *share = view->share;
        flock(view->fd, LOCK_UN);
        pthread_mutex_lock(&share->lock);
        share->n_views--;
        view->next = share->resting;
        share->resting = view;
        uint32_t n = 0;
        struct mfl_share_view **link = &share->resting;
        for (; *link && n < RESTING_MAX; n++)
                link = &(*link)->next;
        if (*link) { /* the least recently used */
                free_view(*link);
                *link = NULL;
        }
        mfl_share_drop_resting(share, false);
        pthread_mutex_unlock(&share->lock);
}
