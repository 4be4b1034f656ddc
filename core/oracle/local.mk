# sources of core/oracle
