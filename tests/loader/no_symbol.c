/* tests/loader/no_symbol.c: a shared object that is no driver. */
#include "config.h"

#include <stdint.h>

int moert_something_else(void);
__attribute__((visibility("default"))) int moert_something_else(void)
{
    return 1;
}
