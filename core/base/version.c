/* core/base/version.c: the version of the library that runs. */
#include "config.h"

#include <moert/base.h>

const char *moert_version(void)
{
    return PACKAGE_VERSION;
}
