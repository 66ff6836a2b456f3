/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: any thread adds them in memory, the next transaction writes them, and each job's number is limited. */
#include "server/store/store_internal.h"

#include <stdio.h>
#include <time.h>

#define PENDING_MAX 4096u

uint64_t mfl_store_unix_ms(void)
{
        struct timespec ts;
        clock_gettime(CLOCK_REALTIME, &ts);
        return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static bool grow(struct mfl_store_pendings *lines, uint32_t n)
{
        if (lines->room >= n)
                return true;
        uint32_t room = MFL_MAX(n, lines->room ? 2 * lines->room : 16);
        struct mfl_store_pending *grown = mfl_realloc(lines->v, room * sizeof *grown);
        if (!grown)
                return false;
        lines->v = grown;
        lines->room = room;
        return true;
}

/* Room for one more. */
static bool grow_pending(struct mfl_store *store)
{
        return store->pending.n + store->writing.n < PENDING_MAX &&
               grow(&store->pending, store->pending.n + 1);
}

void mfl_store_log(struct mfl_store *store, const char *id, const char *text, uint64_t *ret_seq)
{
        char *copy = mfl_strdup(text);
        pthread_mutex_lock(&store->log_mutex);
        uint64_t seq = store->next_seq++;
        if (!copy || !grow_pending(store)) {
                store->lost++;
                free(copy);
        } else {
                struct mfl_store_pending *line = &store->pending.v[store->pending.n++];
                *line = (struct mfl_store_pending){.seq = seq, .time_ms = mfl_store_unix_ms(), .text = copy};
                mfl_strcpy(line->job, sizeof line->job, id);
        }
        pthread_mutex_unlock(&store->log_mutex);
        if (ret_seq)
                *ret_seq = seq;
}

void mfl_store_logf(struct mfl_store *store, const char *id, const char *fmt, ...)
{
        char text[1024];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        mfl_store_log(store, id, text, NULL);
}

/* Replaces an existing line: a failed commit may have reached the disk after all. */
static int insert_line(struct mfl_store *store, const struct mfl_store_pending *line, struct mfl_error *err)
{
        return mfl_db_run(store->db, err,
                "INSERT OR REPLACE INTO lines (seq, job, time_ms, text) VALUES (?1, ?2, ?3, ?4)", "itit",
                (int64_t)line->seq, line->job, (int64_t)line->time_ms, line->text);
}

static int cap_lines(struct mfl_store *store, const char *job, struct mfl_error *err)
{
        return mfl_db_run(store->db, err,
                "DELETE FROM lines WHERE job = ?1 AND seq <= (SELECT seq FROM lines WHERE job = ?1 "
                "ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
                "ti", job, (int64_t)MFL_STORE_LOG_LINES_MAX);
}

/* The last line of each job in the batch applies the job's limit. */
static bool is_last_of_job(const struct mfl_store_pending *lines, uint32_t n, uint32_t i)
{
        for (uint32_t j = i + 1; j < n; j++)
                if (!strcmp(lines[j].job, lines[i].job))
                        return false;
        return true;
}

/* Moves the waiting lines to those that an earlier transaction could not write. If memory is short they stay where
 * they are. */
static void gather_lines(struct mfl_store *store)
{
        struct mfl_store_pendings *to = &store->writing, *from = &store->pending;
        pthread_mutex_lock(&store->log_mutex);
        if (!to->n) {
                struct mfl_store_pendings empty = *to;
                *to = *from;
                *from = empty;
        } else if (from->n && grow(to, to->n + from->n)) {
                memcpy(to->v + to->n, from->v, from->n * sizeof *from->v);
                to->n += from->n;
                from->n = 0;
        }
        pthread_mutex_unlock(&store->log_mutex);
}

/* Callers that log do not wait for the inserts. */
int mfl_store_log_write(struct mfl_store *store, struct mfl_error *err)
{
        gather_lines(store);
        const struct mfl_store_pendings *lines = &store->writing;
        int r = 0;
        for (uint32_t i = 0; i < lines->n && !r; i++) {
                r = insert_line(store, &lines->v[i], err);
                if (!r && is_last_of_job(lines->v, lines->n, i))
                        r = cap_lines(store, lines->v[i].job, err);
        }
        return r;
}

void mfl_store_log_written(struct mfl_store *store)
{
        struct mfl_store_pendings *lines = &store->writing;
        for (uint32_t i = 0; i < lines->n; i++)
                free(lines->v[i].text);
        pthread_mutex_lock(&store->log_mutex);
        lines->n = 0;
        uint64_t lost = store->lost;
        store->lost = 0;
        pthread_mutex_unlock(&store->log_mutex);
        if (lost)
                mfl_store_logf(
                        store, "", "%llu log lines were lost: too many at once", (unsigned long long)lost);
}

void mfl_store_log_deinit(struct mfl_store *store)
{
        struct mfl_store_pendings *both[] = {&store->pending, &store->writing};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(both); k++) {
                for (uint32_t i = 0; i < both[k]->n; i++)
                        free(both[k]->v[i].text);
                free(both[k]->v);
        }
}
