# core/verify: a backend against the reference; what cts, `moert verify` and the self-test helper call.
libmoert_la_SOURCES += \
	core/verify/bound.c core/verify/bound.h core/verify/case.c core/verify/case.h core/verify/compare.c \
	core/verify/compare.h core/verify/contract.c core/verify/layers.c core/verify/model.c core/verify/session.h \
	core/verify/steps.c core/verify/trace.c core/verify/trace.h core/verify/verify.c
