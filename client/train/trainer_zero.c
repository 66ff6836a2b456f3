/* SPDX-License-Identifier: Apache-2.0 */
/* Where a team's state lies, and what that takes: stages of ZeRO (kernels/team/team.h), and the host's memory or the GPUs'
 * (kernels/grad.h, struct mfl_grad_device_ops). */
#include "client/train/trainer_team.h"

#include "client/peer/peer.h"
#include "common/base/log.h"
#include "kernels/check.h"
#include "kernels/mesh/mesh_shm.h"

#define AGREE_MS 120000u
#define STEP_DEVICE (UINT32_MAX - 4) /* of operations that belong to no step */

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

/* Of all that a daemon's `memory` holds then: its networks, what its ranks add, and at the leader the params that the round began with. */
void mfl_trainer_team_advise(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint32_t n, struct mfl_error *err)
{
        int zero = job->spec->parallel.zero;
        uint32_t members = job->apart ? 2 * (job->apart_ranks / n) : 4;
        size_t length = strlen(err->text);
        char bytes[16], most[16];
        if (job->spec->parallel.within == MFL_WITHIN_DAEMON)
                return;
        uint32_t stage = zero == MFL_ZERO_AUTO ? MFL_ZERO_MAX : (uint32_t)zero;
        struct mfl_net_options lent = *options;
        lent.lent = true;
        uint64_t each = rank_bytes(trainer, job, &lent, members * n, stage) + mesh_bytes(members * n);
        if (!trainer->info.own_memory)
                each += trainer->ops->net_bytes(job->graph, &lent);
        mfl_format_bytes(n * each, bytes);
        mfl_format_bytes(n * each + job->graph->n * sizeof(float), most);
        mfl_snprintf(err->text + length, sizeof(err->text) - length,
                "; in a team of %u each needs %s, the leader %s%s", members, bytes, most,
                zero == MFL_ZERO_AUTO || zero == MFL_ZERO_MAX ? "" : "; zero: 3 less");
}

/* ---- on GPUs ----
 *
 * Ranks agree first; where one of them has no room, or no way to the other GPUs, all keep their vectors in the host's memory, with the
 * same result. */

struct settling {
        struct trainer_run *run;
        struct trainer_rank *rank;
        const struct mfl_net_options *net;
        uint32_t sequence;
        struct mfl_error *err;
};

/* Whether the backend and the job let them be there. */
static bool possible(const struct mfl_trainer *trainer, const struct mfl_team_options *how)
{
        const struct mfl_grad_ops *grad = trainer->ops->grad;
        return grad && grad->device && how->zero < 2 && !how->floats && !how->snapshot;
}

/* Of one host, each of one rank: two ranks of one GPU can't meet there. */
static bool can_meet(const struct mfl_task_team *team)
{
        bool alone = true;
        for (uint32_t i = 0; i < team->n_members; i++)
                alone = alone && team->widths[i] == 1;
        return alone && !team->peers;
}

static int exchange(struct settling *s, struct mfl_mesh_op op)
{
        op.step = STEP_DEVICE;
        op.sequence = s->sequence++;
        return mfl_mesh_run(s->rank->mesh, &op, AGREE_MS, &s->run->request->control->cancel, s->err);
}

/* *ret_all: no rank has failed, and all have one version of the library. *ret_again: all have this communicator, open. */
static int agree(
        struct settling *s, int own, uint32_t version, int64_t communicator, bool *ret_all, bool *ret_again)
{
        int64_t word[] = {own != 0, version, -(int64_t)version, communicator, -communicator};
        int r = exchange(s, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_REDUCE,
                                    .type = MFL_MESH_I64,
                                    .reduction = MFL_MESH_MAX,
                                    .in = word,
                                    .out = word,
                                    .n = MFL_ARRAY_SIZE(word)});
        *ret_all = !word[0] && word[1] == -word[2];
        *ret_again = *ret_all && word[3] && word[3] == -word[4];
        return r;
}

/* Whether this rank could open a mesh: the others would wait for it. */
static int find_library(const struct settling *s, uint32_t *ret_version)
{
        const struct mfl_backend_ops *ops = s->run->trainer->ops;
        const struct mfl_mesh *mesh = s->rank->mesh;
        char text[64];
        if (mesh->n_ranks == 1)
                return 0;
        int r = ops->comm ? ops->comm->version(s->run->trainer->device, text, ret_version, s->err)
                          : mfl_fail(s->err, MFL_INVALID, "%s has no collectives", ops->name);
        if (!r && !s->run->trainer->nccl)
                r = mfl_fail(s->err, MFL_INVALID, "this daemon adds without NCCL (collective)");
        return r;
}

/* Not before all agree: an id that nobody opens costs a socket and a thread until the process ends. *ret_made: rank 0 could make one. */
static int share_id(struct settling *s, uint8_t id[MFL_COMM_ID_BYTES], bool *ret_made)
{
        const struct mfl_trainer *trainer = s->run->trainer;
        const struct mfl_mesh *mesh = s->rank->mesh;
        uint8_t word[MFL_COMM_ID_BYTES + 1] = {0};
        if (!mesh->rank)
                word[MFL_COMM_ID_BYTES] =
                        mesh->n_ranks == 1 || !trainer->ops->comm->id(trainer->device, word, s->err);
        int r = exchange(s, (struct mfl_mesh_op){.kind = MFL_MESH_BROADCAST,
                                    .type = MFL_MESH_U8,
                                    .in = word,
                                    .out = word,
                                    .n = sizeof word});
        memcpy(id, word, MFL_COMM_ID_BYTES);
        *ret_made = word[MFL_COMM_ID_BYTES];
        return r;
}

