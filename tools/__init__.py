"""Programs for whoever changes Everwork."""
