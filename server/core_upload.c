/* SPDX-License-Identifier: Apache-2.0 */
/* Uploads: announces, slots in the order of asking, sums, and what is told to the daemon. An update counts
 * once. */
#include "server/core_internal.h"
#include "server/round.h"
#include "server/round_speed.h"

/* ---- the queue and the slots ---- */

static void enqueue(struct core_job *job, struct core_update *update)
{
        update->state = UPDATE_QUEUED;
        update->queue_prev = job->queue_tail;
        update->queue_next = NULL;
        *(job->queue_tail ? &job->queue_tail->queue_next : &job->queue_head) = update;
        job->queue_tail = update;
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

static void grant(struct mfl_core *core, struct core_update *update)
{
        act_slot(core, MFL_ACT_GRANT, update);
        update->task->daemon->sent_ms = core->now_ms;
}

void mfl_core_slots_grant(struct mfl_core *core, struct core_job *job)
{
        for (uint32_t s = 0; s < job->n_slots && job->queue_head; s++) {
                if (job->slots[s])
                        continue;
                struct core_update *update = job->queue_head;
                dequeue(job, update);
                update->state = UPDATE_FILLING;
                update->slot = s;
                job->slots[s] = update;
                act_slot(core, MFL_ACT_SLOT_OPEN, update);
                grant(core, update);
                if (update->group)
                        mfl_core_group_granted(core, update->group);
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

void mfl_core_update_enqueue(struct mfl_core *core, struct core_update *update)
{
        enqueue(update->task->job, update);
        mfl_core_dirty(core, update->task->job);
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

static void send_accepted(struct mfl_core *core, struct core_daemon *daemon, uint64_t task, uint32_t update)
{
        if (!daemon || !daemon->conn)
                return;
        struct mfl_msg *msg = mfl_core_send(core, daemon, MFL_MSG_ACCEPTED);
        msg->update.task = task;
        msg->update.update = update;
}

static void send_refused(struct mfl_core *core, struct core_daemon *daemon, uint64_t task, uint32_t update,
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

static void refuse_invalid(struct mfl_core *core, struct core_update *update, const char *reason)
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
        send_refused(core, task->daemon, task->number, update->announce.update, MFL_REFUSED_INVALID, reason);
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
        action->cost.up = a->group && a->item_count == 1 ? 4 * job->n_params : a->bytes;
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
        send_accepted(core, task->daemon, task->number, update->announce.update);
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
        refuse_invalid(core, update, reason);
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
                refuse_invalid(core, update, reason);
}

/* ---- announces ---- */

/* A task that is not known: of an earlier round, boot or server. */
static void answer_unknown(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_announce *a)
{
        struct core_job *job = mfl_core_job(core, a->job);
        enum mfl_refused code = MFL_REFUSED_UNKNOWN;
        const char *reason = "no such task";
        if (job && job->phase != PHASE_OVER) {
                /* The server started anew and has not yet dealt this round: the daemon holds on to the
                 * result, and announces it again when it gets the same clients. */
                bool undealt = job->phase <= PHASE_TRAIN_WAIT && a->round == job->round;
                if (undealt && a->task >> 32 < core->options.boot) {
                        daemon->resumes = true;
                        mfl_round_held(core, daemon, job, a);
                        return;
                }
                if (a->round < job->round || job->phase > PHASE_TRAIN) {
                        code = MFL_REFUSED_LATE;
                        reason = "the round is over";
                }
        }
        send_refused(core, daemon, a->task, a->update, code, reason);
}

/* What a correct daemon never announces; NULL when it is right. */
static const char *find_fault(const struct core_task *task, const struct mfl_announce *a)
{
        const struct core_job *job = task->job;
        if (task->kind != MFL_TASK_TRAIN || a->round != job->round || strcmp(a->job, job->id) != 0)
                return "it is not of that task";
        if (!a->item_count || a->item_first >= task->n_items ||
                a->item_count > task->n_items - a->item_first || a->update >= task->n_items)
                return "its items are not in the task";
        if (a->n_rejected > a->item_count)
                return "more clients rejected than it has";
        for (uint32_t i = 0, at = a->item_first; i < a->n_rejected; i++, at++) {
                while (at < a->item_first + a->item_count &&
                        job->items[task->index[at]].item != a->rejected[i].item)
                        at++;
                if (at == a->item_first + a->item_count)
                        return "its rejected clients are not its own, in order";
        }
        if (task->group && a->group == task->group->number && a->n_rejected < a->item_count &&
                a->encoding != MFL_ENCODING_I64)
                return "what a group adds is int64";
        return NULL;
}

/* What makes an update invalid although it is well formed. */
static const char *find_invalid(const struct core_job *job, const struct mfl_announce *a)
{
        uint32_t n_clients = a->item_count - a->n_rejected;
        uint64_t unit = a->encoding == MFL_ENCODING_F32 ? 4 : 8;
        if (!n_clients)
                return a->bytes || a->weight
                               ? "an update of rejected clients alone has no bytes and no weight"
                               : NULL;
        if (a->encoding == MFL_ENCODING_F32 && n_clients != 1)
                return "only a single client's update may be float32";
        if (a->bytes != job->n_params * unit)
                return "wrong size";
        if (mfl_job_needs_single_updates(job->spec) && a->item_count != 1)
                return "this job wants one update per client";
        if (mfl_job_needs_single_updates(job->spec) && a->encoding != MFL_ENCODING_F32)
                return "this job wants float32";
        if (!a->weight || a->weight / n_clients >= MFL_WEIGHT_MAX)
                return "impossible weight";
        if (job->spec->aggregation.weighting == MFL_WEIGHT_UNIFORM && a->weight != n_clients)
                return "weight is not the number of clients";
        if (a->weight > job->fixed.weight_max - job->weight_claimed)
                return "the round's weights exceed their limit";
        return NULL;
}

static struct core_update *new_update(struct core_task *task, const struct mfl_announce *a)
{
        struct core_update *update = mfl_calloc(1, sizeof *update);
        if (!update)
                return NULL;
        update->task = task;
        update->announce = *a;
        update->announce.rejected = mfl_calloc(a->n_rejected, sizeof *a->rejected);
        if (!update->announce.rejected) {
                free(update);
                return NULL;
        }
        if (a->n_rejected)
                memcpy(update->announce.rejected, a->rejected, a->n_rejected * sizeof *a->rejected);
        return update;
}

static void announce_again(struct mfl_core *core, struct core_daemon *daemon, struct core_update *update,
        const struct mfl_announce *a)
{
        const struct mfl_announce *was = &update->announce;
        if (a->item_first != was->item_first || a->item_count != was->item_count || a->bytes != was->bytes ||
                a->weight != was->weight || a->encoding != was->encoding ||
                a->n_rejected != was->n_rejected) {
                mfl_core_daemon_close(
                        core, daemon, true, "update %u of task %u changed", a->update, (uint32_t)a->task);
                return;
        }
        if (update->state == UPDATE_COUNTED && MFL_SIM_BUG(1)) {
                update->task->n_held += a->item_count;
                for (uint32_t i = 0; i < a->item_count; i++)
                        mfl_core_item_set(update->task->job, update->task->index[a->item_first + i],
                                ITEM_ASSIGNED, update->task);
                enqueue(update->task->job, update);
                mfl_core_dirty(core, update->task->job);
        } else if (update->group && update->state < UPDATE_ADDING && !a->group)
                mfl_core_group_alone(core, update->task, "it asked for that");
        else if (update->state == UPDATE_COUNTED)
                send_accepted(core, daemon, a->task, a->update);
        else if (update->state == UPDATE_REFUSED)
                send_refused(core, daemon, a->task, a->update, MFL_REFUSED_INVALID, update->reason);
        else if (update->state == UPDATE_FILLING)
                grant(core, update);
}

/* If the task was taken away, its clients are open, or with others. Those that nobody has may still count
 * here; each of its updates asks for its own ones. */
static bool adopt_items(struct mfl_core *core, struct core_task *task, const struct mfl_announce *a,
        enum mfl_refused *ret_code)
{
        struct core_job *job = task->job;
        for (uint32_t i = a->item_first; i < a->item_first + a->item_count; i++) {
                const struct core_item *item = &job->items[task->index[i]];
                if (item->state == ITEM_COUNTED || item->state == ITEM_REJECTED) {
                        *ret_code = MFL_REFUSED_DUPLICATE;
                        return false;
                }
                if (item->state == ITEM_ASSIGNED && item->task != task) {
                        *ret_code = MFL_REFUSED_UNKNOWN;
                        return false;
                }
        }
        for (uint32_t i = a->item_first; i < a->item_first + a->item_count; i++) {
                task->n_held += job->items[task->index[i]].task != task;
                mfl_core_item_set(job, task->index[i], ITEM_ASSIGNED, task);
        }
        mfl_core_dirty(core, job);
        return true;
}

static bool covered(const struct core_task *task, const struct mfl_announce *a)
{
        for (uint32_t i = a->item_first; i < a->item_first + a->item_count; i++)
                if (task->cover[i])
                        return true;
        return false;
}

void mfl_core_announced(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_announce *a)
{
        struct core_task *task = mfl_core_map_get(&core->tasks, a->task);
        enum mfl_refused code = MFL_REFUSED_UNKNOWN;
        if (!task) {
                answer_unknown(core, daemon, a);
                return;
        }
        const char *fault = find_fault(task, a);
        if (fault) {
                mfl_core_daemon_close(
                        core, daemon, true, "announce of task %u: %s", (uint32_t)a->task, fault);
                return;
        }
        struct core_job *job = task->job;
        struct core_update *update = task->updates[a->update];
        bool taken = !task->daemon;
        if (taken ? task->owner_key != daemon->key || task->owner_instance != daemon->info.instance
                  : task->daemon != daemon) {
                send_refused(core, daemon, a->task, a->update, MFL_REFUSED_UNKNOWN,
                        "the task is another daemon's");
                return;
        }
        if (update) {
                announce_again(core, daemon, update, a);
                return;
        }
        if (job->phase != PHASE_TRAIN) {
                send_refused(core, daemon, a->task, a->update, MFL_REFUSED_LATE, "the round is over");
                return;
        }
        if (covered(task, a)) {
                mfl_core_daemon_close(core, daemon, true, "update %u of task %u overlaps another", a->update,
                        (uint32_t)a->task);
                return;
        }
        if (!adopt_items(core, task, a, &code)) {
                send_refused(core, daemon, a->task, a->update, code,
                        code == MFL_REFUSED_DUPLICATE ? "its clients were counted"
                                                      : "its clients were given to others");
                return;
        }
        if (taken)
                mfl_core_task_attach(task, daemon);
        update = new_update(task, a);
        if (!update) {
                core->error = -ENOMEM;
                return;
        }
        task->updates[a->update] = update;
        for (uint32_t i = 0; i < a->item_count; i++)
                task->cover[a->item_first + i] = a->update + 1;
        task->n_covered += a->item_count;
        if (task->n_covered == task->n_items)
                mfl_round_measure(core, task);
        const char *invalid = find_invalid(job, a);
        job->weight_claimed += a->weight;
        if (!invalid && mfl_core_group_takes(task, a)) {
                mfl_core_group_ready(core, update);
                return;
        }
        mfl_core_group_lose(core, task, "its update is not for the group");
        if (invalid)
                refuse_invalid(core, update, invalid);
        else if (a->n_rejected == a->item_count)
                mfl_core_update_count(core, update);
        else
                enqueue(job, update);
        mfl_core_dirty(core, job);
}
