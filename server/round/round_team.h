/* SPDX-License-Identifier: Apache-2.0 */
/* Sharing out idle daemons among few clients: which of them form teams (server/work/core_team.h).
 *
 * Teams are for rounds with more idle daemons than clients; otherwise each daemon has clients of its own, which is
 * faster. Members can reach each other (they are of one node; or the job says `within: any`, and they listen for each
 * other), compute with the same last bit (Hello.numerics), and together
 * have no more ranks than a step has grains, nor than the job allows, and no fewer than parallel.members.min: below that a
 * client waits for more daemons, or goes to another team. Which daemons train a client changes nothing in the
 * result. The same daemons form the same teams again after a restart. */
#ifndef MFL_SERVER_ROUND_ROUND_TEAM_H
#define MFL_SERVER_ROUND_ROUND_TEAM_H

#include "server/state/state.h"

/* How many ranks the job's clients may have now; 1: they get no teams. */
uint32_t mfl_round_team_ranks(const struct core_job *job);
/* Deals the open items, one to each team or single daemon, if that is better than dealing items to daemons; else false,
 * and nothing has happened. v: daemons in the order of names; `local` jobs: of one site, and one item. Those that the job
 * has not leased are leased. */
bool mfl_round_team_deal(struct mfl_core *core, struct core_job *job, struct core_daemon *const *v,
        uint32_t n, const uint32_t *open, uint32_t n_open);
/* The members of a team, at most `most`, that could be had of v, as a deal to these would form it: 0 if there is none. v, usable daemons, is
 * sorted and loses those that are busy. */
uint32_t mfl_round_team_find(struct mfl_core *core, const struct core_job *job, struct core_daemon **v,
        uint32_t n, uint32_t most, struct core_daemon *ret_v[MFL_GROUP_MAX]);
/* A job that needs teams, and has too few daemons for any beside those that rest in this phase: after a while these work again. */
void mfl_round_team_wait(struct mfl_core *core, struct core_job *job);
/* The ranks that a daemon's workers are. */
uint32_t mfl_round_team_width(const struct core_daemon *daemon, const struct core_job *job);
/* It joins no team, by its configuration or its age. */
bool mfl_round_team_alone(const struct core_daemon *daemon);
/* It helps another one's client. */
bool mfl_round_team_assists(const struct core_daemon *daemon);

#endif
