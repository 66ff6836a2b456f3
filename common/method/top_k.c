/* SPDX-License-Identifier: Apache-2.0 */
/* compression: {up: {top_k: SHARE}}: of each client's change only the largest elements are sent, and the rest is added to its next one
 * (common/codec/top_k.h). Any strategy that adds up clients' changes works with it; local training is that of the strategy. */
#include "common/method/method.h"

const struct mfl_method_ops mfl_method_top_k = {
        .feeds = true,
};
