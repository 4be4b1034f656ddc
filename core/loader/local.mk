libmoert_la_SOURCES += \
	core/loader/context.c core/loader/context.h core/loader/device.c core/loader/discover.c core/loader/elf.c \
	core/loader/gate.c core/loader/loader.h core/loader/memory.c core/loader/module.c core/loader/quarantine.c \
	core/loader/queue.c core/loader/self_test.c core/loader/self_test.h core/loader/spawn.c core/loader/tables.c

# These hold the installed directories, which a new ./configure --prefix changes.
core/loader/libmoert_la-discover.lo core/loader/libmoert_la-self_test.lo: Makefile
