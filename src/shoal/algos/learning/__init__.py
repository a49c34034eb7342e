"""Parts of learning: minibatches, objectives, optimisers, means of metrics."""
