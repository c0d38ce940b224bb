/* SPDX-License-Identifier: MIT */

/*
 * The one file outside their folders that sees the libraries' headers, for a bug report
 * to name them.
 */

#include <event2/event.h>
#include <hiredis/hiredis.h>
#include <jansson.h>
#include <llhttp.h>
#include <openssl/crypto.h>
#include <xxhash.h>
#include <yaml.h>
#include <zlib.h>

#include "base/version.h"
#include "cmd/cmd.h"

int cmd_version(const struct cmd *self, int argc, char **argv)
{
    const char *given[CMD_MAX_FLAGS];
    if (cmd_parse(self, argc, argv, given) != 0) {
        cmd_usage(self, stderr);
        return CMD_USAGE;
    }
    const unsigned xxh = XXH_versionNumber();
    printf("incipit " INCIPIT_VERSION "\n");
    printf("libevent %s\n", event_get_version());
    printf("llhttp %d.%d.%d\n", LLHTTP_VERSION_MAJOR, LLHTTP_VERSION_MINOR,
           LLHTTP_VERSION_PATCH);
    printf("openssl %s\n", OpenSSL_version(OPENSSL_VERSION_STRING));
    printf("zlib %s\n", zlibVersion());
    printf("jansson %s\n", jansson_version_str());
    printf("libyaml %s\n", yaml_get_version_string());
    printf("xxhash %u.%u.%u\n", xxh / 10000, xxh / 100 % 100, xxh % 100);
    printf("hiredis %d.%d.%d\n", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    return CMD_OK;
}
