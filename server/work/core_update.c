/* SPDX-License-Identifier: Apache-2.0 */
/* Updates: the queue for slots, counting, and what their daemons are told. */
#include "server/work/core_update.h"

#include "server/work/core_member.h"

void mfl_core_update_enqueue(struct mfl_core *core, struct core_update *update)
{
        struct core_job *job = update->task->job;
        mfl_core_update_move(update, UPDATE_QUEUED);
        update->told = false;
        update->queue_prev = job->queue_tail;
        update->queue_next = NULL;
        *(job->queue_tail ? &job->queue_tail->queue_next : &job->queue_head) = update;
        job->queue_tail = update;
        mfl_core_dirty(core, job);
}

void mfl_core_update_hold(struct core_update *update)
{
        mfl_core_update_move(update, UPDATE_HELD);
        free(update->keys);
        update->keys = NULL;
        update->n_keys = 0;
}

/* It keeps its turn. */
void mfl_core_update_enqueue_first(struct mfl_core *core, struct core_update *update)
{
        struct core_job *job = update->task->job;
        mfl_core_update_move(update, UPDATE_QUEUED);
        update->queue_prev = NULL;
        update->queue_next = job->queue_head;
        *(job->queue_head ? &job->queue_head->queue_prev : &job->queue_tail) = update;
        job->queue_head = update;
        mfl_core_dirty(core, job);
}

void mfl_core_update_dequeue(struct core_job *job, struct core_update *update)
{
        *(update->queue_prev ? &update->queue_prev->queue_next : &job->queue_head) = update->queue_next;
        *(update->queue_next ? &update->queue_next->queue_prev : &job->queue_tail) = update->queue_prev;
        update->queue_prev = update->queue_next = NULL;
}

struct mfl_core_action *mfl_core_update_act(
        struct mfl_core *core, enum mfl_core_action_kind kind, const struct core_update *update)
{
        const struct core_task *task = update->task;
        const struct mfl_announce *a = &update->announce;
        struct mfl_core_action *action = mfl_core_act(core, kind, task->job);
        action->conn = task->daemon ? task->daemon->conn : 0;
        action->slot.slot = update->slot;
        action->slot.grant = task->job->slots[update->slot].grant;
        action->slot.task = task->number;
        action->slot.update = a->update;
        action->slot.bytes = a->bytes;
        action->slot.weight = a->weight;
        action->slot.encoding = a->encoding;
        action->slot.state = a->state;
        action->slot.bucket = update->bucket;
        if (mfl_method_get(task->job->spec)->counts_steps && !a->masked)
                action->slot.steps = mfl_method_steps(task->job->spec, &task->job->fixed, a->scalars[0]);
        if (update->group) { /* it stands for all members */
                action->slot.task = update->group->number;
                action->slot.update = 0;
                action->slot.weight = mfl_core_group_weight(update->group);
        }
        for (uint32_t i = 0; i < a->item_count; i++) { /* its first accepted client */
                action->slot.item = task->job->items[task->index[a->item_first + i]].item;
                action->slot.staleness = mfl_core_item_staleness(task->job, task->index[a->item_first + i]);
                if (i >= a->n_rejected || a->rejected[i].item != action->slot.item)
                        break;
        }
        return action;
}

void mfl_core_update_free_slot(struct mfl_core *core, struct core_update *update)
{
        struct core_job *job = update->task->job;
        mfl_assert(job->slots[update->slot].update == update);
        mfl_core_update_act(core, MFL_ACT_SLOT_FREE, update);
        job->slots[update->slot].update = NULL;
        mfl_core_dirty(core, job); /* the next update in the queue gets it */
}

static void take_back(struct mfl_core *core, struct core_update *update)
{
        mfl_assert(update->state < UPDATE_ADDING);
        if (update->state == UPDATE_QUEUED)
                mfl_core_update_dequeue(update->task->job, update);
        else if (update->state == UPDATE_FILLING)
                mfl_core_update_free_slot(core, update);
}

void mfl_core_update_unslot(struct mfl_core *core, struct core_update *update)
{
        take_back(core, update);
        mfl_core_update_move(update, UPDATE_GROUPED);
}

void mfl_core_update_drop(struct mfl_core *core, struct core_update *update)
{
        struct core_task *task = update->task;
        const struct mfl_announce *a = &update->announce;
        mfl_assert(!update->group);
        take_back(core, update);
        task->job->weight_claimed -= a->weight;
        for (uint32_t i = 0; i < a->item_count; i++)
                task->cover[a->item_first + i] = 0;
        task->n_covered -= a->item_count;
        task->updates[a->update] = NULL;
        mfl_core_update_free(update);
}

/* ---- answers ---- */

void mfl_core_send_accepted(struct mfl_core *core, struct core_daemon *daemon, uint64_t task, uint32_t update)
{
        if (!daemon || !daemon->conn)
                return;
        struct mfl_msg *msg = mfl_core_send(core, daemon, MFL_MSG_ACCEPTED);
        msg->update.task = task;
        msg->update.update = update;
}

void mfl_core_send_refused(struct mfl_core *core, struct core_daemon *daemon, uint64_t task, uint32_t update,
        enum mfl_refused code, const char *reason)
{
        if (!daemon || !daemon->conn)
                return;
        struct mfl_msg *msg = mfl_core_send(core, daemon, MFL_MSG_REFUSED);
        msg->update.task = task;
        msg->update.update = update;
        msg->update.code = code;
        mfl_strcpy(msg->update.reason, sizeof msg->update.reason, reason);
}

/* ---- counting ---- */

