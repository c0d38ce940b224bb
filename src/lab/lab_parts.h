/* SPDX-License-Identifier: MIT */
#ifndef LAB_PARTS_H
#define LAB_PARTS_H

/* What the model and its cache know of each other. */

#include "lab/model.h"

#define LAB_CHUNK 64 /* tokens that are computed together */

struct lab_cache {
    struct lab_shape shape;
    uint32_t len, capacity;
    float *rows; /* layers × {K, V} × capacity × width */

    /* What a step needs while it runs, LAB_CHUNK rows each. */
    float *x, *normed, *qkv, *wide, *scratch;
};

#endif
