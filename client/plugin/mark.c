/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of filters, in a mapped file: a store to memory each, which outlives the process.
 *
 *      header: magic, number of places | place 0 | place 1 | ... | left by processes before, a ring
 *
 * Fails: the file can't be made, or has no room, or another user owns it. A file of another shape is begun anew. */
#include "client/plugin/mark.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x6d666c4d61726b31u
#define PLACES_MAX 4096u /* as many as `workers` may say */
#define LEFT_MAX 256u

struct file {
        uint64_t magic;
        uint32_t n_left;
        struct mfl_mark place[PLACES_MAX], left[LEFT_MAX];
};

struct mfl_marks {
        struct file *file;
        char path[600];
};

/* A page that the file system has no room for would end the process when it is written. */
static int reserve(int fd)
{
        int r;
        do
                r = posix_fallocate(fd, 0, sizeof(struct file));
        while (r == EINTR);
        errno = r;
        return r;
}

static int open_file(const char *path, int *ret_fd, struct mfl_error *err)
{
        struct stat st;
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
        if (fd < 0)
                return mfl_fail_errno(err, "filters: %s", path);
        if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
                st.st_mode & (S_IRWXG | S_IRWXO)) {
                close(fd);
                return mfl_fail(err, MFL_INVALID, "filters: %s belongs to somebody else: remove it", path);
        }
        if ((st.st_size != sizeof(struct file) && ftruncate(fd, 0)) || reserve(fd)) {
                int r = mfl_fail_errno(err, "filters: %s", path);
                close(fd);
                return r;
        }
        *ret_fd = fd;
        return 0;
}

/* What is under way was left by a process that ended in it. */
static void take_left(struct file *file)
{
        if (file->magic != MAGIC) {
                memset(file, 0, sizeof(*file));
                file->magic = MAGIC;
        }
        for (uint32_t i = 0; i < PLACES_MAX; i++) {
                struct mfl_mark *mark = &file->place[i];
                mark->job[MFL_MARK_JOB_BYTES - 1] = '\0';
                if (*mark->job)
                        file->left[file->n_left++ % LEFT_MAX] = *mark;
                *mark = (struct mfl_mark){0};
        }
}

int mfl_marks_open(
        const char *dir, const char *daemon, uint32_t n, struct mfl_marks **ret_marks, struct mfl_error *err)
{
        struct mfl_marks *marks = mfl_calloc(1, sizeof(*marks));
        int fd = -1;
        if (!marks)
                return mfl_fail_memory(err, sizeof(*marks), "the marks of filters");
        mfl_assert(n <= PLACES_MAX);
        mfl_snprintf(
                marks->path, sizeof(marks->path), "%s/mfl-filters-%u-%s", dir, (unsigned)geteuid(), daemon);
        int r = open_file(marks->path, &fd, err);
        if (r) {
                free(marks);
                return r;
        }
        void *at = mmap(NULL, sizeof(struct file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (at == MAP_FAILED) {
                r = mfl_fail_errno(err, "filters: map %s", marks->path);
                free(marks);
                return r;
        }
        marks->file = at;
        take_left(marks->file);
        *ret_marks = marks;
        return 0;
}

void mfl_marks_close(struct mfl_marks *marks)
{
        if (!marks)
                return;
        munmap(marks->file, sizeof(struct file));
        unlink(marks->path);
        free(marks);
}

uint32_t mfl_marks_left(
        const struct mfl_marks *marks, const char *job, uint32_t round, uint64_t client, uint32_t *ret_filter)
{
        const struct file *file = marks->file;
        uint32_t n = 0;
        for (uint32_t i = 0; i < MFL_MIN(file->n_left, LEFT_MAX); i++)
                if (file->left[i].client == client && file->left[i].round == round &&
                        !strncmp(file->left[i].job, job, MFL_MARK_JOB_BYTES)) {
                        *ret_filter = file->left[i].filter;
                        n++;
                }
        return n;
}

void mfl_mark_begin(struct mfl_marks *marks, uint32_t place, const struct mfl_mark *mark)
{
        mfl_assert(place < PLACES_MAX);
        marks->file->place[place] = *mark;
        atomic_signal_fence(memory_order_seq_cst); /* before the call, as this thread's crash sees it */
}

void mfl_mark_end(struct mfl_marks *marks, uint32_t place)
{
        atomic_signal_fence(memory_order_seq_cst);
        marks->file->place[place].job[0] = '\0';
}
