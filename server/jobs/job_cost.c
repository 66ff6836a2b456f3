/* SPDX-License-Identifier: Apache-2.0 */
/* What the rounds of a job cost on the network, by node: counted bytes, and what the core says they would
 * have been without nodes. At most two rounds are kept: the current one, and the one before while it is being
 * stored.
 */
#include "server/jobs/job_internal.h"

static struct mfl_node_costs *costs_of(struct mfl_server_job *job, uint32_t round)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(job->costs); i++)
                if (job->costs[i].round == round)
                        return &job->costs[i];
        return NULL;
}

void mfl_server_job_cost_open(struct mfl_server_job *job, uint32_t round)
{
        if (job->costs[0].round != round) { /* not another attempt */
                struct mfl_node_costs oldest = job->costs[1];
                job->costs[1] = job->costs[0];
                job->costs[0] = oldest;
        }
        mfl_node_costs_reset(&job->costs[0], round);
}

void mfl_server_job_cost_bytes(struct mfl_server_job *job, uint32_t conn, uint64_t up, uint64_t down)
{
        char node[MFL_NODE_BYTES];
        struct mfl_error err;
        job->observed.bytes_up += up;
        job->observed.bytes_down += down;
        mfl_core_node(job->jobs->loop->core, conn, node);
        int r = mfl_node_costs_bytes(&job->costs[0], node, up, down, &err);
        if (r)
                mfl_loop_fatal(job->jobs->loop, r, &err);
}

void mfl_server_job_cost(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        struct mfl_node_costs *costs = costs_of(job, action->round);
        struct mfl_error err;
        int r = !costs ? 0
                       : mfl_node_costs_alone(costs, action->cost.node, action->cost.daemon, action->cost.up,
                                 action->cost.down, &err);
        if (r)
                mfl_loop_fatal(job->jobs->loop, r, &err);
}

int mfl_server_job_cost_take(struct mfl_server_job *job, struct mfl_store_round *round,
        struct mfl_store_nodes *ret_nodes, struct mfl_error *err)
{
        const struct mfl_node_costs *costs = costs_of(job, round->record.round);
        if (!costs)
                return 0;
        struct mfl_store_node sum = mfl_node_costs_sum(costs);
        round->bytes_up = sum.up;
        round->bytes_down = sum.down;
        round->bytes_up_alone = sum.up_alone;
        round->bytes_down_alone = sum.down_alone;
        return mfl_node_costs_copy(costs, ret_nodes, err);
}

void mfl_server_job_cost_free(struct mfl_server_job *job)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(job->costs); i++)
                mfl_node_costs_deinit(&job->costs[i]);
}
