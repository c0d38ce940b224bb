/* SPDX-License-Identifier: MIT */

/*
 * Where the time goes in a chat body: it is nearly all strings. So
 *
 *   1. the encoding is checked once for the whole text, 32 ASCII bytes at a step;
 *   2. strings are looked at 64 bytes at a time as bit masks,
 *
 *          text       say \"hi\" and…
 *          quote      .....1...1.....
 *          backslash  ....1...1......      one bit a byte, so a block without quote,
 *          control    ...............      backslash and control costs one test,
 *
 *      and a block with escapes costs some arithmetic on the masks;
 *   3. everything else (brackets, numbers, white space) is a small state machine.
 *
 * The state says what may come next. A bit a level says whether the level is an object,
 * which is all that a stack has to remember.
 */

#include "proto/jlex.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define BLOCK 64

enum state {
    STATE_VALUE,       /* a value must come */
    STATE_FIRST_VALUE, /* a value or the end of the array */
    STATE_FIRST_KEY,   /* a key or the end of the object */
    STATE_AFTER,       /* a comma or the end of the level; on the top level the end */
    STATE_FAILED
};

/* ---- encoding ---------------------------------------------------------------------- */

static bool is_tail(const unsigned char *p)
{
    return (*p & 0xC0) == 0x80;
}

/* Length of the UTF-8 sequence at `p`, which is no ASCII; 0 where it is not valid. */
static size_t sequence_len(const unsigned char *p, size_t left)
{
    if (p[0] >= 0xE1 && p[0] <= 0xEF && p[0] != 0xED)
        return left >= 3 && is_tail(p + 1) && is_tail(p + 2) ? 3 : 0;
    if (p[0] >= 0xC2 && p[0] <= 0xDF)
        return left >= 2 && is_tail(p + 1) ? 2 : 0;
    if (p[0] == 0xE0 || p[0] == 0xED) /* no overlong forms; no surrogates */
        return left >= 3 && is_tail(p + 1) && is_tail(p + 2) &&
                       (p[0] == 0xE0) == (p[1] >= 0xA0)
                   ? 3
                   : 0;
    if (p[0] >= 0xF0 && p[0] <= 0xF4)
        return left >= 4 && is_tail(p + 1) && is_tail(p + 2) && is_tail(p + 3) &&
                       (p[0] != 0xF0 || p[1] >= 0x90) && (p[0] != 0xF4 || p[1] < 0x90)
                   ? 4
                   : 0;
    return 0;
}

/* Number of ASCII bytes at the front, in whole steps of 32. */
static size_t ascii_steps(const unsigned char *p, size_t len)
{
    size_t at = 0;
    for (; len - at >= 32; at += 32) {
        uint64_t w[4];
        memcpy(w, p + at, sizeof w);
        if ((w[0] | w[1] | w[2] | w[3]) & 0x8080808080808080ULL)
            break;
    }
    return at;
}

/* Offset of the first byte that is not UTF-8; the length where all is. */
static size_t utf8_valid_len(struct slice text)
{
    const unsigned char *p = (const unsigned char *)text.ptr;
    size_t at = 0;
    while (at < text.len) {
        if (p[at] < 0x80) {
            const size_t steps = ascii_steps(p + at, text.len - at);
            at += steps;
            /* Less than a step, or a step with something else in it. */
            while (at < text.len && p[at] < 0x80)
                at++;
            continue;
        }
        const size_t n = sequence_len(p + at, text.len - at);
        if (n == 0)
            return at;
        at += n;
    }
    return at;
}

/* ---- strings ----------------------------------------------------------------------- */

/* 64 bytes as bit masks; bit i belongs to byte i. */
struct masks {
    uint64_t quote, backslash, control;
};

#ifdef __SSE2__
static uint64_t mask16(__m128i hits, int shift)
{
    return (uint64_t)(uint32_t)_mm_movemask_epi8(hits) << shift;
}

static struct masks block_masks(const char *p)
{
    const __m128i quote = _mm_set1_epi8('"');
    const __m128i backslash = _mm_set1_epi8('\\');
    const __m128i highest = _mm_set1_epi8(0x1F);
    struct masks m = {0, 0, 0};
    for (int i = 0; i < BLOCK; i += 16) {
        const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(p + i));
        m.quote |= mask16(_mm_cmpeq_epi8(v, quote), i);
        m.backslash |= mask16(_mm_cmpeq_epi8(v, backslash), i);
        m.control |= mask16(_mm_cmpeq_epi8(_mm_min_epu8(v, highest), v), i);
    }
    return m;
}

