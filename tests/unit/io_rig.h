/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_TESTS_IO_RIG_H
#define INCIPIT_TESTS_IO_RIG_H

/*
 * What the tests of io share: a real loop with a guard that fails a test which hangs,
 * real loopback sockets, and plain blocking peers.
 */

#include <stdbool.h>
#include <stddef.h>

#include "io/loop.h"

#define RIG_GUARD_MS 20000

/* Setup and teardown of a test: *state is the loop. */
int rig_up(void **state);
int rig_down(void **state);

/* Runs the loop for a while and returns the milliseconds of processor time that it took:
 * a loop that waits takes next to none, a loop that spins takes all. */
double rig_idle(struct loop *l, unsigned ms);

/* Two connected TCP sockets, blocking. */
void rig_pair(int fd[2]);

/* A listening TCP socket at 127.0.0.1 and its port. */
int rig_listen(int backlog, unsigned short *port);

/* The peer leaves with a reset. */
void rig_reset(int fd);

void rig_send_all(int fd, const void *bytes, size_t n);

/* Reads until `n` bytes or the end came; returns how many. */
size_t rig_read_all(int fd, void *bytes, size_t n);

/* Bytes that are the same for the same offset and do not repeat soon. */
void rig_pattern(char *bytes, size_t n, size_t offset);

#endif
