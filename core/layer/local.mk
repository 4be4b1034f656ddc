libmoert_la_SOURCES += \
	core/layer/check.c core/layer/chunk.c core/layer/chunk.h core/layer/config.c core/layer/dense.c \
	core/layer/describe.h core/layer/hook.c core/layer/layer.c core/layer/layer.h core/layer/pool.c \
	core/layer/route.c core/layer/run.c core/layer/shared.c core/layer/staging.c core/layer/staging.h core/layer/steps.c \
	core/layer/tensors.c core/layer/warm_up.c core/layer/weights.c
