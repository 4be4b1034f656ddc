# The number formats and functions that the core and every driver share.
libmoert_numerics_la_SOURCES += \
	core/numerics/activation.c core/numerics/bits.h core/numerics/convert.c core/numerics/exact_math.c core/numerics/exact_math.h \
	core/numerics/float8.c core/numerics/lutb.h core/numerics/lutb_codec.c core/numerics/lutb_fit_lloyd.c \
	core/numerics/lutb_fit_optimal.c core/numerics/lutb_order.c core/numerics/mxfp8.c core/numerics/mxfp8.h core/numerics/mxfp8_block.c \
	core/numerics/mxfp8_scales.c
