/* SPDX-License-Identifier: Apache-2.0 */
/* Who leads. See lead_core.h. */
#include "server/cluster/lead_core.h"

#define PATIENCE_LEASES 3

void mfl_lead_init(struct mfl_lead *lead, const struct mfl_lead_options *options)
{
        *lead = (struct mfl_lead){.options = *options};
}

static void follow(struct mfl_lead *lead, uint64_t read_ms)
{
        lead->state = MFL_LEAD_FOLLOW;
        if (lead->lease) {
                lead->old_lease = lead->lease;
                lead->revokes = true;
        }
        lead->lease = 0;
        lead->term = 0;
        lead->read_ms = read_ms;
}

/* etcd has answered a request that was sent at sent_ms. */
static void renew(struct mfl_lead *lead, uint64_t sent_ms, uint64_t ttl_ms)
{
        lead->until_ms = sent_ms + MFL_MIN(ttl_ms, lead->options.lease_ms);
        lead->keep_ms = sent_ms + lead->options.lease_ms / 3;
}

static bool is_over(const struct mfl_lead *lead, uint64_t now_ms)
{
        return lead->lease && now_ms >= lead->until_ms;
}

static enum mfl_lead_action_kind step_down(struct mfl_lead *lead)
{
        lead->state = MFL_LEAD_LEFT;
        lead->wake_ms = UINT64_MAX;
        return MFL_LEAD_ACT_STEP_DOWN;
}

/* What the state does next, if there is something to do. */
static enum mfl_lead_action_kind next(struct mfl_lead *lead, uint64_t now_ms)
{
        if (lead->state == MFL_LEAD_LEFT) {
                lead->wake_ms = UINT64_MAX;
                return MFL_LEAD_ACT_NONE;
        }
        if (lead->revokes) {
                lead->revokes = false;
                return MFL_LEAD_ACT_REVOKE;
        }
        if (lead->state == MFL_LEAD_FOLLOW) {
                lead->wake_ms = lead->read_ms;
                return now_ms >= lead->read_ms ? MFL_LEAD_ACT_READ : MFL_LEAD_ACT_NONE;
        }
        if (now_ms >= lead->keep_ms)
                return MFL_LEAD_ACT_KEEP;
        if (lead->state == MFL_LEAD_CAMPAIGN)
                return MFL_LEAD_ACT_CAMPAIGN;
        if (lead->state == MFL_LEAD_CATCH_UP && now_ms >= lead->read_ms)
                return MFL_LEAD_ACT_READ;
        lead->wake_ms = lead->keep_ms;
        if (lead->state == MFL_LEAD_CATCH_UP)
                lead->wake_ms = MFL_MIN(lead->wake_ms, lead->read_ms);
        return MFL_LEAD_ACT_NONE;
}

static enum mfl_lead_action_kind on_read(struct mfl_lead *lead, const struct mfl_lead_event *event)
{
        if (event->ok)
                lead->patient_ms = 0;
        else if (!lead->patient_ms)
                lead->patient_ms = event->now_ms + PATIENCE_LEASES * lead->options.lease_ms;
        if (lead->state == MFL_LEAD_CATCH_UP && !event->ok && event->now_ms >= lead->patient_ms) {
                follow(lead, event->now_ms + lead->options.lease_ms);
                return next(lead, event->now_ms);
        }
        lead->read_ms = event->now_ms + (event->ok && event->behind ? 0 : lead->options.poll_ms);
        if (!event->ok || event->behind)
                return next(lead, event->now_ms);
        if (lead->state == MFL_LEAD_FOLLOW && !event->leader)
                return MFL_LEAD_ACT_GRANT;
        if (lead->state != MFL_LEAD_CATCH_UP)
                return next(lead, event->now_ms);
        lead->state = MFL_LEAD_LEADS;
        return MFL_LEAD_ACT_SERVE;
}

static enum mfl_lead_action_kind on_kept(struct mfl_lead *lead, const struct mfl_lead_event *event)
{
        if (!event->ok)
                lead->keep_ms = event->now_ms + lead->options.poll_ms / 2;
        else if (event->ttl_ms)
                renew(lead, event->sent_ms, event->ttl_ms);
        else
                lead->until_ms = event->now_ms;
        return MFL_LEAD_ACT_NONE;
}

/* Its result does not matter once the lease is over. */
static enum mfl_lead_action_kind on_campaign(struct mfl_lead *lead, const struct mfl_lead_event *event)
{
        if (!event->ok) /* it may have won: asking again tells */
                return MFL_LEAD_ACT_NONE;
        if (!event->term) {
                follow(lead, event->now_ms + lead->options.poll_ms);
                return MFL_LEAD_ACT_NONE;
        }
        lead->term = event->term;
        lead->state = MFL_LEAD_CATCH_UP;
        lead->patient_ms = 0;
        lead->read_ms = event->now_ms;
        return MFL_LEAD_ACT_NONE;
}

static enum mfl_lead_action_kind on_granted(struct mfl_lead *lead, const struct mfl_lead_event *event)
{
        if (!event->ok) {
                lead->read_ms = event->now_ms + lead->options.poll_ms;
                return MFL_LEAD_ACT_NONE;
        }
        lead->lease = event->lease;
        renew(lead, event->sent_ms, event->ttl_ms);
        lead->state = MFL_LEAD_CAMPAIGN;
        return MFL_LEAD_ACT_NONE;
}

enum mfl_lead_action_kind mfl_lead_step(struct mfl_lead *lead, const struct mfl_lead_event *event)
{
        enum mfl_lead_action_kind action = MFL_LEAD_ACT_NONE;
        const uint64_t now_ms = event->now_ms;
        if (event->kind == MFL_LEAD_EV_RESUMED) {
                follow(lead, now_ms);
                return next(lead, now_ms);
        }
        if (lead->state == MFL_LEAD_LEFT)
                return next(lead, now_ms);
        if (event->kind == MFL_LEAD_EV_KEPT)
                on_kept(lead, event);
        if (event->kind == MFL_LEAD_EV_GRANTED)
                on_granted(lead, event);
        if (is_over(lead, now_ms) || event->kind == MFL_LEAD_EV_FENCED) {
                if (lead->state == MFL_LEAD_LEADS)
                        return step_down(lead);
                follow(lead, now_ms + lead->options.poll_ms);
                return next(lead, now_ms);
        }
        if (event->kind == MFL_LEAD_EV_READ)
                action = on_read(lead, event);
        if (event->kind == MFL_LEAD_EV_CAMPAIGN)
                on_campaign(lead, event);
        return action ? action : next(lead, now_ms);
}
