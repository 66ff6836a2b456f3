/* SPDX-License-Identifier: Apache-2.0 */
/* Text from strangers, made safe to show: the function that cleans it, and the checks behind it.
 *
 * Text of a peer, a file or a database ends up on terminals, in logs, pages and labels. There a control
 * character steers the terminal (ESC ] 52 sets the clipboard), a newline forges a log line, and a mark of
 * direction (U+202E) reverses what follows, so that a reader sees something other than the content:
 * https://www.unicode.org/reports/tr36/, https://trojansource.codes. Each such character is replaced by '?', which
 * shows that something was there and never makes a text longer. Names that identify things are refused instead
 * (mfl_plain_name): two different names must not look alike.
 *
 * These are strange: bytes that are not UTF-8; control characters (C0, DEL, C1); marks, embeddings, overrides and
 * isolates of direction; line and paragraph separators; characters without width that join nothing (zero-width space,
 * word joiner and the invisible operators, the byte order mark, interlinear annotations, tags). Joiners (U+200C,
 * U+200D) and variation selectors stay: Persian, Indic scripts and emoji are written with them. Pure; any thread.
 */
#ifndef MFL_COMMON_BASE_PLAIN_H
#define MFL_COMMON_BASE_PLAIN_H

#include "common/base/base.h"

/* Bytes of the character that s begins with, and its code; 0: it is not UTF-8 (RFC 3629: no overlong forms,
 * no surrogates, nothing above U+10FFFF), or s is empty. */
size_t mfl_plain_character(const char *s, uint32_t *ret_code);
bool mfl_plain_utf8(const char *text);

/* Strange as above; `lines`: newlines and tabs are not. */
bool mfl_plain_strange(uint32_t code, bool lines);

/* The first strange character of text, or NULL. *ret_code: its code point, or the byte's value when it is not UTF-8. */
const char *mfl_plain_find(const char *text, bool lines, uint32_t *ret_code);
/* Replaces each strange character, and each byte that is not UTF-8, by '?', in place. */
void mfl_plain_clean(char *text, bool lines);

/* Whether a text may identify something: printable ASCII, no blank at either end. The empty text may. */
bool mfl_plain_name(const char *text);

#endif
