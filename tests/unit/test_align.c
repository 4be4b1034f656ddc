/* tests/unit/test_align.c: block alignment against routing.md 3 (sizes, golden vectors G01 to G13, errors), its test
 * table (C01, C02, C06, C08, C11 to C15, C40) and tests/data/vectors/align.safetensors. */
#include "config.h"

#include <moert/routing.h>

#include "unit/routing_vectors.h"

#define MAX_OUT 2048

/* One line of routing.md 3.4. sorted = listed values, then the last of them up to cap. */
struct golden {
    const char *name;
    int32_t ids[12];
    uint32_t tokens, top_k, block, experts;
    int32_t map[8];
    int has_map, mode_i, pad;
    uint64_t cap;
    int32_t total;
    int32_t expert_ids[8];
    int32_t sorted[32];
    uint32_t listed;
};

#define DOC 2, 3, 4, 1, 2, 4, 1, 3, 4, 1, 2, 3

static const struct golden goldens[] = {
    {"G01",
     {DOC},
     4,
     3,
     4,
     4,
     {0},
     0,
     0,
     0,
     24,
     12,
     {1, 2, 3, -1, -1, -1},
     {3, 6, 9, 12, 0, 4, 10, 12, 1, 7, 11, 12},
     12},
    {"G02",
     {DOC},
     4,
     3,
     4,
     5,
     {0},
     0,
     0,
     0,
     27,
     16,
     {1, 2, 3, 4, -1, -1, -1},
     {3, 6, 9, 12, 0, 4, 10, 12, 1, 7, 11, 12, 2, 5, 8, 12},
     16},
    {"G03",
     {0, 2, 3, 1, 2, 0},
     3,
     2,
     2,
     4,
     {-1, 0, -1, 1},
     1,
     0,
     0,
     10,
     8,
     {-1, 0, -1, 1, -1},
     {0, 5, 3, 6, 1, 4, 2, 6, 6},
     9},
    {"G04", {0, 2, 3, 1, 2, 0}, 3, 2, 2, 4, {-1, 0, -1, 1}, 1, 1, 0, 10, 4, {0, 1, -1, -1, -1}, {3, 6, 2, 6}, 4},
    {"G05", {0, -1, 1, 7}, 2, 2, 2, 2, {0}, 0, 0, 0, 6, 4, {0, 1, -1}, {0, 4, 2, 4}, 4},
    {"G06", {-1, -1}, 1, 2, 2, 2, {0}, 0, 0, 0, 4, 0, {-1, -1}, {2}, 1},
    {"G07", {0, 1, 2, 3}, 2, 2, 2, 4, {1, 0, -1, -1}, 1, 1, 0, 8, 4, {0, 1, -1, -1}, {1, 4, 0, 4}, 4},
    {"G07d", {0, 1, 2, 3}, 2, 2, 2, 4, {1, 0, -1, -1}, 1, 0, 0, 8, 8, {1, 0, -1, -1}, {0, 4, 1, 4, 2, 4, 3, 4}, 8},
    {"G08", {5}, 1, 1, 16, 8, {0}, 0, 0, 0, 16, 16, {5}, {0, 1}, 2},
    {"G09", {0, 1, 1, 0}, 2, 2, 4, 2, {0}, 0, 0, 0, 10, 8, {0, 1, -1}, {0, 3, 4, 4, 1, 2, 4}, 7},
    {"G09p", {0, 1, 1, 0}, 2, 2, 4, 2, {0}, 0, 0, 1, 12, 8, {0, 1, -1}, {0, 3, 4, 4, 1, 2, 4}, 7},
    {"G10", {2, 2}, 1, 2, 2, 4, {0}, 0, 0, 0, 4, 2, {2, -1}, {0, 1, 2}, 3},
    {"G11",
     {0, 1, 2, 3, 4, 5, 6, 7},
     1,
     8,
     128,
     8,
     {0, 1, -1, -1, -1, -1, -1, -1},
     1,
     1,
     0,
     1024,
     256,
     {0, 1, -1, -1, -1, -1, -1, -1},
     {0, 8},
     2},
    {"G11d",
     {0, 1, 2, 3, 4, 5, 6, 7},
     1,
     8,
     128,
     8,
     {0, 1, -1, -1, -1, -1, -1, -1},
     1,
     0,
     0,
     1024,
     1024,
     {0, 1, -1, -1, -1, -1, -1, -1},
     {0, 8},
     2},
    {"C01", {0, 1, 2}, 3, 1, 4, 3, {0}, 0, 0, 0, 12, 12, {0, 1, 2}, {0, 3, 3, 3, 1, 3, 3, 3, 2, 3}, 10},
    {"C02", {-1, -1, 0, 1}, 2, 2, 2, 2, {0}, 0, 0, 0, 6, 4, {0, 1, -1}, {2, 4, 3, 4}, 4},
    {"C08", {1, 4}, 1, 2, 2, 5, {0}, 0, 0, 0, 4, 4, {1, 4}, {0, 2, 1, 2}, 4},
};

