/* SPDX-License-Identifier: Apache-2.0 */
/* Who works for a job and what they do, for those who watch it. */
#include "server/daemons/daemon.h"
#include "server/views/crew_view.h"

struct mfl_crew {
        Mfl__Crew wire;
        Mfl__CrewMember member[MFL_CREW_MAX], *pointers[MFL_CREW_MAX];
        Mfl__Activity activity[MFL_CREW_MAX];
};

static int by_name(const void *a, const void *b)
{
        const struct mfl_core_crew_view *x = a, *y = b;
        return strcmp(x->info->name, y->info->name);
}

static void add_member(
        const struct mfl_sessions *sessions, struct mfl_crew *crew, const struct mfl_core_crew_view *view)
{
        size_t i = crew->wire.n_members++;
        mfl_assert(i < MFL_CREW_MAX && view->info);
        Mfl__CrewMember *member = crew->pointers[i] = &crew->member[i];
        const struct mfl_telemetry *told = mfl_daemon_telemetry(sessions, view->conn);
        mfl__crew_member__init(member);
        member->daemon = (char *)view->info->name;
        member->state = (char *)view->state;
        member->items_done = view->items_done;
        member->items_total = view->items_total;
        if (!told || !(told->known & MFL_TELEMETRY_ACTIVITY))
                return;
        mfl_wire_from_activity(&told->activity, &crew->activity[i]);
        member->activity = &crew->activity[i];
}

/* All of them by name; NULL: out of memory. */
static struct mfl_core_crew_view *list_views(const struct mfl_server_job *job, uint32_t *ret_n)
{
        const struct mfl_core *core = job->jobs->loop->core;
        struct mfl_core_crew_view *views = mfl_calloc(mfl_core_daemon_count(core), sizeof *views);
        uint32_t n = 0;
        while (views && !mfl_core_job_crew(core, job->id, n, &views[n]))
                n++;
        if (n)
                qsort(views, n, sizeof *views, by_name);
        *ret_n = n;
        return views;
}

struct mfl_crew *mfl_crew_new(const struct mfl_server_job *job, const struct mfl_sessions *sessions)
{
        uint32_t n;
        MFL_CLEANUP_FREE struct mfl_core_crew_view *views = list_views(job, &n);
        struct mfl_crew *crew = mfl_calloc(1, sizeof *crew);
        if (!views || !crew) {
                free(crew);
                return NULL;
        }
        mfl__crew__init(&crew->wire);
        crew->wire.members = crew->pointers;
        for (uint32_t i = 0; i < n && i < MFL_CREW_MAX; i++)
                add_member(sessions, crew, &views[i]);
        crew->wire.more = n - (uint32_t)crew->wire.n_members;
        return crew;
}

Mfl__Crew *mfl_crew_wire(struct mfl_crew *crew)
{
        return &crew->wire;
}