static __m128i is_byte(__m128i v, char c)
{
    return _mm_cmpeq_epi8(v, _mm_set1_epi8(c));
}

/* Which bytes make an escape of two bytes behind a backslash; which are a "u". */
static void block_letters(const char *p, uint64_t *letters, uint64_t *us)
{
    *letters = *us = 0;
    for (int i = 0; i < BLOCK; i += 16) {
        const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(p + i));
        const __m128i a = _mm_or_si128(is_byte(v, '"'), is_byte(v, '\\'));
        const __m128i b = _mm_or_si128(is_byte(v, '/'), is_byte(v, 'b'));
        const __m128i c = _mm_or_si128(is_byte(v, 'f'), is_byte(v, 'n'));
        const __m128i d = _mm_or_si128(is_byte(v, 'r'), is_byte(v, 't'));
        *letters |= mask16(_mm_or_si128(_mm_or_si128(a, b), _mm_or_si128(c, d)), i);
        *us |= mask16(is_byte(v, 'u'), i);
    }
}

/* Is there a quote, backslash or control in these 64 bytes? Cheaper than the masks. */
static bool block_plain(const char *p)
{
    const __m128i quote = _mm_set1_epi8('"');
    const __m128i backslash = _mm_set1_epi8('\\');
    const __m128i highest = _mm_set1_epi8(0x1F);
    __m128i any = _mm_setzero_si128();
    for (int i = 0; i < BLOCK; i += 16) {
        const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(p + i));
        any = _mm_or_si128(
            any, _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, backslash)));
        any = _mm_or_si128(any, _mm_cmpeq_epi8(_mm_min_epu8(v, highest), v));
    }
    return _mm_movemask_epi8(any) == 0;
}
#else
static struct masks block_masks(const char *p)
{
    struct masks m = {0, 0, 0};
    for (int i = 0; i < BLOCK; i++) {
        m.quote |= (uint64_t)(p[i] == '"') << i;
        m.backslash |= (uint64_t)(p[i] == '\\') << i;
        m.control |= (uint64_t)((unsigned char)p[i] < 0x20) << i;
    }
    return m;
}

static void block_letters(const char *p, uint64_t *letters, uint64_t *us)
{
    *letters = *us = 0;
    for (int i = 0; i < BLOCK; i++) {
        *letters |= (uint64_t)(p[i] != '\0' && strchr("\"\\/bfnrt", p[i]) != NULL) << i;
        *us |= (uint64_t)(p[i] == 'u') << i;
    }
}

static bool block_plain(const char *p)
{
    unsigned any = 0;
    for (int i = 0; i < BLOCK; i++)
        any |= (unsigned)(p[i] == '"') | (unsigned)(p[i] == '\\') |
               (unsigned)((unsigned char)p[i] < 0x20);
    return any == 0;
}
#endif

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
        return (c | 0x20) - 'a' + 10;
    return -1;
}

/* The four digits at `p`; -1 where one is none. */
static int32_t hex4(const char *p)
{
    const int a = hex_digit(p[0]), b = hex_digit(p[1]);
    const int c = hex_digit(p[2]), d = hex_digit(p[3]);
    return (a | b | c | d) < 0 ? -1 : a << 12 | b << 8 | c << 4 | d;
}

/* What a one-letter escape stands for; 0 where there is no such escape. */
static const char escape_value[256] = {
    ['"'] = '"',  ['\\'] = '\\', ['/'] = '/',  ['b'] = '\b',
    ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r', ['t'] = '\t',
};

/*
 * The \uXXXX escape at `p` (a pair of them for letters beyond 0xFFFF). Returns its
 * length and the code point; 0 and a reason where it is not valid.
 */
