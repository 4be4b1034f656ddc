# core/io: safetensors files and checkpoints.
libmoert_la_SOURCES += \
	core/io/safetensors.c core/io/safetensors.h core/io/st_check.c core/io/st_writer.c \
	core/io/checkpoint.h core/io/checkpoint_config.c core/io/checkpoint_expert.c core/io/checkpoint_layer.c \
	core/io/checkpoint_load.c core/io/checkpoint_open.c core/io/families.c
# sources of core/io
libmoert_la_SOURCES += core/io/json_fields.c core/io/json_fields.h core/io/layer_json.c core/io/layer_json.h
