/* SPDX-License-Identifier: Apache-2.0 */
/* A data format of your own for mfl-client: where a data set's samples and labels come from.
 *
 * A plug-in is a shared object that exports one function, mfl_format_plugin. Build it against this header alone:
 *
 *      cc -shared -fPIC -O2 -o ppm.so ppm.c
 *
 * The daemon's administrator puts it into the directory that `plugins` in client.yaml names, and says there which data sets it reads:
 *
 *      plugin_data:
 *        - {name: leaves, format: ppm, path: /data/leaves, settings: {classes: 4}}
 *
 * What mfl does: it opens each set when the daemon starts, asks for its shape, has every sample read once into its own memory, checks
 * labels and numbers, and closes it. From then on the set is like any other: partitions, fingerprints, normalisation in the model's
 * contract, policies. Jobs' logs have the plug-in's version and the SHA-256 of its file.
 *
 * A plug-in runs inside the daemon. If it crashes, the daemon does not start. Calls come from one thread. */
#ifndef MFL_FORMAT_H
#define MFL_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MFL_FORMAT_ABI 1
#define MFL_FORMAT_REASON_BYTES 200

/* What a set has; filled by `open`. */
struct mfl_format_shape {
        uint32_t size;    /* of this struct, as mfl knows it: later releases append */
        uint32_t rank;    /* 1: {F}; 3: {C, H, W}, at most 16 channels */
        int64_t dim[3];   /* of one sample, in row-major order */
        uint32_t classes; /* labels are in [0, classes); 0 with targets */
        uint32_t targets; /* floats to be predicted per sample; 0: class labels */
        uint32_t n_train, n_test;
};

struct mfl_format_read {
        uint32_t size; /* of this struct */
        int test;      /* which split */
        uint32_t first, count;
        float *samples;  /* count times the shape, as the model shall see them; finite */
        int32_t *labels; /* count, or NULL with targets */
        float *targets;  /* count times shape.targets, or NULL; finite */
        char *reason;    /* MFL_FORMAT_REASON_BYTES */
};

struct mfl_format_plugin {
        uint32_t abi;        /* MFL_FORMAT_ABI */
        const char *name;    /* as in client.yaml: lower-case letters, digits and '-'; at most 63 */
        const char *version; /* at most 40 bytes */
        uint32_t n_settings; /* at most MFL_PLUGIN_NUMBERS_MAX */
        const struct mfl_plugin_number *settings;
        /* 0, or the reason says what is wrong with which file. *ret_set is the plug-in's own, until close. */
        int (*open)(const char *path, const double *settings, void **ret_set,
                struct mfl_format_shape *ret_shape, char *reason);
        /* The same set read twice gives the same numbers. 0, or the reason. */
        int (*read)(void *set, const struct mfl_format_read *read);
        void (*close)(void *set); /* after every successful open, once */
};

/* What the shared object exports. The result stays valid and unchanged as long as the object is loaded. */
__attribute__((visibility("default"))) const struct mfl_format_plugin *mfl_format_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
