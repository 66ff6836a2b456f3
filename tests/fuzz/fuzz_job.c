/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a job document, and its graph for an image data set. */
#include "common/job/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static const struct mfl_shape image = {3, {1, 28, 28}};
        struct mfl_job *job = NULL;
        struct mfl_graph *graph = NULL;
        struct mfl_error err;
        int r = mfl_job_parse((const char *)data, size, "fuzz", &job, &err);
        mfl_assert(r >= 0);
        if (job)
                mfl_assert(mfl_job_graph(job, &image, 10, &graph, &err) >= 0);
        mfl_graph_free(graph);
        mfl_job_free(job);
        return 0;
}
