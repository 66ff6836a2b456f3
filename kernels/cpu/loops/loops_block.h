/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 8 and of 16 lanes; one of them is a block of channels. Part of loops_body.h. A loop over such
 * blocks is in a file that is included once for each number, BLOCK_LANES, and makes its names with OF_BLOCK.
 */

typedef float lanes16 __attribute__((vector_size(64)));
typedef int32_t index16 __attribute__((vector_size(64)));
typedef uint16_t short16 __attribute__((vector_size(32)));
typedef float lanes16_unaligned __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t short16_unaligned __attribute__((vector_size(32), aligned(2), may_alias));

typedef float lanes8 __attribute__((vector_size(32)));
typedef int32_t index8 __attribute__((vector_size(32)));
typedef uint16_t short8 __attribute__((vector_size(16)));
typedef float lanes8_unaligned __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t short8_unaligned __attribute__((vector_size(16), aligned(2), may_alias));

#define PASTE_(a, b, c) a##b##c
#define PASTE(a, b, c) PASTE_(a, b, c)
#define OF_BLOCK(name) PASTE(name, BLOCK_LANES, )
#define BLOCK OF_BLOCK(lanes)
#define BLOCK_AT PASTE(lanes, BLOCK_LANES, _unaligned) /* as it lies in a tensor */
#define BLOCK_INDEX OF_BLOCK(index)
#define BLOCK_SHORT OF_BLOCK(short)
#define BLOCK_SHORT_AT PASTE(short, BLOCK_LANES, _unaligned)