static size_t unicode_escape(const char *p, size_t left, uint32_t *code, const char **why)
{
    const int32_t first = left >= 6 ? hex4(p + 2) : -1;
    *why = "bad escape";
    if (first < 0)
        return 0;
    *code = (uint32_t)first;
    if (first < 0xD800 || first > 0xDFFF)
        return 6;
    *why = "lone surrogate";
    if (first > 0xDBFF || left < 12 || p[6] != '\\' || p[7] != 'u')
        return 0;
    const int32_t second = hex4(p + 8);
    if (second < 0xDC00 || second > 0xDFFF)
        return 0;
    *code = 0x10000 + ((uint32_t)(first - 0xD800) << 10) + (uint32_t)(second - 0xDC00);
    return 12;
}

/* Length of the escape at `p`; 0 and a reason where it is not valid. */
static size_t escape_len(const char *p, size_t left, const char **why)
{
    uint32_t code;
    if (left >= 2 && p[1] == 'u')
        return unicode_escape(p, left, &code, why);
    *why = "bad escape";
    return left >= 2 && escape_value[(unsigned char)p[1]] ? 2 : 0;
}

struct string_scan {
    size_t end; /* of the inside: the closing quote, or where the text or sense ends */
    bool escaped;
    const char *why; /* NULL: a quote or the end of the text was reached */
};

/*
 * Walks the special bytes of the 64 at `p`, which `left` bytes of text follow. Returns
 * true where the string ends in here (s->end is set), else how far it got in *next.
 */
static bool block_walk(const char *p, size_t left, struct masks m, struct string_scan *s,
                       size_t *next)
{
    uint64_t special = m.quote | m.backslash | m.control;
    *next = BLOCK;
    while (special) {
        const unsigned i = (unsigned)__builtin_ctzll(special);
        s->end = i;
        if (i >= left || p[i] == '"')
            return true;
        if (p[i] != '\\') {
            s->why = "control character in a string";
            return true;
        }
        const size_t n = escape_len(p + i, left - i, &s->why);
        if (n == 0)
            return true;
        s->why = NULL;
        s->escaped = true;
        if (i + n >= BLOCK) {
            *next = i + n;
            return false;
        }
        special &= ~0ULL << (i + n);
    }
    return false;
}

/* Which bytes stand behind a backslash that is not itself behind one. */
static uint64_t escaped_bytes(uint64_t backslash)
{
    const uint64_t even = 0x5555555555555555ULL;
    const uint64_t behind = backslash << 1;
    /* Adding a run of ones to its first bit carries to the bit behind the run; whether
     * that has the parity of the start tells whether the run's length is odd. */
    const uint64_t odd_starts = backslash & ~even & ~behind;
    const uint64_t odd_ends = (odd_starts + backslash) << 1;
    return (even ^ odd_ends) & behind;
}

/*
 * Checks the \u escapes among the 64 bytes at `p`; bit i of `us` is the letter. Returns
 * how far the last one reaches, if that is beyond the block, else BLOCK; 0 and a reason
 * where one is not valid.
 */
static size_t block_unicode(const char *p, size_t left, uint64_t us,
                            struct string_scan *s)
{
    while (us) {
        uint32_t code;
        const char *why;
        const size_t start = (size_t)__builtin_ctzll(us) - 1;
        const size_t n = unicode_escape(p + start, left - start, &code, &why);
        if (n == 0) {
            s->end = start;
            s->why = why;
            return 0;
        }
        if (start + n >= BLOCK)
            return start + n;
        us &= ~0ULL << (start + n); /* the second half of a pair is done, too */
    }
    return BLOCK;
}

/*
 * All of the 64 bytes at `p` at once. Returns false where an escape is wrong, for
 * block_walk() to say which. *next is 0 where the string ends.
 */
static bool block_whole(const char *p, size_t left, struct masks m, struct string_scan *s,
                        size_t *next)
{
    uint64_t letters, us;
    const uint64_t escaped = escaped_bytes(m.backslash);
    block_letters(p, &letters, &us);
    if (escaped & ~(letters | us))
        return false;
    const uint64_t stop = (m.quote & ~escaped) | m.control;
    const uint64_t before = stop ? (stop & -stop) - 1 : ~0ULL;
    s->escaped = s->escaped || (m.backslash & before);
    *next = block_unicode(p, left, escaped & us & before, s);
    if (*next == 0 || stop == 0) {
        /* A backslash at the end belongs to the next block. */
        if (*next == BLOCK)
            *next -= (m.backslash & ~escaped) >> (BLOCK - 1);
        return true;
    }
    s->end = (size_t)__builtin_ctzll(stop);
    if (m.control & stop & -stop)
        s->why = "control character in a string";
    *next = 0;
    return true;
}

