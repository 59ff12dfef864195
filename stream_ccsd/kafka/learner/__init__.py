"""The learner on Kafka: reads scores and verdicts, updates the model when that is due, writes versions."""
