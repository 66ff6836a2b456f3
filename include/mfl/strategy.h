/* SPDX-License-Identifier: Apache-2.0 */
/* A strategy of your own for mfl-server: how a round's params follow from the params before and the clients' mean change.
 *
 * A plug-in is a shared object that exports one function, mfl_strategy_plugin. Build it against this header alone:
 *
 *      cc -shared -fPIC -O2 -ffp-contract=off -o sign-momentum.so sign_momentum.c
 *
 * The server's administrator puts it into the directory that `plugins` in server.yaml names; a job asks for it by name:
 *
 *      aggregation: {strategy: plugin, plugin: {name: sign-momentum, settings: {beta: 0.9}}}
 *
 * What mfl does: it collects and adds updates exactly, gives ranges of elements in order, refuses values that are not finite, and
 * stores params and state with each round, so that a job resumes with the same bits. What a plug-in promises: each output element
 * follows from the inputs of that element and from the settings alone (no clock, no random numbers but from the arguments, nothing
 * kept between calls but `state`), so that the same job gives the same model. Calls come from one thread at a time for each job, and
 * from several threads for several jobs.
 *
 * A plug-in runs inside the server. If it crashes, the server starts anew and continues; after three crashes in one round the job fails
 * with the plug-in's name, and other jobs go on. One that never returns holds its own job. */
#ifndef MFL_STRATEGY_H
#define MFL_STRATEGY_H

#include <stddef.h>
#include <stdint.h>

#include "plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MFL_STRATEGY_ABI 1
#define MFL_STRATEGY_STATE_MAX 2

/* One range of elements; all pointers are to `count` values. params_out and params_in do not overlap. */
struct mfl_strategy_call {
        uint32_t size;  /* of this struct: later releases append */
        uint32_t round; /* from 1 on */
        size_t count;
        const double *settings; /* in the plug-in's order */
        const float *params_in;
        const double *delta; /* the clients' weighted mean change of each element */
        float *const *state; /* n_state vectors, to be updated in place */
        float *params_out;   /* to be written */
};

struct mfl_strategy_plugin {
        uint32_t abi;        /* MFL_STRATEGY_ABI */
        const char *name;    /* as in job files: lower-case letters, digits and '-'; at most 63 */
        const char *version; /* for the job's log; at most 40 bytes */
        uint32_t n_settings; /* at most MFL_PLUGIN_NUMBERS_MAX */
        const struct mfl_plugin_number *settings;
        uint32_t
                n_state; /* vectors as long as the params, kept from round to round; at most MFL_STRATEGY_STATE_MAX */
        const char *state_name[MFL_STRATEGY_STATE_MAX]; /* part of tensors' names in checkpoints */
        float state_initial[MFL_STRATEGY_STATE_MAX];    /* of each element */
        void (*apply)(const struct mfl_strategy_call *call);
};

/* What the shared object exports. The result stays valid and unchanged as long as the object is loaded. */
__attribute__((visibility("default"))) const struct mfl_strategy_plugin *mfl_strategy_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
