/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C by ISA-L, which picks the processor's instructions; the only file that includes ISA-L. */
#include "common/base/crc32c.h"

#include <isa-l/crc.h>

uint32_t mfl_crc32c(uint32_t crc, const void *data, size_t bytes)
{
        /* ISA-L leaves the inversion before and after to the caller, and takes an int as length. */
        const size_t step_max = (size_t)1 << 30;
        unsigned char *p = (unsigned char *)(uintptr_t)data;
        crc = ~crc;
        while (bytes) {
                size_t step = MFL_MIN(bytes, step_max);
                crc = crc32_iscsi(p, (int)step, crc);
                p += step;
                bytes -= step;
        }
        return ~crc;
}
