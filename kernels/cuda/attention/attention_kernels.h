/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of attention by tiles for one precision. attention_fp32.cu, attention_tf32.cu, attention_bf16.cu
 * and attention_f16.cu each include this once, after they define FLASH_PRECISION and FLASH_GET (the function
 * that returns them). */
#include "kernels/cuda/attention/attention_passes.h"

#define FLASH_BYTES (FLASH_PRECISION == MFL_PRECISION_BF16 || FLASH_PRECISION == MFL_PRECISION_FP16 ? 2 : 4)
/* Steps of 64 keys forward where elements have 2 bytes; otherwise the slab, or backward's registers, need 32.
 */
#define FLASH_LONG (FLASH_BYTES == 2 ? 64 : 32)
#define FLASH_WARPS(size) (1024 / ((size)*FLASH_BYTES) < 8 ? 1024 / ((size)*FLASH_BYTES) : 8)
#define FLASH_SHAPE(pass, size, step)                                                                        \
        {                                                                                                    \
                FLASH_PRECISION, pass, size, step                                                            \
        }
#define FLASH_KERNEL(name, block, pass, size, step)                                                          \
        MFL_KERNEL_BOUNDS(name##_##size, struct mfl_flash_args, FLASH_WARPS(size) * 32, 1)                   \
        {                                                                                                    \
                MFL_SHARED_DYNAMIC(shared);                                                                  \
                const struct flash_shape s = FLASH_SHAPE(pass, size, step);                                  \
                block(&a, s, shared);                                                                        \
        }

/* F(name, block, pass, size, step) */
#define FLASH_ALL(F)                                                                                         \
        F(attend, flash_forward, MFL_FLASH_FORWARD, 32, FLASH_LONG)                                          \
        F(attend, flash_forward, MFL_FLASH_FORWARD, 64, FLASH_LONG)                                          \
        F(attend, flash_forward, MFL_FLASH_FORWARD, 128, FLASH_LONG)                                         \
        F(attend_queries, flash_backward, MFL_FLASH_QUERIES, 32, 32)                                         \
        F(attend_queries, flash_backward, MFL_FLASH_QUERIES, 64, 32)                                         \
        F(attend_queries, flash_backward, MFL_FLASH_QUERIES, 128, 32)                                        \
        F(attend_keys, flash_backward, MFL_FLASH_KEYS, 32, 32)                                               \
        F(attend_keys, flash_backward, MFL_FLASH_KEYS, 64, 32)                                               \
        F(attend_keys, flash_backward, MFL_FLASH_KEYS, 128, 32)

FLASH_ALL(FLASH_KERNEL)

#define FLASH_ENTRY(kernel_name, block, of_pass, size_, step_)                                               \
        if (pass == (of_pass) && size <= (size_)) {                                                          \
                const struct flash_shape s = FLASH_SHAPE(of_pass, size_, step_);                             \
                struct mfl_flash_kernel k = {(const void *)kernel_name##_##size_, FLASH_WARPS(size_),        \
                        flash_shared_of_block(s), flash_shared_of_warp(s)};                                  \
                *ret_kernel = k;                                                                             \
                return true;                                                                                 \
        }

MFL_HOST bool FLASH_GET(enum mfl_flash_pass pass, int size, struct mfl_flash_kernel *ret_kernel)
{
        FLASH_ALL(FLASH_ENTRY)
        return false;
}