static struct moert_align_params params_of(uint32_t experts, uint32_t block, int mode_i, int pad)
{
    return (struct moert_align_params){.size = sizeof(struct moert_align_params),
                                       .num_experts = experts,
                                       .block_size = block,
                                       .ignore_invalid = (uint32_t)mode_i,
                                       .pad_sorted_ids = (uint32_t)pad};
}

Test(align, golden_vectors)
{
    for (size_t i = 0; i < sizeof(goldens) / sizeof(*goldens); i++) {
        const struct golden *g = &goldens[i];
        struct moert_align_params p = params_of(g->experts, g->block, g->mode_i, g->pad);
        struct moert_align_sizes sizes;
        int32_t total = GUARD_VALUE, *sorted, *experts;

        cr_assert_eq(moert_align_sizes((uint64_t)g->tokens * g->top_k, &p, &sizes, NULL), MOERT_OK);
        cr_assert_eq(sizes.sorted, g->cap, "%s: cap %lu, expected %lu", g->name, sizes.sorted, g->cap);
        sorted = fenced(sizes.sorted);
        experts = fenced(sizes.expert_ids);
        cr_assert_eq(moert_align(g->ids, g->tokens, g->top_k, g->has_map ? g->map : NULL, &p, sorted, experts, &total,
                                 NULL, NULL),
                     MOERT_OK);
        cr_expect_eq(total, g->total, "%s: total %d, expected %d", g->name, total, g->total);
        cr_expect_arr_eq(experts, g->expert_ids, sizes.expert_ids * 4, "%s: expert_ids", g->name);
        if (strncmp(g->name, "G11d", 4)) /* G11d: one slot in each block, checked below */
            for (uint64_t k = 0; k < sizes.sorted; k++) {
                int32_t want = k < g->listed ? g->sorted[k] : (int32_t)(g->tokens * g->top_k);
                if (!strcmp(g->name, "G11") && k == 128)
                    want = 1;
                cr_expect_eq(sorted[k], want, "%s: sorted[%lu] %d, expected %d", g->name, k, sorted[k], want);
            }
        else
            for (int k = 0; k < 1024; k++)
                cr_expect_eq(sorted[k], k % 128 ? 8 : k / 128);
        free_fenced(sorted, sizes.sorted);
        free_fenced(experts, sizes.expert_ids);
    }
}

Test(align, g12_batched)
{
    static const int32_t counts[] = {2, 3, 0, 6, 8}, experts[] = {0, 1, 3, 3, 4, 4, -1, -1, -1, -1};
    static const int32_t head[] = {0,  1,  40, 40, 8,  9,  10, 40, 24, 25, 26, 27,
                                   28, 29, 40, 40, 32, 33, 34, 35, 36, 37, 38, 39};
    struct moert_expert_counts c = {counts, 5};
    int32_t *sorted = fenced(40), *ids = fenced(10), total = -1;

    cr_assert_eq(moert_align_batched(c, 8, 4, sorted, ids, &total, NULL), MOERT_OK);
    cr_expect_eq(total, 24);
    cr_expect_arr_eq(ids, experts, sizeof(experts));
    cr_expect_arr_eq(sorted, head, sizeof(head));
    for (int i = 24; i < 40; i++)
        cr_expect_eq(sorted[i], 40);
    free_fenced(sorted, 40);
    free_fenced(ids, 10);
}

