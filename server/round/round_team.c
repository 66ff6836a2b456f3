/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemons form teams. */
#include "server/round/round_team.h"

#include "proto/version.h"
#include "server/work/core_task.h"
#include "server/work/core_team.h"

#define REST_MS 10000 /* of daemons without which there is no team */

/* Daemons that could all be in one team: [first, end) of the list. */
struct class
{
        uint32_t first, end, n_teams;
};

uint32_t mfl_round_team_ranks(const struct core_job *job)
{
        const struct mfl_job *spec = job->spec;
        bool trains = job->phase == PHASE_TRAIN || job->phase == PHASE_TRAIN_WAIT;
        if (!spec->parallel.grain || spec->parallel.within == MFL_WITHIN_DAEMON || !trains ||
                spec->selection.assign == MFL_ASSIGN_MODULO || !mfl_core_team_wanted(job))
                return 1;
        uint32_t grains = mfl_job_grains(spec);
        uint32_t most = spec->parallel.members ? spec->parallel.members : MFL_TEAM_RANKS_MAX;
        return MFL_MIN(MFL_MIN(grains, most), MFL_MIN(mfl_core_team_pays(job), MFL_TEAM_RANKS_MAX));
}

bool mfl_round_team_assists(const struct core_daemon *daemon)
{
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (task->member)
                        return true;
        return false;
}

static bool is_idle(const struct core_daemon *daemon)
{
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (mfl_core_task_live(task))
                        return false;
        return true;
}

bool mfl_round_team_alone(const struct core_daemon *daemon)
{
        return daemon->info.protocol < MFL_PROTOCOL_SHARDS || daemon->info.alone || !daemon->info.instance;
}

/* Whom a daemon can join. */
enum reach { REACHES_ANY, REACHES_NODE, REACHES_NOBODY };

/* awake: also if it rests from teams over several nodes. */
static enum reach reach_of(const struct core_daemon *daemon, const struct core_job *job, bool awake)
{
        const struct core_relation *relation = mfl_core_relation_find(daemon, job);
        bool rests = !awake && relation && job->round < relation->wide_round;
        if (mfl_round_team_alone(daemon))
                return REACHES_NOBODY;
        if (job->spec->parallel.within == MFL_WITHIN_ANY && daemon->info.peer[0] && !rests)
                return REACHES_ANY;
        return daemon->node->n > 1 ? REACHES_NODE : REACHES_NOBODY;
}

/* Daemons of one class stand together, in it those of one node, and those that join nobody come last. Nodes are told apart
 * by their first daemon's name, since that is the same after a restart. */
static int compare(const void *a, const void *b)
{
        const struct core_daemon *x = *(struct core_daemon *const *)a, *y = *(struct core_daemon *const *)b;
        if (x->team_reach != y->team_reach)
                return x->team_reach < y->team_reach ? -1 : 1;
        int numerics = strcmp(x->info.numerics, y->info.numerics);
        if (numerics && x->team_reach == REACHES_ANY)
                return numerics;
        int r = strcmp(x->node->first->info.name, y->node->first->info.name);
        if (!r)
                r = numerics;
        return r ? r : strcmp(x->info.name, y->info.name);
}

static bool are_one_class(const struct core_daemon *a, const struct core_daemon *b)
{
        bool reach = a->team_reach == REACHES_ANY || (a->team_reach == REACHES_NODE && a->node == b->node);
        return reach && a->team_reach == b->team_reach && !strcmp(a->info.numerics, b->info.numerics);
}

static uint32_t make_classes(struct core_daemon *const *v, uint32_t n, struct class *classes)
{
        uint32_t n_classes = 0;
        for (uint32_t first = 0, end; first < n; first = end) {
                for (end = first + 1; end < n && are_one_class(v[first], v[end]); end++)
                        ;
                classes[n_classes++] = (struct class){first, end, 0};
        }
        return n_classes;
}

static uint64_t size_of(const struct class *class)
{
        return class->end - class->first;
}

