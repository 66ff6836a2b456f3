/* SPDX-License-Identifier: Apache-2.0 */
/* The daemons that work for a watched job. */
#include "cli/view/crew.h"

void mfl_crew_take(struct mfl_crew *crew, const Mfl__Crew *wire)
{
        *crew = (struct mfl_crew){.more = wire->more};
        for (size_t i = 0; i < wire->n_members && i < MFL_CREW_MAX; i++) {
                const Mfl__CrewMember *from = wire->members[i];
                struct mfl_crew_member *to = &crew->member[crew->n++];
                mfl_strcpy(to->daemon, sizeof to->daemon, from->daemon);
                mfl_strcpy(to->state, sizeof to->state, from->state);
                to->items_done = from->items_done;
                to->items_total = from->items_total;
                to->known = from->activity != NULL;
                if (to->known)
                        to->activity = *from->activity; /* all members are numbers */
        }
}

bool mfl_crew_sum(const struct mfl_crew *crew, Mfl__Activity *ret_sum)
{
        Mfl__Activity sum = MFL__ACTIVITY__INIT;
        for (size_t i = 0; i < crew->n; i++) {
                const Mfl__Activity *a = &crew->member[i].activity;
                if (!crew->member[i].known)
                        continue;
                sum.workers += a->workers;
                sum.samples_per_second += a->samples_per_second;
                sum.compute += a->workers * a->compute;
                sum.data += a->workers * a->data;
                sum.network += a->workers * a->network;
                sum.wait += a->workers * a->wait;
        }
        if (!sum.workers)
                return false;
        sum.compute /= sum.workers;
        sum.data /= sum.workers;
        sum.network /= sum.workers;
        sum.wait /= sum.workers;
        *ret_sum = sum;
        return true;
}

json_t *mfl_crew_json(const struct mfl_crew *crew)
{
        json_t *daemons = json_array();
        for (size_t i = 0; i < crew->n; i++) {
                const struct mfl_crew_member *m = &crew->member[i];
                json_array_append_new(daemons,
                        json_pack("{ss ss sI sI so}", "name", m->daemon, "state", m->state, "items_done",
                                (json_int_t)m->items_done, "items_total", (json_int_t)m->items_total,
                                "activity", mfl_json_activity(m->known ? &m->activity : NULL)));
        }
        return daemons;
}
