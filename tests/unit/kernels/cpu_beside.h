/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of the CPU backend against the reference share: both devices, and small graphs. */
#ifndef MFL_TESTS_UNIT_KERNELS_CPU_BESIDE_H
#define MFL_TESTS_UNIT_KERNELS_CPU_BESIDE_H

#include "tests/lib/test.h"
#include "kernels/backend.h"

#include <float.h>
#include <math.h>

#define LAYERS_MAX 9
#define GROUPS 3

static const struct mfl_backend_ops *cpu;
static struct mfl_device *cpu_device, *reference_device;

static int open_devices(void **state)
{
        if (mfl_backend_open("cpu", &cpu, NULL))
                cpu = NULL; /* a build without oneDNN has nothing to test */
        else
                assert_int_equal(cpu->device_open(&cpu_device, NULL), 0);
        assert_int_equal(mfl_backend_reference.device_open(&reference_device, NULL), 0);
        return 0;
}

static int close_devices(void **state)
{
        if (cpu)
                cpu->device_close(cpu_device);
        mfl_backend_reference.device_close(reference_device);
        return 0;
}

#define IN1(a)                                                                                               \
        {                                                                                                    \
                1,                                                                                           \
                {                                                                                            \
                        a                                                                                    \
                }                                                                                            \
        }
#define IN2(a, b)                                                                                            \
        {                                                                                                    \
                2,                                                                                           \
                {                                                                                            \
                        a, b                                                                                 \
                }                                                                                            \
        }
#define IN3(a, b, c)                                                                                         \
        {                                                                                                    \
                3,                                                                                           \
                {                                                                                            \
                        a, b, c                                                                              \
                }                                                                                            \
        }
#define CONV(from, n)                                                                                        \
        {                                                                                                    \
                .op = MFL_OP_CONV2D, .input = from, .out_channels = n, .kernel = {3, 3}, .padding = { 1, 1 } \
        }

static struct mfl_graph *graph_of(
        const struct mfl_shape *input, const struct mfl_layer *from, int n, int classes)
{
        struct mfl_layer layers[LAYERS_MAX + 1] = {{.op = MFL_OP_INPUT, .input = -1, .out = *input}};
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        for (int i = 0; i < n; i++)
                layers[i + 1] = from[i];
        if (mfl_graph_build("test", layers, n + 1, classes, &graph, &err))
                fail_msg("%s", err.text);
        return graph;
}

static inline int count_layers(const struct mfl_layer *layers)
{
        int n = 0;
        while (n < LAYERS_MAX && layers[n].op != MFL_OP_INPUT)
                n++;
        return n;
}

static void fill(float *v, size_t n, uint64_t which)
{
        struct mfl_rng rng = mfl_rng_new(9, MFL_RNG_TEST, which, 0);
        for (size_t i = 0; i < n; i++)
                v[i] = mfl_u32_to_unit(mfl_rng_u32(&rng)) * 2.0f - 1.0f;
}

static float *new_floats(size_t n)
{
        float *v = calloc(n + 1, sizeof *v);
        assert_non_null(v);
        return v;
}

#endif
