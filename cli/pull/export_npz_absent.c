/* SPDX-License-Identifier: Apache-2.0 */
/* For a build without libzip. */
#include "cli/pull/export.h"

int mfl_npz_write(const char *path, const struct mfl_graph *graph, const float *params, const char *comment,
        struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "this mfl was built without npz (libzip); --format safetensors has the same parameters");
}

int mfl_npz_write_changes(const char *path, const struct mfl_graph *graph,
        const struct mfl_changes_pulled *changes, struct mfl_error *err)
{
        return mfl_npz_write(path, graph, changes->v, "", err);
}
