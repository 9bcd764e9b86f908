"""`tidegate pipeline doctor`: can jobs run here, and where executors run?"""
