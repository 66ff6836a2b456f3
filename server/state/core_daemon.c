/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons and their history with jobs. */
#include "server/state/state.h"

#include "common/base/digest.h"

uint64_t mfl_core_name_key(const char *name)
{
        uint8_t digest[MFL_SHA256_BYTES];
        return mfl_sha256(name, strlen(name), digest, NULL) ? 0 : mfl_sha256_number(digest);
}

int mfl_core_info_copy(struct mfl_daemon_info *to, const struct mfl_daemon_info *from)
{
        struct mfl_data_info *data_sets = mfl_calloc(from->n_data_sets, sizeof *data_sets);
        if (!data_sets)
                return -ENOMEM;
        if (from->n_data_sets)
                memcpy(data_sets, from->data_sets, from->n_data_sets * sizeof *data_sets);
        free(to->data_sets);
        *to = *from;
        to->data_sets = data_sets;
        return 0;
}

struct core_daemon *mfl_core_daemon_find(const struct mfl_core *core, const char *name)
{
        return mfl_core_map_get(&core->by_key, mfl_core_name_key(name));
}

struct core_daemon *mfl_core_daemon_add(struct mfl_core *core, uint64_t key)
{
        if (core->n_daemons == core->daemons_capacity) {
                uint32_t capacity = core->daemons_capacity ? core->daemons_capacity * 2 : 16;
                struct core_daemon **v = mfl_realloc(core->daemons, capacity * sizeof *v);
                if (!v)
                        return NULL;
                core->daemons = v;
                core->daemons_capacity = capacity;
        }
        struct core_daemon *daemon = mfl_calloc(1, sizeof *daemon);
        if (!daemon)
                return NULL;
        daemon->key = key;
        daemon->position = core->n_daemons;
        if (mfl_core_map_put(&core->by_key, key, daemon)) {
                free(daemon);
                return NULL;
        }
        core->daemons[core->n_daemons++] = daemon;
        return daemon;
}

void mfl_core_daemon_remove(struct mfl_core *core, struct core_daemon *daemon)
{
        mfl_assert(!daemon->conn && !daemon->tasks && !daemon->job && !daemon->node && !daemon->in_site);
        mfl_core_map_remove(&core->by_key, daemon->key);
        struct core_daemon *last = core->daemons[--core->n_daemons];
        core->daemons[daemon->position] = last;
        last->position = daemon->position;
        mfl_core_daemon_free(daemon);
}

void mfl_core_daemon_free(struct core_daemon *daemon)
{
        free(daemon->info.data_sets);
        free(daemon->relations);
        free(daemon);
}

struct core_relation *mfl_core_relation_find(const struct core_daemon *daemon, const struct core_job *job)
{
        for (uint32_t i = 0; i < daemon->n_relations; i++)
                if (daemon->relations[i].job == job->serial)
                        return &daemon->relations[i];
        return NULL;
}

struct core_relation *mfl_core_relation(
        struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job)
{
        struct core_relation *found = mfl_core_relation_find(daemon, job);
        if (found)
                return found;
        struct core_relation *v = mfl_realloc(daemon->relations, (daemon->n_relations + 1) * sizeof *v);
        if (!v) {
                core->error = -ENOMEM;
                return NULL;
        }
        daemon->relations = v;
        v[daemon->n_relations] = (struct core_relation){.job = job->serial};
        return &v[daemon->n_relations++];
}

bool mfl_core_daemon_takes_work(const struct core_daemon *daemon)
{
        return !daemon->draining && !daemon->leaving;
}

uint32_t mfl_core_daemon_team_least(const struct core_daemon *daemon, const struct core_job *job)
{
        const struct core_relation *relation = mfl_core_relation_find(daemon, job);
        return relation ? MFL_MAX(1u, relation->team_least) : 1;
}

bool mfl_core_daemon_asks(const struct core_daemon *daemon, const struct core_job *job)
{
        const struct core_relation *relation = mfl_core_relation_find(daemon, job);
        return relation && relation->asks;
}

bool mfl_core_daemon_rests(const struct core_daemon *daemon, const struct core_job *job)
{
        const struct core_relation *relation = mfl_core_relation_find(daemon, job);
        return relation && relation->rest_stamp == job->stamp;
}
