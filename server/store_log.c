/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: kept in memory by anybody, written with the next transaction, capped per job. */
#include "server/store_internal.h"

#include <stdio.h>

#define PENDING_MAX 4096u

/* Room for one more. */
static bool grow_pending(struct mfl_store *store)
{
        if (store->n_pending < store->pending_room)
                return true;
        if (store->pending_room == PENDING_MAX)
                return false;
        uint32_t room = store->pending_room ? 2 * store->pending_room : 16;
        struct mfl_store_pending *grown = mfl_realloc(store->pending, room * sizeof *grown);
        if (!grown)
                return false;
        store->pending = grown;
        store->pending_room = room;
        return true;
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
                struct mfl_store_pending *line = &store->pending[store->n_pending++];
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

/* Or replace: a commit that failed may have reached the disk after all. */
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

/* The last line of each job in the batch looks after its job's cap. */
static bool is_last_of_job(const struct mfl_store_pending *lines, uint32_t n, uint32_t i)
{
        for (uint32_t j = i + 1; j < n; j++)
                if (!strcmp(lines[j].job, lines[i].job))
                        return false;
        return true;
}

/* The mutex is held for inserts into a transaction, which go to memory: the disk waits for commit. */
int mfl_store_log_write(struct mfl_store *store, uint32_t *ret_n, struct mfl_error *err)
{
        pthread_mutex_lock(&store->log_mutex);
        uint32_t n = store->n_pending;
        int r = 0;
        for (uint32_t i = 0; i < n && !r; i++) {
                r = insert_line(store, &store->pending[i], err);
                if (!r && is_last_of_job(store->pending, n, i))
                        r = cap_lines(store, store->pending[i].job, err);
        }
        pthread_mutex_unlock(&store->log_mutex);
        *ret_n = n;
        return r;
}

void mfl_store_log_written(struct mfl_store *store, uint32_t n)
{
        pthread_mutex_lock(&store->log_mutex);
        for (uint32_t i = 0; i < n; i++)
                free(store->pending[i].text);
        store->n_pending -= n;
        uint64_t lost = store->lost;
        store->lost = 0;
        if (store->n_pending) /* what came in between */
                memmove(store->pending, store->pending + n, store->n_pending * sizeof *store->pending);
        pthread_mutex_unlock(&store->log_mutex);
        if (lost)
                mfl_store_logf(
                        store, "", "%llu log lines were lost: too many at once", (unsigned long long)lost);
}

int mfl_store_flush(struct mfl_store *store, struct mfl_error *err)
{
        pthread_mutex_lock(&store->log_mutex);
        bool any = store->n_pending > 0;
        pthread_mutex_unlock(&store->log_mutex);
        if (!any)
                return 0;
        int r = mfl_store_begin(store, err);
        return r ? r : mfl_store_end(store, 0, err);
}

struct lines_reader {
        struct mfl_store_lines lines;
        uint32_t room;
};

static int add_line(
        struct lines_reader *reader, uint64_t seq, uint64_t time_ms, const char *said, struct mfl_error *err)
{
        struct mfl_store_lines *lines = &reader->lines;
        if (lines->n == reader->room) {
                uint32_t room = reader->room ? 2 * reader->room : 64;
                struct mfl_store_line *grown = mfl_realloc(lines->v, room * sizeof *grown);
                if (!grown)
                        return mfl_fail_memory(err, room * sizeof *grown, "log lines");
                lines->v = grown;
                reader->room = room;
        }
        char *text = mfl_strdup(said);
        if (!text)
                return mfl_fail_memory(err, strlen(said), "a log line");
        lines->v[lines->n++] = (struct mfl_store_line){.seq = seq, .time_ms = time_ms, .text = text};
        return 0;
}

static int on_line(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        return add_line(
                user, (uint64_t)mfl_db_int(row, 0), (uint64_t)mfl_db_int(row, 1), mfl_db_text(row, 2), err);
}

/* What the disk does not take yet. A commit that failed may have reached it after all: those lines are there
 * already. */
static int add_pending(struct mfl_store *store, const char *id, uint64_t after, uint32_t limit,
        struct lines_reader *reader, struct mfl_error *err)
{
        int r = 0;
        if (reader->lines.n)
                after = reader->lines.v[reader->lines.n - 1].seq;
        pthread_mutex_lock(&store->log_mutex);
        for (uint32_t i = 0; i < store->n_pending && reader->lines.n < limit && !r; i++) {
                const struct mfl_store_pending *line = &store->pending[i];
                if (line->seq > after && !strcmp(line->job, id))
                        r = add_line(reader, line->seq, line->time_ms, line->text, err);
        }
        pthread_mutex_unlock(&store->log_mutex);
        return r;
}

int mfl_store_log_list(struct mfl_store *store, const char *id, uint64_t after, uint32_t limit,
        struct mfl_store_lines *ret_lines, struct mfl_error *err)
{
        int flushed = mfl_store_flush(store, err), r;
        if (flushed < 0)
                return flushed;
        struct lines_reader reader = {{0}}; /* on a full disk, too: that is when people look */
        mfl_store_lock(store);
        r = mfl_db_query(store->db, on_line, &reader, err,
                "SELECT seq, time_ms, text FROM lines WHERE job = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
                "tii", id, (int64_t)after, (int64_t)limit);
        mfl_store_unlock(store);
        if (!r && flushed)
                r = add_pending(store, id, after, limit, &reader, err);
        if (r)
                mfl_store_lines_deinit(&reader.lines);
        else
                *ret_lines = reader.lines;
        return r;
}

void mfl_store_lines_deinit(struct mfl_store_lines *lines)
{
        for (uint32_t i = 0; i < lines->n; i++)
                free(lines->v[i].text);
        free(lines->v);
        *lines = (struct mfl_store_lines){0};
}