/* Tells people why a daemon rejected its own clients, above all in case the round fails because of it. */
static void tell_rejected(struct mfl_core *core, const struct core_update *update)
{
        const struct mfl_announce *a = &update->announce;
        struct core_job *job = update->task->job;
        if (!a->n_rejected)
                return;
        mfl_snprintf(job->last_failure, sizeof job->last_failure, "client %llu was rejected: %.170s",
                (unsigned long long)a->rejected[0].item, a->rejected[0].reason);
        mfl_core_trace(core, job,
                "round %u: %u of the %u clients of an update were rejected; client %llu: %.120s", job->round,
                a->n_rejected, a->item_count, (unsigned long long)a->rejected[0].item, a->rejected[0].reason);
}

static void finish_items(struct mfl_core *core, struct core_update *update, bool ok)
{
        struct core_task *task = update->task;
        struct core_job *job = task->job;
        const struct mfl_announce *a = &update->announce;
        for (uint32_t i = a->item_first, r = 0; i < a->item_first + a->item_count; i++) {
                struct core_item *item = &job->items[task->index[i]];
                mfl_assert(item->state == ITEM_ASSIGNED && item->task == task);
                bool rejected = r < a->n_rejected && a->rejected[r].item == item->item;
                r += rejected;
                if (job->arrivals && ok && !rejected)
                        job->arrivals[job->n_arrivals++] = (struct mfl_arrival){.client = item->item,
                                .version = job->round,
                                .base = job->base[task->index[i]]};
                if (job->losses && ok && !rejected)
                        job->losses[task->index[i]] = a->losses[i - a->item_first];
                mfl_core_item_set(job, task->index[i], ok && !rejected ? ITEM_COUNTED : ITEM_REJECTED, NULL);
        }
        mfl_assert(task->n_held >= a->item_count);
        task->n_held -= a->item_count;
        if (task->daemon) {
                uint32_t seen = MFL_MIN(task->progress_items, a->item_count);
                task->progress_items -= seen;
                task->daemon->items_done += a->item_count - seen;
                mfl_core_daemon_idle(core, task->daemon);
        }
        job->progress_samples -= task->progress_samples;
        job->progress_loss -= task->progress_loss;
        task->progress_samples = 0;
        task->progress_loss = 0;
        mfl_core_dirty(core, job);
}

static void count_metrics(struct core_update *update)
{
        struct core_job *job = update->task->job;
        struct core_daemon *daemon = update->task->daemon;
        const struct mfl_announce *a = &update->announce;
        job->weight_counted += a->weight;
        if (job->weights)
                job->weights[mfl_core_item_staleness(job, update->task->index[a->item_first])] += a->weight;
        job->record.samples += a->samples;
        job->train_loss += a->loss_sum;
        for (uint32_t i = 0; i < a->n_scalars; i++)
                job->scalars[i] += a->scalars[i];
        job->record.clamped += a->clamped;
        job->train_correct += a->correct;
        if (!daemon)
                return;
        if (daemon->counted_stamp != job->stamp) {
                daemon->counted_stamp = job->stamp;
                job->record.daemons++;
        }
        for (uint32_t i = 0; i < daemon->n_relations; i++)
                if (daemon->relations[i].job == job->serial)
                        daemon->relations[i].fails = 0;
}

void mfl_core_update_refuse(struct mfl_core *core, struct core_update *update, const char *reason)
{
        struct core_task *task = update->task;
        char owner[CORE_OWNER_BYTES];
        mfl_core_update_move(update, UPDATE_REFUSED);
        mfl_strcpy(update->reason, sizeof update->reason, reason);
        task->job->weight_claimed -= update->announce.weight;
        mfl_snprintf(task->job->last_failure, sizeof task->job->last_failure, "an update was refused: %.170s",
                reason);
        finish_items(core, update, false);
        mfl_core_trace(core, task->job, "round %u: the update of %s is refused: %.160s", task->job->round,
                mfl_core_task_owner(core, task, owner), reason);
        mfl_core_send_refused(
                core, task->daemon, task->number, update->announce.update, MFL_REFUSED_INVALID, reason);
}

/* The update of a single client would travel as float32 without its group, unless it has a weight of its own. */
static void tell_cost(struct mfl_core *core, const struct core_update *update)
{
        const struct mfl_announce *a = &update->announce;
        const struct core_job *job = update->task->job;
        const struct core_daemon *daemon = mfl_core_map_get(&core->by_key, update->task->owner_key);
        if (!a->bytes || !daemon)
                return;
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_COST, job);
        mfl_core_node_label(daemon, action->cost.node);
        mfl_strcpy(action->cost.daemon, sizeof action->cost.daemon, daemon->info.name);
        action->cost.up =
                update->task->was_grouped && a->item_count == 1 && !mfl_method_get(job->spec)->weighs
                        ? 4 * (job->n_params - job->n_frozen)
                        : a->bytes;
}

void mfl_core_update_count(struct mfl_core *core, struct core_update *update)
{
        struct core_task *task = update->task;
        char owner[CORE_OWNER_BYTES];
        mfl_core_update_move(update, UPDATE_COUNTED);
        tell_cost(core, update);
        count_metrics(update);
        tell_rejected(core, update);
        finish_items(core, update, true);
        mfl_core_trace(core, task->job, "round %u: the update of %s counts; %u of %u clients done",
                task->job->round, mfl_core_task_owner(core, task, owner),
                task->job->count[ITEM_COUNTED] + task->job->count[ITEM_REJECTED], task->job->n_items);
        mfl_core_send_accepted(core, task->daemon, task->number, update->announce.update);
}
