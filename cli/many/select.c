/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs by state, name, age and archive. */
#include "cli/many/select.h"

#include <fnmatch.h>
#include <time.h>

#include "common/settings/yaml.h"
#include "proto/json/json.h"

static int read_states(const char *text, unsigned *ret_states, struct mfl_error *err)
{
        unsigned states = 0;
        for (const char *at = text; *at; at += *at == ',') {
                size_t n = strcspn(at, ",");
                int s = MFL__JOB_STATE__JOB_WAITING;
                while (s <= MFL__JOB_STATE__JOB_STOPPED &&
                        (strlen(mfl_state_name((Mfl__JobState)s)) != n ||
                                strncmp(mfl_state_name((Mfl__JobState)s), at, n) != 0))
                        s++;
                if (s > MFL__JOB_STATE__JOB_STOPPED)
                        return mfl_fail(err, MFL_CLI_USAGE,
                                "--state: '%.*s' is no state; the states are waiting, running, done, failed "
                                "and stopped",
                                (int)MFL_MIN(n, (size_t)60), at);
                states |= 1u << s;
                at += n;
        }
        *ret_states = states;
        return states ? 0 : mfl_fail(err, MFL_CLI_USAGE, "--state: names no state");
}

/* "30d" as the Unix time that long ago. */
static int read_age(const char *option, const char *text, uint64_t *ret_ms, struct mfl_error *err)
{
        uint64_t age;
        struct timespec clock;
        clock_gettime(CLOCK_REALTIME, &clock);
        uint64_t now = (uint64_t)clock.tv_sec * 1000 + (uint64_t)clock.tv_nsec / 1000000;
        if (!mfl_yaml_parse_duration(text, &age))
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--%s: expected a time such as 90s, 30m, 12h or 7d, got '%.60s'", option, text);
        *ret_ms = age < now ? now - age : 1;
        return 0;
}

int mfl_select_read(const struct mfl_cli *cli, struct mfl_select *ret_select, struct mfl_error *err)
{
        const struct mfl_cli_options *o = &cli->options;
        struct mfl_select s = {.name = o->name};
        int r = 0;
        if (o->done && o->state)
                return mfl_fail(err, MFL_CLI_USAGE, "--done is --state done: write one of them");
        if (o->archived && o->all)
                return mfl_fail(err, MFL_CLI_USAGE, "--archived is a part of --all: write one of them");
        s.archived = o->archived ? MFL_SELECT_ARCHIVED : o->all ? MFL_SELECT_BOTH : MFL_SELECT_CURRENT;
        if (o->done)
                s.states = 1u << MFL__JOB_STATE__JOB_DONE;
        if (o->state)
                r = read_states(o->state, &s.states, err);
        if (!r && o->since)
                r = read_age("since", o->since, &s.since_ms, err);
        if (!r && o->before)
                r = read_age("before", o->before, &s.before_ms, err);
        if (!r)
                *ret_select = s;
        return r;
}

bool mfl_select_given(const struct mfl_cli *cli)
{
        const struct mfl_cli_options *o = &cli->options;
        return o->done || o->state || o->name || o->since || o->before || o->archived || o->all;
}

bool mfl_select_has(const struct mfl_select *s, const Mfl__JobInfo *job)
{
        if (s->states && !(s->states & 1u << job->state))
                return false;
        if (s->name && fnmatch(s->name, job->name, 0) != 0)
                return false;
        if (s->archived != MFL_SELECT_BOTH && (job->archived_ms != 0) != (s->archived == MFL_SELECT_ARCHIVED))
                return false;
        if (job->created_ms < s->since_ms)
                return false;
        return !s->before_ms || (job->finished_ms && job->finished_ms < s->before_ms);
}

int mfl_select_jobs(const struct mfl_select *s, size_t n, const Mfl__JobList *list, Mfl__JobList *ret_list,
        struct mfl_error *err)
{
        Mfl__JobList kept = *list;
        kept.jobs = mfl_calloc(list->n_jobs, sizeof(Mfl__JobInfo *));
        if (!kept.jobs)
                return mfl_fail_memory(err, list->n_jobs * sizeof(Mfl__JobInfo *), "a list of jobs");
        kept.n_jobs = 0;
        for (size_t i = 0; i < list->n_jobs; i++)
                if (mfl_select_has(s, list->jobs[i]))
                        kept.jobs[kept.n_jobs++] = list->jobs[i];
        if (n && n < kept.n_jobs) {
                memmove(kept.jobs, kept.jobs + kept.n_jobs - n, n * sizeof(Mfl__JobInfo *));
                kept.n_jobs = n;
        }
        *ret_list = kept;
        return 0;
}
