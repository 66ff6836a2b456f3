/* SPDX-License-Identifier: Apache-2.0 */
/* Slots and sums of a relay: chunks land in a slot; a worker adds it to its group's sum; the sum is sent from its own memory.
 *
 * The first slot of a group becomes its sum. Integers are added, so the order means nothing. An addition that would overflow, which
 * the limits of a job exclude, adds nothing, and the update goes up alone: the server judges it. Memory that something still
 * lands in, is added from, or is sent from, goes with the last of them.
 */
#include "common/codec/pack.h"
#include "common/base/log.h"
#include "server/relay/relay_shell.h"

#define CHUNK_BYTES ((uint64_t)1 << 20)
#define WINDOW 4 /* frames of a sum that are queued at a time */

/* ---- memory ---- */

static struct relay_block *new_block(struct mfl_relay *relay, uint64_t bytes)
{
        struct mfl_error err;
        if (mfl_budget_reserve(relay->budget, bytes, "an update", &err))
                return NULL;
        struct relay_block *block = mfl_calloc(1, sizeof *block + bytes);
        if (!block) {
                mfl_budget_release(relay->budget, bytes);
                return NULL;
        }
        block->refs = 1;
        block->budget = relay->budget;
        block->bytes = bytes;
        return block;
}

static struct relay_block *ref(struct relay_block *block)
{
        block->refs++;
        return block;
}

static void unref(struct relay_block *block)
{
        if (!block || --block->refs)
                return;
        mfl_budget_release(block->budget, block->bytes);
        free(block);
}

/* ---- slots ---- */

bool relay_slot_open(struct mfl_relay *relay, const struct mfl_relay_action *action)
{
        struct relay_slot *slot = &relay->slots[action->slot];
        mfl_assert(!slot->open);
        struct relay_block *block = action->bytes % 8 == 0 ? new_block(relay, action->bytes) : NULL;
        if (!block)
                return false;
        *slot = (struct relay_slot){.open = true,
                .grant = action->grant,
                .task = action->task,
                .bytes = action->bytes,
                .conn = action->peer,
                .block = block};
        return true;
}

void relay_slot_close(struct mfl_relay *relay, const struct mfl_relay_action *action)
{
        struct relay_slot *slot = &relay->slots[action->slot];
        if (!slot->open || slot->grant != action->grant)
                return;
        unref(slot->block);
        slot->block = NULL;
        slot->open = false;
}

static struct relay_slot *find_slot(const struct relay_daemon *daemon, const Mfl__Chunk *chunk)
{
        struct mfl_relay *relay = daemon->relay;
        for (uint32_t s = 0; s < MFL_RELAY_SLOTS_MAX; s++) {
                struct relay_slot *slot = &relay->slots[s];
                if (slot->open && slot->conn == daemon->conn && slot->task == chunk->task && !chunk->update)
                        return slot;
        }
        return NULL;
}

bool relay_slot_begin(struct relay_daemon *daemon, const Mfl__Chunk *chunk, size_t payload_bytes,
        void **ret_dst, int *ret_status, struct mfl_error *err)
{
        struct relay_slot *slot = find_slot(daemon, chunk);
        uint64_t bytes = chunk->bytes ? chunk->bytes : payload_bytes;
        *ret_status = 0;
        *ret_dst = NULL;
        mfl_assert(!daemon->landing);
        if (!slot)
                return false;
        if (chunk->offset % 8 || bytes % 8 || chunk->offset > slot->bytes ||
                bytes > slot->bytes - chunk->offset) {
                *ret_status = mfl_fail(err, MFL_INVALID, "a chunk outside the update that was granted");
                return true;
        }
        if (slot->arrived == slot->bytes) /* it is being added */
                return true;
        daemon->landing = ref(slot->block);
        daemon->landing_slot = (uint32_t)(slot - daemon->relay->slots);
        daemon->landing_grant = slot->grant;
        daemon->landing_offset = chunk->offset;
        daemon->landing_bytes = bytes;
        daemon->landing_packed = chunk->bytes ? payload_bytes : 0;
        *ret_dst = (char *)slot->block->v + chunk->offset + (bytes - payload_bytes);
        return true;
}

