"""The comparison of Kolo with its peers: finding them, running them in turn, and telling what came out."""
