# the moert command: one file per subcommand, on the public API only
EXTRA_PROGRAMS = moert
moert_SOURCES = \
	tools/main.c tools/options.c tools/output.c tools/tools.h
moert_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
moert_LDADD = libmoert.la $(JANSSON_LIBS) -lm