/* Adds a piece to those that are there. False: there are too many gaps. */
static bool note_piece(struct relay_slot *slot, struct mfl_range piece)
{
        uint32_t n = 0;
        struct mfl_range *p = slot->pieces;
        for (uint32_t i = 0; i < slot->n_pieces; i++) {
                bool apart =
                        p[i].offset > piece.offset + piece.bytes || piece.offset > p[i].offset + p[i].bytes;
                if (apart) {
                        p[n++] = p[i];
                        continue;
                }
                uint64_t end = MFL_MAX(p[i].offset + p[i].bytes, piece.offset + piece.bytes);
                piece.offset = MFL_MIN(p[i].offset, piece.offset);
                piece.bytes = end - piece.offset;
        }
        slot->n_pieces = n;
        if (n == RELAY_PIECES_MAX)
                return false;
        p[slot->n_pieces++] = piece;
        slot->arrived = 0;
        for (uint32_t i = 0; i < slot->n_pieces; i++)
                slot->arrived += p[i].bytes;
        return true;
}

bool relay_slot_end(struct relay_daemon *daemon, bool arrived, int *ret_status, struct mfl_error *err)
{
        struct mfl_relay *relay = daemon->relay;
        struct relay_block *block = daemon->landing;
        struct relay_slot *slot = &relay->slots[daemon->landing_slot];
        struct mfl_relay_event event = {
                .kind = MFL_RELAY_EV_MOVED, .slot = daemon->landing_slot, .grant = daemon->landing_grant};
        *ret_status = 0;
        if (!block)
                return false;
        daemon->landing = NULL;
        if (arrived && daemon->landing_packed)
                *ret_status = mfl_unpack(false, (char *)block->v + daemon->landing_offset,
                        daemon->landing_bytes, daemon->landing_packed, err);
        unref(block);
        if (!arrived || *ret_status || !slot->open || slot->grant != event.grant)
                return true;
        if (!note_piece(slot, (struct mfl_range){daemon->landing_offset, daemon->landing_bytes})) {
                *ret_status = mfl_fail(err, MFL_INVALID, "an update in too many pieces");
                return true;
        }
        if (slot->arrived == slot->bytes)
                event.kind = MFL_RELAY_EV_WHOLE;
        relay_step(relay, &event);
        return true;
}

/* ---- adding ---- */

struct add_work {
        struct mfl_work work;
        struct mfl_relay *relay;
        uint64_t epoch, grant;
        uint32_t slot;
        struct relay_block *sum, *update; /* sum NULL: the update is the sum */
        bool ok;
};

static void run_add(struct mfl_work *work)
{
        struct add_work *add = MFL_CONTAINER_OF(work, struct add_work, work);
        uint64_t n = add->update->bytes / sizeof(int64_t);
        int64_t sum;
        add->ok = true;
        if (!add->sum)
                return;
        for (uint64_t i = 0; i < n && add->ok; i++)
                add->ok = !__builtin_add_overflow(add->sum->v[i], add->update->v[i], &sum);
        for (uint64_t i = 0; i < n && add->ok; i++)
                add->sum->v[i] += add->update->v[i];
}

static void done_add(struct mfl_work *work)
{
        struct add_work *add = MFL_CONTAINER_OF(work, struct add_work, work);
        struct mfl_relay *relay = add->relay;
        struct mfl_relay_event event = {
                .kind = MFL_RELAY_EV_ADDED, .slot = add->slot, .grant = add->grant, .ok = add->ok};
        bool stands = add->epoch == relay->epoch && !work->cancelled;
        unref(add->sum);
        unref(add->update);
        free(add);
        if (stands)
                relay_step(relay, &event);
}

static struct relay_sum *find_sum(const struct mfl_relay *relay, uint64_t group)
{
        struct relay_sum *sum = relay->sums;
        while (sum && sum->group != group)
                sum = sum->next;
        return sum;
}

static struct relay_sum *new_sum(struct mfl_relay *relay, uint64_t group, struct relay_block *block)
{
        struct relay_sum *sum = mfl_calloc(1, sizeof *sum);
        if (!sum) {
                mfl_loop_no_memory(relay->loop, sizeof *sum, "a sum");
                return NULL;
        }
        *sum = (struct relay_sum){.group = group, .block = ref(block), .next = relay->sums};
        relay->sums = sum;
        return sum;
}

