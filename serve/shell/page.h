/* SPDX-License-Identifier: Apache-2.0 */
/* The page where one drops an image or types a row and sees the answer: page.html, made into C by tools/embed.py. It holds no secret. */
#ifndef MFL_SERVE_SHELL_PAGE_H
#define MFL_SERVE_SHELL_PAGE_H

extern const char mfl_serve_page[];
/* What a browser lets it do: its own script and style, and requests to where it comes from. */
#define MFL_SERVE_PAGE_HEAD                                                                                  \
        "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src "                \
        "'unsafe-inline'; connect-src 'self'; img-src blob: data:; form-action 'none'; "                     \
        "frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"

#endif
