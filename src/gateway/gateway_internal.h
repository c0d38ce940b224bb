/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_SRC_GATEWAY_GATEWAY_INTERNAL_H
#define INCIPIT_SRC_GATEWAY_GATEWAY_INTERNAL_H

/*
 * The gateway, inside. Files:
 *
 *     gateway.c         starts and stops
 *     gateway_parts.c   what is made from options: once, and when they change
 *     gateway_reload.c  SIGHUP
 */

#include "gateway/admin.h"
#include "gateway/gateway.h"

struct gateway {
    const struct options *o;  /* in effect */
    struct options *reloaded; /* the same, where they are not those of the start */
    const struct gateway_source *source;
    struct loop *loop;
    struct workers *workers;
    struct workers *names; /* for lookups: one may be long in coming */
    struct cache *cache;
    struct tenants *tenants;
    struct keys *keys;
    struct loop_timer tick;
    struct front *front, *admin_front;
    struct request_target **targets; /* one for each upstream */
    size_t n_targets;
    struct request_target **leaving; /* taken out, with requests or saves under way */
    size_t n_leaving;
    struct loop_timer leave;
    struct figures total;
    struct outlook *outlook; /* where it only observes */
    struct request_world requests;
    struct budget admin_memory; /* of bodies there */
    struct admin_world admin;
    struct admin_reloads reloads;
    struct warm *warm;
    struct loop_timer quiet, deadline;
    bool stopping;
    int result;
};

/* Secrets that options name. */
struct gateway_secrets {
    struct keys *keys;
    struct credential_digest admin_key;
    bool has_admin_key;
};

int gateway_read_secrets(const struct options *o, struct gateway_secrets *out,
                         struct err *e);

/* An upstream's; `authorization` keeps its key. */
int gateway_replica_options(const struct gateway *g, const struct options *o, size_t i,
                            char authorization[600], struct replica_options *out,
                            struct err *e);

struct request_target *gateway_target_new(struct gateway *g, const struct options *o,
                                          size_t i, struct err *e);
void gateway_target_free(struct request_target *t); /* NULL is allowed */

/* Of clients, or of the admin side. */
struct front_options gateway_front_options(struct gateway *g, bool admin);

/* What takes effect at once: g->o is new, and so are the secrets, which it takes over. */
void gateway_apply(struct gateway *g, const struct gateway_secrets *s);

void gateway_on_reload(void *arg);
void gateway_on_leave(void *arg); /* looks who can go */

#endif
