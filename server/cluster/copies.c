/* SPDX-License-Identifier: Apache-2.0 */
/* Files on the disks of most servers. See copies.h.
 *   - each other server has a thread and a queue of files; a put waits until most servers have its file, or most can't get it, or until
 *     nobody takes anything any more; then the copies stay on their way, and the put that is repeated joins them;
 *   - a queue is short: a server that falls behind catches up by itself; files that the server itself waits for go ahead, between the pieces
 *     of another one;
 *   - a server that sends a file which is not the one that was asked for is not asked again for a while, each time longer.
 * Fails when too few servers can be reached or write. */
#include "server/cluster/copies.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "common/base/log.h"
#include "proto/stream.h"

#define QUEUE_MAX 16u
#define SHUN_FIRST_MS 5000u
#define SHUN_MAX_MS 600000u
#define LOOK_MS 200u /* how often a put that waits asks whether it shall */

/* A file on its way to all; freed when nobody needs it. A put that is repeated meanwhile finds it. Under the lock. */
struct file {
        struct file *next;
        uint32_t users;
        struct mfl_copy_tally tally; /* by target */
        uint8_t sha256[32];
        uint64_t bytes;
        bool ahead; /* of those that are not */
        char path[1400], why[400];
};

struct target {
        struct mfl_copies *copies;
        struct mfl_peer_options options;
        char name[64], address[256], trouble[300];
        struct mfl_peer *peer, *source; /* of its thread; of gets */
        uint64_t shunned_ms, shun_ms;   /* of gets: until when, and for how long the next time */
        pthread_t thread;
        bool runs;
        uint32_t n_queue;
        struct file *queue[QUEUE_MAX];
};

struct mfl_copies {
        char own[64];
        uint32_t n; /* others */
        struct target target[MFL_COPIES_SERVERS_MAX];
        pthread_mutex_t lock;
        pthread_cond_t changed;
        struct file *files;
        uint64_t moved_ms; /* when a server last took a piece */
        bool stop;
};

/* ---- the list ---- */

static int read_list(const char *servers, const char *own, struct mfl_copies *copies, struct mfl_error *err)
{
        char text[2048], host[256], port[16], *one;
        bool has_own = false;
        if (!mfl_strcpy(text, sizeof text, servers))
                return mfl_fail(err, MFL_INVALID, "cluster: servers: the list is too long");
        for (char *rest = text; (one = strsep(&rest, ","));) {
                one += strspn(one, " ");
                char *address = strchr(one, '=');
                if (!address || address == one || !address[1] || address - one >= 64 || strlen(address) > 255)
                        return mfl_fail(
                                err, MFL_INVALID, "cluster: servers: '%.100s': expected NAME=HOST:PORT", one);
                *address++ = 0;
                int r = mfl_address_parse(address, host, sizeof host, port, sizeof port, err);
                if (!r && !*host)
                        r = mfl_fail(err, MFL_INVALID, "%s has no host", address);
                if (r) {
                        const struct mfl_error why = *err;
                        return mfl_fail(err, r, "cluster: servers: %s: %.300s", one, why.text);
                }
                if (!strcmp(one, own)) {
                        if (has_own)
                                return mfl_fail(err, MFL_INVALID, "cluster: servers: %s is there twice", one);
                        has_own = true;
                        continue;
                }
                if (copies->n == MFL_COPIES_SERVERS_MAX - 1)
                        return mfl_fail(
                                err, MFL_INVALID, "cluster: servers: more than %d", MFL_COPIES_SERVERS_MAX);
                for (uint32_t i = 0; i < copies->n; i++)
                        if (!strcmp(copies->target[i].name, one))
                                return mfl_fail(err, MFL_INVALID, "cluster: servers: %s is there twice", one);
                struct target *t = &copies->target[copies->n++];
                mfl_strcpy(t->name, sizeof t->name, one);
                mfl_strcpy(t->address, sizeof t->address, address);
        }
        return 0;
}

/* ---- a target's thread ---- */

static void release(struct mfl_copies *copies, struct file *file)
{
        if (--file->users)
                return;
        struct file **at = &copies->files;
        while (*at != file)
                at = &(*at)->next;
        *at = file->next;
        free(file);
}

static void on_piece(void *user)
{
        struct target *t = user;
        struct mfl_copies *copies = t->copies;
        pthread_mutex_lock(&copies->lock);
        copies->moved_ms = mfl_now_ms();
        pthread_mutex_unlock(&copies->lock);
}

static void report(struct target *t, const char *why)
{
        if (!strcmp(t->trouble, why))
                return;
        mfl_strcpy(t->trouble, sizeof t->trouble, why);
        if (*why)
                mfl_log(MFL_LOG_WARN,
                        "cluster: server %s does not have a file yet, and is left to catch up: %s", t->name,
                        why);
        else
                mfl_log(MFL_LOG_INFO, "cluster: server %s takes files again", t->name);
}

