/* SPDX-License-Identifier: Apache-2.0 */
/* What the simulator's daemons share on their node: published sums, combines, communicators. A
 * combine runs in steps of the virtual clock, so that anything can happen in the middle of it.
 */
#include "tests/sim/sim.h"

struct sim_result *sim_result(struct sim_daemon *d, uint64_t task)
{
        for (int i = 0; i < SIM_RESULTS; i++)
                if (d->result[i].used && d->result[i].task == task)
                        return &d->result[i];
        return NULL;
}

struct sim_daemon *sim_instance(struct sim *sim, uint64_t instance)
{
        for (uint32_t i = 0; i < sim->n_daemons; i++)
                if (sim->daemon[i].agent && sim->daemon[i].info.instance == instance)
                        return &sim->daemon[i];
        return NULL;
}

struct sim_result *sim_published(struct sim_daemon *d, uint64_t group)
{
        for (int i = 0; i < SIM_RESULTS; i++)
                if (d->result[i].used && d->result[i].published == group)
                        return &d->result[i];
        return NULL;
}

/* ---- what goes wrong just then ---- */

void sim_trap_at(struct sim *sim, enum sim_trap_step step, const struct mfl_group *group)
{
        if (sim->trap.step != step || !group->n_members)
                return;
        uint32_t rank = sim->trap.leader ? 0 : 1 + sim_below(sim, group->n_members - 1);
        struct sim_daemon *d = sim_instance(sim, group->members[rank]);
        sim->trap.step = SIM_TRAP_NONE;
        if (!d)
                return;
        struct sim_event *e = sim_at(sim, 0, SIM_TRAP);
        e->a = (uint32_t)(d - sim->daemon);
        e->b = sim->trap.what;
}

/* ---- publishing and adding ---- */

void sim_publish(struct sim *sim, uint32_t i, const struct mfl_agent_action *action)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct sim_result *result = sim_result(d, action->task_number);
        const struct mfl_group *group = &action->group;
        sim_check(sim, result && result->grouped && result->n_updates == 1,
                "daemon %s publishes what it can't", d->info.name);
        sim_check(sim, group->rank < group->n_members && group->members[group->rank] == d->info.instance,
                "daemon %s is not of the group that it publishes for", d->info.name);
        struct sim_result *other = sim_published(d, group->group);
        if (other)
                other->published = 0;
        result->published = group->group;
        sim_trap_at(sim, SIM_TRAP_PUBLISHED, group);
}

static struct sim_event *later(struct sim *sim, uint32_t i, uint64_t delay, enum sim_event_kind kind)
{
        struct sim_event *e = sim_at(sim, delay, kind);
        e->a = i;
        e->b = sim->daemon[i].generation;
        return e;
}

void sim_combine(struct sim *sim, uint32_t i, const struct mfl_agent_action *action)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct sim_result *result = sim_result(d, action->task_number);
        const struct mfl_group *group = &action->group;
        sim_check(sim, result && result->published == group->group,
                "daemon %s combines what it has not published", d->info.name);
        sim_check(sim, result->combine.state == SIM_COMBINE_NONE, "daemon %s combines twice", d->info.name);
        sim_check(sim, action->ranks >> group->rank & action->ranks >> action->leader & 1,
                "daemon %s combines without itself or its leader", d->info.name);
        struct sim_combine *c = &result->combine;
        *c = (struct sim_combine){.state = SIM_COMBINE_RUNS,
                .serial = ++sim->serial,
                .group = *group,
                .ranks = action->ranks,
                .leader = action->leader,
                .deadline = sim->now + action->deadline_ms,
                .fails = d->combine_fail > 0,
                .hangs = d->combine_hang > 0,
                .sleeps = d->combine_hang > 1};
        d->combine_fail -= c->fails;
        d->combine_hang = 0;
        later(sim, i, sim->scenario ? 2 : 1 + sim_below(sim, 20), SIM_COMBINE)->task = c->serial;
        sim_trap_at(sim, SIM_TRAP_COMBINE, group);
}

