# sources of core/loader
