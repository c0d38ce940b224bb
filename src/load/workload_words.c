/* SPDX-License-Identifier: MIT */
#include "workload_parts.h"

#include "base/draw.h"

/* 128 words: seven bits of each random number decide. */
static const char *const words[WORKLOAD_WORDS] = {
    "time",   "year",     "people",  "way",     "day",      "man",    "thing",
    "woman",  "life",     "child",   "world",   "school",   "state",  "family",
    "group",  "country",  "problem", "hand",    "part",     "place",  "case",
    "week",   "company",  "system",  "program", "question", "work",   "number",
    "night",  "point",    "home",    "water",   "room",     "mother", "area",
    "money",  "story",    "fact",    "month",   "lot",      "right",  "study",
    "book",   "eye",      "job",     "word",    "business", "issue",  "side",
    "kind",   "head",     "house",   "service", "friend",   "father", "power",
    "hour",   "game",     "line",    "end",     "member",   "law",    "car",
    "city",   "name",     "team",    "minute",  "idea",     "body",   "back",
    "parent", "face",     "level",   "office",  "door",     "health", "person",
    "art",    "war",      "history", "party",   "result",   "change", "morning",
    "reason", "research", "girl",    "guy",     "moment",   "air",    "teacher",
    "force",  "order",    "paper",   "space",   "ground",   "form",   "support",
    "event",  "official", "matter",  "center",  "couple",   "site",   "project",
    "base",   "star",     "table",   "need",    "court",    "letter", "oil",
    "half",   "cost",     "figure",  "street",  "image",    "phone",  "data",
    "cover",  "light",    "field",   "plan",    "rate",     "north",  "south",
    "river",  "music",
};

const char *workload_word(uint32_t n)
{
    return words[n % WORKLOAD_WORDS];
}

void workload_words(struct buf *out, uint64_t state, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i)
            buf_append_char(out, ' ');
        buf_append_str(out, words[draw_next(&state) >> 57]);
    }
}