/* Out of the queue: the first one that goes ahead, else the first one, unless `urgent`. NULL: none. */
static struct file *take_next(struct target *t, bool urgent)
{
        uint32_t i = 0;
        while (i < t->n_queue && !t->queue[i]->ahead)
                i++;
        if (i == t->n_queue && (urgent || !t->n_queue))
                return NULL;
        i = i < t->n_queue ? i : 0;
        struct file *file = t->queue[i];
        memmove(t->queue + i, t->queue + i + 1, (--t->n_queue - i) * sizeof(struct file *));
        return file;
}

/* Under the lock, which it opens meanwhile. */
static void send_file(struct target *t, struct file *file, void (*between)(void *user))
{
        struct mfl_copies *copies = t->copies;
        struct mfl_error err;
        pthread_mutex_unlock(&copies->lock);
        int r = mfl_peer_put(t->peer, file->path, file->sha256, file->bytes, between, t, &err);
        pthread_mutex_lock(&copies->lock);
        report(t, r ? err.text : "");
        mfl_copy_sent(&file->tally, (uint32_t)(t - copies->target), !r);
        copies->moved_ms = mfl_now_ms();
        if (r)
                mfl_strcpy(file->why, sizeof file->why, err.text);
        release(copies, file);
        pthread_cond_broadcast(&copies->changed);
}

/* Between two pieces of a file that can wait. */
static void send_urgent(void *user)
{
        struct target *t = user;
        struct mfl_copies *copies = t->copies;
        struct file *file;
        pthread_mutex_lock(&copies->lock);
        copies->moved_ms = mfl_now_ms();
        while (!copies->stop && (file = take_next(t, true)))
                send_file(t, file, on_piece);
        pthread_mutex_unlock(&copies->lock);
}

static void *run(void *arg)
{
        struct target *t = arg;
        struct mfl_copies *copies = t->copies;
        struct file *file;
        pthread_mutex_lock(&copies->lock);
        while (!copies->stop) {
                if (!(file = take_next(t, false)))
                        pthread_cond_wait(&copies->changed, &copies->lock);
                else
                        send_file(t, file, file->ahead ? on_piece : send_urgent);
        }
        pthread_mutex_unlock(&copies->lock);
        return NULL;
}

/* ---- files ---- */

static void enqueue(struct target *t, struct file *file)
{
        const uint32_t i = (uint32_t)(t - t->copies->target);
        if (!mfl_copy_wants(&file->tally, i))
                return;
        if (t->n_queue == QUEUE_MAX) {
                mfl_snprintf(file->why, sizeof file->why, "%s is %u files behind", t->name, QUEUE_MAX);
                mfl_copy_sent(&file->tally, i, false);
                return;
        }
        t->queue[t->n_queue++] = file;
        file->users++;
}

/* The caller's own; that of an earlier put whose copies are still on their way, if there is one. */
static struct file *open_file(
        struct mfl_copies *copies, const char *path, const uint8_t sha256[32], uint64_t bytes)
{
        struct file *file = copies->files;
        while (file && memcmp(file->sha256, sha256, sizeof file->sha256) != 0)
                file = file->next;
        if (!file) {
                file = mfl_calloc(1, sizeof *file);
                if (!file)
                        return NULL;
                file->next = copies->files;
                copies->files = file;
                file->bytes = bytes;
                file->tally.n = copies->n;
                memcpy(file->sha256, sha256, sizeof file->sha256);
                mfl_strcpy(file->path, sizeof file->path, path);
        }
        file->users++;
        return file;
}

/* False: nobody has taken a piece for patience_ms, or the caller does not want to wait any longer. */
static bool wait_on(struct mfl_copies *copies, const struct mfl_copies_wait *wait, uint64_t began_ms)
{
        struct timespec until;
        const uint64_t now = mfl_now_ms(), moved = MFL_MAX(copies->moved_ms, began_ms);
        if (now >= moved + wait->patience_ms || (wait->goes_on && !wait->goes_on(wait->user)))
                return false;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LOOK_MS * 1000000l;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&copies->changed, &copies->lock, &until);
        return !copies->stop;
}

static int missing(const struct mfl_copies *copies, const struct file *file, struct mfl_error *err)
{
        char names[256] = "";
        size_t n = 0;
        for (uint32_t i = 0; i < copies->n && n < sizeof names - 1; i++)
                if (file->tally.state[i] == MFL_COPY_COMING)
                        n += (size_t)mfl_snprintf(
                                names + n, sizeof names - n, "%s%s", n ? ", " : "", copies->target[i].name);
        return mfl_fail(err, MFL_BUSY, "%u of %u servers have the file, and %u are needed: %s%s%s%s",
                mfl_copy_count(&file->tally, MFL_COPY_THERE) + 1, copies->n + 1, (copies->n + 1) / 2 + 1,
                file->why, *file->why && *names ? "; " : "", *names ? "still waits for " : "", names);
}

