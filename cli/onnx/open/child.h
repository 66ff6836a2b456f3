/* SPDX-License-Identifier: Apache-2.0 */
/* What the parent and the sandboxed reader of an ONNX file say to each other, on a socket pair. Both ends run this program, so the
 * layout is the compiler's. The parent believes no size that the child tells. */
#ifndef MFL_CLI_ONNX_CHILD_H
#define MFL_CLI_ONNX_CHILD_H

#include "common/model/graph.h"

enum { MFL_ONNX_SAY_FILE = 1, MFL_ONNX_SAY_DONE, MFL_ONNX_SAY_FAILED };

/* The child's. After SAY_DONE come the text, the params, the proof, the parts and the contract. */
struct mfl_onnx_message {
        uint32_t kind;
        int32_t code, classes;
        struct mfl_shape input;
        uint64_t text_bytes, n, proof_bytes, parts_bytes, contract_bytes; /* of the last three 0: none */
        uint32_t own, described, said, log_softmax;
        char no_proof[256];
        char text[1024]; /* SAY_FILE: a name; SAY_FAILED: the error; SAY_DONE: notes */
};

/* What the parent says first. */
struct mfl_onnx_opening {
        char name[512]; /* of the file, for messages */
        uint32_t auxiliary, inference;
};

/* The child's descriptors. */
#define MFL_ONNX_FD_SOCKET 3
#define MFL_ONNX_FD_FILE 4

#endif
