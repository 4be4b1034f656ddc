# the moert command: one file per subcommand
