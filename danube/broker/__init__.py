"""The broker process: gRPC services over the topic log, composed and shut down in order."""
