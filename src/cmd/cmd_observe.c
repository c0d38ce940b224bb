/* SPDX-License-Identifier: MIT */

/* What would a store gain? From prompts in a file, told as a table or as JSON. */

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "cmd/cmd.h"
#include "gateway/observe.h"

enum { TOKEN_BYTES, JSON };

const struct cmd_flag cmd_observe_flags[] = {
    [TOKEN_BYTES] = {"--token-bytes", "SIZE", NULL,
                     "KV bytes of a token (incipit kvsize), to tell sizes in bytes"},
    [JSON] = {"--json", NULL, NULL, "the report as JSON"},
    {NULL, NULL, NULL, NULL},
};

static double real_at(json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static void print_sizes(json_t *report)
{
    const bool bytes = json_is_integer(json_object_get(report, "token_bytes"));
    const bool timed = json_integer_value(json_object_get(report, "timed")) > 0;
    char size[24];
    size_t i;
    json_t *s;
    printf("\n%s  %12s  %7s%s\n", bytes ? "     store of" : "", "tokens", "reused",
           timed ? "   TTFT saved, s (95 %)" : "");
    json_array_foreach(json_object_get(report, "sizes"), i, s)
    {
        if (bytes)
            printf("%13s", units_format_bytes((uint64_t)real_at(s, "bytes"), size));
        printf("  %12.0f  %6.1f %%", real_at(s, "tokens"),
               100 * real_at(s, "reused_share"));
        if (timed && json_is_real(json_object_get(s, "saved_ms")))
            printf("  %8.1f (%.1f to %.1f)", real_at(s, "saved_ms") / 1e3,
                   real_at(s, "low") / 1e3, real_at(s, "high") / 1e3);
        printf("\n");
    }
}

static void print_report(json_t *report)
{
    static const struct {
        const char *cause, *words;
    } causes[] = {
        {"first-sight", "nothing of the prompt was known"},
        {"new-text", "new text behind a known start"},
        {"parts-early", "differs within the first part: a clock, a name, an id?"},
        {"dropped", "known, and the engine had it no more"}};
    const double all = real_at(report, "prompt_tokens");
    json_t *lost = json_object_get(report, "lost_tokens");
    printf("%" JSON_INTEGER_FORMAT
           " requests, %.0f prompt tokens, about %.0f different\n",
           json_integer_value(json_object_get(report, "requests")), all,
           real_at(report, "distinct_tokens"));
    if (json_is_real(json_object_get(report, "engine_reused_share")))
        printf("the engine reused %.1f %% by itself\n",
               100 * real_at(report, "engine_reused_share"));
    print_sizes(report);
    printf("\nprompt tokens that were computed, by reason\n");
    for (size_t i = 0; i < sizeof(causes) / sizeof(causes[0]); i++)
        printf("  %6.1f %%  %s\n",
               all > 0 ? 100 * real_at(lost, causes[i].cause) / all : 0, causes[i].words);
}

int cmd_observe(const struct cmd *self, int argc, char **argv)
{
    const char *given[CMD_MAX_FLAGS];
    struct err e = {0};
    uint64_t token_bytes = 0, skipped = 0;
    const int operands = cmd_parse(self, argc, argv, given);
    if (operands != 1) {
        if (operands >= 0)
            cmd_usage(self, stderr);
        return CMD_USAGE;
    }
    if (given[TOKEN_BYTES] && !units_parse_bytes(given[TOKEN_BYTES], &token_bytes)) {
        fprintf(stderr, "incipit observe: --token-bytes: \"%s\" is no size like 36864\n",
                given[TOKEN_BYTES]);
        return CMD_USAGE;
    }
    struct outlook *o = outlook_new();
    const int rc = observe_file(o, argv[1], &skipped, &e);
    if (rc) {
        fprintf(stderr, "incipit observe: %s\n", e.text);
    } else {
        json_t *report = observe_json(o, token_bytes);
        if (given[JSON])
            json_dumpf(report, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        else
            print_report(report);
        if (given[JSON])
            printf("\n");
        json_decref(report);
    }
    if (rc == 0 && skipped)
        fprintf(stderr, "incipit observe: %" PRIu64 " lines are no prompts, or barred\n",
                skipped);
    outlook_free(o);
    return rc ? CMD_FAILED : CMD_OK;
}
