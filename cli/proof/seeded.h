/* SPDX-License-Identifier: Apache-2.0 */
/* The seeded numbers of a proof; the same function as _hash in python/mfl_export.py. */
#ifndef MFL_CLI_PROOF_SEEDED_H
#define MFL_CLI_PROOF_SEEDED_H

#include <stdint.h>

/* The streams of a batch. */
#define MFL_PROOF_STREAM_INPUT(batch, input) (2u * (uint32_t)(input) + 100u * (uint32_t)(batch))
#define MFL_PROOF_STREAM_WEIGHTS(batch) (50u + 100u * (uint32_t)(batch))

/* Below 2^24. */
static inline uint32_t mfl_proof_hash(uint32_t seed, uint32_t stream, uint64_t i)
{
        uint32_t h = (uint32_t)(i * 2654435761u + (uint64_t)seed * 1000003u + (uint64_t)stream * 7919u);
        h ^= h >> 16;
        h *= 0x7FEB352Du;
        h ^= h >> 15;
        h *= 0x046CA68Bu;
        h ^= h >> 16;
        return h >> 8;
}

/* In [-1, 1). */
static inline double mfl_proof_uniform(uint32_t seed, uint32_t stream, uint64_t i)
{
        return mfl_proof_hash(seed, stream, i) / 8388608.0 - 1.0;
}

#endif
