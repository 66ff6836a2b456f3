/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON that --json prints: one shape per thing, the same in every command (`mfl help json`).
 * Makers return NULL when out of memory. Printing writes one line and takes the reference over. */
#ifndef MFL_CLI_JSON_H
#define MFL_CLI_JSON_H

#include <jansson.h>
#include <stdio.h>

#include "common/base.h"
#include "proto/wire.h"

json_t *mfl_json_round(const Mfl__RoundInfo *round);
json_t *mfl_json_job(const Mfl__JobInfo *info);
json_t *mfl_json_node(const Mfl__NodeCost *cost);
json_t *mfl_json_partition(const Mfl__JobPartition *partition);
json_t *mfl_json_activity(const Mfl__Activity *activity); /* NULL: null */
json_t *mfl_json_daemon(const Mfl__DaemonInfo *daemon);
/* {"event": kind} to add members to. */
json_t *mfl_json_event(const char *kind);

/* -ENOMEM for NULL, -errno when the write fails. */
int mfl_json_print(FILE *out, json_t *object, struct mfl_error *err);
/* {"error": {"code": ..., "text": ...}} */
void mfl_json_print_error(FILE *out, const char *code, const char *text);

const char *mfl_state_name(Mfl__JobState state); /* "waiting", "running", "done", "failed", "stopped" */
const char *mfl_collective_name(Mfl__Collective collective); /* "solo", "shm", "nccl", "unknown" */
/* Whether the round was evaluated with a loss that knows right from wrong. */
bool mfl_has_accuracy(const Mfl__RoundInfo *round);
bool mfl_state_is_final(Mfl__JobState state);

#endif
