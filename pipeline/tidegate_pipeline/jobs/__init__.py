"""Jobs: each module is one streaming query and what is said of it before and after."""
