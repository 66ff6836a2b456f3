/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as plain data: freeing, copying, and a line of text for traces. */
#include "proto/message.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const names[MFL_MSG_COUNT_] = {
        [MFL_MSG_NONE] = "none",
        [MFL_MSG_HELLO] = "Hello",
        [MFL_MSG_WELCOME] = "Welcome",
        [MFL_MSG_BYE] = "Bye",
        [MFL_MSG_PING] = "Ping",
        [MFL_MSG_PONG] = "Pong",
        [MFL_MSG_JOB_SPEC] = "JobSpec",
        [MFL_MSG_TASK] = "Task",
        [MFL_MSG_CANCEL] = "Cancel",
        [MFL_MSG_PARAMS_GET] = "ParamsGet",
        [MFL_MSG_PARAMS_GONE] = "ParamsGone",
        [MFL_MSG_ANNOUNCE] = "Announce",
        [MFL_MSG_GRANT] = "Grant",
        [MFL_MSG_ACCEPTED] = "Accepted",
        [MFL_MSG_REFUSED] = "Refused",
        [MFL_MSG_EVAL_RESULT] = "EvalResult",
        [MFL_MSG_TASK_FAILED] = "TaskFailed",
        [MFL_MSG_PROGRESS] = "Progress",
        [MFL_MSG_TELEMETRY] = "Telemetry",
        [MFL_MSG_COMBINE] = "Combine",
        [MFL_MSG_COMBINE_FAILED] = "CombineFailed",
        [MFL_MSG_ALONE] = "Alone",
        [MFL_MSG_COMMUNICATOR_ID] = "CommunicatorId",
        [MFL_MSG_LEAVING] = "Leaving",
        [MFL_MSG_RECALL] = "Recall",
        [MFL_MSG_RETURNED] = "Returned",
};

const char *mfl_activity_state_name(enum mfl_activity_state state)
{
        static const char *const states[] = {"compute", "data", "network", "wait"};
        return states[state];
}

const char *mfl_msg_name(enum mfl_msg_kind kind)
{
        return (unsigned)kind < MFL_MSG_COUNT_ ? names[kind] : "unknown";
}

/* The one array that messages of some kinds own. */
struct array {
        void **data;
        size_t n, item_bytes;
};

static struct array array_of(struct mfl_msg *msg)
{
        switch (msg->kind) {
        case MFL_MSG_HELLO:
                return (struct array){
                        (void **)&msg->hello.data_sets, msg->hello.n_data_sets, sizeof *msg->hello.data_sets};
        case MFL_MSG_TASK:
                return (struct array){(void **)&msg->task.items, msg->task.n_items, sizeof *msg->task.items};
        case MFL_MSG_ANNOUNCE:
                return (struct array){(void **)&msg->announce.rejected, msg->announce.n_rejected,
                        sizeof *msg->announce.rejected};
        case MFL_MSG_GRANT:
                return (struct array){
                        (void **)&msg->update.ranges, msg->update.n_ranges, sizeof *msg->update.ranges};
        case MFL_MSG_EVAL_RESULT:
                return (struct array){(void **)&msg->eval.items, msg->eval.n_items, sizeof *msg->eval.items};
        default:
                return (struct array){0};
        }
}

void mfl_msg_deinit(struct mfl_msg *msg)
{
        if (!msg)
                return;
        struct array a = array_of(msg);
        if (a.data)
                free(*a.data);
        if (msg->kind == MFL_MSG_EVAL_RESULT)
                free(msg->eval.tally);
        memset(msg, 0, sizeof *msg);
}

int mfl_msg_copy(const struct mfl_msg *msg, struct mfl_msg *ret_copy)
{
        struct mfl_msg copy = *msg;
        struct array a = array_of(&copy);
        if (a.data && *a.data) {
                void *data = mfl_calloc(a.n, a.item_bytes);
                if (!data)
                        return -ENOMEM;
                memcpy(data, *a.data, a.n * a.item_bytes);
                *a.data = data;
        }
        if (msg->kind == MFL_MSG_EVAL_RESULT && msg->eval.n_tally) {
                size_t n = msg->eval.n_tally, bytes = n * sizeof *msg->eval.tally;
                copy.eval.tally = mfl_calloc(n, sizeof *msg->eval.tally);
                if (!copy.eval.tally) {
                        free(copy.eval.items);
                        return -ENOMEM;
                }
                memcpy(copy.eval.tally, msg->eval.tally, bytes);
        }
        *ret_copy = copy;
        return 0;
}

static const char *refused_name(enum mfl_refused code)
{
        static const char *const text[] = {"?", "late", "duplicate", "invalid", "unknown"};
        return (unsigned)code < MFL_ARRAY_SIZE(text) ? text[code] : "?";
}

static uint64_t range_bytes(const struct mfl_msg *m)
{
        uint64_t sum = 0;
        for (uint32_t i = 0; i < m->update.n_ranges; i++)
                sum += m->update.ranges[i].bytes;
        return sum;
}

