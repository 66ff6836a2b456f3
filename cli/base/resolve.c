/* SPDX-License-Identifier: Apache-2.0 */
/* References to jobs: an id, a name, or "last". */
#include "cli/base/client.h"

static bool is_job_id(const char *ref)
{
        size_t n = strlen(ref);
        return !strncmp(ref, "j-", 2) && n >= 8 && n < MFL_JOB_ID_BYTES &&
               strspn(ref + 2, "0123456789") == n - 2;
}

static int pick_job(const Mfl__JobList *list, const char *ref, char *ret_job, struct mfl_error *err)
{
        const char *found = NULL, *newest = NULL;
        int n = 0;
        for (size_t i = 0; i < list->n_jobs; i++) {
                const Mfl__JobInfo *info = list->jobs[i];
                if (!newest || strlen(info->job) > strlen(newest) ||
                        (strlen(info->job) == strlen(newest) && strcmp(info->job, newest) > 0))
                        newest = info->job;
                if (!strcmp(info->name, ref)) {
                        found = info->job;
                        n++;
                }
        }
        if (n > 1)
                return mfl_fail(err, MFL_CLI_CONFLICT,
                        "%d jobs have the name '%.63s': use an id ('mfl list' shows them)", n, ref);
        if (!n && !strcmp(ref, "last"))
                found = newest;
        if (!found)
                return mfl_fail(err, MFL_NOT_FOUND,
                        list->n_jobs ? "there is no job '%.63s'; 'mfl list' shows the jobs"
                                     : "there is no job '%.63s': the server has no jobs",
                        ref);
        mfl_strcpy(ret_job, MFL_JOB_ID_BYTES, found);
        return 0;
}

int mfl_client_resolve(struct mfl_client *c, const char *ref, char *ret_job, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT_JOBS struct mfl_client_jobs jobs = {.pages = {NULL, 0}};
        if (is_job_id(ref)) {
                mfl_strcpy(ret_job, MFL_JOB_ID_BYTES, ref);
                return 0;
        }
        int r = mfl_client_jobs(c, false, &jobs, err);
        return r ? r : pick_job(&jobs.list, ref, ret_job, err);
}

static bool is_version(const Mfl__ModelVersion *v, const char *which)
{
        char number[16];
        mfl_snprintf(number, sizeof number, "%u", v->version);
        bool found = !strcmp(number, which);
        for (size_t i = 0; i < v->n_aliases; i++)
                found |= !strcmp(v->aliases[i], which);
        return found;
}

int mfl_client_resolve_model(
        struct mfl_client *client, const char *ref, char *ret_job, int64_t *ret_round, struct mfl_error *err)
{
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        Mfl__ListRegistry list = MFL__LIST_REGISTRY__INIT;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        char name[MFL_NAME_BYTES];
        const char *at = strchr(ref, '@');
        if (!at)
                return mfl_client_resolve(client, ref, ret_job, err);
        if (client->cli->options.round)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--round chooses a model of a job; '%.100s' is a registered model", ref);
        mfl_snprintf(name, sizeof name, "%.*s", (int)(at - ref), ref);
        list.name = name;
        request.body_case = MFL__ENVELOPE__BODY_LIST_REGISTRY;
        request.list_registry = &list;
        int r = mfl_client_call(client, &request, MFL__ENVELOPE__BODY_REGISTRY, &answer, err);
        for (size_t i = 0; !r && i < answer->registry->n_versions; i++) {
                const Mfl__ModelVersion *v = answer->registry->versions[i];
                if (!is_version(v, at + 1))
                        continue;
                mfl_strcpy(ret_job, MFL_JOB_ID_BYTES, v->job);
                *ret_round = v->round;
                return 0;
        }
        return r ? r
                 : mfl_fail(err, MFL_NOT_FOUND, "there is no model '%.100s'; 'mfl model list' shows them",
                           ref);
}
