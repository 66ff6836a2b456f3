/* SPDX-License-Identifier: Apache-2.0 */
/* What the simulator knows of who has which clients, so that it can say what must be in a round's sum. */
#include "tests/sim/sim.h"

#include "proto/version.h"

/* ---- updates ---- */

static struct sim_update *new_update(struct sim *sim, uint64_t task, uint32_t number)
{
        if (sim->n_updates == sim->updates_capacity) {
                sim->updates_capacity = sim->updates_capacity ? sim->updates_capacity * 2 : 64;
                sim->updates = realloc(sim->updates, sim->updates_capacity * sizeof *sim->updates);
        }
        struct sim_update *u = &sim->updates[sim->n_updates++];
        *u = (struct sim_update){.task = task, .update = number};
        return u;
}

static const struct sim_update *find_update(struct sim *sim, uint64_t task, uint32_t number)
{
        for (uint32_t i = sim->n_updates; i-- > 0;)
                if (sim->updates[i].task == task && sim->updates[i].update == number)
                        return &sim->updates[i];
        sim_fail(sim, "a slot for update %u of task %u that nobody announced", number, (uint32_t)task);
}

static void remember_task(struct sim *sim, const struct mfl_task *t)
{
        sim_check(sim, t->n_items && t->n_items <= SIM_ITEMS, "a task of %u items", t->n_items);
        struct sim_update *u = new_update(sim, t->task, UINT32_MAX);
        u->n = t->n_items;
        u->round = t->round;
        memcpy(u->item, t->items, t->n_items * sizeof *t->items);
}

static void remember_rejected(struct sim *sim, const struct mfl_announce *a)
{
        struct sim_job *job = sim_job(sim, a->job);
        for (uint32_t r = 0; r < a->n_rejected && job->n_rejected < SIM_ITEMS; r++) {
                job->rejected[job->n_rejected].client = a->rejected[r].item;
                job->rejected[job->n_rejected++].round = a->round;
        }
}

void sim_ledger_announced(struct sim *sim, const struct mfl_announce *a)
{
        uint32_t i = sim->n_updates;
        while (i > 0 && (sim->updates[i - 1].task != a->task || sim->updates[i - 1].update != UINT32_MAX))
                i--;
        if (!i || a->item_first + a->item_count > sim->updates[i - 1].n)
                return;
        remember_rejected(sim, a);
        struct sim_update *u = new_update(sim, a->task, a->update);
        const struct sim_update *task = &sim->updates[i - 1];
        u->round = task->round;
        for (uint32_t k = a->item_first, r = 0; k < a->item_first + a->item_count; k++) {
                if (r < a->n_rejected && a->rejected[r].item == task->item[k])
                        r++;
                else
                        u->item[u->n++] = task->item[k];
        }
}

/* ---- groups ---- */

struct sim_group *sim_ledger_group(struct sim *sim, uint64_t number)
{
        for (uint32_t i = sim->n_groups; i-- > 0;)
                if (sim->groups[i].number == number)
                        return &sim->groups[i];
        return NULL;
}

struct sim_group *sim_ledger_group_of(struct sim *sim, uint64_t task)
{
        for (uint32_t i = sim->n_groups; i-- > 0;)
                for (uint32_t r = 0; r < sim->groups[i].group.n_members; r++)
                        if (sim->groups[i].task[r] == task)
                                return &sim->groups[i];
        return NULL;
}

bool sim_reaches(const struct mfl_daemon_info *a, const struct mfl_daemon_info *b, bool nccl)
{
        const struct mfl_reach *x = &a->reach, *y = &b->reach;
        bool node = strcmp(a->node, b->node) == 0 && a->has_reach && b->has_reach && x->user == y->user &&
                    x->network_space == y->network_space && x->memory_space == y->memory_space &&
                    x->memory_space;
        bool cards = x->nccl && x->nccl == y->nccl && strcmp(a->device_uuid, b->device_uuid) != 0;
        return node && (!nccl || cards);
}

/* The same one of those at the server. */
/* Daemons of an earlier release make no sums. */
static bool shares_relay(const struct sim_daemon *a, const struct sim_daemon *b)
{
        size_t n = strcspn(a->info.relay, "/");
        return n && MFL_MIN(a->info.protocol, b->info.protocol) >= MFL_PROTOCOL_RELAYS &&
               n == strcspn(b->info.relay, "/") && !memcmp(a->info.relay, b->info.relay, n);
}

