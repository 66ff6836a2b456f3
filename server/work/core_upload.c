/* SPDX-License-Identifier: Apache-2.0 */
/* Uploads: slots in the order of announcing, and what the shell tells about them. */
#include "server/work/core_upload.h"

#include "server/work/core_claims.h"
#include "server/work/core_group.h"
#include "server/work/core_measure.h"
#include "server/work/core_member.h"
#include "server/work/core_update.h"

/* While downloads hold the memory of slots, this long passes between two tries. */
#define MEMORY_RETRY_MS 200

void mfl_core_update_grant(struct mfl_core *core, struct core_update *update)
{
        mfl_core_update_act(core, MFL_ACT_GRANT, update);
        update->since_ms = MFL_MAX(update->since_ms, core->now_ms);
        update->task->daemon->sent_ms = core->now_ms;
}

/* When a daemon that is connected has sent no bytes of any upload for too long. If its connection is lost,
 * the bytes are kept for its grace time. */
static uint64_t stalls_at(const struct mfl_core *core, const struct core_update *update)
{
        const struct core_daemon *daemon = update->task->daemon;
        if (update->state != UPDATE_FILLING || !daemon || !daemon->conn || !core->options.upload_stall_ms)
                return CORE_NEVER;
        return MFL_MAX(update->since_ms, daemon->upload_ms) + core->options.upload_stall_ms;
}

/* The members of a group could upload alone, so the group ends. If other updates wait for the slot, they
 * go first, and this one waits again. Otherwise the daemon is asked again for the missing bytes. */
static void give_up_stalled(struct mfl_core *core, struct core_job *job)
{
        for (uint32_t s = 0; s < job->n_slots; s++) {
                struct core_update *update = job->slots[s].update;
                if (!update || core->now_ms < stalls_at(core, update))
                        continue;
                bool asks = !update->group && !job->queue_head;
                mfl_core_trace(core, job, "round %u: daemon %s sends nothing; %s", job->round,
                        update->task->daemon->info.name,
                        asks ? "the server asks it again" : "others upload first");
                if (update->group) {
                        mfl_core_group_stalled(core, update->group);
                } else if (asks) {
                        mfl_core_update_grant(core, update);
                } else {
                        mfl_core_update_free_slot(core, update);
                        mfl_core_update_enqueue(core, update);
                }
        }
}

void mfl_core_slots_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms)
{
        if (!job->slots || job->phase != PHASE_TRAIN)
                return;
        uint64_t due = job->queue_head && job->memory_ms ? job->memory_ms : CORE_NEVER;
        for (uint32_t s = 0; s < job->n_slots; s++)
                if (job->slots[s].update)
                        due = MFL_MIN(due, stalls_at(core, job->slots[s].update));
        if (core->now_ms >= due)
                mfl_core_dirty(core, job);
        else
                *next_ms = MFL_MIN(*next_ms, due);
}

static void trace_grant(struct mfl_core *core, const struct core_update *update)
{
        const struct core_job *job = update->task->job;
        mfl_core_trace(core, job, "round %u: daemon %s uploads %s", job->round,
                update->task->daemon->info.name, update->group ? "the sum of its group" : "an update");
}

static void take_slot(struct mfl_core *core, struct core_update *update, uint32_t s)
{
        struct core_job *job = update->task->job;
        mfl_core_update_dequeue(job, update);
        mfl_core_update_move(update, UPDATE_FILLING);
        update->slot = s;
        update->since_ms = core->now_ms;
        job->slots[s] = (struct core_slot){.update = update, .grant = ++core->grant_serial};
        mfl_core_update_grant(core, update);
        if (update->group)
                update->since_ms = mfl_core_group_granted(core, update->group);
        if (!update->told)
                trace_grant(core, update);
}

