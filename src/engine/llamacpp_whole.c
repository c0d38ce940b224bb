/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * States that cannot be cut: what recurrent layers hand on from token to token is of use
 * behind exactly the tokens that it was saved behind, and of layers with a sliding window
 * a file has only what the next token looks back to. Such a state is kept as the engine
 * wrote it, in one block, and put back only for prompts that begin with all of its text.
 *
 *     blocks of a cut state   root ─ [64 tokens] ─ [64 tokens] ─ …    named by tokens
 *     whole states            root ─┬ [state]                         named by text
 *                                   └ [state]
 *
 * In the place of token ids such a block has words that say which text it is: hash and
 * second hash of its last piece. So tree, store and recovery treat it as any other block
 * of block_tokens tokens, and its name can be made of a prompt before anything is read.
 *
 * Texts that go on are chats: the template closes the answer and goes on behind it. The
 * prompt of a chat alone is none, for templates end it with the head of the answer.
 */

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { WORDS = 6 }; /* of a name; the rest of the block's words are 0 */

struct hash128 llama_whole_name(const struct llama *l, struct hash128 kv_root,
                                const struct piece *end, uint32_t *words)
{
    const uint32_t bt = cache_block_tokens(l->r->cache);
    const uint64_t v[WORDS / 2] = {end->hash.lo, end->hash.hi, end->check};
    memset(words, 0, bt * sizeof(*words));
    for (size_t i = 0; i < WORDS; i++)
        words[i] = (uint32_t)(v[i / 2] >> (i % 2 * 32));
    return chain_block(cache_key(l->r->cache), kv_root, words, bt);
}

/* Tokens before a boundary; 0: not known any more. */
static uint32_t tokens_before(struct llama *l, const struct piece *end)
{
    struct index_record r;
    if (!index_export(cache_index(l->r->cache), end, 0, &r))
        return 0;
    return r.low + (r.high - r.low) / 2;
}

uint32_t llama_whole_find(struct llama *l, const struct lesson *text,
                          struct tree_mark *at, size_t *n_pieces)
{
    struct cache *c = l->r->cache;
    uint32_t *words = mem_array(cache_block_tokens(c), sizeof(*words));
    uint32_t tokens = 0;
    for (size_t i = text->n; i > 0 && !tokens; i--) {
        const struct piece *end = &text->v[i - 1];
        if (!end->ends_part)
            continue;
        const struct hash128 name = llama_whole_name(l, text->kv_root, end, words);
        if (tree_match(cache_tree(c), &name, 1, words, at) &&
            cache_restorable(c, at, 1) > 0)
            tokens = tokens_before(l, end);
        if (tokens)
            *n_pieces = i;
        else
            tree_mark_clear(cache_tree(c), at);
    }
    free(words);
    return tokens;
}

/* It holds other tokens than its text has now: a template that changes what was said. */
void llama_whole_drop(struct llama *l, const struct job *job)
{
    struct tree_mark at = {0};
    struct lesson text = {.v = job->pieces->v,
                          .n = job->plan.known_pieces,
                          .kv_root = llama_kv_root(l, job)};
    size_t n_pieces;
    if (llama_whole_find(l, &text, &at, &n_pieces))
        tree_drop(cache_tree(l->r->cache), &at);
    tree_mark_clear(cache_tree(l->r->cache), &at);
}

bool llama_whole_ends(const struct job *job)
{
    const enum prompt_api api = job->prompt->api;
    return (api == PROMPT_CHAT || api == PROMPT_MESSAGES) &&
           job->pieces->n > job->n_prompt_pieces &&
           job->pieces->v[job->pieces->n - 1].ends_part;
}

bool llama_whole_long(const struct llama *l, uint32_t tokens)
{
    return !l->window || tokens > l->window + 1; /* one token less may be in the slot */
}

uint64_t llama_state_bytes(const struct llama *l, uint32_t tokens)
{
    const struct whole_size *w = &l->whole_size;
    if (!l->whole)
        return slotfile_size(l->frame, tokens);
    return (uint64_t)(w->bytes + fmax(0, tokens - w->tokens) * w->token_bytes);
}

void llama_whole_learn_size(struct llama *l, uint64_t bytes, uint32_t tokens)
{
    struct whole_size *w = &l->whole_size;
    if (tokens > w->tokens)
        w->token_bytes = fmax(0, ((double)bytes - w->bytes) / (tokens - w->tokens));
}
