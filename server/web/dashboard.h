/* SPDX-License-Identifier: Apache-2.0 */
/* The dashboard's files, made into C by tools/embed.py. */
#ifndef MFL_SERVER_WEB_DASHBOARD_H
#define MFL_SERVER_WEB_DASHBOARD_H

#include "server/web/http.h"

extern const struct mfl_asset mfl_dashboard_assets[];
extern const size_t mfl_dashboard_n_assets;
/* The frame of every HTML page, terminated; "@TITLE@" and "@MAIN@" stand where a page's own parts go. */
extern const char mfl_dashboard_frame[];

#endif
