/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of a file on the servers' disks. See copy_core.h. */
#include "server/cluster/copy_core.h"

#include "common/model/graph.h"

/* ---- tally ---- */

bool mfl_copy_wants(struct mfl_copy_tally *tally, uint32_t i)
{
        if (tally->state[i] == MFL_COPY_COMING || tally->state[i] == MFL_COPY_THERE)
                return false;
        tally->state[i] = MFL_COPY_COMING;
        return true;
}

void mfl_copy_sent(struct mfl_copy_tally *tally, uint32_t i, bool ok)
{
        tally->state[i] = ok ? MFL_COPY_THERE : MFL_COPY_FAILED;
}

uint32_t mfl_copy_count(const struct mfl_copy_tally *tally, enum mfl_copy_state state)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < tally->n; i++)
                n += tally->state[i] == state;
        return n;
}

enum mfl_copy_verdict mfl_copy_verdict(const struct mfl_copy_tally *tally)
{
        const uint32_t most = (tally->n + 1) / 2; /* of the others; the leader has it */
        if (mfl_copy_count(tally, MFL_COPY_THERE) >= most)
                return MFL_COPY_HELD;
        return tally->n - mfl_copy_count(tally, MFL_COPY_FAILED) < most ? MFL_COPY_TOO_FEW : MFL_COPY_WAIT;
}

/* ---- give ---- */

void mfl_copy_give_init(struct mfl_copy_give *give, uint64_t bytes, uint64_t piece_max)
{
        *give = (struct mfl_copy_give){
                .bytes = bytes, .n = bytes <= piece_max ? bytes : 0, .piece_max = piece_max};
}

enum mfl_copy_give_action mfl_copy_give_step(struct mfl_copy_give *give, uint64_t have, bool durable)
{
        const bool all = give->offset == give->bytes; /* all of it is there, and was asked for once more */
        const bool back = have < give->offset + give->n || all;
        if (durable)
                return MFL_COPY_GIVE_DONE;
        if (back && give->again) /* once: what it had was of another file, or damaged */
                return MFL_COPY_GIVE_STUCK;
        give->again = give->again || back;
        give->offset = MFL_MIN(have, give->bytes);
        give->n = MFL_MIN(give->bytes - give->offset, give->piece_max);
        return MFL_COPY_GIVE_PIECE;
}

/* ---- take ---- */

static enum mfl_copy_take_action do_take(struct mfl_copy_take *take, enum mfl_copy_take_action action)
{
        take->doing = action;
        return action;
}

/* The part is as long as take->have says. */
static enum mfl_copy_take_action on_part(struct mfl_copy_take *take)
{
        const bool fits = take->have == take->offset && take->n <= take->bytes - take->have;
        if (take->n && fits && take->doing != MFL_COPY_TAKE_WRITE)
                return do_take(take, MFL_COPY_TAKE_WRITE);
        return do_take(take, take->have == take->bytes ? MFL_COPY_TAKE_SYNC : MFL_COPY_TAKE_ANSWER);
}

static enum mfl_copy_take_action begin(struct mfl_copy_take *take, const struct mfl_copy_take_event *event)
{
        take->durable = false;
        take->have = event->part;
        take->doing = MFL_COPY_TAKE_ANSWER;
        if (event->whole) /* a server that was killed may have left its name unsynced */
                return do_take(take, MFL_COPY_TAKE_SYNC_NAME);
        return take->have > take->bytes ? do_take(take, MFL_COPY_TAKE_CUT) : on_part(take);
}

enum mfl_copy_take_action mfl_copy_take_step(
        struct mfl_copy_take *take, const struct mfl_copy_take_event *event)
{
        if (event->kind == MFL_COPY_TAKE_EV_BEGIN)
                return begin(take, event);
        if (event->kind == MFL_COPY_TAKE_EV_CHECKED)
                return do_take(take, event->ok ? MFL_COPY_TAKE_NAME : MFL_COPY_TAKE_DROP);
        switch (take->doing) {
        case MFL_COPY_TAKE_CUT:
                take->have = 0;
                return on_part(take);
        case MFL_COPY_TAKE_WRITE:
                take->have += take->n;
                return on_part(take);
        case MFL_COPY_TAKE_SYNC:
                return do_take(take, MFL_COPY_TAKE_CHECK);
        case MFL_COPY_TAKE_NAME:
                return do_take(take, MFL_COPY_TAKE_SYNC_NAME);
        case MFL_COPY_TAKE_SYNC_NAME:
                take->have = take->bytes;
                take->durable = true;
                break;
        case MFL_COPY_TAKE_CHECK: /* its event is CHECKED */
        case MFL_COPY_TAKE_DROP:
        case MFL_COPY_TAKE_ANSWER:
                break;
        }
        return do_take(take, MFL_COPY_TAKE_ANSWER);
}

/* ---- fetch ---- */

static enum mfl_copy_fetch_action on_piece(
        struct mfl_copy_fetch *fetch, const struct mfl_copy_fetch_event *event)
{
        const bool known = fetch->bytes != 0;
        if (!known && event->bytes > MFL_PARAMS_MAX * sizeof(float))
                return MFL_COPY_FETCH_OTHER;
        if (!known && event->bytes > event->room)
                return MFL_COPY_FETCH_FULL;
        if (!known)
                fetch->bytes = event->bytes;
        if (event->bytes != fetch->bytes || event->n > fetch->bytes - fetch->offset ||
                (!event->n && fetch->offset < fetch->bytes))
                return MFL_COPY_FETCH_OTHER;
        fetch->n = event->n;
        return MFL_COPY_FETCH_WRITE;
}

enum mfl_copy_fetch_action mfl_copy_fetch_step(
        struct mfl_copy_fetch *fetch, const struct mfl_copy_fetch_event *event)
{
        switch (event->kind) {
        case MFL_COPY_FETCH_EV_PIECE:
                return on_piece(fetch, event);
        case MFL_COPY_FETCH_EV_WRITTEN:
                fetch->offset += fetch->n;
                return fetch->offset < fetch->bytes ? MFL_COPY_FETCH_ASK : MFL_COPY_FETCH_CHECK;
        case MFL_COPY_FETCH_EV_CHECKED:
                break;
        }
        return event->ok ? MFL_COPY_FETCH_KEEP : MFL_COPY_FETCH_WRONG;
}
