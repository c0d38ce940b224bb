/* SPDX-License-Identifier: MIT */
#include "load/levels.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define SLACK 1e-9 /* sums of tenths end a little beside their goal */

struct list {
    double low, high;
    double *out;
    size_t most, n;
};

static int add(struct list *l, double value, struct err *e)
{
    if (!(value >= l->low && value <= l->high))
        return err_set(e, ERR_INVALID, "%g is not from %g to %g", value, l->low, l->high);
    if (l->n == l->most)
        return err_set(e, ERR_LIMIT, "at most %zu steps", l->most);
    l->out[l->n++] = value;
    return 0;
}

/* A number without sign, and what follows it; false: none. */
static bool take_number(const char **text, double *value)
{
    char *end = NULL;
    if (!isdigit((unsigned char)**text))
        return false;
    /* "1..4" has no number "1." in it */
    size_t len = strspn(*text, "0123456789");
    if ((*text)[len] == '.' && isdigit((unsigned char)(*text)[len + 1]))
        len += 1 + strspn(*text + len + 1, "0123456789");
    char *copy = mem_dup(*text, len);
    *value = strtod(copy, &end);
    free(copy);
    *text += len;
    return true;
}

/* "1..16x2": what follows the first number. */
static int add_range(struct list *l, double from, const char *rest, struct err *e)
{
    double to = 0, by = 0;
    char how = '\0';
    bool good = strncmp(rest, "..", 2) == 0;
    if (good) {
        rest += 2;
        good = take_number(&rest, &to);
    }
    if (good) {
        how = *rest++;
        good = (how == 'x' || how == '+') && take_number(&rest, &by) && *rest == '\0';
    }
    if (!good)
        return err_set(e, ERR_INVALID, "no number, and no range like 1..16x2 or 2..10+2");
    if (to < from || by <= (how == 'x' ? 1 : 0))
        return err_set(e, ERR_INVALID, "a range goes up");
    int rc = 0;
    for (double at = from; rc == 0 && at <= to * (1 + SLACK);
         at = how == 'x' ? at * by : at + by)
        rc = add(l, at > to ? to : at, e);
    return rc;
}

static int take_word(struct list *l, const char *word, struct err *e)
{
    double value = 0;
    const char *rest = word;
    int rc = 0;
    if (!take_number(&rest, &value))
        rc = err_set(e, ERR_INVALID, "no number");
    else if (*rest == '\0')
        rc = add(l, value, e);
    else
        rc = add_range(l, value, rest, e);
    return rc ? err_wrap(e, "\"%s\"", word) : 0;
}

int levels_parse(const char *text, double low, double high, double *out, size_t most,
                 size_t *n, struct err *e)
{
    char *copy = mem_strdup(text), *rest = copy;
    struct list l = {.low = low, .high = high, .out = out, .most = most};
    int rc = 0;
    while (rc == 0 && rest)
        rc = take_word(&l, strsep(&rest, ","), e);
    free(copy);
    *n = l.n;
    return rc;
}
