/* SPDX-License-Identifier: Apache-2.0 */
/* The server's lists as tables for people. All functions render lines, each ended by '\n'; columns: the width
 * of the terminal, 0 for no limit; NULL when out of memory; the caller frees. */
#ifndef MFL_CLI_VIEW_VIEWS_H
#define MFL_CLI_VIEW_VIEWS_H

#include "common/base/base.h"
#include "common/contract/contract.h"
#include "common/measure/measure.h"
#include "proto/wire.h"

/* A node's label for people: an id of 32 hex digits is cut to 12, like a digest, and a daemon's name after it
 * stays; "-" for an empty id. Returns buf. */
const char *mfl_view_node(const char *label, char *buf, size_t buf_bytes);

/* "2024-05-01 13:14:15", in the time zone of this machine; "-" for none. Returns buf. */
const char *mfl_view_date(uint64_t unix_ms, char *buf, size_t buf_bytes);
/* "0.8545"; "n/a" if the loss has no accuracy; "-" for NULL, and for a round that was not evaluated. Returns
 * buf. */
const char *mfl_view_accuracy(const Mfl__RoundInfo *round, char *buf, size_t buf_bytes);

/* What of a job with privacy has no noise: "losses, accuracies, measures, counts and logs are not private"; NULL: the job has no privacy. */
const char *mfl_view_open_figures(const Mfl__JobInfo *job);
/* "*" behind a figure of the job's data that has no noise, otherwise "". Tables with one end with the line MFL_VIEW_MARK. */
const char *mfl_view_mark(const Mfl__JobInfo *job);
/* text, which is freed, and more; NULL if memory ran out, or text is NULL. */
char *mfl_view_append(char *text, const char *more);
#define MFL_VIEW_MARK "* not private: this figure of a job with privacy has no noise\n"

/* Reasons have a column of their own, but on a terminal they are below their jobs. */
char *mfl_view_jobs(const Mfl__JobList *list, int columns);
char *mfl_view_rounds(Mfl__RoundInfo *const *rounds, size_t n, int columns);

/* By node, the leader first, then by name. */
void mfl_view_sort_daemons(Mfl__DaemonList *list);
/* For a sorted list. */
char *mfl_view_daemons(const Mfl__DaemonList *list, int columns);

/* What the newest round cost each node, and the sum over the rounds. all_rounds: every round for which the
 * server still knows it. "" if the server knows none. */
char *mfl_view_network(const Mfl__JobDetail *detail, bool all_rounds, int columns);

/* A line of sums; at_work: also the teams at work. NULL teams: the job has none. "" if there is nothing to say. */
char *mfl_view_teams(const Mfl__JobTeams *teams, bool at_work, int columns);

/* "SEPARATORclients' mean 0.8120SEPARATORworst 10% 0.6000": the measures that are known. Returns buf. */
const char *mfl_view_measures(
        const struct mfl_measures *measures, const char *separator, char *buf, size_t buf_bytes);
/* Metrics of plug-ins, likewise. */
const char *mfl_view_metrics(
        const struct mfl_metrics *metrics, const char *separator, char *buf, size_t buf_bytes);
/* What the newest evaluated round measured beside its loss and accuracy; with partition local, a row for each site, the
 * worst first. "": nothing. */
char *mfl_view_scores(const Mfl__JobDetail *detail, int columns);

/* What a model expects of its input. */
char *mfl_view_contract(
        const struct mfl_contract *contract, bool foreign); /* foreign: no job has trained it */

/* How a job's data set is divided: a line of sums, then one row per shown client with its most common
 * classes. */
char *mfl_view_partition(const Mfl__JobPartition *partition, int columns);

#endif