/* Sorts them into classes, without those that need more members than their class has. Returns how many classes there are. */
static uint32_t classify(
        const struct core_job *job, struct core_daemon **v, uint32_t *n, struct class *classes)
{
        if (*n > 1)
                qsort(v, *n, sizeof(struct core_daemon *), compare);
        uint32_t n_all = make_classes(v, *n, classes), n_classes = 0, end = 0;
        for (uint32_t k = 0; k < n_all; k++) {
                uint32_t first = end, before = 0;
                for (uint32_t i = classes[k].first; i < classes[k].end; i++)
                        v[end++] = v[i];
                while (before != end - first) { /* who leaves may be missed by others */
                        before = end - first;
                        end = first;
                        for (uint32_t i = first; i < first + before; i++)
                                if (mfl_core_daemon_team_least(v[i], job) <= before)
                                        v[end++] = v[i];
                }
                if (end > first)
                        classes[n_classes++] = (struct class){first, end, 0};
        }
        *n = end;
        return n_classes;
}

/* Each item goes where its team would be the largest. */
static void count_teams(struct class *classes, uint32_t n_classes, uint32_t n_open)
{
        for (uint32_t i = 0; i < n_open; i++) {
                struct class *best = NULL;
                for (uint32_t k = 0; k < n_classes; k++) {
                        struct class *class = &classes[k];
                        if (class->n_teams == size_of(class))
                                continue;
                        if (!best ||
                                size_of(class) * (best->n_teams + 1) > size_of(best) * (class->n_teams + 1))
                                best = class;
                }
                best->n_teams++;
        }
}

uint32_t mfl_round_team_width(const struct core_daemon *daemon, const struct core_job *job)
{
        return MFL_MAX(1u, daemon->info.workers / MFL_MAX(1u, job->spec->training.threads));
}

/* The first daemons that have `ranks` together, of which a wide one leaves some to others, so that there are at least `least`. A confused
 * daemon may claim another's instance, by which members tell each other apart. Returns how many members there are. */
static uint32_t choose(const struct core_job *job, struct core_daemon *const *v, uint32_t n, uint32_t ranks,
        uint32_t least, struct core_team_member *member)
{
        uint32_t n_members = 0;
        for (uint32_t i = 0; i < n && ranks && n_members < MFL_GROUP_MAX; i++) {
                bool again = false;
                for (uint32_t k = 0; k < n_members; k++)
                        again |= member[k].daemon->info.instance == v[i]->info.instance;
                if (again)
                        continue;
                uint32_t others = least > n_members + 1 ? MFL_MIN(least - n_members - 1, ranks - 1) : 0;
                uint32_t width = MFL_MIN(mfl_round_team_width(v[i], job), ranks - others);
                member[n_members++] = (struct core_team_member){v[i], width};
                ranks -= width;
        }
        return n_members;
}

/* The members of a team of the first ones; 0: it would be too small for one of them, or for the job. */
static uint32_t form(const struct core_job *job, struct core_daemon *const *v, uint32_t n, uint32_t ranks,
        struct core_team_member *member)
{
        uint32_t n_members, n_ranks = 0;
        for (uint32_t least = 1, before = 0;
                least != before;) { /* it grows at each turn, up to MFL_GROUP_MAX */
                before = least;
                n_members = choose(job, v, n, ranks, least, member);
                for (uint32_t i = 0; i < n_members; i++)
                        least = MFL_MAX(least, mfl_core_daemon_team_least(member[i].daemon, job));
        }
        for (uint32_t i = 0; i < n_members; i++) {
                n_ranks += member[i].width;
                if (mfl_core_daemon_team_least(member[i].daemon, job) > n_members)
                        return 0;
        }
        return n_ranks < job->spec->parallel.members_min ? 0 : n_members;
}

static bool deal_item(struct mfl_core *core, struct core_job *job, struct core_daemon *const *v, uint32_t n,
        uint32_t ranks, uint32_t open)
{
        struct core_team_member member[MFL_GROUP_MAX];
        uint32_t n_members = form(job, v, n, ranks, member);
        for (uint32_t i = 0; i < n_members; i++)
                if (!member[i].daemon->job)
                        mfl_core_lease(core, member[i].daemon, job);
        if (!n_members || core->error)
                return n_members > 0;
        mfl_core_task_give(core, job, v[0], &open, 1);
        if (n_members > 1 && !core->error)
                mfl_core_team_form(core, job->tasks, member, n_members);
        return true;
}

