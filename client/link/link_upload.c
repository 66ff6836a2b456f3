/* SPDX-License-Identifier: Apache-2.0 */
/* Sends results to the server: chunks straight from the result's buffer, or from a group's sum. */
#include "client/link/link_internal.h"

#include "common/codec/pack.h"

static void free_upload(struct link_upload *upload)
{
        struct link_result *result = upload->result;
        struct link_combine *combine = upload->combine;
        struct mfl_link *link = upload->link;
        free(upload->ranges);
        free(upload);
        if (combine)
                mfl_link_combine_unref(combine);
        mfl_link_result_unref(link, result);
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

/* An upload whose last byte is queued is left to end by itself. */
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

/* A new grant lists everything that the server still misses, including what was still to be sent of the one
 * before. */
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

void mfl_link_upload_add(struct mfl_link *link, struct mfl_agent_action *action)
{
        struct link_result *result = mfl_link_result_find(link, action->task_number);
        mfl_assert(result && action->update < result->result->n_updates);
        struct link_combine *combine =
                action->combined ? mfl_link_combine_find(link, action->task_number) : NULL;
        uint64_t bytes = action->combined ? result->result->n * sizeof(int64_t)
                                          : result->result->updates[action->update].bytes;
        /* The server asks for more than there is, or for a sum that has just failed: nothing comes, so it
         * grants again or gives up. */
        bool unmasked = result->secure && !result->masked;
        if (!link->stream_state || !ranges_fit(action, bytes) || (action->combined && !combine) || unmasked)
                return;
        supersede(link, action);
        struct link_upload *upload = mfl_calloc(1, sizeof(*upload));
        if (!upload) {
                struct mfl_error err;
                mfl_fail_memory(&err, sizeof(*upload), "an upload");
                mfl_link_fatal(link, &err);
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
        mfl_link_upload_pump(link);
}

/* An update goes inside its Announce if it is small and whole. If the server has no slot for it, it grants it. */
struct mfl_wire_extra mfl_link_upload_inside(struct mfl_link *link, const struct mfl_agent_action *action)
{
        const struct mfl_announce *a = &action->msg.announce;
        const struct link_result *result = mfl_link_result_find(link, action->task_number);
        if (!result || result->secure || a->group || result->result->late ||
                a->bytes > MFL_MIN(link->inline_max, (uint32_t)MFL_INLINE_MAX))
                return (struct mfl_wire_extra){.job_text = NULL};
        mfl_assert(a->update < result->result->n_updates);
        return (struct mfl_wire_extra){.data = result->result->data[a->update], .n = a->bytes};
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
                        mfl_link_post(link, &event);
        }
        if (!status)
                mfl_link_upload_pump(link);
        link->top->moved(link);
}

/* Bytes that are final, counted from the first: of a group's sum, or of a sum that is still on its way from
 * the device. */
static uint64_t ready_bytes(const struct link_upload *upload)
{
        const struct mfl_train_result *result = upload->result->result;
        if (upload->combine)
                return mfl_link_combine_ready(upload->combine);
        return result->late ? atomic_load(&result->control.ready) * sizeof(int64_t) : UINT64_MAX;
}

/* How many bytes of the range can go now: a whole chunk, or 0 while the sum is not that far. */
static uint64_t sendable(const struct link_upload *upload)
{
        const struct mfl_range *range = &upload->ranges[upload->range];
        uint64_t bytes = MFL_MIN((uint64_t)upload->link->options.chunk_bytes, range->bytes - upload->at);
        return range->offset + upload->at + bytes <= ready_bytes(upload) ? bytes : 0;
}

/* A packed piece of an update, until it is sent. */
struct packed {
        struct link_upload *upload;
        uint8_t bytes[];
};

static void on_packed_sent(struct mfl_stream *stream, int status, void *arg)
{
        struct packed *packed = arg;
        struct link_upload *upload = packed->upload;
        free(packed);
        on_chunk_sent(stream, status, upload);
}

/* The chunk's payload in fewer bytes. NULL: it goes as it is. */
static struct packed *pack_chunk(
        struct link_upload *upload, const void *data, uint64_t bytes, uint64_t *ret_bytes)
{
        const struct mfl_train_result *result = upload->result->result;
        bool floats = !upload->combine && result->updates[upload->update].encoding == MFL_ENCODING_F32;
        struct packed *packed = result->packed ? mfl_malloc(sizeof *packed + mfl_pack_room(bytes)) : NULL;
        if (!packed)
                return NULL;
        packed->upload = upload;
        *ret_bytes = mfl_pack(floats, data, bytes, packed->bytes);
        if (*ret_bytes)
                return packed;
        free(packed);
        return NULL;
}

static int send_chunk(
        struct mfl_link *link, struct link_upload *upload, uint64_t bytes, struct mfl_error *err)
{
        const struct mfl_range *range = &upload->ranges[upload->range];
        const char *data = upload->result->secure ? (const char *)upload->result->masked
                           : upload->combine      ? (const char *)upload->combine->call.combine.sum
                                                  : upload->result->result->data[upload->update];
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        Mfl__Chunk chunk = MFL__CHUNK__INIT;
        chunk.task = upload->wire_task;
        chunk.update = upload->update;
        chunk.offset = range->offset + upload->at;
        envelope.body_case = MFL__ENVELOPE__BODY_CHUNK;
        envelope.chunk = &chunk;
        uint64_t payload_bytes = bytes;
        struct packed *packed = pack_chunk(upload, data + chunk.offset, bytes, &payload_bytes);
        chunk.bytes = packed ? (uint32_t)bytes : 0;
        int r = packed ? mfl_stream_send(&link->stream, &envelope, packed->bytes, payload_bytes, NULL,
                                 on_packed_sent, packed, err)
                       : mfl_stream_send(&link->stream, &envelope, data + chunk.offset, bytes, NULL,
                                 on_chunk_sent, upload, err);
        if (r) {
                free(packed);
                return r;
        }
        link->chunks_in_flight++;
        upload->in_flight++;
        upload->at += bytes;
        if (upload->at == range->bytes) {
                upload->range++;
                upload->at = 0;
        }
        return 0;
}

/* A group's sum that was stopped is not sent any more. */
void mfl_link_upload_purge(struct mfl_link *link)
{
        for (struct link_upload **at = &link->uploads; *at;) {
                const struct link_combine *combine = (*at)->combine;
                if (combine && mfl_link_combine_is_dead(combine))
                        drop_upload(at);
                else
                        at = &(*at)->next;
        }
}

/* Keeps the connection's queue short, so that a Pong or an Announce need not wait for a whole update. Uploads
 * that wait for their sum let others pass; the listener's `advanced` starts them again. */
void mfl_link_upload_pump(struct mfl_link *link)
{
        struct mfl_error err;
        mfl_link_upload_purge(link);
        struct link_upload **at = &link->uploads;
        while (*at && link->stream_state && link->chunks_in_flight < link->options.chunks_max) {
                struct link_upload *upload = *at;
                uint64_t bytes = sendable(upload);
                if (!bytes) {
                        at = &upload->next;
                        continue;
                }
                int r = send_chunk(link, upload, bytes, &err);
                if (r < 0)
                        mfl_link_fatal(link, &err);
                if (r)
                        return; /* closing: on_closed cleans up */
                if (upload->range == upload->n_ranges) {
                        *at = upload->next;
                        upload->next = NULL;
                }
        }
}

/* The connection is lost, and every chunk in flight with it. */
void mfl_link_upload_cut(struct mfl_link *link)
{
        mfl_assert(link->chunks_in_flight == 0);
        while (link->uploads) {
                struct link_upload *upload = link->uploads;
                link->uploads = upload->next;
                free_upload(upload);
        }
}
