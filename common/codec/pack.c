/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of integers, packed and unpacked. */
#include "common/codec/pack.h"

#define HEADER 2u
#define RAW 255u
#define HALVES 254u
#define SPARSE 253u
#define FLOAT_WIDTH_MAX 25u /* 24 bits of mantissa, and the sign */
#define FLOAT_BIAS 150      /* a float is a 24-bit integer times 2^(exponent field - 150) */

/* ---- bits ---- */

/* Bits of a signed number: 0 for 0, 1 for -1. */
static unsigned width_of(int64_t least, int64_t most)
{
        uint64_t bits = (uint64_t)(least < 0 ? ~least : least) | (uint64_t)(most < 0 ? ~most : most);
        if (!bits)
                return least < 0;
        return 65 - (unsigned)__builtin_clzll(bits);
}

static size_t bits_bytes(unsigned width, unsigned n)
{
        return ((size_t)width * n + 7) / 8;
}

static uint64_t low_bits(unsigned width)
{
        return width == 64 ? ~(uint64_t)0 : ((uint64_t)1 << width) - 1;
}

static void put_bits(const int64_t *v, unsigned n, unsigned width, uint8_t *out)
{
        unsigned __int128 held = 0;
        unsigned n_held = 0;
        for (unsigned i = 0; i < n; i++) {
                held |= (unsigned __int128)((uint64_t)v[i] & low_bits(width)) << n_held;
                n_held += width;
                if (n_held >= 64) {
                        uint64_t word = (uint64_t)held;
                        memcpy(out, &word, 8);
                        out += 8;
                        held >>= 64;
                        n_held -= 64;
                }
        }
        for (; n_held; n_held -= MFL_MIN(n_held, 8u)) {
                *out++ = (uint8_t)held;
                held >>= 8;
        }
}

/* Reads up to 8 bytes past the numbers: the caller has room for them. */
static void take_bits(const uint8_t *in, unsigned n, unsigned width, int64_t *v)
{
        unsigned __int128 held = 0;
        unsigned n_held = 0;
        for (unsigned i = 0; i < n; i++) {
                if (n_held < width) {
                        uint64_t word;
                        memcpy(&word, in, 8);
                        in += 8;
                        held |= (unsigned __int128)word << n_held;
                        n_held += 64;
                }
                uint64_t bits = (uint64_t)held & low_bits(width);
                v[i] = width ? (int64_t)(bits << (64 - width)) >> (64 - width) : 0;
                held >>= width;
                n_held -= width;
        }
}

/* ---- a block as numbers ---- */

struct block {
        int64_t v[MFL_PACK_BLOCK];
        unsigned n, width, shift;
        bool raw;    /* floats: as they are, */
        bool halves; /* or their upper halves, the lower ones being 0; */
        bool sparse; /* or those that are not +0, which this counts */
        unsigned n_set;
};

static void shift_down(struct block *block, uint64_t any)
{
        int64_t least = 0, most = 0;
        block->shift = any ? (unsigned)__builtin_ctzll(any) : 0;
        for (unsigned i = 0; i < block->n; i++) {
                block->v[i] >>= block->shift;
                least = MFL_MIN(least, block->v[i]);
                most = MFL_MAX(most, block->v[i]);
        }
        block->width = width_of(least, most);
}

static void read_ints(const uint8_t *elements, struct block *block)
{
        uint64_t any = 0;
        memcpy(block->v, elements, block->n * sizeof *block->v);
        for (unsigned i = 0; i < block->n; i++)
                any |= (uint64_t)block->v[i];
        shift_down(block, any);
}

/* A float's exponent field and its mantissa with the leading bit, without trailing zeros. */
static bool split(uint32_t bits, int64_t *ret_mantissa, unsigned *ret_exponent)
{
        uint32_t exponent = bits >> 23 & 255, mantissa = bits & 0x7fffff;
        if (exponent == 255 || bits == 0x80000000u)
                return false;
        mantissa |= exponent ? 0x800000u : 0;
        exponent += !exponent;
        unsigned zeros = mantissa ? (unsigned)__builtin_ctz(mantissa) : 0;
        *ret_mantissa = bits >> 31 ? -(int64_t)(mantissa >> zeros) : (int64_t)(mantissa >> zeros);
        *ret_exponent = exponent + zeros;
        return true;
}

/* Whether no number has lower bytes. */
static bool are_halves(const uint8_t *elements, unsigned n)
{
        uint32_t any = 0, bits;
        for (unsigned i = 0; i < n; i++) {
                memcpy(&bits, elements + i * sizeof bits, sizeof bits);
                any |= bits;
        }
        return !(any & 0xffff);
}

