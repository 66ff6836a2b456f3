/* SPDX-License-Identifier: Apache-2.0 */
/* Where a team's state lies, and what that takes: stages of ZeRO (kernels/team/team.h). */
#include "client/train/trainer_team.h"

#include "client/peer/peer.h"
#include "kernels/mesh/mesh_shm.h"

/* What `zero: auto` begins with. Stage 0 takes more memory than stage 1, and no less time; but only in it the members that are left
 * go on when one is lost, which is what a least number of members is for. */
static uint32_t least_stage(const struct mfl_job *spec)
{
        return spec->parallel.members_min > 1 ? 0 : 1;
}

struct mfl_team_options mfl_trainer_team_options(
        const struct trainer_job *job, const struct mfl_net_options *net, uint32_t zero)
{
        const struct mfl_job *spec = job->spec;
        return (struct mfl_team_options){.grain = (uint32_t)net->batch,
                .step_rows = trainer_step_rows(spec),
                .zero = zero,
                .floats = !spec->parallel.exact,
                .moments = net->moments,
                .start = spec->aggregation.strategy == MFL_STRATEGY_FEDPROX,
                .shared = !job->apart,
                .snapshot = job->apart ? spec->parallel.snapshot : 0,
                .keeps = mfl_parallel_keeps(job->apart_widest, job->apart_ranks),
                .overlap = spec->parallel.overlap,
                .bucket_bytes = spec->parallel.bucket};
}

/* The params of a rank of a team of several daemons, which its network does not count. In stage 3 those of a host have them once, and
 * who is where is known before only if all are of one node. */
static uint64_t params_bytes(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint32_t n_ranks, uint32_t zero)
{
        uint64_t bytes = trainer->ops->grad->elements(job->graph, options) * sizeof(float);
        uint32_t sharers = zero < 3 ? 1 : job->apart_peers ? job->apart : n_ranks;
        return (bytes + sharers - 1) / sharers;
}

static uint64_t rank_bytes(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint32_t n_ranks, uint32_t zero)
{
        struct mfl_team_options team = mfl_trainer_team_options(job, options, zero);
        team.shared = false;
        team.snapshot = options->lent ? job->spec->parallel.snapshot : 0;
        team.follows = zero == 3 && job->apart_peers;
        return mfl_team_bytes(trainer->ops, job->graph, options, &team, n_ranks) +
               (options->lent ? params_bytes(trainer, job, options, n_ranks, zero) : 0);
}

/* Of the traffic between daemons. A slot's team outlives the task, and the next one may meet elsewhere. */
static uint64_t mesh_bytes(uint32_t n_ranks)
{
        return MFL_MAX(mfl_mesh_shm_bytes(0), mfl_mesh_tcp_bytes(n_ranks));
}

uint64_t mfl_trainer_team_net_bytes(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint32_t n)
{
        struct mfl_net_options sibling = *options;
        if (!job->apart)
                sibling.sibling = (struct mfl_net *)job->slots; /* only whether there is one counts */
        return (n - 1) * trainer->ops->net_bytes(job->graph, &sibling);
}

/* The stage of a team of several daemons is the largest that any of them needs, and might take a little more than the own one. */
uint64_t mfl_trainer_team_bytes(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint32_t n, uint32_t zero)
{
        uint64_t most = 0, own_memory = trainer->info.own_memory;
        bool agreed = job->spec->parallel.zero != MFL_ZERO_AUTO || !job->apart;
        for (uint32_t stage = zero; stage <= (agreed ? zero : MFL_ZERO_MAX); stage++) {
                uint32_t own =
                        job->apart ? stage : MFL_MAX(stage, 1u); /* of threads: see kernels/team/team.h */
                most = MFL_MAX(
                        most, rank_bytes(trainer, job, options, job->apart ? job->apart_ranks : n, own));
        }
        most += job->apart ? mesh_bytes(job->apart_ranks) : 0;
        most = n * most;
        if (own_memory &&
                !job->apart) /* networks on a device have params of the host's, and one network's are all's */
                most += trainer->ops->grad->elements(job->graph, options) * sizeof(float);
        /* When the training is over, the leader keeps its params alone, and what it has of the rest is gone. */
        return (own_memory ? 0 : mfl_trainer_team_net_bytes(trainer, job, options, n)) +
               MFL_MAX(most, mfl_trainer_update_bytes(job));
}

uint64_t mfl_trainer_update_bytes(const struct trainer_job *job)
{
        return job->in_place ? job->graph->n_moving * sizeof(float) : 0;
}

uint32_t mfl_trainer_team_zero(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint32_t n, uint64_t room)
{
        uint32_t zero = least_stage(job->spec);
        if (job->spec->parallel.zero != MFL_ZERO_AUTO)
                return (uint32_t)job->spec->parallel.zero;
        while (zero < MFL_ZERO_MAX && mfl_trainer_team_bytes(trainer, job, options, n, zero) > room)
                zero++;
        return zero;
}

void mfl_trainer_team_advise(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint32_t n, struct mfl_error *err)
{
        int zero = job->spec->parallel.zero;
        uint32_t members = job->apart ? 2 * (job->apart_ranks / n) : 4;
        size_t length = strlen(err->text);
        char bytes[16];
        if (job->spec->parallel.within == MFL_WITHIN_DAEMON)
                return;
        uint32_t stage = zero == MFL_ZERO_AUTO ? MFL_ZERO_MAX : (uint32_t)zero;
        struct mfl_net_options lent = *options;
        lent.lent = true;
        uint64_t each = rank_bytes(trainer, job, &lent, members * n, stage);
        mfl_format_bytes(n * (each + mesh_bytes(members * n)), bytes);
        mfl_snprintf(err->text + length, sizeof(err->text) - length,
                "; in a team of %u daemons each needs %s%s", members, bytes,
                zero == MFL_ZERO_AUTO || zero == MFL_ZERO_MAX ? "" : "; with parallel.zero: 3 less");
}
