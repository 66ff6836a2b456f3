/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C (Castagnoli, RFC 3720 appendix B.4), the frames' checksum. Pure, any thread. */
#ifndef MFL_COMMON_BASE_CRC32C_H
#define MFL_COMMON_BASE_CRC32C_H

#include "common/base/base.h"

/* Continues crc, the checksum of earlier bytes (0: none), over data:
 *     mfl_crc32c(mfl_crc32c(0, "1234", 4), "56789", 5) == mfl_crc32c(0, "123456789", 9) == 0xE3069283.
 * data may be NULL when bytes is 0. */
uint32_t mfl_crc32c(uint32_t crc, const void *data, size_t bytes);

#endif
