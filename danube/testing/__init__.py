"""For tests, ours and our users': brokers in this process, faults, a simulator, Java and jars."""
