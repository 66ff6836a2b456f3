/* SPDX-License-Identifier: Apache-2.0 */
/* The bed of the tests of groups; see group_bed.h. */
#include "tests/unit/server/group_bed.h"

#include <stdio.h>

static void feed(struct bed *bed, struct mfl_core_event event);

static void line(struct bed *bed, const char *fmt, ...) MFL_PRINTF(2, 3);
static void line(struct bed *bed, const char *fmt, ...)
{
        size_t n = strlen(bed->log);
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(bed->log + n, sizeof bed->log - n, fmt, ap);
        va_end(ap);
        n = strlen(bed->log);
        assert_true(n + 2 < sizeof bed->log);
        strcpy(bed->log + n, "\n");
}

static const char *who(const struct bed *bed, uint32_t conn)
{
        for (uint32_t i = 0; i < BED_DAEMONS; i++)
                if (conn && bed->conn[i] == conn)
                        return bed->info[i].name;
        return "-";
}

static void keep_task(struct bed *bed, uint32_t conn, const struct mfl_task *t)
{
        assert_true(bed->n_tasks < BED_TASKS && t->n_items <= 16);
        struct bed_task *task = &bed->task[bed->n_tasks++];
        *task = (struct bed_task){.task = t->task,
                .round = t->round,
                .n_items = t->n_items,
                .kind = t->kind,
                .params_from = t->params_from,
                .group = t->group};
        memcpy(task->items, t->items, t->n_items * sizeof *t->items);
        while (bed->conn[task->daemon] != conn)
                task->daemon++;
        for (uint32_t i = 0; i < t->group.n_members; i++) /* else it can't be sent */
                for (uint32_t k = 0; k < i; k++)
                        assert_true(t->group.members[i] != t->group.members[k]);
        char group[96] = "";
        if (t->group.group)
                snprintf(group, sizeof group, ", group %u by %s, rank %u of %u, workers %u",
                        (uint32_t)t->group.group, t->group.collective == MFL_COLLECTIVE_NCCL ? "nccl" : "shm",
                        t->group.rank, t->group.n_members, t->group.workers);
        line(bed, "%s: %s %u of %u from %u%s", who(bed, conn),
                t->kind == MFL_TASK_TRAIN ? "train" : "evaluate", (uint32_t)t->task, t->n_items,
                (uint32_t)t->params_from, group);
}

static void note_message(struct bed *bed, uint32_t conn, const struct mfl_msg *msg)
{
        const char *name = who(bed, conn);
        switch (msg->kind) {
        case MFL_MSG_TASK:
                keep_task(bed, conn, &msg->task);
                break;
        case MFL_MSG_COMBINE:
                line(bed, "%s: combine %u, ranks %llx, leader %u, %u ms", name, (uint32_t)msg->combine.group,
                        (unsigned long long)msg->combine.ranks, msg->combine.leader,
                        msg->combine.deadline_ms);
                break;
        case MFL_MSG_ALONE:
                line(bed, "%s: alone %u: %s", name, (uint32_t)msg->cancel.task, msg->cancel.reason);
                break;
        case MFL_MSG_CANCEL:
                line(bed, "%s: cancel %u", name, (uint32_t)msg->cancel.task);
                break;
        case MFL_MSG_ACCEPTED:
                line(bed, "%s: accepted %u", name, (uint32_t)msg->update.task);
                break;
        case MFL_MSG_REFUSED:
                line(bed, "%s: refused %u: %s", name, (uint32_t)msg->update.task, msg->update.reason);
                break;
        case MFL_MSG_COMMUNICATOR_ID:
                line(bed, "%s: id of %u is %u", name, (uint32_t)msg->communicator.communicator,
                        msg->communicator.id[0]);
                break;
        default:
                break;
        }
}

