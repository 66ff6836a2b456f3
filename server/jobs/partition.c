/* SPDX-License-Identifier: Apache-2.0 */
/* Reads partitions from the store. */
#include "server/jobs/partition.h"

bool mfl_job_partition_is_local(const struct mfl_server_job *job)
{
        return job->spec->data.partition == MFL_PARTITION_LOCAL;
}

void mfl_job_partition_free(Mfl__Partition *partition)
{
        mfl__partition__free_unpacked(partition, NULL);
}

static bool add_site(Mfl__Partition *all, const char *daemon, const Mfl__Partition *site)
{
        const Mfl__ClientSamples *told = site->shown[0];
        mfl_assert(all->n_shown <= MFL_PARTITION_SHOWN_MAX && *daemon);
        all->samples += told->samples;
        all->samples_min = all->clients ? MFL_MIN(all->samples_min, told->samples) : told->samples;
        all->samples_max = MFL_MAX(all->samples_max, told->samples);
        all->clients++;
        if (all->n_shown == MFL_PARTITION_SHOWN_MAX)
                return true;
        Mfl__ClientSamples *client = mfl_malloc(sizeof *client);
        if (!client)
                return false;
        mfl__client_samples__init(client);
        all->shown[all->n_shown++] = client;
        client->client = told->client;
        client->samples = told->samples;
        client->daemon = mfl_strdup(daemon);
        return client->daemon != NULL;
}

/* Made like an unpacked one, so that one function frees both. */
static Mfl__Partition *new_partition(const char *id)
{
        Mfl__Partition *all = mfl_malloc(sizeof *all);
        if (!all)
                return NULL;
        mfl__partition__init(all);
        all->job = mfl_strdup(id);
        all->shown = mfl_calloc(MFL_PARTITION_SHOWN_MAX, sizeof *all->shown);
        if (all->job && all->shown)
                return all;
        mfl_job_partition_free(all);
        return NULL;
}

static int join_sites(const char *id, const struct mfl_store_partitions *rows, Mfl__Partition **ret_partition,
        struct mfl_error *err)
{
        Mfl__Partition *all = new_partition(id);
        bool ok = all != NULL;
        for (uint32_t i = 0; ok && i < rows->n; i++) {
                Mfl__Partition *site = mfl__partition__unpack(NULL, rows->v[i].bytes, rows->v[i].body);
                ok = site && site->n_shown == 1 && add_site(all, rows->v[i].daemon, site);
                mfl_job_partition_free(site);
        }
        if (ok) {
                *ret_partition = all;
                return 0;
        }
        mfl_job_partition_free(all);
        return mfl_fail_memory(err, 0, "a partition");
}

int mfl_job_partition_read(
        struct mfl_store *store, const char *id, Mfl__Partition **ret_partition, struct mfl_error *err)
{
        struct mfl_store_partitions rows;
        int r = mfl_store_partition_list(store, id, &rows, err);
        if (r)
                return r;
        if (!rows.n) {
                *ret_partition = NULL;
        } else if (*rows.v[0].daemon) {
                r = join_sites(id, &rows, ret_partition, err);
        } else {
                *ret_partition = mfl__partition__unpack(NULL, rows.v[0].bytes, rows.v[0].body);
                if (!*ret_partition)
                        r = mfl_fail_memory(err, rows.v[0].bytes, "a partition");
        }
        mfl_store_partitions_deinit(&rows);
        return r;
}
