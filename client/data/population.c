/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of a population's samples, by client and class.
 *
 * Counts by class always fit into the message: at most 2^32 samples, dealt over 256 x 64 counts, take less
 * than 4 bytes each on average, which is 53 KiB with the rest of the message. */
#include "client/data/population.h"

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

/* Counts of at most 5 bytes, beside those by class or alone. */
#define COUNTS_MAX (1u << 20)
#define COUNTS_FIRST 1024
#define COUNTS_PIECE 8192

static bool count_all(Mfl__Partition *all, const struct mfl_partition *partition)
{
        if (partition->n_clients > COUNTS_MAX)
                return true;
        all->counts = mfl_malloc(partition->n_clients * sizeof *all->counts);
        if (!all->counts)
                return false;
        all->n_counts = partition->n_clients;
        for (uint32_t k = 0; k < partition->n_clients; k++)
                all->counts[k] = partition->start[k + 1] - partition->start[k];
        return true;
}

void mfl_population_piece(const Mfl__Partition *population, uint32_t *first, Mfl__Partition *ret_piece,
        Mfl__ClientSamples *ret_shown, Mfl__ClientSamples **ret_list)
{
        size_t left = population->n_counts - MFL_MIN(population->n_counts, (size_t)*first);
        *ret_piece = *population;
        ret_piece->first = *first;
        if (*first)
                ret_piece->contract = ret_piece->plugins = (char *)protobuf_c_empty_string;
        ret_piece->n_counts = MFL_MIN(left, (size_t)(*first ? COUNTS_PIECE : COUNTS_FIRST));
        ret_piece->counts = ret_piece->n_counts ? population->counts + *first : NULL;
        *first = ret_piece->n_counts < left ? *first + (uint32_t)ret_piece->n_counts : population->clients;
        if (!ret_piece->first)
                return;
        *ret_shown = *population->shown[0];
        ret_shown->n_classes = 0;
        ret_shown->classes = NULL;
        *ret_list = ret_shown;
        ret_piece->shown = ret_list;
        ret_piece->n_shown = 1;
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
        if (!fill(all, job, partition, labels) || (!local && !count_all(all, partition))) {
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
