/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as an ONNX file: refused or converted, never a crash, never "this process can't go on"; what is
 * converted is a graph with finite text. */
#include "cli/onnx/onnx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct mfl_onnx_model model = {.text = NULL};
        struct mfl_error err;
        int r = mfl_onnx_convert(data, size, "fuzz", NULL, &model, &err);
        mfl_assert(r >= 0);
        mfl_assert((r == 0) == (model.text != NULL));
        mfl_assert(r || (model.input.rank >= 1 && model.classes >= 1 &&
                                strstr(model.text, "    - ") == model.text));
        mfl_onnx_model_deinit(&model);
        return 0;
}
