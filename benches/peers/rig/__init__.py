"""The comparison of Kolo with its peers: finds the peers, runs them in turn, and reports the results."""
