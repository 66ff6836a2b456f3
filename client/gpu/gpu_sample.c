/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's figures: a timer, a worker that asks NVML, and a callback. If a device can't be measured, that is
 * logged once, and again when it can. */
#include "client/gpu/gpu_sample.h"

#include "common/base/log.h"

static void run_sample(struct mfl_work *work)
{
        struct mfl_gpu_sampler *s = MFL_CONTAINER_OF(work, struct mfl_gpu_sampler, work);
        s->status = mfl_nvml_sample(s->nvml, s->uuid, &s->telemetry, &s->err);
}

static void on_sampled(struct mfl_work *work)
{
        struct mfl_gpu_sampler *s = MFL_CONTAINER_OF(work, struct mfl_gpu_sampler, work);
        s->busy = false;
        if (work->cancelled || s->closing)
                return;
        if (s->status && !s->told)
                mfl_log(MFL_LOG_WARN, "the GPU can't be measured: %s", s->err.text);
        else if (!s->status && s->told)
                mfl_log(MFL_LOG_INFO, "the GPU can be measured again");
        s->told = s->status != 0;
        if (!s->status && s->telemetry.known)
                s->on_sample(s, &s->telemetry);
}

static void on_timer(uv_timer_t *timer)
{
        struct mfl_gpu_sampler *s = timer->data;
        /* If a sample takes longer than the period, the next one waits for it. */
        if (s->busy)
                return;
        s->work = (struct mfl_work){.run = run_sample, .done = on_sampled};
        s->busy = !mfl_worker_submit(&s->worker, &s->work);
}

int mfl_gpu_sampler_start(struct mfl_gpu_sampler *sampler, uv_loop_t *loop, struct mfl_error *err)
{
        sampler->busy = sampler->closing = sampler->told = false;
        int r = mfl_worker_start(&sampler->worker, loop, "nvml", 1, err);
        if (r)
                return r;
        uv_timer_init(loop, &sampler->timer);
        sampler->timer.data = sampler;
        uv_timer_start(&sampler->timer, on_timer, 0, MFL_GPU_SAMPLE_MS);
        sampler->started = true;
        return 0;
}

void mfl_gpu_sampler_close(struct mfl_gpu_sampler *sampler)
{
        if (!sampler->started || sampler->closing)
                return;
        sampler->closing = true;
        uv_close((uv_handle_t *)&sampler->timer, NULL);
        mfl_worker_close(&sampler->worker, NULL);
        /* A lost device may block NVML for ever, so nothing waits for it. */
        if (sampler->busy)
                uv_unref((uv_handle_t *)&sampler->worker.wakeup);
}
