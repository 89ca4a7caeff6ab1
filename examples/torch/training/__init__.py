"""Common parts of the programs in this folder: data, models, synchronisation of gradients, training, and reports."""
