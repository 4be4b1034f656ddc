# Driver modules. Each links libmoert-numerics and drivers/common, never libmoert, never a vendor's library.
EXTRA_DIST += drivers/common/module.map
include drivers/common/local.mk
include drivers/null/local.mk
include drivers/cpu/local.mk