/* From `p`, just behind an opening quote, to the closing one. Offsets are from `p`. */
static struct string_scan string_scan(const char *p, size_t len)
{
    struct string_scan s = {0, false, NULL};
    size_t at = 0, next;
    while (len - at >= BLOCK) {
        if (block_plain(p + at)) {
            at += BLOCK;
            continue;
        }
        const struct masks m = block_masks(p + at);
        /* An escape may reach beyond the block, hence the whole rest as `left`. */
        if (!block_whole(p + at, len - at, m, &s, &next) &&
            block_walk(p + at, len - at, m, &s, &next))
            next = 0;
        if (next == 0) {
            s.end += at;
            return s;
        }
        at += next;
    }
    char last[BLOCK] = {0}; /* the zeros are controls and stop the walk */
    memcpy(last, p + at, len - at);
    const bool ended = block_walk(last, len - at, block_masks(last), &s, &next);
    assert(ended);
    s.end += at;
    return s;
}

bool jlex_inside_ok(struct slice inside)
{
    if (inside.len == 0)
        return true;
    if (utf8_valid_len(inside) != inside.len)
        return false;
    const struct string_scan s = string_scan(inside.ptr, inside.len);
    return !s.why && s.end == inside.len;
}

/* ---- decoding ---------------------------------------------------------------------- */

static size_t utf8_put(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

/* Decodes the escape at `p`; returns its length and adds to *n what was written. */
static size_t decode_escape(const char *p, size_t left, char *out, size_t *n)
{
    if (p[1] != 'u') {
        out[(*n)++] = escape_value[(unsigned char)p[1]];
        return 2;
    }
    const char *why;
    uint32_t code;
    const size_t len = unicode_escape(p, left, &code, &why);
    assert(len > 0);
    *n += utf8_put(out + *n, code);
    return len;
}

/* Copies 16 bytes whatever they are and returns how many come before a backslash. */
static size_t copy16(const char *p, char *out)
{
#ifdef __SSE2__
    const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
    _mm_storeu_si128((__m128i *)(void *)out, v);
    const int hits = _mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_set1_epi8('\\')));
    return hits ? (size_t)__builtin_ctz((unsigned)hits) : 16;
#else
    memcpy(out, p, 16);
    const char *hit = memchr(p, '\\', 16);
    return hit ? (size_t)(hit - p) : 16;
#endif
}

size_t jlex_decode(struct slice *in, char *out, size_t cap)
{
    const char *p = in->ptr;
    size_t at = 0, n = 0;
    while (at < in->len && n + JLEX_DECODE_ROOM <= cap) {
        if (in->len - at >= 16) {
            const size_t plain = copy16(p + at, out + n);
            at += plain;
            n += plain;
            if (plain == 16)
                continue;
        }
        if (p[at] == '\\')
            at += decode_escape(p + at, in->len - at, out, &n);
        else
            out[n++] = p[at++];
    }
    *in = slice_make(p + at, in->len - at);
    return n;
}

struct slice jlex_raw(const struct jlex *j, const struct jlex_token *t)
{
    const size_t quote = t->type == JLEX_KEY || t->type == JLEX_STRING;
    return slice_make(j->text.ptr + t->start + quote, t->end - t->start - 2 * quote);
}

struct slice jlex_text(const struct jlex *j, const struct jlex_token *t, char *tmp,
                       size_t cap)
{
    struct slice rest = jlex_raw(j, t);
    if (!t->escaped)
        return rest;
    const size_t n = jlex_decode(&rest, tmp, cap);
    return rest.len ? slice_make(NULL, 0) : slice_make(tmp, n);
}

/* ---- numbers ----------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t digits(const struct jlex *j, size_t at)
{
    while (at < j->text.len && is_digit(j->text.ptr[at]))
        at++;
    return at;
}

static bool has(const struct jlex *j, size_t at, char a, char b)
{
    return at < j->text.len && (j->text.ptr[at] == a || j->text.ptr[at] == b);
}

/* End of the number at `at`, or 0 where it is none. */
static size_t number_end(const struct jlex *j, size_t at)
{
    if (has(j, at, '-', '-'))
        at++;
    size_t end = digits(j, at);
    if (end == at || (j->text.ptr[at] == '0' && end > at + 1))
        return 0;
    if (has(j, end, '.', '.')) {
        at = end + 1;
        end = digits(j, at);
        if (end == at)
            return 0;
    }
    if (has(j, end, 'e', 'E')) {
        at = end + 1;
        if (has(j, at, '+', '-'))
            at++;
        end = digits(j, at);
        if (end == at)
            return 0;
    }
    return end;
}

