/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl-client --all-gpus`: one child daemon per GPU, each `mfl-client ... --gpu UUID --name NAME-gpuI`,
 * watched until all have ended. The parent itself opens neither CUDA nor data sets.
 *
 * Children get the parent's own arguments and then those that make them children. They have their own
 * sessions, so that a terminal's Ctrl-C reaches them once, through the parent; and standard input is a pipe
 * from the parent, with --exit-with-stdin, so that they end when the parent does, however it ends. Only the
 * parent talks to the service manager; SIGHUP is passed on. */
#ifndef MFL_CLIENT_SERVICE_SUPERVISE_H
#define MFL_CLIENT_SERVICE_SUPERVISE_H

#include "client/service/config.h"
#include "client/gpu/gpu.h"

/* Whether the configuration asks for several daemons. */
bool mfl_supervise_wanted(const struct mfl_client_config *config);

/* Blocks until all children have ended; *ret_status is the program's exit status. MFL_INVALID: no GPUs, or
 * not those that were asked for. Negative: no memory, or no loop. */
int mfl_supervise_run(const struct mfl_client_config *config, int argc, char *const argv[], int *ret_status,
        struct mfl_error *err);

/* The child's name: NAME-gpu3, NAME-gpu3-mig1; a long NAME is cut so that it fits. */
void mfl_supervise_name(const char *name, const struct mfl_gpu *gpu, char ret_name[MFL_NAME_BYTES]);

#endif
