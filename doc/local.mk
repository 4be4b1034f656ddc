# doc/ and man/

# Schema of the record of `moert select --json`: oracle.md 10.
docdatadir = $(datadir)/moert
dist_docdata_DATA = doc/explain.schema.json

EXTRA_DIST += doc/driver-guide.md doc/performance.md

# The file formats, for users; tests/cli/examples.sh runs their examples.
dist_doc_DATA = doc/formats.md
