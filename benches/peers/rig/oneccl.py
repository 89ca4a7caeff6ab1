"""oneCCL, over Intel MPI."""


def find(peers_dir):
    return [], {"oneCCL": "not supported yet"}
