/* SPDX-License-Identifier: Apache-2.0 */
/* The link's part in a group: it publishes results, has the group's sum added beside the loop, and opens
 * communicators.
 *
 * A combine lives until it has ended and no chunk of its sum is in flight, even if the order or the result is
 * gone by then; the result's memory stays that long. */
#include "client/link/link_internal.h"

void mfl_link_publish(struct mfl_link *link, const struct mfl_agent_action *action)
{
        const struct mfl_compute_ops *ops = link->options.ops;
        struct link_result *result = mfl_link_result_find(link, action->task_number);
        struct mfl_error err;
        mfl_assert(result);
        int r = ops->publish ? ops->publish(link->options.compute, result->result, action->group.group, &err)
                             : mfl_fail(&err, MFL_INVALID, "this daemon takes part in no groups");
        if (r < 0)
                mfl_link_fatal(link, &err);
        else if (r) /* The leader will not find it, so the server ends the group. */
                mfl_link_trace(link, "task %u is not published: %s", (uint32_t)action->task_number, err.text);
}

struct link_combine *mfl_link_combine_find(struct mfl_link *link, uint64_t task)
{
        for (struct link_combine *combine = link->combines; combine; combine = combine->next) {
                if (combine->task == task)
                        return combine;
        }
        return NULL;
}

uint64_t mfl_link_combine_ready(const struct link_combine *combine)
{
        uint64_t n = combine->result->result->n;
        uint64_t ready = combine->state == LINK_COMBINE_RUNS ? atomic_load(&combine->call.control.ready) : n;
        return MFL_MIN(ready, n) * sizeof(int64_t);
}

#define TO(state) (1u << (state))
static const uint8_t edges[] = {
        [LINK_COMBINE_RUNS] = TO(LINK_COMBINE_DONE) | TO(LINK_COMBINE_STOPS),
        [LINK_COMBINE_DONE] = TO(LINK_COMBINE_DEAD),
        [LINK_COMBINE_STOPS] = TO(LINK_COMBINE_DEAD),
        [LINK_COMBINE_DEAD] = 0,
};

static void move(struct link_combine *combine, enum link_combine_state to)
{
        mfl_assert(edges[combine->state] & TO(to));
        combine->state = to;
}

bool mfl_link_combine_is_dead(const struct link_combine *combine)
{
        return combine->state == LINK_COMBINE_STOPS || combine->state == LINK_COMBINE_DEAD;
}

static void release_combine(struct link_combine *combine)
{
        struct mfl_link *link = combine->link;
        if (combine->state != LINK_COMBINE_DEAD || combine->refs)
                return;
        struct link_result *result = combine->result;
        link->options.ops->combine_free(link->options.compute, &combine->call);
        free(combine);
        mfl_link_result_unref(link, result);
}

void mfl_link_combine_unref(struct link_combine *combine)
{
        mfl_assert(combine->refs > 0);
        combine->refs--;
        release_combine(combine);
}

/* From here on, nothing of the sum is sent. */
static void kill_combine(struct link_combine *combine)
{
        struct mfl_link *link = combine->link;
        struct link_combine **at = &link->combines;
        while (*at != combine)
                at = &(*at)->next;
        *at = combine->next;
        bool runs = combine->state == LINK_COMBINE_RUNS;
        move(combine, runs ? LINK_COMBINE_STOPS : LINK_COMBINE_DEAD);
        if (runs)
                link->options.ops->combine_cancel(link->options.compute, &combine->call);
        release_combine(combine);
}

void mfl_link_combine_stop(struct mfl_link *link, uint64_t task, bool quiet)
{
        struct link_combine *combine = mfl_link_combine_find(link, task);
        if (!combine)
                return;
        combine->quiet |= quiet;
        kill_combine(combine);
}

void mfl_link_combine_stop_all(struct mfl_link *link)
{
        while (link->combines)
                kill_combine(link->combines);
}

