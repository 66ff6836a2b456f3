/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the conformance of teams: what is trained, and a rank of a team that trains it. */
#ifndef MFL_KERNELS_CONFORMANCE_CONFORMANCE_WORKER_H
#define MFL_KERNELS_CONFORMANCE_CONFORMANCE_WORKER_H

#include "kernels/conformance/conformance_train.h"
#include "kernels/team/team.h"

#define GRAIN 4
#define ROWS 12
#define RANKS_MAX 8
#define HOSTS_MAX 3
#define DEADLINE_MS 120000

struct team_run {
        const struct conf_backend *b;
        const struct conf_train_case *kase;
        struct conf_training *t;
        struct mfl_net_options options;
        const struct mfl_device_data *data;
        float weights[CONF_CLASSES_MAX];
        uint32_t index[CONF_STEPS * ROWS];
        float *params; /* n */
        struct mfl_score score;
        struct mfl_team_options how;
        uint32_t n_lent; /* 0: networks have params of their own; else they have those of so many hosts */
        float *lent[HOSTS_MAX];
};

struct worker {
        struct team_run *run;
        struct mfl_mesh *mesh;
        struct mfl_net *net;
        struct mfl_team *team;
        struct mfl_group_steps steps;
        struct mfl_error err;
        int rc;
};

/* What all ranks do. */
void mfl_conf_team_steps(const struct team_run *run, struct mfl_group_steps *steps);
/* A rank of a team that works as run->how says. sibling: NULL, or the network whose params it shares. The worker owns the mesh. */
void mfl_conf_worker_init(
        struct team_run *run, struct mfl_mesh *mesh, struct mfl_net *sibling, struct worker *w);
void mfl_conf_worker_deinit(struct worker *w);
bool mfl_conf_same_score(const struct mfl_score *a, const struct mfl_score *b);

#endif
