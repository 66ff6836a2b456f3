/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of --smoke: the first half minute on a new GPU. With --precision all they launch every kernel of
 * the cuda backend except a few, which tests/unit/cuda/test_smoke.py names. */
#include "kernels/conformance/conformance.h"

static const char *const smoke[] = {
        /* Operators, one batch of each. */
        "conv 5x5 one channel",
        "conv conv 3x3 odd blocks",
        "dense wide",
        "dropout",
        "conv relu maxpool conv",
        "conv relu avgpool overlap",
        "maxpool ties",
        "add of branches",
        "global avgpool read twice",
        "conv batchnorm tanh dense",
        "batchnorm of 32 vectors",
        "batchnorm inference",
        "groupnorm",
        "groupnorm of vectors",
        "residual block groupnorm",
        "few channels 6->16",
        "inverted residual",
        "conv groups",
        "convtranspose groups",
        "global maxpool",
        "gelu",
        "silu",
        "hardswish",
        "softplus",
        "multiply of branches",
        "squeeze and excite",
        "stochastic depth",
        "concat of branches",
        "class token",
        "transpose of all",
        "slices of one tensor",
        "mean of features",
        "unet joint",
        "embedding mean dense",
        "dense of sequences",
        "layernorm wide",
        "rmsnorm",
        "softmax",
        "matmul of many transposed",
        "matmul of tiles",
        "attention dropout",
        "attention of 65 of 64",
        "attention of 129 of 20",
        "attention of 5 of 136",
        "attention by products",
        "lstm of 33 units",
        "gru of 65 units",
        "lora of sequences",
        "global maxpool ties",
        "softmax of images",
        "attention of 65 of 80",
        "lstm of 100 units",
        "gru",
        "lstm",
        "lora",
        "embedding wide",
        "embedding",
        "dense of image",
        "dense transposed",
        /* Training. */
        "lenet5 cropped",
        "adam",
        "accumulated",
        "smoothed",
        "binary",
        "several positions",
        "mlp clipped adamw",
        "lora clipped adamw",
        "gpt smoothed accumulated",
        /* The backend's own: each variant of the convolutions. */
        "conv 8x6x6 -> 16, 3x3, fp32",
        "conv 8x6x6 -> 16, 3x3, tf32",
        "conv 8x6x6 -> 16, 3x3, bf16",
        "conv 8x6x6 -> 16, 3x3, fp16",
};

bool mfl_conf_is_smoke(const char *name)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(smoke); i++)
                if (!strcmp(smoke[i], name))
                        return true;
        return false;
}
