/* SPDX-License-Identifier: Apache-2.0 */
/* Presets without shortcuts: the networks of the benchmarks of federated learning. */
#include "common/model/presets.h"

void mfl_preset_logistic(struct mfl_chain *c, const struct mfl_shape *input, int classes)
{
        mfl_chain_dense(c, "fc", classes);
}

void mfl_preset_mlp(struct mfl_chain *c, const struct mfl_shape *input, int classes)
{
        mfl_chain_dense(c, "fc1", 200);
        mfl_chain_push(c, MFL_OP_RELU, "relu1");
        mfl_chain_dense(c, "fc2", 200);
        mfl_chain_push(c, MFL_OP_RELU, "relu2");
        mfl_chain_dense(c, "fc3", classes);
}

/* LeCun, Bottou, Bengio, Haffner: "Gradient-based learning applied to document recognition", 1998, figure 2:
 * tanh and averaging. As usual today the pools have no weights, C3 is fully connected, and the output is
 * linear. Inputs below 32x32 are padded as the paper pads its 28x28 digits. */
void mfl_preset_lenet5(struct mfl_chain *c, const struct mfl_shape *input, int classes)
{
        c->init = MFL_INIT_GLOROT;
        mfl_chain_conv(c, "conv1", 6, 5, MFL_MIN(input->dim[1], input->dim[2]) < 32 ? 2 : 0);
        mfl_chain_push(c, MFL_OP_TANH, "tanh1");
        mfl_chain_pool(c, MFL_OP_AVGPOOL2D, "pool1");
        mfl_chain_conv(c, "conv2", 16, 5, 0);
        mfl_chain_push(c, MFL_OP_TANH, "tanh2");
        mfl_chain_pool(c, MFL_OP_AVGPOOL2D, "pool2");
        mfl_chain_push(c, MFL_OP_FLATTEN, "flatten");
        mfl_chain_dense(c, "fc1", 120);
        mfl_chain_push(c, MFL_OP_TANH, "tanh3");
        mfl_chain_dense(c, "fc2", 84);
        mfl_chain_push(c, MFL_OP_TANH, "tanh4");
        mfl_chain_dense(c, "fc3", classes);
}

void mfl_preset_fedavg_cnn(struct mfl_chain *c, const struct mfl_shape *input, int classes)
{
        mfl_chain_conv(c, "conv1", 32, 5, 2);
        mfl_chain_push(c, MFL_OP_RELU, "relu1");
        mfl_chain_pool(c, MFL_OP_MAXPOOL2D, "pool1");
        mfl_chain_conv(c, "conv2", 64, 5, 2);
        mfl_chain_push(c, MFL_OP_RELU, "relu2");
        mfl_chain_pool(c, MFL_OP_MAXPOOL2D, "pool2");
        mfl_chain_push(c, MFL_OP_FLATTEN, "flatten");
        mfl_chain_dense(c, "fc1", 512);
        mfl_chain_push(c, MFL_OP_RELU, "relu3");
        mfl_chain_dense(c, "fc2", classes);
}

void mfl_preset_pfl_cnn(struct mfl_chain *c, const struct mfl_shape *input, int classes)
{
        mfl_chain_conv(c, "conv1", 32, 3, 0);
        mfl_chain_push(c, MFL_OP_RELU, "relu1");
        mfl_chain_conv(c, "conv2", 64, 3, 0);
        mfl_chain_push(c, MFL_OP_RELU, "relu2");
        mfl_chain_pool(c, MFL_OP_MAXPOOL2D, "pool");
        mfl_chain_dropout(c, "dropout1", 0.25f);
        mfl_chain_push(c, MFL_OP_FLATTEN, "flatten");
        mfl_chain_dense(c, "fc1", 128);
        mfl_chain_push(c, MFL_OP_RELU, "relu3");
        mfl_chain_dropout(c, "dropout2", 0.5f);
        mfl_chain_dense(c, "fc2", classes);
}