/* The kinds about a task. */
static void task_text(const struct mfl_msg *m, char *buf, size_t n)
{
        const struct mfl_announce *a = &m->announce;
        switch (m->kind) {
        case MFL_MSG_TASK:
                snprintf(buf, n, "task %" PRIu64 ": %s round %u of %s, %u items%s", m->task.task,
                        m->task.kind == MFL_TASK_EVAL     ? "evaluate"
                        : m->task.kind == MFL_TASK_ASSIST ? "help to train"
                                                          : "train",
                        m->task.round, m->task.job, m->task.n_items,
                        m->task.group.group ? ", in a group" : "");
                break;
        case MFL_MSG_CANCEL:
                snprintf(buf, n, "task %" PRIu64 ": cancel: %s", m->cancel.task, m->cancel.reason);
                break;
        case MFL_MSG_ANNOUNCE:
                snprintf(buf, n,
                        "task %" PRIu64 ": update %u of round %u of %s: items %u to %u, %u rejected, %" PRIu64
                        " bytes, weight %" PRIu64 "%s",
                        a->task, a->update, a->round, a->job, a->item_first,
                        a->item_first + a->item_count - 1, a->n_rejected, a->bytes, a->weight,
                        a->group ? ", for its group" : "");
                break;
        case MFL_MSG_GRANT:
                snprintf(buf, n, "task %" PRIu64 ": update %u granted: %u ranges, %" PRIu64 " bytes",
                        m->update.task, m->update.update, m->update.n_ranges, range_bytes(m));
                break;
        case MFL_MSG_ACCEPTED:
                snprintf(buf, n, "task %" PRIu64 ": update %u accepted", m->update.task, m->update.update);
                break;
        case MFL_MSG_REFUSED:
                snprintf(buf, n, "task %" PRIu64 ": update %u refused, %s: %s", m->update.task,
                        m->update.update, refused_name(m->update.code), m->update.reason);
                break;
        case MFL_MSG_EVAL_RESULT:
                snprintf(buf, n, "task %" PRIu64 ": evaluated %u items", m->eval.task, m->eval.n_items);
                break;
        case MFL_MSG_TASK_FAILED:
                snprintf(buf, n, "task %" PRIu64 ": failed%s: %s", m->failed.task,
                        m->failed.permanent ? " for good" : "", m->failed.reason);
                break;
        case MFL_MSG_PROGRESS:
                snprintf(buf, n, "task %" PRIu64 ": %u items done, %" PRIu64 " samples", m->progress.task,
                        m->progress.items_done, m->progress.samples_done);
                break;
        case MFL_MSG_RECALL:
        case MFL_MSG_RETURNED:
                snprintf(buf, n, "task %" PRIu64 ": %s the first %u items", m->recall.task,
                        m->kind == MFL_MSG_RECALL ? "keep" : "has", m->recall.n_items);
                break;
        default:
                snprintf(buf, n, "%s", mfl_msg_name(m->kind));
        }
}

static void params_text(const struct mfl_msg *m, char *buf, size_t n)
{
        const uint8_t *d = m->params.digest;
        int len = snprintf(buf, n, "params %02x%02x%02x%02x of %s", d[0], d[1], d[2], d[3], m->params.job);
        if (len < 0 || (size_t)len >= n)
                return;
        if (m->kind == MFL_MSG_PARAMS_GONE)
                snprintf(buf + len, n - (size_t)len, " are gone");
        else
                snprintf(buf + len, n - (size_t)len, " wanted from %" PRIu64 " on", m->params.offset);
}

/* The kinds about a group. */
static void group_text(const struct mfl_msg *m, char *buf, size_t n)
{
        switch (m->kind) {
        case MFL_MSG_COMBINE:
                snprintf(buf, n, "group %" PRIu64 ": combine ranks %" PRIx64 " at rank %u within %u ms",
                        m->combine.group, m->combine.ranks, m->combine.leader, m->combine.deadline_ms);
                break;
        case MFL_MSG_COMBINE_FAILED:
                snprintf(buf, n, "group %" PRIu64 ": combine failed: %s", m->cancel.task, m->cancel.reason);
                break;
        case MFL_MSG_ALONE:
                snprintf(buf, n, "task %" PRIu64 ": go on alone: %s", m->cancel.task, m->cancel.reason);
                break;
        default:
                snprintf(buf, n, "communicator %" PRIu64 "%s%s", m->communicator.communicator,
                        m->communicator.made ? "" : " cannot be created: ", m->communicator.reason);
        }
}

const char *mfl_msg_text(const struct mfl_msg *m, char *buf, size_t n)
{
        switch (m->kind) {
        case MFL_MSG_HELLO:
                snprintf(buf, n, "hello from %s on %s: %s, %u workers, %u data sets", m->hello.name,
                        m->hello.node, m->hello.backend, m->hello.workers, m->hello.n_data_sets);
                break;
        case MFL_MSG_WELCOME:
                snprintf(buf, n, "welcome: heartbeat %u ms, dead after %u ms", m->welcome.heartbeat_ms,
                        m->welcome.dead_ms);
                break;
        case MFL_MSG_LEAVING:
                snprintf(buf, n, "leaving: %s", m->cancel.reason);
                break;
        case MFL_MSG_BYE:
                snprintf(buf, n, "bye%s: %s", m->bye.retry ? ", retry" : "", m->bye.reason);
                break;
        case MFL_MSG_PING:
        case MFL_MSG_PONG:
                snprintf(buf, n, "%s %" PRIu64, m->kind == MFL_MSG_PING ? "ping" : "pong", m->cookie);
                break;
        case MFL_MSG_JOB_SPEC:
                snprintf(buf, n, "job file of %s", m->job);
                break;
        case MFL_MSG_PARAMS_GET:
        case MFL_MSG_PARAMS_GONE:
                params_text(m, buf, n);
                break;
        case MFL_MSG_COMBINE:
        case MFL_MSG_COMBINE_FAILED:
        case MFL_MSG_ALONE:
        case MFL_MSG_COMMUNICATOR_ID:
                group_text(m, buf, n);
                break;
        default:
                task_text(m, buf, n);
        }
        return buf;
}