void relay_slot_add(struct mfl_relay *relay, const struct mfl_relay_action *action)
{
        struct relay_slot *slot = &relay->slots[action->slot];
        struct relay_sum *sum = find_sum(relay, action->group);
        struct add_work *add = mfl_calloc(1, sizeof *add);
        mfl_assert(slot->open && slot->grant == action->grant && slot->arrived == slot->bytes);
        bool first = !sum;
        if (first)
                sum = new_sum(relay, action->group, slot->block);
        if (!add || !sum) {
                free(add);
                mfl_loop_no_memory(relay->loop, sizeof *add, "an addition");
                return;
        }
        *add = (struct add_work){.relay = relay,
                .epoch = relay->epoch,
                .grant = action->grant,
                .slot = action->slot,
                .update = ref(slot->block),
                .sum = first ? NULL : ref(sum->block)};
        add->work.run = run_add;
        add->work.done = done_add;
        if (!mfl_worker_submit(&relay->loop->compute, &add->work))
                return;
        unref(add->sum);
        unref(add->update);
        free(add);
        mfl_loop_no_memory(relay->loop, 0, "the queue of additions");
}

void relay_sum_free(struct mfl_relay *relay, uint64_t group)
{
        for (struct relay_sum **at = &relay->sums; *at; at = &(*at)->next) {
                struct relay_sum *sum = *at;
                if (sum->group != group)
                        continue;
                *at = sum->next;
                unref(sum->block);
                free(sum);
                return;
        }
}

void relay_sums_reset(struct mfl_relay *relay)
{
        while (relay->sums)
                relay_sum_free(relay, relay->sums->group);
        for (uint32_t s = 0; s < MFL_RELAY_SLOTS_MAX; s++) {
                unref(relay->slots[s].block);
                relay->slots[s] = (struct relay_slot){.open = false};
        }
}

/* ---- sending ---- */

struct sum_send {
        struct mfl_relay *relay;
        uint64_t epoch, group;
        uint32_t conn, in_flight;
        struct relay_block *block;
        uint32_t n_ranges, range;
        struct mfl_range *ranges;
};

static void pump(struct sum_send *send);

static void on_sent(struct mfl_stream *stream, int status, void *arg)
{
        struct sum_send *send = arg;
        send->in_flight--;
        if (status)
                send->range = send->n_ranges;
        pump(send);
}

static bool send_chunk(struct sum_send *send)
{
        struct relay_daemon *daemon = relay_daemon_find(send->relay, send->conn);
        struct mfl_range *range = &send->ranges[send->range];
        uint64_t bytes = MFL_MIN(range->bytes, CHUNK_BYTES);
        Mfl__Chunk chunk = MFL__CHUNK__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        if (send->epoch != send->relay->epoch || !daemon || !daemon->up_open)
                return false;
        chunk.task = send->group;
        chunk.offset = range->offset;
        envelope.body_case = MFL__ENVELOPE__BODY_CHUNK;
        envelope.chunk = &chunk;
        if (mfl_stream_send(&daemon->up, &envelope, (const char *)send->block->v + range->offset, bytes, NULL,
                    on_sent, send, NULL))
                return false;
        send->in_flight++;
        range->offset += bytes;
        range->bytes -= bytes;
        send->range += !range->bytes;
        return true;
}

static void pump(struct sum_send *send)
{
        while (send->range < send->n_ranges && send->in_flight < WINDOW)
                if (!send_chunk(send))
                        send->range =
                                send->n_ranges; /* the connection is gone: the server asks again, or never */
        if (send->in_flight)
                return;
        unref(send->block);
        free(send->ranges);
        free(send);
}

void relay_sum_send(struct mfl_relay *relay, const struct mfl_relay_action *action)
{
        struct relay_sum *sum = find_sum(relay, action->group);
        struct sum_send *send = mfl_calloc(1, sizeof *send);
        if (send)
                send->ranges = mfl_calloc(action->n_ranges, sizeof *send->ranges);
        if (!send || !send->ranges) {
                free(send);
                mfl_loop_no_memory(relay->loop, sizeof *send, "a sum to send");
                return;
        }
        mfl_assert(sum && sum->block->bytes == action->bytes);
        send->relay = relay;
        send->epoch = relay->epoch;
        send->group = action->group;
        send->conn = action->peer;
        send->block = ref(sum->block);
        send->n_ranges = action->n_ranges;
        for (uint32_t i = 0; i < action->n_ranges; i++) {
                send->ranges[i] = action->ranges[i];
                if (send->ranges[i].offset > action->bytes ||
                        send->ranges[i].bytes > action->bytes - send->ranges[i].offset)
                        send->n_ranges = 0; /* more than there is */
        }
        pump(send);
}
