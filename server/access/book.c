/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the audit, on their way to the disk worker. */
#include "server/access/book.h"

#include "common/base/log.h"
#include "server/session/session.h"

#define REFUSALS_PER_MINUTE 100

struct note {
        struct mfl_work work;
        struct mfl_store *store;
        struct mfl_store_audit entry;
};

int mfl_book_write(struct mfl_store *store, const struct mfl_store_audit *e, struct mfl_error *err)
{
        int r = mfl_store_audit_add(store, e, err);
        if (r)
                mfl_log(MFL_LOG_WARN, "audit: %s from %s: %s %s: %s (not in the database: %s)", e->who,
                        e->address, e->action, e->object, e->result, err->text);
        return r;
}

static void run_note(struct mfl_work *work)
{
        struct note *note = MFL_CONTAINER_OF(work, struct note, work);
        struct mfl_error err;
        mfl_book_write(note->store, &note->entry, &err); /* a broken database is noticed elsewhere */
}

static void done_note(struct mfl_work *work)
{
        free(MFL_CONTAINER_OF(work, struct note, work));
}

static bool within_bound(struct mfl_book *book)
{
        uint64_t now = mfl_loop_now(book->loop);
        if (now - book->refusals_ms >= 60000) {
                book->refusals_ms = now;
                book->n_refusals = 0;
        }
        if (book->n_refusals++ == REFUSALS_PER_MINUTE)
                mfl_log(MFL_LOG_WARN,
                        "audit: more than %d refusals within a minute: the others are not written",
                        REFUSALS_PER_MINUTE);
        return book->n_refusals <= REFUSALS_PER_MINUTE;
}

void mfl_book_note(struct mfl_book *book, const struct mfl_session *session, const char *action,
        const char *object, const char *result, const char *text)
{
        mfl_assert(*action && *result);
        if (!strcmp(result, "refused") && !within_bound(book))
                return;
        struct note *note = mfl_calloc(1, sizeof *note);
        if (!note)
                return;
        struct mfl_store_audit *e = &note->entry;
        note->store = book->store;
        note->work.run = run_note;
        note->work.done = done_note;
        mfl_strcpy(e->who, sizeof e->who, session ? session->who : "local");
        mfl_strcpy(e->address, sizeof e->address, session ? session->address : "");
        mfl_strcpy(e->action, sizeof e->action, action);
        mfl_strcpy(e->object, sizeof e->object, object);
        mfl_strcpy(e->result, sizeof e->result, result);
        mfl_strcpy(e->text, sizeof e->text, text);
        if (mfl_worker_submit(&book->loop->disk, &note->work))
                free(note);
}
