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

void link_result_unref(struct mfl_link *link, struct link_result *result)
{
        mfl_assert(result->refs > 0);
        result->refs--;
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
        result->refs++;
        link_combine_stop(link, result->task, true);
        link_result_unref(link, result);
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

struct link_result *link_result_find(struct mfl_link *link, uint64_t task)
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
        struct link_combine *combine = upload->combine;
        struct mfl_link *link = upload->link;
        free(upload->ranges);
        free(upload);
        if (combine)
                link_combine_unref(combine);
        link_result_unref(link, result);
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

/* One whose last byte is queued is on its way and ends by itself. */
static void drop_upload(struct link_upload **at)
{
        struct link_upload *upload = *at;
        *at = upload->next;
        upload->next = NULL;
        upload->range = upload->n_ranges;
        upload->failed = true;
        if (!upload->in_flight)
                free_upload(upload);
}

/* The server asks anew, for all that it misses: what was still to be sent of the same is among it. */
static void supersede(struct mfl_link *link, const struct mfl_agent_action *action)
{
        for (struct link_upload **at = &link->uploads; *at;) {
                const struct link_upload *upload = *at;
                if (upload->wire_task == action->wire_task && upload->update == action->update &&
                        (upload->combine != NULL) == action->combined)
                        drop_upload(at);
                else
                        at = &(*at)->next;
        }
}

void link_upload_add(struct mfl_link *link, struct mfl_agent_action *action)
{
        struct link_result *result = link_result_find(link, action->task_number);
        mfl_assert(result && action->update < result->result->n_updates);
        struct link_combine *combine = action->combined ? link_combine_find(link, action->task_number) : NULL;
        uint64_t bytes = action->combined ? result->result->n * sizeof(int64_t)
                                          : result->result->updates[action->update].bytes;
        /* The server asks for more than there is, or for a sum that came to nothing in this moment: it will
         * see that nothing comes, and grant again or give up. */
        if (!link->stream_open || !ranges_fit(action, bytes) || (action->combined && !combine))
                return;
        supersede(link, action);
        struct link_upload *upload = mfl_calloc(1, sizeof(*upload));
        if (!upload) {
                struct mfl_error err;
                mfl_fail_memory(&err, sizeof(*upload), "an upload");
                link_fatal(link, &err);
                return;
        }
        *upload = (struct link_upload){.link = link,
                .result = result,
                .combine = combine,
                .task = action->task_number,
                .wire_task = action->wire_task,
                .update = action->update,
                .n_ranges = action->n_ranges,
                .ranges = action->ranges};
        action->ranges = NULL;
        action->n_ranges = 0;
        result->refs++;
        if (combine)
                combine->refs++;
        struct link_upload **at = &link->uploads;
        while (*at)
                at = &(*at)->next;
        *at = upload;
        if (link_upload_pump(link))
                link_poll(link, LINK_POLL_MS);
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
        if (!status && link_upload_pump(link))
                link_poll(link, LINK_POLL_MS);
        link_tell_transfer(link);
}

/* How many bytes of its range can go now: a whole chunk, or none while the sum is not that far. */
static uint64_t sendable(const struct link_upload *upload)
{
        const struct mfl_range *range = &upload->ranges[upload->range];
        uint64_t bytes = MFL_MIN((uint64_t)upload->link->options.chunk_bytes, range->bytes - upload->at);
        bool there =
                !upload->combine || range->offset + upload->at + bytes <= link_combine_ready(upload->combine);
        return there ? bytes : 0;
}

static int send_chunk(
        struct mfl_link *link, struct link_upload *upload, uint64_t bytes, struct mfl_error *err)
{
        const struct mfl_range *range = &upload->ranges[upload->range];
        const char *data = upload->combine ? (const char *)upload->combine->call.combine.sum
                                           : upload->result->result->data[upload->update];
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

/* Keeps the connection's queue short, so that a Pong or an Announce need not wait for a whole update. One
 * that waits for its sum lets the others pass. */
bool link_upload_pump(struct mfl_link *link)
{
        struct mfl_error err;
        struct link_upload **at = &link->uploads;
        bool waits = false;
        while (*at && link->stream_open && link->chunks_in_flight < link->options.chunks_max) {
                struct link_upload *upload = *at;
                uint64_t bytes = sendable(upload);
                if (!bytes) {
                        waits = true;
                        at = &upload->next;
                        continue;
                }
                int r = send_chunk(link, upload, bytes, &err);
                if (r < 0)
                        link_fatal(link, &err);
                if (r)
                        return false; /* closing: on_closed cleans up */
                if (upload->range == upload->n_ranges) {
                        *at = upload->next;
                        upload->next = NULL;
                }
        }
        return waits;
}

void link_upload_drop(struct mfl_link *link, struct link_combine *combine)
{
        for (struct link_upload **at = &link->uploads; *at;) {
                if ((*at)->combine == combine)
                        drop_upload(at);
                else
                        at = &(*at)->next;
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
