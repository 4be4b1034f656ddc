# doc/ and man/
