#!/bin/sh
# The conformance suite on the CPU driver, linked in.
exec "$MOERT_TEST_BUILDDIR/tests/cts/cts" --backend 'cpu.*' --expect "$MOERT_TEST_SRCDIR/tests/cts/cpu.expect"
