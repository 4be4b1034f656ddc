libmoert_la_SOURCES += core/layer/config.c core/layer/describe.h