static void post_combined(struct mfl_link *link, uint64_t task, bool ok, const char *reason)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_COMBINED, .task = task, .ok = ok};
        mfl_strcpy(event.reason, sizeof(event.reason), reason);
        mfl_link_post(link, &event);
}

static void on_combined(struct mfl_combine_call *call)
{
        struct link_combine *combine = MFL_CONTAINER_OF(call, struct link_combine, call);
        struct mfl_link *link = combine->link;
        uint64_t task = combine->task;
        struct mfl_error err = call->err;
        int status = call->status;
        bool quiet = combine->quiet, ok = !status && combine->state == LINK_COMBINE_RUNS;
        if (!status)
                mfl_strcpy(err.text, sizeof(err.text), "stopped");
        move(combine, combine->state == LINK_COMBINE_RUNS ? LINK_COMBINE_DONE : LINK_COMBINE_DEAD);
        if (combine->state == LINK_COMBINE_DONE && !ok)
                kill_combine(combine);
        else
                release_combine(combine);
        if (status < 0)
                mfl_link_fatal(link, &err);
        else if (!quiet)
                post_combined(link, task, ok, ok ? "" : err.text);
        link->top->summed(link);
        mfl_link_pending_done(link);
}

static int start_combine(struct mfl_link *link, const struct mfl_agent_action *action,
        struct link_result *result, struct mfl_error *err)
{
        struct link_combine *combine = mfl_calloc(1, sizeof(*combine));
        if (!combine)
                return mfl_fail_memory(err, sizeof(*combine), "a group's sum");
        combine->link = link;
        combine->task = action->task_number;
        combine->result = result;
        combine->call.done = on_combined;
        combine->call.combine = (struct mfl_train_combine){.result = result->result,
                .group = action->group,
                .ranks = action->ranks,
                .leader = action->leader,
                .deadline_ms = action->deadline_ms};
        int r = link->options.ops->combine(link->options.compute, &combine->call, err);
        if (r) {
                free(combine);
                return r;
        }
        combine->state = LINK_COMBINE_RUNS;
        result->refs++;
        combine->next = link->combines;
        link->combines = combine;
        link->pending++;
        return 0;
}

void mfl_link_combine_start(struct mfl_link *link, const struct mfl_agent_action *action)
{
        struct link_result *result = mfl_link_result_find(link, action->task_number);
        struct mfl_error err;
        mfl_assert(result);
        mfl_link_combine_stop(link, action->task_number, true);
        int r = MFL_INVALID;
        if (!result->result->grouped || !link->options.ops->combine)
                mfl_fail(&err, r, "the result is in memory that only its daemon can read");
        else
                r = start_combine(link, action, result, &err);
        if (r < 0)
                mfl_link_fatal(link, &err);
        else if (r)
                post_combined(link, action->task_number, false, err.text);
}

/* ---- communicators ---- */

void mfl_link_communicator_noted(void *user, uint64_t communicator, const uint8_t *id, const char *reason)
{
        struct mfl_agent_event event = {
                .kind = MFL_AGENT_EV_COMMUNICATOR, .ok = id != NULL, .communicator = communicator};
        if (id)
                memcpy(event.communicator_id, id, sizeof(event.communicator_id));
        mfl_strcpy(event.reason, sizeof(event.reason), reason ? reason : "");
        mfl_link_post(user, &event);
}

void mfl_link_communicator_open(struct mfl_link *link, const struct mfl_agent_action *action)
{
        const struct mfl_compute_ops *ops = link->options.ops;
        const uint8_t *id = action->make ? NULL : action->communicator_id;
        struct mfl_error err;
        int r = ops->communicator ? ops->communicator(link->options.compute, &action->group, id, &err)
                                  : mfl_fail(&err, MFL_INVALID, "this daemon has no NCCL");
        if (r < 0)
                mfl_link_fatal(link, &err);
        else if (r)
                mfl_link_communicator_noted(link, action->group.communicator, NULL, err.text);
}
