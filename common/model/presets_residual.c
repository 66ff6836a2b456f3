/* SPDX-License-Identifier: Apache-2.0 */
/* Residual networks for small images (He et al. 2016). Layers have torchvision's names, also with its norm_layer =
 * GroupNorm, so that state_dicts are interchangeable: "layer2.0.downsample.0.weight". */
#include "common/model/presets.h"

struct resnet {
        int n_stages, blocks, channels; /* blocks of a stage; channels of the first, doubled by each next */
        enum mfl_op norm;
};

/* 32 groups (Wu and He 2018, section 4.1), or fewer if a group would be a single channel. */
static void push_norm(struct mfl_chain *c, const struct resnet *net, const char *name, int channels)
{
        struct mfl_layer *layer = mfl_chain_push(c, net->norm, name);
        layer->norm_groups = net->norm == MFL_OP_GROUPNORM ? MFL_MIN(32, channels / 2) : 0;
}

/* The basic block of He et al. 2016, figure 2 and equation 1; if the shape changes, equation 2: the shortcut is a 1x1
 * convolution (option B of section 4.1). */
static void push_block(struct mfl_chain *c, const struct resnet *net, int channels, int stride, bool project)
{
        int shortcut = mfl_chain_last(c);
        mfl_chain_bare_conv(c, "conv1", channels, 3, stride);
        push_norm(c, net, "bn1", channels);
        mfl_chain_push(c, MFL_OP_RELU, "relu1");
        mfl_chain_bare_conv(c, "conv2", channels, 3, 1);
        push_norm(c, net, "bn2", channels);
        int residual = mfl_chain_last(c);
        if (project) {
                mfl_chain_bare_conv(c, "downsample.0", channels, 1, stride)->input = shortcut;
                push_norm(c, net, "downsample.1", channels);
                shortcut = mfl_chain_last(c);
        }
        mfl_chain_join(c, MFL_OP_ADD, "add", residual, shortcut);
        mfl_chain_push(c, MFL_OP_RELU, "relu2");
}

static void make_resnet(struct mfl_chain *c, const struct resnet *net, int classes)
{
        int channels = net->channels;
        c->init = MFL_INIT_HE;
        mfl_chain_bare_conv(c, "conv1", channels, 3, 1);
        push_norm(c, net, "bn1", channels);
        mfl_chain_push(c, MFL_OP_RELU, "relu");
        for (int stage = 0; stage < net->n_stages; stage++, channels *= 2)
                for (int block = 0; block < net->blocks; block++) {
                        bool first = stage > 0 && block == 0;
                        mfl_chain_prefix(c, "layer%d.%d.", stage + 1, block);
                        push_block(c, net, channels, first ? 2 : 1, first);
                }
        mfl_chain_prefix(c, "%s", "");
        mfl_chain_push(c, MFL_OP_GLOBAL_AVGPOOL2D, "avgpool");
        mfl_chain_dense(c, "fc", classes);
}

void mfl_preset_resnet18(struct mfl_chain *c, const struct mfl_shape *input, int classes)
{
        make_resnet(c, &(struct resnet){4, 2, 64, MFL_OP_BATCHNORM}, classes);
}

void mfl_preset_resnet18_gn(struct mfl_chain *c, const struct mfl_shape *input, int classes)
{
        make_resnet(c, &(struct resnet){4, 2, 64, MFL_OP_GROUPNORM}, classes);
}

void mfl_preset_resnet20(struct mfl_chain *c, const struct mfl_shape *input, int classes)
{
        make_resnet(c, &(struct resnet){3, 3, 16, MFL_OP_BATCHNORM}, classes);
}

void mfl_preset_resnet20_gn(struct mfl_chain *c, const struct mfl_shape *input, int classes)
{
        make_resnet(c, &(struct resnet){3, 3, 16, MFL_OP_GROUPNORM}, classes);
}
