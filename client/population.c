/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of a population's samples, by client and class.
 *
 * They always fit the message: 2^32 samples at most, dealt over 256 x 64 counts, take less than 4 bytes each
 * on the average, which is 53 KiB with what is around them. */
#include "client/population.h"

#include "proto/message.h"

static void count_classes(
        const struct mfl_partition *partition, uint32_t k, const int32_t *labels, Mfl__ClientSamples *client)
{
        for (uint32_t i = partition->start[k]; i < partition->start[k + 1]; i++) {
                int32_t label = labels[partition->index[i]];
                if (label >= 0)
                        client->classes[MFL_MIN((size_t)label, client->n_classes - 1)]++;
        }
}

static bool add_client(
        Mfl__Partition *all, const struct mfl_partition *partition, uint32_t k, const int32_t *labels)
{
        Mfl__ClientSamples *client = mfl_malloc(sizeof *client);
        if (!client)
                return false;
        mfl__client_samples__init(client);
        all->shown[all->n_shown++] = client;
        client->client = k;
        client->samples = partition->start[k + 1] - partition->start[k];
        size_t n = MFL_MIN(all->classes, (uint32_t)MFL_PARTITION_CLASSES_MAX);
        if (!n)
                return true;
        client->classes = mfl_calloc(n, sizeof *client->classes);
        if (!client->classes)
                return false;
        client->n_classes = n;
        count_classes(partition, k, labels, client);
        return true;
}

static void sum_up(Mfl__Partition *all, const struct mfl_partition *partition)
{
        all->clients = partition->n_clients;
        all->samples = partition->start[partition->n_clients] - partition->start[0];
        all->samples_min = UINT32_MAX;
        for (uint32_t k = 0; k < partition->n_clients; k++) {
                uint32_t n = partition->start[k + 1] - partition->start[k];
                all->samples_min = MFL_MIN(all->samples_min, n);
                all->samples_max = MFL_MAX(all->samples_max, n);
        }
}

static bool fill(
        Mfl__Partition *all, const char *job, const struct mfl_partition *partition, const int32_t *labels)
{
        uint64_t n = partition->n_clients, n_shown = MFL_MIN(n, (uint64_t)MFL_PARTITION_SHOWN_MAX);
        bool ok = (all->job = mfl_strdup(job)) && (all->shown = mfl_calloc(n_shown, sizeof *all->shown));
        for (uint64_t i = 0; ok && i < n_shown; i++)
                ok = add_client(all, partition, (uint32_t)(i * n / n_shown), labels);
        return ok;
}

int mfl_population_new(const char *job, const struct mfl_job *spec, const struct mfl_partition *partition,
        const int32_t *labels, int classes, uint64_t local_client, Mfl__Partition **ret_population,
        struct mfl_error *err)
{
        bool local = spec->data.partition == MFL_PARTITION_LOCAL;
        Mfl__Partition *all = mfl_malloc(sizeof *all);
        if (!all)
                return mfl_fail_memory(err, sizeof *all, "a partition's figures");
        mfl__partition__init(all);
        sum_up(all, partition);
        all->classes = local || !labels || classes < 1 ? 0 : (uint32_t)classes;
        if (!fill(all, job, partition, labels)) {
                mfl_population_free(all);
                return mfl_fail_memory(err, 0, "a partition's figures");
        }
        if (local)
                all->shown[0]->client = local_client;
        *ret_population = all;
        return 0;
}

void mfl_population_free(Mfl__Partition *population)
{
        mfl__partition__free_unpacked(population, NULL);
}
