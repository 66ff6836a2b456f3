/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a team. */
#include "server/work/core_team.h"

#include "common/base/digest.h"
#include "server/work/core_group.h"
#include "server/work/core_reclaim.h"

#define TEAM_FAILS_MAX 4
#define TEAM_REST_ROUNDS 16
#define WIDE_FAILS_MAX 4u /* further ones count as this many */

/* ---- forming ---- */

static struct core_task *give(struct mfl_core *core, struct core_job *job, struct core_daemon *daemon)
{
        struct core_task *task = mfl_core_task_new(core, daemon, 0);
        if (!task) {
                core->error = -ENOMEM;
                return NULL;
        }
        task->job = job;
        task->kind = MFL_TASK_ASSIST;
        task->unmeasured = true;
        task->job_next = job->tasks;
        job->tasks = task;
        return task;
}

static void tell(struct mfl_core *core, const struct core_team *team)
{
        char names[MFL_REASON_BYTES] = "";
        size_t n = 0;
        for (uint32_t i = 1; i < team->n_members && n < sizeof names - MFL_NAME_BYTES - 8; i++)
                n += (size_t)mfl_snprintf(names + n, sizeof names - n, "%s%s",
                        i == 1                     ? ""
                        : i + 1 == team->n_members ? " and "
                                                   : ", ",
                        team->member[i].task->daemon->info.name);
        mfl_core_trace(core, team->job, "round %u: daemon %s leads a team with %s%s", team->job->round,
                team->member[0].task->daemon->info.name, names, team->wide ? " over the network" : "");
}

/* Who knows one team's key learns nothing of another's. */
static int make_key(const struct mfl_core *core, struct core_team *team)
{
        uint8_t text[MFL_TEAM_KEY_BYTES + sizeof team->number];
        memcpy(text, core->options.secret, MFL_TEAM_KEY_BYTES);
        memcpy(text + MFL_TEAM_KEY_BYTES, &team->number, sizeof team->number);
        return mfl_sha256(text, sizeof text, team->key, NULL);
}

void mfl_core_team_form(
        struct mfl_core *core, struct core_task *task, const struct core_team_member *v, uint32_t n)
{
        struct core_job *job = task->job;
        mfl_assert(n >= 2 && n <= MFL_GROUP_MAX && v[0].daemon == task->daemon && !task->team);
        struct core_team *team = mfl_calloc(1, sizeof *team + n * sizeof team->member[0]);
        if (!team) {
                core->error = -ENOMEM;
                return;
        }
        /* Several servers may have daemons on one host, where teams meet. */
        team->number =
                (mfl_core_number(core) * 0x9e3779b97f4a7c15u ^ core->options.server_instance) & INT64_MAX;
        team->number += !team->number;
        team->job = job;
        for (uint32_t i = 1; i < n; i++)
                team->wide |= v[i].daemon->node != v[0].daemon->node;
        if (team->wide && make_key(core, team))
                core->error = -ENOMEM;
        for (uint32_t i = 0; i < n && !core->error; i++) {
                struct core_task *own = i ? give(core, job, v[i].daemon) : task;
                if (!own)
                        break;
                team->member[i].task = own;
                team->member[i].instance = v[i].daemon->info.instance;
                team->member[i].width = v[i].width;
                team->n_members = i + 1;
                own->team = team;
                own->member = i;
        }
        task->unmeasured = true; /* the team's time says nothing about the daemon's */
        team->next = job->teams;
        job->teams = team;
        job->team_totals.formed++;
        if (!core->error)
                tell(core, team);
}

bool mfl_core_team_wanted(const struct core_job *job)
{
        return job->needs_teams || job->spec->parallel.members_min > 1 || job->round >= job->team_round;
}

int mfl_core_team_describe(const struct core_task *task, struct mfl_task_team *ret_team)
{
        const struct core_team *team = task->team;
        char(*peers)[MFL_PEER_BYTES] = team->wide ? mfl_calloc(team->n_members, sizeof *peers) : NULL;
        if (team->wide && !peers)
                return -ENOMEM;
        *ret_team = (struct mfl_task_team){
                .team = team->number, .member = task->member, .n_members = team->n_members, .peers = peers};
        memcpy(ret_team->key, team->key, sizeof ret_team->key);
        for (uint32_t i = 0; i < team->n_members; i++) {
                ret_team->members[i] = team->member[i].instance;
                ret_team->widths[i] = team->member[i].width;
                if (peers)
                        mfl_strcpy(peers[i], sizeof peers[i], team->member[i].task->daemon->info.peer);
        }
        return 0;
}