bool jlex_int(const struct jlex *j, const struct jlex_token *t, int64_t *out)
{
    const struct slice s = jlex_raw(j, t);
    const bool negative = s.len > 0 && s.ptr[0] == '-';
    int64_t v = 0;
    if (t->type != JLEX_NUMBER)
        return false;
    for (size_t i = negative; i < s.len; i++) {
        if (!is_digit(s.ptr[i]) || __builtin_mul_overflow(v, 10, &v) ||
            __builtin_sub_overflow(v, s.ptr[i] - '0', &v))
            return false;
    }
    /* Counted downwards, because the lowest number has no positive twin. */
    if (!negative && v == INT64_MIN)
        return false;
    *out = negative ? v : -v;
    return true;
}

bool jlex_double(const struct jlex *j, const struct jlex_token *t, double *out)
{
    char text[64];
    const struct slice s = jlex_raw(j, t);
    if (t->type != JLEX_NUMBER || s.len >= sizeof text)
        return false;
    memcpy(text, s.ptr, s.len);
    text[s.len] = '\0';
    *out = strtod(text, NULL);
    return isfinite(*out);
}

/* ---- tokens ------------------------------------------------------------------------ */

void jlex_init(struct jlex *j, struct slice text)
{
    j->text = text;
    j->why = NULL;
    j->why_at = 0;
    j->at = 0;
    j->state = STATE_VALUE;
    j->depth = 0;
    if (text.len >= 3 && memcmp(text.ptr, "\xEF\xBB\xBF", 3) == 0) {
        jlex_fail(j, "byte-order mark", 0);
        return;
    }
    const size_t valid = utf8_valid_len(text);
    if (valid != text.len)
        jlex_fail(j, "not UTF-8", valid);
}

bool jlex_fail(struct jlex *j, const char *why, size_t at)
{
    if (!j->why) {
        j->why = why;
        j->why_at = at;
    }
    j->state = STATE_FAILED;
    return false;
}

static enum jlex_type failed(struct jlex *j, struct jlex_token *t, const char *why)
{
    jlex_fail(j, why, j->at);
    t->start = t->end = j->at;
    t->escaped = false;
    return t->type = JLEX_ERROR;
}

static bool in_object(const struct jlex *j)
{
    const unsigned level = j->depth - 1;
    return j->objects[level / 64] >> (level % 64) & 1;
}

