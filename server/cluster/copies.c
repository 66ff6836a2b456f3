/* SPDX-License-Identifier: Apache-2.0 */
/* Files on the disks of most servers. See copies.h.
 *   - each other server has a thread and a queue of files; a put waits until most servers have its file, or most can't get it;
 *   - a queue is short: a server that falls behind catches up by itself.
 * Fails when too few servers can be reached or write. */
#include "server/cluster/copies.h"

#include <pthread.h>
#include <stdio.h>

#include "common/base/log.h"
#include "proto/stream.h"

#define QUEUE_MAX 16u

/* A file on its way to all; freed when nobody needs it. Under the lock. */
struct file {
        uint32_t users, n_durable, n_failed;
        uint8_t sha256[32];
        uint64_t bytes;
        char path[1400], why[400];
};

struct target {
        struct mfl_copies *copies;
        struct mfl_peer_options options;
        char name[64], address[256], trouble[300];
        struct mfl_peer *peer, *source; /* of its thread; of gets */
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

static void release(struct file *file)
{
        if (!--file->users)
                free(file);
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

static void *run(void *arg)
{
        struct target *t = arg;
        struct mfl_copies *copies = t->copies;
        struct mfl_error err;
        pthread_mutex_lock(&copies->lock);
        while (!copies->stop) {
                if (!t->n_queue) {
                        pthread_cond_wait(&copies->changed, &copies->lock);
                        continue;
                }
                struct file *file = t->queue[0];
                memmove(t->queue, t->queue + 1, --t->n_queue * sizeof(struct file *));
                pthread_mutex_unlock(&copies->lock);
                int r = mfl_peer_put(t->peer, file->path, file->sha256, file->bytes, &err);
                pthread_mutex_lock(&copies->lock);
                report(t, r ? err.text : "");
                file->n_durable += !r;
                file->n_failed += r != 0;
                if (r)
                        mfl_strcpy(file->why, sizeof file->why, err.text);
                release(file);
                pthread_cond_broadcast(&copies->changed);
        }
        pthread_mutex_unlock(&copies->lock);
        return NULL;
}

/* ---- files ---- */

static void enqueue(struct target *t, struct file *file)
{
        if (t->n_queue == QUEUE_MAX) {
                mfl_snprintf(file->why, sizeof file->why, "%s is %u files behind", t->name, QUEUE_MAX);
                file->n_failed++;
                return;
        }
        t->queue[t->n_queue++] = file;
        file->users++;
}

int mfl_copies_put(struct mfl_copies *copies, const char *path, const uint8_t sha256[32], uint64_t bytes,
        struct mfl_error *err)
{
        const uint32_t all = copies->n + 1, most = all / 2 + 1;
        struct file *file = mfl_calloc(1, sizeof *file);
        if (!file)
                return mfl_fail_memory(err, sizeof *file, "a file's copies");
        file->users = file->n_durable = 1;
        file->bytes = bytes;
        memcpy(file->sha256, sha256, sizeof file->sha256);
        mfl_strcpy(file->path, sizeof file->path, path);
        pthread_mutex_lock(&copies->lock);
        for (uint32_t i = 0; i < copies->n; i++)
                enqueue(&copies->target[i], file);
        pthread_cond_broadcast(&copies->changed);
        while (file->n_durable < most && file->n_failed <= all - most && !copies->stop)
                pthread_cond_wait(&copies->changed, &copies->lock);
        int r = file->n_durable >= most
                        ? 0
                        : mfl_fail(err, MFL_BUSY, "%u of %u servers have the file, and %u are needed: %s",
                                  file->n_durable, all, most, file->why);
        release(file);
        pthread_mutex_unlock(&copies->lock);
        return r;
}

int mfl_copies_get(struct mfl_copies *copies, const uint8_t sha256[32], uint64_t bytes, const char *path,
        bool (*beat)(void *user), void *user, struct mfl_error *err)
{
        struct mfl_error why = {"there is no other server"};
        for (uint32_t i = 0; i < copies->n; i++) {
                struct target *t = &copies->target[i];
                int r = t->source ? 0 : mfl_peer_new(&t->options, &t->source, err);
                if (r)
                        return r;
                r = mfl_peer_get(t->source, sha256, bytes, path, beat, user, &why);
                if (r <= 0) {
                        *err = why;
                        return r;
                }
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
        pthread_mutex_init(&copies->lock, NULL);
        pthread_cond_init(&copies->changed, NULL);
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
                        release(t->queue[k]);
                mfl_peer_free(t->peer);
                mfl_peer_free(t->source);
        }
        pthread_mutex_destroy(&copies->lock);
        pthread_cond_destroy(&copies->changed);
        free(copies);
}
