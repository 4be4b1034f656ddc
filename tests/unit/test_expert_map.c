/* tests/unit/test_expert_map.c: placements, exchange tables, masks and replicas against routing.md 4, its test table
 * (C09, C20, C21, C24) and the expert_map cases of tests/data/vectors/align.safetensors. */
#include "config.h"

#include <moert/routing.h>

#include "unit/routing_vectors.h"

Test(expert_map, placement_of_the_specification)
{
    static const uint32_t sizes[4] = {3, 3, 2, 2};
    static const int32_t linear[10] = {-1, -1, -1, 0, 1, 2, -1, -1, -1, -1};
    static const int32_t round_robin[10] = {-1, 0, -1, -1, -1, 1, -1, -1, -1, 2};
    int32_t map[10];
    uint32_t local;

    for (uint32_t rank = 0; rank < 4; rank++)
        for (uint32_t placement = 0; placement < 2; placement++) {
            cr_assert_eq(moert_expert_place(4, rank, 10, placement, map, &local, NULL), MOERT_OK);
            cr_expect_eq(local, sizes[rank]);
            if (rank == 1)
                cr_expect_arr_eq(map, placement ? round_robin : linear, sizeof(map));
        }
    cr_assert_eq(moert_expert_place(1, 0, 10, MOERT_PLACE_LINEAR, map, &local, NULL), MOERT_OK);
    for (int i = 0; i < 10; i++)
        cr_expect_eq(map[i], i);
}

Test(expert_map, every_expert_has_one_owner)
{
    int32_t map[40], owners[40];
    uint32_t local, sum;

    for (uint32_t experts = 1; experts <= 40; experts++)
        for (uint32_t ep = 1; ep <= 9; ep++)
            for (uint32_t placement = 0; placement < 2; placement++) {
                memset(owners, 0, sizeof(owners));
                sum = 0;
                for (uint32_t rank = 0; rank < ep; rank++) {
                    cr_assert_eq(moert_expert_place(ep, rank, experts, placement, map, &local, NULL), MOERT_OK);
                    cr_assert_eq(moert_expert_map_check(map, experts, experts, local, NULL), MOERT_OK);
                    sum += local;
                    for (uint32_t g = 0; g < experts; g++)
                        owners[g] += map[g] >= 0;
                }
                cr_assert_eq(sum, experts);
                for (uint32_t g = 0; g < experts; g++)
                    cr_assert_eq(owners[g], 1);
            }
}

Test(expert_map, vector_files)
{
    moert_safetensors_t *f = open_vectors("align.safetensors");
    int maps = 0;

    for (uint64_t i = 0; i < moert_safetensors_count(f); i++) {
        const struct moert_st_tensor *t = moert_safetensors_at(f, i);
        const char *dot = strchr(t->name, '.');
        int32_t map[4096];
        char name[128];
        unsigned rank;
        int round_robin;

        if (!dot || (sscanf(dot, ".linear.r%u", &rank) != 1 && sscanf(dot, ".round_robin.r%u", &rank) != 1))
            continue;
        round_robin = dot[1] == 'r';
        snprintf(name, sizeof(name), "%.*s", (int)(dot - t->name), t->name);
        uint32_t ep = (uint32_t)int_param(f, name, "ep_size", int_param(f, name, "ep", 0));
        cr_assert_leq(t->shape[0], 4096u);
        cr_assert_eq(moert_expert_place(ep, rank, (uint32_t)t->shape[0],
                                        round_robin ? MOERT_PLACE_ROUND_ROBIN : MOERT_PLACE_LINEAR, map, NULL, NULL),
                     MOERT_OK, "%s ep %u", t->name, ep);
        cr_expect_arr_eq(map, t->data, t->bytes, "%s", t->name);
        maps++;
    }
    cr_assert_geq(maps, 8, "%d maps", maps);
    moert_safetensors_close(f);
}

