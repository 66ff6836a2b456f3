/* SPDX-License-Identifier: Apache-2.0 */
/* What to change in a job whose training network does not fit: first, changes that give the same model. */
#include "client/train/trainer_team.h"

#include "common/base/log.h"

static bool fits(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint64_t room, char text[16])
{
        uint64_t bytes = trainer->ops->net_bytes(job->graph, options);
        mfl_format_bytes(bytes, text);
        return bytes && bytes <= room; /* 0: the backend can't make such a network */
}

/* The largest batch below the job's that fits, or 0. Larger batches never take less memory. With `parallel` it is a grain, which divides
 * the job's batch. */
static int find_batch(const struct mfl_trainer *trainer, const struct trainer_job *job,
        struct mfl_net_options options, uint64_t room, char text[16])
{
        int most = 0, none = options.batch;
        while (none - most > 1) {
                options.batch = most + (none - most) / 2;
                if (fits(trainer, job, &options, room, text))
                        most = options.batch;
                else
                        none = options.batch;
        }
        while (options.worker && most > 1 && job->spec->training.batch % (uint32_t)most)
                most--;
        options.batch = MFL_MAX(most, 1);
        fits(trainer, job, &options, room, text);
        return most;
}

void mfl_trainer_advise(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint64_t room, struct mfl_error *err)
{
        struct mfl_net_options other = *options;
        bool automatic = options->segments == MFL_SEGMENTS_AUTO, done;
        const char *also = automatic ? "" : " and checkpointing: auto";
        char bytes[16], advice[160];
        other.segments = MFL_SEGMENTS_AUTO;
        done = !automatic && fits(trainer, job, &other, room, bytes);
        if (done)
                mfl_snprintf(advice, sizeof(advice),
                        "training.checkpointing: auto makes it %s, and gives the same model", bytes);
        other.groups = 1;
        if (!done && options->groups > 1) {
                done = fits(trainer, job, &other, room, bytes);
                if (done)
                        mfl_snprintf(advice, sizeof(advice),
                                "training.fuse: auto%s take %s for a client, and give the same model", also,
                                bytes);
        }
        /* A card has the whole network in a team, too. */
        if (!done && options->worker && !trainer->info.own_memory &&
                job->spec->parallel.within != MFL_WITHIN_DAEMON) {
                mfl_trainer_team_advise(trainer, job, options, mfl_trainer_team_width(trainer, job, 1), err);
                return;
        }
        if (!done) {
                int batch = find_batch(trainer, job, other, room, bytes);
                mfl_snprintf(advice, sizeof(advice),
                        batch ? "%s: %d%s would take %s" : "a %s of %d%s would still take %s",
                        batch             ? options->worker ? "parallel.grain" : "training.batch"
                        : options->worker ? "grain"
                                          : "batch",
                        MFL_MAX(batch, 1), also, bytes);
        }
        size_t length = strlen(err->text);
        mfl_snprintf(err->text + length, sizeof(err->text) - length, "; %s", advice);
}

void mfl_trainer_log_network(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, const struct mfl_net *net)
{
        char whole[16], tensors[16], cut[64] = "all kept";
        struct mfl_net_plan plan;
        trainer->ops->net_plan(net, &plan);
        if (plan.segments > 1)
                mfl_snprintf(cut, sizeof cut, "in %d segments that are computed again", plan.segments);
        mfl_log_job(MFL_LOG_INFO, job->id, "%s: a training network of %s for %d at once: activations %s, %s",
                job->id, mfl_format_bytes(trainer->ops->net_bytes(job->graph, options), whole),
                options->groups, mfl_format_bytes(plan.tensor_bytes, tensors), cut);
}