Test(align, batched_errors)
{
    static const int32_t high[] = {1, 9}, low[] = {-1, 1}, ok[] = {0, 0};
    struct moert_error err = MOERT_ERROR_INIT;
    int32_t sorted[16], experts[16], total = 77;

    cr_expect_eq(moert_align_batched((struct moert_expert_counts){high, 2}, 8, 4, sorted, experts, &total, &err),
                 MOERT_E_VALUE);
    cr_expect_str_eq(err.code, "count");
    cr_expect(strstr(err.text, "counts[1] is 9") != NULL, "%s", err.text);
    cr_expect_eq(moert_align_batched((struct moert_expert_counts){low, 2}, 8, 4, sorted, experts, &total, &err),
                 MOERT_E_VALUE);
    cr_expect_str_eq(err.code, "count");
    cr_expect_eq(total, 77, "written on failure");
    cr_expect_eq(moert_align_batched((struct moert_expert_counts){ok, 2}, 0x40000000, 4, sorted, experts, &total, &err),
                 MOERT_E_TOO_LARGE);
    cr_expect_eq(moert_align_batched((struct moert_expert_counts){ok, 2}, 8, 0, sorted, experts, &total, &err),
                 MOERT_E_VALUE);
    cr_expect_eq(moert_align_batched((struct moert_expert_counts){ok, 2}, 0, 4, NULL, NULL, &total, &err), MOERT_OK);
    cr_expect_eq(total, 0);
}

/* The definition of routing.md 3.2, without any cleverness. */
static void reference(const int32_t *ids, uint64_t slots, const int32_t *map, const struct moert_align_params *p,
                      const struct moert_align_sizes *z, int32_t *sorted, int32_t *experts, int32_t *total)
{
    int32_t at = 0;

    for (uint64_t i = 0; i < z->sorted; i++)
        sorted[i] = (int32_t)slots;
    for (uint64_t i = 0; i < z->expert_ids; i++)
        experts[i] = -1;
    for (int32_t b = 0; b < (int32_t)p->num_experts; b++) {
        int32_t first = at;

        for (uint64_t s = 0; s < slots; s++) {
            int32_t id = ids[s];
            if (id < 0 || id >= (int32_t)p->num_experts)
                continue;
            if (map && p->ignore_invalid)
                id = map[id];
            if (id == b)
                sorted[at++] = (int32_t)s;
        }
        while (at % (int32_t)p->block_size)
            at++;
        for (int32_t k = first; k < at; k += (int32_t)p->block_size)
            experts[k / (int32_t)p->block_size] = map && !p->ignore_invalid ? map[b] : b;
    }
    *total = at;
}

static void compare(const int32_t *ids, uint64_t tokens, uint32_t k, const int32_t *map, struct moert_align_params p)
{
    struct moert_align_sizes z;
    int32_t *sorted, *experts, *want, *want_e, total, want_total;

    cr_assert_eq(moert_align_sizes(tokens * k, &p, &z, NULL), MOERT_OK);
    sorted = fenced(z.sorted);
    experts = fenced(z.expert_ids);
    want = malloc(z.sorted * 4 + 4);
    want_e = malloc(z.expert_ids * 4 + 4);
    cr_assert_eq(moert_align(ids, tokens, k, map, &p, sorted, experts, &total, NULL, NULL), MOERT_OK);
    reference(ids, tokens * k, map, &p, &z, want, want_e, &want_total);
    cr_expect_eq(total, want_total, "E %u N %lu: total %d, expected %d", p.num_experts, tokens * k, total, want_total);
    cr_expect_arr_eq(sorted, want, z.sorted * 4, "E %u N %lu: sorted", p.num_experts, tokens * k);
    cr_expect_arr_eq(experts, want_e, z.expert_ids * 4, "E %u N %lu: experts", p.num_experts, tokens * k);
    free_fenced(sorted, z.sorted);
    free_fenced(experts, z.expert_ids);
    free(want);
    free(want_e);
}