/* All elements as multiples of the finest one's last bit, if they are narrow then. */
static void read_multiples(const uint8_t *elements, struct block *block)
{
        unsigned exponent[MFL_PACK_BLOCK], finest = 255;
        block->raw = true;
        for (unsigned i = 0; i < block->n; i++) {
                uint32_t bits;
                memcpy(&bits, elements + i * sizeof bits, sizeof bits);
                if (!split(bits, &block->v[i], &exponent[i]))
                        return;
                if (block->v[i])
                        finest = MFL_MIN(finest, exponent[i]);
        }
        int64_t least = 0, most = 0;
        for (unsigned i = 0; i < block->n; i++) {
                unsigned up = block->v[i] ? exponent[i] - finest : 0;
                if (up > FLOAT_WIDTH_MAX)
                        return;
                block->v[i] *= (int64_t)1 << up;
                least = MFL_MIN(least, block->v[i]);
                most = MFL_MAX(most, block->v[i]);
        }
        block->width = width_of(least, most);
        block->shift = finest;
        block->raw = block->width > FLOAT_WIDTH_MAX;
}

static size_t mask_bytes(unsigned n)
{
        return ((size_t)n + 7) / 8;
}

static size_t block_bytes(const struct block *block, size_t unit)
{
        return block->sparse   ? mask_bytes(block->n) + block->n_set * sizeof(float)
               : block->halves ? 2 * (size_t)block->n
               : block->raw    ? block->n * unit
                               : bits_bytes(block->width, block->n);
}

static void read_floats(const uint8_t *elements, struct block *block)
{
        uint32_t bits;
        read_multiples(elements, block);
        block->halves = (block->raw || block->width > 16) && are_halves(elements, block->n);
        for (unsigned i = 0; i < block->n; i++) {
                memcpy(&bits, elements + i * sizeof bits, sizeof bits);
                block->n_set += bits != 0;
        }
        block->sparse = mask_bytes(block->n) + block->n_set * sizeof bits < block_bytes(block, sizeof(float));
}

static void put_sparse(const uint8_t *elements, unsigned n, uint8_t *out)
{
        uint8_t *value = out + mask_bytes(n);
        uint32_t bits;
        memset(out, 0, mask_bytes(n));
        for (unsigned i = 0; i < n; i++) {
                memcpy(&bits, elements + i * sizeof bits, sizeof bits);
                if (!bits)
                        continue;
                out[i / 8] |= (uint8_t)(1u << i % 8);
                memcpy(value, &bits, sizeof bits);
                value += sizeof bits;
        }
}

static void put_halves(const uint8_t *elements, unsigned n, uint8_t *out)
{
        for (unsigned i = 0; i < n; i++)
                memcpy(out + 2 * i, elements + 4 * i + 2, 2);
}

static size_t write_block(const struct block *block, const uint8_t *elements, uint8_t *out)
{
        out[0] = (uint8_t)(block->raw ? RAW : block->width);
        out[1] = (uint8_t)block->shift;
        if (block->sparse) {
                out[0] = SPARSE;
                out[1] = 0;
                put_sparse(elements, block->n, out + HEADER);
                return HEADER + block_bytes(block, sizeof(float));
        }
        if (block->halves) {
                out[0] = HALVES;
                out[1] = 0;
                put_halves(elements, block->n, out + HEADER);
                return HEADER + 2 * (size_t)block->n;
        }
        if (block->raw) {
                out[1] = 0;
                memcpy(out + HEADER, elements, block->n * sizeof(float));
                return HEADER + block->n * sizeof(float);
        }
        put_bits(block->v, block->n, block->width, out + HEADER);
        return HEADER + bits_bytes(block->width, block->n);
}

size_t mfl_pack(bool floats, const void *elements, size_t bytes, void *out)
{
        size_t unit = floats ? sizeof(float) : sizeof(int64_t), n = bytes / unit, packed = 0;
        size_t ahead_max =
                0; /* how far the elements come to lie beyond their packed form, which begins at 0 */
        for (size_t at = 0; at < n; at += MFL_PACK_BLOCK) {
                struct block block = {.n = (unsigned)MFL_MIN(n - at, (size_t)MFL_PACK_BLOCK)};
                const uint8_t *from = (const uint8_t *)elements + at * unit;
                if (floats)
                        read_floats(from, &block);
                else
                        read_ints(from, &block);
                packed += write_block(&block, from, (uint8_t *)out + packed);
                size_t raw = (at + block.n) * unit;
                ahead_max = MFL_MAX(ahead_max, raw > packed ? raw - packed : 0);
        }
        /* In place, the packed form begins at bytes - packed: no element may be written beyond the blocks that are read. */
        return packed < bytes && ahead_max <= bytes - packed ? packed : 0;
}

