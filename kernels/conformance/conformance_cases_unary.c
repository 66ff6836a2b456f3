/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of the conformance program that follow from unary.def: each function of one variable, of an image whose channels
 * a backend pads. */
#include "common/model/unary.h"
#include "kernels/conformance/conformance_cases.h"

#define PARAM(member, key, otherwise, low, high, open) .member = otherwise
#define NEEDED(member, key, low, high, example) .member = example

const struct conf_case mfl_conf_unary_cases[] = {
#define UNARY(symbol, body, stem, reads, n, cost, since, edges, bottom, top, onnx, ...)                      \
        {"function " #body, IMAGE(3, 5, 7), {{.op = MFL_OP_##symbol, __VA_ARGS__}}, .low = bottom,           \
                .high = top},
#define UNARY_VARIANT(symbol, variant, body, reads, bottom, top, onnx)                                       \
        {"function " #body, IMAGE(3, 5, 7), {{.op = MFL_OP_##symbol, .approximate = true}}, .low = bottom,   \
                .high = top},
#include "common/model/unary.def"
};
const int mfl_conf_n_unary_cases = MFL_ARRAY_SIZE(mfl_conf_unary_cases);

void mfl_conf_move_samples(const struct conf_case *kase, float *x, size_t n)
{
        float range = kase->range > 0 ? kase->range : 1.0f;
        for (size_t i = 0; kase->low < kase->high && i < n; i++)
                x[i] = kase->low + (x[i] / range + 1.0f) * 0.5f * (kase->high - kase->low);
}