const struct core_task *mfl_core_team_lead(const struct core_task *task)
{
        return task->team->member[0].task;
}

/* ---- ending ---- */

static void unlink_team(struct core_team *team)
{
        struct core_team **at = &team->job->teams;
        while (*at != team)
                at = &(*at)->next;
        *at = team->next;
}

/* An assistant's part is over: its daemon is told. */
static void release(struct mfl_core *core, struct core_task *task, const char *reason)
{
        struct core_daemon *daemon = task->daemon;
        mfl_core_task_cancel(core, task, reason);
        task->member = 0;
        mfl_core_task_detach(task);
        mfl_core_daemon_idle(core, daemon);
}

static void end(
        struct mfl_core *core, struct core_team *team, const struct core_task *except, const char *reason)
{
        unlink_team(team);
        for (uint32_t i = 0; i < team->n_members; i++) {
                struct core_task *task = team->member[i].task;
                task->team = NULL;
                if (i && task != except)
                        release(core, task, reason);
                else
                        task->member = 0;
        }
        core->sched_dirty = true;
        mfl_core_dirty(core, team->job);
        free(team);
}

uint32_t mfl_core_team_pays(const struct core_job *job)
{
        bool open = !job->spec->parallel.members && !job->needs_teams && job->team_best;
        if (!open || job->round >= job->team_took_round + TEAM_REST_ROUNDS)
                return UINT32_MAX;
        return MFL_MAX(job->team_best, job->spec->parallel.members_min);
}

/* What the widest team took is kept: from it the narrower ones follow, and not the reverse. */
static void judge(struct mfl_core *core, const struct core_team *team, const struct mfl_task_times *times)
{
        struct core_job *job = team->job;
        const struct mfl_job *spec = job->spec;
        struct mfl_parallel_took took = {.grains = mfl_job_grains(spec),
                .whole = !spec->parallel.zero,
                .compute = times->compute_us,
                .exchange = times->exchange_us,
                .apply = times->apply_us};
        for (uint32_t i = 0; i < team->n_members; i++)
                took.ranks += team->member[i].width;
        bool older = job->round >= job->team_took_round + TEAM_REST_ROUNDS;
        if (!took.compute || (job->team_best && !older && took.ranks < job->team_took.ranks))
                return;
        uint32_t best = mfl_parallel_width(&took, took.ranks), before = job->team_best;
        job->team_best = best == took.ranks ? MFL_TEAM_RANKS_MAX : best;
        job->team_took = took;
        job->team_took_round = job->round;
        if (!spec->parallel.members && best < took.ranks && before != job->team_best)
                mfl_core_trace(core, job, "round %u: more than %u workers for a client would gain too little",
                        job->round, best);
}

void mfl_core_team_took(struct mfl_core *core, struct core_task *task, const struct mfl_task_times *times)
{
        struct core_job *job = task->job;
        struct mfl_task_times *sum = &job->team_totals.times;
        if (task->team)
                judge(core, task->team, times);
        sum->compute_us += times->compute_us;
        sum->exchange_us += times->exchange_us;
        sum->apply_us += times->apply_us;
        sum->repeats += times->repeats;
        sum->kept += times->kept;
}

void mfl_core_team_done(struct mfl_core *core, struct core_task *task)
{
        struct core_team *team = task->team;
        for (uint32_t i = 0; team && team->wide && i < team->n_members; i++) {
                struct core_relation *relation =
                        mfl_core_relation_find(team->member[i].task->daemon, team->job);
                if (!relation)
                        continue;
                relation->wide_fails = relation->wide_round = 0;
                /* Each connects to those before it; daemons of one node stand side by side, and say nothing of a firewall around it. */
                const struct core_node *node = team->member[i].task->daemon->node;
                relation->wide_reached |= team->member[team->n_members - 1].task->daemon->node != node;
                relation->wide_reaches |= team->member[0].task->daemon->node != node;
        }
        if (team)
                end(core, team, NULL, "the team's leader has the result");
}

