/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of the server as tables for people. All render lines, each ended by '\n'; columns: of the terminal, 0
 * for no limit; NULL when out of memory; the caller frees. */
#ifndef MFL_CLI_VIEWS_H
#define MFL_CLI_VIEWS_H

#include "common/base.h"
#include "proto/wire.h"

/* A node's label for people: an id of 32 hex digits is cut to 12, as digests are; a daemon's name behind it
 * stays.
 * "-" for an empty one. Returns buf. */
const char *mfl_view_node(const char *label, char *buf, size_t buf_bytes);
/* "4.0x"; "-" when nothing went over the network. Returns buf. */
const char *mfl_view_factor(uint64_t bytes, uint64_t bytes_alone, char *buf, size_t buf_bytes);

/* "2024-05-01 13:14:15", in the time zone of this machine; "-" for none. Returns buf. */
const char *mfl_view_date(uint64_t unix_ms, char *buf, size_t buf_bytes);
/* "0.8545"; "n/a" where the loss has none; "-" of a round that was not evaluated, or NULL. Returns buf. */
const char *mfl_view_accuracy(const Mfl__RoundInfo *round, char *buf, size_t buf_bytes);

/* Reasons stand in a column; where there is a terminal, below their jobs. */
char *mfl_view_jobs(const Mfl__JobList *list, int columns);
char *mfl_view_rounds(Mfl__RoundInfo *const *rounds, size_t n, int columns);

/* By node, the leader first, then by name. */
void mfl_view_sort_daemons(Mfl__DaemonList *list);
/* Of a sorted list. */
char *mfl_view_daemons(const Mfl__DaemonList *list, int columns);

/* What the newest round (all_rounds: every round that the server still knows this of) cost each node, and the
 * sum over the rounds. "" when the server knows of none. */
char *mfl_view_network(const Mfl__JobDetail *detail, bool all_rounds, int columns);

/* How a job's data are divided: a line of sums, then a row for each client shown, with its commonest classes.
 */
char *mfl_view_partition(const Mfl__JobPartition *partition, int columns);

#endif