static void check_group(struct sim *sim, const struct mfl_group *g)
{
        for (uint32_t r = 0; r < g->n_members; r++)
                for (uint32_t q = 0; q < r; q++) {
                        struct sim_daemon *a = sim_instance(sim, g->members[r]);
                        struct sim_daemon *b = sim_instance(sim, g->members[q]);
                        if (g->collective == MFL_COLLECTIVE_RELAY) {
                                sim_check(sim, !a || !b || (a != b && shares_relay(a, b)),
                                        "daemons %s and %s are grouped", a->info.name, b->info.name);
                                continue;
                        }
                        sim_check(sim,
                                !a || !b ||
                                        (a != b && sim_reaches(&a->info, &b->info,
                                                           g->collective == MFL_COLLECTIVE_NCCL)),
                                "daemons %s and %s are grouped", a->info.name, b->info.name);
                }
}

/* Faults are no excuse any more; and nobody holds a result of an earlier start of the server, which may be of
 * a kind that a group can't add. */
static bool is_calm(const struct sim *sim)
{
        for (uint32_t i = 0; i < sim->n_daemons; i++)
                for (int k = 0; k < SIM_RESULTS; k++) {
                        const struct sim_result *result = &sim->daemon[i].result[k];
                        if (result->used && result->n_updates && result->task >> 32 != sim->boot)
                                return false;
                }
        return sim->quiet && !sim->scenario && sim->now >= sim->calm_at;
}

static void remember_group(struct sim *sim, const struct mfl_task *t)
{
        const struct mfl_group *g = &t->group;
        struct sim_group *group = sim_ledger_group(sim, g->group);
        sim_check(sim, g->n_members >= 2 && g->n_members <= sim->n_daemons && g->rank < g->n_members,
                "a group of %u daemons", g->n_members);
        if (!group) {
                check_group(sim, g);
                if (sim->n_groups == sim->groups_capacity) {
                        sim->groups_capacity = sim->groups_capacity ? sim->groups_capacity * 2 : 16;
                        sim->groups = realloc(sim->groups, sim->groups_capacity * sizeof *sim->groups);
                }
                group = &sim->groups[sim->n_groups++];
                *group = (struct sim_group){.number = g->group, .group = *g, .calm = is_calm(sim)};
        }
        sim_check(sim,
                memcmp(group->group.members, g->members, sizeof g->members) == 0 &&
                        group->group.collective == g->collective,
                "group %u is told its members differently", (uint32_t)g->group);
        sim_check(sim, !group->task[g->rank] || group->task[g->rank] == t->task,
                "group %u has two tasks of rank %u", (uint32_t)g->group, g->rank);
        group->task[g->rank] = t->task;
}

static void check_fetcher(struct sim *sim, const struct sim_daemon *d, uint64_t from)
{
        struct sim_daemon *fetcher = from ? sim_instance(sim, from) : NULL;
        sim_check(sim, !fetcher || !d->agent || fetcher == d || sim_reaches(&fetcher->info, &d->info, false),
                "daemon %s is told to read the params of %s", d->info.name, fetcher->info.name);
}

void sim_ledger_sent(struct sim *sim, uint32_t conn, const struct mfl_msg *msg)
{
        struct sim_daemon *d = &sim->daemon[sim->conns[conn - 1].daemon];
        struct sim_group *group;
        switch (msg->kind) {
        case MFL_MSG_TASK:
                remember_task(sim, &msg->task);
                check_fetcher(sim, d, msg->task.params_from);
                d->told_from = msg->task.params_from;
                d->told_conn = conn;
                d->told_calm = is_calm(sim);
                memcpy(d->told_digest, msg->task.params_digest, MFL_DIGEST_BYTES);
                if (msg->task.group.group)
                        remember_group(sim, &msg->task);
                if (msg->task.team.team)
                        sim_team_sent(sim, d, &msg->task);
                break;
        case MFL_MSG_RECALL:
                sim_check(sim, d->info.protocol >= MFL_PROTOCOL_RECALL, "daemon %s knows no Recall",
                        d->info.name);
                break;
        case MFL_MSG_COMBINE:
                group = sim_ledger_group(sim, msg->combine.group);
                sim_check(sim, group && (!group->ranks || group->ranks == msg->combine.ranks),
                        "group %u is combined in two ways", (uint32_t)msg->combine.group);
                group->ranks = msg->combine.ranks;
                break;
        case MFL_MSG_ALONE:
                group = sim_ledger_group_of(sim, msg->cancel.task);
                if (!group || group->counted)
                        break;
                sim_check(sim, !group->calm, "group %u ends without a fault: %s", (uint32_t)group->number,
                        msg->cancel.reason);
                group->ended = true;
                break;
        default:;
        }
}

