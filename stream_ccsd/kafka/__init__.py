"""The engine on Kafka: Faust workers that share the partitions of a topic, and what feeds and follows them.

Data flows one way here too: consumer → scoring → producer → table. deploy/README.md says what survives what.
"""
