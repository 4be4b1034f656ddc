# sources of core/layer