int mfl_copies_put(struct mfl_copies *copies, const char *path, const uint8_t sha256[32], uint64_t bytes,
        const struct mfl_copies_wait *wait, struct mfl_error *err)
{
        const uint64_t began_ms = mfl_now_ms();
        int r = 0;
        pthread_mutex_lock(&copies->lock);
        struct file *file = open_file(copies, path, sha256, bytes);
        if (!file) {
                pthread_mutex_unlock(&copies->lock);
                return mfl_fail_memory(err, sizeof *file, "a file's copies");
        }
        file->ahead = file->ahead || wait->ahead;
        for (uint32_t i = 0; i < copies->n; i++)
                enqueue(&copies->target[i], file);
        pthread_cond_broadcast(&copies->changed);
        enum mfl_copy_verdict verdict;
        while ((verdict = mfl_copy_verdict(&file->tally)) == MFL_COPY_WAIT && wait_on(copies, wait, began_ms))
                ;
        if (verdict != MFL_COPY_HELD && mfl_copy_verdict(&file->tally) != MFL_COPY_HELD)
                r = missing(copies, file, err);
        release(copies, file);
        pthread_mutex_unlock(&copies->lock);
        return r;
}

static void shun(struct target *t, const struct mfl_error *why)
{
        t->shun_ms = MFL_MIN(MFL_MAX(2 * t->shun_ms, SHUN_FIRST_MS), SHUN_MAX_MS);
        t->shunned_ms = mfl_now_ms() + t->shun_ms;
        mfl_log(MFL_LOG_WARN, "cluster: server %s is not asked for files for %llu s: %s", t->name,
                (unsigned long long)(t->shun_ms / 1000), why->text);
}

int mfl_copies_get(struct mfl_copies *copies, const uint8_t sha256[32], uint64_t bytes, const char *path,
        bool (*beat)(void *user), void *user, struct mfl_error *err)
{
        struct mfl_error why = {"there is no other one, or it has sent what was wrong before"};
        for (uint32_t i = 0; i < copies->n; i++) {
                struct target *t = &copies->target[i];
                if (mfl_now_ms() < t->shunned_ms)
                        continue;
                int r = t->source ? 0 : mfl_peer_new(&t->options, &t->source, err);
                if (r)
                        return r;
                r = mfl_peer_get(t->source, sha256, bytes, path, beat, user, &why);
                if (r <= 0) {
                        if (!r)
                                t->shun_ms = 0;
                        *err = why;
                        return r;
                }
                if (r == MFL_INVALID)
                        shun(t, &why);
        }
        return mfl_fail(err, MFL_NOT_FOUND, "no server that answers has the file: %.300s", why.text);
}

/* ---- begin and end ---- */

int mfl_copies_open(
        const struct mfl_copies_options *options, struct mfl_copies **ret_copies, struct mfl_error *err)
{
        struct mfl_copies *copies = mfl_calloc(1, sizeof *copies);
        if (!copies)
                return mfl_fail_memory(err, sizeof *copies, "the list of servers");
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_mutex_init(&copies->lock, NULL);
        pthread_cond_init(&copies->changed, &attributes);
        pthread_condattr_destroy(&attributes);
        mfl_strcpy(copies->own, sizeof copies->own, options->own);
        int r = read_list(options->servers, options->own, copies, err);
        for (uint32_t i = 0; i < copies->n && !r; i++) {
                struct target *t = &copies->target[i];
                t->copies = copies;
                t->options = (struct mfl_peer_options){copies->own, t->name, t->address, options->tls};
                r = mfl_peer_new(&t->options, &t->peer, err);
                if (!r && (r = pthread_create(&t->thread, NULL, run, t)))
                        r = mfl_fail(err, -r, "start a thread for copies: %s", strerror(r));
                t->runs = !r;
        }
        if (r) {
                mfl_copies_close(copies);
                return r;
        }
        *ret_copies = copies;
        return 0;
}

void mfl_copies_close(struct mfl_copies *copies)
{
        if (!copies)
                return;
        pthread_mutex_lock(&copies->lock);
        copies->stop = true;
        pthread_cond_broadcast(&copies->changed);
        pthread_mutex_unlock(&copies->lock);
        for (uint32_t i = 0; i < copies->n; i++) {
                struct target *t = &copies->target[i];
                if (t->runs)
                        pthread_join(t->thread, NULL);
                for (uint32_t k = 0; k < t->n_queue; k++)
                        release(copies, t->queue[k]);
                mfl_peer_free(t->peer);
                mfl_peer_free(t->source);
        }
        pthread_mutex_destroy(&copies->lock);
        pthread_cond_destroy(&copies->changed);
        free(copies);
}