/* C13; the reference is O(N*E), so the long inputs run for some E only (align_large covers the others by hash). */
Test(align, c13_every_size_equals_the_reference)
{
    static const uint32_t sizes[] = {1,   31,  32,  33,  63,  64,  65,  127, 128, 223,
                                     224, 256, 257, 512, 960, 961, 992, 993, 1023};
    static const uint64_t slots[] = {1, 1023, 1024, 65535, 65536};

    for (size_t e = 0; e < sizeof(sizes) / sizeof(*sizes); e++)
        for (size_t n = 0; n < 5; n++) {
            uint32_t experts = sizes[e];
            int32_t *ids, map[1024];

            if (slots[n] > 2000 && e % 4 != 1)
                continue;
            ids = malloc(slots[n] * 4);
            for (uint64_t i = 0; i < slots[n]; i++)
                ids[i] = (int32_t)(mix(i + experts) % (experts + 2)) - 1;
            for (uint32_t g = 0; g < experts; g++)
                map[g] = g % 3 ? -1 : (int32_t)((experts - 1 - g) / 3);
            compare(ids, slots[n], 1, NULL, params_of(experts, 16, 0, 0));
            compare(ids, slots[n], 1, map, params_of(experts, 7, 1, 1));
            compare(ids, slots[n], 1, map, params_of(experts, 128, 0, 0));
            free(ids);
        }
}

/* Long inputs that all go to one expert, none, or in runs. */
Test(align, skewed_inputs_equal_the_reference)
{
    enum { N = 40000, E = 40 };
    int32_t *ids = malloc(N * 4);

    for (int kind = 0; kind < 4; kind++) {
        for (int i = 0; i < N; i++)
            ids[i] = kind == 0 ? 5 : kind == 1 ? -1 : kind == 2 ? i / 1000 : i % 7 ? 39 : INT32_MIN;
        compare(ids, N, 1, NULL, params_of(E, 128, 0, 0));
        compare(ids + 1, N - 1, 1, NULL, params_of(E, 1, 0, 0));
    }
    free(ids);
}

/* Inputs of several 16-bit tiles: the slots around a multiple of 65,536, with and without a map, and no room behind the
 * last slot (block 1). */
Test(align, inputs_beyond_16_bits_equal_the_reference)
{
    static const uint32_t sizes[] = {1, 5, 257};
    static const uint64_t slots[] = {65537, 131072, 131072 + 63};
    int32_t *ids = malloc((131072 + 63) * 4), map[257];

    for (int32_t g = 0; g < 257; g++)
        map[g] = g % 2 ? -1 : g / 2;
    for (size_t e = 0; e < sizeof(sizes) / sizeof(*sizes); e++)
        for (size_t n = 0; n < sizeof(slots) / sizeof(*slots); n++) {
            uint32_t experts = sizes[e];

            for (uint64_t i = 0; i < slots[n]; i++)
                ids[i] = (int32_t)(mix(i + experts) % (experts + 2)) - 1;
            compare(ids, slots[n], 1, NULL, params_of(experts, 128, 0, 0));
            compare(ids, slots[n], 1, map, params_of(experts, 1, 1, 0));
            for (uint64_t i = 0; i < slots[n]; i++)
                ids[i] = (int32_t)(experts - 1);
            compare(ids, slots[n], 1, NULL, params_of(experts, 1, 0, 0));
        }
    free(ids);
}

Test(align, c02_same_rule_for_long_inputs)
{
    int32_t ids[2048];

    for (int i = 0; i < 2048; i++)
        ids[i] = i % 4 < 2 ? -1 : i % 2;
    compare(ids, 1024, 2, NULL, params_of(2, 2, 0, 0));
}

Test(align, g13_slots_ascend)
{
    struct moert_align_params p = params_of(1, 16, 0, 0);
    int32_t ids[40] = {0}, sorted[55], experts[4], total;

    cr_assert_eq(moert_align(ids, 40, 1, NULL, &p, sorted, experts, &total, NULL, NULL), MOERT_OK);
    cr_expect_eq(total, 48);
    for (int i = 0; i < 55; i++)
        cr_expect_eq(sorted[i], i < 40 ? i : 40);
}

Test(align, c06_tokens_without_experts)
{
    static const int32_t ids[8] = {0, 1, 2, 3, 0, -1, -1, -1};
    struct moert_align_params p = params_of(4, 2, 0, 0);
    struct moert_align_sizes z;
    int32_t *sorted, *experts, total, placed = 0;

    cr_assert_eq(moert_align_sizes(8, &p, &z, NULL), MOERT_OK);
    sorted = fenced(z.sorted);
    experts = fenced(z.expert_ids);
    cr_assert_eq(moert_align(ids, 8, 1, NULL, &p, sorted, experts, &total, NULL, NULL), MOERT_OK);
    for (uint64_t i = 0; i < z.sorted; i++)
        placed += sorted[i] != 8;
    cr_expect_eq(placed, 5);
    free_fenced(sorted, z.sorted);
    free_fenced(experts, z.expert_ids);
}

