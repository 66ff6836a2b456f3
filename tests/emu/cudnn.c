/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated cuDNN: the graph API's descriptors for convolutions with bias and ReLU.
 *
 * Engines are invented: some are not what was asked for, so that filters have something to filter. Like the
 * real library's, they refuse to fuse some combinations.
 *
 * MFL_EMU_CUDNN_WRONG=1: the last pixel of every result is wrong. =bf16: engines round operands to bf16
 * without reporting it.
 */
#include "tests/emu/cudnn_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"

struct cudnnContext {
        cudaStream_t stream;
};

/* ---- engines, in the order in which heuristics name them ---- */

static const struct engine {
        int index;
        bool fallback; /* named by CUDNN_HEUR_MODE_FALLBACK, else by mode A */
        bool floats, halves, fuses;
        enum mfl_emu_operands operands;
        int n_notes;
        cudnnBackendNumericalNote_t notes[2];
        int64_t workspace;
        bool jitter, refuses;
} engines[] = {
        {1, false, true, false, true, MFL_EMU_BF16, 2,
                {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}, 0, false,
                false},
        {2, false, true, true, false, MFL_EMU_EXACT, 1, {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, 0, true,
                false},
        {3, false, true, true, true, MFL_EMU_EXACT, 0, {0}, (int64_t)1 << 30, false, false},
        {4, false, true, true, true, MFL_EMU_EXACT, 0, {0}, 0, false, true},
        {5, false, true, true, true, MFL_EMU_EXACT, 1, {CUDNN_NUMERICAL_NOTE_WINOGRAD}, 64, false, false},
        {6, false, true, false, true, MFL_EMU_TF32, 1, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, 512, false, false},
        {7, false, false, true, true, MFL_EMU_EXACT, 1, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, 512, false,
                false},
        {8, false, true, false, true, MFL_EMU_EXACT, 0, {0}, 4096, false, false},
        {9, true, true, true, false, MFL_EMU_EXACT, 0, {0}, 0, false, false},
};
#define N_ENGINES ((int)(sizeof engines / sizeof engines[0]))

static bool engine_can(const struct engine *e, const struct mfl_emu_dnn_call *call)
{
        bool floats = call->x.type == CUDNN_DATA_FLOAT;
        if (!(floats ? e->floats : e->halves))
                return false;
        /* As in the real library: no ReLU alone, a bias of the result's type, dw of the operands' type. */
        if (call->relu && !call->has_bias)
                return false;
        if (call->has_bias && (!e->fuses || call->bias.type != call->y.type))
                return false;
        return call->w.type == call->x.type;
}

bool mfl_emu_dnn_engine_accepts(int engine)
{
        return !engines[engine].refuses;
}

/* ---- reading ---- */

static int list_engines(const struct mfl_emu_descriptor *d, int list[N_ENGINES])
{
        bool fallback = mfl_emu_dnn_choice(d, CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_FALLBACK;
        int n = 0;
        for (int i = 0; i < N_ENGINES; i++) {
                if (engines[i].fallback == fallback && engine_can(&engines[i], &d->call))
                        list[n++] = i;
        }
        return n;
}

static cudnnStatus_t get_results(const struct mfl_emu_descriptor *d, int64_t room, int64_t *ret_count,
        cudnnBackendDescriptor_t *configs)
{
        int list[N_ENGINES], n = list_engines(d, list);
        *ret_count = configs ? (n < room ? n : room) : n;
        for (int64_t i = 0; configs && i < *ret_count; i++) {
                struct mfl_emu_descriptor *config = mfl_emu_dnn_get(configs[i]);
                if (!config || config->type != CONFIG || config->final)
                        return mfl_emu_dnn_refuse(
                                CUDNN_STATUS_BAD_PARAM, "results want fresh engine configurations");
                config->call = d->call;
                config->engine = list[i];
                config->final = true;
        }
        return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_number(int64_t v, int64_t room, int64_t *ret_count, void *values)
{
        *ret_count = 1;
        if (values && room >= 1)
                memcpy(values, &v, sizeof v);
        return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
        cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t room, int64_t *ret_count,
        void *values)
{
        struct mfl_emu_descriptor *d = mfl_emu_dnn_get(descriptor);
        if (mfl_emu_fails("cudnnBackendGetAttribute"))
                return CUDNN_STATUS_INTERNAL_ERROR;
        if (!d || !d->final || !ret_count)
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "read before finalization");
        const struct engine *engine = &engines[d->engine];
        if (d->type == HEURISTICS && name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == DESC)
                return get_results(d, room, ret_count, values);
        if (d->type == CONFIG && name == CUDNN_ATTR_ENGINECFG_ENGINE && type == DESC && room == 1) {
                struct mfl_emu_descriptor *to = mfl_emu_dnn_get(((void **)values)[0]);
                if (!to || to->type != ENGINE || to->final)
                        return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM, "wants a fresh engine descriptor");
                to->engine = d->engine;
                to->final = true;
                *ret_count = 1;
                return CUDNN_STATUS_SUCCESS;
        }
        if (d->type == ENGINE && name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX && type == CUDNN_TYPE_INT64)
                return get_number(engine->index, room, ret_count, values);
        if (d->type == ENGINE && name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE &&
                type == CUDNN_TYPE_NUMERICAL_NOTE) {
                *ret_count = engine->n_notes;
                if (values)
                        memcpy(values, engine->notes,
                                (size_t)(engine->n_notes < room ? engine->n_notes : room) *
                                        sizeof engine->notes[0]);
                return CUDNN_STATUS_SUCCESS;
        }
        if (d->type == PLAN && name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64)
                return get_number(engine->workspace, room, ret_count, values);
        return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM, "no such attribute to read");
}

