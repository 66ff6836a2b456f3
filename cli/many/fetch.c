/* SPDX-License-Identifier: Apache-2.0 */
/* References to several jobs, and what the server knows of them. */
#include "cli/many/fetch.h"

#include <fnmatch.h>
#include <unistd.h>

#include "cli/base/display.h"
#include "cli/base/json.h"

static int add_id(struct mfl_job_ids *ids, const char *id, struct mfl_error *err)
{
        for (size_t i = 0; i < ids->n; i++)
                if (!strcmp(ids->id[i], id))
                        return 0;
        if (ids->n == MFL_COMPARE_MAX)
                return mfl_fail(err, MFL_CLI_LIMIT, "more than %d jobs", MFL_COMPARE_MAX);
        mfl_strcpy(ids->id[ids->n++], MFL_JOB_ID_BYTES, id);
        return 0;
}

static int add_matching(
        struct mfl_job_ids *ids, struct mfl_client *client, const char *pattern, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT_JOBS struct mfl_client_jobs jobs = {.pages = {NULL, 0}};
        size_t before = ids->n;
        int r = mfl_client_jobs(client, false, &jobs, err);
        for (size_t i = 0; !r && i < jobs.list.n_jobs; i++)
                if (!fnmatch(pattern, jobs.list.jobs[i]->name, 0))
                        r = add_id(ids, jobs.list.jobs[i]->job, err);
        if (!r && ids->n == before)
                r = mfl_fail(err, MFL_NOT_FOUND, "no job's name matches '%.60s'; 'mfl list' shows the jobs",
                        pattern);
        return r;
}

int mfl_job_ids_add(
        struct mfl_job_ids *ids, struct mfl_client *client, const char *ref, struct mfl_error *err)
{
        char id[MFL_JOB_ID_BYTES];
        if (strpbrk(ref, "*?["))
                return add_matching(ids, client, ref, err);
        int r = mfl_client_resolve(client, ref, id, err);
        return r ? r : add_id(ids, id, err);
}

struct details {
        Mfl__Envelope *answer[MFL_COMPARE_MAX];
        Mfl__JobDetail *job[MFL_COMPARE_MAX];
        size_t n;
};

static int fetch(
        struct details *d, struct mfl_client *client, const struct mfl_job_ids *ids, struct mfl_error *err)
{
        int r = 0;
        for (size_t i = 0; !r && i < ids->n; i++) {
                Mfl__Envelope request = MFL__ENVELOPE__INIT;
                Mfl__ShowJob show = MFL__SHOW_JOB__INIT;
                show.job = (char *)(uintptr_t)ids->id[i];
                request.body_case = MFL__ENVELOPE__BODY_SHOW_JOB;
                request.show_job = &show;
                r = mfl_client_call(client, &request, MFL__ENVELOPE__BODY_JOB_DETAIL, &d->answer[i], err);
                if (!r)
                        d->job[d->n++] = d->answer[i]->job_detail;
        }
        return r;
}

static int print_text(
        const struct details *d, const struct mfl_settings *settings, int columns, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *table = mfl_view_compare(d->job, d->n, settings, columns);
        MFL_CLEANUP_FREE char *plot = mfl_view_plot(d->job, d->n, columns);
        if (!table || !plot)
                return mfl_fail_memory(err, 0, "a comparison of jobs");
        printf("%s%s%s", table, *plot ? "\n" : "", plot);
        return 0;
}

int mfl_compare_print(struct mfl_client *client, const struct mfl_job_ids *ids, struct mfl_error *err)
{
        struct mfl_cli *cli = client->cli;
        struct mfl_settings settings = {.n = 0};
        struct details *d = mfl_calloc(1, sizeof *d);
        int r = d ? fetch(d, client, ids, err) : mfl_fail_memory(err, sizeof *d, "jobs");
        if (!r)
                r = mfl_settings_find(d->job, d->n, &settings, err);
        if (!r && cli->json)
                r = mfl_json_print(stdout, mfl_json_compare(d->job, d->n, &settings), err);
        else if (!r)
                r = print_text(d, &settings, cli->terminal ? mfl_screen_columns(STDOUT_FILENO) : 0, err);
        mfl_settings_deinit(&settings);
        for (size_t i = 0; d && i < MFL_COMPARE_MAX; i++)
                mfl_wire_free(d->answer[i]);
        free(d);
        return r;
}
