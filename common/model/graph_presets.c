/* SPDX-License-Identifier: Apache-2.0 */
/* The named models, each from the paper or benchmark that its summary tells. */
#include "common/model/graph.h"

#include <stdio.h>

#define PRESET_LAYERS_MAX 96

/* Layers in the making: each one reads the one before. */
struct chain {
        struct mfl_layer layers[PRESET_LAYERS_MAX];
        int n;
        enum mfl_init init;
};

static struct mfl_layer *push(struct chain *c, enum mfl_op op, const char *name)
{
        mfl_assert(c->n < PRESET_LAYERS_MAX);
        struct mfl_layer *layer = &c->layers[c->n];
        *layer = (struct mfl_layer){.op = op, .input = c->n - 1, .input2 = -1, .init = c->init};
        mfl_strcpy(layer->name, sizeof layer->name, name);
        c->n++;
        return layer;
}

static void push_conv(struct chain *c, const char *name, int filters, int kernel, int padding)
{
        struct mfl_layer *layer = push(c, MFL_OP_CONV2D, name);
        layer->out_channels = filters;
        layer->bias = true;
        layer->kernel[0] = layer->kernel[1] = kernel;
        layer->padding[0] = layer->padding[1] = padding;
}

static void push_pool(struct chain *c, enum mfl_op op, const char *name)
{
        struct mfl_layer *layer = push(c, op, name);
        layer->kernel[0] = layer->kernel[1] = 2;
        layer->stride[0] = layer->stride[1] = 2;
}

static void push_dense(struct chain *c, const char *name, int units)
{
        struct mfl_layer *layer = push(c, MFL_OP_DENSE, name);
        layer->out_channels = units;
        layer->bias = true;
}

static void push_dropout(struct chain *c, const char *name, float rate)
{
        push(c, MFL_OP_DROPOUT, name)->rate = rate;
}

static void make_logistic(struct chain *c, const struct mfl_shape *input, int classes)
{
        push_dense(c, "fc", classes);
}

static void make_mlp(struct chain *c, const struct mfl_shape *input, int classes)
{
        push_dense(c, "fc1", 200);
        push(c, MFL_OP_RELU, "relu1");
        push_dense(c, "fc2", 200);
        push(c, MFL_OP_RELU, "relu2");
        push_dense(c, "fc3", classes);
}

/* LeCun, Bottou, Bengio, Haffner: "Gradient-based learning applied to document recognition", 1998, figure 2:
 * tanh and averaging. As usual today the pools have no weights, C3 is fully connected, and the output is
 * linear. Inputs below 32x32 are padded as the paper pads its 28x28 digits. */
static void make_lenet5(struct chain *c, const struct mfl_shape *input, int classes)
{
        c->init = MFL_INIT_GLOROT;
        push_conv(c, "conv1", 6, 5, MFL_MIN(input->dim[1], input->dim[2]) < 32 ? 2 : 0);
        push(c, MFL_OP_TANH, "tanh1");
        push_pool(c, MFL_OP_AVGPOOL2D, "pool1");
        push_conv(c, "conv2", 16, 5, 0);
        push(c, MFL_OP_TANH, "tanh2");
        push_pool(c, MFL_OP_AVGPOOL2D, "pool2");
        push(c, MFL_OP_FLATTEN, "flatten");
        push_dense(c, "fc1", 120);
        push(c, MFL_OP_TANH, "tanh3");
        push_dense(c, "fc2", 84);
        push(c, MFL_OP_TANH, "tanh4");
        push_dense(c, "fc3", classes);
}

static void make_fedavg_cnn(struct chain *c, const struct mfl_shape *input, int classes)
{
        push_conv(c, "conv1", 32, 5, 2);
        push(c, MFL_OP_RELU, "relu1");
        push_pool(c, MFL_OP_MAXPOOL2D, "pool1");
        push_conv(c, "conv2", 64, 5, 2);
        push(c, MFL_OP_RELU, "relu2");
        push_pool(c, MFL_OP_MAXPOOL2D, "pool2");
        push(c, MFL_OP_FLATTEN, "flatten");
        push_dense(c, "fc1", 512);
        push(c, MFL_OP_RELU, "relu3");
        push_dense(c, "fc2", classes);
}

