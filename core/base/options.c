/* core/base/options.c: the effective MOERT_* options. The only file that reads the environment. */
#include "config.h"

#include "core/base/options.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

extern char **environ;

struct option {
    const char *name, *type, *fallback;
    int setid;
    const char *help;
};

static const struct option options[MOERT_CFG_COUNT] = {
#define OPTION(id, name, type, fallback, setid, help) {name, type, fallback, setid, help},
#include "core/base/config.def"
#undef OPTION
};

static struct {
    char *value; /* NULL: the default */
} values[MOERT_CFG_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* "512M" -> bytes. Returns 0 on success. */
static int parse_number(const char *text, uint64_t *ret)
{
    char *end;
    unsigned shift = 0;
    unsigned long long v;

    errno = 0;
    if (*text < '0' || *text > '9')
        return -1;
    v = strtoull(text, &end, 10);
    if (errno)
        return -1;
    if (*end == 'K' || *end == 'k')
        shift = 10;
    else if (*end == 'M' || *end == 'm')
        shift = 20;
    else if (*end == 'G' || *end == 'g')
        shift = 30;
    if (shift)
        end++;
    if (*end || v > (UINT64_MAX >> shift))
        return -1;
    *ret = (uint64_t)v << shift;
    return 0;
}

static void warn_unknown(const char *entry)
{
    const char *names[MOERT_CFG_COUNT + 1], *nearest;
    char name[64];
    size_t n = strcspn(entry, "=");

    if (n >= sizeof(name))
        n = sizeof(name) - 1;
    memcpy(name, entry, n);
    name[n] = 0;
    for (int i = 0; i < MOERT_CFG_COUNT; i++) {
        names[i] = options[i].name;
        if (!strcmp(name, options[i].name))
            return;
    }
    names[MOERT_CFG_COUNT] = NULL;
    nearest = moert_text_nearest(name, names);
    fprintf(stderr, "moert: warn: unknown variable %s%s%s%s\n", name, nearest ? "; did you mean " : "",
            nearest ? nearest : "", nearest ? "?" : "");
}

/* Is `word` one of the alternatives of "a|b|c"? */
static int is_choice(const char *choices, const char *word)
{
    size_t n = strlen(word);

    for (const char *c = choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL)
        if (!strncmp(c, word, n) && (c[n] == '|' || !c[n]))
            return n > 0;
    return 0;
}

static void load(void)
{
    int secure = getauxval(AT_SECURE) != 0;
    uint64_t number;

    for (int i = 0; i < MOERT_CFG_COUNT; i++) {
        const char *v = options[i].setid ? getenv(options[i].name) : secure_getenv(options[i].name);
        if (!v || !*v)
            continue;
        if ((!strcmp(options[i].type, "size") || !strcmp(options[i].type, "count")) && parse_number(v, &number)) {
            fprintf(stderr, "moert: warn: %s=%s is not a number (K, M, G allowed); using %s\n", options[i].name, v,
                    options[i].fallback);
            continue;
        }
        if (strchr(options[i].type, '|') && !is_choice(options[i].type, v)) {
            fprintf(stderr, "moert: warn: %s=%s is none of %s; using %s\n", options[i].name, v, options[i].type,
                    options[i].fallback);
            continue;
        }
        values[i].value = strdup(v);
    }
    for (char **e = secure ? NULL : environ; e && *e; e++)
        if (!strncmp(*e, "MOERT_", 6) && strncmp(*e, "MOERT_TEST_", 11)) /* the test suite's own */
            warn_unknown(*e);
}

const char *moert_config_string(enum moert_config_id id)
{
    pthread_once(&once, load);
    return values[id].value ? values[id].value : options[id].fallback;
}

uint64_t moert_config_number(enum moert_config_id id)
{
    uint64_t v = 0;
    parse_number(moert_config_string(id), &v);
    return v;
}

const char *moert_config_by_name(const char *name)
{
    for (int i = 0; i < MOERT_CFG_COUNT; i++)
        if (!strcmp(name, options[i].name))
            return moert_config_string((enum moert_config_id)i);
    return NULL;
}

void moert_config_xdg_dir(const char *variable, const char *fallback, char *out, size_t size)
{
    const char *base = secure_getenv(variable), *home = secure_getenv("HOME");

    out[0] = 0;
    if (base && base[0] == '/')
        snprintf(out, size, "%s", base);
    else if (home && home[0] == '/')
        snprintf(out, size, "%s/%s", home, fallback);
}

uint32_t moert_option_count(void)
{
    return MOERT_CFG_COUNT;
}

moert_status_t moert_option_get(uint32_t index, struct moert_option_info *ret, struct moert_error *err)
{
    if (!ret)
        return moert_fail_null(err, "ret");
    if (moert_check_size(err, "moert_option_info", ret->size, sizeof(*ret)))
        return MOERT_E_USAGE;
    if (index >= MOERT_CFG_COUNT)
        return moert_fail(err, MOERT_E_VALUE, "size", "option %u of %u", index, (unsigned)MOERT_CFG_COUNT);
    ret->name = options[index].name;
    ret->value = moert_config_string((enum moert_config_id)index);
    ret->source = values[index].value ? "environment" : "default";
    ret->help = options[index].help;
    ret->type = options[index].type;
    return MOERT_OK;
}
