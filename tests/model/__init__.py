"""The model of consumer groups: random lives over several brokers, with faults between any two Redis commands.

Everything runs in one thread on virtual time: real scripts on a real server, the real waiting loops of the brokers, a
link to Redis that the test holds, cuts and kills. The same seed is the same life, so Hypothesis shrinks it.
"""
