# sources of drivers/cpu
