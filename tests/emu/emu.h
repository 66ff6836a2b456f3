/* SPDX-License-Identifier: Apache-2.0 */
/* How tests steer the emulated device: the order of its work, what becomes of faults.
 *
 * The environment says the same for whole programs: MFL_EMU_ORDER (emu_kernel.h).
 */
#ifndef MFL_TESTS_EMU_H
#define MFL_TESTS_EMU_H

#include <stdbool.h>
#include <stdint.h>

enum mfl_emu_order {
        MFL_EMU_FORWARD,
        MFL_EMU_REVERSE,
        MFL_EMU_RANDOM,
};
void mfl_emu_set_order(enum mfl_emu_order order, uint64_t seed);

/* Faults no longer abort: the kernel ends, the context gets cudaErrorLaunchFailure, which stays until
 * cudaDeviceReset, and the text of the last fault can be read. */
void mfl_emu_set_trap(bool trap);
const char *mfl_emu_last_fault(void);

#endif
