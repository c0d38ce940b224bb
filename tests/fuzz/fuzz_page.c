/* SPDX-License-Identifier: MIT */

/*
 * Documents of the bench from anywhere: one gives a page, two (the second behind a zero)
 * a comparison and its page. A page is bounded, and no tag of a document is in it.
 */

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "load/compare.h"
#include "load/page.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MOST ((size_t)8 << 20)

static void check_page(struct buf *page)
{
    const struct slice s = buf_slice(page);
    assert(s.len > 0 && s.len < MOST);
    assert(!memmem(s.ptr, s.len, "<script", 7) && !memmem(s.ptr, s.len, "<XSS", 4));
    buf_free(page);
}

static void compare(const json_t *a, const json_t *b)
{
    struct buf page = {0};
    struct err e = {0};
    json_t *c = compare_documents(a, b, &e);
    assert((c == NULL) == (e.code != 0));
    if (!c)
        return;
    FILE *out = fopen("/dev/null", "w");
    assert(out);
    compare_print(c, out);
    fclose(out);
    page_comparison(a, b, c, &page);
    check_page(&page);
    json_decref(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const size_t len = strnlen(text, size);
    const size_t rest = len < size ? len + 1 : size;
    json_t *a = json_loadb(text, len, 0, NULL);
    json_t *b = json_loadb(text + rest, size - rest, 0, NULL);
    if (a) {
        struct buf page = {0};
        page_report(a, &page);
        check_page(&page);
        compare(a, b ? b : a);
    }
    json_decref(a);
    json_decref(b);
    return 0;
}
