/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for Prometheus (https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4). Loop thread only. */
#ifndef MFL_SERVE_SHELL_METRICS_H
#define MFL_SERVE_SHELL_METRICS_H

#include "serve/engine/models.h"
#include "serve/follow/follow.h"
#include "serve/http/http.h"
#include "serve/shell/latency.h"

#define MFL_METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"
/* latency and follows: one for each model. */
void mfl_metrics_write(const struct mfl_http *http, const struct mfl_models *models,
        const struct mfl_latency *latency, const struct mfl_follow *follows, struct mfl_reply *reply);

#endif
