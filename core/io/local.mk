# core/io: safetensors files and checkpoints.
libmoert_la_SOURCES += \
	core/io/safetensors.c core/io/safetensors.h core/io/st_check.c core/io/st_writer.c
