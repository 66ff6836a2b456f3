/* SPDX-License-Identifier: Apache-2.0 */
/* Clients' states: rows in a file, and their exact sum.
 *   - open: read every row that the database names, compare, add;
 *   - advance, apply: the sum and the places follow the round;
 *   - sync, batch, committed: durable rows, their places for the commit, old places free again.
 * Fails when the disk is full or broken. */
#include "server/runtime/states_internal.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/base/fs.h"
#include "server/store/store_db.h"

#define LOCAL_CLIENTS ((uint64_t)1 << 20)

/* Whether the method uses the mean of all states. */
static bool has_sum(const struct mfl_method_ops *method)
{
        return !method->starts && !method->models && !method->feeds;
}

uint64_t mfl_states_bytes(const struct mfl_job *spec, uint64_t n)
{
        return has_sum(mfl_method_get(spec)) ? n * sizeof(int64_t) : 0;
}

uint32_t mfl_states_seen(const struct mfl_states *states)
{
        return states->index.n;
}

uint32_t mfl_states_lost(const struct mfl_states *states)
{
        return states->lost;
}

int64_t mfl_states_units(const struct mfl_states *states, float v)
{
        return (int64_t)mfl_fixed_round((double)v * states->unit);
}

int64_t mfl_states_sum(const struct mfl_states *states, uint64_t i)
{
        return states->sum[i];
}

/* ---- places ---- */

int mfl_states_give_place(struct mfl_states *states, uint32_t place, struct mfl_error *err)
{
        pthread_mutex_lock(&states->lock);
        int r = mfl_states_add_place(&states->free, place, err);
        pthread_mutex_unlock(&states->lock);
        return r;
}

uint32_t mfl_states_take_place(struct mfl_states *states)
{
        pthread_mutex_lock(&states->lock);
        uint32_t place = states->free.n ? states->free.v[--states->free.n] : states->n_places++;
        pthread_mutex_unlock(&states->lock);
        return place;
}

/* ---- bytes ---- */

static int read_row(const struct mfl_states *states, uint32_t place, uint64_t first, size_t n, float *to,
        struct mfl_error *err)
{
        char *at = (char *)to;
        size_t left = n * sizeof *to;
        off_t offset = (off_t)(place * states->row_bytes + first * sizeof *to);
        while (left) {
                ssize_t got = pread(states->fd, at, left, offset);
                if (got < 0 && errno == EINTR)
                        continue;
                if (got < 0)
                        return mfl_fail_errno(err, "read %s", states->path);
                if (!got)
                        return mfl_fail(err, -EIO, "%s: shorter than it was", states->path);
                at += got;
                offset += got;
                left -= (size_t)got;
        }
        return 0;
}

