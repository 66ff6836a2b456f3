/* SPDX-License-Identifier: Apache-2.0 */
/* Own convolutions: fp32 uses the family that multiplies in float, everything else the tensor cores. */
#include "kernels/cuda/conv/conv.h"

static const struct mfl_cuda_conv_family *family_of(const struct mfl_cuda_conv *conv)
{
        return conv->precision == MFL_PRECISION_FP32 ? &mfl_cuda_conv_simt : &mfl_cuda_conv_mma;
}

int mfl_cuda_conv_variants(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass)
{
        return family_of(conv)->variants(conv, pass);
}

const char *mfl_cuda_conv_variant_name(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant)
{
        return family_of(conv)->variant_name(conv, pass, variant);
}

uint64_t mfl_cuda_conv_workspace(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant)
{
        return family_of(conv)->workspace(conv, pass, variant);
}

cudaError_t mfl_cuda_conv_own(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant,
        const struct mfl_cuda_conv_args *args, cudaStream_t stream)
{
        return family_of(conv)->run(conv, pass, variant, args, stream);
}