/* While nothing goes wrong, params come to a node once. After a new start of the server the one that is to
 * fetch them may have the result already. A download that stands still is asked for again. A wait that began before the
 * calm may end in it: it takes up to 5 s. */
void sim_ledger_fetched(struct sim *sim, uint32_t conn, const uint8_t *digest)
{
        struct sim_daemon *d = &sim->daemon[sim->conns[conn - 1].daemon];
        bool again = d->asked_conn == conn && memcmp(d->asked_digest, digest, MFL_DIGEST_BYTES) == 0;
        bool other = d->told_from && d->told_from != d->info.instance && d->told_conn == conn && !again &&
                     d->told_calm && memcmp(d->told_digest, digest, MFL_DIGEST_BYTES) == 0;
        d->asked_conn = conn;
        memcpy(d->asked_digest, digest, MFL_DIGEST_BYTES);
        sim_check(sim, !other || sim->n_starts > 1 || !is_calm(sim),
                "daemon %s fetches params that another one fetches for it", d->info.name);
}

/* ---- what is dealt ---- */

struct deal {
        const struct mfl_task *task[SIM_DAEMONS]; /* the only one of this daemon in this dealing */
        uint32_t n[SIM_DAEMONS];
};

static bool was_sent(const struct sim *sim, uint64_t task)
{
        for (uint32_t i = 0; i < sim->n_updates; i++)
                if (sim->updates[i].task == task)
                        return true;
        return false;
}

static void find_dealt(
        const struct sim *sim, const struct mfl_core_actions *actions, const char *job, struct deal *deal)
{
        for (uint32_t k = 0; k < actions->n; k++) {
                const struct mfl_core_action *action = &actions->v[k];
                const struct mfl_task *t = &action->msg.task;
                if (action->kind != MFL_ACT_SEND || action->msg.kind != MFL_MSG_TASK ||
                        t->kind != MFL_TASK_TRAIN || strcmp(t->job, job) != 0 || was_sent(sim, t->task))
                        continue;
                uint32_t i = sim->conns[action->conn - 1].daemon;
                deal->task[i] = t;
                deal->n[i]++;
        }
}

/* Whoever can add with another one that was dealt to at the same time has a group with it. */
static void check_deal(struct sim *sim, const struct deal *deal)
{
        bool together = false;
        for (uint32_t i = 0; i < sim->n_daemons; i++)
                for (uint32_t k = 0; k < i; k++) {
                        const struct sim_daemon *a = &sim->daemon[i], *b = &sim->daemon[k];
                        const bool reach = a->relay || b->relay ? shares_relay(a, b)
                                                                : sim_reaches(&a->info, &b->info, false);
                        if (deal->n[i] != 1 || deal->n[k] != 1 || !reach)
                                continue;
                        uint64_t group = deal->task[i]->group.group;
                        sim_check(sim, group && group == deal->task[k]->group.group,
                                "daemons %s and %s share a node or a relay and train without each other",
                                a->info.name, b->info.name);
                        together = true;
                }
        sim->n_regrouped += together && is_calm(sim);
}

/* A task's clients start from one version, or from one region's params, and it is in no group: a daemon has a task for each. */
static void check_bases(struct sim *sim, const struct sim_job *job, const struct deal *deal)
{
        uint8_t digest[MFL_DIGEST_BYTES];
        for (uint32_t i = 0; i < sim->n_daemons; i++) {
                const struct mfl_task *t = deal->task[i];
                for (uint32_t k = 0; t && k < t->n_items; k++) {
                        bool live = mfl_job_is_live(&job->spec);
                        uint32_t base = live ? t->round - 1 : sim_base(job, t->round, t->items[k]);
                        sim_digest(mfl_job_has_regions(&job->spec) ? sim_regions_start(job, t->items[k])
                                                                   : job->version[base],
                                digest);
                        sim_check(sim,
                                t->staleness == t->round - 1 - base && !t->group.group &&
                                        memcmp(digest, t->params_digest, sizeof digest) == 0,
                                "client %u starts from another version than %u in round %u of %s",
                                (uint32_t)t->items[k], base, t->round, job->id);
                }
        }
}

void sim_ledger_dealt(struct sim *sim, const struct mfl_core_actions *actions)
{
        for (uint32_t j = 0; j < sim->n_jobs; j++) {
                struct deal deal = {0};
                find_dealt(sim, actions, sim->job[j].id, &deal);
                if (mfl_job_is_async(&sim->job[j].spec) || mfl_job_has_regions(&sim->job[j].spec))
                        check_bases(sim, &sim->job[j], &deal);
                else if (!sim_single(&sim->job[j].spec))
                        check_deal(sim, &deal);
        }
}

