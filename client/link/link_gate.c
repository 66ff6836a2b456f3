/* SPDX-License-Identifier: Apache-2.0 */
/* The site's policy: a task that it does not allow never reaches the agent. The server is told at once, because what is
 * not told is asked again after the next Welcome. */
#include "client/link/link_internal.h"

static void tell(
        struct mfl_link *link, uint64_t task, const char *job, enum mfl_site_word word, const char *reason)
{
        struct mfl_msg msg = {.kind = MFL_MSG_TASK_FAILED,
                .failed = {.task = task, .permanent = word == MFL_SITE_REFUSES, .site = word}};
        struct mfl_error err;
        mfl_strcpy(msg.failed.job, sizeof(msg.failed.job), job);
        mfl_strcpy(msg.failed.reason, sizeof(msg.failed.reason), reason);
        if (link->stream_state && mfl_stream_send_msg(&link->stream, &msg, NULL, &err) < 0)
                mfl_link_fatal(link, &err);
}

bool mfl_link_gate_lets(struct mfl_link *link, const struct mfl_task *task)
{
        const struct link_job *job = link->jobs;
        enum mfl_site_word word = MFL_SITE_REFUSES;
        char reason[MFL_REASON_BYTES] = "a task without its job file";
        struct mfl_error err;
        if (!link->options.gate)
                return true;
        while (job && strcmp(job->id, task->job))
                job = job->next;
        struct mfl_gate_question question = {.job = task->job,
                .owner = job ? job->owner : "",
                .text = job ? job->text : "",
                .trains = task->kind != MFL_TASK_EVAL,
                .participants = task->participants,
                .round = task->round};
        memcpy(question.params_digest, task->params_digest, sizeof question.params_digest);
        memcpy(question.frozen_digest, task->frozen_digest, sizeof question.frozen_digest);
        if (job && mfl_gate_ask(link->options.gate, &question, &word, reason, &err)) {
                mfl_link_fatal(link, &err);
                return false;
        }
        if (word == MFL_SITE_TAKES)
                return true;
        mfl_link_trace(
                link, "the policy keeps task %u of %s away: %s", (uint32_t)task->task, task->job, reason);
        /* What an earlier answer has let in ends, too: the server may have changed the job since. */
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_JOB_DENIED};
        mfl_strcpy(event.job, sizeof(event.job), task->job);
        mfl_link_post(link, &event);
        tell(link, task->task, task->job, word, reason);
        return false;
}

static void on_decided(void *user, const char *job, enum mfl_site_word word, const char *reason)
{
        struct mfl_link *link = user;
        if (link->life != LINK_RUNS)
                return;
        if (word == MFL_SITE_REFUSES) {
                struct mfl_agent_event event = {.kind = MFL_AGENT_EV_JOB_DENIED};
                mfl_strcpy(event.job, sizeof(event.job), job);
                mfl_link_post(link, &event);
        }
        if (link->online)
                tell(link, 0, job, word, reason);
}

void mfl_link_gate_open(struct mfl_link *link)
{
        if (link->options.gate)
                mfl_gate_listen(link->options.gate, on_decided, link);
}

void mfl_link_gate_close(struct mfl_link *link)
{
        if (link->options.gate)
                mfl_gate_listen(link->options.gate, NULL, NULL);
}
