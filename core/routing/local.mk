# Routing: from router logits to a token's output row.
libmoert_la_SOURCES += \
	core/routing/align.c core/routing/align.h core/routing/align_batched.c core/routing/align_chunks.c core/routing/combine.c core/routing/expert_map.c \
	core/routing/permute.c core/routing/router.c core/routing/router.h core/routing/router_hash.c \
	core/routing/router_logits.c core/routing/router_plan.c core/routing/router_score.c core/routing/router_score.h \
	core/routing/router_select.h core/routing/rows.c core/routing/rows.h core/routing/slot.h
