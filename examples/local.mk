# examples/: programs that use the installed library, and the shipped model
