/* SPDX-License-Identifier: Apache-2.0 */
/* A filter of your own for mfl-client: what becomes of a client's change of the params before it leaves the site.
 *
 * A plug-in is a shared object that exports one function, mfl_filter_plugin. Build it against this header alone:
 *
 *      cc -shared -fPIC -O2 -ffp-contract=off -o layer-clip.so layer_clip.c
 *
 * The daemon's administrator puts it into the directory that `plugins` in client.yaml names, and says there which filters every update
 * goes through, in this order:
 *
 *      filters:
 *        - {name: layer-clip, settings: {norm: 0.5}}
 *        - {name: hold-back, when: asked}               only for jobs that name it: filters: [hold-back]
 *
 * What mfl does: it trains, takes the difference to the round's params, calls the filters, and then does all that it does without them:
 * limits (aggregation.delta_max), clipping, compression, privacy, exact sums, masks. So a filter sees the change before it is rounded. What
 * the server reads without it: the numbers beside the change (samples, losses), and what jobs whose clients keep a state send behind it: with
 * ditto, pfedme and apfl the client's own model, with mime, mimelite and scaffold of option I its gradient. The job's log has each filter's
 * name, version, numbers and the SHA-256 of its file.
 *
 * What a plug-in promises: the result follows from the arguments alone (no clock; random numbers from `seed`, `client`, `round`), so that
 * the same job gives the same model. Calls come from several threads at once. It keeps no pointer.
 *
 * A plug-in runs inside the daemon. If it crashes, the daemon starts anew; when it has ended twice in one client's update, that update is
 * rejected with the plug-in's name. Other clients and jobs go on. One that never returns holds its daemon. */
#ifndef MFL_FILTER_H
#define MFL_FILTER_H

#include <stddef.h>
#include <stdint.h>

#include "plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MFL_FILTER_ABI 1
#define MFL_FILTER_REASON_BYTES 160

/* A tensor: elements [first, first + count) of delta and params, in row-major order. */
struct mfl_filter_tensor {
        const char *name; /* "conv1.weight" */
        size_t first, count;
        int statistics; /* not 0: running statistics of a norm, which are averaged, not trained */
        uint32_t rank;
        const int64_t *shape;
};

struct mfl_filter_call {
        uint32_t size;  /* of this struct: later releases append */
        uint32_t round; /* from 1 on */
        const char *job;
        uint64_t client, seed;  /* the client's number, the job's seed */
        const double *settings; /* in the plug-in's order */
        size_t count;
        const float *params; /* of the round, before training */
        float *delta; /* the change: to be changed in place. Values that are not finite reject the client */
        uint32_t n_tensors;
        const struct mfl_filter_tensor *tensors;
        char *reason; /* MFL_FILTER_REASON_BYTES: why the update is rejected */
};

struct mfl_filter_plugin {
        uint32_t abi;        /* MFL_FILTER_ABI */
        const char *name;    /* as in client.yaml: lower-case letters, digits and '-'; at most 63 */
        const char *version; /* for the job's log; at most 40 bytes */
        uint32_t n_settings; /* at most MFL_PLUGIN_NUMBERS_MAX */
        const struct mfl_plugin_number *settings;
        /* 0: the update goes on. Else it is rejected: the round does without this client, and its job's log has the reason. */
        int (*apply)(const struct mfl_filter_call *call);
};

/* What the shared object exports. The result stays valid and unchanged as long as the object is loaded. */
__attribute__((visibility("default"))) const struct mfl_filter_plugin *mfl_filter_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
