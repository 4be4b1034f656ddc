# tests/loader