/* In real time, a version takes so many updates and no more: the others wait for the next one. */
static bool has_place(const struct core_job *job)
{
        uint32_t n = job->count[ITEM_COUNTED];
        for (uint32_t s = 0; s < job->n_slots; s++)
                n += job->slots[s].update != NULL;
        return !mfl_job_is_live(job->spec) || n < job->n_wanted;
}

void mfl_core_slots_grant(struct mfl_core *core, struct core_job *job)
{
        give_up_stalled(core, job);
        if (job->queue_head && !mfl_core_claims_known(job))
                return; /* some daemon tells the samples soon: it cut the population before it announced */
        if (core->now_ms >= job->memory_ms)
                job->memory_ms = 0;
        for (uint32_t s = 0; s < job->n_slots && job->queue_head && !job->memory_ms; s++)
                if (!job->slots[s].update && has_place(job))
                        take_slot(core, job->queue_head, s);
        uint64_t next_ms = CORE_NEVER;
        if (job->phase == PHASE_TRAIN)
                mfl_core_slots_timers(core, job, &next_ms);
        mfl_core_wake(core, next_ms);
}

/* ---- what the shell tells of a slot ---- */

static void complete(struct mfl_core *core, struct core_update *update, uint32_t conn)
{
        struct core_job *job = update->task->job;
        struct core_daemon *daemon = update->task->daemon;
        if (daemon && daemon->conn == conn)
                daemon->heard_ms = daemon->upload_ms = core->now_ms;
        job->memory_ms = 0;
        mfl_core_measure_upload(core, update);
        if (update->group)
                mfl_core_group_adding(update->group);
        else
                mfl_core_update_move(update, UPDATE_ADDING);
        job->n_adding++;
        job->n_pending++;
        mfl_core_update_act(core, MFL_ACT_SLOT_ADD, update);
}

/* The slot is freed all the same: it may have been granted again, and opened, before this event came. A
 * daemon that was lost meanwhile announces again. */
static void busy(struct mfl_core *core, struct core_update *update)
{
        struct core_job *job = update->task->job;
        const struct core_daemon *daemon = update->task->daemon;
        if (!update->told)
                mfl_core_trace(core, job,
                        "round %u: an upload waits for memory until downloads of old params end", job->round);
        job->memory_ms = core->now_ms + MEMORY_RETRY_MS;
        mfl_core_update_free_slot(core, update);
        update->told = true;
        mfl_core_update_enqueue_first(core, update);
        if (update->group)
                mfl_core_group_ungranted(update->group);
        else if (!daemon || !daemon->conn)
                mfl_core_update_drop(core, update);
}

static void added(struct mfl_core *core, struct core_update *update, bool ok, const char *reason)
{
        struct core_job *job = update->task->job;
        mfl_assert(update->state == UPDATE_ADDING && job->n_adding && job->n_pending);
        job->n_adding--;
        job->n_pending--;
        mfl_core_update_free_slot(core, update);
        if (update->group)
                mfl_core_group_added(core, update->group, ok, reason);
        else if (ok)
                mfl_core_update_count(core, update);
        else
                mfl_core_update_refuse(core, update, reason);
}

/* The event may be late: the slot may have been taken back and given to another update since. */
void mfl_core_slot_event(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event)
{
        mfl_assert(job->slots && event->upload.slot < job->n_slots);
        const struct core_slot *slot = &job->slots[event->upload.slot];
        bool current = slot->grant == event->upload.grant;
        struct core_update *update = current ? slot->update : NULL;
        mfl_assert(
                update || event->kind != MFL_EV_ADDED); /* a slot that the worker reads is not taken back */
        if (update && event->kind == MFL_EV_ADDED)
                added(core, update, event->ok, event->reason);
        else if (update && update->state == UPDATE_FILLING && event->kind == MFL_EV_UPLOAD_COMPLETE)
                complete(core, update, event->conn);
        else if (update && update->state == UPDATE_FILLING && event->kind == MFL_EV_SLOT_BUSY)
                busy(core, update);
}
