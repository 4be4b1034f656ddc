# sources of core/numerics
