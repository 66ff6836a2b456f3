/* SPDX-License-Identifier: Apache-2.0 */
/* A team: daemons that train each client of a task together, step by step. (A group, core_group.h, adds finished updates.)
 *
 * The leader has an ordinary training task: items, updates, groups and slots are its alone. Each other member has a task
 * of kind ASSIST without items, which has no result. A team never changes. It ends
 *
 *   - when the leader has announced all items: what the others still do for it is cancelled;
 *   - when a member fails, loses another, or its task is taken back: the leader's task is taken back, too, and its items
 *     are dealt again, perhaps to a smaller team. A member that is accused to be gone or late rests until the phase ends.
 *
 * What one team had come to is kept by its members, where each of them had all of it (client/train/trainer_kept.c): the next
 * team for the client goes on from there if one of them is in it, and nobody here is told. A team's number is its epoch:
 * each team has another one, so whatever a member of an earlier team still sends or writes is for nobody.
 *
 * A team within one node meets in shared memory; one over several nodes, over the network, and its tasks have the members'
 * addresses and a key. A daemon that such teams have lost twice in a row joins none for some rounds, more each time: it may
 * stand behind a firewall that lets only one side through. One that can't connect to another looks whether it reaches anybody; if not, or if
 * of two members only the other one was ever reached, it is the one that joins none, and it goes on alone.
 *
 * Teams that end badly are counted: after TEAM_FAILS_MAX in one phase its clients, and those of the next rounds, get no
 * teams, so that rounds end also where daemons can't reach each other.
 */
#ifndef MFL_SERVER_WORK_CORE_TEAM_H
#define MFL_SERVER_WORK_CORE_TEAM_H

#include "server/state/state.h"

struct core_team_member {
        struct core_daemon *daemon;
        uint32_t width;
};

struct core_team {
        uint64_t number; /* no other team of the members' hosts has it */
        bool wide;       /* of several nodes: its members meet over the network, with `key` */
        uint8_t key[MFL_TEAM_KEY_BYTES];
        struct core_job *job;
        struct core_team *next; /* of its job */
        uint32_t n_members;
        struct {
                struct core_task *task;
                uint64_t instance;
                uint32_t width;
        } member[];
};

/* The new, unsent task is trained by all members; v[0] is its daemon, the others are leased to the job and idle. Gives
 * them their tasks. n >= 2. */
void mfl_core_team_form(
        struct mfl_core *core, struct core_task *task, const struct core_team_member *v, uint32_t n);
/* Whether the round at hand gets teams. */
bool mfl_core_team_wanted(const struct core_job *job);
/* *ret_team owns the addresses. -ENOMEM. */
int mfl_core_team_describe(const struct core_task *task, struct mfl_task_team *ret_team);
/* Of an assistant's task. */
const struct core_task *mfl_core_team_lead(const struct core_task *task);
/* An update of the leader says how long its team took. Where the job leaves the number of workers open, that also decides how many the
 * next clients get, for TEAM_REST_ROUNDS rounds; then a team as large as can be is measured again. */
void mfl_core_team_took(struct mfl_core *core, struct core_task *task, const struct mfl_task_times *times);
/* How many ranks a client may have for its training to be fast; UINT32_MAX: as many as there are. */
uint32_t mfl_core_team_pays(const struct core_job *job);
/* The leader's task is covered by updates. */
void mfl_core_team_done(struct mfl_core *core, struct core_task *task);
/* The task, of any member, is about to be taken back: its team ends. Nothing if it has none. */
void mfl_core_team_lose(struct mfl_core *core, struct core_task *task, const char *reason);
/* The daemon has come back as another process, so others were not to blame for not reaching it. */
void mfl_core_team_restarted(struct mfl_core *core, const struct core_daemon *daemon);
/* TaskFailed with `broken`, from the task's daemon. */
void mfl_core_team_broken(struct mfl_core *core, struct core_task *task, const struct mfl_msg *msg);
/* Nothing is wanted of the job's teams any longer. */
void mfl_core_teams_end(struct mfl_core *core, struct core_job *job, const char *reason);
/* With the tasks of the phase, which are freed by their owner. */
void mfl_core_teams_free(struct core_job *job);
void mfl_core_team_check(const struct core_job *job);

#endif