static void lose(struct mfl_core *core, struct core_task *task, const char *reason)
{
        struct core_team *team = task->team;
        struct core_task *lead = team->member[0].task;
        struct core_job *job = team->job;
        mfl_core_trace(core, job, "round %u: the team of daemon %s ends: %.180s", job->round,
                lead->daemon->info.name, reason);
        mfl_snprintf(job->team_totals.last, sizeof job->team_totals.last, "%.180s", reason);
        if (job->team_stamp != job->stamp) {
                job->team_stamp = job->stamp;
                job->team_fails = 0;
        }
        if (++job->team_fails == TEAM_FAILS_MAX && !job->needs_teams && job->spec->parallel.members_min < 2) {
                job->team_round = job->round + TEAM_REST_ROUNDS;
                mfl_core_trace(core, job,
                        "round %u: %u teams have failed: until round %u each client is trained by one daemon",
                        job->round, TEAM_FAILS_MAX, job->team_round);
        }
        if (lead != task)
                mfl_core_task_cancel(core, lead, reason);
        end(core, team, task, reason);
        if (lead == task)
                return;
        mfl_core_group_lose(core, lead, reason);
        struct core_daemon *daemon = lead->daemon;
        mfl_core_task_reclaim(core, lead, ITEM_OPEN);
        mfl_core_daemon_idle(core, daemon);
}

void mfl_core_team_lose(struct mfl_core *core, struct core_task *task, const char *reason)
{
        if (!task->team)
                return;
        task->job->team_totals.taken++;
        lose(core, task, reason);
}

/* The accused may be stopped: the next team would wait for it again. One that can connect to nobody joins no team over several nodes for
 * some rounds, from the first time on. */
static void accuse(
        struct mfl_core *core, const struct core_task *task, uint64_t over, uint32_t loss, const char *reason)
{
        struct core_daemon *daemon = task->daemon;
        struct core_relation *relation = mfl_core_relation(core, daemon, task->job);
        if (!relation)
                return;
        relation->rest_stamp = task->job->stamp;
        if (task->team->wide) {
                uint32_t fails = relation->wide_fails + 1;
                fails = loss == MFL_TEAM_ISOLATED ? MFL_MAX(fails, 2u) : fails;
                relation->wide_fails = MFL_MIN(fails, WIDE_FAILS_MAX);
                relation->wide_round = task->job->round + (1u << relation->wide_fails) - 2;
                relation->wide_reached = relation->wide_reaches = false;
                relation->wide_over = over;
        }
        mfl_snprintf(
                daemon->note, sizeof daemon->note, "%s: its team lost it: %.150s", task->job->id, reason);
}

/* What was said of the old process is forgotten with its relations. If it restarted, that is why others could not connect to it. */
void mfl_core_team_restarted(struct mfl_core *core, const struct core_daemon *daemon)
{
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                struct core_daemon *other = core->daemons[i];
                for (uint32_t k = 0; k < other->n_relations; k++)
                        if (other->relations[k].wide_over == daemon->key) {
                                other->relations[k].wide_over = other->relations[k].rest_stamp = 0;
                                other->relations[k].wide_fails = other->relations[k].wide_round = 0;
                        }
        }
}

/* Who is to blame for a broken team. */
struct verdict {
        const struct core_task *task; /* NULL: nobody */
        uint32_t loss;
        uint64_t over; /* key of the daemon that it could not connect to */
        bool known; /* of two members: others have connected to the one that the blamed one can't connect to */
};

/* Of two members, one can't connect to the other: which of them is at fault they can't know. It is the accuser if others have connected to
 * the accused, and it has connected to nobody. Where nothing is known of either, each is given up in turn, and the next teams tell. */
static struct verdict judge_two(const struct core_task *by, const struct core_task *accused)
{
        struct core_relation *a = mfl_core_relation_find(by->daemon, by->job);
        const struct core_relation *b = mfl_core_relation_find(accused->daemon, by->job);
        struct verdict verdict = {.task = accused, .loss = MFL_TEAM_UNREACHED};
        if (by->team->n_members != 2 || !a || !b)
                return verdict;
        /* Either has changed where the one reached others and the other was reached: what is known of both is out of date. */
        if (a->wide_reaches) {
                a->wide_reaches = !b->wide_reached;
                return verdict;
        }
        if (b->wide_reached || b->wide_fails > a->wide_fails)
                verdict = (struct verdict){by, MFL_TEAM_ISOLATED, accused->daemon->key, b->wide_reached};
        return verdict;
}