void sim_combine_stop(struct sim *sim, uint32_t i, const struct mfl_agent_action *action)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct sim_result *result = sim_result(d, action->task_number);
        sim_check(sim,
                result && (result->combine.state == SIM_COMBINE_RUNS ||
                                  result->combine.state == SIM_COMBINE_DONE),
                "daemon %s stops a combine that is not there", d->info.name);
        struct sim_combine *c = &result->combine;
        bool runs = c->state == SIM_COMBINE_RUNS;
        c->state = runs ? SIM_COMBINE_STOPS : SIM_COMBINE_NONE;
        c->serial = ++sim->serial;
        if (runs)
                later(sim, i, 1 + sim_below(sim, 20), SIM_COMBINE)->task = c->serial;
}

/* An NCCL communicator that was used and not brought to the end is aborted, and of no more use. */
static void break_communicator(struct sim *sim, uint32_t i, const struct sim_combine *c)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (c->group.collective != MFL_COLLECTIVE_NCCL || c->group.communicator != d->communicator ||
                !d->communicator_open)
                return;
        d->communicator_open = false;
        struct mfl_agent_event event = {
                .kind = MFL_AGENT_EV_COMMUNICATOR, .communicator = d->communicator, .reason = "aborted"};
        sim_self(sim, i, 0, &event);
}

static void end_combine(struct sim *sim, uint32_t i, struct sim_result *result, const char *reason)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_COMBINED, .task = result->task, .ok = !reason};
        if (reason) {
                mfl_strcpy(event.reason, sizeof event.reason, reason);
                break_communicator(sim, i, &result->combine);
        }
        bool failed = reason && result->combine.state == SIM_COMBINE_RUNS && mfl_agent_online(d->agent);
        uint32_t n = d->n_combine_failed;
        result->combine.state = reason ? SIM_COMBINE_NONE : SIM_COMBINE_DONE;
        sim_daemon_step(sim, i, &event);
        sim_check(sim, !failed || d->n_combine_failed > n,
                "daemon %s keeps it to itself that it can't combine", d->info.name);
}

static const struct sim_combine *combine_of(struct sim_daemon *d, uint64_t group)
{
        for (int i = 0; i < SIM_RESULTS; i++) {
                const struct sim_combine *c = &d->result[i].combine;
                if (d->result[i].used && c->group.group == group &&
                        (c->state == SIM_COMBINE_RUNS || c->state == SIM_COMBINE_DONE))
                        return c;
        }
        return NULL;
}

/* NCCL: every rank has called, and lives. */
static bool all_called(struct sim *sim, const struct sim_combine *c)
{
        for (uint32_t r = 0; r < c->group.n_members; r++) {
                if (!(c->ranks >> r & 1))
                        continue;
                struct sim_daemon *d = sim_instance(sim, c->group.members[r]);
                if (!d || !d->communicator_open || d->communicator != c->group.communicator)
                        return false;
                const struct sim_combine *theirs = combine_of(d, c->group.group);
                if (!theirs || theirs->ranks != c->ranks || theirs->leader != c->leader)
                        return false;
        }
        return true;
}

/* Every member's sum as it lies there now; the leader's maps are its own from here on. */
static bool read_sums(struct sim *sim, struct sim_combine *c)
{
        memset(c->sum, 0, sizeof c->sum);
        for (uint32_t r = 0; r < c->group.n_members; r++) {
                if (!(c->ranks >> r & 1))
                        continue;
                struct sim_daemon *d = sim_instance(sim, c->group.members[r]);
                struct sim_result *result = d ? sim_published(d, c->group.group) : NULL;
                if (!result)
                        return false;
                for (int k = 0; k < SIM_PARAMS; k++)
                        c->sum[k] = (int64_t)((uint64_t)c->sum[k] + ((uint64_t *)result->data[0])[k]);
        }
        return true;
}

static void send_part(struct sim *sim, uint32_t i, struct sim_result *result, uint32_t part)
{
        struct sim_combine *c = &result->combine;
        c->wanted[part] = false;
        sim_send_chunk(sim, i, c->group.group, 0, part * 8, &c->sum[part]);
        if (part == SIM_PARAMS / 2)
                sim_trap_at(sim, SIM_TRAP_UPLOAD, &c->group);
}

