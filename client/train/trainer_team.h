/* SPDX-License-Identifier: Apache-2.0 */
/* A slot whose client is trained by a team (kernels/team/team.h). Inside the trainer.
 *
 * Of one daemon: its ranks are threads of this process, with one network each and the params of the first; the team lives
 * as long as its slot (trainer_team.c).
 *
 * Of several daemons ("apart"): this process has some of the ranks, each with params of its own. Networks are kept, and for
 * each task the ranks of all members meet under the task's team number, in shared memory or over the network (trainer_meet.c). The leader says
 * to all which item begins, how many steps to take, and when all is done; everything else follows from the task, which all
 * members have. So the leader alone knows clocks and recalls. */
#ifndef MFL_CLIENT_TRAIN_TRAINER_TEAM_H
#define MFL_CLIENT_TRAIN_TRAINER_TEAM_H

#include "client/train/trainer_internal.h"
#include "kernels/mesh/mesh.h"
#include "kernels/mesh/mesh_memory.h"
#include "kernels/team/team.h"

enum trainer_word { WORD_ITEM, WORD_STEPS, WORD_END };

struct trainer_rank {
        struct mfl_mesh *mesh;
        struct mfl_net *net;            /* of this process's first rank: the slot's */
        struct mfl_mesh_memory *memory; /* apart: of the params, in this meeting */
        bool fills;                     /* it writes what all who have that memory start from */
        struct mfl_team *team;
        struct mfl_mesh *bulk; /* between GPUs, the trainer's; NULL: none */
        uint64_t device_bytes; /* reserved of the device's memory; 0: the team's vectors are in the host's */
        struct mfl_group_steps steps;
        int64_t word[2];  /* apart: what the leader says, and its number */
        uint32_t accused; /* if it could not meet; as in struct mfl_mesh, like loss */
        enum mfl_mesh_loss loss;
        struct mfl_error err;
        int code;
};

struct trainer_team {
        uint32_t n; /* ranks of this process */
        bool apart, broken;
        uint32_t apart_ranks; /* of all processes */
        uint32_t apart_widest;
        uint32_t zero;  /* stage; apart: the least that this process has room for */
        bool taken;     /* apart: the first rank's params have become an update */
        uint64_t bytes; /* reserved */
        struct mfl_net_options options;
        uint32_t n_words;    /* apart: so far, in this meeting */
        uint64_t slowest_ns; /* apart: step */
        struct trainer_pool pool;
        struct trainer_rank *ranks;
};

/* How the ranks of a job's team work, but for their deadline. net: of their networks. */
struct mfl_team_options mfl_trainer_team_options(
        const struct trainer_job *job, const struct mfl_net_options *net, uint32_t zero);
/* The ranks' common result: the first that failed by itself, else MFL_TEAM_BROKEN with the accused, or MFL_CANCELLED. */
int mfl_trainer_team_result(struct trainer_run *run, struct trainer_team *team, struct mfl_error *err);

/* ---- vectors on the device: trainer_zero.c ---- */

/* A team of this one rank, or NULL as below. */
void mfl_trainer_device_alone(struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *net, const struct mfl_team_options *how, struct trainer_rank *rank);
/* After the rank's team is gone. Fine also where nothing is there. whole: its meeting ended well. */
void mfl_trainer_device_leave(struct mfl_trainer *trainer, struct trainer_rank *rank, bool whole);
/* By all ranks of a meeting: rank->team, with its vectors on the GPUs; NULL: all use the host's memory. */
int mfl_trainer_device_team(struct trainer_run *run, const struct mfl_net_options *net,
        const struct mfl_team_options *how, struct trainer_rank *rank, struct mfl_error *err);

/* Blocks until all ranks of the task's team are there. */
int mfl_trainer_meet(struct trainer_run *run, struct trainer_slot *slot, struct mfl_error *err);
/* The leader says *word and *number; the others hear them. For WORD_ITEM all ranks' params are the task's. */
int mfl_trainer_meet_word(struct trainer_run *run, struct trainer_slot *slot, enum trainer_word *word,
        uint32_t *number, struct mfl_error *err);
/* ---- a team that was lost: trainer_kept.c ----
 *
 * A task whose team loses a member fails, and the server deals its clients again under new task and team numbers, which are the
 * team's next epoch. A member that has all of the training's state, or snapshots of its own and another member's shards
 * (kernels/team/team.h), keeps them beside the job: one client's, with the round and the params that it began with. If it is then in a team for that client and these params again, or
 * gets the client alone, the training goes on from the farthest state that its members have together. Nobody
 * is told: the result is the same either way. The copy goes when the client has gone on, another one is kept, the job is forgotten, or its
 * memory is needed. */

/* Keeps the state of the slot's client, if this process has it; before its meeting is over. */
void mfl_trainer_keep(struct trainer_run *run, struct trainer_slot *slot);

/* The meeting is over. reason: why it breaks off, or NULL. Fine also without a meeting. */
void mfl_trainer_part(struct mfl_trainer *trainer, struct trainer_slot *slot, const char *reason);

#endif
