/* SPDX-License-Identifier: Apache-2.0 */
/* Measuring daemons. */
#include "server/work/core_measure.h"

/* Added to each time, because tasks of a few milliseconds mostly measure the network. */
#define FLOOR_MS 10

static void show_rate(struct core_daemon *daemon, const struct core_task *task, double ms)
{
        double samples = 0;
        for (uint32_t i = 0; i < task->n_items; i++)
                samples += task->updates[i] ? (double)task->updates[i]->announce.samples : 0;
        daemon->samples_per_second = samples * 1e3 / ms;
        daemon->clients_per_second = task->n_items * 1e3 / ms;
}

void mfl_core_measure_task(struct mfl_core *core, struct core_task *task)
{
        struct core_daemon *daemon = task->daemon;
        uint64_t from =
                MFL_MAX(task->sent_ms, daemon->free_ms); /* a daemon does its tasks one after another */
        daemon->free_ms = core->now_ms;
        if (task->unmeasured)
                return;
        task->unmeasured = true; /* count it once */
        struct core_relation *relation = mfl_core_relation(core, daemon, task->job);
        if (!relation)
                return;
        bool train = task->kind == MFL_TASK_TRAIN;
        struct core_speed *speed = train ? &relation->train : &relation->eval;
        double ms = (double)(core->now_ms - from), cost = (ms + FLOOR_MS) / task->n_items;
        speed->cost = speed->cost > 0 ? (speed->cost + cost) / 2 : cost;
        if (train)
                show_rate(daemon, task, ms + 0.5); /* the clock counts whole milliseconds */
}

void mfl_core_measure_held(struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job,
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

/* A group's sum waits for other members, so its time says nothing about the line. */
void mfl_core_measure_upload(const struct mfl_core *core, const struct core_update *update)
{
        struct core_daemon *daemon = update->task->daemon;
        if (!daemon || update->group)
                return;
        double rate = (double)update->announce.bytes / ((double)(core->now_ms - update->since_ms) + 0.5);
        daemon->upload_rate = daemon->upload_rate > 0 ? (daemon->upload_rate + rate) / 2 : rate;
}
