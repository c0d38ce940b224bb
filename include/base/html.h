/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_HTML_H
#define INCIPIT_BASE_HTML_H

/* Foreign text inside a page (HTML, and SVG within it): it stays text, whatever it is. */

#include "base/buf.h"
#include "base/slice.h"

/* As content of an element or between the quotes of an attribute: & < > " ' become
 * references; control characters other than tab and line feed, and what is no UTF-8,
 * become U+FFFD. */
void html_text(struct slice text, struct buf *out);

/* The same, at most `most` bytes of it (not inside a character), then an ellipsis. */
void html_text_cut(struct slice text, size_t most, struct buf *out);

/* JSON as content of a script element, which it must not end. */
void html_json(struct slice json, struct buf *out);

#endif