Test(expert_map, exchange_tables)
{
    static const int32_t to_physical[10] = {0, 3, 6, 8, 1, 4, 7, 9, 2, 5};
    static const int32_t to_global[10] = {0, 4, 8, 1, 5, 9, 2, 6, 3, 7}, of_rank1[3] = {1, 5, 9};
    int32_t a[10], b[10], c[3];

    cr_assert_eq(moert_expert_tables(4, 1, 10, a, b, c, NULL), MOERT_OK);
    cr_expect_arr_eq(a, to_physical, sizeof(a));
    cr_expect_arr_eq(b, to_global, sizeof(b));
    cr_expect_arr_eq(c, of_rank1, sizeof(c));
    cr_expect_eq(moert_expert_tables(4, 1, 10, NULL, NULL, NULL, NULL), MOERT_OK);
}

Test(expert_map, c09_map_and_mask)
{
    static const int32_t want_map[4] = {-1, -1, 0, 1}, want_mask[5] = {0, 0, 1, 1, 0};
    struct moert_error err = MOERT_ERROR_INIT;
    int32_t map[6], mask[6], unordered[4] = {-1, -1, 1, 0};
    struct moert_expert_mask five = {mask, 5}, four = {mask, 4};

    cr_assert_eq(moert_expert_map_to_mask(want_map, 4, 0, five, NULL), MOERT_OK);
    cr_expect_arr_eq(mask, want_mask, sizeof(want_mask));
    cr_assert_eq(moert_expert_mask_to_map(five, 4, 0, map, NULL), MOERT_OK);
    cr_expect_arr_eq(map, want_map, sizeof(want_map));

    cr_expect_eq(moert_expert_mask_to_map(four, 4, 0, map, &err), MOERT_E_VALUE);
    cr_expect_str_eq(err.code, "map");
    memcpy(mask, want_map, sizeof(want_map));
    mask[4] = 0;
    cr_expect_eq(moert_expert_mask_to_map(five, 4, 0, map, &err), MOERT_E_VALUE, "a map passed as mask");
    mask[0] = mask[1] = 0;
    mask[2] = mask[3] = mask[4] = 1;
    cr_expect_eq(moert_expert_mask_to_map(five, 4, 0, map, &err), MOERT_E_VALUE, "last entry 1");
    cr_expect_eq(moert_expert_map_to_mask(unordered, 4, 0, five, &err), MOERT_E_VALUE);
    cr_expect_eq(moert_expert_map_check(want_mask, 5, 4, 2, &err), MOERT_E_VALUE, "a mask passed as map");
    cr_expect_str_eq(err.text, "this is a 0/1 mask of length 5, a map of length 4 is needed");
    cr_expect_eq(moert_expert_map_check(want_mask, 4, 4, 2, &err), MOERT_E_VALUE, "a cut mask passed as map");
}

Test(expert_map, mask_with_fused_shared)
{
    static const int32_t want_map[6] = {-1, 0, -1, 1, 2, 3}, want_mask[7] = {0, 1, 0, 1, 1, 1, 0};
    int32_t map[6], mask[7];
    struct moert_expert_mask m = {mask, 7};

    cr_assert_eq(moert_expert_map_to_mask(want_map, 4, 2, m, NULL), MOERT_OK);
    cr_expect_arr_eq(mask, want_mask, sizeof(mask));
    cr_assert_eq(moert_expert_mask_to_map(m, 4, 2, map, NULL), MOERT_OK);
    cr_expect_arr_eq(map, want_map, sizeof(map));
    mask[4] = 0;
    cr_expect_eq(moert_expert_mask_to_map(m, 4, 2, map, NULL), MOERT_E_VALUE, "all layers or none");
}

Test(expert_map, check_names_the_fault)
{
    struct moert_error err = MOERT_ERROR_INIT;
    static const int32_t high[4] = {-1, 8, 0, 1}, twice[4] = {3, -1, 3, 0}, low[4] = {-2, 0, 1, 2},
                         ok[4] = {3, -1, 2, 0};

    cr_expect_eq(moert_expert_map_check(ok, 4, 4, 8, &err), MOERT_OK);
    cr_expect_eq(moert_expert_map_check(high, 4, 4, 8, &err), MOERT_E_VALUE);
    cr_expect_str_eq(err.code, "map");
    cr_expect_str_eq(err.text, "expert_map[1] is 8; local ids are 0..7");
    cr_expect_eq(moert_expert_map_check(twice, 4, 4, 8, &err), MOERT_E_VALUE);
    cr_expect(strstr(err.text, "local id 3 appears twice") != NULL, "%s", err.text);
    cr_expect_eq(moert_expert_map_check(low, 4, 4, 8, &err), MOERT_E_VALUE);
    cr_expect_eq(moert_expert_map_check(ok, 3, 4, 8, &err), MOERT_E_VALUE);
    cr_expect_eq(moert_expert_map_check(NULL, 4, 4, 8, &err), MOERT_E_USAGE);
}

