/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_VERSION_H
#define INCIPIT_BASE_VERSION_H

/* The version of incipit, as `incipit version` and /stats say it. */
#define INCIPIT_VERSION "0.1.0"

#endif
