/* SPDX-License-Identifier: Apache-2.0 */
/* All jobs that a server has, a page at a time: a list of any length holds the server's loop for a page only. */
#include "cli/base/client.h"

#define PAGE_JOBS 1000

void mfl_client_jobs_deinit(struct mfl_client_jobs *jobs)
{
        for (size_t i = 0; i < jobs->n_pages; i++)
                mfl_wire_free(jobs->page[i]);
        free(jobs->page);
        free(jobs->list.jobs);
        *jobs = (struct mfl_client_jobs){.list = MFL__JOB_LIST__INIT};
}

/* Takes the page, whatever comes of it. */
static int add_page(struct mfl_client_jobs *jobs, Mfl__Envelope *page, struct mfl_error *err)
{
        const Mfl__JobList *list = page->job_list;
        size_t n = jobs->list.n_jobs + list->n_jobs;
        Mfl__Envelope **pages = mfl_realloc(jobs->page, (jobs->n_pages + 1) * sizeof *pages);
        if (pages) {
                jobs->page = pages;
                pages[jobs->n_pages++] = page;
        } else
                mfl_wire_free(page);
        Mfl__JobInfo **all = pages ? mfl_realloc(jobs->list.jobs, (n + 1) * sizeof(*all)) : NULL;
        if (!all)
                return mfl_fail_memory(err, n * sizeof(*all), "a list of jobs");
        for (size_t i = 0; i < list->n_jobs; i++)
                all[jobs->list.n_jobs++] = list->jobs[i];
        jobs->list.jobs = all;
        jobs->list.notice = list->notice;
        return 0;
}

int mfl_client_jobs(struct mfl_client *client, bool without_archived, struct mfl_client_jobs *ret_jobs,
        struct mfl_error *err)
{
        struct mfl_client_jobs jobs = {.list = MFL__JOB_LIST__INIT};
        Mfl__ListJobs list = MFL__LIST_JOBS__INIT;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        char after[MFL_JOB_ID_BYTES] = "";
        bool more = true;
        int r = 0;
        request.body_case = MFL__ENVELOPE__BODY_LIST_JOBS;
        request.list_jobs = &list;
        list.without_archived = without_archived;
        list.after = after;
        list.count = PAGE_JOBS;
        while (!r && more) {
                Mfl__Envelope *page = NULL;
                r = mfl_client_call(client, &request, MFL__ENVELOPE__BODY_JOB_LIST, &page, err);
                if (r)
                        break;
                more = page->job_list->more && page->job_list->n_jobs;
                if (more)
                        mfl_strcpy(
                                after, sizeof after, page->job_list->jobs[page->job_list->n_jobs - 1]->job);
                r = add_page(&jobs, page, err);
        }
        if (r)
                mfl_client_jobs_deinit(&jobs);
        else
                *ret_jobs = jobs;
        return r;
}
