# sources of core/verify
