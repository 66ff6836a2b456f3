/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes requests for inference: the first byte chooses the model, the second how much of the body is said to be JSON (255: all). What
 * is accepted has the model's shape, and its answer can be written. */
#include <math.h>

#include "serve/kserve/kserve.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct mfl_kserve_model models[] = {
        {.name = "f",
                .version = "v",
                .round = 1,
                .type = MFL_TENSOR_F32,
                .rank = 2,
                .dim = {2, 2},
                .elements = 4,
                .output = "logits",
                .outputs = 3,
                .positions = 1},
        {.name = "u",
                .version = "v",
                .round = -1,
                .type = MFL_TENSOR_U8,
                .rank = 1,
                .dim = {2},
                .elements = 2,
                .output = "values",
                .outputs = 2,
                .positions = 1},
        {.name = "t",
                .version = "v",
                .round = -1,
                .type = MFL_TENSOR_I32,
                .vocabulary = 9,
                .rank = 1,
                .dim = {3},
                .elements = 3,
                .output = "logits",
                .outputs = 6,
                .positions = 3},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static const float y[4 * 6];
        struct mfl_kserve_request q;
        struct mfl_error err;
        size_t json_bytes = 0;
        if (size < 2)
                return 0;
        const struct mfl_kserve_model *model = &models[data[0] % MFL_ARRAY_SIZE(models)];
        const size_t n = size - 2;
        char *own = malloc(n ? n : 1);
        mfl_assert(own);
        memcpy(own, data + 2, n);
        const int r = mfl_kserve_parse(model, 4, own, n, data[1] == 255 ? n : data[1], &q, &err);
        free(own);
        mfl_assert(r == 0 || r == MFL_INVALID);
        if (r)
                return 0;
        mfl_assert(q.rows >= 1 && q.rows <= 4);
        for (size_t i = 0; i < q.rows * model->elements; i++)
                mfl_assert(model->type != MFL_TENSOR_F32 || isfinite(((float *)q.x)[i]));
        struct mfl_reply reply = {0};
        mfl_assert(mfl_kserve_answer(model, &q, y, &reply, &json_bytes, &err) && !reply.failed);
        mfl_assert(q.binary == (json_bytes > 0));
        mfl_reply_deinit(&reply);
        free(q.x);
        return 0;
}
