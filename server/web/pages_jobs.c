/* SPDX-License-Identifier: Apache-2.0 */
/* The list of jobs as JSON, which every open dashboard asks for every two seconds.
 *
 * A job that has ended and is out of the core says the same until its version rises: its text is kept. The others are written again, at
 * most SLICE of them before the loop turns, so that a poll does not hold the loop, however many jobs there are. A job that changes, comes
 * or goes between two slices is told as it is when its turn comes.
 *
 * The texts kept lie in the order of the list, which is that of ids, so that one walk over both finds them. */
#include "proto/json/json.h"
#include "proto/version.h"
#include "server/views/job_view.h"
#include "server/web/contents.h"

#define SLICE 100 /* jobs: about two milliseconds */

struct kept {
        uint64_t number, version; /* of the job */
        char *text;
        size_t n;
};

struct mfl_page_jobs {
        struct kept *old, *new;       /* of the list before; of this one, as far as it goes */
        uint32_t n_old, n_new, i_old; /* i_old: the first that may still be found */
        bool writing;
        struct mfl_text text;
        uint64_t last; /* number of the job that was written or left out last */
        uint32_t skip, skip_archived, n_left_out;
};

static void free_kept(struct kept *v, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                free(v[i].text);
        free(v);
}

/* What was kept of the job, which leaves the old list; NULL: nothing that is still true. */
static char *take_old(struct mfl_page_jobs *page, const struct mfl_server_job *job, size_t *ret_n)
{
        const uint64_t number = mfl_server_job_number(job->id);
        while (page->i_old < page->n_old && page->old[page->i_old].number < number)
                page->i_old++;
        struct kept *kept = page->i_old < page->n_old ? &page->old[page->i_old] : NULL;
        if (!kept || kept->number != number || kept->version != job->version ||
                !mfl_server_job_has_ended(job) || mfl_server_job_in_core(job))
                return NULL;
        char *text = kept->text;
        *ret_n = kept->n;
        kept->text = NULL;
        return text;
}

/* Takes the text. */
static void keep(struct mfl_page_jobs *page, const struct mfl_server_job *job, char *text, size_t n)
{
        if (mfl_server_job_has_ended(job) && !mfl_server_job_in_core(job) && page->n_new < MFL_PAGES_JOBS_MAX)
                page->new[page->n_new++] =
                        (struct kept){mfl_server_job_number(job->id), job->version, text, n};
        else
                free(text);
}

/* Returns whether the job had to be written. */
static bool put_job(struct mfl_page_jobs *page, const struct mfl_server_job *job)
{
        Mfl__JobInfo info;
        struct mfl_job_info_buffers buffers;
        struct mfl_text one = {0};
        char *text = take_old(page, job, &one.n);
        const bool found = text != NULL;
        if (!found) {
                mfl_view_job(job, &info, &buffers);
                mfl_page_put_json(&one, mfl_json_job(&info));
                page->text.failed |= one.failed;
                text = one.v;
        }
        if (page->text.failed) {
                free(text);
                return true;
        }
        if (page->text.v[page->text.n - 1] != '[')
                mfl_text_put(&page->text, ",");
        mfl_text_bytes(&page->text, text, one.n);
        keep(page, job, text, one.n);
        return !found;
}

static void begin(struct mfl_page_jobs *page, const struct mfl_jobs *jobs)
{
        uint32_t n = 0, n_archived = 0;
        for (const struct mfl_server_job *job = jobs->first; job; job = job->next) {
                n++;
                n_archived += job->archived_unix_ms != 0;
        }
        uint32_t excess = n > MFL_PAGES_JOBS_MAX ? n - MFL_PAGES_JOBS_MAX : 0;
        page->skip_archived = MFL_MIN(excess, n_archived);
        page->skip = excess - page->skip_archived;
        page->n_left_out = page->i_old = page->n_new = 0;
        page->last = 0;
        page->new = mfl_calloc(MFL_PAGES_JOBS_MAX, sizeof *page->new);
        page->text = (struct mfl_text){.failed = !page->new};
        mfl_text_format(&page->text, "{\"version\":\"%s\",\"jobs\":[", MFL_VERSION);
        page->writing = true;
}

/* The rest of the object; what was kept of jobs that are not in the list goes. */
static void end(struct mfl_page_jobs *page, uint32_t n_jobs, struct mfl_text *ret_text)
{
        mfl_text_format(&page->text, "],\"n_jobs\":%u}\n", n_jobs);
        free_kept(page->old, page->n_old);
        page->old = page->new;
        page->n_old = page->n_new;
        page->new = NULL;
        page->n_new = 0;
        page->writing = false;
        *ret_text = page->text;
        page->text = (struct mfl_text){0};
}

bool mfl_page_jobs_step(struct mfl_page_jobs *page, const struct mfl_jobs *jobs, struct mfl_text *ret_text)
{
        uint32_t n_written = 0, n_jobs = 0;
        if (!page->writing)
                begin(page, jobs);
        for (const struct mfl_server_job *job = jobs->first; job && !page->text.failed; job = job->next) {
                const uint64_t number = mfl_server_job_number(job->id);
                n_jobs++;
                if (number <= page->last)
                        continue;
                if (n_written == SLICE)
                        return false;
                page->last = number;
                uint32_t *left = job->archived_unix_ms ? &page->skip_archived : &page->skip;
                /* Jobs that run are shown however old they are. */
                if (*left && mfl_server_job_has_ended(job))
                        --*left;
                else
                        n_written += put_job(page, job);
        }
        end(page, n_jobs, ret_text);
        return true;
}

struct mfl_page_jobs *mfl_page_jobs_new(void)
{
        return mfl_calloc(1, sizeof(struct mfl_page_jobs));
}

void mfl_page_jobs_free(struct mfl_page_jobs *page)
{
        if (!page)
                return;
        free_kept(page->old, page->n_old);
        free_kept(page->new, page->n_new);
        mfl_text_deinit(&page->text);
        free(page);
}