Test(align, c14_no_limit_on_experts)
{
    static const struct {
        uint32_t experts;
        int32_t id;
    } cases[] = {{1025, 1024}, {1024, 1023}, {5000000, 4999999}};
    int32_t sorted[16], experts[1], total;

    for (int i = 0; i < 3; i++) {
        struct moert_align_params p = params_of(cases[i].experts, 16, 0, 0);
        cr_assert_eq(moert_align(&cases[i].id, 1, 1, NULL, &p, sorted, experts, &total, NULL, NULL), MOERT_OK);
        cr_expect_eq(experts[0], cases[i].id);
        cr_expect_eq(total, 16);
        cr_expect_eq(sorted[0], 0);
    }
}

Test(align, c15_one_function_for_the_sizes)
{
    struct moert_align_params p = params_of(3, 4, 0, 0);
    struct moert_align_sizes z;

    cr_assert_eq(moert_align_sizes(5, &p, &z, NULL), MOERT_OK);
    cr_expect_eq(z.sorted, 14u);
    cr_expect_eq(z.expert_ids, 4u);
    p.pad_sorted_ids = 1;
    cr_assert_eq(moert_align_sizes(5, &p, &z, NULL), MOERT_OK);
    cr_expect_eq(z.sorted, 16u);
    cr_expect_eq(z.expert_ids, 4u);
}

Test(align, sizes_are_64_bit)
{
    struct moert_align_params p = params_of(256, 128, 0, 0);
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_align_sizes z = {7, 7};

    cr_expect_eq(moert_align_sizes(2147483647u - 256 * 127, &p, &z, NULL), MOERT_OK);
    cr_expect_eq(z.sorted, 2147483647u);
    cr_expect_eq(z.expert_ids, 16777216u);
    cr_expect_eq(moert_align_sizes(2147483648u - 256 * 127, &p, &z, &err), MOERT_E_TOO_LARGE);
    cr_expect_str_eq(err.code, "too-large");
    cr_expect_eq(z.sorted, 2147483647u, "written on failure");
    cr_expect_eq(moert_align_sizes(UINT64_MAX, &p, &z, &err), MOERT_E_TOO_LARGE);
    cr_expect_eq(moert_align_sizes(4294967296u + 8, &p, &z, &err), MOERT_E_TOO_LARGE, "a 32-bit product would pass");
    p = params_of(2000000000, 128, 0, 0); /* N < E: few slots need few blocks whatever E is */
    cr_expect_eq(moert_align_sizes(4, &p, &z, NULL), MOERT_OK);
    cr_expect_eq(z.sorted, 512u);
    p = params_of(70000, 70000, 0, 0);
    cr_expect_eq(moert_align_sizes(70000, &p, &z, &err), MOERT_E_TOO_LARGE);
}

Test(align, errors)
{
    struct moert_align_params p = params_of(4, 2, 0, 0);
    struct moert_error err = MOERT_ERROR_INIT;
    static const int32_t ids[4] = {0, 1, 2, 3}, map[4] = {0, -1, 1, -1}, wild[4] = {0, -1, 900, -1};
    int32_t sorted[16], experts[16], total = 77, scatter[4];

    cr_expect_eq(moert_align(ids, 2, 2, map, &p, sorted, experts, &total, scatter, &err), MOERT_E_VALUE);
    cr_expect_str_eq(err.code, "mode");
    p.ignore_invalid = 1;
    cr_expect_eq(moert_align(ids, 2, 2, wild, &p, sorted, experts, &total, NULL, &err), MOERT_E_VALUE);
    cr_expect_str_eq(err.code, "map");
    cr_expect(strstr(err.text, "expert_map[2] is 900; local ids are 0..3") != NULL, "%s", err.text);
    cr_expect_eq(total, 77, "written on failure");
    cr_expect_eq(moert_align(NULL, 2, 2, NULL, &p, sorted, experts, &total, NULL, &err), MOERT_E_USAGE);
    cr_expect_str_eq(err.text, "ids is NULL");
    cr_expect_eq(moert_align(ids, 2, 2, NULL, &p, sorted, experts, NULL, NULL, NULL), MOERT_E_USAGE);
    cr_expect_eq(moert_align(ids, UINT64_MAX, 2, NULL, &p, sorted, experts, &total, NULL, &err), MOERT_E_TOO_LARGE);
    p.block_size = 0;
    cr_expect_eq(moert_align(ids, 2, 2, NULL, &p, sorted, experts, &total, NULL, &err), MOERT_E_VALUE);
    cr_expect_str_eq(err.code, "size");
    p.size = 4;
    cr_expect_eq(moert_align(ids, 2, 2, NULL, &p, sorted, experts, &total, NULL, &err), MOERT_E_USAGE);
    cr_expect_str_eq(err.code, "struct-size");
}

