/* SPDX-License-Identifier: Apache-2.0 */
/* The table of named models; each summary names the paper or benchmark that the model is from. */
#include <stdio.h>

#include "common/model/presets.h"

const struct mfl_preset_info mfl_presets[] = {
        {"logistic", "multinomial logistic regression"},
        {"mlp", "two hidden layers of 200 with ReLU, the \"2NN\" of McMahan et al. 2017"},
        {"lenet5", "LeNet-5 of LeCun et al. 1998 with tanh and average pooling"},
        {"fedavg-cnn", "the MNIST CNN of McMahan et al. 2017: 5x5x32, pool, 5x5x64, pool, 512"},
        {"pfl-cnn", "the CIFAR-10 CNN of pfl-research's benchmark: 3x3x32, 3x3x64, pool, 128, with dropout"},
        {"resnet18", "ResNet-18 of He et al. 2016 for small images: 3x3 stem, no pool, 64 to 512 channels; "
                     "batch norm"},
        {"resnet18-gn", "resnet18 with group norm, 32 groups: batch norm suffers where clients' data differ "
                        "(Hsieh et al. 2020)"},
        {"resnet20", "ResNet-20 of He et al. 2016, section 4.2: 16, 32, 64 channels, projections (option B); "
                     "batch norm"},
        {"resnet20-gn", "resnet20 with group norm: 8, 16 and 32 groups of 2 channels"},
        {"mobilenet-v2",
                "MobileNetV2 of Sandler et al. 2018; for images below 64 pixels the first two strides are 1"},
        {"char-lstm", "the Shakespeare model of McMahan et al. 2017 and LEAF: embedding 8, two LSTMs of 256, "
                      "next token at each position"},
        {"char-gpt", "a small causal transformer with GPT-2's block: 4 blocks, 4 heads, width 128, next "
                     "token at each position"},
        {"vit-tiny", "ViT of Dosovitskiy et al. 2021 at the size of DeiT-Ti: 12 blocks, 3 heads, width 192; "
                     "patches of 4 pixels, of 16 from 96 pixels on"},
        {NULL, NULL},
};

enum needs { ANYTHING, IMAGE, TOKENS };

static const struct {
        mfl_preset_maker *make;
        enum needs needs;
} makers[] = {
        {mfl_preset_logistic, ANYTHING},
        {mfl_preset_mlp, ANYTHING},
        {mfl_preset_lenet5, IMAGE},
        {mfl_preset_fedavg_cnn, IMAGE},
        {mfl_preset_pfl_cnn, IMAGE},
        {mfl_preset_resnet18, IMAGE},
        {mfl_preset_resnet18_gn, IMAGE},
        {mfl_preset_resnet20, IMAGE},
        {mfl_preset_resnet20_gn, IMAGE},
        {mfl_preset_mobilenet_v2, IMAGE},
        {mfl_preset_char_lstm, TOKENS},
        {mfl_preset_char_gpt, TOKENS},
        {mfl_preset_vit_tiny, IMAGE},
};
_Static_assert(MFL_ARRAY_SIZE(makers) + 1 == MFL_ARRAY_SIZE(mfl_presets), "one maker for each preset");

static int fail_unknown(const char *preset, struct mfl_error *err)
{
        char list[256] = "";
        size_t len = 0;
        for (int i = 0; mfl_presets[i].name; i++)
                len += (size_t)snprintf(
                        list + len, sizeof list - len, "%s%s", i ? ", " : "", mfl_presets[i].name);
        return mfl_fail(err, MFL_NOT_FOUND, "there is no preset %s; the presets are %s", preset, list);
}

static int check_input(int i, const struct mfl_shape *input, struct mfl_error *err)
{
        char text[96];
        const char *preset = mfl_presets[i].name;
        mfl_shape_text(input, text, sizeof text);
        if (makers[i].needs == IMAGE && input->rank != 3)
                return mfl_fail(err, MFL_INVALID,
                        "preset %s needs an image (channels x height x width); the input is %s", preset,
                        text);
        if (makers[i].needs == TOKENS && input->rank != 1)
                return mfl_fail(err, MFL_INVALID,
                        "preset %s needs tokens, samples of one dimension; the input is %s", preset, text);
        if (makers[i].make == mfl_preset_vit_tiny) {
                int patch = mfl_preset_vit_patch(input);
                if (input->dim[1] % patch || input->dim[2] % patch)
                        return mfl_fail(err, MFL_INVALID,
                                "preset %s cuts images into patches of %dx%d, but the input %s is not a "
                                "multiple of",
                                preset, patch, patch, text);
        }
        return 0;
}

int mfl_graph_preset(const char *preset, const struct mfl_shape *input, int classes,
        struct mfl_graph **ret_graph, struct mfl_error *err)
{
        int i = 0;
        while (mfl_presets[i].name && strcmp(mfl_presets[i].name, preset))
                i++;
        if (!mfl_presets[i].name)
                return fail_unknown(preset, err);
        int r = check_input(i, input, err);
        if (r)
                return r;
        if (classes < 1)
                return mfl_fail(
                        err, MFL_INVALID, "preset %s needs at least 1 class, not %d", preset, classes);
        struct mfl_chain c = {.n = 0, .init = MFL_INIT_TORCH};
        mfl_chain_push(&c, MFL_OP_INPUT, "input")->out = *input;
        makers[i].make(&c, input, classes);
        struct mfl_error inner;
        r = mfl_graph_build(preset, c.layers, c.n, classes, ret_graph, &inner);
        if (r)
                return mfl_fail(err, r, "preset %s: %.430s", preset, inner.text);
        return 0;
}
