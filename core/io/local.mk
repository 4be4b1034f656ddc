# core/io: safetensors files and checkpoints.
libmoert_la_SOURCES += \
	core/io/safetensors.c core/io/safetensors.h core/io/st_check.c core/io/st_writer.c
# sources of core/io
libmoert_la_SOURCES += core/io/json_fields.c core/io/json_fields.h core/io/layer_json.c core/io/layer_json.h
