# core/oracle: which backend runs a layer, and why.
libmoert_la_SOURCES += \
	core/oracle/arena.c core/oracle/arena.h core/oracle/candidates.c core/oracle/checks.c core/oracle/decision.h \
	core/oracle/describe.c core/oracle/drift.c core/oracle/explain.c core/oracle/names.c core/oracle/rank.c \
	core/oracle/select.c core/oracle/trail.h
