/* SPDX-License-Identifier: Apache-2.0 */
/* An asynchronous job's older versions of the params, which clients under way start from. Each is a mapped file of its own, 4 bytes
 * per param that moves, unlinked as soon as it is open: no crash leaves it behind, and memory that others need is written
 * back to it.
 *   - open: a file for each of the last `staleness_max` versions, its blocks allocated; after a restart, filled from checkpoints;
 *   - keep: before new params are published, a copy of the present ones takes the place of the oldest.
 * Fails when the file system has no room, or a checkpoint that is needed is missing.
 */
#include "server/runtime/runtime_internal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/budget.h"
#include "common/cohort/calendar.h"
#include "server/store/store.h"
#include "server/store/store_db.h"

static int map_file(int fd, const char *path, uint64_t bytes, void **ret_map, struct mfl_error *err)
{
        char size[16];
        int r = posix_fallocate(fd, 0, (off_t)bytes);
        if (r == ENOSPC || r == EDQUOT || r == EFBIG)
                return mfl_fail(err, r == EFBIG ? MFL_INVALID : MFL_STORE_FULL,
                        "%s: an older version of the model needs %s of disk: %s", path,
                        mfl_format_bytes(bytes, size), strerror(r));
        errno = r;
        if (r)
                return mfl_fail_errno(err, "allocate %s", path);
        void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return mfl_fail_errno(err, "map %s", path);
        *ret_map = map;
        return 0;
}

static int new_version(struct mfl_runtime *rt, struct mfl_params **ret_params, struct mfl_error *err)
{
        uint64_t bytes = rt->n * sizeof(float);
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/version-%s", rt->dir, rt->job);
        void *map = NULL;
        if (!path)
                return mfl_fail_memory(err, 64, "a path");
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0)
                return mfl_store_code(mfl_fail_errno(err, "create %s", path));
        unlink(path);
        int r = map_file(fd, path, bytes, &map, err);
        close(fd);
        if (!r && !(*ret_params = mfl_params_mapped(map, rt->n))) {
                munmap(map, bytes);
                r = mfl_fail_memory(err, sizeof **ret_params, "params");
        }
        return r;
}

static struct mfl_params **place_of(const struct mfl_runtime *rt, uint32_t version)
{
        return &rt->older[version % rt->n_older];
}

static void note_digest(struct mfl_runtime *rt, uint32_t version, const uint8_t *digest)
{
        memcpy(rt->digests[version % (rt->n_older + 1)], digest, MFL_DIGEST_BYTES);
}

/* ---- open ---- */

static int load_version(struct mfl_runtime *rt, const struct mfl_runtime_options *options, uint32_t version,
        float *frozen, struct mfl_error *err)
{
        struct mfl_params *params = *place_of(rt, version);
        float *v = (float *)(uintptr_t)params->v;
        const struct mfl_runtime_version *from = NULL;
        for (uint32_t i = 0; i < options->n_versions; i++)
                if (options->versions[i].version == version)
                        from = &options->versions[i];
        if (version && !from)
                return mfl_fail(err, MFL_INVALID,
                        "the checkpoint of round %u is missing, from which clients under way have started: "
                        "submit the "
                        "job again",
                        version);
        int r = version ? mfl_runtime_load_version(rt, from->path, options->frozen_path, frozen, v, err)
                        : mfl_runtime_load_first(rt, options, frozen, v, err);
        if (!r)
                r = mfl_runtime_digest(rt, v, params->digest, err);
        if (!r && version && memcmp(params->digest, from->digest, MFL_DIGEST_BYTES) != 0)
                r = mfl_fail(err, MFL_INVALID,
                        "the checkpoint of round %u is damaged, from which clients under way have started: "
                        "submit the "
                        "job again",
                        version);
        if (!r)
                note_digest(rt, version, params->digest);
        return r;
}

/* The versions that the clients under way have started from. */
static int load_versions(
        struct mfl_runtime *rt, const struct mfl_runtime_options *options, struct mfl_error *err)
{
        const union mfl_calendar_row *rows = (const void *)rt->memory;
        uint32_t newest = options->round;
        if (!rows)
                return 0;
        if (!mfl_calendar_valid(rt->spec, rows, newest))
                return mfl_fail(err, MFL_INVALID, "%s: tensor %s has impossible numbers",
                        options->checkpoint_path, MFL_CHECKPOINT_MEMORY);
        uint32_t oldest = mfl_calendar_oldest(rt->spec, rows, newest);
        if (newest > rt->n_older)
                oldest = MFL_MAX(oldest, newest - rt->n_older);
        MFL_CLEANUP_FREE float *frozen =
                mfl_malloc(MFL_MAX(rt->graph->n_frozen, (uint64_t)1) * sizeof *frozen);
        if (!frozen)
                return mfl_fail_memory(err, rt->graph->n_frozen * sizeof *frozen, "frozen params");
        int r = 0;
        for (uint32_t version = oldest; !r && version < newest; version++)
                r = load_version(rt, options, version, frozen, err);
        return r;
}