static void make_pfl_cnn(struct chain *c, const struct mfl_shape *input, int classes)
{
        push_conv(c, "conv1", 32, 3, 0);
        push(c, MFL_OP_RELU, "relu1");
        push_conv(c, "conv2", 64, 3, 0);
        push(c, MFL_OP_RELU, "relu2");
        push_pool(c, MFL_OP_MAXPOOL2D, "pool");
        push_dropout(c, "dropout1", 0.25f);
        push(c, MFL_OP_FLATTEN, "flatten");
        push_dense(c, "fc1", 128);
        push(c, MFL_OP_RELU, "relu3");
        push_dropout(c, "dropout2", 0.5f);
        push_dense(c, "fc2", classes);
}

/* Residual networks for small images. Layers have the names of torchvision's, also with its norm_layer =
 * GroupNorm, so that state_dicts exchange: "layer2.0.downsample.0.weight". */
struct resnet {
        int n_stages, blocks, channels; /* blocks of a stage; channels of the first, doubled by each next */
        enum mfl_op norm;
};

static struct mfl_layer *push_part(struct chain *c, enum mfl_op op, const char *block, const char *part)
{
        char name[MFL_NAME_BYTES];
        snprintf(name, sizeof name, "%.32s%s", block, part);
        return push(c, op, name);
}

/* A convolution without bias: the norm behind it has one. */
static void push_bare_conv(
        struct chain *c, const char *block, const char *part, int filters, int kernel, int stride)
{
        struct mfl_layer *layer = push_part(c, MFL_OP_CONV2D, block, part);
        layer->out_channels = filters;
        layer->kernel[0] = layer->kernel[1] = kernel;
        layer->padding[0] = layer->padding[1] = kernel / 2;
        layer->stride[0] = layer->stride[1] = stride;
}

/* 32 groups (Wu and He 2018, section 4.1), fewer where a group would be a single channel. */
static void push_norm(
        struct chain *c, const struct resnet *net, const char *block, const char *part, int channels)
{
        struct mfl_layer *layer = push_part(c, net->norm, block, part);
        layer->norm_groups = net->norm == MFL_OP_GROUPNORM ? MFL_MIN(32, channels / 2) : 0;
}

/* The basic block of He et al. 2016, figure 2 and equation 1; where the shape changes, equation 2: the
 * shortcut is a 1x1 convolution (option B of section 4.1). */
static void push_block(
        struct chain *c, const struct resnet *net, const char *block, int channels, int stride, bool project)
{
        int shortcut = c->n - 1;
        push_bare_conv(c, block, "conv1", channels, 3, stride);
        push_norm(c, net, block, "bn1", channels);
        push_part(c, MFL_OP_RELU, block, "relu1");
        push_bare_conv(c, block, "conv2", channels, 3, 1);
        push_norm(c, net, block, "bn2", channels);
        int residual = c->n - 1;
        if (project) {
                push_bare_conv(c, block, "downsample.0", channels, 1, stride);
                c->layers[c->n - 1].input = shortcut;
                push_norm(c, net, block, "downsample.1", channels);
                shortcut = c->n - 1;
        }
        struct mfl_layer *join = push_part(c, MFL_OP_ADD, block, "add");
        join->input = residual;
        join->input2 = shortcut;
        push_part(c, MFL_OP_RELU, block, "relu2");
}

static void make_resnet(struct chain *c, const struct resnet *net, int classes)
{
        int channels = net->channels;
        c->init = MFL_INIT_HE;
        push_bare_conv(c, "", "conv1", channels, 3, 1);
        push_norm(c, net, "", "bn1", channels);
        push(c, MFL_OP_RELU, "relu");
        for (int stage = 0; stage < net->n_stages; stage++, channels *= 2)
                for (int block = 0; block < net->blocks; block++) {
                        bool first = stage > 0 && block == 0;
                        char name[32];
                        snprintf(name, sizeof name, "layer%d.%d.", stage + 1, block);
                        push_block(c, net, name, channels, first ? 2 : 1, first);
                }
        push(c, MFL_OP_GLOBAL_AVGPOOL2D, "avgpool");
        push_dense(c, "fc", classes);
}

