/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated CUDA runtime: it keeps CUDA's contracts, and shows violations of them. */
#include "tests/lib/test.h"

#include "common/base/base.h"
#include "tests/emu/emu.h"
#include "tests/unit/cuda/emu/emu_kernels.h"

#define OK(call) assert_int_equal(call, cudaSuccess)

enum { N = 100 };

/* Floats on the device, all with one value. */
static float *numbers(float value)
{
        float host[N], *p;
        for (int i = 0; i < N; i++)
                host[i] = value;
        OK(cudaMalloc((void **)&p, sizeof host));
        OK(cudaMemcpy(p, host, sizeof host, cudaMemcpyHostToDevice));
        return p;
}

static float first(const float *p)
{
        float v;
        OK(cudaMemcpy(&v, p, sizeof v, cudaMemcpyDeviceToHost));
        return v;
}

static cudaStream_t stream(void)
{
        cudaStream_t s;
        OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        return s;
}

static cudaEvent_t event(void)
{
        cudaEvent_t e;
        OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
        return e;
}

static void add(const float *x, float *y, float by, cudaStream_t s)
{
        struct emu_add a = {x, y, by, N};
        OK(emu_add(&a, s));
}

static int reset(void **state)
{
        mfl_emu_set_order(MFL_EMU_FORWARD, 0);
        mfl_emu_fail_at("", 0);
        mfl_emu_set_memory((uint64_t)8 << 30);
        mfl_emu_set_sm(90);
        OK(cudaDeviceReset());
        assert_int_equal(mfl_emu_memory_used(), 0);
        return 0;
}

/* ---- devices ---- */

