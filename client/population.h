/* SPDX-License-Identifier: Apache-2.0 */
/* How a job's data are divided among its clients, in the form that the server is told (Partition in
 * proto/mfl.proto). Pure; any thread.
 */
#ifndef MFL_CLIENT_POPULATION_H
#define MFL_CLIENT_POPULATION_H

#include "common/data/partition.h"
#include "proto/mfl.pb-c.h"

/* labels: of the training split, by sample, in [0, classes); NULL: there are none. Of partition `local` only
 * how many samples there are goes in, never the labels; local_client is the number of that one client. The
 * message is freed with mfl_population_free. -ENOMEM. */
int mfl_population_new(const char *job, const struct mfl_job *spec, const struct mfl_partition *partition,
        const int32_t *labels, int classes, uint64_t local_client, Mfl__Partition **ret_population,
        struct mfl_error *err);
void mfl_population_free(Mfl__Partition *population); /* NULL is fine */

#endif
