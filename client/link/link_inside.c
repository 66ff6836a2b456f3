/* SPDX-License-Identifier: Apache-2.0 */
/* Small params that came inside a Task. */
#include "client/link/link_inside.h"

void mfl_link_inside_keep(struct link_inside **inside, const Mfl__Task *task)
{
        if (!task->params.len || task->params_digest.len != MFL_DIGEST_BYTES)
                return;
        free(*inside);
        *inside = mfl_malloc(sizeof(**inside) + task->params.len);
        if (!*inside)
                return;
        mfl_strcpy((*inside)->job, sizeof((*inside)->job), task->job);
        memcpy((*inside)->digest, task->params_digest.data, MFL_DIGEST_BYTES);
        (*inside)->bytes = task->params.len;
        memcpy((*inside)->data, task->params.data, task->params.len);
}

bool mfl_link_inside_answers(const struct link_inside *inside, const struct mfl_msg *get)
{
        return inside && !get->params.offset && !strcmp(inside->job, get->params.job) &&
               !memcmp(inside->digest, get->params.digest, MFL_DIGEST_BYTES);
}
