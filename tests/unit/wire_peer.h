/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_TESTS_WIRE_PEER_H
#define INCIPIT_TESTS_WIRE_PEER_H

/*
 * A scripted other side for the tests of wire: a thread with plain blocking sockets that
 * does one step after the other. What it sees of the tested side (bytes, a close) makes
 * it go on; nothing waits for time.
 */

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

#include "base/buf.h"
#include "io/addr.h"
#include "io/loop.h"

enum peer_op {
    PEER_END,        /* of the script */
    PEER_ACCEPT,     /* the next connection is the current one; those before stay open */
    PEER_CONNECT,    /* the same for a client */
    PEER_READ_HEAD,  /* up to the next empty line */
    PEER_READ,       /* n bytes, as far as they come */
    PEER_READ_END,   /* until the other side closes; a reset is no end */
    PEER_READ_RESET, /* until the other side resets */
    PEER_SEND,       /* text */
    PEER_FLOOD,      /* text, n times or until nothing of it is taken any more */
    PEER_FIN,        /* half-close */
    PEER_CLOSE,
    PEER_RESET,
    PEER_SAY,  /* ends peer_run(), and goes on */
    PEER_TELL, /* ends peer_await(), and goes on */
    PEER_WAIT  /* for peer_go() */
};

#define PEER_STEPS 24

struct peer_step {
    enum peer_op op;
    const char *text;
    size_t n;
};

struct peer {
    struct loop *loop;
    struct peer_step script[PEER_STEPS];
    struct addr at;
    int listening, stop, fd, fds[16];
    size_t n_fds;
    pthread_t thread;
    sem_t go, told;
    bool started, says, done; /* of the loop's thread */
    const char *failed;       /* a step that did not do as told */
    struct buf seen;          /* all that was read; look when it has ended or said so */
};

/* Listens at 127.0.0.1 (for scripts that accept), or will connect to `to`. */
void peer_listen(struct peer *p, struct loop *l);
void peer_client(struct peer *p, struct loop *l, const struct addr *to);

/* Copies the steps, not their texts. */
void peer_start(struct peer *p, const struct peer_step *script);
void peer_go(struct peer *p);

/* Waits while the loop stands still. */
void peer_await(struct peer *p);

/* Runs the loop until the script has ended or says something. */
void peer_run(struct peer *p);

/* Runs until the script has ended, checks that it went as written, and frees. The tested
 * side has gone: a step that waits for it (as after a test that failed) waits no longer. */
void peer_finish(struct peer *p);

/* Text that was read. */
const char *peer_seen(struct peer *p);

#endif