static void note(struct bed *bed, const struct mfl_core_action *action)
{
        const char *name = who(bed, action->conn);
        uint32_t slot = action->slot.slot, task = (uint32_t)action->slot.task;
        switch (action->kind) {
        case MFL_ACT_SEND:
                note_message(bed, action->conn, &action->msg);
                break;
        case MFL_ACT_CLOSE:
                line(bed, "%s: close: %s", name, action->reason);
                break;
        case MFL_ACT_GRANT:
                assert_true(action->slot.update == 0);
                if (bed->grant[slot] != action->slot.grant)
                        line(bed, "open %u for %u: %llu bytes, weight %llu, client %llu", slot, task,
                                (unsigned long long)action->slot.bytes,
                                (unsigned long long)action->slot.weight,
                                (unsigned long long)action->slot.item);
                bed->grant[slot] = action->slot.grant;
                bed->granted |= 1u << slot;
                line(bed, "%s: grant %u for %u", name, slot, task);
                break;
        case MFL_ACT_SLOT_ADD:
                line(bed, "add %u of %u, weight %llu", slot, task, (unsigned long long)action->slot.weight);
                break;
        case MFL_ACT_SLOT_FREE:
                bed->granted &= ~(1u << slot);
                line(bed, "free %u of %u", slot, task);
                break;
        case MFL_ACT_COST:
                if (bed->costs)
                        line(bed, "cost of %s at %s: up %llu, down %llu", action->cost.daemon,
                                action->cost.node, (unsigned long long)action->cost.up,
                                (unsigned long long)action->cost.down);
                break;
        case MFL_ACT_APPLY:
                line(bed, "apply %llu", (unsigned long long)action->totals.weight);
                break;
        case MFL_ACT_JOB_PREPARE:
                bed_job_event(bed, MFL_EV_JOB_READY);
                break;
        case MFL_ACT_JOB_RELEASE:
                line(bed, "release");
                break;
        default:
                break;
        }
}

static void feed(struct bed *bed, struct mfl_core_event event)
{
        struct mfl_core_actions mine = {0};
        if (bed->r)
                return;
        event.now_ms = bed->now;
        bed->r = mfl_core_step(bed->core, &event, &mine);
        if (!bed->r)
                mfl_core_check(bed->core);
        for (uint32_t i = 0; i < mine.n && !bed->r; i++)
                note(bed, &mine.v[i]);
        mfl_core_actions_deinit(&mine);
}

void bed_start(struct bed *bed, uint32_t clients)
{
        struct mfl_core_options options = {.boot = 1,
                .heartbeat_ms = 100000,
                .dead_ms = 300000,
                .reconnect_grace_ms = 10000,
                .upload_stall_ms = 15000};
        *bed = (struct bed){.n_slots = 4, .n_params = 4};
        strcpy(bed->spec.data.name, "d");
        bed->spec.rounds = 1;
        bed->spec.data.partition = MFL_PARTITION_IID;
        bed->spec.data.clients = clients;
        bed->spec.aggregation.delta_max = 16;
        bed->spec.aggregation.weighting = MFL_WEIGHT_UNIFORM;
        bed->spec.limits.quorum = 1;
        bed->spec.limits.deadline_ms = 3600000;
        bed->spec.limits.retries = 3;
        bed->spec.evaluation.batch = 10;
        bed->spec.selection.daemons_min = 1;
        bed->spec.selection.assign = MFL_ASSIGN_MODULO; /* so that times of the test don't matter */
        bed->r = mfl_core_new(&options, &bed->core, NULL);
        for (uint32_t i = 0; i < BED_DAEMONS; i++)
                bed_info(bed, i);
}

void bed_end(struct bed *bed)
{
        mfl_core_free(bed->core);
}

void bed_add_job(struct bed *bed)
{
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_JOB_ADD, .job = "j", .job_add = {&bed->spec, 0}});
        bed_wait(bed, 2000);
}

struct mfl_daemon_info *bed_info(struct bed *bed, uint32_t i)
{
        bed->info[i] = (struct mfl_daemon_info){.instance = i + 1,
                .node = "host",
                .workers = 2,
                .has_reach = true,
                .reach = {.user = 1000, .network_space = 7, .memory_space = 8}};
        snprintf(bed->info[i].name, sizeof bed->info[i].name, "d%02u", i);
        return &bed->info[i];
}

struct mfl_daemon_info *bed_gpu(struct bed *bed, uint32_t i)
{
        struct mfl_daemon_info *info = bed_info(bed, i);
        snprintf(info->device_uuid, sizeof info->device_uuid, "GPU-%u", i);
        snprintf(info->device_pci, sizeof info->device_pci, "0000:%02u:00.0", i);
        info->device_memory = (uint64_t)80 << 30;
        info->reach.nccl = 22809;
        return info;
}

void bed_up(struct bed *bed, uint32_t i)
{
        struct mfl_data_info data = {.name = "d", .classes = 10, .train_samples = 1000, .test_samples = 100};
        struct mfl_daemon_info info = bed->info[i];
        info.n_data_sets = 1;
        info.data_sets = &data;
        bed->conn[i] = ++bed->n_conns;
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = bed->conn[i], .daemon = &info});
}

