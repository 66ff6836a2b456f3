/* SPDX-License-Identifier: Apache-2.0 */
/* How a version comes into service: private to this room. */
#ifndef MFL_SERVE_ENGINE_MODELS_LOAD_H
#define MFL_SERVE_ENGINE_MODELS_LOAD_H

#include "serve/engine/models.h"

/* The cache's note of what is served, again; no load is in progress. */
void mfl_model_note(struct mfl_model *model);
/* lane is served from now on, and `before` is the version before it. Both references are the model's. */
void mfl_model_switch(struct mfl_model *model, struct mfl_lane *lane, struct mfl_lane *before);
/* What mfl_model_withdraw asked for; no load is in progress. */
void mfl_model_take_out(struct mfl_model *model);
/* The model gives a reference back, when the lane has no requests any more. */
void mfl_model_retire(struct mfl_model *model, struct mfl_lane *lane);

#endif
