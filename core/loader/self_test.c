/* core/loader/self_test.c */
#include "config.h"
#include "core/loader/loader.h"
void moert_loader_self_tests_free(struct moert_context *context)
{
    (void)context;
}