Test(align, scatter_says_what_was_placed)
{
    struct moert_align_params p = params_of(4, 2, 1, 0);
    static const int32_t ids[6] = {0, -1, 2, 3, 4, 1}, map[4] = {0, -1, 1, -1};
    static const int32_t with_map[6] = {0, -1, 2, -1, -1, -1}, without[6] = {0, -1, 2, 3, -1, 5};
    int32_t sorted[16], experts[16], total, scatter[6];

    cr_assert_eq(moert_align(ids, 3, 2, map, &p, sorted, experts, &total, scatter, NULL), MOERT_OK);
    cr_expect_arr_eq(scatter, with_map, sizeof(scatter));
    p.ignore_invalid = 0;
    cr_assert_eq(moert_align(ids, 3, 2, NULL, &p, sorted, experts, &total, scatter, NULL), MOERT_OK);
    cr_expect_arr_eq(scatter, without, sizeof(scatter));
}

/* C07: ids 4 and -1 with a map of 4 entries that ends at an unreadable page. */
Test(align, c07_map_is_read_after_the_range_test)
{
    int32_t *map = guarded(4 * sizeof(*map)), out[2][2][8], experts[2][2][8], total[2][2];
    static const int32_t ids[2][2] = {{4, 1}, {-1, 1}};

    map[0] = map[1] = -1;
    map[2] = 0;
    map[3] = 1;
    for (int i = 0; i < 2; i++)
        for (int mode = 0; mode < 2; mode++) {
            struct moert_align_params p = params_of(4, 2, mode, 0);
            cr_assert_eq(
                moert_align(ids[i], 1, 2, map, &p, out[i][mode], experts[i][mode], &total[i][mode], NULL, NULL),
                MOERT_OK);
        }
    for (int mode = 0; mode < 2; mode++) {
        cr_expect_arr_eq(out[0][mode], out[1][mode], 4 * 4);
        cr_expect_eq(total[0][mode], total[1][mode]);
    }
    cr_expect_eq(total[0][1], 0);
}

Test(align, c40_no_tokens)
{
    struct moert_align_params p = params_of(4, 2, 0, 0);
    struct moert_align_sizes z;
    int32_t total = 77;

    cr_assert_eq(moert_align_sizes(0, &p, &z, NULL), MOERT_OK);
    cr_expect_eq(z.sorted, 0u);
    cr_expect_eq(z.expert_ids, 0u);
    cr_assert_eq(moert_align(NULL, 0, 2, NULL, &p, NULL, NULL, &total, NULL, NULL), MOERT_OK);
    cr_expect_eq(total, 0);
}

