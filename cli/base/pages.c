/* SPDX-License-Identifier: Apache-2.0 */
/* All jobs or daemons that a server knows, a page at a time: a list of any length holds the server's loop for a page only.
 * Fails when the server says that there are more, and its page leads no further than the one before: that would never end. */
#include "cli/base/client.h"

#define PAGE_ROWS 1000

/* What is listed. */
struct listed {
        const char *what;
        Mfl__Envelope__BodyCase answer;
        /* Whether another page follows. The last row's key is NULL if there is no row. */
        bool (*read)(const Mfl__Envelope *page, size_t *ret_n, const char **ret_last);
        int (*compare)(const char *a, const char *b); /* in the order of the list */
};

static void free_pages(struct mfl_client_pages *pages)
{
        for (size_t i = 0; i < pages->n; i++)
                mfl_wire_free(pages->page[i]);
        free(pages->page);
        *pages = (struct mfl_client_pages){.page = NULL};
}

/* Takes the page, whatever comes of it. */
static int add_page(struct mfl_client_pages *pages, Mfl__Envelope *page, struct mfl_error *err)
{
        Mfl__Envelope **more = mfl_realloc(pages->page, (pages->n + 1) * sizeof *more);
        if (!more) {
                mfl_wire_free(page);
                return mfl_fail_memory(err, (pages->n + 1) * sizeof *more, "a list's pages");
        }
        pages->page = more;
        more[pages->n++] = page;
        return 0;
}

/* `after` is in the request; ret_rows counts all rows. */
static int fetch(struct mfl_client *client, const struct listed *listed, Mfl__Envelope *request,
        char after[MFL_NAME_BYTES], struct mfl_client_pages *pages, size_t *ret_rows, struct mfl_error *err)
{
        *ret_rows = 0;
        for (bool more = true; more;) {
                Mfl__Envelope *page = NULL;
                const char *last = NULL;
                size_t n = 0;
                int r = mfl_client_call(client, request, listed->answer, &page, err);
                if (!r)
                        r = add_page(pages, page, err);
                if (r)
                        return r;
                more = listed->read(page, &n, &last);
                *ret_rows += n;
                if (!more)
                        break;
                /* A key that is too long would be asked for in part, and come again. */
                if (!last || strlen(last) >= MFL_NAME_BYTES || listed->compare(last, after) <= 0)
                        return mfl_fail(err, MFL_CLI_LOST,
                                "server %s: says that it has more %s, but sends none after '%s'",
                                client->cli->server, listed->what, after);
                mfl_strcpy(after, MFL_NAME_BYTES, last);
        }
        return 0;
}

/* ---- jobs ---- */

static bool read_jobs(const Mfl__Envelope *page, size_t *ret_n, const char **ret_last)
{
        const Mfl__JobList *list = page->job_list;
        *ret_n = list->n_jobs;
        *ret_last = list->n_jobs ? list->jobs[list->n_jobs - 1]->job : NULL;
        return list->more;
}

/* As numbers: j-1000000 comes after j-999999. */
static int compare_jobs(const char *a, const char *b)
{
        const size_t n = strlen(a), m = strlen(b);
        return n != m ? (n > m) - (n < m) : strcmp(a, b);
}

static int join_jobs(struct mfl_client_jobs *jobs, size_t n, struct mfl_error *err)
{
        jobs->list.jobs = mfl_calloc(n + 1, sizeof *jobs->list.jobs);
        if (!jobs->list.jobs)
                return mfl_fail_memory(err, n * sizeof *jobs->list.jobs, "a list of jobs");
        for (size_t i = 0; i < jobs->pages.n; i++) {
                const Mfl__JobList *page = jobs->pages.page[i]->job_list;
                for (size_t k = 0; k < page->n_jobs; k++)
                        jobs->list.jobs[jobs->list.n_jobs++] = page->jobs[k];
                jobs->list.notice = page->notice;
        }
        return 0;
}

int mfl_client_jobs(struct mfl_client *client, bool without_archived, struct mfl_client_jobs *ret_jobs,
        struct mfl_error *err)
{
        static const struct listed listed = {"jobs", MFL__ENVELOPE__BODY_JOB_LIST, read_jobs, compare_jobs};
        struct mfl_client_jobs jobs = {.list = MFL__JOB_LIST__INIT};
        Mfl__ListJobs list = MFL__LIST_JOBS__INIT;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        char after[MFL_NAME_BYTES] = "";
        size_t n;
        request.body_case = MFL__ENVELOPE__BODY_LIST_JOBS;
        request.list_jobs = &list;
        list.without_archived = without_archived;
        list.after = after;
        list.count = PAGE_ROWS;
        int r = fetch(client, &listed, &request, after, &jobs.pages, &n, err);
        if (!r)
                r = join_jobs(&jobs, n, err);
        if (r)
                mfl_client_jobs_deinit(&jobs);
        else
                *ret_jobs = jobs;
        return r;
}

void mfl_client_jobs_deinit(struct mfl_client_jobs *jobs)
{
        free_pages(&jobs->pages);
        free(jobs->list.jobs);
        *jobs = (struct mfl_client_jobs){.list = MFL__JOB_LIST__INIT};
}

/* ---- daemons ---- */

static bool read_daemons(const Mfl__Envelope *page, size_t *ret_n, const char **ret_last)
{
        const Mfl__DaemonList *list = page->daemon_list;
        *ret_n = list->n_daemons;
        *ret_last = list->n_daemons ? list->daemons[list->n_daemons - 1]->name : NULL;
        return list->more;
}

static int join_daemons(struct mfl_client_daemons *daemons, size_t n, struct mfl_error *err)
{
        daemons->list.daemons = mfl_calloc(n + 1, sizeof *daemons->list.daemons);
        if (!daemons->list.daemons)
                return mfl_fail_memory(err, n * sizeof *daemons->list.daemons, "a list of daemons");
        for (size_t i = 0; i < daemons->pages.n; i++) {
                const Mfl__DaemonList *page = daemons->pages.page[i]->daemon_list;
                for (size_t k = 0; k < page->n_daemons; k++)
                        daemons->list.daemons[daemons->list.n_daemons++] = page->daemons[k];
        }
        return 0;
}

int mfl_client_daemons(
        struct mfl_client *client, struct mfl_client_daemons *ret_daemons, struct mfl_error *err)
{
        static const struct listed listed = {
                "daemons", MFL__ENVELOPE__BODY_DAEMON_LIST, read_daemons, strcmp};
        struct mfl_client_daemons daemons = {.list = MFL__DAEMON_LIST__INIT};
        Mfl__ListDaemons list = MFL__LIST_DAEMONS__INIT;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        char after[MFL_NAME_BYTES] = "";
        size_t n;
        request.body_case = MFL__ENVELOPE__BODY_LIST_DAEMONS;
        request.list_daemons = &list;
        list.after = after;
        list.count = PAGE_ROWS;
        int r = fetch(client, &listed, &request, after, &daemons.pages, &n, err);
        if (!r)
                r = join_daemons(&daemons, n, err);
        if (r)
                mfl_client_daemons_deinit(&daemons);
        else
                *ret_daemons = daemons;
        return r;
}

void mfl_client_daemons_deinit(struct mfl_client_daemons *daemons)
{
        free_pages(&daemons->pages);
        free(daemons->list.daemons);
        *daemons = (struct mfl_client_daemons){.list = MFL__DAEMON_LIST__INIT};
}
