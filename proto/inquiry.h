/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of inquiries' messages (mfl.proto, INQUIRIES), and the lengths of exact sums in them (common/stats/wide.h). */
#ifndef MFL_PROTO_INQUIRY_H
#define MFL_PROTO_INQUIRY_H

#define MFL_INQUIRY_PIECE_MAX (256 * 1024) /* bytes of InquiryModel.data */
#define MFL_INQUIRY_SITES_MAX 4096
#define MFL_STATS_FEATURES_MAX 3000
#define MFL_STATS_LABELS_MAX 1000
#define MFL_STATS_BINS_MAX 50000 /* counts of all features together: an answer must fit into an envelope */
#define MFL_STATS_SUM_BYTES 40
#define MFL_STATS_SQUARES_BYTES 76

#endif
