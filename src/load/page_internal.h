/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_PAGE_INTERNAL_H
#define INCIPIT_LOAD_PAGE_INTERNAL_H

/* Parts of a page: page.c puts them together. */

#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"
#include "load/plot.h"
#include "load/reading.h"

#define PAGE_ARMS 2
#define PAGE_TEXT 200   /* bytes of a text that is shown */
#define PAGE_MARKS 1500 /* marks of a drawing that are all drawn */
#define PAGE_DENSE 300  /* from here marks can be seen through */
#define PAGE_STEPS 200  /* of a curve */

enum page_column {
    PAGE_TTFT,
    PAGE_FIRST,
    PAGE_TOTAL,
    PAGE_GAP,
    PAGE_PLANNED_AT,
    PAGE_STARTED_AT,
    PAGE_SENT_AT,
    PAGE_FIRST_AT,
    PAGE_END_AT,
    PAGE_TURN,
    PAGE_AIMED,
    PAGE_SHARED,
    PAGE_PROMPT,
    PAGE_CACHED,
    PAGE_OUTPUT,
    PAGE_COLUMNS
};

/* What is told of the requests of an arm. */
struct page_arm {
    const json_t *json;
    char name[32];
    const char *look; /* its colour */
    size_t n;
    double *column[PAGE_COLUMNS]; /* n values each, NAN: not known */
    int *outcome;                 /* enum sample_outcome, -1: not known */
};

struct page {
    struct buf *out;
    const json_t *doc;
    const json_t *second;    /* of a comparison, else NULL; `doc` is merged then */
    const json_t *contrasts; /* NULL: none */
    const json_t *good;      /* difference of shares of good answers, NULL: none */
    const json_t *steps;     /* NULL: none */
    size_t n_arms;
    struct page_arm arm[PAGE_ARMS]; /* what requests are drawn of */
    char of[96]; /* which part of the run that is, behind "of "; "" for all of it */
};

/* ---- data (page_data.c) ------------------------------------------------------------ */

void page_load(struct page *p);
void page_unload(struct page *p);

/* Member of an object: NAN, or NULL, where it is not there or something else. Numbers
 * are held within ±PAGE_MOST. */
#define PAGE_MOST 1e12
double page_number(const json_t *o, const char *key);
const char *page_string(const json_t *o, const char *key);
double page_value(const json_t *v);

/* How many of an arm's values are known. */
size_t page_known(const struct page_arm *a, enum page_column c);

/* What a step was loaded with (NAN: not known), of what it is; both as "4 requests/s". */
double page_load_of(const json_t *step);
const char *page_load_words(const struct page *p);
#define PAGE_LOAD 64
void page_load_text(const struct page *p, const json_t *step, char out[PAGE_LOAD]);

/* Part of the prompt that was cached; NAN: not known. */
double page_reused(const struct page_arm *a, size_t i);

/* Two documents as one, a new reference (page_merge.c). */
json_t *page_merge(const json_t *a, const json_t *b, const json_t *comparison);

/* ---- markup (page_markup.c) -------------------------------------------------------- */

/* A cell of counts by name that are above 0. */
void page_counts(struct buf *out, json_t *counts);

/* Text of a document, cut. NULL is "not known". */
void page_text(struct buf *out, const char *text);

/* A section with its heading; figures and tables in it. */
void page_section(struct buf *out, const char *heading);
void page_section_end(struct buf *out);

/* Its name, where there are two. */
void page_arm_heading(struct buf *out, const struct page_arm *a);

/* A paragraph, escaped. */
void page_note(struct buf *out, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Columns are parted by "|"; the first is that of row names. */
void page_table(struct buf *out, const char *caption, const char *columns);
void page_facts(struct buf *out, const char *caption, const char *columns); /* texts */
void page_row(struct buf *out, const char *name);
void page_cell(struct buf *out, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void page_cell_number(struct buf *out, double value, int digits); /* NAN: "–" */
void page_row_end(struct buf *out);
void page_table_end(struct buf *out);

void page_keys(struct buf *out); /* a legend, of plot_key() */
void page_keys_end(struct buf *out);

/* "1,234"; "–" for NAN. */
#define PAGE_NUMBER 48
void page_format(double value, int digits, char out[PAGE_NUMBER]);

extern const char page_style[];

/* ---- parts ------------------------------------------------------------------------- */

void page_head(struct page *p);        /* what was measured, and its figures */
void page_conclusions(struct page *p); /* what follows from it, and what does not */
void page_contrasts(struct page *p);
void page_curve(struct page *p);
void page_prompts(struct page *p);
void page_spreads(struct page *p);
void page_timeline(struct page *p);
void page_reuse(struct page *p);
void page_output(struct page *p);
void page_resources(struct page *p);
void page_tables(struct page *p);

#endif
