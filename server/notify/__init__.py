"""Messages about incidents: one file a channel, one outbox for all."""
