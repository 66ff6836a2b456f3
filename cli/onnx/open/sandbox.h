/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the child's rights away. sandbox.c uses libseccomp. sandbox_absent.c sets only limits: for builds
 * without libseccomp, and for sanitizers, which need more system calls. */
#ifndef MFL_CLI_ONNX_SANDBOX_H
#define MFL_CLI_ONNX_SANDBOX_H

#include "common/base/base.h"

/* From here on, the child may only use memory, read and write open files, receive descriptors, and exit. */
int mfl_sandbox_enter(struct mfl_error *err);
/* False if the address space can't be limited (sanitizers). */
extern const bool mfl_sandbox_limits_memory;

#endif
