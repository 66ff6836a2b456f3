/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: written at once, and read back. */
#include "server/store/store_internal.h"

int mfl_store_flush(struct mfl_store *store, struct mfl_error *err)
{
        mfl_store_lock(store);
        pthread_mutex_lock(&store->log_mutex);
        bool any = store->pending.n || store->writing.n;
        pthread_mutex_unlock(&store->log_mutex);
        mfl_store_unlock(store);
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

static int add_waiting(const struct mfl_store_pendings *lines, const char *id, uint64_t after, uint32_t limit,
        struct lines_reader *reader, struct mfl_error *err)
{
        int r = 0;
        for (uint32_t i = 0; i < lines->n && reader->lines.n < limit && !r; i++) {
                const struct mfl_store_pending *line = &lines->v[i];
                if (line->seq > after && !strcmp(line->job, id))
                        r = add_line(reader, line->seq, line->time_ms, line->text, err);
        }
        return r;
}

/* Adds the lines that the disk does not accept yet. A failed commit may have reached it after all: those lines are
 * listed already. */
static int add_pending(struct mfl_store *store, const char *id, uint64_t after, uint32_t limit,
        struct lines_reader *reader, struct mfl_error *err)
{
        if (reader->lines.n)
                after = reader->lines.v[reader->lines.n - 1].seq;
        pthread_mutex_lock(&store->log_mutex);
        int r = add_waiting(&store->writing, id, after, limit, reader, err);
        if (!r)
                r = add_waiting(&store->pending, id, after, limit, reader, err);
        pthread_mutex_unlock(&store->log_mutex);
        return r;
}

int mfl_store_log_list(struct mfl_store *store, const char *id, uint64_t after, uint32_t limit,
        struct mfl_store_lines *ret_lines, struct mfl_error *err)
{
        int flushed = mfl_store_flush(store, err), r;
        if (flushed < 0)
                return flushed;
        struct lines_reader reader = {{0}}; /* works on a full disk, too: that is when people look */
        mfl_store_lock(store);
        r = mfl_db_query(store->db, on_line, &reader, err,
                "SELECT seq, time_ms, CASE WHEN sum IS row_sum('lines', seq, job, time_ms, text) THEN text "
                "ELSE "
                "'(this line was changed on the disk) ' || text END FROM lines WHERE job = ?1 AND seq > ?2 "
                "ORDER BY seq LIMIT ?3",
                "tii", id, (int64_t)after, (int64_t)limit);
        if (!r && flushed)
                r = add_pending(store, id, after, limit, &reader, err);
        mfl_store_unlock(store);
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
