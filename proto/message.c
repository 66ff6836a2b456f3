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
        [MFL_MSG_SECURE] = "Secure",
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

/* The arrays that messages of some kinds own. */
struct array {
        void **data;
        size_t n, item_bytes;
};
#define ARRAYS_MAX 3
#define ARRAY(pointer, count) ((struct array){(void **)&(pointer), count, sizeof *(pointer)})

/* Returns how many there are. */
static unsigned arrays_of(struct mfl_msg *msg, struct array ret_arrays[ARRAYS_MAX])
{
        switch (msg->kind) {
        case MFL_MSG_HELLO:
                ret_arrays[0] = ARRAY(msg->hello.data_sets, msg->hello.n_data_sets);
                return 1;
        case MFL_MSG_TASK:
                ret_arrays[0] = ARRAY(msg->task.items, msg->task.n_items);
                ret_arrays[1] = ARRAY(msg->task.grid, msg->task.n_grid);
                ret_arrays[2] = ARRAY(msg->task.team.peers, msg->task.team.n_members);
                return 3;
        case MFL_MSG_ANNOUNCE:
                ret_arrays[0] = ARRAY(msg->announce.rejected, msg->announce.n_rejected);
                ret_arrays[1] = ARRAY(msg->announce.losses, msg->announce.n_losses);
                return 2;
        case MFL_MSG_GRANT:
                ret_arrays[0] = ARRAY(msg->update.ranges, msg->update.n_ranges);
                return 1;
        case MFL_MSG_EVAL_RESULT:
                ret_arrays[0] = ARRAY(msg->eval.items, msg->eval.n_items);
                ret_arrays[1] = ARRAY(msg->eval.tally, msg->eval.n_tally);
                return 2;
        case MFL_MSG_SECURE:
                ret_arrays[0] = ARRAY(msg->secure.parts, msg->secure.n_parts);
                ret_arrays[1] = ARRAY(msg->secure.bytes, msg->secure.n_bytes);
                return 2;
        default:
                return 0;
        }
}

void mfl_msg_deinit(struct mfl_msg *msg)
{
        struct array arrays[ARRAYS_MAX];
        if (!msg)
                return;
        for (unsigned i = 0, n = arrays_of(msg, arrays); i < n; i++)
                free(*arrays[i].data);
        memset(msg, 0, sizeof *msg);
}

int mfl_msg_copy(const struct mfl_msg *msg, struct mfl_msg *ret_copy)
{
        struct mfl_msg copy = *msg;
        struct array arrays[ARRAYS_MAX];
        unsigned n = arrays_of(&copy, arrays), i = 0;
        for (; i < n; i++) {
                const void *from = *arrays[i].data;
                void *own = from ? mfl_calloc(arrays[i].n, arrays[i].item_bytes) : NULL;
                if (from && !own)
                        break;
                if (from)
                        memcpy(own, from, arrays[i].n * arrays[i].item_bytes);
                *arrays[i].data = own;
        }
        if (i == n) {
                *ret_copy = copy;
                return 0;
        }
        while (i--)
                free(*arrays[i].data);
        return -ENOMEM;
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
        case MFL_MSG_SECURE:
                snprintf(buf, n, "task %" PRIu64 ": step %d of a secure sum, %u parts", m->secure.task,
                        (int)m->secure.step, m->secure.n_parts);
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
