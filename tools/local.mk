# the moert command: one file per subcommand, on the public API only
bin_PROGRAMS += moert
moert_SOURCES = \
	tools/main.c tools/options.c tools/output.c tools/tools.h \
	tools/clock.c tools/clock.h tools/source.c tools/source.h tools/tensors.c tools/tensors.h \
	tools/align.c tools/info.c tools/record.c tools/record.h tools/route.c tools/run.c tools/select.c \
	tools/bench.c tools/bench.h tools/bench_layer.c tools/bench_limits.c tools/bench_print.c tools/bench_routing.c \
	tools/bench_steps.c tools/bench_weights.c tools/bench_weights.h \
	tools/verify.c tools/verify_layer.c tools/verify_layer.h
moert_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS) -pthread
moert_LDADD = libmoert.la $(JANSSON_LIBS) -lm
moert_LDFLAGS = $(AM_LDFLAGS) -pthread
# quantize, dequantize
moert_SOURCES += \
	tools/quantize.c tools/dequantize.c tools/quantize_checkpoint.c tools/quantize_file.c tools/quantize_file.h \
	tools/quantize_plan.c tools/quantize_run.c tools/quantize_target.c tools/quantize_work.c \
	tools/files.c tools/files.h tools/progress.c tools/progress.h
dist_man_MANS += man/moert.1
bashcompletiondir = @bashcompletiondir@
dist_bashcompletion_DATA = completions/moert

# It prints the installed directories, which a new ./configure --prefix changes.
tools/moert-info.$(OBJEXT): Makefile
