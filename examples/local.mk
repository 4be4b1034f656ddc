# examples/: a program that uses the library, the first run of ./quickstart, the shipped model, descriptions.
EXTRA_DIST += examples/run_layer.c examples/first-run.sh
check_PROGRAMS += examples/run_layer
examples_run_layer_SOURCES = examples/run_layer.c
examples_run_layer_CFLAGS = $(AM_CFLAGS)
examples_run_layer_LDADD = libmoert.la

modeldir = @modeldir@
dist_model_DATA = examples/model/README.md examples/model/config.json examples/model/model.safetensors \
	examples/model/experts_lut_b.safetensors examples/model/reference.safetensors examples/model/sample.txt \
	examples/model/calibration.txt

# Inputs of `moert select`: doc/formats.md.
exampledir = $(docdir)/examples
dist_example_DATA = examples/layer.json examples/device-h200.json examples/device-sm107.json
