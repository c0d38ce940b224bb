/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_KIND_H
#define INCIPIT_LOAD_KIND_H

/*
 * Kinds of requests, where a run has several: their times are told apart, since a mean of
 * long and short ones is nobody's.
 *
 *   mix         short, long-in, long-out
 *   interrupt   short-alone, long-alone: nothing else was under way. long-met: a short
 *               one came meanwhile. short-in-prefill, short-in-answer: came while a long
 *               one was under way, before and behind its first token. short-late: was
 *               meant to, but the long one had ended
 */

enum kind {
    KIND_NONE,
    KIND_SHORT,
    KIND_LONG_IN,
    KIND_LONG_OUT,
    KIND_SHORT_ALONE,
    KIND_SHORT_IN_PREFILL,
    KIND_SHORT_IN_ANSWER,
    KIND_SHORT_LATE,
    KIND_LONG_ALONE,
    KIND_LONG_MET,
    KINDS
};

/* "short-alone"; NULL for KIND_NONE. */
const char *kind_name(enum kind k);

#endif
