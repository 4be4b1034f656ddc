# sources of core/routing
