"""What learning needs: minibatches, objectives, optimisers, means of metrics."""
