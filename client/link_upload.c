/* SPDX-License-Identifier: Apache-2.0 */
/* The link's results, and their way to the server: chunks straight from the result's buffer. */
#include "client/link_internal.h"

/* ---- results ---- */

struct link_result *link_result_add(struct mfl_link *link, uint64_t task, struct mfl_train_result *result)
{
        struct link_result *entry = mfl_calloc(1, sizeof(*entry));
        if (!entry)
                return NULL;
        entry->task = task;
        entry->result = result;
        entry->next = link->results;
        link->results = entry;
        return entry;
}

static void release_result(struct mfl_link *link, struct link_result *result)
{
        if (!result->dead || result->refs)
                return;
        link->options.ops->result_free(link->options.compute, result->result);
        free(result);
}

static void kill_result(struct mfl_link *link, struct link_result **at)
{
        struct link_result *result = *at;
        *at = result->next;
        result->dead = true;
        release_result(link, result);
}

void link_result_free(struct mfl_link *link, uint64_t task)
{
        for (struct link_result **at = &link->results; *at; at = &(*at)->next) {
                if ((*at)->task == task) {
                        kill_result(link, at);
                        return;
                }
        }
}

void link_results_free_all(struct mfl_link *link)
{
        while (link->results)
                kill_result(link, &link->results);
}

static struct link_result *find_result(struct mfl_link *link, uint64_t task)
{
        for (struct link_result *result = link->results; result; result = result->next) {
                if (result->task == task)
                        return result;
        }
        return NULL;
}

/* ---- uploads ---- */

static void free_upload(struct link_upload *upload)
{
        struct link_result *result = upload->result;
        struct mfl_link *link = upload->link;
        free(upload->ranges);
        free(upload);
        result->refs--;
        release_result(link, result);
}

static bool ranges_fit(const struct mfl_agent_action *action, uint64_t bytes)
{
        for (uint32_t i = 0; i < action->n_ranges; i++) {
                const struct mfl_range *range = &action->ranges[i];
                if (!range->bytes || range->offset > bytes || range->bytes > bytes - range->offset)
                        return false;
        }
        return action->n_ranges > 0;
}

void link_upload_add(struct mfl_link *link, struct mfl_agent_action *action)
{
        struct link_result *result = find_result(link, action->task_number);
        mfl_assert(result && action->update < result->result->n_updates);
        /* The server asks for more than there is: it will see that nothing comes, and grant again or give up.
         */
        if (!link->stream_open || !ranges_fit(action, result->result->updates[action->update].bytes))
                return;
        struct link_upload *upload = mfl_calloc(1, sizeof(*upload));
        if (!upload) {
                struct mfl_error err;
                mfl_fail_memory(&err, sizeof(*upload), "an upload");
                link_fatal(link, &err);
                return;
        }
        *upload = (struct link_upload){.link = link,
                .result = result,
                .task = action->task_number,
                .wire_task = action->wire_task,
                .update = action->update,
                .n_ranges = action->n_ranges,
                .ranges = action->ranges};
        action->ranges = NULL;
        action->n_ranges = 0;
        result->refs++;
        struct link_upload **at = &link->uploads;
        while (*at)
                at = &(*at)->next;
        *at = upload;
        link_upload_pump(link);
}

static void on_chunk_sent(struct mfl_stream *stream, int status, void *arg)
{
        struct link_upload *upload = arg;
        struct mfl_link *link = upload->link;
        link->chunks_in_flight--;
        upload->in_flight--;
        upload->failed |= status != 0;
        if (!upload->in_flight && upload->range == upload->n_ranges) {
                struct mfl_agent_event event = {
                        .kind = MFL_AGENT_EV_SENT, .task = upload->task, .update = upload->update};
                bool ok = !upload->failed;
                free_upload(upload);
                if (ok)
                        link_post(link, &event);
        }
        if (!status)
                link_upload_pump(link);
}

static int send_chunk(struct mfl_link *link, struct link_upload *upload, struct mfl_error *err)
{
        const struct mfl_range *range = &upload->ranges[upload->range];
        const char *data = upload->result->result->data[upload->update];
        uint64_t bytes = MFL_MIN((uint64_t)link->options.chunk_bytes, range->bytes - upload->at);
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        Mfl__Chunk chunk = MFL__CHUNK__INIT;
        chunk.task = upload->wire_task;
        chunk.update = upload->update;
        chunk.offset = range->offset + upload->at;
        envelope.body_case = MFL__ENVELOPE__BODY_CHUNK;
        envelope.chunk = &chunk;
        int r = mfl_stream_send(
                &link->stream, &envelope, data + chunk.offset, bytes, NULL, on_chunk_sent, upload, err);
        if (r)
                return r;
        link->chunks_in_flight++;
        upload->in_flight++;
        upload->at += bytes;
        if (upload->at == range->bytes) {
                upload->range++;
                upload->at = 0;
        }
        return 0;
}

/* Keeps the connection's queue short, so that a Pong or an Announce need not wait for a whole update. */
void link_upload_pump(struct mfl_link *link)
{
        struct mfl_error err;
        while (link->uploads && link->stream_open && link->chunks_in_flight < link->options.chunks_max) {
                struct link_upload *upload = link->uploads;
                int r = send_chunk(link, upload, &err);
                if (r < 0)
                        link_fatal(link, &err);
                if (r)
                        return; /* closing: on_closed cleans up */
                if (upload->range == upload->n_ranges) {
                        link->uploads = upload->next;
                        upload->next = NULL;
                }
        }
}

/* The connection is gone, and with it every chunk in flight. */
void link_upload_cut(struct mfl_link *link)
{
        mfl_assert(link->chunks_in_flight == 0);
        while (link->uploads) {
                struct link_upload *upload = link->uploads;
                link->uploads = upload->next;
                free_upload(upload);
        }
}
