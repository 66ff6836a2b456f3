/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl-client --all-gpus`: one child daemon per GPU, each `mfl-client ... --gpu UUID --name NAME-gpuI`,
 * watched until all have ended. The parent itself opens neither CUDA nor data sets.
 *
 * Children get the parent's own arguments and, after them, those that make them children. They are sessions
 * of their own, so that a terminal's Ctrl-C reaches them once, through the parent; and they hold a pipe from
 * it as standard input with --exit-with-stdin, so they end when it does, however it ends. The service manager
 * hears the parent alone; SIGHUP is passed on.
 */
#ifndef MFL_CLIENT_SUPERVISE_H
#define MFL_CLIENT_SUPERVISE_H

#include "client/config.h"
#include "client/gpu.h"

/* Whether the configuration asks for several daemons. */
bool mfl_supervise_wanted(const struct mfl_client_config *config);

/* Blocks until all children have ended; *ret_status is the exit status of the program. MFL_INVALID: no GPUs,
 * or not those asked for. Negative: no memory, or no loop. */
int mfl_supervise_run(const struct mfl_client_config *config, int argc, char *const argv[], int *ret_status,
        struct mfl_error *err);

/* The child's name: NAME-gpu3, NAME-gpu3-mig1; the beginning is cut so that it fits. */
void mfl_supervise_name(const char *name, const struct mfl_gpu *gpu, char ret_name[MFL_NAME_BYTES]);

#endif
