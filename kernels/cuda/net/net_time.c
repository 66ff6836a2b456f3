/* SPDX-License-Identifier: Apache-2.0 */
/* How long the device takes for a network's passes: struct mfl_backend_ops, time.
 *
 * The passes run on copies of the network's memory, which nothing else sees: forward and backward on enough
 * copies to rotate through the L2 cache (timing.h), a step of training on one, since steps follow one another
 * in one memory. */
#include "kernels/cuda/net/net.h"
#include "kernels/cuda/base/timing.h"

#define COPIES_BYTES_MAX ((uint64_t)4 << 30)
#define COPIES_MAX (MFL_TIMING_LAUNCHES * MFL_TIMING_GRAPHS)

struct timed {
        struct mfl_net *net;
        enum mfl_timed what;
        char *copies[COPIES_MAX], *own;
        int n;
};

/* What a pass reads and writes; much of a network's memory is for other things. */
static uint64_t touched_bytes(const struct mfl_cuda_model *model)
{
        static const enum mfl_cuda_region regions[] = {
                MFL_CUDA_ARENA, MFL_CUDA_PARAMS, MFL_CUDA_LOW, MFL_CUDA_GRADS};
        uint64_t bytes = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(regions); i++)
                bytes += model->region_bytes[regions[i]];
        return bytes;
}

/* MFL_INVALID: no memory for one copy. */
static int make_copies(struct timed *t, struct mfl_error *err)
{
        const struct mfl_cuda_model *model = &t->net->model;
        uint64_t room = COPIES_BYTES_MAX / MFL_MAX(model->bytes, 1) * touched_bytes(model);
        int wanted = t->what == MFL_TIMED_STEP ? 1
                                               : mfl_cuda_timing_sets(touched_bytes(model),
                                                         mfl_cuda_l2_bytes(t->net->device->ordinal), room);
        int rc = 0;
        while (!rc && t->n < wanted) {
                void *copy = NULL;
                rc = mfl_cuda_alloc(model->bytes, "a copy of a network to be timed", &copy, err);
                if (rc)
                        break;
                t->copies[t->n++] = copy;
                rc = mfl_cuda_check(cudaMemcpyAsync(copy, t->own, (size_t)model->bytes,
                                            cudaMemcpyDeviceToDevice, t->net->main.stream),
                        "copy a network", err);
        }
        return rc == MFL_INVALID && t->n ? 0 : rc;
}

static int launch_step(struct timed *t, struct mfl_error *err)
{
        struct mfl_net *net = t->net;
        struct mfl_cuda_work work = {.net = net, .data = net->last_data, .opt = &net->last_opt};
        int rc = mfl_cuda_check(cudaMemsetAsync(mfl_cuda_control_at(net, net->model.control.step), 0,
                                        sizeof(uint32_t), net->main.stream),
                "back to the first step", err);
        return rc ? rc : mfl_cuda_launch_step(&work, err);
}

static int launch(void *user, int i, struct mfl_error *err)
{
        struct timed *t = user;
        t->net->memory = t->copies[i % t->n];
        int rc = 0;
        if (t->what == MFL_TIMED_STEP) {
                rc = launch_step(t, err);
        } else {
                struct mfl_cuda_run pass = mfl_cuda_plain_pass(t->net, err);
                rc = mfl_cuda_run_forward(&pass);
                if (!rc && t->what == MFL_TIMED_BACKWARD)
                        rc = mfl_cuda_run_backward(&pass);
        }
        t->net->memory = t->own;
        return rc;
}

/* Runs once without a capture: that time says how many launches make a graph. */
static int time_first(struct timed *t, double *ret_ns, struct mfl_error *err)
{
        int rc = mfl_cuda_sync(t->net, "copy a network", err);
        uint64_t begin = mfl_now_ns();
        if (!rc)
                rc = launch(t, 0, err);
        if (!rc)
                rc = mfl_cuda_sync(t->net, "a pass that is timed", err);
        *ret_ns = (double)(mfl_now_ns() - begin);
        return rc;
}

int mfl_cuda_net_time(struct mfl_net *net, enum mfl_timed what, double *ret_ns, struct mfl_error *err)
{
        struct timed t = {.net = net, .what = what, .own = net->memory};
        double first = 0;
        mfl_assert(what == MFL_TIMED_FORWARD || net->model.options.training);
        if (what == MFL_TIMED_STEP && !(net->last_data && net->last_data->memory))
                return mfl_fail(err, MFL_INVALID, "no step has run on data in the device's memory");
        int rc = mfl_cuda_enter(net, err);
        if (!rc)
                rc = make_copies(&t, err);
        if (!rc)
                rc = time_first(&t, &first, err);
        if (!rc) {
                struct mfl_cuda_timing timing = mfl_cuda_timing_of(first, t.n);
                rc = mfl_cuda_time(&timing, net->main.stream, launch, &t, ret_ns, err);
        }
        if (t.n)
                (void)cudaStreamSynchronize(net->main.stream);
        for (int i = 0; i < t.n; i++)
                (void)cudaFree(t.copies[i]);
        return rc;
}
