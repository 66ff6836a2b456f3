/* SPDX-License-Identifier: Apache-2.0 */
/* MobileNetV2 (Sandler et al. 2018) with the names of torchvision's: "features.2.conv.1.0.weight".
 *
 * The paper's images have 224 pixels on a side and shrink 32 times. If a side is below 64, the stem and the second
 * stage keep the size, as is usual for CIFAR: 32 pixels become 4.
 */
#include <stdio.h>

#include "common/model/presets.h"

#define SMALL 64

/* Convolution, norm and ReLU6; in torchvision a Sequential: PART.0, PART.1, PART.2. */
static void push_unit(struct mfl_chain *c, const char *part, int filters, int kernel, int stride, int groups)
{
        char name[32];
        snprintf(name, sizeof name, "%.16s0", part);
        mfl_chain_bare_conv(c, name, filters, kernel, stride)->conv_groups = groups;
        snprintf(name, sizeof name, "%.16s1", part);
        mfl_chain_push(c, MFL_OP_BATCHNORM, name);
        snprintf(name, sizeof name, "%.16s2", part);
        mfl_chain_push(c, MFL_OP_RELU6, name);
}

/* The paper's table 1 and figure 4d: widen by 1x1, filter each channel by itself, narrow by 1x1 without ReLU.
 * There is a shortcut if the shape does not change. */
static void push_block(struct mfl_chain *c, int inputs, int outputs, int expand, int stride)
{
        int shortcut = mfl_chain_last(c), hidden = inputs * expand, first = expand > 1;
        char name[32];
        if (expand > 1)
                push_unit(c, "conv.0.", hidden, 1, 1, 1);
        snprintf(name, sizeof name, "conv.%d.", first);
        push_unit(c, name, hidden, 3, stride, hidden);
        snprintf(name, sizeof name, "conv.%d", first + 1);
        mfl_chain_bare_conv(c, name, outputs, 1, 1);
        snprintf(name, sizeof name, "conv.%d", first + 2);
        mfl_chain_push(c, MFL_OP_BATCHNORM, name);
        if (stride == 1 && inputs == outputs)
                mfl_chain_join(c, MFL_OP_ADD, "add", mfl_chain_last(c), shortcut);
}

/* The paper's table 2. */
void mfl_preset_mobilenet_v2(struct mfl_chain *c, const struct mfl_shape *input, int classes)
{
        static const struct {
                int expand, channels, n, stride;
        } stages[] = {{1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1},
                {6, 160, 3, 2}, {6, 320, 1, 1}};
        bool small = MFL_MIN(input->dim[1], input->dim[2]) < SMALL;
        int channels = 32, feature = 1;
        c->init = MFL_INIT_HE;
        mfl_chain_prefix(c, "features.0.");
        push_unit(c, "", channels, 3, small ? 1 : 2, 1);
        for (size_t s = 0; s < MFL_ARRAY_SIZE(stages); s++)
                for (int i = 0; i < stages[s].n; i++, feature++) {
                        int stride = i || (s == 1 && small) ? 1 : stages[s].stride;
                        mfl_chain_prefix(c, "features.%d.", feature);
                        push_block(c, channels, stages[s].channels, stages[s].expand, stride);
                        channels = stages[s].channels;
                }
        mfl_chain_prefix(c, "features.%d.", feature);
        push_unit(c, "", 1280, 1, 1, 1);
        mfl_chain_prefix(c, "%s", "");
        mfl_chain_push(c, MFL_OP_GLOBAL_AVGPOOL2D, "avgpool");
        mfl_chain_dropout(c, "classifier.0", 0.2f);
        mfl_chain_dense(c, "classifier.1", classes);
}
