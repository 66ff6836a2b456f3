/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ranks of a mesh have together.
 *
 * - all tell each other where they are; the first of a place makes a file without a name, reserves its pages, locks it and
 *   links it to its name;
 * - all wait for that; the others of the place map it;
 * - all wait for that; the first removes the name.
 * Fails by: no room in the directory, a file that is not there, no memory. Whoever fails says so to all. */
#include "kernels/mesh/mesh_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/budget.h"
#include "kernels/mesh/mesh_shm.h"

#define STEP_MEMORY (UINT32_MAX - 2) /* operations that belong to no step */
#define PATH_BYTES 512

struct mfl_mesh_memory {
        void *data;
        uint64_t bytes;
        int fd; /* of who made it, which holds the lock; else -1 */
        bool mapped;
        uint32_t n_ranks, first, most;
};

struct opening {
        const struct mfl_mesh_memory_options *options;
        struct mfl_mesh_memory *memory;
        uint32_t sequence;
        char path[PATH_BYTES];
        struct mfl_error *err;
};

void *mfl_mesh_memory_data(const struct mfl_mesh_memory *memory)
{
        return memory->data;
}

uint32_t mfl_mesh_memory_ranks(const struct mfl_mesh_memory *memory, uint32_t *ret_first)
{
        *ret_first = memory->first;
        return memory->n_ranks;
}

uint32_t mfl_mesh_memory_most(const struct mfl_mesh_memory *memory)
{
        return memory->most;
}

void mfl_mesh_memory_close(struct mfl_mesh_memory *memory)
{
        if (!memory)
                return;
        if (memory->mapped)
                munmap(memory->data, memory->bytes);
        else
                free(memory->data);
        if (memory->fd >= 0)
                close(memory->fd);
        free(memory);
}

static int allocate(struct mfl_mesh_memory *memory, struct mfl_error *err)
{
        memory->data = mfl_alloc_aligned(memory->bytes);
        return memory->data ? 0 : mfl_fail_memory(err, memory->bytes, "a worker's params");
}

static int memory_new(uint64_t bytes, struct mfl_mesh_memory **ret_memory, struct mfl_error *err)
{
        struct mfl_mesh_memory *memory = mfl_calloc(1, sizeof *memory);
        if (!memory)
                return mfl_fail_memory(err, sizeof *memory, "a team's memory");
        *memory = (struct mfl_mesh_memory){.bytes = bytes, .fd = -1, .n_ranks = 1, .most = 1};
        *ret_memory = memory;
        return 0;
}

int mfl_mesh_memory_new(uint64_t bytes, struct mfl_mesh_memory **ret_memory, struct mfl_error *err)
{
        struct mfl_mesh_memory *memory = NULL;
        int rc = memory_new(bytes, &memory, err);
        if (!rc)
                rc = allocate(memory, err);
        if (rc) {
                mfl_mesh_memory_close(memory);
                return rc;
        }
        *ret_memory = memory;
        return 0;
}

/* One number of each rank, at every rank. */
static int tell(struct opening *opening, int64_t own, int64_t *all)
{
        const struct mfl_mesh_memory_options *o = opening->options;
        const struct mfl_mesh_op op = {.kind = MFL_MESH_ALL_GATHER,
                .type = MFL_MESH_I64,
                .step = STEP_MEMORY,
                .sequence = opening->sequence++,
                .in = &own,
                .out = all,
                .n = o->mesh->n_ranks};
        return mfl_mesh_run(o->mesh, &op, o->deadline_ms, o->cancel, opening->err);
}

static int find_place(struct opening *opening)
{
        const struct mfl_mesh *mesh = opening->options->mesh;
        struct mfl_mesh_memory *memory = opening->memory;
        int64_t place[MFL_MESH_RANKS_MAX];
        int rc = tell(opening, (int64_t)opening->options->place, place);
        if (rc)
                return rc;
        memory->first = mesh->rank;
        for (uint32_t r = 0; r < mesh->n_ranks; r++) {
                uint32_t n = 0, first = r;
                for (uint32_t k = mesh->n_ranks; place[r] && k-- > 0;)
                        if (place[k] == place[r]) {
                                first = k;
                                n++;
                        }
                memory->most = MFL_MAX(memory->most, n);
                if (r == mesh->rank && n) {
                        memory->n_ranks = n;
                        memory->first = first;
                }
        }
        return 0;
}