void bed_down(struct bed *bed, uint32_t i)
{
        uint32_t conn = bed->conn[i];
        bed->conn[i] = 0;
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = conn});
}

void bed_wait(struct bed *bed, uint64_t ms)
{
        bed->now += ms;
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_TICK});
}

void bed_run(struct bed *bed, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                bed_up(bed, i);
        bed_add_job(bed);
        bed->log[0] = '\0';
}

struct bed_task *bed_task(struct bed *bed, uint32_t i)
{
        for (uint32_t k = bed->n_tasks; k-- > 0;)
                if (bed->task[k].daemon == i)
                        return &bed->task[k];
        return NULL;
}

void bed_send(struct bed *bed, uint32_t i, const struct mfl_msg *msg)
{
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = bed->conn[i], .msg = msg});
}

struct mfl_announce bed_announcement(struct bed *bed, uint32_t i, bool grouped)
{
        const struct bed_task *t = bed_task(bed, i);
        if (!t) /* memory was out */
                return (struct mfl_announce){0};
        return (struct mfl_announce){.task = t->task,
                .round = t->round,
                .item_count = t->n_items,
                .weight = t->n_items,
                .samples = t->n_items * 20,
                .bytes = bed->n_params * 8,
                .encoding = MFL_ENCODING_I64,
                .group = grouped ? t->group.group : 0,
                .job = "j"};
}

void bed_announce_as(struct bed *bed, uint32_t i, const struct mfl_announce *announce)
{
        struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE, .announce = *announce};
        bed_send(bed, i, &msg);
}

void bed_announce(struct bed *bed, uint32_t i, bool grouped)
{
        struct mfl_announce announce = bed_announcement(bed, i, grouped);
        bed_announce_as(bed, i, &announce);
}

void bed_combine_failed(struct bed *bed, uint32_t i, uint64_t group)
{
        struct mfl_msg msg = {
                .kind = MFL_MSG_COMBINE_FAILED, .cancel = {.task = group, .reason = "it broke"}};
        bed_send(bed, i, &msg);
}

void bed_chunk(struct bed *bed, uint32_t i)
{
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_UPLOADING, .conn = bed->conn[i]});
}

void bed_complete(struct bed *bed, uint32_t slot)
{
        feed(bed, (struct mfl_core_event){
                          .kind = MFL_EV_UPLOAD_COMPLETE, .job = "j", .upload = {slot, bed->grant[slot]}});
}

void bed_busy(struct bed *bed, uint32_t slot)
{
        feed(bed, (struct mfl_core_event){
                          .kind = MFL_EV_SLOT_BUSY, .job = "j", .upload = {slot, bed->grant[slot]}});
}

void bed_added(struct bed *bed, uint32_t slot, bool ok)
{
        struct mfl_core_event event = {
                .kind = MFL_EV_ADDED, .job = "j", .upload = {slot, bed->grant[slot]}, .ok = ok};
        strcpy(event.reason, ok ? "" : "not finite");
        feed(bed, event);
}

void bed_job_event(struct bed *bed, enum mfl_core_event_kind kind)
{
        struct mfl_core_event event = {.kind = kind, .ok = true, .job = "j"};
        if (kind == MFL_EV_JOB_READY) {
                event.job_ready.n_params = bed->n_params;
                event.job_ready.n_slots = bed->n_slots;
        } else if (kind == MFL_EV_APPLIED)
                event.digest[0] = (uint8_t)++bed->n_conns; /* other params each time */
        feed(bed, event);
}

struct mfl_core_daemon_view bed_view(struct bed *bed, const char *name)
{
        struct mfl_core_daemon_view view;
        for (uint32_t i = 0; i < mfl_core_daemon_count(bed->core); i++) {
                mfl_core_daemon_view(bed->core, i, &view);
                if (strcmp(view.info->name, name) == 0)
                        return view;
        }
        fail_msg("no daemon %s", name);
        return view;
}

void bed_expect_alone(struct bed *bed, const char *name, enum mfl_collective_kind collective, const char *why)
{
        struct mfl_core_daemon_view view = bed_view(bed, name);
        assert_string_equal(view.alone, why);
        assert_int_equal(view.collective, collective);
}

void bed_expect_at(struct bed *bed, const char *text, const char *file, int at)
{
        _assert_string_equal(bed->log, text, file, at);
        bed->log[0] = '\0';
}
