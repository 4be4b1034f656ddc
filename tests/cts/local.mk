# tests/cts
