# sources of core/io
