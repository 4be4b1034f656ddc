# sources of core/numerics
libmoert_numerics_la_SOURCES += core/numerics/exact_math.c core/numerics/exact_math.h