static bool deal_class(struct mfl_core *core, struct core_job *job, const struct class *class,
        struct core_daemon *const *v, uint32_t ranks, const uint32_t *open)
{
        uint64_t n = size_of(class);
        bool dealt = false;
        for (uint64_t t = 0; t < class->n_teams && !core->error; t++) {
                uint64_t first = class->first + n * t / class->n_teams,
                         end = class->first + n * (t + 1) / class->n_teams;
                dealt |= deal_item(core, job, v + first, (uint32_t)(end - first), ranks, open[t]);
        }
        return dealt;
}

/* Where daemons can't do it alone, teams are as large as a step has grains; where the job says so, as large as it says. The other
 * items wait. */
static uint32_t wanted_teams(const struct core_job *job, struct core_daemon *const *idle, uint32_t n_idle,
        uint32_t ranks, uint32_t n_open)
{
        uint64_t least = job->spec->parallel.members_min, n_ranks = 0;
        for (uint32_t i = 0; i < n_idle; i++)
                n_ranks += MFL_MIN(mfl_round_team_width(idle[i], job), ranks);
        if (job->needs_teams)
                n_open = MFL_MIN(n_open, MFL_MAX(1u, n_idle / ranks));
        return least > 1 ? (uint32_t)MFL_MIN(n_open, MFL_MAX(1u, n_ranks / least)) : n_open;
}

/* Whether a single daemon is not enough, however many clients wait. */
static bool are_needed(const struct core_job *job)
{
        return job->needs_teams || job->spec->parallel.members_min > 1;
}

/* Whether a class is enough for a team that is large enough for the job, and for some of its members. */
static bool is_enough(
        const struct core_job *job, const struct class *class, struct core_daemon *const *v, uint32_t ranks)
{
        uint64_t n_ranks = 0;
        for (uint32_t i = class->first; i < class->end; i++)
                if (mfl_core_daemon_team_least(v[i], job) <= size_of(class))
                        n_ranks += MFL_MIN(mfl_round_team_width(v[i], job), ranks);
        return n_ranks && n_ranks >= job->spec->parallel.members_min;
}

/* Whether daemons could train a client once none is busy. Without memory to tell: yes. */
static bool can_train(const struct mfl_core *core, const struct core_job *job, bool awake)
{
        uint32_t n = 0, ranks = mfl_round_team_ranks(job);
        struct core_daemon **v = mfl_malloc(core->n_daemons * sizeof(struct core_daemon *) + 1);
        struct class *classes = mfl_malloc(core->n_daemons * sizeof *classes + 1);
        bool can = !v || !classes;
        for (uint32_t i = 0; !can && i < core->n_daemons; i++)
                if (mfl_core_daemon_usable(core->daemons[i], job)) {
                        v[n++] = core->daemons[i];
                        core->daemons[i]->team_reach = reach_of(core->daemons[i], job, awake);
                }
        if (n > 1)
                qsort(v, n, sizeof(struct core_daemon *), compare);
        for (uint32_t k = 0, n_classes = n ? make_classes(v, n, classes) : 0; !can && k < n_classes; k++)
                can = is_enough(job, &classes[k], v, ranks);
        free(classes);
        free(v);
        return can;
}

/* Those that rest in this phase. */
static uint32_t wake_all(const struct mfl_core *core, const struct core_job *job, bool wake)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                struct core_relation *relation = mfl_core_relation_find(core->daemons[i], job);
                if (!core->daemons[i]->conn || !relation || relation->rest_stamp != job->stamp)
                        continue;
                n++;
                if (wake)
                        relation->rest_stamp = 0;
        }
        return n;
}

void mfl_round_team_wait(struct mfl_core *core, struct core_job *job)
{
        bool waits = job->phase == PHASE_TRAIN && job->count[ITEM_OPEN] && !job->count[ITEM_ASSIGNED] &&
                     job->spec->parallel.grain && are_needed(job) && wake_all(core, job, false) &&
                     !can_train(core, job, true);
        if (!waits)
                job->rest_ms = 0;
        else if (!job->rest_ms) {
                job->rest_ms = core->now_ms + REST_MS;
                mfl_core_wake(core, job->rest_ms);
        } else if (core->now_ms >= job->rest_ms) {
                job->rest_ms = 0;
                wake_all(core, job, true);
                core->sched_dirty = true;
                mfl_core_dirty(core, job);
        }
}

