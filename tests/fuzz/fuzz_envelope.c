/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as an envelope: what is accepted has no text that steers a terminal, can be packed again, and as
 * a message survives the way there and back. */
#include "proto/wire.h"
#include "tests/lib/wire_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
        Mfl__Envelope *e;
        struct mfl_msg m, copy;
        struct mfl_error err;
        uint8_t *bytes;
        size_t n_bytes;
        char text[256];
        int r = mfl_wire_unpack(data, n, &e, &err);
        mfl_assert(r == 0 || r == MFL_INVALID || r == -ENOMEM);
        if (r)
                return 0;
        mfl_assert(wire_text_is_plain(&e->base));
        if (!mfl_wire_to_msg(e, &m, &err)) {
                mfl_msg_text(&m, text, sizeof text);
                if (!mfl_msg_copy(&m, &copy)) {
                        /* An operator's Hello and a text that was cut have no way back, so r may be
                         * MFL_INVALID. */
                        r = mfl_wire_pack_msg(
                                &copy, &(struct mfl_wire_extra){.job_text = "x"}, &bytes, &n_bytes, &err);
                        mfl_assert(r == 0 || r == MFL_INVALID || r == -ENOMEM);
                        if (!r)
                                free(bytes);
                        mfl_msg_deinit(&copy);
                }
                mfl_msg_deinit(&m);
        }
        r = mfl_wire_pack(e, &bytes, &n_bytes, &err);
        if (!r)
                free(bytes);
        mfl_wire_free(e);
        return 0;
}
