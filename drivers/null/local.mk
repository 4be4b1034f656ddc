# sources of drivers/null
