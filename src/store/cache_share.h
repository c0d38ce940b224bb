/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_STORE_CACHE_SHARE_H
#define INCIPIT_STORE_CACHE_SHARE_H

/*
 * How gateways that share a Redis find what another one has computed:
 *
 *     cache_share.c     tells where the boundaries of a saved prompt lie
 *     cache_discover.c  finds the deepest boundary of a prompt that another has told
 *
 *     piece hash ──(place)──► sequence: token ids, boundaries ──(chain)──► blocks
 */

#include "cache_internal.h"
#include "store_redis.h"

/* Blocks that `tokens` fill, a short one at the end counted. */
static inline size_t cache_blocks_of(const struct cache *c, size_t tokens)
{
    return (tokens + c->o.block_tokens - 1) / c->o.block_tokens;
}

/* Tells the others of a lesson: at once where its blocks are new, otherwise only if they
 * do not know (any more). */
void cache_share_lesson(struct cache *c, struct hash128 fingerprint,
                        const struct index_lesson *lesson);

#endif
