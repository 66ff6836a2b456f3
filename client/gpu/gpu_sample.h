/* SPDX-License-Identifier: Apache-2.0 */
/* Measures a GPU every few seconds on its own thread, beside a libuv loop. NVML may take seconds, or hang
 * when a device is lost: then there are no new figures, and the loop goes on.
 *
 * Loop thread. on_sample is called from the loop, never from inside start or close. */
#ifndef MFL_CLIENT_GPU_GPU_SAMPLE_H
#define MFL_CLIENT_GPU_GPU_SAMPLE_H

#include "client/gpu/gpu.h"
#include "common/base/worker.h"

#define MFL_GPU_SAMPLE_MS 5000u /* a server forgets figures after a minute */

struct mfl_gpu_sampler {
        struct mfl_nvml *nvml;
        char uuid[MFL_GPU_TEXT_BYTES];
        void *user;
        void (*on_sample)(struct mfl_gpu_sampler *sampler, const struct mfl_telemetry *telemetry);
        /* Private. */
        struct mfl_worker worker;
        struct mfl_work work;
        uv_timer_t timer;
        bool started, closing, busy, told;
        int status;
        struct mfl_telemetry telemetry;
        struct mfl_error err;
};

/* nvml, uuid, user and on_sample are set; nvml outlives the sampler. The first sample is taken at once.
 * Negative on failure; then there is nothing to close. */
int mfl_gpu_sampler_start(struct mfl_gpu_sampler *sampler, uv_loop_t *loop, struct mfl_error *err);
/* Also for a sampler that was never started; the caller may free its memory after the loop has run. A sample
 * in progress does not keep the loop alive: if the loop ends first, `busy` is still set, and the process must
 * end without freeing the sampler and NVML. */
void mfl_gpu_sampler_close(struct mfl_gpu_sampler *sampler);

#endif
