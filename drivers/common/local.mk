# sources of drivers/common
