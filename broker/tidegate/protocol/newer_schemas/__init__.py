"""Versions of Kafka 4.4 that kio 0.6.5 does not define, as classes of kio's form.

Source: Kafka's message definitions. kio reads the types of fields, so that annotations are not postponed here.
"""