static void skip_space(struct jlex *j)
{
    while (j->at < j->text.len) {
        const char c = j->text.ptr[j->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return;
        j->at++;
    }
}

static enum jlex_type open_level(struct jlex *j, struct jlex_token *t,
                                 enum jlex_type type)
{
    if (j->depth == JLEX_MAX_DEPTH)
        return failed(j, t, "too deep");
    const uint64_t bit = 1ULL << (j->depth % 64);
    uint64_t *word = &j->objects[j->depth / 64];
    *word = type == JLEX_OBJECT ? *word | bit : *word & ~bit;
    j->depth++;
    j->state = type == JLEX_OBJECT ? STATE_FIRST_KEY : STATE_FIRST_VALUE;
    t->end = ++j->at;
    return t->type = type;
}

static enum jlex_type close_level(struct jlex *j, struct jlex_token *t)
{
    t->type = in_object(j) ? JLEX_OBJECT_END : JLEX_ARRAY_END;
    j->depth--;
    j->state = STATE_AFTER;
    t->end = ++j->at;
    return t->type;
}

static enum jlex_type read_string(struct jlex *j, struct jlex_token *t)
{
    const size_t inside = j->at + 1;
    const struct string_scan s = string_scan(j->text.ptr + inside, j->text.len - inside);
    j->at = inside + s.end;
    if (s.why)
        return failed(j, t, s.why);
    if (j->at >= j->text.len)
        return failed(j, t, "unfinished string");
    t->end = ++j->at;
    t->escaped = s.escaped;
    j->state = STATE_AFTER;
    return t->type = JLEX_STRING;
}

static bool holds_nul(struct slice escaped)
{
    return memmem(escaped.ptr, escaped.len, "\\u0000", 6) != NULL;
}

static enum jlex_type read_key(struct jlex *j, struct jlex_token *t)
{
    if (j->at >= j->text.len || j->text.ptr[j->at] != '"')
        return failed(j, t, "key expected");
    if (read_string(j, t) == JLEX_ERROR)
        return JLEX_ERROR;
    t->type = JLEX_KEY;
    /* May refuse the six letters behind an escaped backslash too: no loss. */
    if (t->escaped && holds_nul(jlex_raw(j, t)))
        return failed(j, t, "NUL in a key");
    skip_space(j);
    if (j->at >= j->text.len || j->text.ptr[j->at] != ':')
        return failed(j, t, "colon expected");
    j->at++;
    j->state = STATE_VALUE;
    return JLEX_KEY;
}

static enum jlex_type read_word(struct jlex *j, struct jlex_token *t, struct slice word,
                                enum jlex_type type)
{
    if (!slice_starts(slice_make(j->text.ptr + j->at, j->text.len - j->at), word))
        return failed(j, t, "value expected");
    t->end = j->at += word.len;
    j->state = STATE_AFTER;
    return t->type = type;
}

static enum jlex_type read_number(struct jlex *j, struct jlex_token *t)
{
    const size_t end = number_end(j, j->at);
    if (end == 0)
        return failed(j, t, "bad number");
    t->end = j->at = end;
    j->state = STATE_AFTER;
    return t->type = JLEX_NUMBER;
}

static enum jlex_type read_value(struct jlex *j, struct jlex_token *t)
{
    if (j->at >= j->text.len)
        return failed(j, t, "value expected");
    const char c = j->text.ptr[j->at];
    if (c == '"')
        return read_string(j, t);
    if (c == '{')
        return open_level(j, t, JLEX_OBJECT);
    if (c == '[')
        return open_level(j, t, JLEX_ARRAY);
    if (c == '-' || is_digit(c))
        return read_number(j, t);
    if (c == 't')
        return read_word(j, t, SLICE_LIT("true"), JLEX_TRUE);
    if (c == 'f')
        return read_word(j, t, SLICE_LIT("false"), JLEX_FALSE);
    return read_word(j, t, SLICE_LIT("null"), JLEX_NULL);
}

/* Behind a value: the end of everything, the end of the level, or a comma. */
static enum jlex_type read_after(struct jlex *j, struct jlex_token *t)
{
    const bool end = j->at >= j->text.len;
    if (j->depth == 0) {
        if (!end)
            return failed(j, t, "something behind the value");
        t->end = j->at;
        return t->type = JLEX_END;
    }
    if (end)
        return failed(j, t, "unfinished value");
    const char c = j->text.ptr[j->at];
    if (c == (in_object(j) ? '}' : ']'))
        return close_level(j, t);
    if (c != ',')
        return failed(j, t, "comma expected");
    j->at++;
    skip_space(j);
    t->start = j->at;
    return in_object(j) ? read_key(j, t) : read_value(j, t);
}

enum jlex_type jlex_next(struct jlex *j, struct jlex_token *t)
{
    skip_space(j);
    t->start = j->at;
    t->escaped = false;
    const char c = j->at < j->text.len ? j->text.ptr[j->at] : '\0';
    switch ((enum state)j->state) {
    case STATE_VALUE:
        return read_value(j, t);
    case STATE_FIRST_VALUE:
        return c == ']' ? close_level(j, t) : read_value(j, t);
    case STATE_FIRST_KEY:
        return c == '}' ? close_level(j, t) : read_key(j, t);
    case STATE_AFTER:
        return read_after(j, t);
    case STATE_FAILED:
        break;
    }
    return failed(j, t, "failed before");
}

bool jlex_skip(struct jlex *j, struct jlex_token *t)
{
    if (t->type != JLEX_OBJECT && t->type != JLEX_ARRAY)
        return t->type != JLEX_ERROR;
    const unsigned depth = j->depth - 1;
    struct jlex_token inner;
    do {
        if (jlex_next(j, &inner) == JLEX_ERROR)
            return false;
    } while (j->depth > depth);
    t->end = inner.end;
    return true;
}
