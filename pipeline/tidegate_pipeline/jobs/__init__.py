"""Jobs: each module is one streaming query with its plan and its summary."""
