/* SPDX-License-Identifier: Apache-2.0 */
/* Learning how long a client takes on a daemon. See round_speed.h. */
#include "server/round_speed.h"

#include "server/round_share.h"

static struct core_relation *find(const struct core_daemon *daemon, const struct core_job *job)
{
        for (uint32_t i = 0; i < daemon->n_relations; i++)
                if (daemon->relations[i].job == job->serial)
                        return &daemon->relations[i];
        return NULL;
}

static struct core_speed *speed_of(const struct core_daemon *daemon, const struct core_job *job, bool train)
{
        struct core_relation *relation = find(daemon, job);
        return !relation ? NULL : train ? &relation->train : &relation->eval;
}

static uint32_t workers(const struct core_daemon *daemon)
{
        return MFL_MAX(daemon->info.workers, 1u);
}

/* ---- measuring ---- */

static void show_rate(struct core_daemon *daemon, const struct core_task *task, double ms)
{
        double samples = 0;
        for (uint32_t i = 0; i < task->n_items; i++)
                samples += task->updates[i] ? (double)task->updates[i]->announce.samples : 0;
        daemon->samples_per_second = samples * 1e3 / ms;
        daemon->clients_per_second = task->n_items * 1e3 / ms;
}

void mfl_round_measure(struct mfl_core *core, struct core_task *task)
{
        struct core_daemon *daemon = task->daemon;
        uint64_t from = MFL_MAX(task->sent_ms, daemon->free_ms); /* its tasks are done one after another */
        daemon->free_ms = core->now_ms;
        if (task->unmeasured)
                return;
        task->unmeasured = true; /* once */
        struct core_relation *relation = mfl_core_relation(core, daemon, task->job);
        if (!relation)
                return;
        bool train = task->kind == MFL_TASK_TRAIN;
        struct core_speed *speed = train ? &relation->train : &relation->eval;
        double ms = (double)(core->now_ms - from), cost = (ms + CORE_SPEED_FLOOR_MS) / task->n_items;
        speed->cost = speed->cost > 0 ? (speed->cost + cost) / 2 : cost;
        if (train)
                show_rate(daemon, task, ms + 0.5); /* the clock counts whole milliseconds */
}

void mfl_round_unmeasure(struct core_task *task)
{
        task->unmeasured = true;
}

void mfl_round_held(struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job,
        const struct mfl_announce *a)
{
        struct core_relation *relation = mfl_core_relation(core, daemon, job);
        if (!relation || a->item_count > MFL_ITEMS_MAX || a->item_first > MFL_ITEMS_MAX)
                return;
        if (relation->held_round != a->round || relation->held_task < a->task) {
                relation->held_round = a->round;
                relation->held_task = a->task;
                relation->held_items = 0;
        }
        relation->held_items = MFL_MAX(relation->held_items, a->item_first + a->item_count);
}

/* ---- guessing ---- */

/* A daemon in the order of kinds; `known` first, by their cost for one worker. */
struct kin {
        const struct core_daemon *daemon;
        uint32_t position;
        double per_worker; /* 0: not measured */
};

static int compare_costs(const void *a, const void *b)
{
        const struct kin *x = a, *y = b;
        if ((x->per_worker > 0) != (y->per_worker > 0))
                return x->per_worker > 0 ? -1 : 1;
        if (x->per_worker != y->per_worker)
                return x->per_worker < y->per_worker ? -1 : 1;
        return (x->position > y->position) - (x->position < y->position);
}

static int compare_kinds(const struct kin *x, const struct kin *y)
{
        int r = strcmp(x->daemon->info.backend, y->daemon->info.backend);
        return r ? r : strcmp(x->daemon->info.device, y->daemon->info.device);
}

static int compare_kin(const void *a, const void *b)
{
        int r = compare_kinds(a, b);
        return r ? r : compare_costs(a, b);
}

static double median(const struct kin *v, uint32_t n)
{
        uint32_t known = 0;
        while (known < n && v[known].per_worker > 0)
                known++;
        return known ? v[(known - 1) / 2].per_worker : 0;
}

static int guess(struct core_daemon *const *daemons, uint32_t n, struct mfl_share *shares)
{
        struct kin *v = mfl_malloc(n * sizeof *v);
        if (!v)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++)
                v[i] = (struct kin){daemons[i], i, shares[i].cost * workers(daemons[i])};
        qsort(v, n, sizeof *v, compare_costs);
        double all = median(v, n);
        qsort(v, n, sizeof *v, compare_kin);
        for (uint32_t from = 0, to; from < n; from = to) {
                for (to = from + 1; to < n && compare_kinds(&v[from], &v[to]) == 0; to++)
                        ;
                double one = median(v + from, to - from);
                for (uint32_t i = from; i < to; i++)
                        if (!(v[i].per_worker > 0))
                                shares[v[i].position].cost = (one > 0 ? one : all) / workers(v[i].daemon);
        }
        free(v);
        return 0;
}

int mfl_round_costs(const struct core_job *job, struct core_daemon *const *daemons, uint32_t n, bool begins,
        struct mfl_share *ret_shares)
{
        bool train = job->phase == PHASE_TRAIN;
        uint32_t n_known = 0;
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_share *share = &ret_shares[i];
                const struct core_relation *relation = find(daemons[i], job);
                const struct core_speed *speed = speed_of(daemons[i], job, train);
                *share = (struct mfl_share){.probe = begins, .cost = 0};
                if (speed && speed->cost > 0) {
                        share->cost = speed->cost;
                        share->probe = false;
                        n_known++;
                }
                if (relation && begins && train && relation->held_round == job->round) {
                        share->fixed = true;
                        share->n = relation->held_items;
                }
        }
        for (uint32_t i = 0; !n_known && i < n; i++)
                ret_shares[i].cost = 1.0 / workers(daemons[i]);
        if (n_known && n_known < n && guess(daemons, n, ret_shares))
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++) {
                const struct core_speed *speed = speed_of(daemons[i], job, train);
                if (speed)
                        ret_shares[i].cost *= CORE_SPEED_AGE / (double)(CORE_SPEED_AGE + speed->age);
        }
        return 0;
}

void mfl_round_age(const struct core_job *job, struct core_daemon *const *daemons, uint32_t n,
        const struct mfl_share *shares)
{
        for (uint32_t i = 0; i < n; i++) {
                bool train = job->phase == PHASE_TRAIN;
                struct core_relation *relation = find(daemons[i], job);
                struct core_speed *speed = speed_of(daemons[i], job, train);
                if (!relation)
                        continue;
                speed->age = shares[i].n ? 0 : speed->age + 1;
                if (train)
                        relation->held_round = 0; /* another attempt has other clients */
        }
}
