/* SPDX-License-Identifier: Apache-2.0 */
/* What the child may still do once it has taken its rights away. sandbox.c uses libseccomp; sandbox_absent.c
 * is for builds without it, and for sanitizers, which need more system calls than a parser: limits only. */
#ifndef MFL_CLI_ONNX_SANDBOX_H
#define MFL_CLI_ONNX_SANDBOX_H

#include "common/base.h"

/* From here on: memory, reading and writing what is open, receiving descriptors, ending. */
int mfl_sandbox_enter(struct mfl_error *err);
/* False where an address space can't be limited (sanitizers). */
extern const bool mfl_sandbox_limits_memory;

#endif
