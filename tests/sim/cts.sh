#!/bin/sh
# The conformance suite on both devices of the simulated accelerator.
exec "$MOERT_TEST_BUILDDIR/tests/cts/cts" --path "$MOERT_TEST_BUILDDIR/tests/sim/.libs" --backend 'sim.*' \
  --expect "$MOERT_TEST_SRCDIR/tests/sim/sim.expect"
