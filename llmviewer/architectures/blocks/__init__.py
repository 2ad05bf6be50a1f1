"""Building blocks of architectures: mixers, feed-forward networks, decoders, encoders, towers; readers of configs."""
