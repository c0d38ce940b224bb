/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_PAGE_H
#define INCIPIT_LOAD_PAGE_H

/*
 * A report as one page (HTML) that stands alone: style and drawings (SVG) are inside,
 * nothing is loaded, no script runs; its policy forbids both. Everything a document holds
 * is escaped. A document may be damaged or from another version: what is missing is said
 * to be not known. The page is bounded (about a megabyte): many points are thinned, lists
 * cut, and it says so.
 */

#include <jansson.h>

#include "base/buf.h"

/* Of a document of report_json(). */
void page_report(const json_t *doc, struct buf *out);

/* Of two documents and what compare_documents() says of them. */
void page_comparison(const json_t *a, const json_t *b, const json_t *comparison,
                     struct buf *out);

#endif