/* Whoever waits for a larger team should know what is in its way. Once per job. The daemons are sorted, so that those which
 * differ in their numerics alone are neighbours. */
static void tell_numerics(
        struct mfl_core *core, struct core_job *job, struct core_daemon *const *idle, uint32_t n)
{
        for (uint32_t i = 1; i < n && !job->numerics_part; i++) {
                const struct core_daemon *a = idle[i - 1], *b = idle[i];
                bool near = a->team_reach == REACHES_ANY || a->node == b->node;
                if (a->team_reach == REACHES_NOBODY || a->team_reach != b->team_reach || !near ||
                        !strcmp(a->info.numerics, b->info.numerics))
                        continue;
                job->numerics_part = true;
                mfl_core_trace(core, job,
                        "daemons %s and %s join no team together, since their last bits differ: %s and %s",
                        a->info.name, b->info.name,
                        *a->info.numerics ? a->info.numerics : "unknown arithmetic",
                        *b->info.numerics ? b->info.numerics : "unknown arithmetic");
        }
}

bool mfl_round_team_deal(struct mfl_core *core, struct core_job *job, struct core_daemon *const *v,
        uint32_t n, const uint32_t *open, uint32_t n_open)
{
        uint32_t ranks = mfl_round_team_ranks(job), n_idle = 0;
        bool dealt = false;
        if (ranks < 2 || (n <= n_open && !are_needed(job)) || !n_open)
                return false;
        /* A rest over several rounds ends only if rounds do. */
        bool awake = are_needed(job) && !can_train(core, job, false);
        struct core_daemon **idle = mfl_malloc(n * sizeof(struct core_daemon *));
        struct class *classes = mfl_malloc(n * sizeof *classes);
        if (!idle || !classes) {
                core->error = -ENOMEM;
                goto out;
        }
        for (uint32_t i = 0; i < n; i++) {
                v[i]->team_reach = reach_of(v[i], job, awake);
                if (is_idle(v[i]))
                        idle[n_idle++] = v[i];
        }
        if (n_idle > wanted_teams(job, idle, n_idle, ranks, n_open)) { /* before classes leave daemons out */
                qsort(idle, n_idle, sizeof(struct core_daemon *), compare);
                tell_numerics(core, job, idle, n_idle);
        }
        uint32_t n_classes = classify(job, idle, &n_idle, classes);
        n_open = wanted_teams(job, idle, n_idle, ranks, n_open);
        if (n_idle <= n_open || n_classes == n_idle) /* nobody can join anybody */
                goto out;
        count_teams(classes, n_classes, n_open);
        for (uint32_t k = 0; k < n_classes && !core->error; open += classes[k++].n_teams)
                dealt |= deal_class(core, job, &classes[k], idle, ranks, open);
out:
        free(classes);
        free(idle);
        return dealt;
}

uint32_t mfl_round_team_find(struct mfl_core *core, const struct core_job *job, struct core_daemon **v,
        uint32_t n, uint32_t most, struct core_daemon *ret_v[MFL_GROUP_MAX])
{
        struct core_team_member member[MFL_GROUP_MAX];
        uint32_t ranks = mfl_round_team_ranks(job), n_idle = 0, found = 0;
        if (ranks < 2 || n < 2)
                return 0;
        bool awake = are_needed(job) && !can_train(core, job, false);
        struct class *classes = mfl_malloc(n * sizeof *classes);
        if (!classes) {
                core->error = -ENOMEM;
                return 0;
        }
        for (uint32_t i = 0; i < n; i++) {
                v[i]->team_reach = reach_of(v[i], job, awake);
                if (is_idle(v[i]))
                        v[n_idle++] = v[i];
        }
        uint32_t n_classes = classify(job, v, &n_idle, classes);
        for (uint32_t k = 0; k < n_classes && found < 2; k++)
                found = form(job, v + classes[k].first, (uint32_t)MFL_MIN(size_of(&classes[k]), most), ranks,
                        member);
        for (uint32_t i = 0; i < found; i++)
                ret_v[i] = member[i].daemon;
        free(classes);
        return found > 1 ? found : 0;
}
