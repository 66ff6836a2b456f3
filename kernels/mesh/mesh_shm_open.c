/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the segments of a shared-memory mesh.
 *
 * - the rank makes a file without a name, gives it its size, locks it (flock), fills in who it is, and links it to its
 *   name: nobody sees it unlocked or half made, and who is killed before leaves nothing;
 * - it maps the files of all others, as they appear, for reading;
 * - it says so in its own, and waits until all have said so;
 * - it unlinks the names of all of them. Whoever is first does it for all.
 * The kernel releases a lock however the process ends: a file that can be locked is one of a dead process. Such files
 * are unlinked by whoever opens a mesh next. Fails by: no memory in the directory, a file that is not this user's or of
 * another mesh, ranks that don't appear in time. */
#include "kernels/mesh/mesh_shm_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TURN_NS 500000

static const char magic[8] = "mflmesh1";

_Static_assert(sizeof(struct mfl_mesh_segment) <= MFL_MESH_SHM_DATA, "the header of a segment has grown");

struct opening {
        const struct mfl_mesh_shm_options *options;
        const char *dir, *prefix;
        int fd; /* of the directory */
        struct mfl_mesh_shm *mesh;
};

static void name_of(const struct opening *opening, uint32_t rank, char name[MFL_MESH_SHM_NAME_BYTES])
{
        snprintf(name, MFL_MESH_SHM_NAME_BYTES, "%s%016" PRIx64 "-%08" PRIx32 ".%u", opening->prefix,
                opening->options->team, opening->options->epoch, rank);
}

static int fail(const struct opening *opening, const char *doing, const char *name, struct mfl_error *err)
{
        if (errno == ENOMEM || errno == EMFILE || errno == ENFILE)
                return mfl_fail_errno(err, "%s %s/%s", doing, opening->dir, name);
        return mfl_fail(err, MFL_INVALID, "%s %s/%s: %s", doing, opening->dir, name, strerror(errno));
}

static bool is_ours(int fd)
{
        struct stat st;
        return !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
               !(st.st_mode & (S_IRWXG | S_IRWXO));
}

