/* SPDX-License-Identifier: Apache-2.0 */
/* Uploads: slots in the order of asking, sums, and what is told to the daemon. An update counts once. */
#include "server/core_internal.h"

/* ---- the queue and the slots ---- */

void mfl_core_update_enqueue(struct mfl_core *core, struct core_update *update)
{
        struct core_job *job = update->task->job;
        update->state = UPDATE_QUEUED;
        update->queue_prev = job->queue_tail;
        update->queue_next = NULL;
        *(job->queue_tail ? &job->queue_tail->queue_next : &job->queue_head) = update;
        job->queue_tail = update;
        mfl_core_dirty(core, job);
}

static void dequeue(struct core_job *job, struct core_update *update)
{
        *(update->queue_prev ? &update->queue_prev->queue_next : &job->queue_head) = update->queue_next;
        *(update->queue_next ? &update->queue_next->queue_prev : &job->queue_tail) = update->queue_prev;
        update->queue_prev = update->queue_next = NULL;
}

static struct mfl_core_action *act_slot(
        struct mfl_core *core, enum mfl_core_action_kind kind, const struct core_update *update)
{
        const struct core_task *task = update->task;
        const struct mfl_announce *a = &update->announce;
        struct mfl_core_action *action = mfl_core_act(core, kind, task->job);
        action->conn = task->daemon ? task->daemon->conn : 0;
        action->slot.slot = update->slot;
        action->slot.task = task->number;
        action->slot.update = a->update;
        action->slot.bytes = a->bytes;
        action->slot.weight = a->weight;
        action->slot.encoding = a->encoding;
        if (update->group) { /* it stands for all of them */
                action->slot.task = update->group->number;
                action->slot.update = 0;
                action->slot.weight = mfl_core_group_weight(update->group);
        }
        for (uint32_t i = 0; i < a->item_count; i++) { /* its first client that was not rejected */
                action->slot.item = task->job->items[task->index[a->item_first + i]].item;
                if (i >= a->n_rejected || a->rejected[i].item != action->slot.item)
                        break;
        }
        return action;
}

void mfl_core_update_grant(struct mfl_core *core, struct core_update *update)
{
        act_slot(core, MFL_ACT_GRANT, update);
        update->since_ms = MFL_MAX(update->since_ms, core->now_ms);
        update->task->daemon->sent_ms = core->now_ms;
}

/* When its daemon, who lives, has sent nothing of any upload for so long. Of one whose connection is lost the
 * bytes are kept for its grace time. */
static uint64_t stalls_at(const struct mfl_core *core, const struct core_update *update)
{
        const struct core_daemon *daemon = update->task->daemon;
        if (update->state != UPDATE_FILLING || !daemon || !daemon->conn || !core->options.upload_stall_ms ||
                MFL_SIM_BUG(27) || (update->group && MFL_SIM_BUG(22)))
                return CORE_NEVER;
        return MFL_MAX(update->since_ms, daemon->chunk_ms) + core->options.upload_stall_ms;
}

/* Members of a group could upload by themselves. Others wait for the slot: its turn comes again. If nobody
 * does, it is asked again for what is missing, and keeps what is here. */
static void give_up_stalled(struct mfl_core *core, struct core_job *job)
{
        for (uint32_t s = 0; s < job->n_slots; s++) {
                struct core_update *update = job->slots[s];
                if (!update || core->now_ms < stalls_at(core, update))
                        continue;
                bool asks = !update->group && !job->queue_head;
                mfl_core_trace(core, job, "round %u: daemon %s sends nothing; %s", job->round,
                        update->task->daemon->info.name, asks ? "it is asked again" : "it gives its slot up");
                if (update->group) {
                        mfl_core_group_stalled(core, update->group);
                } else if (asks) {
                        mfl_core_update_grant(core, update);
                } else {
                        mfl_core_update_unslot(core, update);
                        mfl_core_update_enqueue(core, update);
                }
        }
}

void mfl_core_slots_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms)
{
        if (!job->slots || job->phase != PHASE_TRAIN)
                return;
        for (uint32_t s = 0; s < job->n_slots; s++) {
                const struct core_update *update = job->slots[s];
                uint64_t at = update ? stalls_at(core, update) : CORE_NEVER;
                if (core->now_ms >= at)
                        mfl_core_dirty(core, job);
                else
                        *next_ms = MFL_MIN(*next_ms, at);
        }
}

void mfl_core_slots_grant(struct mfl_core *core, struct core_job *job)
{
        give_up_stalled(core, job);
        for (uint32_t s = 0; s < job->n_slots && job->queue_head; s++) {
                if (job->slots[s])
                        continue;
                struct core_update *update = job->queue_head;
                dequeue(job, update);
                update->state = UPDATE_FILLING;
                update->slot = s;
                update->since_ms = core->now_ms;
                job->slots[s] = update;
                act_slot(core, MFL_ACT_SLOT_OPEN, update);
                mfl_core_update_grant(core, update);
                if (update->group)
                        update->since_ms = mfl_core_group_granted(core, update->group);
                if (update->group)
                        mfl_core_trace(core, job,
                                "round %u: daemon %s uploads the sum of group %u into slot %u", job->round,
                                update->task->daemon->info.name, (uint32_t)update->group->number, s);
                else
                        mfl_core_trace(core, job,
                                "round %u: daemon %s uploads update %u of task %u into slot %u", job->round,
                                update->task->daemon->info.name, update->announce.update,
                                (uint32_t)update->task->number, s);
        }
        uint64_t next_ms = CORE_NEVER;
        if (job->phase == PHASE_TRAIN)
                mfl_core_slots_timers(core, job, &next_ms);
        mfl_core_wake(core, next_ms);
}