/* Room for the rank's vectors beside so many other networks of the job, which need it more; and its params there. */
static int enter(struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *net, const struct mfl_team_options *how, uint32_t n_ranks,
        uint32_t n_others, struct trainer_rank *rank, struct mfl_error *err)
{
        const char *what = n_others ? "a team's vectors and its job's other networks" : "a team's vectors";
        uint64_t others = n_others ? n_others * trainer->ops->net_bytes(job->graph, net) : 0;
        const struct mfl_grad_device_ops *device = trainer->ops->grad->device;
        uint64_t bytes = device->bytes(job->graph, net) +
                         mfl_team_device_bytes(trainer->ops, job->graph, net, how, n_ranks);
        int r = n_ranks > 1 ? mfl_communicator_check(&trainer->comm, err) : 0;
        if (!r)
                r = mfl_trainer_memory_reserve(&trainer->device_memory, bytes + others, what, err);
        if (r)
                return r;
        mfl_trainer_memory_release(&trainer->device_memory, others);
        rank->device_bytes = bytes;
        return device->reside(rank->net, true, err);
}

void mfl_trainer_device_leave(struct mfl_trainer *trainer, struct trainer_rank *rank, bool whole)
{
        mfl_communicator_leave(&trainer->comm, rank->bulk, whole);
        rank->bulk = NULL;
        if (!rank->device_bytes)
                return;
        (void)trainer->ops->grad->device->reside(rank->net, false, NULL);
        mfl_trainer_memory_release(&trainer->device_memory, rank->device_bytes);
        rank->device_bytes = 0;
}

/* The communicator between the GPUs, if there are several. */
static int open_bulk(struct settling *s, const uint8_t *id, bool again)
{
        struct mfl_trainer *trainer = s->run->trainer;
        if (s->rank->mesh->n_ranks == 1)
                return 0;
        int r = again ? 0
                      : mfl_communicator_open(&trainer->comm, trainer->ops, trainer->device, s->run->job->id,
                                s->rank->mesh, id, &s->run->request->control->cancel, s->err);
        s->rank->bulk = r ? NULL : trainer->comm.mesh;
        return r;
}

static int make_team(const struct mfl_trainer *trainer, const struct trainer_job *job,
        struct mfl_team_options how, struct trainer_rank *rank, struct mfl_error *err)
{
        const struct mfl_loss loss = mfl_loss_of_job(job->spec);
        how.resident = true;
        how.bulk = rank->bulk;
        return mfl_team_new(trainer->ops, rank->net, &loss, rank->mesh, &how, &rank->team, err);
}

void mfl_trainer_device_alone(struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *net, const struct mfl_team_options *how, struct trainer_rank *rank)
{
        struct mfl_team_options own = *how;
        struct mfl_error err;
        if (!possible(trainer, how))
                return;
        own.shared = false;
        if (!enter(trainer, job, net, &own, 1, job->n_slots - 1, rank, &err) &&
                !make_team(trainer, job, own, rank, &err))
                return;
        mfl_trainer_device_leave(trainer, rank, false);
        mfl_log_job(MFL_LOG_INFO, job->id, "%s: the team's vectors are in the host's memory: %s", job->id,
                err.text);
}

/* Each step that can fail at one rank alone is followed by a word of all. The error of a step that failed is in err. */
static int settle(struct settling *s, const struct mfl_team_options *how, bool *ret_all)
{
        struct trainer_run *run = s->run;
        uint8_t id[MFL_COMM_ID_BYTES] = {0};
        uint32_t version = 0;
        bool again = false, none;
        int64_t communicator = mfl_communicator_number(&run->trainer->comm, s->rank->mesh);
        int r = enter(run->trainer, run->job, s->net, how, s->rank->mesh->n_ranks, 0, s->rank, s->err);
        if (!r)
                r = find_library(s, &version);
        int broken = agree(s, r, version, communicator, ret_all, &again);
        if (!broken && *ret_all && !again)
                broken = share_id(s, id, ret_all);
        if (broken || !*ret_all)
                return broken;
        r = open_bulk(s, id, again);
        if (!r)
                r = make_team(run->trainer, run->job, *how, s->rank, s->err);
        return agree(s, r, 0, 0, ret_all, &none);
}

int mfl_trainer_device_team(struct trainer_run *run, const struct mfl_net_options *net,
        const struct mfl_team_options *how, struct trainer_rank *rank, struct mfl_error *err)
{
        struct mfl_error own = {{0}};
        struct settling s = {.run = run, .rank = rank, .net = net, .err = &own};
        bool all = false;
        if (!possible(run->trainer, how) || how->shared || how->together ||
                !can_meet(&run->request->task->team))
                return 0;
        int r = settle(&s, how, &all);
        if (!r && all)
                return 0;
        mfl_team_free(rank->team);
        rank->team = NULL;
        mfl_trainer_device_leave(run->trainer, rank, false);
        if (r)
                return mfl_fail(err, r, "%s", own.text);
        mfl_log_job(MFL_LOG_INFO, run->job->id, "%s: the team's vectors are in the host's memory: %s",
                run->job->id, *own.text ? own.text : "another daemon can't keep them on its GPU");
        return 0;
}