Test(align, vector_files)
{
    moert_safetensors_t *f = open_vectors("align.safetensors");
    int cases = 0;
    char name[128];

    for (uint64_t i = 0; i < moert_safetensors_count(f); i++) {
        struct moert_align_params p;
        struct moert_align_sizes z;
        int32_t *sorted, *experts, total;

        if (!case_with_field(f, i, "sorted_token_ids", name, sizeof(name)))
            continue;
        p = params_of((uint32_t)int_param(f, name, "E", 0), (uint32_t)int_param(f, name, "block", 0),
                      int_param(f, name, "ignore_invalid", 0), int_param(f, name, "pad_sorted_ids", 0));
        uint64_t tokens = (uint64_t)int_param(f, name, "T", -1);
        uint32_t k = (uint32_t)int_param(f, name, "k", 0);
        cr_assert_eq(moert_align_sizes(tokens * k, &p, &z, NULL), MOERT_OK, "%s", name);
        cr_assert_eq(z.sorted, field_of(f, name, "sorted_token_ids")->shape[0], "%s", name);
        cr_assert_eq(z.expert_ids, field_of(f, name, "expert_ids")->shape[0], "%s", name);
        sorted = fenced(z.sorted);
        experts = fenced(z.expert_ids);
        cr_assert_eq(moert_align(data_of(f, name, "topk_ids"), tokens, k, data_of(f, name, "expert_map"), &p, sorted,
                                 experts, &total, NULL, NULL),
                     MOERT_OK, "%s", name);
        cr_expect_arr_eq(&total, data_of(f, name, "num_tokens_post_padded"), 4, "%s: total", name);
        cr_expect_arr_eq(sorted, data_of(f, name, "sorted_token_ids"), z.sorted * 4, "%s: sorted", name);
        cr_expect_arr_eq(experts, data_of(f, name, "expert_ids"), z.expert_ids * 4, "%s: experts", name);
        free_fenced(sorted, z.sorted);
        free_fenced(experts, z.expert_ids);
        cases++;
    }
    cr_assert_geq(cases, 60, "%d cases", cases);
    moert_safetensors_close(f);
}

/* README 6: slot i from mix(seed + i). */
static void generate(int32_t *ids, uint64_t slots, uint32_t experts, uint64_t seed, int generator)
{
    for (uint64_t i = 0; i < slots; i++) {
        uint64_t r = mix(seed + i), product = (r & 0xFFFF) * (r >> 16 & 0xFFFF);

        if (generator == 0)
            ids[i] = (int32_t)(r % experts);
        else
            ids[i] = (r >> 48) % 64 == 0 ? -1 : (int32_t)((product >> 16) * experts >> 16);
    }
}

Test(align, vector_files_large)
{
    moert_safetensors_t *f = open_vectors("align.safetensors");
    int cases = 0;
    char name[128];

    for (uint64_t i = 0; i < moert_safetensors_count(f); i++) {
        struct moert_align_params p;
        struct moert_align_sizes z;
        int32_t *ids, *sorted, *experts, total;
        int64_t hash[3], sizes[3];

        if (!case_with_field(f, i, "hash", name, sizeof(name)))
            continue;
        p = params_of((uint32_t)int_param(f, name, "E", 0), (uint32_t)int_param(f, name, "block", 0),
                      int_param(f, name, "ignore_invalid", 0), int_param(f, name, "pad_sorted_ids", 0));
        uint64_t tokens = (uint64_t)int_param(f, name, "T", 0);
        uint32_t k = (uint32_t)int_param(f, name, "k", 0);
        memcpy(hash, data_of(f, name, "hash"), sizeof(hash));
        memcpy(sizes, data_of(f, name, "sizes"), sizeof(sizes));
        cr_assert_eq(moert_align_sizes(tokens * k, &p, &z, NULL), MOERT_OK, "%s", name);
        cr_assert_eq(z.sorted, (uint64_t)sizes[1], "%s", name);
        cr_assert_eq(z.expert_ids, (uint64_t)sizes[2], "%s", name);
        ids = malloc(tokens * k * 4);
        generate(ids, tokens * k, p.num_experts, (uint64_t)int_param(f, name, "seed", 0),
                 int_param(f, name, "generator_id", 0));
        cr_assert_eq(fnv(ids, tokens * k * 4), (uint64_t)hash[0], "%s: generator", name);
        sorted = fenced(z.sorted);
        experts = fenced(z.expert_ids);
        cr_assert_eq(
            moert_align(ids, tokens, k, data_of(f, name, "expert_map"), &p, sorted, experts, &total, NULL, NULL),
            MOERT_OK, "%s", name);
        cr_expect_eq(total, sizes[0], "%s: total", name);
        cr_expect_eq(fnv(sorted, z.sorted * 4), (uint64_t)hash[1], "%s: sorted", name);
        cr_expect_eq(fnv(experts, z.expert_ids * 4), (uint64_t)hash[2], "%s: experts", name);
        free_fenced(sorted, z.sorted);
        free_fenced(experts, z.expert_ids);
        free(ids);
        cases++;
    }
    cr_assert_geq(cases, 20, "%d cases", cases);
    moert_safetensors_close(f);
}
