/* SPDX-License-Identifier: Apache-2.0 */
/* A job's teams, for those who look at it. */
#include "server/views/teams_view.h"

struct mfl_teams {
        bool known;
        Mfl__JobTeams wire;
        Mfl__TeamTimes times;
        char last[MFL_REASON_BYTES];
        Mfl__JobTeam team[MFL_CREW_MAX], *pointers[MFL_CREW_MAX];
        Mfl__TeamMember member[MFL_CREW_MAX][MFL_GROUP_MAX], *members[MFL_CREW_MAX][MFL_GROUP_MAX];
};

/* Whether there is an i-th one. */
static bool add_team(struct mfl_teams *teams, const struct mfl_core *core, const char *job, uint32_t i)
{
        Mfl__JobTeam *team = teams->pointers[i] = &teams->team[i];
        const char *name;
        uint32_t ranks;
        bool wide;
        mfl__job_team__init(team);
        team->members = teams->members[i];
        while (!mfl_core_job_team(core, job, i, (uint32_t)team->n_members, &name, &ranks, &wide)) {
                team->wide = wide;
                Mfl__TeamMember *member = &teams->member[i][team->n_members];
                mfl__team_member__init(member);
                member->daemon = (char *)name;
                member->ranks = ranks;
                team->members[team->n_members++] = member;
        }
        return team->n_members > 0;
}

struct mfl_teams *mfl_teams_new(const struct mfl_server_job *job)
{
        struct mfl_teams *teams = mfl_calloc(1, sizeof *teams);
        const struct mfl_core *core = job->jobs->loop->core;
        if (!teams || !job->spec || !job->spec->parallel.grain)
                return teams;
        struct mfl_team_totals totals = mfl_server_job_teams(job);
        teams->known = true;
        mfl__job_teams__init(&teams->wire);
        mfl__team_times__init(&teams->times);
        teams->wire.formed = totals.formed;
        teams->wire.broken = totals.broken;
        teams->wire.taken = totals.taken;
        teams->wire.late = totals.late;
        teams->wire.unreached = totals.unreached;
        mfl_strcpy(teams->last, sizeof teams->last, totals.last);
        teams->wire.last = teams->last;
        teams->wire.times = &teams->times;
        teams->times.compute_us = totals.times.compute_us;
        teams->times.exchange_us = totals.times.exchange_us;
        teams->times.apply_us = totals.times.apply_us;
        teams->times.repeats = totals.times.repeats;
        teams->times.kept = totals.times.kept;
        teams->wire.at_work = teams->pointers;
        while (teams->wire.n_at_work < MFL_CREW_MAX &&
                add_team(teams, core, job->id, (uint32_t)teams->wire.n_at_work))
                teams->wire.n_at_work++;
        return teams;
}

Mfl__JobTeams *mfl_teams_wire(struct mfl_teams *teams)
{
        return teams->known ? &teams->wire : NULL;
}