/* ---- unpacking ---- */

static int invalid(size_t at, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "a packed piece of an update: element %zu is not as a packer writes it", at);
}

static void write_halves(const uint8_t *halves, unsigned n, uint8_t *elements)
{
        memset(elements, 0, n * sizeof(float));
        for (unsigned i = 0; i < n; i++)
                memcpy(elements + 4 * i + 2, halves + 2 * i, 2);
}

/* Bits beyond the last element are 0, as a packer leaves them. */
static bool count_sparse(struct block *block, const uint8_t *mask)
{
        unsigned beyond = block->n % 8;
        for (size_t i = 0; i < mask_bytes(block->n); i++)
                block->n_set += (unsigned)__builtin_popcount(mask[i]);
        return !beyond || !(mask[block->n / 8] >> beyond);
}

static void write_sparse(const uint8_t *packed, unsigned n, uint8_t *elements)
{
        const uint8_t *value = packed + mask_bytes(n);
        memset(elements, 0, n * sizeof(float));
        for (unsigned i = 0; i < n; i++) {
                if (!(packed[i / 8] >> i % 8 & 1))
                        continue;
                memcpy(elements + i * sizeof(float), value, sizeof(float));
                value += sizeof(float);
        }
}

static void write_ints(const struct block *block, uint8_t *elements)
{
        for (unsigned i = 0; i < block->n; i++) {
                uint64_t v = (uint64_t)block->v[i] << block->shift;
                memcpy(elements + i * sizeof v, &v, sizeof v);
        }
}

/* Exact: a number of at most 24 bits, and a power of two. */
static void write_floats(const struct block *block, uint8_t *elements)
{
        for (unsigned i = 0; i < block->n; i++) {
                float v = (float)__builtin_ldexp((double)block->v[i], (int)block->shift - FLOAT_BIAS);
                memcpy(elements + i * sizeof v, &v, sizeof v);
        }
}

/* What the block's header says; false: no packer writes it. */
static bool read_header(struct block *block, bool floats, const uint8_t *from, size_t left)
{
        unsigned width_max = floats ? FLOAT_WIDTH_MAX : 64, shift_max = floats ? 255 : 63;
        if (left < HEADER)
                return false;
        block->width = from[0];
        block->shift = from[1];
        block->raw = floats && block->width == RAW;
        block->halves = floats && block->width == HALVES;
        block->sparse = floats && block->width == SPARSE;
        if (block->sparse)
                return mask_bytes(block->n) <= left - HEADER && count_sparse(block, from + HEADER);
        return block->raw || block->halves || (block->width <= width_max && block->shift <= shift_max);
}

static void write_elements(struct block *block, bool floats, const uint8_t *copy, uint8_t *element)
{
        if (block->raw) {
                memcpy(element, copy, block->n * sizeof(float));
                return;
        }
        if (block->sparse) {
                write_sparse(copy, block->n, element);
                return;
        }
        if (block->halves) {
                write_halves(copy, block->n, element);
                return;
        }
        take_bits(copy, block->n, block->width, block->v);
        if (floats)
                write_floats(block, element);
        else
                write_ints(block, element);
}

int mfl_unpack(bool floats, void *memory, size_t bytes, size_t packed, struct mfl_error *err)
{
        size_t unit = floats ? sizeof(float) : sizeof(int64_t), n = bytes / unit;
        uint8_t *to = memory, *end = to + bytes;
        const uint8_t *from = end - packed;
        mfl_assert(packed <= bytes && bytes % unit == 0);
        for (size_t at = 0; at < n; at += MFL_PACK_BLOCK) {
                struct block block = {.n = (unsigned)MFL_MIN(n - at, (size_t)MFL_PACK_BLOCK)};
                uint8_t copy[MFL_PACK_BLOCK * 8 + 8];
                if (!read_header(&block, floats, from, (size_t)(end - from)))
                        return invalid(at, err);
                size_t length = block_bytes(&block, unit);
                if (length > (size_t)(end - from) - HEADER)
                        return invalid(at, err);
                memcpy(copy, from + HEADER, length);
                memset(copy + length, 0, 8);
                from += HEADER + length;
                uint8_t *element = to + at * unit;
                if (element + block.n * unit > from)
                        return invalid(at, err);
                write_elements(&block, floats, copy, element);
        }
        return from == end ? 0 : invalid(n, err);
}
