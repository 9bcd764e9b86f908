"""Producer ids and transactions: records of transactional ids, their transitions, completion and time-outs."""