static int fail(const struct opening *opening, const char *doing)
{
        if (errno == ENOMEM || errno == EMFILE || errno == ENFILE)
                return mfl_fail_errno(opening->err, "%s %s", doing, opening->path);
        char size[16];
        return mfl_fail(opening->err, MFL_INVALID, "a team's params of %s: %s %s: %s",
                mfl_format_bytes(opening->memory->bytes, size), doing, opening->path, strerror(errno));
}

static int map(struct opening *opening, int fd)
{
        struct mfl_mesh_memory *memory = opening->memory;
        void *data = mmap(NULL, memory->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED)
                return fail(opening, "map");
        memory->data = data;
        memory->mapped = true;
        (void)madvise(data, memory->bytes, MADV_HUGEPAGE); /* where the kernel has them for files */
        return 0;
}

/* The pages are there before anybody writes: a full directory is an error here, not a SIGBUS later. */
static int make(struct opening *opening)
{
        const struct mfl_mesh_memory_options *o = opening->options;
        char proc[64];
        int fd = open(o->dir ? o->dir : MFL_MESH_SHM_DIR, O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
        if (fd < 0)
                return fail(opening, "make");
        opening->memory->fd = fd;
        errno = posix_fallocate(fd, 0, (off_t)opening->memory->bytes);
        if (errno)
                return fail(opening, "find room for");
        if (flock(fd, LOCK_EX | LOCK_NB))
                return fail(opening, "lock");
        snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
        if (linkat(AT_FDCWD, proc, AT_FDCWD, opening->path, AT_SYMLINK_FOLLOW))
                return fail(opening, "make");
        return map(opening, fd);
}

static int find(struct opening *opening)
{
        struct stat st;
        int fd = open(opening->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), rc;
        if (fd < 0)
                return fail(opening, "open");
        bool ours = !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
                    !(st.st_mode & (S_IRWXG | S_IRWXO)) && (uint64_t)st.st_size == opening->memory->bytes;
        rc = ours ? map(opening, fd)
                  : mfl_fail(opening->err, MFL_INVALID, "%s is not memory of this team", opening->path);
        close(fd);
        return rc;
}

/* Waits for all; whoever failed has told why, and the others learn who. */
static int together(struct opening *opening, int own)
{
        int64_t code[MFL_MESH_RANKS_MAX];
        struct mfl_error mine = own ? *opening->err : (struct mfl_error){{0}};
        int rc = tell(opening, own, code);
        if (own)
                return mfl_fail(opening->err, own, "%s", mine.text);
        for (uint32_t r = 0; !rc && r < opening->options->mesh->n_ranks; r++)
                if (code[r])
                        rc = mfl_fail(opening->err, MFL_INVALID,
                                "rank %u of the team has no shared memory for the team's params", r);
        return rc;
}

static int open_memory(struct opening *opening)
{
        const struct mfl_mesh_memory_options *o = opening->options;
        struct mfl_mesh_memory *memory = opening->memory;
        int rc = find_place(opening);
        if (rc)
                return rc;
        bool makes = memory->n_ranks > 1 && memory->first == o->mesh->rank;
        snprintf(opening->path, sizeof opening->path, "%s/%s%016" PRIx64 "-%08" PRIx32 ".params%u",
                o->dir ? o->dir : MFL_MESH_SHM_DIR, o->prefix ? o->prefix : MFL_MESH_SHM_PREFIX,
                o->mesh->team, o->mesh->epoch, memory->first);
        rc = makes ? make(opening) : memory->n_ranks == 1 ? allocate(memory, opening->err) : 0;
        rc = together(opening, rc);
        if (!rc)
                rc = together(opening, memory->data ? 0 : find(opening));
        if (makes && memory->fd >= 0)
                unlink(opening->path);
        return rc;
}

int mfl_mesh_memory_open(const struct mfl_mesh_memory_options *options, struct mfl_mesh_memory **ret_memory,
        struct mfl_error *err)
{
        struct opening opening = {.options = options, .err = err};
        mfl_assert(options->bytes);
        int rc = memory_new(options->bytes, &opening.memory, err);
        if (!rc)
                rc = open_memory(&opening);
        if (rc) {
                mfl_mesh_memory_close(opening.memory);
                return rc;
        }
        *ret_memory = opening.memory;
        return 0;
}