/* ---- what is counted ---- */

/* The clients of a slot: of one update, or of those of a group's members that were combined. */
static uint32_t clients_of(struct sim *sim, const struct sim_slot *slot, uint64_t items[SIM_ITEMS])
{
        struct sim_group *group = sim_ledger_group(sim, slot->task);
        uint32_t n = 0;
        sim_check(
                sim, !group || group->ranks, "group %u counts before it was combined", (uint32_t)slot->task);
        for (uint32_t r = 0; r < (group ? group->group.n_members : 1); r++) {
                if (group && !(group->ranks >> r & 1))
                        continue;
                const struct sim_update *update =
                        find_update(sim, group ? group->task[r] : slot->task, group ? 0 : slot->update);
                sim_check(sim, n + update->n <= SIM_ITEMS, "too many clients");
                memcpy(items + n, update->item, update->n * sizeof *items);
                n += update->n;
        }
        return n;
}

/* What lies in the members' memories now, as far as all of them live, is what was uploaded. */
static void check_published(struct sim *sim, struct sim_group *group, const struct sim_slot *slot)
{
        uint64_t sum[SIM_PARAMS] = {0};
        for (uint32_t r = 0; r < group->group.n_members; r++) {
                if (!(group->ranks >> r & 1))
                        continue;
                struct sim_daemon *d = sim_instance(sim, group->group.members[r]);
                struct sim_result *result = d ? sim_published(d, group->number) : NULL;
                if (!result)
                        return;
                for (int k = 0; k < SIM_PARAMS; k++)
                        sum[k] += ((uint64_t *)result->data[0])[k];
        }
        sim_check(sim, memcmp(sum, slot->data, sizeof sum) == 0,
                "what group %u uploaded is not the sum of what it published", (uint32_t)group->number);
}

/* Each update that goes into the sum is checked against a fresh computation: right bytes, right params, each
 * client once. */
void sim_ledger_count(struct sim *sim, struct sim_job *job, const struct sim_slot *slot)
{
        struct sim_group *group = sim_ledger_group(sim, slot->task);
        const float *newest = job->has_new ? job->params_new : job->params;
        int64_t sum[SIM_PARAMS] = {0}, scalar = 0;
        float p1[SIM_PARAMS];
        uint64_t weight = 0, items[SIM_ITEMS];
        uint32_t n = clients_of(sim, slot, items);
        for (uint32_t k = 0; k < n; k++) {
                for (uint32_t i = 0; i < job->n_in; i++)
                        sim_check(sim, job->in[i] != items[k], "client %llu counts twice in round %u of %s",
                                (unsigned long long)items[k], job->opened, job->id);
                sim_check(sim, job->n_in < SIM_ITEMS, "too many clients");
                job->in[job->n_in] = items[k];
                bool live = mfl_job_is_live(&job->spec); /* it is not written yet */
                uint32_t round = live ? find_update(sim, slot->task, slot->update)->round : job->opened;
                uint32_t base = live ? round - 1 : sim_base(job, round, items[k]);
                uint32_t staleness = job->opened - 1 - base;
                const float *p0 = mfl_job_has_regions(&job->spec) ? sim_regions_start(job, items[k])
                                  : staleness                     ? job->version[base]
                                                                  : newest;
                sim_train(items[k], round, p0, p1);
                for (int i = 0; i < SIM_PARAMS; i++)
                        job->single[job->n_in][i] = p1[i] - p0[i];
                job->n_in++;
                weight += sim_weight(&job->spec, items[k]);
                sim_fold(&job->spec, &job->fixed, items[k], staleness, p1, p0, sum, &scalar);
        }
        sim_check(sim, weight == slot->weight, "weight %llu announced, %llu are its clients'",
                (unsigned long long)slot->weight, (unsigned long long)weight);
        if (slot->encoding == MFL_ENCODING_I64)
                sim_check(sim, memcmp(sum, slot->data, sizeof sum) == 0,
                        "the bytes of task %u are not those of its training", (uint32_t)slot->task);
        else
                sim_check(sim,
                        memcmp(job->single[job->n_in - 1], slot->data, SIM_PARAMS * sizeof(float)) == 0,
                        "the bytes of a single update are wrong");
        job->weight_in += weight;
        if (!group)
                return;
        check_published(sim, group, slot);
        group->counted = true;
}