int mfl_runtime_open_versions(
        struct mfl_runtime *rt, const struct mfl_runtime_options *options, struct mfl_error *err)
{
        if (!mfl_job_is_async(rt->spec))
                return 0;
        uint32_t n = mfl_job_versions(rt->spec);
        rt->older = mfl_calloc(MFL_MAX(n, 1u), sizeof(struct mfl_params *));
        rt->digests = mfl_calloc(n + 1, sizeof *rt->digests);
        rt->dir = mfl_asprintf("%s", options->state_dir);
        if (!rt->older || !rt->digests || !rt->dir)
                return mfl_fail_memory(err, (n + 1) * sizeof *rt->digests, "versions");
        rt->n_older = n;
        int r = 0;
        for (uint32_t i = 0; !r && i < n; i++)
                r = new_version(rt, &rt->older[i], err);
        if (!r && options->round)
                r = load_versions(rt, options, err);
        if (!r)
                note_digest(rt, options->round, rt->pool->current->digest);
        return r;
}

void mfl_runtime_close_versions(struct mfl_runtime *rt)
{
        for (uint32_t i = 0; i < rt->n_older; i++)
                mfl_params_unref(rt->older[i]);
        free(rt->older);
        free(rt->digests);
        free(rt->dir);
}

/* ---- rounds ---- */

/* A download that still holds the oldest one ends soon; until then there is one file more. */
int mfl_runtime_keep_version(struct mfl_runtime *rt, struct mfl_error *err)
{
        if (!rt->n_older || rt->regions)
                return 0;
        uint32_t version = rt->round - 1;
        struct mfl_params **place = place_of(rt, version), *params;
        const struct mfl_params *current = rt->pool->current;
        int r = 0;
        mfl_slots_lock(rt);
        params = *place;
        *place = NULL;
        mfl_slots_unlock(rt);
        if (params && atomic_load(&params->refs) > 1) {
                atomic_store(&params->retired, true);
                mfl_params_unref(params);
                params = NULL;
        }
        if (params)
                mfl_params_forget_crc(params);
        else
                r = new_version(rt, &params, err);
        if (r)
                return r;
        memcpy((float *)(uintptr_t)params->v, current->v, rt->n * sizeof(float));
        memcpy(params->digest, current->digest, MFL_DIGEST_BYTES);
        mfl_slots_lock(rt);
        *place = params;
        mfl_slots_unlock(rt);
        return 0;
}

void mfl_runtime_note_version(struct mfl_runtime *rt, const uint8_t *digest)
{
        if (rt->digests)
                note_digest(rt, rt->round, digest);
}

static const float *base_of(const struct mfl_runtime *rt, uint32_t staleness)
{
        return staleness ? (*place_of(rt, rt->round - 1 - staleness))->v : rt->pool->current->v;
}

/* Of the one client, whose update is d: its model instead of its delta, by the method's share. */
static void mix(struct mfl_runtime *rt, const struct mfl_round_totals *totals, uint64_t begin, size_t count)
{
        const float *newest = rt->pool->current->v + begin, *base = base_of(rt, totals->staleness) + begin;
        double share = rt->method->share(rt->spec, totals);
        for (size_t e = 0; e < count; e++)
                rt->d[e] = share * ((double)base[e] + rt->d[e] - (double)newest[e]);
}

/* Running statistics are no gradients: d becomes the way from the newest ones to the clients' weighted mean, which starts from
 * their bases. */
static void shift_statistics(struct mfl_runtime *rt, const struct mfl_round_totals *totals, uint64_t from,
        uint64_t to, uint64_t begin)
{
        const float *newest = rt->pool->current->v;
        for (uint32_t s = 1; s <= totals->staleness; s++) {
                if (!totals->weights[s])
                        continue;
                double share = (double)totals->weights[s] / (double)totals->weight;
                const float *base = base_of(rt, s);
                for (uint64_t i = from; i < to; i++)
                        rt->d[i - begin] += share * ((double)base[i] - (double)newest[i]);
        }
}

void mfl_runtime_rebase(
        struct mfl_runtime *rt, const struct mfl_round_totals *totals, uint64_t begin, size_t count)
{
        static const struct mfl_fixed apart = {.statistics_max = 1}; /* the parts count as such */
        if (!rt->digests)
                return;
        if (rt->method->share) {
                mix(rt, totals, begin, count);
                return;
        }
        for (uint64_t i = begin, end = begin + count; i < end;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(&apart, &rt->graph->statistics, i, end);
                if (part.statistics)
                        shift_statistics(rt, totals, i, part.end, begin);
                i = part.end;
        }
}
