/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON vocabulary of mfl: messages of the operator's plane as JSON objects, the same on the command line
 * (`mfl ... --json`, described by `mfl help json`) and on the server's HTTP pages. One thing has one name
 * everywhere, with its unit at the end where it has one: committed_unix_ms is Unix time in milliseconds,
 * power_watts are watts. What is not known is null.
 *
 * Makers return NULL when memory runs out. Text that is not plain (common/base/plain.h) is cleaned. Pure.
 */
#ifndef MFL_PROTO_JSON_JSON_H
#define MFL_PROTO_JSON_JSON_H

#include <jansson.h>

#include "common/base/base.h"
#include "common/measure/measure.h"
#include "proto/wire.h"

/* NULL: null, for round and activity. */
json_t *mfl_json_round(const Mfl__RoundInfo *round);
json_t *mfl_json_job(const Mfl__JobInfo *info);
json_t *mfl_json_scores(const Mfl__RoundScores *scores); /* NULL: null */
json_t *mfl_json_node(const Mfl__NodeCost *cost);
json_t *mfl_json_partition(const Mfl__JobPartition *partition);
json_t *mfl_json_activity(const Mfl__Activity *activity);
json_t *mfl_json_daemon(const Mfl__DaemonInfo *daemon);

/* A string; null when it is empty. */
json_t *mfl_json_text(const char *text);
/* A number; null when it is not known, or JSON has no number for it. */
json_t *mfl_json_number(bool known, double value);

/* ---- the words that both use ---- */
const char *mfl_state_name(Mfl__JobState state); /* "waiting", "running", "done", "failed", "stopped" */
const char *mfl_collective_name(Mfl__Collective collective); /* "solo", "shm", "nccl", "relay", "unknown" */
/* Whether the round was evaluated with a loss that can tell right from wrong. */
bool mfl_has_accuracy(const Mfl__RoundInfo *round);
/* The round's measures, as far as this program knows them. */
struct mfl_measures mfl_round_measures(const Mfl__RoundInfo *round);
struct mfl_metrics mfl_round_metrics(const Mfl__RoundInfo *round);
bool mfl_state_is_final(Mfl__JobState state);

#endif