void sim_combine_step(struct sim *sim, uint32_t i, uint64_t serial)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct sim_result *result = NULL;
        for (int k = 0; k < SIM_RESULTS && !result; k++)
                if (d->result[k].used && d->result[k].combine.serial == serial)
                        result = &d->result[k];
        if (!result || result->combine.state == SIM_COMBINE_NONE)
                return;
        struct sim_combine *c = &result->combine;
        bool nccl = c->group.collective == MFL_COLLECTIVE_NCCL, leads = c->leader == c->group.rank;
        uint64_t wait = sim->scenario ? 2 : 1 + sim_below(sim, 8);
        if (c->sleeps && c->state == SIM_COMBINE_RUNS)
                return; /* its thread hangs */
        if (c->state == SIM_COMBINE_STOPS) {
                end_combine(sim, i, result, "it was given up");
                return;
        }
        if (sim->now >= c->deadline || c->fails) {
                end_combine(sim, i, result, c->fails ? "the collective failed" : "it took too long");
                return;
        }
        if (c->hangs || (nccl && !c->open && !all_called(sim, c))) {
                wait = c->hangs ? c->deadline - sim->now : MFL_MIN(c->deadline - sim->now, 5u);
        } else if (!c->open) {
                c->open = true;
                if (leads && !read_sums(sim, c)) {
                        end_combine(sim, i, result, "a member's sum is not there");
                        return;
                }
        } else if (nccl && leads && !all_called(sim, c)) {
                wait = c->deadline - sim->now; /* NCCL itself won't notice */
        } else if (leads && c->n_ready < SIM_PARAMS) {
                c->n_ready++;
                if (c->wanted[c->n_ready - 1])
                        send_part(sim, i, result, c->n_ready - 1);
        }
        if (c->open && (!leads || c->n_ready == SIM_PARAMS)) {
                end_combine(sim, i, result, NULL);
                return;
        }
        later(sim, i, wait, SIM_COMBINE)->task = serial;
}

void sim_upload_sum(struct sim *sim, uint32_t i, const struct mfl_agent_action *action)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct sim_result *result = sim_result(d, action->task_number);
        struct sim_combine *c = result ? &result->combine : NULL;
        sim_check(sim,
                c && (c->state == SIM_COMBINE_RUNS || c->state == SIM_COMBINE_DONE) &&
                        c->leader == c->group.rank && c->group.group == action->wire_task,
                "daemon %s uploads a sum that it does not make", d->info.name);
        for (uint32_t r = 0; r < action->n_ranges; r++)
                for (uint64_t at = action->ranges[r].offset;
                        at < action->ranges[r].offset + action->ranges[r].bytes; at += 8) {
                        c->wanted[at / 8] = true;
                        if (at / 8 < c->n_ready)
                                send_part(sim, i, result, (uint32_t)(at / 8));
                }
}

/* ---- communicators ---- */

void sim_communicator(struct sim *sim, uint32_t i, const struct mfl_agent_action *action)
{
        struct sim_daemon *d = &sim->daemon[i];
        const struct mfl_group *group = &action->group;
        sim_check(sim, action->make == (group->rank == 0) && group->collective == MFL_COLLECTIVE_NCCL,
                "daemon %s opens a communicator that is not its own", d->info.name);
        d->communicator = group->communicator;
        d->communicator_open = true;
        if (!action->make) {
                sim_check(sim, memcmp(action->communicator_id, &group->communicator, 8) == 0,
                        "daemon %s joins another communicator than its group's", d->info.name);
                return;
        }
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_COMMUNICATOR,
                .communicator = group->communicator,
                .ok = !sim_chance(sim, sim->quiet ? 0 : 10),
                .reason = "no transport"};
        memcpy(event.communicator_id, &group->communicator, 8);
        d->communicator_open = event.ok;
        sim_self(sim, i, 1 + sim_below(sim, 60), &event);
}
