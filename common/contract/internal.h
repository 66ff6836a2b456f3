/* SPDX-License-Identifier: Apache-2.0 */
/* The names that a contract's text uses; private to common/contract. */
#ifndef MFL_COMMON_CONTRACT_INTERNAL_H
#define MFL_COMMON_CONTRACT_INTERNAL_H

#include "common/contract/contract.h"

extern const char *const mfl_contract_types[];  /* by enum mfl_dtype, then NULL */
extern const char *const mfl_contract_tokens[]; /* by enum mfl_token_kind, then NULL */
extern const char *const mfl_contract_losses[]; /* by enum mfl_loss_kind, then NULL */

#endif