static void free_slot(struct mfl_core *core, struct core_update *update)
{
        struct core_job *job = update->task->job;
        mfl_assert(job->slots[update->slot] == update);
        job->slots[update->slot] = NULL;
        act_slot(core, MFL_ACT_SLOT_FREE, update);
        mfl_core_dirty(core, job); /* the next in the queue */
}

void mfl_core_update_free(struct core_update *update)
{
        if (!update)
                return;
        free(update->announce.rejected);
        free(update);
}

void mfl_core_update_unslot(struct mfl_core *core, struct core_update *update)
{
        mfl_assert(update->state < UPDATE_ADDING);
        if (update->state == UPDATE_QUEUED)
                dequeue(update->task->job, update);
        else if (update->state == UPDATE_FILLING)
                free_slot(core, update);
        update->state = UPDATE_GROUPED;
}

void mfl_core_update_drop(struct mfl_core *core, struct core_update *update)
{
        struct core_task *task = update->task;
        const struct mfl_announce *a = &update->announce;
        mfl_assert(!update->group);
        mfl_core_update_unslot(core, update);
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

/* Clients that their own daemon rejected: people want to know why, above all when a round fails for it. */
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
        job->weight_counted += MFL_SIM_BUG(5) ? a->weight / 2 : a->weight;
        job->record.samples += a->samples;
        job->train_loss += a->loss_sum;
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
        update->state = UPDATE_REFUSED;
        mfl_strcpy(update->reason, sizeof update->reason, reason);
        task->job->weight_claimed -= update->announce.weight;
        mfl_snprintf(task->job->last_failure, sizeof task->job->last_failure, "an update was refused: %.170s",
                reason);
        finish_items(core, update, false);
        mfl_core_trace(core, task->job, "round %u: update %u of task %u is refused: %.160s", task->job->round,
                update->announce.update, (uint32_t)task->number, reason);
        mfl_core_send_refused(
                core, task->daemon, task->number, update->announce.update, MFL_REFUSED_INVALID, reason);
}

/* A client by itself travels as float32, but within a group as what is added. */
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
        action->cost.up = update->task->was_grouped && a->item_count == 1
                                  ? 4 * (job->n_params - job->n_frozen)
                                  : a->bytes;
}

void mfl_core_update_count(struct mfl_core *core, struct core_update *update)
{
        struct core_task *task = update->task;
        update->state = UPDATE_COUNTED;
        tell_cost(core, update);
        count_metrics(update);
        tell_rejected(core, update);
        finish_items(core, update, true);
        mfl_core_trace(core, task->job, "round %u: update %u of task %u counts; %u of %u clients done",
                task->job->round, update->announce.update, (uint32_t)task->number,
                task->job->count[ITEM_COUNTED] + task->job->count[ITEM_REJECTED], task->job->n_items);
        mfl_core_send_accepted(core, task->daemon, task->number, update->announce.update);
}

void mfl_core_upload_complete(struct mfl_core *core, struct core_job *job, uint32_t slot)
{
        struct core_update *update = slot < job->n_slots && job->slots ? job->slots[slot] : NULL;
        if (!update || update->state != UPDATE_FILLING)
                return; /* taken back in the meantime */
        update->state = UPDATE_ADDING;
        if (update->group)
                mfl_core_group_adding(update->group);
        job->n_adding++;
        job->n_pending++;
        act_slot(core, MFL_ACT_SLOT_ADD, update);
        if (MFL_SIM_BUG(4))
                act_slot(core, MFL_ACT_SLOT_FREE, update);
}

/* No memory could be had for a slot, or none that fits: nothing was granted, and nothing will come. */
static void unopened(struct mfl_core *core, struct core_update *update, const char *reason)
{
        if (update->group) {
                mfl_core_group_unopened(core, update->group, reason);
                return;
        }
        mfl_core_update_unslot(core, update);
        mfl_core_update_refuse(core, update, reason);
}

void mfl_core_added(struct mfl_core *core, struct core_job *job, uint32_t slot, bool ok, const char *reason)
{
        struct core_update *update = slot < job->n_slots ? job->slots[slot] : NULL;
        if (!ok && (!update || update->state == UPDATE_FILLING)) {
                if (update)
                        unopened(core, update, reason);
                return;
        }
        mfl_assert(update && update->state == UPDATE_ADDING && job->n_adding && job->n_pending);
        job->n_adding--;
        job->n_pending--;
        free_slot(core, update);
        if (update->group)
                mfl_core_group_added(core, update->group, ok, reason);
        else if (ok)
                mfl_core_update_count(core, update);
        else
                mfl_core_update_refuse(core, update, reason);
}
