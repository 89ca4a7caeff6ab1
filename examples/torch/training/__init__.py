"""What the programs in this folder share: data, models, synchronisation of gradients, training, and reports."""