Test(expert_map, errors)
{
    int32_t map[4];
    struct moert_error err = MOERT_ERROR_INIT;

    cr_expect_eq(moert_expert_place(0, 0, 4, 0, map, NULL, &err), MOERT_E_VALUE);
    cr_expect_eq(moert_expert_place(2, 2, 4, 0, map, NULL, &err), MOERT_E_VALUE);
    cr_expect_str_eq(err.text, "rank is 2; must be below ep_size 2");
    cr_expect_eq(moert_expert_place(2, 0, 0, 0, map, NULL, &err), MOERT_E_VALUE);
    cr_expect_eq(moert_expert_place(2, 0, 4, 2, map, NULL, &err), MOERT_E_VALUE);
    cr_expect_eq(moert_expert_place(2, 0, 4, 0, NULL, NULL, &err), MOERT_E_USAGE);
}

Test(expert_map, replicas_by_token)
{
    /* logical 0: 2 replicas (physical 10, 11), 1: 3 replicas (20, 21, 22) */
    static const int32_t table[6] = {10, 11, -1, 20, 21, 22}, replicas[2] = {2, 3};
    static const int32_t r2[6] = {0, 1, 0, 1, 0, 1}, r3[6] = {0, 0, 2, 2, 1, 0}, bad[2] = {0, 3};
    int32_t ids[6][4], out[6][4];

    for (int t = 0; t < 6; t++) {
        ids[t][0] = 0;
        ids[t][1] = 1;
        ids[t][2] = t % 2 ? -1 : INT32_MIN;
        ids[t][3] = t % 2 ? 2 : INT32_MAX;
    }
    cr_assert_eq(moert_expert_replicas(ids[0], 6, 4, table, replicas, 2, 3, out[0], NULL), MOERT_OK);
    for (int t = 0; t < 6; t++) {
        cr_expect_eq(out[t][0], 10 + r2[t]);
        cr_expect_eq(out[t][1], 20 + r3[t]);
        cr_expect_eq(out[t][2], -1);
        cr_expect_eq(out[t][3], -1);
    }
    cr_assert_eq(moert_expert_replicas(ids[0], 6, 4, table, replicas, 2, 3, ids[0], NULL), MOERT_OK);
    cr_expect_arr_eq(ids, out, sizeof(ids), "in place");
    cr_expect_eq(moert_expert_replicas(ids[0], 6, 4, table, bad, 2, 3, out[0], NULL), MOERT_E_VALUE);
}

/* C24: physical order [1, 0]; expert e returns e. */
Test(expert_map, c24_physical_order)
{
    static const int32_t table[2] = {1, 0}, replicas[2] = {1, 1}, id = 0, weights_of_physical[2] = {1, 0};
    int32_t physical;

    cr_assert_eq(moert_expert_replicas(&id, 1, 1, table, replicas, 2, 1, &physical, NULL), MOERT_OK);
    cr_expect_eq(weights_of_physical[physical], 0);
}

/* C20: the loader asks local_to_global, routing the map: both say that local 1 of rank 0 is expert 2. C21: rank 1
 * linear. */
Test(expert_map, c20_c21_loader_and_map_agree)
{
    int32_t map[4], to_global[2];

    cr_assert_eq(moert_expert_place(2, 0, 4, MOERT_PLACE_ROUND_ROBIN, map, NULL, NULL), MOERT_OK);
    cr_assert_eq(moert_expert_tables(2, 0, 4, NULL, NULL, to_global, NULL), MOERT_OK);
    cr_expect_eq(to_global[map[2]], 2);
    cr_assert_eq(moert_expert_place(2, 1, 4, MOERT_PLACE_LINEAR, map, NULL, NULL), MOERT_OK);
    cr_expect_eq(map[2], 0);
    cr_expect_eq(map[3], 1);
}
