"""The admin HTTP of a broker: health, metrics, REST API and console."""
