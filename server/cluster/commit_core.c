/* SPDX-License-Identifier: Apache-2.0 */
/* One commit. See commit_core.h. */
#include "server/cluster/commit_core.h"

static enum mfl_commit_action end(struct mfl_commit *commit, enum mfl_commit_result result)
{
        commit->result = result;
        return MFL_COMMIT_ACT_END;
}

static enum mfl_commit_action on_look(struct mfl_commit *commit, const struct mfl_commit_event *event)
{
        if (!event->known)
                return end(commit, MFL_COMMIT_WAIT);
        if (event->id)
                return end(commit, event->id == commit->id ? MFL_COMMIT_DONE : MFL_COMMIT_LOST);
        return end(commit, event->term == commit->term ? MFL_COMMIT_WAIT : MFL_COMMIT_LOST);
}

enum mfl_commit_action mfl_commit_step(struct mfl_commit *commit, const struct mfl_commit_event *event)
{
        switch (event->kind) {
        case MFL_COMMIT_EV_BEGIN:
                return commit->has_blob ? MFL_COMMIT_ACT_BLOB : MFL_COMMIT_ACT_TXN;
        case MFL_COMMIT_EV_BLOB:
                return event->ok ? MFL_COMMIT_ACT_TXN : end(commit, MFL_COMMIT_WAIT);
        case MFL_COMMIT_EV_TXN:
                return event->known && event->ok ? end(commit, MFL_COMMIT_DONE) : MFL_COMMIT_ACT_LOOK;
        case MFL_COMMIT_EV_LOOK:
                break;
        }
        return on_look(commit, event);
}