static void test_device(void **state)
{
        int n = 0, v = 0;
        struct cudaDeviceProp prop;
        OK(cudaGetDeviceCount(&n));
        assert_int_equal(n, 1);
        mfl_emu_set_sm(89);
        OK(cudaGetDeviceProperties(&prop, 0));
        assert_string_equal(prop.name, "emulated GPU (sm_89)");
        OK(cudaDeviceGetAttribute(&v, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
        assert_int_equal(v, 99 << 10);
        assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
        assert_int_equal(cudaPeekAtLastError(), cudaErrorInvalidDevice);
        assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
        assert_int_equal(cudaGetLastError(), cudaSuccess);
        assert_string_equal(cudaGetErrorName(cudaErrorInvalidDevice), "cudaErrorInvalidDevice");
}

/* ---- memory ---- */

static void test_memory(void **state)
{
        void *a, *b;
        size_t free_bytes, total;
        unsigned char host[4];
        mfl_emu_set_memory(1 << 20);
        OK(cudaMalloc(&a, 1 << 19));
        assert_int_equal(cudaMalloc(&b, (1 << 19) + 1), cudaErrorMemoryAllocation);
        assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
        OK(cudaMemGetInfo(&free_bytes, &total)); /* not sticky */
        assert_int_equal(free_bytes, 1 << 19);
        assert_int_equal(total, 1 << 20);
        OK(cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToHost));
        assert_int_equal(host[3], 0xff); /* fresh memory is not zero */
        OK(cudaMemset(a, 7, 1 << 19));
        assert_int_equal(cudaMemset(a, 7, (1 << 19) + 1), cudaErrorInvalidValue);
        assert_int_equal(cudaMemset(host, 7, 4), cudaErrorInvalidValue);
        assert_int_equal(cudaMemcpy(host, host, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
        assert_int_equal(cudaMemcpy(host, a, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
        assert_int_equal(cudaMemcpy(a, host, 4, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
        OK(cudaMemcpy(host, (char *)a + 9, 4, cudaMemcpyDefault));
        assert_int_equal(host[0], 7);
        assert_int_equal(cudaFree((char *)a + 256), cudaErrorInvalidValue);
        OK(cudaFree(a));
        assert_int_equal(cudaFree(a), cudaErrorInvalidValue);
        OK(cudaFree(NULL));
}

/* Pageable memory is read at the call; pinned memory when the copy runs, and it must exist until then. */
static void test_host_memory(void **state)
{
        cudaStream_t s = stream();
        float pageable = 1.0f, *pinned, *x = numbers(0.0f);
        OK(cudaMemcpyAsync(x, &pageable, sizeof pageable, cudaMemcpyHostToDevice, s));
        pageable = 2.0f;
        OK(cudaStreamSynchronize(s));
        assert_true(first(x) == 1.0f);
        OK(cudaHostAlloc((void **)&pinned, sizeof *pinned, cudaHostAllocDefault));
        *pinned = 3.0f;
        OK(cudaMemcpyAsync(x, pinned, sizeof *pinned, cudaMemcpyHostToDevice, s));
        *pinned = 4.0f; /* too early */
        OK(cudaStreamSynchronize(s));
        assert_true(first(x) == 4.0f);
        add(x, x, 1.0f, s);
        OK(cudaMemcpyAsync(pinned, x, sizeof *pinned, cudaMemcpyDeviceToHost, s));
        assert_true(*pinned == 4.0f); /* nobody has waited */
        OK(cudaStreamSynchronize(s));
        assert_true(*pinned == 5.0f);
        OK(cudaFreeHost(pinned));
        assert_int_equal(cudaHostUnregister(&pageable), cudaErrorHostMemoryNotRegistered);
}

#if !defined(__SANITIZE_ADDRESS__)
static void test_write_behind(void **state)
{
        float *x = numbers(0.0f);
        struct emu_add a = {x, x, 1e20f, N + 1};
        mfl_emu_set_trap(true);
        OK(emu_add(&a, NULL));
        OK(cudaDeviceSynchronize());
        assert_int_equal(cudaFree(x), cudaErrorIllegalAddress);
        mfl_emu_set_trap(false);
        assert_non_null(strstr(mfl_emu_last_fault(), "a write 0 bytes behind an allocation of 400 bytes"));
        assert_int_equal(cudaDeviceSynchronize(), cudaErrorIllegalAddress); /* it stays */
}
#endif

/* ---- streams ---- */

/* y = x + 1 on one stream, z = y + 1 on another: 2 with an event between them, something else without. */
static float two_streams(bool ordered)
{
        cudaStream_t a = stream(), b = stream();
        cudaEvent_t e = event();
        float *x = numbers(0.0f), *y = numbers(10.0f), *z = numbers(0.0f);
        add(x, y, 1.0f, a);
        OK(cudaEventRecord(e, a));
        if (ordered)
                OK(cudaStreamWaitEvent(b, e, 0));
        add(y, z, 1.0f, b);
        OK(cudaStreamSynchronize(b));
        float v = first(z);
        OK(cudaDeviceSynchronize());
        assert_true(first(y) == 1.0f);
        reset(NULL);
        return v;
}

static void test_streams(void **state)
{
        for (uint64_t seed = 0; seed < 8; seed++) {
                mfl_emu_set_order(MFL_EMU_RANDOM, seed);
                assert_true(two_streams(true) == 2.0f);
        }
        mfl_emu_set_order(MFL_EMU_REVERSE, 0);
        assert_true(two_streams(true) == 2.0f);
        mfl_emu_set_order(MFL_EMU_FORWARD, 0);
        assert_true(two_streams(true) == 2.0f);
        assert_true(two_streams(false) == 11.0f); /* what is waited for runs first */
}

static void test_legacy_stream(void **state)
{
        cudaStream_t blocking;
        float *x = numbers(0.0f), *y = numbers(0.0f);
        OK(cudaStreamCreate(&blocking));
        add(x, y, 1.0f, blocking);
        add(y, y, 1.0f, NULL);
        add(y, y, 1.0f, blocking);
        OK(cudaStreamSynchronize(blocking));
        assert_true(first(y) == 3.0f);
        OK(cudaStreamDestroy(blocking));
        assert_int_equal(cudaStreamSynchronize(blocking), cudaErrorInvalidResourceHandle);
}

static void test_events(void **state)
{
        cudaStream_t s = stream();
        cudaEvent_t e = event(), start, end;
        float *x = numbers(0.0f), ms = -1.0f;
        OK(cudaEventQuery(e)); /* never recorded */
        OK(cudaEventCreate(&start));
        OK(cudaEventCreate(&end));
        OK(cudaEventRecord(start, s));
        add(x, x, 1.0f, s);
        OK(cudaEventRecord(end, s));
        assert_int_equal(cudaEventElapsedTime(&ms, start, end), cudaErrorNotReady);
        assert_int_equal(cudaEventQuery(end), cudaErrorNotReady);
        OK(cudaEventSynchronize(end));
        OK(cudaEventElapsedTime(&ms, start, end));
        assert_true(ms >= 0.0f);
        assert_int_equal(cudaEventElapsedTime(&ms, e, end), cudaErrorInvalidResourceHandle);
        OK(cudaEventRecord(e, s));
        OK(cudaEventDestroy(e)); /* queued, but no longer visible */
        assert_int_equal(cudaEventRecord(e, s), cudaErrorInvalidResourceHandle);
        OK(cudaDeviceSynchronize());
}

/* ---- graphs ---- */

static cudaGraphExec_t end_capture(cudaStream_t s)
{
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        OK(cudaStreamEndCapture(s, &graph));
        OK(cudaGraphInstantiate(&exec, graph, 0));
        OK(cudaGraphDestroy(graph));
        return exec;
}

/* y = x + 1; then on two branches a = y + 10, b = y + 100; then y = a + 1000. joined false: leaves out the
 * wait between y and a. */
static cudaGraphExec_t capture_fork(cudaStream_t s, float *const v[4], bool ordered)
{
        cudaStream_t branch = stream();
        cudaEvent_t fork = event(), join = event(), early = event();
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        OK(cudaEventRecord(early, s));
        add(v[0], v[1], 1.0f, s);
        OK(cudaEventRecord(fork, s));
        OK(cudaStreamWaitEvent(branch, ordered ? fork : early, 0));
        add(v[1], v[3], 100.0f, branch);
        OK(cudaEventRecord(join, branch));
        add(v[1], v[2], 10.0f, s);
        OK(cudaStreamWaitEvent(s, join, 0));
        add(v[2], v[1], 1000.0f, s);
        return end_capture(s);
}

static void test_graph(void **state)
{
        cudaStream_t s = stream();
        float *v[4];
        int n_wrong = 0;
        for (int i = 0; i < 4; i++)
                v[i] = numbers(0.0f);
        cudaGraphExec_t right = capture_fork(s, v, true), wrong = capture_fork(s, v, false);
        assert_true(first(v[1]) == 0.0f); /* nothing has run */
        for (int i = 0; i < 10; i++) {
                mfl_emu_set_order(i == 0   ? MFL_EMU_FORWARD
                                  : i == 1 ? MFL_EMU_REVERSE
                                           : MFL_EMU_RANDOM,
                        (uint64_t)i);
                OK(cudaMemset(v[1], 0, N * sizeof(float)));
                OK(cudaMemset(v[3], 0, N * sizeof(float)));
                OK(cudaDeviceSynchronize());
                OK(cudaGraphLaunch(right, s));
                OK(cudaStreamSynchronize(s));
                assert_true(first(v[1]) == 1011.0f);
                assert_true(first(v[2]) == 11.0f);
                assert_true(first(v[3]) == 101.0f);
                OK(cudaMemset(v[1], 0, N * sizeof(float)));
                OK(cudaDeviceSynchronize());
                OK(cudaGraphLaunch(wrong, s));
                OK(cudaStreamSynchronize(s));
                n_wrong += first(v[3]) != 101.0f;
        }
        assert_in_range(n_wrong, 1, 9); /* a missing dependency shows, but not in every order */
        OK(cudaGraphLaunch(right, s));
        OK(cudaGraphExecDestroy(right)); /* while it waits */
        OK(cudaStreamSynchronize(s));
        assert_int_equal(cudaGraphLaunch(right, s), cudaErrorInvalidValue);
}

/* The argument struct is copied at the capture; memory is read at each launch. */
static void test_graph_arguments(void **state)
{
        cudaStream_t s = stream();
        float *x = numbers(0.0f), *y = numbers(0.0f);
        struct emu_add a = {x, y, 1.0f, N};
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        OK(emu_add(&a, s));
        a.by = 50.0f;
        OK(cudaMemcpyAsync(x, y, N * sizeof *x, cudaMemcpyDeviceToDevice, s));
        cudaGraphExec_t exec = end_capture(s);
        for (int i = 0; i < 3; i++)
                OK(cudaGraphLaunch(exec, s));
        OK(cudaStreamSynchronize(s));
        assert_true(first(y) == 3.0f);
}

static void expect_spoilt(cudaStream_t s)
{
        cudaGraph_t graph = (cudaGraph_t)&graph;
        float *x = NULL;
        struct emu_add a = {x, x, 1.0f, N};
        assert_int_equal(emu_add(&a, s), cudaErrorStreamCaptureInvalidated);
        assert_int_equal(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
        OK(cudaStreamSynchronize(s)); /* it is an ordinary stream again */
}

static void test_capture_rules(void **state)
{
        cudaStream_t s = stream(), other = stream();
        cudaEvent_t e = event();
        cudaGraph_t graph;
        enum cudaStreamCaptureStatus status;
        void *p;
        float *x = numbers(0.0f);
        assert_int_equal(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeRelaxed),
                cudaErrorStreamCaptureUnsupported);
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        OK(cudaStreamIsCapturing(s, &status));
        assert_int_equal(status, cudaStreamCaptureStatusActive);
        assert_int_equal(cudaMalloc(&p, 1), cudaErrorStreamCaptureUnsupported);
        expect_spoilt(s);
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
        OK(cudaMalloc(&p, 1));
        assert_int_equal(cudaStreamSynchronize(s), cudaErrorStreamCaptureUnsupported);
        expect_spoilt(s);
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
        assert_int_equal(cudaMemcpy(x, x, 4, cudaMemcpyDeviceToDevice), cudaErrorStreamCaptureUnsupported);
        expect_spoilt(s);
        OK(cudaEventRecord(e, other));
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
        assert_int_equal(cudaStreamWaitEvent(s, e, 0), cudaErrorStreamCaptureIsolation);
        expect_spoilt(s);
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
        OK(cudaEventRecord(e, s));
        assert_int_equal(cudaEventQuery(e), cudaErrorCapturedEvent);
        OK(cudaStreamWaitEvent(other, e, 0));
        assert_int_equal(cudaStreamEndCapture(other, &graph), cudaErrorStreamCaptureUnmatched);
        expect_spoilt(s);
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
        OK(cudaEventRecord(e, s));
        OK(cudaStreamWaitEvent(other, e, 0));
        add(x, x, 1.0f, other);
        assert_int_equal(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureUnjoined);
        assert_int_equal(cudaStreamEndCapture(s, &graph), cudaErrorIllegalState);
        add(x, x, 1.0f, other);
        OK(cudaStreamSynchronize(other));
}

/* ---- faults on request ---- */

static void test_fail_at(void **state)
{
        void *p;
        mfl_emu_fail_at("cudaMalloc", 2);
        OK(cudaMalloc(&p, 16));
        assert_int_equal(cudaMalloc(&p, 16), cudaErrorMemoryAllocation);
        assert_true(mfl_emu_failed());
        assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
        OK(cudaMalloc(&p, 16));
        mfl_emu_fail_at("*", 1);
        assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
        assert_int_equal(cudaMalloc(&p, 16), cudaErrorLaunchFailure); /* sticky */
        OK(cudaDeviceReset());
        OK(cudaMalloc(&p, 16));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_teardown(test_device, reset),
                cmocka_unit_test_teardown(test_memory, reset),
                cmocka_unit_test_teardown(test_host_memory, reset),
#if !defined(__SANITIZE_ADDRESS__)
                cmocka_unit_test_teardown(test_write_behind, reset),
#endif
                cmocka_unit_test_teardown(test_streams, reset),
                cmocka_unit_test_teardown(test_legacy_stream, reset),
                cmocka_unit_test_teardown(test_events, reset),
                cmocka_unit_test_teardown(test_graph, reset),
                cmocka_unit_test_teardown(test_graph_arguments, reset),
                cmocka_unit_test_teardown(test_capture_rules, reset),
                cmocka_unit_test_teardown(test_fail_at, reset),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
