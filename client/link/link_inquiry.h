/* SPDX-License-Identifier: Apache-2.0 */
/* The server's inquiries (mfl.proto, INQUIRIES): what the site allows is answered by the worker, between its tasks.
 *
 *     Inquiry -> policy -> [the model's params, piece by piece -> their digest] -> worker -> InquiryAnswer
 *
 * A lost connection ends the fetching of params, and the server asks again. What the worker has begun goes on; its answer is kept until the
 * server asks under the same number. Loop thread only. */
#ifndef MFL_CLIENT_LINK_LINK_INQUIRY_H
#define MFL_CLIENT_LINK_LINK_INQUIRY_H

#include "client/link/link_internal.h"

/* True: the frame was an inquiry's. */
bool mfl_link_inquiry_frame(struct mfl_link *link, const Mfl__Envelope *envelope);
void mfl_link_inquiry_cut(struct mfl_link *link); /* the connection is lost */
/* The link is closing: what runs is cancelled, and pending until it has ended. */
void mfl_link_inquiry_stop(struct mfl_link *link);

#endif
