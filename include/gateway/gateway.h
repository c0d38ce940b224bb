/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_GATEWAY_H
#define INCIPIT_GATEWAY_GATEWAY_H

/* The whole gateway: listeners, engines, cache and store on one event loop. */

#include "gateway/options.h"

/*
 * Runs until SIGTERM or SIGINT, then lets requests under way end (timeouts.drain). `o`
 * has passed options_check() and is borrowed. Returns 0 after an orderly stop, or a
 * negative ERR_ code after logging why it could not start.
 */
int gateway_run(const struct options *o);

#endif
