/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_GATEWAY_H
#define INCIPIT_GATEWAY_GATEWAY_H

/* The whole gateway: listeners, engines, cache and store on one event loop. */

#include "gateway/options.h"

/* Where options come from, for SIGHUP: puts them into `o`, which holds the defaults, and
 * checks them. An error names file and line. */
struct gateway_source {
    int (*load)(void *arg, struct options *o, struct err *e);
    void *arg;
};

/*
 * Runs until SIGTERM or SIGINT, then lets requests under way end (timeouts.drain). SIGHUP
 * reads the options again (docs/configuration.md). `o` has passed options_check(); it and
 * `source` are borrowed. Returns 0 after an orderly stop, or a negative ERR_ code after
 * logging why it could not start.
 */
int gateway_run(const struct options *o, const struct gateway_source *source);

#endif
