/* SPDX-License-Identifier: Apache-2.0 */
/* Sites and their daemons. */
#include "server/state/state.h"

#include "common/partition/partition.h"

int mfl_core_site_enter(struct mfl_core *core, struct core_daemon *daemon)
{
        const struct mfl_daemon_info *info = &daemon->info;
        uint64_t client;
        if (mfl_partition_site_client(info->site, info->name, &client, NULL))
                return -ENOMEM;
        if (daemon->in_site && daemon->client == client)
                return 0;
        mfl_core_site_leave(core, daemon);
        struct core_daemon *first = mfl_core_map_get(&core->sites, client), **at = &first;
        while (*at && strcmp((*at)->info.name, info->name) < 0)
                at = &(*at)->site_next;
        daemon->site_next = *at;
        *at = daemon;
        if (mfl_core_map_put(
                    &core->sites, client, first)) { /* the site is new, and the list has only this one */
                daemon->site_next = NULL;
                return -ENOMEM;
        }
        daemon->client = client;
        daemon->in_site = true;
        return 0;
}

void mfl_core_site_leave(struct mfl_core *core, struct core_daemon *daemon)
{
        if (!daemon->in_site)
                return;
        struct core_daemon *first = mfl_core_map_get(&core->sites, daemon->client), **at = &first;
        while (*at != daemon)
                at = &(*at)->site_next;
        *at = daemon->site_next;
        daemon->site_next = NULL;
        daemon->in_site = false;
        if (!first)
                mfl_core_map_remove(&core->sites, daemon->client);
        else /* replaces a value, which takes no memory */
                mfl_assert(mfl_core_map_put(&core->sites, daemon->client, first) == 0);
}

struct core_daemon *mfl_core_site_first(const struct mfl_core *core, uint64_t client)
{
        return mfl_core_map_get(&core->sites, client);
}

static const struct mfl_data_info *data_named(const struct mfl_daemon_info *info, const char *name)
{
        for (uint32_t i = 0; i < info->n_data_sets; i++)
                if (strcmp(info->data_sets[i].name, name) == 0)
                        return &info->data_sets[i];
        return NULL;
}

bool mfl_core_site_conflicts(
        const struct mfl_core *core, const struct mfl_daemon_info *info, char ret_reason[MFL_REASON_BYTES])
{
        uint64_t client;
        if (!info->site[0] || mfl_partition_site_client(info->site, info->name, &client, NULL))
                return false;
        for (const struct core_daemon *d = mfl_core_site_first(core, client); d; d = d->site_next) {
                if (!d->conn || strcmp(d->info.name, info->name) == 0)
                        continue;
                for (uint32_t i = 0; i < info->n_data_sets; i++) {
                        const struct mfl_data_info *own = &info->data_sets[i];
                        const struct mfl_data_info *other = data_named(&d->info, own->name);
                        if (!other || other->fingerprint == own->fingerprint)
                                continue;
                        mfl_snprintf(ret_reason, MFL_REASON_BYTES,
                                "site %s: data set %s of daemon %s differs from that of daemon %s: give them "
                                "the "
                                "same files, or another site",
                                info->site, own->name, info->name, d->info.name);
                        return true;
                }
        }
        return false;
}

struct core_daemon *mfl_core_site_worker(
        const struct mfl_core *core, const struct core_job *job, uint64_t client)
{
        struct core_daemon *leased = NULL, *idle = NULL;
        uint32_t least = UINT32_MAX;
        for (struct core_daemon *d = mfl_core_site_first(core, client); d; d = d->site_next) {
                const struct core_relation *relation = mfl_core_relation_find(d, job);
                uint32_t fails = relation ? relation->fails : 0;
                if (!mfl_core_daemon_usable(d, job))
                        continue;
                if (d->job == job && fails < least) {
                        leased = d;
                        least = fails;
                } else if (!d->job && !idle)
                        idle = d;
        }
        return leased ? leased : idle;
}

bool mfl_core_site_leased(const struct mfl_core *core, const struct core_job *job, uint64_t client)
{
        for (const struct core_daemon *d = mfl_core_site_first(core, client); d; d = d->site_next)
                if (d->job == job)
                        return true;
        return false;
}

bool mfl_core_site_counted(
        const struct mfl_core *core, const struct core_job *job, const struct core_daemon *daemon)
{
        for (const struct core_daemon *d = mfl_core_site_first(core, daemon->client); d && d != daemon;
                d = d->site_next)
                if (mfl_core_daemon_usable(d, job))
                        return true;
        return false;
}

bool mfl_core_site_usable(const struct mfl_core *core, const struct core_job *job, uint64_t client)
{
        for (const struct core_daemon *d = mfl_core_site_first(core, client); d; d = d->site_next)
                if (mfl_core_daemon_usable(d, job))
                        return true;
        return false;
}

bool mfl_core_site_waits(const struct mfl_core *core, uint64_t client)
{
        for (const struct core_daemon *d = mfl_core_site_first(core, client); d; d = d->site_next)
                if (!d->conn)
                        return true;
        return false;
}

void mfl_core_site_check(const struct mfl_core *core)
{
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i], *before = NULL;
                bool found = false;
                mfl_assert(daemon->in_site);
                for (const struct core_daemon *d = mfl_core_site_first(core, daemon->client); d;
                        d = d->site_next) {
                        mfl_assert(d->client == daemon->client && d->in_site);
                        mfl_assert(!before || strcmp(before->info.name, d->info.name) < 0);
                        before = d;
                        found |= d == daemon;
                }
                mfl_assert(found);
        }
}