static void make_resnet18(struct chain *c, const struct mfl_shape *input, int classes)
{
        make_resnet(c, &(struct resnet){4, 2, 64, MFL_OP_BATCHNORM}, classes);
}

static void make_resnet18_gn(struct chain *c, const struct mfl_shape *input, int classes)
{
        make_resnet(c, &(struct resnet){4, 2, 64, MFL_OP_GROUPNORM}, classes);
}

static void make_resnet20(struct chain *c, const struct mfl_shape *input, int classes)
{
        make_resnet(c, &(struct resnet){3, 3, 16, MFL_OP_BATCHNORM}, classes);
}

static void make_resnet20_gn(struct chain *c, const struct mfl_shape *input, int classes)
{
        make_resnet(c, &(struct resnet){3, 3, 16, MFL_OP_GROUPNORM}, classes);
}

const struct mfl_preset_info mfl_presets[] = {
        {"logistic", "multinomial logistic regression"},
        {"mlp", "two hidden layers of 200 with ReLU, the \"2NN\" of McMahan et al. 2017"},
        {"lenet5", "LeNet-5 of LeCun et al. 1998 with tanh and average pooling"},
        {"fedavg-cnn", "the MNIST CNN of McMahan et al. 2017: 5x5x32, pool, 5x5x64, pool, 512"},
        {"pfl-cnn", "the CIFAR-10 CNN of pfl-research's benchmark: 3x3x32, 3x3x64, pool, 128, with dropout"},
        {"resnet18",
                "ResNet-18 of He et al. 2016 for small images: 3x3 stem, no pool, 64 to 512 channels; batch "
                "norm"},
        {"resnet18-gn",
                "resnet18 with group norm, 32 groups: batch norm suffers where clients' data differ (Hsieh "
                "et al. 2020)"},
        {"resnet20", "ResNet-20 of He et al. 2016, section 4.2: 16, 32, 64 channels, projections (option B); "
                     "batch norm"},
        {"resnet20-gn", "resnet20 with group norm: 8, 16 and 32 groups of 2 channels"},
        {NULL, NULL},
};

static const struct {
        void (*make)(struct chain *c, const struct mfl_shape *input, int classes);
        bool needs_image;
} makers[] = {
        {make_logistic, false},
        {make_mlp, false},
        {make_lenet5, true},
        {make_fedavg_cnn, true},
        {make_pfl_cnn, true},
        {make_resnet18, true},
        {make_resnet18_gn, true},
        {make_resnet20, true},
        {make_resnet20_gn, true},
};
_Static_assert(MFL_ARRAY_SIZE(makers) + 1 == MFL_ARRAY_SIZE(mfl_presets), "one maker for each preset");

static int fail_unknown(const char *preset, struct mfl_error *err)
{
        char list[256] = "";
        size_t len = 0;
        for (int i = 0; mfl_presets[i].name; i++)
                len += (size_t)snprintf(
                        list + len, sizeof list - len, "%s%s", i ? ", " : "", mfl_presets[i].name);
        return mfl_fail(err, MFL_NOT_FOUND, "there is no preset %s; there are %s", preset, list);
}

int mfl_graph_preset(const char *preset, const struct mfl_shape *input, int classes,
        struct mfl_graph **ret_graph, struct mfl_error *err)
{
        int i = 0;
        char text[96];
        while (mfl_presets[i].name && strcmp(mfl_presets[i].name, preset))
                i++;
        if (!mfl_presets[i].name)
                return fail_unknown(preset, err);
        if (makers[i].needs_image && input->rank != 3)
                return mfl_fail(err, MFL_INVALID,
                        "preset %s needs an image (channels x height x width), the input is %s", preset,
                        mfl_shape_text(input, text, sizeof text));
        if (classes < 1)
                return mfl_fail(
                        err, MFL_INVALID, "preset %s needs at least 1 class, not %d", preset, classes);
        struct chain c = {.n = 0, .init = MFL_INIT_TORCH};
        push(&c, MFL_OP_INPUT, "input")->out = *input;
        makers[i].make(&c, input, classes);
        struct mfl_error inner;
        int r = mfl_graph_build(preset, c.layers, c.n, classes, ret_graph, &inner);
        if (r)
                return mfl_fail(err, r, "preset %s: %.430s", preset, inner.text);
        return 0;
}