/* ---- execution ---- */

static cudnnStatus_t bind(const struct mfl_emu_descriptor *pack, struct mfl_emu_tensor *t)
{
        int n = (int)mfl_emu_dnn_find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)->count;
        for (int i = 0; i < n; i++) {
                if (mfl_emu_dnn_number(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i) == t->uid)
                        t->data = (char *)(uintptr_t)mfl_emu_dnn_number(
                                pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);
        }
        if (!t->data)
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a tensor without a pointer");
        if ((uintptr_t)t->data % (uintptr_t)t->alignment)
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "a misaligned pointer");
        if (!mfl_emu_is_device(t->data, mfl_emu_dnn_tensor_bytes(t)))
                return mfl_emu_dnn_refuse(CUDNN_STATUS_EXECUTION_FAILED, "a tensor outside of device memory");
        return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(
        cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t variant_pack)
{
        const struct mfl_emu_descriptor *d = mfl_emu_dnn_get(plan), *pack = mfl_emu_dnn_get(variant_pack);
        const char *wrong = getenv("MFL_EMU_CUDNN_WRONG");
        if (mfl_emu_fails("cudnnBackendExecute"))
                return CUDNN_STATUS_EXECUTION_FAILED;
        if (!handle || !d || !pack || d->type != PLAN || pack->type != PACK || !d->final || !pack->final)
                return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "an unfinished plan or pack");
        const struct engine *engine = &engines[d->engine];
        struct mfl_emu_dnn_call call = d->call;
        struct mfl_emu_tensor *t[4] = {&call.x, &call.w, &call.y, &call.bias};
        for (int i = 0; i < (call.has_bias ? 4 : 3); i++) {
                cudnnStatus_t s = bind(pack, t[i]);
                if (s)
                        return s;
        }
        call.operands = wrong && !strcmp(wrong, "bf16") ? MFL_EMU_BF16 : engine->operands;
        call.wrong = wrong && !strcmp(wrong, "1");
        call.jitter = engine->jitter;
        call.workspace_bytes = engine->workspace;
        if (engine->workspace) {
                call.workspace = (char *)mfl_emu_dnn_child(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 0);
                if (!mfl_emu_is_device(call.workspace, (size_t)engine->workspace))
                        return mfl_emu_dnn_refuse(CUDNN_STATUS_BAD_PARAM, "no workspace, or too small a one");
        }
        return mfl_emu_enqueue(handle->stream, "cudnnBackendExecute", mfl_emu_dnn_run, &call, sizeof call)
                       ? CUDNN_STATUS_EXECUTION_FAILED_CUDART
                       : CUDNN_STATUS_SUCCESS;
}

/* ---- handles ---- */

size_t cudnnGetVersion(void)
{
        return CUDNN_VERSION;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *ret_handle)
{
        int n = 0;
        if (mfl_emu_fails("cudnnCreate") || cudaGetDeviceCount(&n) || n == 0)
                return mfl_emu_dnn_refuse(
                        CUDNN_STATUS_NOT_INITIALIZED, "cudaGetDeviceCount(&count) != cudaSuccess");
        *ret_handle = calloc(1, sizeof **ret_handle);
        return *ret_handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
        free(handle);
        return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
        if (!handle)
                return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
        handle->stream = stream;
        return CUDNN_STATUS_SUCCESS;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
        switch (status) {
        case CUDNN_STATUS_SUCCESS:
                return "CUDNN_STATUS_SUCCESS";
        case CUDNN_STATUS_NOT_INITIALIZED:
                return "CUDNN_STATUS_NOT_INITIALIZED";
        default:
                return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM"
                       : CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED
                               ? "CUDNN_STATUS_NOT_SUPPORTED"
                       : CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_INTERNAL_ERROR
                               ? "CUDNN_STATUS_INTERNAL_ERROR"
                               : "CUDNN_STATUS_EXECUTION_FAILED";
        }
}