int mfl_states_write(const struct mfl_states *states, uint32_t place, uint64_t first, size_t n,
        const float *from, struct mfl_error *err)
{
        const char *at = (const char *)from;
        size_t left = n * sizeof *from;
        off_t offset = (off_t)(place * states->row_bytes + first * sizeof *from);
        while (left) {
                ssize_t put = pwrite(states->fd, at, left, offset);
                if (put < 0 && errno == EINTR)
                        continue;
                if (put < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
                        return mfl_fail(err, MFL_INVALID, "the client's state can't be stored: write %s: %s",
                                states->path, strerror(errno));
                if (put < 0)
                        return mfl_fail_errno(err, "write %s", states->path);
                at += put;
                offset += put;
                left -= (size_t)put;
        }
        return 0;
}

/* Advice to the file system: what fails costs space, nothing else. */
static void punch(const struct mfl_states *states, uint32_t place)
{
        (void)!fallocate(states->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                (off_t)(place * states->row_bytes), (off_t)states->row_bytes);
}

size_t mfl_states_range(const struct mfl_states *states, uint64_t first)
{
        return (size_t)MFL_MIN(states->n - first, (uint64_t)MFL_STATES_RANGE);
}

/* A client's own range: zeros before its first turn. */
int mfl_states_own(struct mfl_states *states, const struct mfl_store_state *row, uint64_t first, size_t n,
        float *to, struct mfl_error *err)
{
        if (row)
                return read_row(states, row->slot, first, n, to, err);
        memset(to, 0, n * sizeof *to);
        return 0;
}

/* ---- open ---- */

/* Adds `sign` times a row to the sum. */
static int add_row(struct mfl_states *states, uint32_t place, int64_t sign, struct mfl_error *err)
{
        for (uint64_t first = 0, n; states->sum && first < states->n; first += n) {
                n = mfl_states_range(states, first);
                int r = read_row(states, place, first, n, states->own, err);
                if (r)
                        return r;
                for (uint64_t i = 0; i < n; i++)
                        states->sum[first + i] += sign * mfl_states_units(states, states->own[i]);
        }
        return 0;
}

static bool is_whole(struct mfl_states *states, const struct mfl_store_state *row, uint64_t file_bytes)
{
        uint32_t crc = 0;
        if (row->slot == MFL_STORE_STATE_LOST ||
                row->slot * states->row_bytes + states->n * sizeof(float) > file_bytes)
                return false;
        for (uint64_t first = 0, n; first < states->n; first += n) {
                n = mfl_states_range(states, first);
                if (read_row(states, row->slot, first, n, states->own, NULL))
                        return false;
                crc = mfl_crc32c(crc, states->own, n * sizeof(float));
        }
        return crc == row->crc;
}

static int take_known(struct mfl_states *states, const struct mfl_store_states *known, uint64_t file_bytes,
        struct mfl_error *err)
{
        int r = 0;
        for (uint32_t i = 0; i < known->n && !r; i++) {
                struct mfl_store_state row = known->v[i];
                if (is_whole(states, &row, file_bytes)) {
                        r = add_row(states, row.slot, 1, err);
                        if (!r)
                                r = mfl_states_set(&states->index, &row, err);
                        states->n_places = MFL_MAX(states->n_places, row.slot + 1);
                        continue;
                }
                states->lost++;
                row.slot = MFL_STORE_STATE_LOST;
                r = mfl_states_set(&states->lost_rows, &row, err);
        }
        return r;
}

/* All places that no client has, the first of them last, so that they are taken from the front. */
static int find_free(struct mfl_states *states, struct mfl_error *err)
{
        MFL_CLEANUP_FREE bool *used = mfl_calloc((size_t)states->n_places + 1, sizeof *used);
        if (!used)
                return mfl_fail_memory(err, states->n_places, "places of clients' states");
        for (uint32_t i = 0; i < states->index.n; i++)
                used[states->index.v[i].slot] = true;
        int r = 0;
        for (uint32_t place = states->n_places; place-- > 0 && !r;)
                if (!used[place]) {
                        punch(states, place);
                        r = mfl_states_add_place(&states->free, place, err);
                }
        return r;
}

static int bits_for(uint64_t n)
{
        return n <= 1 ? 0 : 64 - __builtin_clzll(n - 1);
}

static int open_file(struct mfl_states *states, const struct mfl_store_states *known, struct mfl_error *err)
{
        struct stat st;
        states->fd = open(states->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (states->fd < 0 || fstat(states->fd, &st))
                return mfl_fail_errno(err, "open %s", states->path);
        int r = take_known(states, known, (uint64_t)st.st_size, err);
        if (!r && ftruncate(states->fd, (off_t)(states->n_places * states->row_bytes)))
                r = mfl_fail_errno(err, "truncate %s", states->path);
        return r ? r : find_free(states, err);
}

int mfl_states_open(
        const struct mfl_states_options *options, struct mfl_states **ret_states, struct mfl_error *err)
{
        struct mfl_states *states = mfl_calloc(1, sizeof *states);
        if (!states)
                return mfl_fail_memory(err, sizeof *states, "clients' states");
        uint64_t clients = options->population ? options->population : LOCAL_CLIENTS;
        states->fd = -1;
        states->spec = options->spec;
        states->method = mfl_method_get(options->spec);
        states->parts = states->method->starts ? options->personal : options->statistics;
        states->n = options->n;
        states->row_bytes = mfl_method_row_bytes(options->n);
        states->population = options->population;
        states->scale_bits = 62 - MFL_STATES_LIMIT_BITS - bits_for(clients);
        states->unit = ldexp(1, states->scale_bits);
        states->path = mfl_strdup(options->path);
        bool summed = has_sum(states->method);
        states->sum = summed ? mfl_alloc_aligned(options->n * sizeof *states->sum) : NULL;
        states->mean = mfl_calloc(MFL_STATES_RANGE, sizeof *states->mean);
        states->own = mfl_calloc(MFL_STATES_RANGE, sizeof *states->own);
        states->fresh = mfl_calloc(MFL_STATES_RANGE, sizeof *states->fresh);
        pthread_mutex_init(&states->lock, NULL);
        bool ok = states->path && (states->sum || !summed) && states->mean && states->own && states->fresh;
        int r = ok ? 0 : mfl_fail_memory(err, options->n * sizeof *states->sum, "clients' states");
        if (!r && summed)
                memset(states->sum, 0, options->n * sizeof *states->sum);
        if (!r)
                r = open_file(states, options->known, err);
        if (r) {
                mfl_states_close(states);
                return r;
        }
        *ret_states = states;
        return 0;
}

static void free_batch(struct batch *batch)
{
        free(batch->rows.v);
        free(batch->old.v);
        free(batch);
}

void mfl_states_close(struct mfl_states *states)
{
        if (!states)
                return;
        while (states->batches) {
                struct batch *batch = states->batches;
                states->batches = batch->next;
                free_batch(batch);
        }
        if (states->fd >= 0)
                close(states->fd);
        pthread_mutex_destroy(&states->lock);
        free(states->path);
        free(states->sum);
        free(states->index.v);
        free(states->round_rows.v);
        free(states->lost_rows.v);
        free(states->free.v);
        free(states->mean);
        free(states->own);
        free(states->fresh);
        free(states);
}

/* ---- a round ---- */

void mfl_states_drop_put(struct mfl_states *states)
{
        if (states->has_put)
                mfl_states_give_place(states, states->put.slot,
                        NULL); /* without memory the place is lost until the next start */
        states->has_put = false;
}

void mfl_states_round_open(struct mfl_states *states, uint32_t round)
{
        mfl_states_drop_put(states);
        for (uint32_t i = 0; i < states->round_rows.n; i++)
                mfl_states_give_place(states, states->round_rows.v[i].slot, NULL);
        states->round_rows.n = states->n_anew = 0;
        states->round = round;
}

void mfl_states_mean(const struct mfl_states *states, uint64_t first, size_t n, double *ret_mean)
{
        uint64_t clients = states->population ? states->population : MFL_MAX(states->index.n, 1u);
        double factor = ldexp(1, -states->scale_bits);
        for (size_t i = 0; i < n && states->sum; i++)
                ret_mean[i] = (double)states->sum[first + i] / (double)clients * factor;
}

/* ---- apply ---- */

int mfl_states_advance(
        struct mfl_states *states, uint64_t first, size_t n, const double **ret_mean, struct mfl_error *err)
{
        uint64_t clients = states->population;
        int r = 0;
        mfl_assert(n <= MFL_STATES_RANGE);
        for (uint32_t k = 0; k < states->round_rows.n && states->sum && !r; k++) {
                const struct mfl_store_state *row = &states->round_rows.v[k],
                                             *own = mfl_states_get(&states->index, row->client);
                r = mfl_states_own(states, own, first, n, states->own, err);
                if (!r)
                        r = read_row(states, row->slot, first, n, states->fresh, err);
                for (size_t i = 0; i < n && !r; i++)
                        states->sum[first + i] += mfl_states_units(states, states->fresh[i]) -
                                                  mfl_states_units(states, states->own[i]);
        }
        if (r)
                return r;
        if (!clients) {
                clients = states->index.n;
                for (uint32_t k = 0; k < states->round_rows.n; k++)
                        clients += !mfl_states_get(&states->index, states->round_rows.v[k].client);
        }
        double factor = ldexp(1, -states->scale_bits);
        for (size_t i = 0; i < n && states->sum; i++)
                states->mean[i] =
                        (double)states->sum[first + i] / (double)MFL_MAX(clients, (uint64_t)1) * factor;
        *ret_mean = states->mean;
        return 0;
}

int mfl_states_apply(struct mfl_states *states, struct mfl_error *err)
{
        struct batch *batch = mfl_calloc(1, sizeof *batch), **at = &states->batches;
        int r = batch ? 0 : mfl_fail_memory(err, sizeof *batch, "a round's states");
        if (r)
                return r;
        batch->round = states->round;
        batch->n_lost = states->lost_rows.n + states->n_anew;
        for (uint32_t i = 0; i < states->lost_rows.n && !r; i++)
                r = mfl_states_set(&batch->rows, &states->lost_rows.v[i], err);
        for (uint32_t i = 0; i < states->round_rows.n && !r; i++) {
                const struct mfl_store_state *row = &states->round_rows.v[i],
                                             *own = mfl_states_get(&states->index, row->client);
                if (own)
                        r = mfl_states_add_place(&batch->old, own->slot, err);
                if (!r)
                        r = mfl_states_set(&batch->rows, row, err);
                if (!r)
                        r = mfl_states_set(&states->index, row, err);
        }
        if (r) { /* the process ends */
                free_batch(batch);
                return r;
        }
        states->lost_rows.n = states->round_rows.n = states->n_anew = 0;
        batch->told = (struct mfl_store_states){batch->rows.n, batch->rows.v};
        pthread_mutex_lock(&states->lock);
        while (*at)
                at = &(*at)->next;
        *at = batch;
        pthread_mutex_unlock(&states->lock);
        return 0;
}

int mfl_states_correction(struct mfl_states *states, uint64_t client, const float *params,
        float *ret_correction, struct mfl_error *err)
{
        const struct mfl_store_state *own = mfl_states_get(&states->index, client);
        if (states->method->models && !own) {
                uint64_t n = states->n - states->method->n_own;
                memcpy(ret_correction, params, n * sizeof *params);
                for (; n < states->n; n++)
                        ret_correction[n] = states->method->own_start;
                return 0;
        }
        for (uint64_t first = 0, n; first < states->n; first += n) {
                n = mfl_states_range(states, first);
                int r = mfl_states_own(states, own, first, n, states->own, err);
                if (r)
                        return r;
                if (states->method->models) {
                        memcpy(ret_correction + first, states->own, n * sizeof *states->own);
                        continue;
                }
                mfl_states_mean(states, first, n, states->mean);
                states->method->correct(states->spec, n, states->mean, states->own, ret_correction + first);
        }
        return 0;
}

int mfl_states_read(struct mfl_states *states, uint64_t client, bool fresh, uint64_t first, size_t n,
        float *to, struct mfl_error *err)
{
        const struct mfl_store_state *row = fresh ? mfl_states_get(&states->round_rows, client) : NULL;
        return mfl_states_own(states, row ? row : mfl_states_get(&states->index, client), first, n, to, err);
}

int mfl_states_list(const struct mfl_states *states, struct mfl_store_states *ret_list, struct mfl_error *err)
{
        struct mfl_store_states list = {states->index.n, NULL};
        list.v = mfl_calloc((size_t)list.n + 1, sizeof *list.v);
        if (!list.v)
                return mfl_fail_memory(err, list.n * sizeof *list.v, "the list of clients' states");
        if (list.n)
                memcpy(list.v, states->index.v, list.n * sizeof *list.v);
        *ret_list = list;
        return 0;
}

/* ---- commit ---- */

int mfl_states_sync(struct mfl_states *states, struct mfl_error *err)
{
        int r = mfl_fs_fault("before-states", states->path);
        if (r)
                return mfl_fail(err, mfl_store_code(r), "sync %s: %s", states->path, strerror(-r));
        if (!fdatasync(states->fd)) {
                mfl_fs_fault("after-states", states->path);
                return 0;
        }
        if (errno == ENOSPC || errno == EDQUOT)
                return mfl_fail(err, MFL_STORE_FULL, "sync %s: %s", states->path, strerror(errno));
        return mfl_fail_errno(err, "sync %s", states->path);
}

const struct mfl_store_states *mfl_states_batch(struct mfl_states *states, uint32_t round, uint32_t *ret_lost)
{
        pthread_mutex_lock(&states->lock);
        struct batch *batch = states->batches;
        while (batch && batch->round != round)
                batch = batch->next;
        pthread_mutex_unlock(&states->lock);
        *ret_lost = batch ? batch->n_lost : 0;
        return batch ? &batch->told : NULL;
}

void mfl_states_committed(struct mfl_states *states, uint32_t round)
{
        pthread_mutex_lock(&states->lock);
        struct batch *batch = states->batches;
        if (batch && batch->round == round)
                states->batches = batch->next;
        else
                batch = NULL;
        pthread_mutex_unlock(&states->lock);
        for (uint32_t i = 0; batch && i < batch->old.n; i++) {
                punch(states, batch->old.v[i]);
                mfl_states_give_place(states, batch->old.v[i], NULL);
        }
        if (batch)
                free_batch(batch);
}