/* Unlinks a file of a dead process. Only its name is looked at again under the lock: another may have been made. */
static void remove_dead(const struct opening *opening, const char *name)
{
        struct stat opened, named;
        int fd = openat(opening->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
                return;
        if (is_ours(fd) && !flock(fd, LOCK_EX | LOCK_NB) && !fstat(fd, &opened) &&
                !fstatat(opening->fd, name, &named, AT_SYMLINK_NOFOLLOW) && opened.st_ino == named.st_ino)
                unlinkat(opening->fd, name, 0);
        close(fd);
}

static void remove_stale(const struct opening *opening)
{
        int fd = openat(opening->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *dir = fd < 0 ? NULL : fdopendir(fd);
        if (!dir) {
                if (fd >= 0)
                        close(fd);
                return;
        }
        for (struct dirent *entry; (entry = readdir(dir));)
                if (!strncmp(entry->d_name, opening->prefix, strlen(opening->prefix)))
                        remove_dead(opening, entry->d_name);
        closedir(dir);
}

static void unlink_all(const struct opening *opening)
{
        char name[MFL_MESH_SHM_NAME_BYTES];
        for (uint32_t r = 0; r < opening->options->n_ranks; r++) {
                name_of(opening, r, name);
                unlinkat(opening->fd, name, 0);
        }
}

static int link_name(const struct opening *opening, int fd, const char *name, struct mfl_error *err)
{
        char proc[64];
        snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
        if (!linkat(AT_FDCWD, proc, opening->fd, name, AT_SYMLINK_FOLLOW))
                return 0;
        if (errno == EEXIST)
                return mfl_fail(err, MFL_INVALID, "%s/%s: another process is rank %u of this team already",
                        opening->dir, name, opening->options->rank);
        return fail(opening, "make", name, err);
}

static int make_own(const struct opening *opening, struct mfl_error *err)
{
        const struct mfl_mesh_shm_options *o = opening->options;
        struct mfl_mesh_shm *mesh = opening->mesh;
        struct mfl_mesh_shm_peer *own = &mesh->peer[o->rank];
        char name[MFL_MESH_SHM_NAME_BYTES];
        name_of(opening, o->rank, name);
        own->fd = openat(opening->fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
        if (own->fd < 0)
                return fail(opening, "make", name, err);
        /* All of it is there before anybody writes: a full directory is an error here, not a SIGBUS later. */
        errno = posix_fallocate(own->fd, 0, (off_t)mesh->segment_bytes);
        if (errno)
                return fail(opening, "find room for", name, err);
        if (flock(own->fd, LOCK_EX | LOCK_NB))
                return fail(opening, "lock", name, err);
        void *map = mmap(NULL, mesh->segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own->fd, 0);
        if (map == MAP_FAILED)
                return fail(opening, "map", name, err);
        own->segment = map;
        memcpy(own->segment->magic, magic, sizeof(magic));
        own->segment->rank = o->rank;
        own->segment->n_ranks = o->n_ranks;
        own->segment->epoch = o->epoch;
        own->segment->team = o->team;
        own->segment->ring_bytes = mesh->slot_bytes * MFL_MESH_SHM_SLOTS;
        return link_name(opening, own->fd, name, err);
}

/* MFL_NOT_FOUND: it has not come yet. */
static int map_peer(const struct opening *opening, uint32_t rank, struct mfl_error *err)
{
        struct mfl_mesh_shm *mesh = opening->mesh;
        struct mfl_mesh_shm_peer *peer = &mesh->peer[rank];
        const struct mfl_mesh_segment *own = mfl_mesh_shm_own(mesh);
        char name[MFL_MESH_SHM_NAME_BYTES];
        struct stat st;
        name_of(opening, rank, name);
        int fd = openat(opening->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
                return errno == ENOENT ? MFL_NOT_FOUND : fail(opening, "open", name, err);
        if (!is_ours(fd) || fstat(fd, &st) || (uint64_t)st.st_size != mesh->segment_bytes) {
                close(fd);
                return mfl_fail(err, MFL_INVALID, "%s/%s is not a segment of this team", opening->dir, name);
        }
        void *map = mmap(NULL, mesh->segment_bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
                int r = fail(opening, "map", name, err);
                close(fd);
                return r;
        }
        *peer = (struct mfl_mesh_shm_peer){.segment = map, .fd = fd};
        const struct mfl_mesh_segment *theirs = peer->segment;
        if (memcmp(theirs->magic, magic, sizeof(magic)) || theirs->rank != rank ||
                theirs->n_ranks != own->n_ranks || theirs->epoch != own->epoch || theirs->team != own->team ||
                theirs->ring_bytes != own->ring_bytes)
                return mfl_fail(
                        err, MFL_INVALID, "%s/%s is a segment of another kind of team", opening->dir, name);
        return 0;
}

static void accuse(const struct opening *opening, uint32_t rank, enum mfl_mesh_loss loss)
{
        if (opening->options->accused)
                *opening->options->accused = rank + 1;
        if (opening->options->loss)
                *opening->options->loss = loss;
}

/* One look at all others: 0 if all have mapped all. ret_rank: one who has not come. */
static int look(const struct opening *opening, uint32_t *ret_rank, struct mfl_error *err)
{
        struct mfl_mesh_shm *mesh = opening->mesh;
        bool all = true;
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++) {
                if (!mesh->peer[r].segment) {
                        int rc = map_peer(opening, r, err);
                        if (rc && rc != MFL_NOT_FOUND)
                                return rc;
                }
                if (!mesh->peer[r].segment) {
                        *ret_rank = r;
                        all = false;
                }
        }
        if (!all)
                return MFL_NOT_FOUND;
        atomic_store(&mfl_mesh_shm_own(mesh)->mapped, 1);
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++) {
                const struct mfl_mesh_segment *theirs = mesh->peer[r].segment;
                if (atomic_load(&theirs->mapped))
                        continue;
                *ret_rank = r;
                if (atomic_load(&theirs->left) || mfl_mesh_shm_is_dead(mesh, r)) {
                        accuse(opening, r, MFL_MESH_GONE);
                        return mfl_fail(
                                err, MFL_MESH_BROKEN, "rank %u of the team has ended before it began", r);
                }
                return MFL_NOT_FOUND;
        }
        return 0;
}

static int meet(const struct opening *opening, struct mfl_error *err)
{
        const struct mfl_mesh_shm_options *o = opening->options;
        uint64_t end_ns = mfl_now_ns() + (uint64_t)o->deadline_ms * 1000000;
        for (;;) {
                uint32_t rank = 0;
                int r = look(opening, &rank, err);
                if (r != MFL_NOT_FOUND)
                        return r;
                if (o->cancel && atomic_load(o->cancel))
                        return mfl_fail(err, MFL_MESH_BROKEN, "opening the team's mesh was cancelled");
                if (mfl_now_ns() > end_ns) {
                        accuse(opening, rank, MFL_MESH_LATE);
                        return mfl_fail(err, MFL_MESH_BROKEN, "rank %u of the team did not come within %u ms",
                                rank, o->deadline_ms);
                }
                nanosleep(&(struct timespec){.tv_nsec = TURN_NS}, NULL);
        }
}

bool mfl_mesh_shm_is_dead(const struct mfl_mesh_shm *mesh, uint32_t rank)
{
        if (rank == mesh->base.rank || flock(mesh->peer[rank].fd, LOCK_SH | LOCK_NB))
                return false;
        flock(mesh->peer[rank].fd, LOCK_UN);
        return true;
}

void mfl_mesh_shm_free(struct mfl_mesh_shm *mesh)
{
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++) {
                if (mesh->peer[r].segment)
                        munmap(mesh->peer[r].segment, mesh->segment_bytes);
                if (mesh->peer[r].fd >= 0)
                        close(mesh->peer[r].fd);
        }
        free(mesh);
}

uint64_t mfl_mesh_shm_bytes(uint64_t ring_bytes)
{
        uint64_t ring = ring_bytes ? ring_bytes : MFL_MESH_SHM_BYTES;
        return MFL_MESH_SHM_DATA + ring + ring / 4;
}

static int mesh_new(
        const struct mfl_mesh_shm_options *o, struct mfl_mesh_shm **ret_mesh, struct mfl_error *err)
{
        uint64_t bytes = o->bytes ? o->bytes : MFL_MESH_SHM_BYTES;
        mfl_assert(o->n_ranks >= 1 && o->n_ranks <= MFL_MESH_RANKS_MAX && o->rank < o->n_ranks);
        mfl_assert(bytes >= MFL_MESH_SHM_BYTES_MIN && bytes <= MFL_MESH_SHM_BYTES_MAX &&
                   bytes % MFL_MESH_SHM_BYTES_MIN == 0);
        struct mfl_mesh_shm *mesh = mfl_alloc_aligned(sizeof(*mesh));
        if (!mesh)
                return mfl_fail_memory(err, sizeof(*mesh), "a mesh");
        memset(mesh, 0, sizeof(*mesh));
        mesh->base = (struct mfl_mesh){.ops = &mfl_mesh_shm_ops,
                .rank = o->rank,
                .n_ranks = o->n_ranks,
                .team = o->team,
                .epoch = o->epoch};
        mesh->slot_bytes = (uint32_t)(bytes / MFL_MESH_SHM_SLOTS);
        mesh->part_bytes = mesh->slot_bytes / o->n_ranks & ~63u;
        mesh->segment_bytes = mfl_mesh_shm_bytes(bytes);
        for (uint32_t r = 0; r < o->n_ranks; r++)
                mesh->peer[r].fd = -1;
        *ret_mesh = mesh;
        return 0;
}

int mfl_mesh_shm_open(
        const struct mfl_mesh_shm_options *options, struct mfl_mesh **ret_mesh, struct mfl_error *err)
{
        struct opening opening = {.options = options,
                .dir = options->dir ? options->dir : MFL_MESH_SHM_DIR,
                .prefix = options->prefix ? options->prefix : MFL_MESH_SHM_PREFIX};
        bool named = false;
        int r = mesh_new(options, &opening.mesh, err);
        if (r)
                return r;
        opening.fd = open(opening.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (opening.fd < 0) {
                r = fail(&opening, "open", "", err);
                goto out;
        }
        remove_stale(&opening);
        r = make_own(&opening, err);
        if (r)
                goto out;
        named = true;
        r = meet(&opening, err);
out:
        /* Also after a failure: this epoch will never begin, and who comes later fails, too. */
        if (named)
                unlink_all(&opening);
        if (opening.fd >= 0)
                close(opening.fd);
        if (r) {
                if (named)
                        atomic_store(&mfl_mesh_shm_own(opening.mesh)->left, 1);
                mfl_mesh_shm_free(opening.mesh);
                return r;
        }
        *ret_mesh = &opening.mesh->base;
        return 0;
}
