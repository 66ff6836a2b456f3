/* SPDX-License-Identifier: Apache-2.0 */
/* How far a training is, for people.
 *
 * A daemon tells how many samples it has trained on (Progress). The server knows how many that will be: those
 * of an average client, once per epoch. A client may have more or fewer, so no client counts as done before
 * its daemon says so.
 */
#ifndef MFL_SERVER_CORE_CORE_PROGRESS_H
#define MFL_SERVER_CORE_CORE_PROGRESS_H

#include "server/core/core.h"
#include "server/state/state.h"

/* The part of the round's training that is done: 0..1. */
double mfl_core_trained(const struct core_job *job);
/* Clients that the daemon has trained, including parts of those that it is training. */
double mfl_core_items_part(const struct core_daemon *daemon);

#endif
