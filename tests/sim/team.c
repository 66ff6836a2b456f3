/* SPDX-License-Identifier: Apache-2.0 */
/* Teams of daemons: their members meet, the leader trains, and whoever loses another says so. What they compute together is
 * what one computes alone, so only who is there matters here. */
#include "tests/sim/sim.h"

#include "proto/version.h"

#define LATE_MS 4000 /* a member that stands still for longer is late, in half of the seeds */

/* The members that are at work on that team now. */
static bool works_on(const struct sim_daemon *d, uint64_t team)
{
        return d && d->agent && d->computing && d->computing->team.team == team && !d->abort;
}

static void computed_soon(struct sim *sim, struct sim_daemon *d)
{
        struct sim_event *e = sim_at(sim, 1 + sim->serial % 5, SIM_COMPUTED);
        e->a = (uint32_t)(d - sim->daemon);
        e->b = d->generation;
        e->task = d->computing_task;
}

/* A firewall that lets only one of the two through, in a third of the seeds. */
static bool is_walled(const struct sim *sim, const struct sim_daemon *a, const struct sim_daemon *b)
{
        uint32_t i = (uint32_t)(a - sim->daemon), k = (uint32_t)(b - sim->daemon);
        return sim->seed / 8 % 3 == 1 && (i + k + sim->seed / 24) % 3 == 0;
}

/* The leader's group ends with its team, and the wall stays when all faults are over. */
static void excuse_group(struct sim *sim, const struct mfl_task_team *team)
{
        const struct sim_daemon *leader = sim_instance(sim, team->members[0]);
        struct sim_group *group = sim_ledger_group_of(sim, leader->computing->task);
        if (group)
                group->calm = false;
}

/* The member that can't reach another says so; the others wait on. */
static bool meets_a_wall(struct sim *sim, const struct mfl_task_team *team)
{
        for (uint32_t m = 0; team->peers && m < team->n_members; m++)
                for (uint32_t k = 0; k < m; k++) {
                        struct sim_daemon *d = sim_instance(sim, team->members[m]);
                        if (!is_walled(sim, d, sim_instance(sim, team->members[k])))
                                continue;
                        d->team_state = SIM_TEAM_BROKEN;
                        d->accused = k + 1;
                        sim->n_teams_walled++;
                        excuse_group(sim, team);
                        computed_soon(sim, d);
                        return true;
                }
        return false;
}

bool sim_team_join(struct sim *sim, uint32_t i)
{
        struct sim_daemon *d = &sim->daemon[i];
        const struct mfl_task_team *team = &d->computing->team;
        d->team_state = SIM_TEAM_WAITS;
        for (uint32_t m = 0; m < team->n_members; m++) {
                struct sim_daemon *other = sim_instance(sim, team->members[m]);
                if (!works_on(other, team->team) || other->team_state != SIM_TEAM_WAITS)
                        return false;
        }
        if (meets_a_wall(sim, team))
                return false;
        for (uint32_t m = 0; m < team->n_members; m++) {
                struct sim_daemon *other = sim_instance(sim, team->members[m]);
                sim_check(sim,
                        other->computing->n_items == d->computing->n_items &&
                                other->computing->round == d->computing->round &&
                                memcmp(other->computing->items, d->computing->items,
                                        d->computing->n_items * sizeof *d->computing->items) == 0,
                        "daemons %s and %s train other clients in one team", other->info.name, d->info.name);
                other->team_state = SIM_TEAM_MET;
        }
        sim->n_teams++;
        sim->n_teams_wide += team->peers != NULL;
        return true;
}

void sim_team_end(struct sim *sim, const struct mfl_task_team *team, bool done, uint32_t accused)
{
        for (uint32_t m = 0; m < team->n_members; m++) {
                struct sim_daemon *d = sim_instance(sim, team->members[m]);
                if (m == team->member || !works_on(d, team->team) || d->team_state != SIM_TEAM_MET)
                        continue;
                d->team_state = done ? SIM_TEAM_DONE : SIM_TEAM_BROKEN;
                d->accused = accused;
                sim->n_teams_broken += !done;
                computed_soon(sim, d);
        }
}

/* The end of the leader's training is due. Who stands still delays it, or is accused. */
bool sim_team_ready(struct sim *sim, uint32_t i)
{
        struct sim_daemon *d = &sim->daemon[i];
        const struct mfl_task_team *team = &d->computing->team;
        if (d->abort || d->fail || d->team_state == SIM_TEAM_DONE || d->team_state == SIM_TEAM_BROKEN)
                return true;
        if (d->team_state == SIM_TEAM_WAITS || team->member)
                return false; /* left over from what was due before */
        for (uint32_t m = 1; m < team->n_members; m++) {
                struct sim_daemon *other = sim_instance(sim, team->members[m]);
                if (!other || other->stalled_to <= sim->now)
                        continue;
                if (sim->seed % 2 && other->stalled_to > sim->now + LATE_MS) {
                        d->team_state = SIM_TEAM_BROKEN;
                        d->accused = m + 1;
                        return true;
                }
                struct sim_event *e = sim_at(sim, other->stalled_to - sim->now + 1, SIM_COMPUTED);
                e->a = i;
                e->b = d->generation;
                e->task = d->computing_task;
                return false;
        }
        return true;
}

void sim_team_regroup(struct sim *sim, uint32_t i, uint64_t task)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (!d->computing || d->computing_task != task || d->team_state != SIM_TEAM_WAITS)
                return;
        d->team_state = SIM_TEAM_BROKEN;
        d->accused = 0;
        computed_soon(sim, d);
}

void sim_team_sent(struct sim *sim, const struct sim_daemon *to, const struct mfl_task *t)
{
        const struct mfl_task_team *team = &t->team;
        const struct sim_daemon *named = sim_instance(sim, team->members[team->member]);
        /* Its process may have ended on the way. */
        sim_check(sim, team->n_members >= 2 && (!named || named == to),
                "daemon %s is told that it is member %u of a team, which is daemon %s", to->info.name,
                team->member, named->info.name);
        sim_check(sim, (t->kind == MFL_TASK_ASSIST) == (team->member > 0),
                "a team's task is of the wrong kind");
        for (uint32_t m = 0; m < team->n_members; m++)
                for (uint32_t k = 0; k < m; k++) {
                        struct sim_daemon *a = sim_instance(sim, team->members[m]);
                        struct sim_daemon *b = sim_instance(sim, team->members[k]);
                        bool wide = team->peers && a && b && *a->info.peer && *b->info.peer;
                        sim_check(sim,
                                !a || !b || (a != b && (wide || sim_reaches(&a->info, &b->info, false))),
                                "daemons %s and %s are in one team", a->info.name, b->info.name);
                        sim_check(sim, !a || !team->peers || !strcmp(team->peers[m], a->info.peer),
                                "daemon %s is not at %s", a->info.name, team->peers[m]);
                        sim_check(sim, !a || a->info.protocol >= MFL_PROTOCOL_SHARDS,
                                "daemon %s knows no teams", a->info.name);
                }
}