static struct verdict find_verdict(const struct core_task *by, const struct mfl_msg *msg)
{
        uint32_t accused = msg->failed.accused, loss = msg->failed.loss;
        if (!accused || accused > by->team->n_members)
                return (struct verdict){.loss = loss};
        const struct core_task *task = by->team->member[accused - 1].task;
        /* Of two members only the second one connects, and neither has others to try. */
        bool lies = by->team->n_members == 2 &&
                    (loss == MFL_TEAM_ISOLATED || (loss == MFL_TEAM_UNREACHED && !by->member));
        if (lies || (task == by && loss != MFL_TEAM_ISOLATED))
                return (struct verdict){.loss = loss};
        return loss == MFL_TEAM_UNREACHED ? judge_two(by, task)
                                          : (struct verdict){.task = task, .loss = loss};
}

static void explain(const struct core_task *by, const struct verdict *verdict, const struct mfl_msg *msg,
        char reason[static MFL_REASON_BYTES])
{
        const char *name = by->daemon->info.name, *why = msg->failed.reason, *other = "";
        if (verdict->task)
                other = by->team->member[msg->failed.accused - 1].task->daemon->info.name;
        if (verdict->task && msg->failed.loss == MFL_TEAM_UNREACHED)
                mfl_snprintf(reason, MFL_REASON_BYTES, "daemon %.40s can't connect to daemon %.40s%s: %.110s",
                        name, other, verdict->known ? ", as others can" : "", why);
        else if (verdict->task && msg->failed.loss == MFL_TEAM_ISOLATED)
                mfl_snprintf(reason, MFL_REASON_BYTES,
                        "daemon %.40s can't connect to others; is there a firewall around it? %.110s", other,
                        why);
        else
                mfl_snprintf(reason, MFL_REASON_BYTES, "daemon %s: %.170s", name, why);
}

void mfl_core_team_broken(struct mfl_core *core, struct core_task *task, const struct mfl_msg *msg)
{
        struct core_job *job = task->job;
        struct core_daemon *daemon = task->daemon;
        char reason[MFL_REASON_BYTES];
        const struct verdict verdict = find_verdict(task, msg);
        explain(task, &verdict, msg, reason);
        mfl_strcpy(job->last_failure, sizeof job->last_failure, reason);
        if (verdict.task)
                accuse(core, verdict.task, verdict.over, verdict.loss, reason);
        job->team_totals.broken++;
        job->team_totals.late += verdict.task && verdict.loss == MFL_TEAM_LATE;
        job->team_totals.unreached += verdict.task && verdict.loss >= MFL_TEAM_UNREACHED;
        lose(core, task, reason);
        mfl_core_group_lose(core, task, reason);
        mfl_core_task_reclaim(core, task, ITEM_OPEN);
        mfl_core_daemon_idle(core, daemon);
}

void mfl_core_teams_end(struct mfl_core *core, struct core_job *job, const char *reason)
{
        while (job->teams)
                end(core, job->teams, NULL, reason);
}

void mfl_core_teams_free(struct core_job *job)
{
        while (job->teams) {
                struct core_team *team = job->teams;
                job->teams = team->next;
                free(team);
        }
}

/* ---- invariants ---- */

void mfl_core_team_check(const struct core_job *job)
{
        uint32_t n = 0, n_tasks = 0;
        for (const struct core_team *team = job->teams; team; team = team->next) {
                mfl_assert(team->job == job && team->n_members >= 2);
                mfl_assert(job->phase == PHASE_TRAIN || job->phase == PHASE_CLOSING);
                for (uint32_t i = 0; i < team->n_members; i++) {
                        const struct core_task *task = team->member[i].task;
                        mfl_assert(task->team == team && task->member == i && task->job == job);
                        mfl_assert(task->kind == (i ? MFL_TASK_ASSIST : MFL_TASK_TRAIN));
                        mfl_assert(task->daemon && task->daemon->job == job && mfl_core_task_live(task));
                        mfl_assert(task->owner_instance == team->member[i].instance);
                        n++;
                }
        }
        for (const struct core_task *task = job->tasks; task; task = task->job_next) {
                n_tasks += task->team != NULL;
                mfl_assert(task->team || !task->member);
                mfl_assert(task->kind != MFL_TASK_ASSIST || task->team || !task->daemon);
        }
        mfl_assert(n == n_tasks);
}
