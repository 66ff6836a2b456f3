/* SPDX-License-Identifier: Apache-2.0 */
/* The base of the link's files: events go to the agent from here, and failures end the link. */
#include "client/link/link_internal.h"

static void defer(struct mfl_link *link, const struct mfl_agent_event *event)
{
        if (link->n_deferred == link->deferred_max) {
                uint32_t n = link->deferred_max ? 2 * link->deferred_max : 8;
                struct mfl_agent_event *v = mfl_realloc(link->deferred, n * sizeof(*v));
                if (!v) {
                        struct mfl_error err;
                        mfl_fail_memory(&err, n * sizeof(*v), "events");
                        mfl_link_fatal(link, &err);
                        return;
                }
                link->deferred = v;
                link->deferred_max = n;
        }
        link->deferred[link->n_deferred++] = *event;
}

void mfl_link_post(struct mfl_link *link, const struct mfl_agent_event *event)
{
        if (link->life != LINK_RUNS)
                return;
        if (link->stepping) {
                mfl_assert(!event->msg && !event->updates && !event->eval);
                defer(link, event);
                return;
        }
        link->stepping = true;
        struct mfl_agent_event now = *event;
        link->top->step(link, &now);
        for (uint32_t i = 0; i < link->n_deferred && link->life == LINK_RUNS; i++) {
                now = link->deferred[i];
                link->top->step(link, &now);
        }
        link->n_deferred = 0;
        link->stepping = false;
        if (link->life == LINK_RUNS)
                link->top->stepped(link);
}

void mfl_link_fatal(struct mfl_link *link, const struct mfl_error *err)
{
        link->top->end(link, 1, err->text);
}

void mfl_link_pending_done(struct mfl_link *link)
{
        mfl_assert(link->pending > 0);
        if (--link->pending == 0)
                link->top->free(link);
}

void mfl_link_trace(struct mfl_link *link, const char *fmt, ...)
{
        char line[1024];
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(line, sizeof(line), fmt, ap);
        va_end(ap);
        if (link->options.on_trace)
                link->options.on_trace(link, line);
}

/* Telemetry is for people to read, like Progress; the agent does not decide on it. */
void mfl_link_telemetry(struct mfl_link *link, const struct mfl_telemetry *telemetry)
{
        struct mfl_msg msg = {.kind = MFL_MSG_TELEMETRY, .telemetry = *telemetry};
        struct mfl_error err;
        if (!link->online || !link->stream_state || link->life != LINK_RUNS)
                return;
        if (mfl_stream_send_msg(&link->stream, &msg, NULL, &err) < 0)
                mfl_link_fatal(link, &err);
}

void mfl_link_note_leader(struct mfl_link *link, const char *leader)
{
        mfl_strcpy(link->leader, sizeof(link->leader), leader);
        link->stays = *leader && !mfl_servers_has(&link->servers, leader);
}

struct mfl_msg *mfl_link_mark_hello(const struct mfl_link *link, struct mfl_msg *msg)
{
        if (msg->kind == MFL_MSG_HELLO)
                msg->hello.stays = link->stays;
        return msg;
}

const char *mfl_link_server(const struct mfl_link *link)
{
        return mfl_servers_current(&link->servers);
}

void *mfl_link_user(const struct mfl_link *link)
{
        return link->options.user;
}
