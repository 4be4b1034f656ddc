# Names, text and errors belong to drivers too, so they live in the library that drivers link.
libmoert_numerics_la_SOURCES += core/base/error.c core/base/error.h core/base/checked.h core/base/names.c \
	core/base/text.c core/base/text.h
libmoert_la_SOURCES += \
	core/base/file.c core/base/file.h core/base/log.c core/base/log.h core/base/options.c core/base/options.h \
	core/base/version.c
EXTRA_DIST += core/base/config.def
