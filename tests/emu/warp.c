/* SPDX-License-Identifier: Apache-2.0 */
/* Warp collectives. Which lane holds which element: PTX ISA 8.5, "Matrix Fragments for mma.m16n8k8", "... for
 * mma.m16n8k16 with floating point type", and "ldmatrix".
 *
 * A tensor core's sum here is exact products added in double and rounded to float once. Hardware adds with
 * fewer bits and truncates, so a device's bits differ. */
#include "tests/emu/emu_internal.h"
#include "kernels/cuda/base/kernel.h"

const char *const mfl_emu_collective_names[MFL_EMU_COLLECTIVE_COUNT_] = {
        "MFL_SYNC_WARP",
        "mfl_shfl_xor",
        "mfl_mma_tf32",
        "mfl_mma_bf16",
        "mfl_mma_f16",
        "mfl_ldmatrix_x4",
        "mfl_ldmatrix_x4_trans",
};

static void shuffle(struct mfl_emu_lane *const lanes[MFL_EMU_WARP])
{
        for (int l = 0; l < MFL_EMU_WARP; l++) {
                int mask = lanes[l]->mask;
                if (mask != lanes[0]->mask || mask < 0 || mask >= MFL_EMU_WARP)
                        mfl_emu_fault(
                                "mfl_shfl_xor with mask %d in one lane, %d in another", mask, lanes[0]->mask);
                *lanes[l]->to = lanes[l ^ mask]->value;
        }
}

/* d[16][8] += a[16][k] * b[k][8] */
static void multiply(
        struct mfl_emu_lane *const lanes[MFL_EMU_WARP], const double a[16][16], const double b[16][8], int k)
{
        double sum[16][8];
        for (int l = 0; l < MFL_EMU_WARP; l++)
                for (int i = 0; i < 4; i++)
                        sum[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2] = (double)lanes[l]->d[i];
        for (int row = 0; row < 16; row++)
                for (int i = 0; i < k; i++)
                        for (int col = 0; col < 8; col++)
                                sum[row][col] += a[row][i] * b[i][col];
        for (int l = 0; l < MFL_EMU_WARP; l++)
                for (int i = 0; i < 4; i++)
                        lanes[l]->d[i] = (float)sum[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
}

/* The tensor core ignores the 13 low bits of a tf32 operand. */
static double from_tf32(uint32_t bits)
{
        return (double)mfl_bits_to_float(bits & 0xffffe000u);
}

static void multiply_tf32(struct mfl_emu_lane *const lanes[MFL_EMU_WARP])
{
        double a[16][16], b[16][8];
        for (int l = 0; l < MFL_EMU_WARP; l++) {
                for (int i = 0; i < 4; i++)
                        a[l / 4 + i % 2 * 8][l % 4 + i / 2 * 4] = from_tf32(lanes[l]->a[i]);
                for (int i = 0; i < 2; i++)
                        b[l % 4 + i * 4][l / 4] = from_tf32(lanes[l]->b[i]);
        }
        multiply(lanes, a, b, 8);
}

static double from_half(uint32_t pair, int which, bool bf16)
{
        uint16_t bits = (uint16_t)(pair >> 16 * which);
        return (double)(bf16 ? mfl_bf16_to_float(bits) : mfl_f16_to_float(bits));
}

static void multiply_half(struct mfl_emu_lane *const lanes[MFL_EMU_WARP], bool bf16)
{
        double a[16][16], b[16][8];
        for (int l = 0; l < MFL_EMU_WARP; l++) {
                for (int i = 0; i < 8; i++) /* element i is half i % 2 of register i / 2 */
                        a[l / 4 + i / 2 % 2 * 8][l % 4 * 2 + i % 2 + i / 4 * 8] =
                                from_half(lanes[l]->a[i / 2], i % 2, bf16);
                for (int i = 0; i < 4; i++)
                        b[l % 4 * 2 + i % 2 + i / 2 * 8][l / 4] = from_half(lanes[l]->b[i / 2], i % 2, bf16);
        }
        multiply(lanes, a, b, 16);
}

static void load_matrices(struct mfl_emu_lane *const lanes[MFL_EMU_WARP], bool transposed, unsigned warp)
{
        uint16_t m[4][8][8];
        for (int l = 0; l < MFL_EMU_WARP; l++) {
                const void *from = lanes[l]->from;
                if ((uintptr_t)from % 16)
                        mfl_emu_fault("mfl_ldmatrix_x4: lane %d: misaligned address %p", l, from);
                if (!mfl_emu_is_shared(from, 16))
                        mfl_emu_fault("mfl_ldmatrix_x4: lane %d: %p is not in shared memory", l, from);
                memcpy(m[l / 8][l % 8], from, 16);
                if (mfl_emu_watch)
                        mfl_emu_watch->access(
                                warp * MFL_EMU_WARP + (unsigned)l, from, 16, MFL_EMU_READ, lanes[l]->pc);
        }
        for (int l = 0; l < MFL_EMU_WARP; l++)
                for (int i = 0; i < 4; i++) {
                        int x = l / 4, y = l % 4 * 2;
                        uint16_t low = transposed ? m[i][y][x] : m[i][x][y];
                        uint16_t high = transposed ? m[i][y + 1][x] : m[i][x][y + 1];
                        lanes[l]->to[i] = low | (uint32_t)high << 16;
                }
}

void mfl_emu_collective_run(
        enum mfl_emu_collective what, struct mfl_emu_lane *const lanes[MFL_EMU_WARP], unsigned warp)
{
        switch (what) {
        case MFL_EMU_SHFL_XOR:
                shuffle(lanes);
                break;
        case MFL_EMU_MMA_TF32:
                multiply_tf32(lanes);
                break;
        case MFL_EMU_MMA_BF16:
        case MFL_EMU_MMA_F16:
                multiply_half(lanes, what == MFL_EMU_MMA_BF16);
                break;
        case MFL_EMU_LDMATRIX:
        case MFL_EMU_LDMATRIX_TRANS:
                load_matrices(lanes, what == MFL_EMU_LDMATRIX_TRANS, warp);
                break;
        default:
                break;
        }
}
