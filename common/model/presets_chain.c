/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that presets are written in. */
#include <stdarg.h>
#include <stdio.h>

#include "common/model/presets.h"

struct mfl_layer *mfl_chain_push(struct mfl_chain *c, enum mfl_op op, const char *name)
{
        mfl_assert(c->n < MFL_PRESET_LAYERS_MAX);
        struct mfl_layer *layer = &c->layers[c->n];
        *layer = (struct mfl_layer){.op = op, .input = c->n - 1, .input2 = -1, .init = c->init};
        snprintf(layer->name, sizeof layer->name, "%s%.31s", c->prefix, name);
        c->n++;
        return layer;
}

void mfl_chain_prefix(struct mfl_chain *c, const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(c->prefix, sizeof c->prefix, fmt, ap);
        va_end(ap);
}

void mfl_chain_dense(struct mfl_chain *c, const char *name, int units)
{
        struct mfl_layer *layer = mfl_chain_push(c, MFL_OP_DENSE, name);
        layer->out_channels = units;
        layer->bias = true;
}

void mfl_chain_conv(struct mfl_chain *c, const char *name, int filters, int kernel, int padding)
{
        struct mfl_layer *layer = mfl_chain_push(c, MFL_OP_CONV2D, name);
        layer->out_channels = filters;
        layer->bias = true;
        layer->kernel[0] = layer->kernel[1] = kernel;
        layer->padding[0] = layer->padding[1] = padding;
}

struct mfl_layer *mfl_chain_bare_conv(
        struct mfl_chain *c, const char *name, int filters, int kernel, int stride)
{
        mfl_chain_conv(c, name, filters, kernel, kernel / 2);
        struct mfl_layer *layer = &c->layers[mfl_chain_last(c)];
        layer->bias = false;
        layer->stride[0] = layer->stride[1] = stride;
        return layer;
}

void mfl_chain_pool(struct mfl_chain *c, enum mfl_op op, const char *name)
{
        struct mfl_layer *layer = mfl_chain_push(c, op, name);
        layer->kernel[0] = layer->kernel[1] = 2;
        layer->stride[0] = layer->stride[1] = 2;
}

void mfl_chain_dropout(struct mfl_chain *c, const char *name, float rate)
{
        mfl_chain_push(c, MFL_OP_DROPOUT, name)->rate = rate;
}

void mfl_chain_join(struct mfl_chain *c, enum mfl_op op, const char *name, int input, int input2)
{
        struct mfl_layer *layer = mfl_chain_push(c, op, name);
        layer->input = input;
        layer->input2 = input2;
}
