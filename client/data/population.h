/* SPDX-License-Identifier: Apache-2.0 */
/* How a job's data are divided among its clients, as the server is told (Partition in proto/mfl.proto). Pure;
 * any thread. */
#ifndef MFL_CLIENT_DATA_POPULATION_H
#define MFL_CLIENT_DATA_POPULATION_H

#include "common/partition/partition.h"
#include "proto/mfl.pb-c.h"

/* The message has all counts unless the population is too large; mfl_population_piece cuts it into the
 * messages that are sent. labels: of the training split, by sample, in [0, classes); NULL: there are none.
 * For partition `local` only the number of samples is told, never the labels; local_client is the number of
 * that one client. Free the message with mfl_population_free. -ENOMEM. */
int mfl_population_new(const char *job, const struct mfl_job *spec, const struct mfl_partition *partition,
        const int32_t *labels, int classes, uint64_t local_client, Mfl__Partition **ret_population,
        struct mfl_error *err);
/* One of the messages that tell the population, from client *first on; *first becomes the next message's
 * first client, or the population's size after the last one. ret_piece borrows from population, and
 * *ret_shown is the memory of its list. */
void mfl_population_piece(const Mfl__Partition *population, uint32_t *first, Mfl__Partition *ret_piece,
        Mfl__ClientSamples *ret_shown, Mfl__ClientSamples **ret_list);
void mfl_population_free(Mfl__Partition *population); /* NULL is fine */

#endif
