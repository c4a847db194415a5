"""Several processes that train on parts of each minibatch."""
