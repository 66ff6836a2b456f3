/* SPDX-License-Identifier: Apache-2.0 */
/* Fetching a model: params over the wire, checked against their digest, written as a safetensors file. */
#ifndef MFL_CLI_PULL_H
#define MFL_CLI_PULL_H

#include "cli/client.h"

#define MFL_PULL_LAST (-1)
#define MFL_PULL_BEST (-2)

struct mfl_pulled {
        uint32_t round;
        bool evaluated;
        double accuracy, loss;
        uint64_t n_params;
        char digest[65]; /* hex */
        char path[4096];
};

/* Writes path atomically; NULL: "JOB-rROUND.safetensors" here. MFL_CLI_LOST also when the params do not have
 * the digest that the server told: nothing is written then. Codes of client.h; negative for the disk. */
int mfl_pull(struct mfl_client *client, const char *job, int64_t round, const char *path,
        struct mfl_pulled *ret_pulled, struct mfl_error *err);

#endif
